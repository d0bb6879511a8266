"""`forsaken report`: a page from saved runs."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from forsaken.cli.console import emit, say
from forsaken.errors import OutputError, SettingsError


def report(
    runs: Annotated[list[Path], typer.Argument(help="Output folders of runs; several are shown side by side.")],
    out: Annotated[
        Path | None, typer.Option(help="The page to write; by default report.html in the run, or here for several.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there already.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print where the page is as JSON.")] = False,
) -> None:
    """Write the page of a run again from its saved result, or one page that shows several runs side by side.

    The page is one file that needs no network. A run's own report.html is replaced; any other file only with --force.

    Example: forsaken report forgotten
    """
    from forsaken.jobs.output import REPORT, held
    from forsaken.report.page import render, render_several, write_page
    from forsaken.report.saved import read_run

    chosen = list(dict.fromkeys(runs))
    if len(chosen) < len(runs):
        raise SettingsError("a run is named more than once; name each run once")
    goal = out or (chosen[0] / REPORT if len(chosen) == 1 else Path(REPORT))
    # A run's own page is made from its result alone, so nothing is lost by making it again.
    own = len(chosen) == 1 and goal == chosen[0] / REPORT
    if goal.is_dir():
        raise OutputError(f"{goal} is a folder, expected a file to write; give one with --out FILE")
    if goal.exists() and not own and not force:
        raise OutputError(f"{goal} is there already; give another file with --out, or replace it with --force")
    # An audit writes its result and then the page: in between, the old result must not become the page again.
    with held(chosen[0]) if own and chosen[0].is_dir() else nullcontext():
        found = [read_run(folder) for folder in chosen]
        page = render(found[0]) if len(found) == 1 else render_several(found)
        write_page(goal, page)
    if as_json:
        emit({"report": str(goal), "runs": [str(run) for run in chosen], "bytes": goal.stat().st_size})
    else:
        say(f"report: {goal}")
