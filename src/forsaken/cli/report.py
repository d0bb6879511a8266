"""`forsaken report`: a page from saved runs."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from forsaken._files import no_more_open_than
from forsaken.cli.console import emit, note, say
from forsaken.cli.exits import Exit
from forsaken.errors import OutputError, SettingsError


def report(
    runs: Annotated[list[Path], typer.Argument(help="Output folders of runs; several are shown side by side.")],
    out: Annotated[
        Path | None, typer.Option(help="The page to write; by default report.html in the run, or here for several.")
    ] = None,
    public_key: Annotated[
        list[Path] | None, typer.Option(help="The public key (PEM) that must have signed the certificates.")
    ] = None,
    record_key: Annotated[
        Path | None, typer.Option(help="The record key, by which audits are sealed; by default the one in the run.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there already.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print where the page is as JSON.")] = False,
) -> None:
    """Write the page of a run again from its saved result, or one page that shows several runs side by side.

    The page is one file that needs no network. A run's own report.html is replaced; any other file only with --force.
    Exit code 3: the page was written, and says that files of a run were changed, or put there by somebody else.

    Example: forsaken report forgotten --public-key signing.pem.pub
    """
    from forsaken._keys import read_public_key, read_record_key
    from forsaken.jobs.output import ARRAYS, AUDITS, CERTIFICATE, REPORT, RESULT, held
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
    files = [folder / name for folder in chosen for name in (RESULT, ARRAYS, CERTIFICATE, *AUDITS.values())]
    with no_more_open_than(files), held(chosen[0]) if own and chosen[0].is_dir() else nullcontext():
        keys = [read_public_key(path) for path in public_key or ()]
        secret = None if record_key is None else read_record_key(record_key)
        found = [read_run(folder, keys=keys, record_key=secret) for folder in chosen]
        page = render(found[0]) if len(found) == 1 else render_several(found)
        write_page(goal, page)
    wrong = [f"{run.name}: {told}" for run in found for told in run.mismatches]
    if as_json:
        facts = {"report": str(goal), "runs": [str(folder) for folder in chosen], "bytes": goal.stat().st_size}
        emit({**facts, "mismatches": wrong})
    else:
        note(*wrong)
        say(f"report: {goal}")
    if wrong:
        raise typer.Exit(Exit.CHECK_FAILED)
