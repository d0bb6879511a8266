"""What the verbs share: their options, the job that they read, and how they talk to people and to programs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from forsaken.progress import bars
from forsaken.types import Progress, Tick

if TYPE_CHECKING:
    from forsaken.jobs.configuration import Job
    from forsaken.result import Result

# All but the line feed: control characters, and those that turn the direction of writing.
_OBEYED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
JOB_FILE = "forsaken.toml"
After = Annotated[
    Path | None,
    typer.Option(help="The output folder of the request before: go on from its weights, data, references and chain."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class Terminal(Console):
    """The only way to people's terminals: control characters, which texts from files may hold, are written out.

    A terminal obeys them: they move the cursor, change what was printed before, or set the window's title.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return the pieces of a text, with their control characters written out."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(visible(piece.text), piece.style)


def visible(text: str) -> str:
    r"""Return a text in which every character that a terminal obeys is written as its code.

    >>> visible("\x1b[2Jall is well\n")
    '\\x1b[2Jall is well\n'
    """
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def emit(facts: Any) -> None:
    """Print facts for a program: one line of JSON."""
    typer.echo(json.dumps(facts))


def say(*texts: str, markup: bool = False) -> None:
    """Print texts for people as they are, however long; a path is never broken into lines."""
    console = Terminal()
    for text in texts:
        console.print(text, highlight=False, soft_wrap=True, markup=markup)


def note(*texts: str) -> None:
    """Print notes for people."""
    say(*(f"[yellow]note:[/] {escape(text)}" for text in texts), markup=True)


def print_table(table: Table) -> None:
    """Print a table for people."""
    Terminal().print(table)


def number(value: object) -> str:
    """Return a value of a table: three digits for a share, n/a for what is not known.

    >>> number(0.25), number(40), number(None)
    ('0.250', '40', 'n/a')
    """
    if value is None:
        return "n/a"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


@contextmanager
def at_work() -> Iterator[Progress]:
    """Show bars; what a user's own model prints goes to standard error, since standard output is for the answer."""
    with redirect_stdout(sys.stderr), bars() as progress:
        yield progress


@contextmanager
def opened_job(path: Path, after: Path | None = None) -> Iterator[Job]:
    """Read a job file, and let the user's own code be imported from its folder inside the block.

    `after` is the output folder of the request before, where the job goes on from there.
    """
    from forsaken.jobs.code import user_code
    from forsaken.jobs.configuration import read_job

    job = read_job(path)
    if after is not None:
        from forsaken.jobs.after import job_after

        job = job_after(job, after)
    with user_code(job.folder):
        yield job


def write_page(folder: Path, progress: Progress) -> Path:
    """Write the report of the run in `folder`, with a bar of its own."""
    from forsaken.report.page import write_report

    progress(Tick("write the report", 0, 1))
    page = write_report(folder)
    progress(Tick("write the report", 1, 1))
    return page


def result_table(result: Result, title: str) -> Table:
    """Return the numbers of a result: before, after and, where there is one, of a retrained model."""
    retrain, sure, apart = result.retrain, result.forget_confidence, result.separation
    shown = Table(title=title)
    names = ("", "before", "after", *(("retrained",) if retrain else ()))
    for at, name in enumerate(names):
        shown.add_column(name, justify="left" if at == 0 else "right")

    def row(name: str, *values: object) -> None:
        shown.add_row(name, *map(number, values[: len(names) - 1]))

    if result.counts.memorised_before is not None:
        looked = f"forgetting rate (FR; {result.counts.memorised_before} looked memorised)"
        row(looked, 0, result.fr, retrain and retrain.fr)
        row("collateral (CFR, lower is better)", 0, result.cfr, retrain and retrain.cfr)
    if apart is not None:
        row("told apart by confidence (AUC, aim 0.5)", apart.before, apart.after, apart.retrained)
    true = result.forget_accuracy
    if true is not None and result.target.target == "corrected":
        row("answered with their true class", true.before, true.after, true.retrained)
    if sure is not None:
        row("confidence on forgotten samples", sure.before, sure.after, sure.retrained)
    if result.accuracy_before is not None:
        row("test accuracy", result.accuracy_before, result.accuracy_after, retrain and retrain.accuracy)
    if result.oracle is not None:
        row("the oracle's balanced accuracy (a coin: 0.5)", result.oracle.balanced_accuracy, "", "")
    slow = "" if retrain is None or retrain.seconds is None else f"{retrain.seconds:.2f}"
    row("seconds", "", f"{result.seconds:.2f}", slow)
    if result.speedup is not None:
        row("times faster than retraining", "", f"{result.speedup:.1f}", "1")
    row("share of weights changed", "", result.mask_density, "")
    return shown
