"""Writing: whole or not at all, on the disk before it has its name, and nothing left where it fails."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from forsaken import _files
from forsaken._files import (
    copy_path,
    create,
    draft_of,
    extend,
    make_folder,
    move,
    remove,
    remove_drafts,
    write_atomically,
)
from forsaken.errors import InputError, OutputError


def name_of(handle: int) -> str:
    return os.fsdecode(Path(f"/proc/self/fd/{handle}").readlink())


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What was flushed, renamed, linked and removed, in this order; a draft is called by its name."""
    seen: list[tuple[str, str]] = []

    def short(path: Any) -> str:
        return "draft" if str(path).endswith(".draft") else Path(path).name

    for kind in ("replace", "link", "fsync", "unlink", "mkdir"):
        real = getattr(os, kind)

        def counted(path: Any, *more: Any, kind: str = kind, real: Any = real, **named: Any) -> Any:
            seen.append((kind, short(name_of(path) if isinstance(path, int) else path)))
            return real(path, *more, **named)

        monkeypatch.setattr(os, kind, counted)
    return seen


def test_a_file_is_flushed_then_renamed_then_its_folder_is_flushed(tmp_path: Path, told: list[Any]) -> None:
    write_atomically(tmp_path / "a", b"1")
    assert told[:3] == [("fsync", "draft"), ("replace", "draft"), ("fsync", tmp_path.name)]


def test_a_folder_is_flushed_with_all_that_is_in_it(tmp_path: Path, told: list[Any]) -> None:
    with draft_of(tmp_path / "bert") as draft:
        (draft / "deep").mkdir(parents=True)
        (draft / "deep" / "weights").write_bytes(b"1")
        (draft / "config").write_bytes(b"2")
        told.clear()
    flushed = [("fsync", "config"), ("fsync", "weights"), ("fsync", "deep"), ("fsync", "draft")]
    assert told[:6] == [*flushed, ("replace", "draft"), ("fsync", tmp_path.name)]


def test_a_move_flushes_both_folders(tmp_path: Path, told: list[Any]) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "from" / "a").write_bytes(b"1")
    told.clear()
    move(tmp_path / "from" / "a", tmp_path / "to" / "a")
    assert told == [("replace", "a"), ("fsync", "to"), ("fsync", "from")]


def test_new_folders_and_removals_are_flushed(tmp_path: Path, told: list[Any]) -> None:
    make_folder(tmp_path / "a" / "b")
    assert told == [("mkdir", "a"), ("mkdir", "b"), ("fsync", tmp_path.name), ("fsync", "a")]
    (tmp_path / "a" / "b" / "c").write_bytes(b"")
    told.clear()
    remove(tmp_path / "a" / "b" / "c")
    assert told == [("unlink", "c"), ("fsync", "b")]


def test_what_may_not_be_replaced_is_not(tmp_path: Path, told: list[Any]) -> None:
    write_atomically(tmp_path / "k", b"mine", replace=False)
    assert told[:3] == [("fsync", "draft"), ("link", "draft"), ("fsync", tmp_path.name)]
    with pytest.raises(OutputError, match="File exists"):
        write_atomically(tmp_path / "k", b"other", replace=False)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]


@pytest.mark.parametrize("error", [InputError("no"), KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_a_block_that_fails_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    (tmp_path / "a").write_bytes(b"old")
    expected = OutputError if type(error) is OSError else type(error)

    def fail(folder: bool) -> None:
        with draft_of(tmp_path / "a") as draft:
            if folder:
                draft.mkdir()
            with create(draft / "inside" if folder else draft) as file:
                file.write(b"half")
            raise error

    for folder in (False, True):
        with pytest.raises(expected):
            fail(folder)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_private_files_are_private_and_drafts_too(tmp_path: Path) -> None:
    with draft_of(tmp_path / "k") as draft, create(draft, private=True):
        assert stat.S_IMODE(draft.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o600


def test_a_file_that_grows_is_never_somebody_elses(tmp_path: Path) -> None:
    for anew, expected in ((True, b"1"), (False, b"12"), (True, b"1")):
        with extend(tmp_path / "part", anew=anew) as file:
            file.write(b"1" if anew else b"2")
        assert (tmp_path / "part").read_bytes() == expected
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "link").symlink_to(tmp_path / "victim")
    for anew in (True, False):
        with pytest.raises(OSError, match="symbolic links"):
            extend(tmp_path / "link", anew=anew)
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_drafts_of_killed_writers_are_removed(tmp_path: Path) -> None:
    left = ".audit.json.0123456789ab.draft"
    mine = [
        "audit.json",
        ".audit.json",
        ".audit.json.draft",
        ".audit.json.0123456789ab",
        "audit.json.0123456789ab.draft",
    ]
    (tmp_path / "deep").mkdir()
    for name in (left, ".other.0123456789ab.draft", f"deep/{left}", *mine):
        (tmp_path / name).write_bytes(b"")
    remove_drafts(tmp_path, "audit.json")
    assert not (tmp_path / left).exists()
    assert (tmp_path / "deep" / left).exists()
    assert (tmp_path / ".other.0123456789ab.draft").exists()
    remove_drafts(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_file()) == sorted(mine)


def test_copies(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "read-only").write_bytes(b"1")
    (tmp_path / "a" / "read-only").chmod(0o400)
    copy_path(tmp_path / "a", tmp_path / "b")
    copy_path(tmp_path / "a" / "read-only", tmp_path / "c")
    assert (tmp_path / "b" / "read-only").read_bytes() == (tmp_path / "c").read_bytes() == b"1"


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_a_system_that_cannot_flush_folders_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if Path(name_of(handle)).is_dir():
            raise OSError(code, os.strerror(code))
        real(handle)

    monkeypatch.setattr(_files.os, "fsync", fsync)
    if code == errno.EINVAL:
        assert write_atomically(tmp_path / "a", b"1").read_bytes() == b"1"
    else:
        with pytest.raises(OutputError, match=r"cannot write .*a: Input/output error"):
            write_atomically(tmp_path / "a", b"1")
