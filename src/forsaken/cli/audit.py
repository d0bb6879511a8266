"""`forsaken audit`: how well the model of a run forgot, by attacks of three strengths."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext, redirect_stdout
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
    from forsaken.auditing.result import Audit, Number
    from forsaken.jobs.audit import Plan

ALARMED = 4
UNKNOWN = "Not known: "  # how an alarm begins that could not be told
_AIMS = {"lower": "low", "higher": "high", "half": "0.5", "retrained": "as retrained"}


def audit(
    job: Annotated[Path, typer.Argument(help="The job file whose run is audited.")] = Path(NAME),
    profile: Annotated[str | None, typer.Option(help="quick, standard or full, in place of the job's own.")] = None,
    models: Annotated[int | None, typer.Option(help="How many models to train, in place of the job's own.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder, in place of the job's own.")] = None,
    engine: Annotated[str, typer.Option(help="Where full trains: local, ray or ray://host:port.")] = "local",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what an audit would cost; write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure how well the model of a finished run forgot, and put it into the run's report.

    quick trains nothing; standard attacks with a few shadow models; full compares with an ensemble of retrained
    models, sample by sample. A full audit of networks that was stopped goes on with the models that were finished.

    Exit code 0: no alarm, which does not mean that the samples are forgotten: read the numbers; 4: an alarm was raised
    (too much forgotten, or nothing); 2: something is wrong or missing.

    Example: forsaken audit forsaken.toml --profile standard
    """
    from forsaken.engine import check_engine
    from forsaken.jobs.audit import plan_audit
    from forsaken.jobs.code import user_code
    from forsaken.jobs.configuration import read_job
    from forsaken.jobs.output import held

    check_engine(engine)
    read = read_job(job)
    folder = read.resolve(read.output.folder) if out is None else out
    # Held before the run is looked at: what is audited must not be replaced in between.
    place = nullcontext() if dry_run or not folder.is_dir() else held(folder)
    with user_code(read.folder), place:
        plan = plan_audit(read, folder, profile=profile, models=models)
        if dry_run:
            _show_cost(_cost(plan), as_json)
            return
        found = _audited(plan, engine)
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
    else:
        _tell(folder, found)
    if found.alarmed:
        raise typer.Exit(ALARMED)


def _audited(plan: Plan, engine: str) -> Audit:
    from forsaken.jobs.audit import audit_job
    from forsaken.report.page import write_report

    # what a user's own model prints goes to standard error
    with redirect_stdout(sys.stderr), bars() as progress:
        found = audit_job(plan, progress, engine=engine)
        progress(Tick("write the report", 0, 1))
        write_report(plan.folder)
        progress(Tick("write the report", 1, 1))
    return found


def _tell(folder: Path, found: Audit) -> None:
    from forsaken.jobs.output import AUDIT, REPORT

    console = Console()
    for name, sentence in (("Shown", found.claim.shown), ("Not shown", found.claim.not_shown)):
        console.print(f"{name}: {sentence}", highlight=False, soft_wrap=True, markup=False)
    console.print(_table(found))
    for note, labels in _notes(found).items():
        more = f" and {len(labels) - 1} more" if len(labels) > 1 else ""
        console.print(f"{labels[0]}{more}: {note}", highlight=False, soft_wrap=True, markup=False)
    for alarm in found.alarms:
        state = {True: "[bold red]ALARM[/]", False: "no alarm", None: "not known"}[alarm.raised]
        told = alarm.told.removeprefix(UNKNOWN) if alarm.raised is None else alarm.told
        console.print(f"{state} ({alarm.name}): {escape(told)}", highlight=False, soft_wrap=True)
    for warning in found.warnings:
        console.print(f"[yellow]note:[/] {escape(warning)}", highlight=False, soft_wrap=True)
    places = f"report: {folder / REPORT}\nresult: {folder / AUDIT}"
    console.print(places, highlight=False, soft_wrap=True, markup=False)


def _table(found: Audit) -> Table:
    """Return the numbers in few columns, so that 80 characters are enough: a range stands under its number."""
    floors = any(number.floor for number in found.numbers)
    shown = Table(title=f"audit of the run, profile {found.profile} ({escape(found.cost['told'])})", show_lines=True)
    shown.add_column("", justify="left")
    for name in ("value\n95 % interval", "retrained\nfloor" if floors else "retrained", "before"):
        shown.add_column(name, justify="right", no_wrap=True)
    for number in found.numbers:
        shown.add_row(
            f"{escape(number.label)}\n[dim]aim: {_AIMS[number.direction]}; {_counted(number)}[/]",
            _lines(_one(number.value), _range(number.interval)),
            _lines(_one(number.retrained), "" if number.floor is None else _ends(number.floor)),
            "" if number.before is None else _one(number.before),
        )
    return shown


def _notes(found: Audit) -> dict[str, list[str]]:
    """Return the notes on numbers, each once, with the numbers that it is about."""
    notes: dict[str, list[str]] = {}
    for number in found.numbers:
        if number.note:
            notes.setdefault(number.note, []).append(number.label)
    return notes


def _counted(number: Number) -> str:
    return escape(f"{number.n:,} {number.unit}")


def _lines(*parts: str) -> str:
    return "\n".join(filter(None, parts))


def _one(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _ends(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.3f} to {pair[1]:.3f}"


def _range(pair: tuple[float, float] | None) -> str:
    if pair is None:
        return ""
    # every draw gave the same number: that says how few values were possible, not how sure the number is
    return "no spread" if pair[0] == pair[1] else _ends(pair)


def _cost(plan: Plan) -> dict[str, Any]:
    from forsaken.jobs.audit import audit_cost

    with redirect_stdout(sys.stderr), bars() as progress:
        return audit_cost(plan, progress)


def _show_cost(cost: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(cost))
        return
    shown = Table(title="dry run: nothing was written", show_header=False)
    shown.add_row("profile", cost["profile"])
    shown.add_row("what it does", escape(cost["told"]))
    shown.add_row("models to train", f"{'at most ' if cost['references'] else ''}{cost['trainings']:,}")
    shown.add_row("models to make forget", f"{cost['unlearnings']:,}")
    about = f"about {cost['seconds']:.0f} s one after the other; several at once may be faster"
    shown.add_row("time of training and forgetting", about if cost["trainings"] else "none")
    shown.add_row("not counted", cost["not_counted"])
    for name, count in cost["counts"].items():
        shown.add_row(f"samples: {name}", "not named" if count is None else f"{count:,}")
    console = Console()
    console.print(shown)
    for note in cost["notes"]:
        console.print(f"note: {note}", highlight=False, soft_wrap=True, markup=False)
