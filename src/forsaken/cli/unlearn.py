"""`forsaken unlearn`: a job file in, a model that forgot out, with its proof."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from forsaken.cli.init import NAME
from forsaken.progress import bars
from forsaken.types import Tick

if TYPE_CHECKING:
    from forsaken.jobs.configuration import Job
    from forsaken.jobs.run import Outcome

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def unlearn(
    job: Annotated[Path, typer.Argument(help="The job file; forsaken init writes one.")] = Path(NAME),
    out: Annotated[Path | None, typer.Option(help="The output folder, in place of the job's own.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what a run would be like; write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the result of an earlier run.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make the model of a job file forget, and write the new weights, a report and a certificate.

    Example: forsaken unlearn forsaken.toml --dry-run
    """
    from forsaken.jobs.code import user_code
    from forsaken.jobs.configuration import read_job

    read = read_job(job)
    if dry_run:
        with user_code(read.folder):
            found = _tried(read)
        if as_json:
            typer.echo(json.dumps(found))
        else:
            _tell_dry_run(found)
        return
    folder = read.resolve(read.output.folder) if out is None else out
    with user_code(read.folder):
        outcome, written = _run(read, folder, force)
    if as_json:
        typer.echo(json.dumps({"folder": str(folder), "files": written, "result": outcome.result.to_dict()}))
    else:
        _tell(folder, outcome)


def _run(job: Job, folder: Path, force: bool) -> tuple[Outcome, list[str]]:
    from forsaken.jobs.output import RECORD_KEY, inputs_of, output, outputs_of
    from forsaken.jobs.run import run_job
    from forsaken.report.page import write_report

    place = output(folder, force=force, inputs=inputs_of(job), names=outputs_of(job))
    with redirect_stdout(sys.stderr), bars() as progress, place as hidden:  # what a user's own model prints
        key = folder / RECORD_KEY
        outcome = run_job(job, hidden, progress, key_file=key if key.is_file() else None)
        progress(Tick("write the report", 0, 1))
        write_report(hidden)
        progress(Tick("write the report", 1, 1))
        written = sorted(path.name for path in hidden.iterdir())
    return outcome, written


def _tell(folder: Path, outcome: Outcome) -> None:
    result, console = outcome.result.to_dict(), Console()
    console.print(_table(result))
    for warning in (*result["notes"], *result["warnings"], *result["chain"]["advice"]):
        console.print(f"[yellow]note:[/] {escape(warning)}", highlight=False, soft_wrap=True)
    console.print(_last_lines(folder, outcome), highlight=False, soft_wrap=True, markup=False)


def _last_lines(folder: Path, outcome: Outcome) -> str:
    weights = folder / outcome.weights.name
    certificate = shlex.quote(str(folder / "certificate.json"))
    key, twin = folder / "records.key", folder / "references.safetensors.key"
    both = f", and the same in {twin}" if outcome.certificate.references and twin.exists() else ""
    kept = f"record key:  {key}{both} (keep it, and apart from the certificate)\n" if key.exists() else ""
    return (
        f"{kept}weights:     {weights}\nreport:      {folder / 'report.html'}\n"
        f"certificate: {folder / 'certificate.json'}\n"
        f"check it:    forsaken verify {certificate} --weights {shlex.quote(str(weights))}"
    )


def _table(result: dict[str, Any]) -> Table:
    counts, sure, retrain = result["counts"], result["forget_confidence"], result["retrain"]
    nothing = result["stopped"] == "not-memorised"
    asked = f"a request to forget {counts['forget']} samples"
    what = f"{asked}: nothing to forget, no weight was changed" if nothing else f"{asked}, carried out"
    shown = Table(title=f"{what} (one run)")
    names = ("", "before", "after", *(("retrained",) if retrain else ()))
    for at, name in enumerate(names):
        shown.add_column(name, justify="left" if at == 0 else "right")

    def row(name: str, *values: object) -> None:
        shown.add_row(name, *(_number(value) for value in values[: len(names) - 1]))

    if counts["memorised_before"] is not None:
        known = counts["memorised_before"]
        row(f"forgetting rate (FR; {known} looked memorised)", 0, result["fr"], retrain and retrain["fr"])
        row("collateral (CFR, lower is better)", 0, result["cfr"], retrain and retrain["cfr"])
    apart = result["separation"]
    if apart is not None:
        row("told from strangers by confidence (AUC, aim 0.5)", apart["before"], apart["after"], apart["retrained"])
    true = result["forget_accuracy"]
    if true is not None and result["target"]["target"] == "corrected":
        row("answered with their true class", true["before"], true["after"], true["retrained"])
    row("confidence on forgotten samples", sure["before"], sure["after"], sure["retrained"])
    if result["accuracy_before"] is not None:
        row("test accuracy", result["accuracy_before"], result["accuracy_after"], retrain and retrain["accuracy"])
    if result["oracle"] is not None:
        row("the oracle's balanced accuracy (a coin: 0.5)", result["oracle"]["balanced_accuracy"], "", "")
    row("seconds", "", result["seconds"], "")
    row("share of weights changed", "", result["mask_density"], "")
    return shown


def _number(value: object) -> str:
    if value is None:
        return "n/a"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _tried(job: Job) -> dict[str, Any]:
    from forsaken.jobs.dry_run import dry_run

    with redirect_stdout(sys.stderr), bars() as progress:
        return dry_run(job, progress)


def _tell_dry_run(found: dict[str, Any]) -> None:
    console = Console()
    shown = Table(title="dry run: nothing was written", show_header=False)
    known = {True: "yes", False: "no: nothing would be changed", None: "not known yet: see below"}
    shown.add_row("are the samples memorised?", known[found["memorised"]])
    if found["memorised_by_oracle"] is not None:
        shown.add_row("members by the oracle", f"{found['memorised_by_oracle']} of {found['counts']['forget']}")
    if found["separation"] is not None:
        shown.add_row("told from strangers by confidence (AUC, aim 0.5)", _number(found["separation"]))
    if (table := found["references"]) is not None:
        whole = table["in_table"] + table["not_in_table"]
        shown.add_row("in the table of references", f"{table['in_table']} of {whole} (of its {table['rows']:,} rows)")
    shown.add_row("confidence on the samples", _number(found["forget_confidence"]))
    if found["seconds"] is not None:
        shown.add_row("time", f"about {found['seconds']:.0f} s, start and report included")
    shown.add_row("memory", f"about {found['memory_bytes'] / 2**20:,.0f} MiB, and one batch's activations")
    shown.add_row("parameters", f"{found['parameters']:,}")
    for name, count in found["counts"].items():
        shown.add_row(f"samples: {name}", "not named" if count is None else f"{count:,}")
    console.print(shown)
    for each in found["missing"]:
        head = f"{each['set']} is {'needed and ' if each['needed'] else ''}not named: {each['why']}."
        text = f"{head}\n  What can serve: {each['what_can_serve']}.\n    {each['example']}\n  Or: {each['otherwise']}."
        console.print(text, highlight=False, soft_wrap=True, markup=False)
    for note in found["notes"]:
        console.print(f"note: {note}", highlight=False, soft_wrap=True, markup=False)
