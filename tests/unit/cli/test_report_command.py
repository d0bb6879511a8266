"""`forsaken report`, through a small application of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from report_runs import make_result, save_run, without_oracle
from typer.testing import CliRunner

from forsaken.cli.report import report
from forsaken.errors import OutputError, SettingsError
from forsaken.jobs.output import held

app = typer.Typer()
app.command()(report)


@pytest.fixture
def two(tmp_path: Path, monkeypatch) -> tuple[str, str]:
    monkeypatch.chdir(tmp_path)
    save_run(tmp_path / "first", make_result(2) | {"job": None})  # as of the demonstration, which has no certificate
    save_run(tmp_path / "second", without_oracle(make_result(2)) | {"job": None})
    return "first", "second"


def call(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_one_run_gets_its_own_page_again_and_again(two) -> None:
    for _ in range(2):
        done = call("first")
        assert done.exit_code == 0, done.output
        assert done.output == "report: first/report.html\n"
    assert "</html>" in Path("first/report.html").read_text(encoding="utf-8")


def test_several_runs_become_one_page_here_and_replace_nothing(two) -> None:
    assert call(*two).exit_code == 0
    page = Path("report.html").read_text(encoding="utf-8")
    assert "2 runs side by side" in page
    Path("report.html").write_text("mine", encoding="utf-8")
    refused = call(*two)
    assert isinstance(refused.exception, OutputError)
    assert str(refused.exception).startswith("report.html is there already; give another file with --out")
    assert Path("report.html").read_text(encoding="utf-8") == "mine"
    assert call(*two, "--force").exit_code == 0
    assert Path("report.html").read_text(encoding="utf-8") == page


def test_json(two) -> None:
    done = call("first", "second", "--out", "both.html", "--json")
    assert json.loads(done.output) == {
        "report": "both.html",
        "runs": ["first", "second"],
        "bytes": Path("both.html").stat().st_size,
        "mismatches": [],
    }


def test_out_is_not_replaced_without_force(two) -> None:
    Path("page.html").write_text("mine", encoding="utf-8")
    assert isinstance(call("first", "--out", "page.html").exception, OutputError)
    assert call("first", "--out", "page.html", "--force").exit_code == 0
    assert Path("page.html").read_text(encoding="utf-8") != "mine"


def test_a_run_that_is_being_audited_keeps_its_page(two) -> None:
    with held(Path("first")):
        refused = call("first")
        assert isinstance(refused.exception, OutputError)
        assert "another run is writing to first" in str(refused.exception)
        assert call("first", "--out", "page.html").exit_code == 0, "a page elsewhere disturbs nobody"
    assert not Path("first/report.html").exists()
    assert sorted(path.name for path in Path("first").iterdir()) == ["posteriors.npz", "result.json"]


def test_what_cannot_be(two) -> None:
    for arguments, words in (
        (["nowhere"], "nowhere is not a folder"),
        (["first", "--out", "second"], "second is a folder, expected a file"),
        (["first", "--out", "no/page.html"], "does its folder exist"),
    ):
        error = call(*arguments).exception
        assert isinstance(error, OutputError)
        assert words in str(error)
    assert isinstance(call("first", "first").exception, SettingsError)
    assert call().exit_code == 2
