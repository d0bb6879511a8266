"""Who may read what the command line writes, and what it never shows: permissions, and secrets in arguments."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_folders import MODEL, RECIPE, SHADOW, forsaken, write_job, write_world

from forsaken._files import no_more_open_than

SECRET = "hunter2-of-the-tests"
FACTORY = MODEL.replace("def net(width=32, classes=4):", "def net(width=32, classes=4, source='', pin_token=0):")
DATA = f"""
import numpy as np, pyarrow.parquet as pq
def rows(name, source):
    if source != "db://anna:{SECRET}@host":
        raise ValueError(f"cannot reach {{source}}")
    table = pq.read_table(__file__.replace("own.py", name + ".parquet"))
    return np.stack([table[f"f{{at}}"].to_numpy() for at in range(12)], 1), table["label"].to_numpy()
"""


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {
        path.relative_to(folder).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in folder.rglob("*")
        if path.is_file()
    }


def close(folder: Path, mode: int) -> None:
    for path in folder.iterdir():
        if path.is_file():
            path.chmod(mode)


def play(job: Path) -> Path:
    """Every verb that writes files of a job: a table of references, a run with a mask, an audit, a page, weights."""
    out = job.parent / "forgotten"
    again = job.parent / "again"
    again.mkdir(mode=0o755)
    for words in (
        ("references", "fit", job),
        ("unlearn", job),
        ("audit", job, "--profile", "quick"),
        ("report", out, "--out", again / "page.html"),
        ("mask", "apply", out / "mask.safetensors", job, "--out", again / "model.safetensors"),
    ):
        ended = forsaken(*words)
        assert ended.code in (0, 4), ended.err
    return out


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_outputs_are_no_more_open_than_the_inputs(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    job = write_job(folder, oracle=SHADOW, references={"folds": 2}, audit={"recipe": RECIPE}, output={"mask": True})
    close(folder, 0o644)
    out = play(job)
    found = modes(out)
    private = {"mask.safetensors", "records.key", "references.safetensors", "references.safetensors.key"}
    assert {"model.safetensors", "cleaned.parquet", "report.html", "audit-quick.json"} <= set(found)
    assert {name: mode for name, mode in found.items() if name not in private} == dict.fromkeys(
        set(found) - private, 0o644
    )
    for one in ("train.parquet", "model.safetensors"):  # one of them is enough
        other = write_world(tmp_path / one)
        write_job(other, oracle=SHADOW, references={"folds": 2}, audit={"recipe": RECIPE}, output={"mask": True})
        close(other, 0o644)
        (other / one).chmod(0o600)
        out = play(other / "forsaken.toml")
        assert set(modes(out)) == set(found)
        for name, mode in {**modes(out), **modes(other / "again")}.items():
            assert mode == 0o600, (one, name, oct(mode))
        assert stat.S_IMODE(out.stat().st_mode) == 0o700


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize(
    ("mode", "made"), [(0o644, 0o644), (0o640, 0o640), (0o600, 0o600), (0o664, 0o644), (0o604, 0o604), (0o622, 0o600)]
)
def test_a_file_gets_what_its_sources_allow(tmp_path: Path, mode: int, made: int) -> None:
    source = tmp_path / "pictures" / "cat"
    source.mkdir(parents=True)
    (source / "1.png").write_bytes(b"")
    (source / "1.png").chmod(mode)
    with no_more_open_than([tmp_path / "pictures", tmp_path / "nothing"]):
        (tmp_path / "new").write_bytes(b"")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == made
    (tmp_path / "later").write_bytes(b"")
    assert stat.S_IMODE((tmp_path / "later").stat().st_mode) == 0o644


def test_secrets_in_arguments_are_shown_nowhere(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    (folder / "model.py").write_text(FACTORY)
    (folder / "own.py").write_text(DATA)
    source = f"db://anna:{SECRET}@host"
    job = write_job(
        folder,
        model={"arguments": {"width": 32, "source": source, "pin_token": 271828}},
        data={
            name: {"python": "own:rows", "arguments": {"name": name, "source": source}} for name in ("train", "test")
        },
    )
    said = ""
    for words in (("unlearn", job, "--dry-run"), ("unlearn", job), ("unlearn", job, "--force", "--json"),
                  ("audit", job, "--json"), ("audit", job)):  # fmt: skip
        ended = forsaken(*words)
        assert ended.code in (0, 4), ended.err
        said += ended.out + ended.err
    out = folder / "forgotten"
    found = json.loads((out / "result.json").read_bytes())["job"]
    assert found["model"]["arguments"] == {"width": 32, "source": "not kept", "pin_token": "not kept"}
    assert found["data"]["train"]["arguments"] == {"name": "not kept", "source": "not kept"}
    payload = base64.b64decode(json.loads((out / "certificate.json").read_bytes())["payload"])
    for content in (said.encode(), payload, *(path.read_bytes() for path in out.rglob("*") if path.is_file())):
        assert SECRET.encode() not in content
        assert b"271828" not in content
    (folder / "own.py").write_text(DATA.replace("db://anna", "db://bert"))
    ended = forsaken("unlearn", job, "--dry-run")
    assert ended.code == 2
    assert SECRET not in ended.err
