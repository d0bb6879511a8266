"""`forsaken unlearn`: a job file in, a model that forgot out, with its proof."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
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
    result_table,
    say,
    tell_verdict,
    write_page,
)
from forsaken.cli.exits import of_work
from forsaken.verdict import Requirement

REFIT = (
    "a linear model is usually fitted again in less time than forgetting takes, and a model that never saw the records "
    "needs no proof: compare with the time that forsaken unlearn --dry-run prints"
)

if TYPE_CHECKING:
    from forsaken.jobs.configuration import Job
    from forsaken.jobs.run import Outcome


def unlearn(
    job: Annotated[Path, typer.Argument(help="The job file; forsaken init writes one.")] = Path(JOB_FILE),
    out: Annotated[Path | None, typer.Option(help="The output folder, in place of the job's own.")] = None,
    after: After = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what a run would be like; write nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the result of an earlier run.")] = False,
    allow: Annotated[
        list[str] | None, typer.Option(help="A stop to override, such as accuracy-loss; may be repeated.")
    ] = None,
    require: Require = None,
    as_json: AsJson = False,
) -> None:
    """Make the model of a job file forget, and write the new weights, a report and a certificate.

    It ends with a verdict of one word: forgotten, not shown or failed.

    With --after the request goes on where the one before it ended: it takes the weights, the cleaned training data,
    the table of references and the chain from that folder, and writes to a folder with its own number, such as
    forgotten-2.

    Exit code 0: forgotten or not shown; 4: failed; 6: a --require is not met; 7: stopped, and 2: something is wrong or
    missing; after both nothing was written.

    Example: forsaken unlearn forsaken.toml --dry-run
    """
    wanted = [Requirement.parse(text) for text in require or ()]
    with opened_job(job, after) as written:
        read = _allowing(written, allow) if allow else written
        if dry_run:
            from forsaken.jobs.dry_run import dry_run as tried

            with at_work() as progress:
                found = tried(read, progress)
            (emit if as_json else _tell_dry_run)(found)
            return
        folder = read.resolve(read.output.folder) if out is None else out
        if not as_json and read.model.weights.endswith(".skops") and read.data.train is not None:
            note(REFIT)
        outcome, names = _run(read, folder, force, after)
    result = outcome.result
    accuracy = result.accuracy_before, result.accuracy_after
    unmet = [told for each in wanted if (told := each.unmet(result.verdict, *accuracy))]
    if as_json:
        emit({"folder": str(folder), "files": names, "result": result.to_dict(), "unmet": unmet})
    else:
        key = read.output.signing_key
        _tell(folder, outcome, None if key is None else read.resolve(f"{key}.pub"))
        note(*unmet)
    raise typer.Exit(of_work(result.verdict, unmet=bool(unmet)))


def _allowing(job: Job, allow: list[str]) -> Job:
    """Return the job with more stops overridden, as if its file named them."""
    from forsaken.unlearning.stops import checked_stops

    both = tuple(dict.fromkeys((*job.output.allow, *checked_stops(allow))))
    return job.model_copy(update={"output": job.output.model_copy(update={"allow": both})})


def _run(job: Job, folder: Path, force: bool, after: Path | None) -> tuple[Outcome, list[str]]:
    from forsaken.jobs.output import RECORD_KEY, inputs_of, output, outputs_of
    from forsaken.jobs.run import run_job

    place = output(folder, force=force, inputs=inputs_of(job), names=outputs_of(job))
    with at_work() as progress, place as hidden:
        # One key for the whole chain: a record is then found by it, whichever request forgot it.
        keys = [place / RECORD_KEY for place in (after, folder) if place is not None]
        outcome = run_job(job, hidden, progress, key_file=next((key for key in keys if key.is_file()), None))
        write_page(hidden, progress)
        written = sorted(path.name for path in hidden.iterdir())
    return outcome, written


def _tell(folder: Path, outcome: Outcome, public: Path | None) -> None:
    from forsaken.jobs.output import CERTIFICATE, EARLIER, RECORD_KEY, REFERENCES_KEY, REPORT
    from forsaken.report.words import evidence

    result, weights = outcome.result, folder / outcome.weights.name
    asked = f"a request to forget {result.counts.forget} samples"
    nothing = result.stopped == "not-memorised"
    shown = "" if evidence(result) else "; nothing shows that the samples are not memorised"
    what = f"{asked}: no weight was changed{shown}" if nothing else asked
    print_table(result_table(result, f"{what} (one run)"))
    advice = result.chain.advice if result.chain else ()
    note(*result.notes, *result.warnings, *advice, *(f"left to do: {text}" for text in result.stays))
    key, twin = folder / RECORD_KEY, folder / REFERENCES_KEY
    if key.exists():
        both = f", and the same in {twin}" if outcome.certificate.references and twin.exists() else ""
        say(f"record key:  {key}{both} (keep it, and apart from the certificate)")
    if (folder / EARLIER).is_dir():
        say(f"replaced:    {folder / EARLIER} keeps the certificates of earlier runs, each with its key")
    certificate = folder / CERTIFICATE
    who = ["--any-signer"] if public is None else ["--public-key", str(public)]
    say(
        f"weights:     {weights}",
        f"report:      {folder / REPORT}",
        f"certificate: {certificate}{' (not signed: it does not show who wrote it)' if public is None else ''}",
        f"check it:    forsaken verify {shlex.join([str(certificate), '--weights', str(weights), *who])}",
    )
    tell_verdict(result.verdict)


def _tell_dry_run(found: dict[str, Any]) -> None:
    shown = Table(title="dry run: nothing was written", show_header=False)
    known = {
        True: "yes",
        False: "not by the method's own measure: nothing would be changed",
        None: "not known yet: see below",
    }
    shown.add_row("are the samples memorised?", known[found["memorised"]])
    if found["memorised_by_oracle"] is not None:
        shown.add_row("members by the oracle", f"{found['memorised_by_oracle']} of {found['counts']['forget']}")
    if found["separation"] is not None:
        shown.add_row("told apart by confidence (AUC, aim 0.5)", number(found["separation"]))
    if (table := found["references"]) is not None:
        whole = table["in_table"] + table["not_in_table"]
        shown.add_row("in the table of references", f"{table['in_table']} of {whole} (of its {table['rows']:,} rows)")
    shown.add_row("confidence on the samples", number(found["forget_confidence"]))
    if found["seconds"] is not None:
        shown.add_row("time", f"about {found['seconds']:.0f} s, start and report included")
    shown.add_row("memory", f"about {found['memory_bytes'] / 2**20:,.0f} MiB, and one batch's activations")
    shown.add_row("parameters", f"{found['parameters']:,}")
    for name, count in found["counts"].items():
        shown.add_row(f"samples: {name}", "not named" if count is None else f"{count:,}")
    print_table(shown)
    if (offer := found["offer"]) is not None:
        first, cost = offer["break_even"], f"at most {offer['trainings']} trainings once, {offer['seconds']:.0f} s"
        pays = "never" if first is None else f"from request {first} on"
        say(f"A table of references takes {cost}; it is {pays} cheaper than retraining for each request.")
    for each in found["missing"]:
        head = f"{each['set']} is {'needed and ' if each['needed'] else ''}not named: {each['why']}."
        say(f"{head}\n  What can serve: {each['what_can_serve']}.\n    {each['example']}\n  Or: {each['otherwise']}.")
    note(*found["notes"])
