"""Progress bars with the time left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from forsaken.errors import SettingsError
from forsaken.types import Progress, Tick, silent


@contextmanager
def bars() -> Iterator[Progress]:
    """Show a bar for each stage on standard error, with the time left."""
    # Imported here, so that a program without bars does not load a terminal library.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        MofNCompleteColumn,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    )
    tasks: dict[str, TaskID] = {}
    with Bars(*columns, console=Console(stderr=True)) as shown:

        def report(tick: Tick) -> None:
            if tick.stage not in tasks:
                tasks[tick.stage] = shown.add_task(tick.stage, total=tick.total, text="")
            shown.update(tasks[tick.stage], completed=tick.done, total=tick.total, text=tick.text)

        try:
            yield report
        except BaseException:
            shown.live.transient = True  # remove the bar: it will never end, and the error matters more
            raise


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
