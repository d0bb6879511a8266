"""Progress bars with the time left, in a terminal and in a notebook."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html import escape
from typing import Any

from forsaken.errors import SettingsError
from forsaken.types import Progress, Tick, silent

_APART = 0.1  # seconds between two drawings in a notebook
_WIDE = 110  # columns of a terminal that has room for long bars and a text beside them


@contextmanager
def bars() -> Iterator[Progress]:
    """Show a bar for each stage: on standard error with the time left, or below the cell of a notebook.

    A stage that ends before its last step, since the work was done earlier, ends there: its bar is full, and its text
    says how many steps there could have been.
    """
    # Imported here, so that a program without bars does not load a terminal library.
    from rich.console import Console  # noqa: PLC0415

    console = Console(stderr=True)
    with _notebook_bars() if console.is_jupyter else _terminal_bars(console) as report:
        yield report


@contextmanager
def _terminal_bars(console: Any) -> Iterator[Progress]:
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars  # noqa: PLC0415

    wide = console.width >= _WIDE  # or a long text would push count and times out of the window
    columns = (
        TextColumn("{task.description}"),
        BarColumn(40 if wide else 10),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        *([TextColumn("{task.fields[text]}")] if wide else []),
    )
    tasks: dict[str, TaskID] = {}
    last: dict[TaskID, tuple[Tick, float]] = {}
    with Bars(*columns, console=console) as shown:

        def report(tick: Tick) -> None:
            if tick.stage not in tasks:
                tasks[tick.stage] = shown.add_task(tick.stage, total=tick.total, text="")
            shown.update(tasks[tick.stage], completed=tick.done, total=tick.total, text=tick.text)
            last[tasks[tick.stage]] = (tick, shown.get_time())

        try:
            yield report
        except BaseException:
            shown.live.transient = True  # remove the bar: it will never end, and the error matters more
            raise
        for task in shown.tasks:
            tick, task.stop_time = last[task.id]
            ended = _ended(tick)
            shown.update(task.id, completed=ended.done, total=ended.total, text=ended.text)


@contextmanager
def _notebook_bars() -> Iterator[Progress]:
    """Draw into the cell's output by IPython alone: a bar of rich needs ipywidgets there, and warns without."""
    from IPython.display import HTML, display  # noqa: PLC0415

    ticks: dict[str, Tick] = {}
    times: dict[str, tuple[float, float]] = {}
    drawn = 0.0
    handle = display(HTML(""), display_id=True)

    def report(tick: Tick) -> None:
        nonlocal drawn
        now = time.monotonic()
        ticks[tick.stage] = tick
        times[tick.stage] = (times.get(tick.stage, (now, now))[0], now)
        if now - drawn >= _APART:
            drawn = now
            handle.update(HTML(_drawn(ticks, times)))

    try:
        yield report
    except BaseException:
        handle.update(HTML(""))
        raise
    handle.update(HTML(_drawn({stage: _ended(tick) for stage, tick in ticks.items()}, times)))


def _ended(tick: Tick) -> Tick:
    """Return the last tick of a stage as it stays: a stage that took fewer steps than it could have is at its end."""
    if tick.done >= tick.total:
        return tick
    most = f"ended after {tick.done} of at most {tick.total}"
    return replace(tick, total=tick.done, text=f"{most}; {tick.text}" if tick.text else most)


def _drawn(ticks: dict[str, Tick], times: dict[str, tuple[float, float]]) -> str:
    """Return one row a stage: its name, a bar, the steps, the seconds and the text."""
    rows = "".join(
        f"<tr><td>{escape(stage)}</td><td><progress value={tick.done} max={max(tick.total, 1)}></progress></td>"
        f"<td>{tick.done}/{tick.total}</td><td>{times[stage][1] - times[stage][0]:.0f} s</td>"
        f"<td>{escape(tick.text)}</td></tr>"
        for stage, tick in ticks.items()
    )
    return f"<table>{rows}</table>"


@contextmanager
def step(progress: Progress, stage: str) -> Iterator[None]:
    """Report the block as one stage of a single step."""
    progress(Tick(stage, 0, 1))
    yield
    progress(Tick(stage, 1, 1))


@contextmanager
def reporter(progress: bool | Progress) -> Iterator[Progress]:
    """Return the function to call with each `Tick`: `silent` (False), a bar's (True) or the caller's own."""
    if callable(progress):
        yield progress
    elif not isinstance(progress, bool):
        raise SettingsError(f"progress is {progress!r}, expected True, False or a function that takes a Tick")
    elif progress:
        with bars() as report:
            yield report
    else:
        yield silent
