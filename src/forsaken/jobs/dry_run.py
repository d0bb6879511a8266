"""`forsaken unlearn job.toml --dry-run`: is there anything to forget, what would it cost, and what is missing."""

from __future__ import annotations

import sys
import time
from typing import Any

from torch import nn

from forsaken._keys import read_record_key, read_signing_key
from forsaken.errors import NotHeldOutError
from forsaken.jobs.after import stop_returned
from forsaken.jobs.certificate import Certificate
from forsaken.jobs.configuration import Job, ReferenceSettings, by_references, method_of
from forsaken.jobs.output import check_there
from forsaken.jobs.references import (
    absent,
    debts,
    seconds_a_training,
    shortfall,
    training_of,
    training_problems,
    without_table,
)
from forsaken.jobs.run import (
    STAGE,
    STEPS,
    Prepared,
    answers_of,
    doubts,
    judge_prepared,
    prepare_job,
    request_before,
    stop_damage,
    unlearn_prepared,
)
from forsaken.models.logits import as_module
from forsaken.references.fitting import Costs
from forsaken.types import Progress, Tick, silent
from forsaken.unlearning.forsaken.method import GAUSS_NEWTON, Forsaken
from forsaken.unlearning.forsaken.targets import OUT_OF_FOLD

_TRIAL = 3  # iterations, or rounds, that are timed
_BESIDES = 5.0  # seconds for starting the program and for the page

# What can serve as reference samples, by the kind of the records, and how to write it in [data].
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

# Of a set that is not named: what it is for, what can serve, how to write it in [data], and what happens without it.
_RETAIN = (
    "some training samples show which weights must not move",
    "1 % of the training data, without the records to forget",
    'retain = { of = "train", count = 50 }    # with train = "..."',
    "the references stand in for them",
)
_TEST = (
    "the accuracy before and after is measured on it",
    "labelled samples that the model was not trained on",
    'test = "test.parquet"',
    "the report says nothing about the accuracy",
)


def dry_run(job: Job, progress: Progress = silent) -> dict[str, Any]:
    """Read everything, try a few iterations, and return what a run would be like. Nothing is written.

    Returns
    -------
    dict
        memorised (true, false, or None where it is not known), seconds, memory_bytes, parameters, counts,
        separation, forget_confidence, references (how many of the samples are in the table; None without one), offer
        (what a table would cost, where the job has none and could: trainings, seconds, break_even), missing (sets that
        are not named, and what could serve) and notes.
    """
    start = time.perf_counter()
    previous = _check_the_rest(job)
    ready = prepare_job(job, progress)
    returned = stop_returned(job, ready.sets.rows, previous)
    reading = time.perf_counter() - start
    sets, method = ready.sets, method_of(job)
    before = answers_of(ready.loaded.model, sets.parts, ready.loaded.forward, progress, 0)
    progress(Tick(STAGE, STEPS, STEPS))  # there is no model after, and no retrained one
    stop_damage(ready, {"before": before})
    found = judge_prepared(ready, {"before": before, "after": before})
    missing = _missing(ready, str(getattr(method, "target", "")))
    gone = 0 if ready.table is None else len(absent(ready.table.table, sets.forget))
    told: dict[str, Any] = {
        "memorised": None,
        "seconds": None,
        "memory_bytes": _memory(ready, method),
        "parameters": sum(weight.numel() for weight in _trainable(ready)),
        "counts": {
            name: None if (part := sets.get(name)) is None else len(part)
            for name in ("forget", "reference", "retain", "kept", "test")
        },
        "memorised_by_oracle": found.memorised_before,
        "forget_confidence": found.forget_confidence.before,
        "separation": None if found.separation is None else found.separation.before,
        "references": None
        if ready.table is None
        else {
            "rows": len(ready.table.table),
            "in_table": len(sets.forget) - gone,
            "not_in_table": gone,
        },
        "offer": None,
        "missing": missing,
        "notes": [*sets.notes, *returned, *doubts(ready, found), *_table_notes(ready), *without_table(job)],
    }
    if any(each["needed"] for each in missing) or (gone and by_references(job)):
        return told
    tried = _tried(ready, method, reading, progress)
    offer = _offer(ready, tried.pop("unlearning"), progress)
    memory = max(told["memory_bytes"], _taken())  # what was tried took what a run takes, a curvature among it
    return told | tried | {"memory_bytes": memory, "offer": offer, "notes": [*told["notes"], *tried["notes"]]}


def _check_the_rest(job: Job) -> Certificate | None:
    """Check what a run needs besides the model and the data, so that a mistake is found now.

    Returns the certificate of the request before, if there was one.
    """
    check_there(job)
    if job.output.record_key is not None:
        read_record_key(job.resolve(job.output.record_key))
    signing = None if job.output.signing_key is None else read_signing_key(job.resolve(job.output.signing_key))
    return request_before(job, signing)[0]


def _offer(ready: Prepared, unlearning: float, progress: Progress) -> dict[str, Any] | None:
    """Return what a table of references would cost, where the job has none and could have one; None elsewhere."""
    job, kept = ready.job, ready.sets.kept
    if not without_table(job) or training_problems(job, "") or kept is None or kept.labels is None:
        return None
    rows = len(ready.sets.rows["train"])
    training = training_of(job, ready.loaded)
    each = seconds_a_training(training, kept, rows, progress, forward=ready.loaded.forward)
    most = ReferenceSettings().budget
    costs = Costs(most * each, most)
    return {"trainings": most, "seconds": costs.seconds, "break_even": costs.break_even(unlearning=unlearning)}


def _table_notes(ready: Prepared) -> list[str]:
    """Return what a run would say about its table of references."""
    if ready.table is None:
        return []
    notes = []
    if by_references(ready.job):
        try:
            ready.table.check_held(ready.job, ready.sets.forget)
        except NotHeldOutError as error:
            notes.append(f"a run would be refused: {error}")
    return [*notes, *shortfall(ready.table.table), *debts(ready.table.table)]


def _tried(ready: Prepared, method: Any, reading: float, progress: Progress) -> dict[str, Any]:
    """Run a few iterations, and estimate from their time how long all of them take at most."""
    changed: dict[str, Any] = {}
    if isinstance(method, Forsaken):
        iterations, rounds = min(_TRIAL, method.schedule.iterations), min(_TRIAL, method.solver.rounds)
        changed = {"iterations": iterations, "rounds": rounds, "stop": "none"}
    start = time.perf_counter()
    found = unlearn_prepared(ready, progress, **changed)
    spent = time.perf_counter() - start
    if found.stopped == "not-memorised":
        return {"memorised": False, "seconds": reading + spent, "unlearning": spent, "notes": found.notes}
    iterating = found.history[-1].seconds if found.history else 0.0
    each = iterating / max(1, found.iterations)
    most = found.iterations
    if changed and found.stopped == "iterations":
        by_curvature = found.details.facts.get("optimiser") == GAUSS_NEWTON
        most = method.solver.rounds if by_curvature else method.schedule.iterations
    models = 1 if ready.table is None else 1 + len(ready.table.table.models)  # kept models forget as well
    unlearning = models * (spent - iterating + each * most)
    # Judging and writing take about as long again as reading did.
    return {
        "memorised": True,
        "seconds": _BESIDES + 2 * reading + unlearning,
        "unlearning": unlearning,
        "notes": found.notes,
    }


def _missing(ready: Prepared, target: str) -> list[dict[str, Any]]:
    """Return the sets that the job does not name: what each is for, what can serve, and what happens without it."""
    sets, found = ready.sets, []
    if sets.reference is None:
        needed = target in ("class-mean", "corrected")
        compared = "with test samples, which may be unlike them" if sets.test is not None else "with nothing"
        why = f"without reference samples the forgotten ones are compared {compared}"
        otherwise = 'target = "uniform" in [method] needs none, and claims less'
        found.append(
            (
                "reference",
                needed,
                "the forgotten samples are moved to where such samples are" if needed else why,
                *ADVICE[str(getattr(sets.rows["forget"].content, "kind", "features"))],
                "forgetting needs the table of references alone" if target == OUT_OF_FOLD else otherwise,
            )
        )
    if sets.retain is None:
        found.append(("retain", False, *_RETAIN))
    if ready.test_labels is None:
        found.append(("test", False, *_TEST))
    names = ("set", "needed", "why", "what_can_serve", "example", "otherwise")
    return [dict(zip(names, each, strict=True)) for each in found]


def _trainable(ready: Prepared) -> list[nn.Parameter]:
    return [weight for weight in as_module(ready.loaded.model).parameters() if weight.requires_grad]


def _memory(ready: Prepared, method: Any) -> int:
    """Return about how many bytes a run takes: what this process takes now, another model, and the method's vectors."""
    size = sum(weight.numel() * weight.element_size() for weight in _trainable(ready))
    curvature = None if ready.table is None else ready.table.table.curvature
    if curvature is not None and getattr(method, "optimiser", None) in ("auto", GAUSS_NEWTON):
        # the docstring of Forsaken: 17 numbers for each parameter that can move, and the inverted factors
        return _taken() + size * (1 + 17) + curvature.bytes
    history = method.schedule.history if isinstance(method, Forsaken) else 0
    # 2m + 8 numbers for each parameter that can move, 11 for every chosen one
    return _taken() + size * (1 + 2 * history + 8 + 11)


def _taken() -> int:
    """Return the largest number of bytes that this process has taken so far."""
    try:
        import resource  # noqa: PLC0415 (not on every system)
    except ImportError:
        return 2**29
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
