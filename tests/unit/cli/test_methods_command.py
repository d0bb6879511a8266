"""`forsaken methods`, as people type it: what it prints, and how it ends."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import typer
from click.testing import Result
from torch import nn
from typer.testing import CliRunner

from forsaken import METHODS
from forsaken.cli.methods import app
from forsaken.errors import UnknownNameError
from forsaken.unlearning.base import About, Details, Request, Unlearner
from forsaken.unlearning.retrain import Retrain
from forsaken.unlearning.settings import choice, number, switch, whole
from forsaken.unlearning.smu import Smu

KEYS = {"name", "summary", "needs", "uses", "upfront", "paper", "notes", "changes_weights", "settings"}


@dataclass(frozen=True, kw_only=True)
class Toy(Unlearner):
    """A method with one setting of each kind.

    Notes
    -----
    It promises [nothing] for
    ``rate=0``.

    And *nothing* else.

    Examples
    --------
    None.
    """

    about: ClassVar[About] = About("toys with [the] weights", "Nobody [1], 2025", ("forget",), ("retain",))

    rate: float = number(1e-4, "how fast", most=1.0)
    epochs: int = whole(5, "how often", least=1)
    share: float | None = number(None, "how many")
    kind: str = choice("hard", "how", ("soft", "hard"))
    frozen: bool = switch(True, "whether [batch-norm] stays")

    def run(self, student: nn.Module, request: Request) -> Details:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, method in {"retrain": Retrain, "smu": Smu, "toy": Toy}.items():
        monkeypatch.setitem(METHODS, name, method)
    monkeypatch.setenv("COLUMNS", "300")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_every_method_is_listed_with_its_facts() -> None:
    ended = run("list", "--json")
    rows = json.loads(ended.stdout)
    assert ended.exit_code == 0
    assert [row["name"] for row in rows] == list(METHODS)
    assert all(row.keys() == KEYS for row in rows)
    assert [row["name"] for row in rows if row["name"] == "smu" and "watch the training" in row["upfront"]] == ["smu"]


def test_the_list_for_people() -> None:
    ended = run("list")
    assert ended.exit_code == 0
    for name in METHODS:
        assert re.search(rf"^\W*{re.escape(name)} ", ended.stdout, re.MULTILINE), name
    (line,) = [line for line in ended.stdout.splitlines() if " toy " in line]
    assert re.search(r"toys with \[the\] weights .*forget .*no", line)
    (line,) = [line for line in ended.stdout.splitlines() if " smu " in line]
    assert re.search(r"subtract the samples' share .*retain \(all of the remaining .*yes", line)
    assert ended.stdout.splitlines()[-1] == "more about one: forsaken methods show NAME"


def test_a_method_for_people() -> None:
    ended = run("show", "toy")
    lines = ended.stdout.splitlines()
    assert ended.exit_code == 0
    assert lines[:7] == [
        "toy: toys with [the] weights",
        "needs: forget",
        "uses, where given: retain",
        "at training time: nothing: it takes any trained model",
        "paper: Nobody [1], 2025",
        "notes: It promises [nothing] for `rate=0`.",
        "And *nothing* else.",
    ]
    cells = [[cell.strip() for cell in line.strip("│┃|").replace("┃", "│").split("│")] for line in lines[8:]]
    assert ["rate", "0.0001", "a number from 0 to 1", "how fast"] in cells
    assert ["epochs", "5", "a whole number >= 1", "how often"] in cells
    assert ["share", "", "a number >= 0, or nothing", "how many"] in cells
    assert ["kind", "hard", "hard, soft", "how"] in cells
    assert ["frozen", "true", "true or false", "whether [batch-norm] stays"] in cells


def test_a_method_without_settings_says_so() -> None:
    ended = run("show", "retrain")
    assert ended.stdout.splitlines()[-1] == "settings: none"
    assert "uses, where given: nothing else" in ended.stdout
    assert json.loads(run("show", "retrain", "--json").stdout)["settings"] == []


@pytest.mark.parametrize(("name", "words"), [("sisa-dp", '"assumed"'), ("sisa-dp-sgd", "`epsilon_spent`")])
def test_what_epsilon_covers_is_told(name: str, words: str) -> None:
    shown, notes = run("show", name).stdout, json.loads(run("show", name, "--json").stdout)["notes"]
    assert words in notes[0]
    assert "spent" in notes[0]
    assert "ε" in notes[0]
    assert f"\nnotes: {notes[0]}\n" in shown
    assert all(f"{paragraph}\n" in shown for paragraph in notes)


def test_a_method_without_notes_has_none() -> None:
    assert "notes:" not in run("show", "fine-tune").stdout
    assert json.loads(run("show", "fine-tune", "--json").stdout)["notes"] == []


def test_what_a_method_needs_at_training_time_is_told() -> None:
    assert "at training time: it must watch the training" in run("show", "smu").stdout


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_the_table_explains_itself(name: str) -> None:
    method = METHODS[name]
    found = json.loads(run("show", name, "--json").stdout)
    assert found.keys() == KEYS
    assert all(found[key].strip() for key in ("summary", "paper"))
    assert "forget" in found["needs"][0]
    assert {setting["name"] for setting in found["settings"]} == method().settings.keys()
    for setting in found["settings"]:
        assert setting["about"].strip(), setting["name"]
        assert setting["values"].strip(), setting["name"]
        assert not isinstance(setting["default"], float) or math.isfinite(setting["default"])
    shown = run("show", name)
    assert shown.exit_code == 0
    assert shown.stdout.startswith(f"{name}: {method.about.summary}\n")
    assert all(setting["name"] in shown.stdout for setting in found["settings"])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_the_table_is_in_the_guide(name: str) -> None:
    page = (Path(__file__).parents[3] / "docs/guide/methods.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| `{re.escape(name)}` \| .+ \| .+ \|", page, re.MULTILINE)
    assert len(re.findall(rf"^\|.*`{re.escape(name)}`", page, re.MULTILINE)) >= (1 if name == "do-nothing" else 2)


def test_an_unknown_name_is_helped() -> None:
    ended = run("show", "forsakne", "--json")
    assert isinstance(ended.exception, UnknownNameError)
    assert str(ended.exception).startswith("unknown method 'forsakne'; did you mean 'forsaken'? (known: ")
    assert ended.stdout == ""


@pytest.mark.parametrize("verb", ["list", "show"])
def test_every_verb_has_help_with_an_example(verb: str) -> None:
    shown = CliRunner().invoke(app, [verb, "--help"])
    assert shown.exit_code == 0
    assert f"forsaken methods {verb}" in shown.stdout


def test_a_narrow_terminal_loses_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    shown = run("list").stdout
    assert all(re.search(rf"\b{re.escape(name)}\b", shown) for name in METHODS)


def test_it_is_a_group_of_verbs() -> None:
    assert isinstance(app, typer.Typer)
    assert run().exit_code == 2
    assert "list" in run("--help").stdout
