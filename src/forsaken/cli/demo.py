"""`forsaken demo`: the main job on embedded data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from forsaken.errors import OutputError
from forsaken.progress import bars
from forsaken.types import Tick

if TYPE_CHECKING:
    from forsaken.bench.demo import Demo

_MOST = 2**28  # the largest seed: the trainings' own seeds are made of it


def demo(
    out: Annotated[Path, typer.Option(help="The folder for the result and the report.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, max=_MOST, help="Decides the split and the trainings.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON instead of a table.")] = False,
) -> None:
    """Forget 40 samples of a digits classifier, and compare with retraining (about 20 seconds).

    Example: forsaken demo --seed 1 --out runs/another
    """
    import torch

    from forsaken.bench.demo import run_demo
    from forsaken.report.saved import RESULT

    folder = _folder(out)
    torch.set_num_threads(1)  # the network is too small for more, and one thread gives the same bits everywhere
    with bars() as progress:
        found = run_demo(seed, progress)
        report = _write(folder, found, progress)
    result = found.result.to_dict()
    if as_json:
        typer.echo(json.dumps(result))
        return
    console = Console()
    console.print(table(result))
    console.print(f"report: {report}\nresult: {folder / RESULT}", highlight=False, soft_wrap=True, markup=False)


def table(result: dict[str, Any]) -> Table:
    """Return the numbers as a table for people."""
    retrain, sure = result["retrain"], result["forget_confidence"]
    counts = result["counts"]
    kept = f"{counts['retain']} retain samples, {counts['retain'] / counts['train']:.0%} of the training data"
    shown = Table(title=f"{counts['forget']} samples forgotten (digits, seed {result['seed']}, one run; {kept})")
    for name, side in (("", "left"), ("before", "right"), ("after", "right"), ("retrained", "right")):
        shown.add_column(name, justify=side)  # type: ignore[arg-type]
    shown.add_row("forgetting rate (FR)", "0", rate(result["fr"]), rate(retrain["fr"]))
    shown.add_row("collateral (CFR, lower is better)", "0", rate(result["cfr"]), rate(retrain["cfr"]))
    before, after = result["accuracy_before"], result["accuracy_after"]
    shown.add_row("test accuracy", f"{before:.3f}", f"{after:.3f}", f"{retrain['accuracy']:.3f}")
    confidences = (f"{sure[when]:.3f}" for when in ("before", "after", "retrained"))
    shown.add_row("confidence on forgotten samples", *confidences)
    shown.add_row("seconds", "", f"{result['seconds']:.2f}", f"{retrain['seconds']:.2f}")
    shown.add_row("times faster than retraining", "", f"{result['speedup']:.1f}", "1")
    shown.add_row("share of weights changed", "", f"{result['mask_density']:.3f}", "")
    return shown


def rate(value: float | None) -> str:
    """Return a rate for people; undefined where the oracle saw no member to begin with."""
    return "n/a" if value is None else f"{value:.3f}"


def _folder(out: Path) -> Path:
    if out.exists() and not out.is_dir():
        raise OutputError(f"{out} is a file, not a folder; give another one with --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {out}: {error.strerror}; give another one with --out") from error
    return out


def _write(folder: Path, found: Demo, progress: Any) -> Path:
    from forsaken.jobs.run import write_posteriors
    from forsaken.report.page import write_report
    from forsaken.report.saved import ARRAYS, RESULT

    progress(Tick("write the report", 0, 1))
    write_posteriors(folder / ARRAYS, found.answers)
    found.result.write(folder / RESULT)
    report = write_report(folder)
    progress(Tick("write the report", 1, 1))
    return report
