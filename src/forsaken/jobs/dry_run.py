"""A dry run: is there anything to forget, how long will it take, how much memory, and what is missing."""

from __future__ import annotations

import sys
import time
from typing import Any

from forsaken._keys import read_record_key, read_signing_key
from forsaken.errors import NotHeldOutError
from forsaken.jobs.certificate import find_previous
from forsaken.jobs.configuration import Job, by_references, method_of
from forsaken.jobs.judge import PARTS, STAGE, Views, doubts, look, numbers
from forsaken.jobs.output import check_there
from forsaken.jobs.references import absent, debts
from forsaken.jobs.run import Prepared, prepare_job, unlearn_prepared
from forsaken.jobs.sets import JobSets
from forsaken.models.logits import as_module
from forsaken.types import Progress, Tick, silent
from forsaken.unlearning.forsaken.aims import OUT_OF_FOLD
from forsaken.unlearning.forsaken.method import GAUSS_NEWTON, Forsaken

_TRIAL = 3  # iterations, or rounds, that are timed
_BESIDES = 5.0  # seconds for starting the program and for the page

ADVICE = {
    "text": (
        "texts of the same kind that were written or collected after the model was trained, or a public collection of "
        "the same language and length",
        'reference = "texts-of-this-year.parquet"    # a column "text"',
    ),
    "image": (
        "pictures of the same kind and size that were taken after the training, or a public collection of them",
        'reference = "other-pictures/"    # with size = [32, 32] where sizes differ',
    ),
    "features": (
        "rows that arrived after the training, of another region or year, or the test set",
        'reference = { of = "test", count = 300 }    # rows drawn for it no longer count in the test',
    ),
}


def dry_run(job: Job, progress: Progress = silent) -> dict[str, Any]:
    """Read everything, try a few iterations, and return what a run would be like. Nothing is written.

    Returns
    -------
    dict
        memorised (true, false, or None where it cannot be told), seconds, memory_bytes, parameters, counts,
        separation, forget_confidence, references (how many of the samples are in the table; None without one),
        missing (what is not named and what could serve) and notes.
    """
    start = time.perf_counter()
    _check_the_rest(job)
    ready = prepare_job(job, progress)
    reading = time.perf_counter() - start
    sets, method = ready.sets, method_of(job)
    before = look(ready.loaded.model, sets.parts, ready.loaded.forward, progress, 0)
    whole = 3 * len(PARTS)
    progress(Tick(STAGE, whole, whole))  # one model is all that there is to judge here
    found = numbers(Views(before, before, None), ready.oracle, sets)
    missing = _missing(ready, str(getattr(method, "target", "")))
    counted = {
        name: None if (part := getattr(sets, name)) is None else len(part)
        for name in ("forget", "reference", "retain", "kept", "test")
    }
    told: dict[str, Any] = {
        "memorised": None,
        "seconds": None,
        "memory_bytes": _memory(ready, method),
        "parameters": _parameters(ready),
        "counts": counted,
        "memorised_by_oracle": found["memorised_before"],
        "forget_confidence": found["forget_confidence"]["before"],
        "separation": None if found["separation"] is None else found["separation"]["before"],
        "references": _references(ready),
        "missing": missing,
        "notes": [*sets.notes, *doubts(found, sets), *_of_table(ready)],
    }
    absent_there = told["references"] is not None and told["references"]["not_in_table"] > 0
    if any(each["needed"] for each in missing) or (absent_there and by_references(job)):
        return told
    tried = _tried(ready, method, reading, progress)
    return told | tried | {"notes": [*told["notes"], *tried["notes"]]}


def _references(ready: Prepared) -> dict[str, int] | None:
    if ready.table is None:
        return None
    table = ready.table.table
    gone = len(absent(table, ready.sets.forget))
    return {"rows": len(table), "in_table": len(ready.sets.forget) - gone, "not_in_table": gone}


def _of_table(ready: Prepared) -> list[str]:
    """Say what a run would be told about its table of references."""
    if ready.table is None:
        return []
    notes = []
    if by_references(ready.job):
        try:
            ready.table.check_held(ready.job, ready.sets.forget)
        except NotHeldOutError as error:
            notes.append(f"a run would be refused: {error}")
    return notes + debts(ready.table.table)


def _check_the_rest(job: Job) -> None:
    """Read what a run needs besides the model and the data, so that a mistake there is told now."""
    if job.references is not None:
        check_there(job)  # before the key of the table, which is of no use without it
    if job.output.record_key is not None:
        read_record_key(job.resolve(job.output.record_key))
    if job.output.signing_key is not None:
        read_signing_key(job.resolve(job.output.signing_key))
    if job.chain.previous is not None:
        find_previous(job.resolve(job.model.weights), job.resolve(job.chain.previous))


def _tried(ready: Prepared, method: Any, reading: float, progress: Progress) -> dict[str, Any]:
    """Run a few iterations, and count from their time how long all of them take at most."""
    changes: dict[str, Any] = {}
    if isinstance(method, Forsaken):
        changes = {name: min(_TRIAL, getattr(method, name)) for name in ("iterations", "rounds")} | {"stop": "none"}
    start = time.perf_counter()
    found = unlearn_prepared(ready, progress, **changes)
    spent = time.perf_counter() - start
    if found.stopped == "not-memorised":
        return {"memorised": False, "seconds": reading + spent, "notes": found.notes}
    iterating = found.history[-1].seconds if found.history else 0.0
    each = iterating / max(1, found.iterations)
    most = found.iterations
    if changes and found.stopped == "iterations":
        most = method.rounds if found.details.facts.get("optimiser") == GAUSS_NEWTON else method.iterations
    models = 1 if ready.table is None else 1 + len(ready.table.table.models)  # kept ones forget as well
    # Judging and writing take about as long again as reading did.
    return {
        "memorised": True,
        "seconds": _BESIDES + 2 * reading + models * (spent - iterating + each * most),
        "notes": found.notes,
    }


def _missing(ready: Prepared, target: str) -> list[dict[str, Any]]:
    sets, kind = ready.sets, _kind(ready)
    found: list[dict[str, Any]] = []
    if sets.reference is None:
        needed = target in ("class-mean", "corrected")
        serves, example = ADVICE[kind]
        found.append(
            {
                "set": "reference",
                "needed": needed,
                "why": "the forgotten samples are moved to where such samples are" if needed else _compared(sets),
                "what_can_serve": serves,
                "example": example,
                "otherwise": "the table of references is enough to forget by"
                if target == OUT_OF_FOLD
                else 'target = "uniform" in [method] needs none, and claims less',
            }
        )
    if sets.retain is None:
        found.append(
            {
                "set": "retain",
                "needed": False,
                "why": "some training samples show which weights must not move",
                "what_can_serve": "1 % of the training data, without the records to forget",
                "example": 'retain = { of = "train", count = 50 }    # with train = "..."',
                "otherwise": "the references stand in for them",
            }
        )
    if sets.test is None or sets.test.labels is None:
        found.append(
            {
                "set": "test",
                "needed": False,
                "why": "the accuracy before and after is measured on it",
                "what_can_serve": "labelled samples that the model was not trained on",
                "example": 'test = "test.parquet"',
                "otherwise": "the report says nothing about the accuracy",
            }
        )
    return found


def _compared(sets: JobSets) -> str:
    if sets.test is None:
        return "without reference samples there is nothing to compare the forgotten ones with"
    return "without reference samples the forgotten ones are compared with test samples, which may be unlike them"


def _kind(ready: Prepared) -> str:
    return str(getattr(ready.sets.rows["forget"].content, "kind", "features"))


def _parameters(ready: Prepared) -> int:
    return sum(weight.numel() for weight in as_module(ready.loaded.model).parameters() if weight.requires_grad)


def _memory(ready: Prepared, method: Any) -> int:
    """Return about how many bytes a run takes: what this process takes now, another model, and the method's vectors."""
    weights = [weight for weight in as_module(ready.loaded.model).parameters() if weight.requires_grad]
    size = sum(weight.numel() * weight.element_size() for weight in weights)
    curvature = None if ready.table is None else ready.table.table.curvature
    if curvature is not None and getattr(method, "optimiser", None) in ("auto", GAUSS_NEWTON):
        # the docstring of Forsaken: 6 numbers for each parameter that can move, and the factors, inverted
        return _taken() + size * (1 + 6) + curvature.bytes
    history = int(getattr(method, "history", 0))
    # 2m + 8 numbers for each parameter that can move, 11 for every chosen one
    return _taken() + size * (1 + 2 * history + 8 + 11)


def _taken() -> int:
    """Return the most bytes that this process has taken so far."""
    try:
        import resource  # noqa: PLC0415 (not on every system)
    except ImportError:
        return 2**29
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
