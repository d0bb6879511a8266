"""`forsaken demo`: the main job on embedded data."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forsaken._files import make_folder, write_atomically
from forsaken.cli.console import AsJson, Terminal, at_work, emit, result_table, say, write_page
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
    """Forget 40 samples of a digits classifier, and compare with retraining (about 20 seconds).

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
    """Return the table as text of 80 columns, the same in every terminal."""
    counts, text = result.counts, io.StringIO()
    whole = f", {counts.retain / counts.train:.0%} of the training data" if counts.train else ""
    what = f"{counts.forget} samples forgotten (digits, seed {result.seed}, one run;"
    Terminal(file=text, width=80).print(result_table(result, f"{what}\n{counts.retain} retain samples{whole})"))
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())
