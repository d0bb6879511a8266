"""`forsaken init`, as people type it: what it writes, what it says next, and what it refuses."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
from job_folders import toml
from typer.testing import CliRunner, Result

from forsaken.cli.init import init
from forsaken.errors import OutputError
from forsaken.jobs.configuration import _MOST_FOLDS, read_job, target_of
from forsaken.jobs.references import FOLDS
from forsaken.references.fitting import Costs
from forsaken.references.table import BUDGET


def run(*words: str) -> Result:
    app = typer.Typer()
    app.command()(init)
    return CliRunner().invoke(app, list(words))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_tells_the_numbers_of_the_code(here: Path) -> None:
    told = run().stdout
    text = " ".join((here / "forsaken.toml").read_text().replace("#", " ").split())
    assert f'"auto", or 2 to {_MOST_FOLDS}.' in text
    assert f"trains {FOLDS} to {BUDGET} models like yours" in told


def test_writes_a_job_that_is_valid_as_it_stands(here: Path) -> None:
    ended = run()
    assert ended.exit_code == 0
    job = read_job(here / "forsaken.toml")
    assert job.data.forget.path == "forget.parquet"
    assert job.output.folder == "forgotten"
    assert [path.name for path in here.iterdir()] == ["forsaken.toml"]


def test_says_what_comes_next(here: Path) -> None:
    lines = run().stdout.splitlines()
    assert lines[0] == "forsaken.toml"
    assert "fill in" in lines[1]
    assert "forsaken references fit forsaken.toml " in lines[2]
    assert lines[4].endswith("forsaken unlearn forsaken.toml --dry-run")
    assert len(lines) == 5


def test_leads_with_references(here: Path) -> None:
    run()
    job = read_job(here / "forsaken.toml")
    assert job.references is not None
    assert job.references.folds == "auto"
    assert job.audit.recipe is not None
    assert job.data.train is not None
    assert target_of(job) == "out-of-fold"
    text = (here / "forsaken.toml").read_text()
    assert "from the sixth request on at the earliest" in text
    assert Costs(5.0, 5).break_even() == 6
    # Taking out what the comment names leaves the job for those who have no training data.
    tables = tomllib.loads(text)
    without = {name: tables[name] for name in ("model", "method", "output")}
    without["data"] = {"forget": "forget.parquet", "reference": "reference.parquet"}
    (here / "less.toml").write_text(toml(without))
    assert target_of(read_job(here / "less.toml")) == "class-mean"


def test_the_command_it_names_can_be_pasted_into_a_shell(here: Path) -> None:
    advice = run("my job [1].toml").stdout.splitlines()[4]
    command = shlex.split(advice.split(". ", 1)[1])
    assert command == ["forsaken", "unlearn", "my job [1].toml", "--dry-run"]
    assert (here / "my job [1].toml").is_file()


def test_json_is_nothing_but_json(here: Path) -> None:
    assert json.loads(run("--json").stdout) == {"job": "forsaken.toml"}


def test_a_folder_gets_the_usual_name(here: Path) -> None:
    (here / "work").mkdir()
    assert json.loads(run("work", "--json").stdout) == {"job": str(Path("work/forsaken.toml"))}
    assert (here / "work" / "forsaken.toml").is_file()


def test_a_file_that_is_there_stays_unless_forced(here: Path) -> None:
    (here / "forsaken.toml").write_text("mine")
    ended = run()
    assert isinstance(ended.exception, OutputError)
    assert "forsaken.toml is there already" in str(ended.exception)
    assert "--force" in str(ended.exception)
    assert (here / "forsaken.toml").read_text() == "mine"
    assert run("--force").exit_code == 0
    assert "[model]" in (here / "forsaken.toml").read_text()


def test_no_folder_is_made(here: Path) -> None:
    ended = run("away/job.toml")
    assert isinstance(ended.exception, OutputError)
    assert "no folder away" in str(ended.exception)
    assert list(here.iterdir()) == []


def test_a_folder_of_the_job_s_name_is_refused_even_by_force(here: Path) -> None:
    (here / "forsaken.toml" / "forsaken.toml").mkdir(parents=True)
    ended = run("--force")
    assert isinstance(ended.exception, OutputError)
    assert "is a folder" in str(ended.exception)


def test_a_name_that_no_file_can_have_is_an_error_in_words(here: Path) -> None:
    ended = run("x" * 300 + ".toml")
    assert isinstance(ended.exception, OutputError)
    assert "cannot write" in str(ended.exception)
