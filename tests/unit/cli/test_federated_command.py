"""`forsaken federated`: requests and their status, in words and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from federation import nodes_in
from typer.testing import CliRunner

from forsaken.cli.federated import read_rows
from forsaken.cli.main import app
from forsaken.errors import DataNotFoundError, InputError, SettingsError


def run(*words: object) -> str:
    done = CliRunner().invoke(app, ["federated", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def node(tmp_path: Path) -> Path:
    nodes_in(tmp_path, count=1)
    return tmp_path / "node-0"


def test_a_request_is_filed_and_its_status_told(node: Path) -> None:
    assert "request 1 is filed: 4 rows" in run("request", "--node", node, "--rows", "0-2,7")
    told = json.loads(run("status", "--node", node, "--json"))
    assert told["problem"] == ""
    (request,) = told["requests"]
    assert (request["request"], request["state"], request["rows"], request["attempt"]) == (1, "filed", 4, 1)
    assert request["events"][0].endswith("filed: 4 rows")
    assert json.loads(run("request", "--node", node, "--rows", "9", "--json"))["request"] == 2
    shown = run("status", "--node", node)
    assert "Requests of node-0" in shown


@pytest.mark.parametrize(
    ("rows", "error", "word"),
    [
        ("40", InputError, "this node has no row 40"),
        ("1-", SettingsError, "such as"),
        ("x", SettingsError, "such as"),
        ("-3", SettingsError, "such as"),
        ("", InputError, "rows is empty"),
        ("5-2", SettingsError, "rows is '5-2', expected the smaller number first"),
        ("3,0-99999999999", SettingsError, "rows is '0-99999999999', .* numbers below 100,000,000"),
    ],
)
def test_wrong_rows_are_told(node: Path, rows: str, error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word):
        run("request", "--node", node, "--rows", rows)
    assert json.loads(run("status", "--node", node, "--json"))["requests"] == []


def test_a_second_request_for_the_same_rows_is_told(node: Path) -> None:
    run("request", "--node", node, "--rows", "3")
    with pytest.raises(InputError, match="row 3 is already in request 1"):
        run("request", "--node", node, "--rows", "2-4")


def test_a_node_without_references_is_told(tmp_path: Path) -> None:
    nodes_in(tmp_path, count=1, references=None)
    with pytest.raises(InputError, match="row 3 has no reference"):
        run("request", "--node", tmp_path / "node-0", "--rows", "3")


def test_a_folder_without_a_node_is_told(tmp_path: Path) -> None:
    for verb in (("status",), ("request", "--rows", "1")):
        with pytest.raises(DataNotFoundError, match="has no store of a node"):
            run(verb[0], "--node", tmp_path / "nobody", *verb[1:])


def test_rows_are_read() -> None:
    assert read_rows("0-2, 7") == [0, 1, 2, 7]
