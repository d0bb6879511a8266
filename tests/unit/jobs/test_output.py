"""The output folder: all or nothing, never over what is there, never over what is read, never out of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from forsaken.errors import InputError, OutputError
from forsaken.jobs.output import held, output


def write(folder: Path, *names: str, text: str = "new", **settings: Any) -> None:
    with output(folder, **settings) as place:
        for name in names:
            (place / name).write_text(text)


def fail(folder: Path, error: BaseException) -> None:
    with output(folder) as place:
        (place / "notes.txt").write_text("new")
        raise error


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def goal(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_what_the_block_wrote_comes_into_sight(goal: Path) -> None:
    with output(goal) as place:
        (place / "result.json").write_text("1")
        (place / "bert").mkdir()
        (place / "bert" / "config.json").write_text("{}")
        assert names(goal) == [".forsaken.lock", ".unfinished"]
        assert place.stat().st_mode & 0o077 == 0
    assert names(goal) == ["bert", "result.json"]
    assert (goal / "bert" / "config.json").read_text() == "{}"


@pytest.mark.parametrize("error", [InputError("no"), KeyboardInterrupt(), ValueError("x")])
def test_a_failure_leaves_nothing_not_even_folders(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)):
        fail(tmp_path / "a" / "b" / "c", error)
    assert names(tmp_path) == []


def test_a_failure_leaves_what_was_there(goal: Path) -> None:
    goal.mkdir()
    (goal / "notes.txt").write_text("mine")
    with pytest.raises(InputError):
        fail(goal, InputError("no"))
    assert names(goal) == ["notes.txt"]
    assert (goal / "notes.txt").read_text() == "mine"


def test_a_result_is_not_overwritten_unless_forced(goal: Path) -> None:
    write(goal, "certificate.json", "result.json", text="old")
    with pytest.raises(OutputError, match=r"holds the result of an earlier run.*--force"):
        write(goal, "certificate.json")
    assert (goal / "certificate.json").read_text() == "old"
    write(goal, "certificate.json", "result.json", force=True)
    assert (goal / "result.json").read_text() == "new"


def test_other_files_of_a_name_are_not_overwritten_unless_forced(goal: Path) -> None:
    goal.mkdir()
    (goal / "result.json").write_text("mine")
    for settings in ({"names": ["result.json"]}, {}):
        with pytest.raises(OutputError, match=r"result\.json is there already.*--force"):
            write(goal, "result.json", **settings)
    assert names(goal) == ["result.json"]
    assert (goal / "result.json").read_text() == "mine"


def test_names_that_are_known_are_refused_before_the_work(goal: Path) -> None:
    goal.mkdir()
    (goal / "result.json").write_text("mine")
    with pytest.raises(OutputError), output(goal, names=["result.json"]):
        pytest.fail("the work began")


def test_what_is_read_is_never_overwritten(goal: Path) -> None:
    goal.mkdir()
    (goal / "model.pt").write_text("weights")
    for settings in ({"names": ["model.pt"]}, {}):
        with pytest.raises(OutputError, match=r"model\.pt is read by this job"):
            write(goal, "model.pt", force=True, inputs=[goal / "model.pt"], **settings)
    assert (goal / "model.pt").read_text() == "weights"


def test_what_is_read_through_a_link_is_never_overwritten(tmp_path: Path, goal: Path) -> None:
    goal.mkdir()
    (goal / "model.pt").write_text("weights")
    (tmp_path / "link.pt").symlink_to(goal / "model.pt")
    with pytest.raises(OutputError, match="is read by this job"):
        write(goal, "model.pt", force=True, inputs=[tmp_path / "link.pt"])
    assert (goal / "model.pt").read_text() == "weights"


def test_links_in_the_folder_do_not_lead_out(tmp_path: Path, goal: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("precious")
    goal.mkdir()
    (goal / "result.json").symlink_to(outside / "victim")
    (goal / "bert").symlink_to(outside)
    with output(goal, force=True) as place:
        (place / "result.json").write_text("new")
        (place / "bert").mkdir()
        (place / "bert" / "victim").write_text("new")
    assert names(outside) == ["victim"]
    assert (outside / "victim").read_text() == "precious"
    assert not (goal / "result.json").is_symlink()
    assert not (goal / "bert").is_symlink()
    assert (goal / "bert" / "victim").read_text() == "new"


def test_a_lock_that_is_a_link_touches_nothing(tmp_path: Path, goal: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    goal.mkdir()
    (goal / ".forsaken.lock").symlink_to(tmp_path / "victim")
    with pytest.raises(OutputError, match="cannot write"):
        write(goal, "result.json")
    assert (tmp_path / "victim").read_text() == "precious"


def move_record(new: dict[str, str], old: tuple[str, ...] = ()) -> str:
    return json.dumps(
        {"new": {name: hashlib.sha256(text.encode()).hexdigest() for name, text in new.items()}, "old": old}
    )


@pytest.mark.parametrize(
    ("listed", "named"),
    [
        (move_record({"../victim": "precious"}), "../victim"),
        (move_record({"bert/../../victim": "precious"}), "bert/../../victim"),
        (move_record({"/victim": "precious"}), "/victim"),
        (move_record({"link": "precious"}), "link"),
        (move_record({"to/victim": "precious"}), "to"),
        (move_record({"mine.txt": "other"}), "mine.txt"),
        (move_record({"mine.txt": "mine", "folder/listed": "a"}), "folder/unlisted"),
        (move_record({".": "", "": ""}), "."),
        (move_record({"earlier/then/records.key": "key"}), "earlier/then/records.key"),
        (move_record({"pipe": ""}), "pipe"),
        (move_record({}, ("../victim",)), "../victim"),
        (move_record({}, ("mine.txt",)), "mine.txt"),
        ('["mine.txt"]', ".unfinished.json"),
        ("{}", ".unfinished.json"),
        ("no JSON", ".unfinished.json"),
        ("", ".unfinished.json"),
    ],
)
def test_a_record_that_no_run_wrote_is_refused_before_anything_goes(
    tmp_path: Path, goal: Path, listed: str, named: str
) -> None:
    outside = tmp_path / "outside"
    for folder in (outside, goal / "folder", goal / ".replaced", goal / ".unfinished", goal / "earlier" / "then"):
        folder.mkdir(parents=True)
    (tmp_path / "victim").write_text("precious")
    (outside / "victim").write_text("precious")
    for name, text in {
        "mine.txt": "mine",
        "folder/listed": "a",
        "folder/unlisted": "b",
        ".replaced/mine.txt": "c",
    }.items():
        (goal / name).write_text(text)
    (goal / "earlier" / "then" / "records.key").write_text("key")
    (goal / "link").symlink_to(tmp_path / "victim")
    (goal / "to").symlink_to(outside)
    os.mkfifo(goal / "pipe")
    (goal / ".unfinished.json").write_text(listed)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OutputError, match=r"nothing was removed") as caught:
        write(goal, "result.json", force=True)
    assert f"{named!r}" in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", [".unfinished", ".unfinished.json", ".replaced"])
def test_a_link_in_place_of_what_a_run_leaves_is_refused(tmp_path: Path, goal: Path, name: str) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").write_text("precious")
    goal.mkdir()
    (goal / name).symlink_to(tmp_path / "victim")
    with pytest.raises(OutputError, match=f"'{name}'.* is a link"):
        write(goal, "result.json")
    assert names(tmp_path / "victim") == ["precious"]
    assert (goal / name).is_symlink()


def test_a_record_that_somebody_wrote_does_not_remove_what_is_read(goal: Path) -> None:
    goal.mkdir()
    (goal / "model.pt").write_text("weights")
    (goal / ".unfinished.json").write_text(move_record({"half.json": "half", "model.pt": "weights"}))
    (goal / "half.json").write_text("half")
    with pytest.raises(OutputError, match=r"'model\.pt'.* is read by this job"):
        write(goal, "result.json", inputs=[goal / "model.pt"])
    assert names(goal) == [".unfinished.json", "half.json", "model.pt"]


def test_what_a_killed_run_left_is_removed_and_what_it_replaced_is_back(goal: Path) -> None:
    (goal / ".unfinished").mkdir(parents=True)
    (goal / ".unfinished" / "certificate.json").write_text("new")
    (goal / ".replaced").mkdir()
    (goal / ".replaced" / "model.pt").write_text("old")
    new = {"model.pt": "new", "bert/config.json": "new", "certificate.json": "new", "notes.txt": "new"}
    (goal / ".unfinished.json").write_text(move_record(new, ("model.pt", "notes.txt")))
    (goal / "model.pt").write_text("new")
    (goal / "bert" / "empty").mkdir(parents=True)
    (goal / "bert" / "config.json").write_text("new")
    (goal / "notes.txt").write_text("not moved away yet")
    (goal / "mine.txt").write_text("mine")
    write(goal, "result.json")
    assert names(goal) == ["mine.txt", "model.pt", "notes.txt", "result.json"]
    assert (goal / "model.pt").read_text() == "old"
    assert (goal / "notes.txt").read_text() == "not moved away yet"


@pytest.mark.parametrize("count", range(4))
def test_a_failure_while_files_are_moved_leaves_the_earlier_result(
    goal: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    real, moved = Path.replace, []

    def replace(self: Path, target: Any) -> Path:
        if self.parent.name == ".unfinished":
            moved.append(self.name)
            if len(moved) > count:
                raise OSError(28, "No space left on device", str(target))
        return real(self, target)

    write(goal, "certificate.json", "a", "b", "c", text="old")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(OutputError, match="No space left"):
            write(goal, "certificate.json", "a", "b", "c", force=True)
    assert names(goal) == ["a", "b", "c", "certificate.json", "earlier"]
    assert {(goal / name).read_text() for name in ("a", "b", "c", "certificate.json")} == {"old"}
    write(goal, "certificate.json", "a", "b", "c", force=True)
    assert names(goal) == ["a", "b", "c", "certificate.json", "earlier"]
    assert {(goal / name).read_text() for name in ("a", "b", "c", "certificate.json")} == {"new"}


def test_a_certificate_that_is_replaced_stays_with_its_keys(goal: Path) -> None:
    keys = ("records.key", "references.safetensors.key")
    for text in ("first", "second", "third"):
        write(goal, "certificate.json", *keys, "references.safetensors", text=text, force=True)
    write(goal, "certificate.json", text="fourth", force=True)  # a run whose key lies elsewhere
    kept = sorted((goal / "earlier").iterdir(), key=lambda place: (place / "records.key").read_text())
    assert [[(place / name).read_text() for name in ("certificate.json", *keys)] for place in kept] == [
        ["first"] * 3,
        ["second"] * 3,
        ["third"] * 3,
    ]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d-[0-9a-f]{12}", place.name) for place in kept)
    assert {path.stat().st_mode & 0o077 for place in kept for path in (place, *(place / name for name in keys))} == {0}
    assert names(goal) == ["certificate.json", "earlier", "records.key"], "a key is never deleted"


@pytest.mark.parametrize("how", ["file", "link"])
def test_no_certificate_is_replaced_where_it_cannot_be_kept(tmp_path: Path, goal: Path, how: str) -> None:
    write(goal, "certificate.json", text="old")
    (goal / "earlier").write_text("mine") if how == "file" else (goal / "earlier").symlink_to(tmp_path)
    with pytest.raises(OutputError, match="is no folder"):
        write(goal, "certificate.json", force=True)
    assert (goal / "certificate.json").read_text() == "old"


def test_a_mask_of_an_earlier_run_does_not_outlive_its_certificate(goal: Path) -> None:
    write(goal, "certificate.json", "mask.safetensors", "cleaned.csv")
    (goal / "mine.txt").write_text("mine")
    write(goal, "certificate.json", force=True)
    assert names(goal) == ["certificate.json", "earlier", "mine.txt"]


def test_files_of_the_user_are_no_files_of_an_earlier_run(goal: Path) -> None:
    goal.mkdir()
    (goal / "cleaned.csv").write_text("mine")
    write(goal, "certificate.json", force=True)
    assert (goal / "cleaned.csv").read_text() == "mine"


def test_a_folder_that_the_job_reads_is_not_written_into(tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    (pictures / "cat").mkdir(parents=True)
    for folder in (pictures, pictures / "out", pictures / "cat" / "deep" / "out"):
        with pytest.raises(OutputError, match="which the job reads"):
            write(folder, "result.json", inputs=[pictures])
    assert names(pictures) == ["cat"]
    assert names(pictures / "cat") == []


def test_a_file_in_place_of_the_folder(goal: Path) -> None:
    goal.write_text("mine")
    with pytest.raises(OutputError, match="is a file, not a folder"):
        write(goal, "result.json")
    with pytest.raises(OutputError, match="cannot make the folder"):
        write(goal / "deep", "result.json")
    assert goal.read_text() == "mine"


@pytest.mark.parametrize("name", ["x" * 300, "nul\0"])
def test_names_that_no_folder_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError, match=r"folder|write"):
        write(tmp_path / name, "result.json")


def test_a_link_to_a_folder_is_a_folder(tmp_path: Path, goal: Path) -> None:
    (tmp_path / "real").mkdir()
    goal.symlink_to(tmp_path / "real")
    write(goal, "result.json")
    assert names(tmp_path / "real") == ["result.json"]


def test_two_at_once(goal: Path) -> None:
    with output(goal) as place:
        with pytest.raises(OutputError, match="another run is writing"):
            write(goal, "other.json")
        (place / "result.json").write_text("1")
    assert names(goal) == ["result.json"]


def test_in_another_thread(goal: Path) -> None:
    """Signals can be put off in the main thread alone."""
    worker = threading.Thread(target=write, args=(goal, "result.json"))
    worker.start()
    worker.join()
    assert names(goal) == ["result.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(goal: Path) -> None:
    goal.mkdir(mode=0o500)
    with pytest.raises(OutputError, match="cannot write"):
        write(goal, "result.json")


def test_a_folder_is_held_by_one(tmp_path: Path) -> None:
    with held(tmp_path), pytest.raises(OutputError, match="another run is writing to"), held(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_whoever_comes_next_is_not_robbed_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One leaves, a second comes at that very moment: a third must find the folder held."""
    real, second = FileLock.release, FileLock(tmp_path / ".forsaken.lock")

    def release(lock: FileLock, force: bool = False) -> None:
        real(lock, force)
        if lock is not second and not second.is_locked:
            second.acquire(timeout=0)

    monkeypatch.setattr(FileLock, "release", release)
    with held(tmp_path):
        pass
    assert second.is_locked
    with pytest.raises(OutputError, match="another run is writing to"), held(tmp_path):
        pass
    monkeypatch.undo()
    second.release()
    with held(tmp_path):
        pass
