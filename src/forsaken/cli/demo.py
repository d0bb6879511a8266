"""`forsaken demo`: the main job on embedded data."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from forsaken._files import make_folder, write_atomically
from forsaken.cli.console import AsJson, Terminal, at_work, emit, number, say, write_page
from forsaken.errors import OutputError

if TYPE_CHECKING:
    from forsaken.result import Result

SUMMARY = "summary.txt"
_MAX_SEED = 2**28  # the trainings' own seeds are made of it


def demo(
    out: Annotated[Path, typer.Option(help="The folder for the result and the report.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, max=_MAX_SEED, help="Decides the split and the trainings.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Forget 40 samples of a digits classifier, by default and by references, beside retraining (about a minute).

    Example: forsaken demo --seed 1 --out runs/another
    """
    import torch

    from forsaken.bench.demo import run_demo
    from forsaken.jobs.output import ARRAYS, RESULT
    from forsaken.jobs.run import write_posteriors

    if out.exists() and not out.is_dir():
        raise OutputError(f"{out} is a file, not a folder; give another one with --out")
    try:
        make_folder(out)
    except OutputError as error:
        raise error.with_remedy("give another one with --out") from error
    torch.set_num_threads(1)  # the network is too small for more, and one thread gives the same bits everywhere
    with at_work() as progress:
        found = run_demo(seed, progress)
        write_posteriors(out / ARRAYS, found.answers, per_record=True)  # public pictures of digits
        found.result.write(out / RESULT)
        summary = summary_of(found.result)
        write_atomically(out / SUMMARY, summary.encode())
        report = write_page(out, progress)
    if as_json:
        emit(found.result.to_dict())
    else:
        say(summary.rstrip(), f"report: {report}\nresult: {out / RESULT}")


def summary_of(result: Result) -> str:
    """Return the table and the verdicts as text of 80 columns, the same in every terminal."""
    counts, facts, text = result.counts, result.facts, io.StringIO()
    columns = facts["side_by_side"]
    shown = Table(title=f"{counts.forget} samples to forget (digits, seed {result.seed}, one run)")
    for at, name in enumerate(("", *columns)):
        shown.add_column(name, justify="left" if at == 0 else "right")
    low, high = facts["u_lira_floor"]
    rows = {
        "learnt_label": "answered with the learnt label",
        "u_lira_auc": f"U-LiRA ({low:.2f} to {high:.2f} is chance)",
        "confidence_auc": "told apart by confidence",
        "fr": "forgetting rate (FR)",
        "confidence": "confidence on them",
        "accuracy": "test accuracy",
        "seconds": "seconds",
        "verdict": "verdict",
    }
    for key, label in rows.items():
        values = [column[key] for column in columns.values()]
        shown.add_row(label, *("" if value is None else number(value) for value in values))
    console = Terminal(file=text, width=80)
    console.print(shown)
    told = f"by default: {columns['default']['verdict']}: {facts['default_line']}"
    console.print(told, markup=False, highlight=False)
    console.print(f"by references: {result.verdict}", markup=False, highlight=False)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())
