"""`forsaken references`: the table of what models that never saw a row say about it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from forsaken.cli.console import JOB_FILE, After, AsJson, at_work, emit, note, opened_job, print_table, say

app = typer.Typer(
    no_args_is_help=True,
    help="References: what models that never saw a training row say about it. Made once, for every later request.",
)

JobFile = Annotated[Path, typer.Argument(help=r"The job file, with a table \[references].")]

SENSITIVE = (
    "Keep the table as safe as the training data, and its key in another place: the answers about a row come from a "
    "model that never saw this row, but that did see others."
)
_GOAL = 0.55  # as in forsaken.references.worth, which takes long to import
SENSITIVE_MODELS = "The models kept in it remember rows as the model itself does."


@app.command("fit")
def fit(
    job: JobFile = Path(JOB_FILE),
    engine: Annotated[str, typer.Option(help="Where to train: local, processes, ray or ray://host:port.")] = "local",
    force: Annotated[bool, typer.Option("--force", help="Replace a table that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    r"""Train a model for each fold of the training data without it, and write down what it says about that fold.

    Needs \[model], \[data] train and \[audit] recipe; the samples to forget need not be known yet. A fit that was
    stopped goes on with the folds that were finished, unless models are kept.

    Example: forsaken references fit forsaken.toml
    """
    from forsaken.engine import check_engine
    from forsaken.jobs.references import fit_table

    check_engine(engine)
    with opened_job(job) as read, at_work() as progress:
        found = fit_table(read, engine=engine, force=force, progress=progress)
    _tell(found, "a new table of references", as_json)


@app.command("show")
def show(
    file: Annotated[Path, typer.Argument(help="A table of references, or a job file (.toml) that names one.")],
    as_json: AsJson = False,
) -> None:
    """Show what a table of references holds, and from which request on it pays. No key is needed.

    Example: forsaken references show references.safetensors
    """
    from forsaken.jobs.references import show_table

    _tell(show_table(file), "a table of references", as_json)


@app.command("extend")
def extend(job: JobFile = Path(JOB_FILE), after: After = None, as_json: AsJson = False) -> None:
    r"""Add the rows of \[data] train that are not in the table yet.

    Where models are kept they are asked, which costs one pass; otherwise one model is trained on the rows that are in
    the table.

    With --after the table of that request is taken, and the longer one is written beside its folder, where the next
    request with --after finds it: the table in the folder is as its certificate states.

    Example: forsaken references extend forsaken.toml
    """
    from forsaken.jobs.references import extend_table

    with opened_job(job, after) as read, at_work() as progress:
        found = extend_table(read, after, progress=progress)
    _tell(found, "the table of references", as_json)


def _tell(found: dict[str, Any], title: str, as_json: bool) -> None:
    if as_json:
        emit(found)
        return
    shown = Table(title=title, show_header=False)
    for name, value in _rows(found):
        shown.add_row(name, escape(value))
    print_table(shown)
    say(_pays(found["break_even"]), SENSITIVE, *([SENSITIVE_MODELS] if found["models_kept"] else []))
    note(*found["notes"])


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    by = f'the column "{found["group"]}"' if found.get("group") else found["by"]
    rows = [("file", found["file"])]
    rows += [("key", found["key"])] if "key" in found else []
    if "added" in found:
        how = {0: "no training", 1: "one training"}[found["added_trainings"]]
        rows.append(("rows added", f"{found['added']:,} ({how}, {found['added_seconds']:.1f} s)"))
    rows += [("rows", f"{found['rows']:,}"), ("classes", f"{found['classes']:,}")]
    rows.append(("folds", "none: the logits were handed in" if by == "claim" else f"{found['folds']} by {by}"))
    rows += _worth(found)
    rows.append(("steps of each training", "not known" if found["steps"] is None else f"{found['steps']:,}"))
    rows.append(("training", f"{found['training_seconds']:.1f} s for {found['trainings']} models"))
    for requests, seconds in found["seconds_a_request"].items():
        rows.append((f"training a request, over {requests}", f"{seconds:.2f} s"))
    measured = found["curvature_rows"]
    rows.append(("curvature of the model", "none" if measured is None else f"measured over {measured:,} rows"))
    if found["spread"] is not None:
        rows.append(("spread on unseen samples", f"{found['spread']:.2f} of the logits' size"))
    for name in ("views", "claimed", "forgotten", "models_kept", "models_owe"):
        rows.append((_NAMES[name], f"{found[name]:,}"))
    return rows


def _worth(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what is told about how well an attack would tell the references from retrained models."""
    worth, budget = found["worth"], found["budget"]
    rows = []
    if worth is not None:
        rows.append(("estimated AUC of an attack", f"{worth['auc']:.2f} ({worth['low']:.2f} to {worth['high']:.2f})"))
        spreads = f"{worth['sigma']:.2f} by seed, {worth['data']:.2f} by missing rows, shift {worth['shift']:.2f}"
        rows.append(("spreads of the margin", f"{spreads}, on {worth['samples']:,} unseen samples"))
        needed = "more than can be had" if worth["folds_needed"] is None else f"{worth['folds_needed']:,}"
        rows.append((f"folds for an AUC below {_GOAL}", needed))
    if found["worth_now"] is not None and found["forgotten"]:
        due = ", so fit the table anew" if found["refit_due"] else ""
        rows.append(("the AUC for the next request", f"{found['worth_now']:.2f}, since rows were forgotten{due}"))
    if budget is not None:
        why = "as many as are needed" if worth is not None and worth["auc"] < _GOAL else "as many as the budget allows"
        rows.append(("how the folds were chosen", f"{why}, of {budget} trainings at most"))
    return rows


_NAMES = {
    "views": "views of each row",
    "claimed": "rows whose answers were handed in",
    "forgotten": "rows forgotten so far",
    "models_kept": "models kept",
    "models_owe": "forgotten rows that these remember",
}


def _pays(first: dict[str, int | None]) -> str:
    known = [f"from request {at} on where it takes {float(share):.0%} of it" for share, at in first.items() if at]
    if not known:
        return "No model was trained for the table, so it is cheaper than retraining from the first request on."
    return (
        "When the table is cheaper than retraining for each request depends on how long forgetting takes beside a "
        f"training: {', and '.join(known)}. forsaken unlearn tells where yours stands."
    )
