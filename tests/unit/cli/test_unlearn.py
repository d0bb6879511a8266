"""`forsaken unlearn`, as people type it: words, JSON, exit codes, and folders."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from job_folders import digests, forsaken, result_of, start, write_job, write_world

from forsaken.cli.exits import Exit

FILES = [
    "certificate.json",
    "cleaned.parquet",
    "model.safetensors",
    "posteriors.npz",
    "records.key",
    "report.html",
    "result.json",
]
SHADOW = {"weights": "shadow.safetensors", "members": "members.parquet", "nonmembers": "nonmembers.parquet"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_world(tmp_path / "job")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the page, which takes a second."""
    monkeypatch.setattr(
        "forsaken.report.page.write_report", lambda place, *_: (place / "report.html").write_text("page")
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_for_people(folder: Path) -> None:
    job = write_job(folder, oracle=SHADOW | {"retrained": "retrained.safetensors"}, chain={"max_drift": 1e-6})
    ended = forsaken("unlearn", job)
    out, found = folder / "forgotten", result_of(folder / "forgotten")
    assert ended.code == Exit.FAILED, "the default target keeps the label that was learnt"
    assert found["verdict"]["word"] == "failed"
    assert f"verdict: failed: {found['verdict']['line']}" in ended.out
    assert names(out) == FILES
    assert "forget 12 samples" in ended.out
    for name in ("fr", "cfr", "accuracy_after"):
        assert f"{found[name]:.3f}" in ended.out
    for words in (
        "retrained",
        "confidence on forgotten samples",
        "retrain the model",
        "records.key (keep it, and apart from the certificate)",
    ):
        assert words in ended.out
    command = next(line for line in ended.out.splitlines() if line.startswith("check it:")).split(":", 1)[1]
    checked = forsaken(*shlex.split(command)[1:])
    assert checked.code == Exit.FAILED, "the certificate holds, and says that the forgetting failed"
    assert f"The certificate says: failed: {found['verdict']['line']}" in checked.out
    page = (out / "report.html").read_text()
    assert f"{found['fr']:.3f}" in page or f"{found['fr']:.0%}" in page


@pytest.mark.usefixtures("quick")
def test_json_is_nothing_but_json(folder: Path) -> None:
    ended = forsaken("unlearn", write_job(folder), "--json")
    assert ended.code == 0
    assert set(ended.json) == {"folder", "files", "result", "unmet"}
    assert ended.json["files"] == FILES
    assert ended.json["folder"] == str(folder / "forgotten")
    assert ended.json["result"] == result_of(folder / "forgotten")
    assert len(ended.out.strip().splitlines()) == 1


@pytest.mark.usefixtures("quick")
def test_json_stays_json_whatever_user_code_prints(folder: Path) -> None:
    (folder / "model.py").write_text(
        "print('importing')\nimport os\nfrom torch import nn\n"
        "class Loud(nn.Sequential):\n    def forward(self, x):\n        print('calling')\n"
        "        return super().forward(x)\n"
        "def net():\n    print('building')\n    return Loud(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))\n"
        "def forward(model, x):\n    print('forward')\n    return model(x)\n"
    )
    ended = forsaken("unlearn", write_job(folder, model={"forward": "model:forward"}), "--json")
    assert ended.code == 0
    assert ended.json["files"] == FILES
    for word in ("importing", "building", "calling", "forward"):
        assert word in ended.err


@pytest.mark.usefixtures("quick")
def test_the_job_of_this_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_job(folder)
    monkeypatch.chdir(folder)
    assert forsaken("unlearn").code == 0
    assert names(folder / "forgotten") == FILES


@pytest.mark.usefixtures("quick")
def test_out_is_relative_to_where_one_is(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert forsaken("unlearn", write_job(folder), "--out", "here").code == 0
    assert names(tmp_path / "here") == FILES
    assert not (folder / "forgotten").exists()


@pytest.mark.usefixtures("quick")
def test_a_result_is_replaced_by_force_only(folder: Path) -> None:
    job = write_job(folder)
    assert forsaken("unlearn", job).code == 0
    before = digests(folder)
    ended = forsaken("unlearn", job, "--json")
    assert ended.code == 2
    assert ended.json["kind"] == "OutputError"
    assert "--force" in ended.json["error"]
    assert digests(folder) == before
    ended = forsaken("unlearn", job, "--force")
    assert ended.code == 0
    assert f"{folder / 'forgotten' / 'earlier'} keeps the certificates of earlier runs" in ended.out
    assert names(folder / "forgotten") == sorted([*FILES, "earlier"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": {"forget": "none.parquet"}}, "none.parquet"),
        ({"method": {"iterations": 0}}, "iterations is 0"),
        ({"method": {"colour": "red"}}, "[method] colour is unknown"),
        ({"model": {"factory": "model:nothing"}}, "no function 'nothing'"),
        ({"output": {"folder": "."}}, "would be overwritten"),
        ({"oracle": {"weights": "shadow.safetensors"}}, "members"),
    ],
    ids=str,
)
def test_mistakes(folder: Path, change: dict[str, Any], words: str) -> None:
    job = write_job(folder, **change)
    before = digests(folder)
    told = forsaken("unlearn", job, "--json")
    assert told.code == 2
    assert set(told.json) == {"error", "kind"}
    assert words in told.json["error"]
    people = forsaken("unlearn", job)
    assert (people.code, people.out) == (2, "")
    assert words in people.err
    assert "Traceback" not in people.err
    assert digests(folder) == before


def test_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = forsaken("unlearn", "--json")
    assert told.code == 2
    assert "forsaken init" in told.json["error"]


def test_markup_in_names_is_shown_as_it_is(tmp_path: Path) -> None:
    """Square brackets mean colours to the terminal library."""
    folder = write_world(tmp_path / "[bold]job[/bold]")
    ended = forsaken("unlearn", write_job(folder, data={"forget": "[red]none[/red].parquet"}))
    assert ended.code == 2
    assert "[red]none[/red].parquet" in ended.err
    assert "[bold]job[/bold]" in ended.err


@pytest.mark.usefixtures("quick")
def test_folders_with_odd_names(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "my job [1] 'é' \"x\" $HOME %s {0}")
    ended = forsaken("unlearn", write_job(folder))
    assert ended.code == 0
    command = next(line for line in ended.out.splitlines() if line.startswith("check it:")).split(":", 1)[1]
    assert forsaken(*shlex.split(command)[1:]).code == Exit.NOT_SHOWN


@pytest.mark.parametrize("name", ["x" * 300, "a/" * 3000])
def test_an_output_folder_that_cannot_be(folder: Path, name: str) -> None:
    told = forsaken("unlearn", write_job(folder), "--json", "--out", folder / name)
    assert told.code == 2
    assert told.json["kind"] == "OutputError"


def test_as_a_process_of_its_own_with_a_full_disk(folder: Path) -> None:
    """A limit on the size of files stands in for the disk."""
    job = write_job(folder, output={"mask": True})
    before = digests(folder)
    code = (
        "import resource\nfrom forsaken.cli.main import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))\nmain()"
    )
    process = start("unlearn", job, "--json", folder=folder, code=code)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert "File too large" in json.loads(out)["error"]
    assert "Traceback" not in err
    assert digests(folder) == before
    assert not (folder / "forgotten").exists()


def test_as_a_process_of_its_own_with_damaged_weights(folder: Path) -> None:
    """What libraries log by themselves is seen only there."""
    from job_folders import program

    (folder / "model.pt2").write_bytes(program()[:-2000])
    job = write_job(folder, model={"weights": "model.pt2", "factory": None})
    process = start("unlearn", job, "--json", folder=folder)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "model.pt2" in json.loads(out)["error"]
    assert "Traceback" not in err
    assert err.count("\n") < 8
