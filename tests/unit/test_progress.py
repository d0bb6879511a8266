"""Bars go to standard error, and only for those who ask."""

from __future__ import annotations

import pytest

from forsaken.errors import SettingsError
from forsaken.progress import bars, reporter
from forsaken.types import Tick


def test_a_bar_is_drawn_on_standard_error(capsys) -> None:
    with reporter(True) as report:
        report(Tick("forget", 1, 4))
        report(Tick("forget", 4, 4, "done"))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "forget" in shown.err
    assert "4/4" in shown.err


def test_silence_is_the_default(capsys) -> None:
    with reporter(False) as report:
        report(Tick("forget", 1, 4))
    assert capsys.readouterr() == ("", "")


def test_a_function_is_told() -> None:
    ticks = []
    with reporter(ticks.append) as report:
        report(Tick("forget", 1, 4))
    assert ticks == [Tick("forget", 1, 4)]


def test_anything_else_is_refused() -> None:
    with pytest.raises(SettingsError, match="progress is 'yes'"), reporter("yes"):
        pass


def test_bars_go_where_the_work_fails(capsys) -> None:
    def work() -> None:
        with reporter(True) as report:
            report(Tick("forget", 1, 4))
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        work()
    assert "1/4" not in capsys.readouterr().err


def test_a_narrow_terminal_shows_count_and_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    for columns, long in ((80, False), (140, True)):
        monkeypatch.setenv("COLUMNS", str(columns))
        with bars() as report:
            report(Tick("train models without a fold each", 5000, 5000, "networks 1 to 4 of 5, epoch 39 of 80"))
        shown = capsys.readouterr().err
        assert "5000/5000" in shown
        assert "0:00:0" in shown
        assert ("epoch 39 of 80" in shown) is long
