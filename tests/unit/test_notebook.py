"""In a notebook: bars without a warning, results that show themselves, and completion that sees the settings."""

from __future__ import annotations

import inspect
import sys
import types
import warnings
from typing import Any

import pytest
import torch

import forsaken
from forsaken.auditing.result import Audit
from forsaken.progress import reporter
from forsaken.types import Tick
from forsaken.unlearning.forsaken.method import Settings


class Screen:
    """What stands in for IPython: remembers every drawing of one output."""

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def display(self, html: str, *, display_id: bool) -> Screen:
        assert display_id
        self.drawn.append(html)
        return self

    def update(self, html: str) -> None:
        self.drawn.append(html)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    found = Screen()
    module = types.ModuleType("IPython.display")
    module.HTML, module.display = str, found.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    return found


def test_a_bar_in_a_notebook_without_a_warning(screen: Screen, capsys) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with reporter(True) as report:
            report(Tick("forget <b>", 1, 4))
            report(Tick("forget <b>", 4, 4, "a < b"))
    assert "<progress value=1 max=4>" in screen.drawn[1]
    assert "<progress value=4 max=4>" in screen.drawn[-1]
    assert "forget &lt;b&gt;" in screen.drawn[-1]
    assert "a &lt; b" in screen.drawn[-1]
    assert capsys.readouterr() == ("", "")


def test_a_notebook_s_bars_go_where_the_work_fails(screen: Screen) -> None:
    def work() -> None:
        with reporter(True) as report:
            report(Tick("forget", 1, 4))
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        work()
    assert screen.drawn[-1] == ""


def test_bars_end_where_the_work_ended(screen: Screen, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    with reporter(True) as report:
        report(Tick("forget", 12, 60, "objective 0.1"))
        report(Tick("judge", 3, 3))
    assert "<progress value=12 max=12>" in screen.drawn[-1]
    assert "ended after 12 of at most 60; objective 0.1" in screen.drawn[-1]
    monkeypatch.setattr("rich.console._is_jupyter", lambda: False)
    monkeypatch.setenv("COLUMNS", "200")
    with reporter(True) as report:
        report(Tick("forget", 12, 60))
        report(Tick("judge", 3, 3))
    told = capsys.readouterr().err
    assert "12/12" in told
    assert "ended after 12 of at most 60" in told


def test_a_result_shows_itself() -> None:
    x = torch.eye(4)
    found = forsaken.unlearn(torch.nn.Linear(4, 3), forget=x[:1], target="uniform", iterations=2)
    shown = found._repr_html_()
    assert shown.startswith("<table>")
    assert f"<td>{found.stopped}</td>" in shown
    assert f"{found.density:.3f}" in shown
    assert all(note.split("'")[0][:20] in shown for note in found.notes)


def test_an_audit_shows_itself() -> None:
    number = {"name": "fr", "label": "FR <1>", "value": 0.5, "direction": "retrained", "n": 4, "unit": "samples"}
    found = Audit(
        profile="quick",
        claim={"shown": "this", "not_shown": "that & more"},
        numbers=({**number, "interval": (0.25, 0.75), "retrained": 0.4}, {**number, "name": "none", "value": None}),
        alarms=({"name": "no-op", "raised": True, "told": "nothing happened"},),
        warnings=("few",),
        cost={},
        roc=(),
        margins=(),
        klom=(),
        settings={},
        provenance={},
        verdict={"word": "failed", "line": "1 < 2"},
    )
    shown = found._repr_html_()
    assert shown.startswith('<p><b style="color:#cf222e">failed:</b> 1 &lt; 2</p>')
    assert "that &amp; more" in shown
    assert "FR &lt;1&gt;</th><td>0.500 (0.250 to 0.750)</td><td>0.400</td><td>n/a</td>" in shown
    assert "Alarm (no-op):" in shown
    assert "<li>few</li>" in shown


def test_completion_sees_the_settings() -> None:
    shown = inspect.signature(forsaken.Forsaken).parameters
    assert list(shown) == forsaken.Forsaken.names() == list(Settings.__annotations__)
    assert shown["iterations"].default == 60
    assert {"iterations", "model", "settings"} <= set(inspect.signature(forsaken.unlearn).parameters)
    for method in forsaken.METHODS.values():
        assert list(inspect.signature(method).parameters) == method.names()
    assert "forget" in inspect.signature(forsaken.Forsaken()).parameters  # called with data, not with settings


def test_types_of_settings_are_those_of_their_defaults() -> None:
    allowed: dict[str, Any] = {"str": str, "float": float, "int": int}
    for name, parameter in inspect.signature(forsaken.Forsaken).parameters.items():
        kind = allowed.get(str(Settings.__annotations__[name].__forward_arg__))
        assert kind is None or isinstance(parameter.default, kind), name


def test_dir_lists_the_public_names_alone() -> None:
    forsaken.Forsaken  # noqa: B018 (a name that was asked for stays in the module)
    assert dir(forsaken) == sorted(forsaken.__all__)
