"""`forsaken suspects`: which training records may carry a wrong label."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from forsaken.cli.console import JOB_FILE, AsJson, at_work, emit, opened_job, print_table, say


def suspects(
    job: Annotated[Path, typer.Argument(help=r"The job file, with a table \[references].")] = Path(JOB_FILE),
    count: Annotated[int | None, typer.Option(help="How many to write to the file; by default none.")] = None,
    output: Annotated[Path, typer.Option(help="The file for their ids, one a line.")] = Path("suspects.txt"),
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    r"""Rank the training records by how unlike their label is to what models that never saw them say.

    Needs a table of references (forsaken references fit). Look at the first ones, choose how many are wrong, and write
    them with --count: forget = { of = "train", ids = "suspects.txt" } in \[data] then forgets them.

    Example: forsaken suspects forsaken.toml --count 40
    """
    from forsaken.jobs.suspects import find_suspects

    with opened_job(job) as read, at_work() as progress:
        found = find_suspects(read, count, output, force=force, progress=progress)
    if as_json:
        emit(found)
        return
    shown = Table(title="records whose label is most unlike the references")
    for title in ("rank", "row", "score", "posterior of its label"):
        shown.add_column(title, justify="right")
    for rank, one in enumerate(found["first"], 1):
        shown.add_row(str(rank), str(one["row"]), f"{one['score']:.2f}", f"{one['posterior']:.3f}")
    print_table(shown)
    doubts = ", ".join(f"{number:,} less than {float(share):.0%}" for share, number in found["doubted"].items())
    say(f"of {found['records']:,} records the references give the label of {doubts}")
    if "file" in found:
        say(f"wrote {found['written']:,} ids to {found['file']}", "look at these records before you forget them")
    else:
        say("nothing was written; choose how many with --count")
