"""Bars with time left, for those who ask for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars

from forsaken.types import Progress, Tick, silent


@contextmanager
def bars(console: Console | None = None) -> Iterator[Progress]:
    """Show a bar for each stage on standard error, with the time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    )
    tasks: dict[str, TaskID] = {}
    with Bars(*columns, console=console or Console(stderr=True)) as shown:

        def report(tick: Tick) -> None:
            if tick.stage not in tasks:
                tasks[tick.stage] = shown.add_task(tick.stage, total=tick.total, text="")
            shown.update(tasks[tick.stage], completed=tick.done, total=tick.total, text=tick.text)

        yield report


@contextmanager
def reporter(progress: bool | Progress) -> Iterator[Progress]:
    """Return who is told: nobody (False), a bar (True) or the caller's own function."""
    if callable(progress):
        yield progress
    elif progress:
        with bars() as report:
            yield report
    else:
        yield silent
