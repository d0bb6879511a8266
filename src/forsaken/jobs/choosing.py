"""Which rows serve for what: those that the job names, and those that follow from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forsaken._random import Purpose, generator
from forsaken.data.records import Records
from forsaken.errors import InputError
from forsaken.jobs.rows import STRANGERS, Reader, Rows
from forsaken.jobs.settings import Job

_JUDGED = 2000  # training rows, at most, that tell whether what should be kept was kept
_GIVEN = ("a forget, reference or retain sample", "given to the method")
_STRANGE = (f"one of {STRANGERS}", f"among {STRANGERS}")
_SPLIT = f"name other ones, or split the reference set: one part for [data] reference, the rest for {STRANGERS}"
_RETAIN_SHARE, _RETAIN_LEAST = 0.01, 50  # of the training data, where no retain set is named


def choose(job: Job, reader: Reader, *, audit: bool = False) -> tuple[dict[str, Rows], list[str]]:
    """Return the rows of every set, by name, and what was done in place of something that was not given.

    Beside the sets that the job names there are "kept", training rows that are neither forgotten nor retained, and
    "retain", where the training data are there to draw it from. References and test rows that are training rows too
    are left out: the model was trained on them. For an `audit` every such training row is kept, since models are
    trained on them, and the strangers of [audit] are there too; what the method is given is the same.
    """
    rows = {name: found for name in job.data.sets if (found := reader.given(name)) is not None}
    others = {name: getattr(job.oracle, name, None) for name in ("members", "nonmembers")}
    others[STRANGERS] = job.audit.nonmembers if audit else None
    rows |= {name: reader.named(name, source) for name, source in others.items() if source is not None}
    rows = {name: aligned(part, rows.get("train", rows["forget"])) for name, part in rows.items()}
    notes: list[str] = []
    seed = job.method.seed
    if "train" in rows:
        for name in ("reference", "test", STRANGERS):
            if name in rows:
                rows[name] = _untrained(rows[name], rows["train"], rows["forget"], notes)
        if "retain" not in rows:
            drawn = _retain(rows["train"], rows["forget"], seed)
            if drawn is not None:
                rows["retain"] = drawn
                notes.append(f"no retain samples were named: {len(drawn)} were drawn from the training data")
        kept = _kept(rows, seed, most=None if audit else _JUDGED)
        if kept is not None:
            rows["kept"] = kept
    given = [rows[name] for name in ("forget", "reference", "retain") if name in rows]
    for name in (STRANGERS, "test"):
        if name in rows:
            rows[name] = _unused(rows[name], given, *_GIVEN, notes)
    if STRANGERS in rows and "test" in rows:
        rows["test"] = _unused(rows["test"], [rows[STRANGERS]], *_STRANGE, notes)
    return rows, notes


def aligned(part: Rows, model: Rows) -> Rows:
    """Return rows whose columns stand in the order of `model`'s: features are known by name, not by place."""
    own, wanted = part.content, model.content
    if not isinstance(own, Records) or not isinstance(wanted, Records) or own.fields == wanted.fields:
        return part
    if not own.fields or not wanted.fields:
        return part
    if set(own.fields) != set(wanted.fields):
        absent, strange = sorted(set(wanted.fields) - set(own.fields)), sorted(set(own.fields) - set(wanted.fields))
        told = [f"lacks {absent[0]!r}"] if absent else []
        told += [f"has {strange[0]!r} besides"] if strange else []
        raise InputError(
            f"the columns of {part.name} and {model.name} differ: {part.name} {' and '.join(told)}; give both the same"
        )
    order = [own.fields.index(name) for name in wanted.fields]
    return replace(part, content=replace(own, content=own.content[:, order], fields=wanted.fields))


def _untrained(part: Rows, train: Rows, forget: Rows, notes: list[str]) -> Rows:
    """Return the rows that are not in the training data; those that are to be forgotten stay, as an error to tell."""
    inside = ~part.apart_from([train]) & part.apart_from([forget])
    if inside.all():
        raise InputError(
            f"every {part.name} sample is in the training data, expected samples that the model was never trained on; "
            "name others"
        )
    if not inside.any():
        return part
    notes.append(f"{inside.sum()} of {len(part)} {part.name} samples are in the training data, and are left out")
    return part.take(np.flatnonzero(~inside))


def _retain(train: Rows, forget: Rows, seed: int) -> Rows | None:
    free = train.apart_from([forget])
    if not free.any():
        return None
    # At most half, or nothing would be left to see what was kept.
    count = min(max(_RETAIN_LEAST, int(len(train) * _RETAIN_SHARE)), max(1, int(free.sum()) // 2))
    order = generator(seed, Purpose.JOB_DRAWN_RETAIN).permutation(len(train))
    return train.take(np.sort(order[free[order]][:count]), "retain")


def _kept(rows: dict[str, Rows], seed: int, most: int | None) -> Rows | None:
    others = [rows[name] for name in ("forget", "retain") if name in rows]
    left = rows["train"].without(others)
    if left is None:
        return None
    return left.take(np.sort(generator(seed, Purpose.JOB_JUDGED_KEPT).permutation(len(left))[:most]), "kept")


def _unused(part: Rows, others: list[Rows], each: str, all_of_them: str, notes: list[str]) -> Rows:
    """Return a set without what is used otherwise: no number is honest on rows that the method was given."""
    left = part.without(others)
    if left is None:
        remedy = _SPLIT if part.name == STRANGERS else "name other ones"
        raise InputError(f"every {part.name} sample is also {each}, so none is left to measure anything on; {remedy}")
    gone = len(part) - len(left)
    if gone:
        notes.append(f"{gone} {part.name} samples are also {all_of_them}, and are left out of the {part.name}")
    return left
