"""`forsaken suspects`: the ranking, and a file of ids that a job forgets by."""

from __future__ import annotations

from pathlib import Path

import pytest
from job_folders import digests, forsaken, tabled, write_job

from forsaken.jobs.configuration import read_job
from forsaken.jobs.rows import Reader


def test_nothing_is_written_before_somebody_chose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tabled(tmp_path / "job")
    monkeypatch.chdir(job.parent)
    before = digests(job.parent)
    ended = forsaken("suspects", job)
    assert ended.code == 0, ended.err
    assert "nothing was written; choose how many with --count" in ended.out
    assert "posterior of its label" in ended.out
    assert digests(job.parent) == before


def test_a_job_forgets_by_the_file(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    file = job.parent / "suspects.txt"
    found = forsaken("suspects", job, "--count", 7, "--output", file, "--json").json
    assert (found["records"], found["written"], found["file"]) == (132, 7, str(file))
    assert len(found["first"]) == 20
    assert file.stat().st_mode & 0o077 == 0, "who may be wrong is for its owner alone"
    source = read_job(write_job(job.parent, "next.toml", data={"forget": {"of": "train", "ids": "suspects.txt"}}))
    rows = Reader(source).given("forget")
    assert rows is not None
    assert rows.index.tolist() == [one["row"] for one in found["first"][:7]]


def test_ids_stand_in_the_file_where_the_job_names_them(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job", data={"id": "id"})
    file = tmp_path / "suspects.txt"
    found = forsaken("suspects", job, "--count", 2, "--output", file, "--json").json
    assert file.read_text().split() == [str(1000 + one["row"]) for one in found["first"][:2]]


@pytest.mark.parametrize("count", [0, -1, 133])
def test_a_count_that_cannot_be(tmp_path: Path, count: int) -> None:
    job = tabled(tmp_path / "job")
    ended = forsaken("suspects", job, "--count", count, "--output", tmp_path / "new.txt")
    assert ended.code == 2
    assert f"count is {count}, expected 1 to 132" in ended.err
    assert not list(tmp_path.glob("*new.txt*"))


def test_no_file_is_replaced_by_mistake(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    file = tmp_path / "there.txt"
    file.write_text("mine")
    ended = forsaken("suspects", job, "--count", 3, "--output", file)
    assert (ended.code, file.read_text()) == (2, "mine")
    assert "use --force" in ended.err
    assert forsaken("suspects", job, "--count", 3, "--output", file, "--force").code == 0
    assert len(file.read_text().splitlines()) == 3
    weights = job.parent / "model.safetensors"
    before = weights.read_bytes()
    ended = forsaken("suspects", job, "--count", 3, "--output", weights, "--force")
    assert (ended.code, weights.read_bytes()) == (2, before)
    assert forsaken("suspects", job, "--count", 3, "--output", tmp_path).code == 2


def test_without_a_table(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    (job.parent / "references.safetensors").unlink()
    ended = forsaken("suspects", job)
    assert ended.code == 2
    assert "make it with: forsaken references fit" in ended.err
