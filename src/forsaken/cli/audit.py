"""`forsaken audit`: how well the model of a run forgot, by attacks of three strengths."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from forsaken.cli.console import (
    JOB_FILE,
    After,
    AsJson,
    Require,
    at_work,
    emit,
    note,
    number,
    opened_job,
    print_table,
    say,
    tell_verdict,
    write_page,
)
from forsaken.cli.exits import of_work
from forsaken.verdict import Requirement

if TYPE_CHECKING:
    from forsaken.auditing.result import Audit

_AIMS = {"lower": "low", "higher": "high", "half": "0.5", "retrained": "as retrained"}


def audit(
    job: Annotated[Path, typer.Argument(help="The job file whose run is audited.")] = Path(JOB_FILE),
    profile: Annotated[str | None, typer.Option(help="quick, standard or full, in place of the job's own.")] = None,
    models: Annotated[int | None, typer.Option(help="How many models to train, in place of the job's own.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder, in place of the job's own.")] = None,
    after: After = None,
    engine: Annotated[str, typer.Option(help="Where full trains: local, processes, ray or ray://host:port.")] = "local",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what an audit would cost; write nothing.")] = False,
    require: Require = None,
    as_json: AsJson = False,
) -> None:
    """Measure how well the model of a finished run forgot, and put it into the run's report.

    quick trains nothing; standard attacks with a few shadow models; full compares with an ensemble of retrained
    models, sample by sample. A full audit of networks that was stopped goes on with the models that were finished.

    The verdict is one word: forgotten, not shown or failed. It counts what the run and its other audits found too.

    Exit code 0: forgotten or not shown; 4: failed, or an alarm was raised; 6: a --require is not met; 2: something is
    wrong or missing.

    Example: forsaken audit forsaken.toml --profile standard
    """
    from forsaken._keys import read_record_key
    from forsaken.engine import check_engine
    from forsaken.jobs.audit import audit_cost, audit_job, plan_audit
    from forsaken.jobs.output import held, record_key_of
    from forsaken.report.saved import read_run, verdict_of

    check_engine(engine)
    wanted = [Requirement.parse(text) for text in require or ()]
    with opened_job(job, after) as read:
        folder = read.resolve(read.output.folder) if out is None else out
        # Held before the run is looked at: what is audited must not be replaced in between.
        with nullcontext() if dry_run or not folder.is_dir() else held(folder):
            plan = plan_audit(read, folder, profile=profile, models=models)
            with at_work() as progress:
                if dry_run:
                    cost = audit_cost(plan, progress)
                else:
                    found = audit_job(plan, progress, engine=engine)
                    place = record_key_of(read, folder)
                    key = read_record_key(place) if place.is_file() else None
                    write_page(folder, progress, key)
                    verdict = verdict_of(read_run(folder, record_key=key))
    if dry_run:
        (emit if as_json else _show_cost)(cost)
        return
    accuracy = next((each for each in found.numbers if each.name == "accuracy"), None)
    values = (None, None) if accuracy is None else (accuracy.before, accuracy.value)
    unmet = [told for each in wanted if (told := each.unmet(verdict, *values))]
    if as_json:
        emit(
            found.to_dict()
            | {"verdict_of_the_run": verdict.model_dump(mode="json", exclude={"checks"}), "unmet": unmet}
        )
    else:
        _tell(folder, found)
        tell_verdict(verdict)
        note(*unmet)
    raise typer.Exit(of_work(verdict, alarmed=found.alarmed, unmet=bool(unmet)))


def _tell(folder: Path, found: Audit) -> None:
    from forsaken.jobs.output import AUDITS, REPORT

    say(f"Shown: {found.claim.shown}", f"Not shown: {found.claim.not_shown}")
    print_table(_table(found))
    notes: dict[str, list[str]] = {}  # each note once, with the numbers that it is about
    for each in found.numbers:
        if each.note:
            notes.setdefault(each.note, []).append(each.label)
    for text, labels in notes.items():
        say(f"{labels[0]}{f' and {len(labels) - 1} more' if len(labels) > 1 else ''}: {text}")
    for alarm in found.alarms:
        state = {True: "[bold red]ALARM[/]", False: "no alarm", None: "not known"}[alarm.raised]
        told = alarm.told.removeprefix("Not known: ") if alarm.raised is None else alarm.told
        say(f"{state} ({alarm.name}): {escape(told)}", markup=True)
    note(*found.warnings)
    say(f"report: {folder / REPORT}\nresult: {folder / AUDITS[found.profile]}")


def _table(found: Audit) -> Table:
    """Return the numbers in few columns, so that 80 characters are enough: a range stands under its number."""
    floors = any(each.floor for each in found.numbers)
    shown = Table(title=f"audit of the run, profile {found.profile} ({escape(found.cost['told'])})", show_lines=True)
    shown.add_column("", justify="left")
    for name in ("value\n95 % interval", "retrained\nfloor" if floors else "retrained", "before"):
        shown.add_column(name, justify="right", no_wrap=True)
    for each in found.numbers:
        counted = escape(f"{each.n:,} {each.unit}")
        shown.add_row(
            f"{escape(each.label)}\n[dim]aim: {_AIMS[each.direction]}; {counted}[/]",
            _with_range(each.value, each.interval),
            _with_range(each.retrained, each.floor),
            "" if each.before is None else number(each.before),
        )
    return shown


def _with_range(value: float | None, ends: tuple[float, float] | None) -> str:
    shown = number(None if value is None else float(value))
    if ends is None:
        return shown
    # every draw gave the same number: that says how few values were possible, not how sure the number is
    return f"{shown}\nno spread" if ends[0] == ends[1] else f"{shown}\n{ends[0]:.3f} to {ends[1]:.3f}"


def _show_cost(cost: dict[str, Any]) -> None:
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
    print_table(shown)
    note(*cost["notes"])
