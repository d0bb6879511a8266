"""The sets of a job: which rows play which role, as samples that the model takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from forsaken._random import Purpose, generator
from forsaken.data.duplicates import content_keys
from forsaken.data.nest import shape_of
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import InputError, OverlapError
from forsaken.jobs.code import call, find
from forsaken.jobs.configuration import Job, Source
from forsaken.jobs.formats import Format
from forsaken.jobs.rows import NONMEMBERS, Reader, Rows
from forsaken.models.logits import predict_logits
from forsaken.sets import ROLES, Sets
from forsaken.types import Array

_JUDGED = 2000  # training rows, at most, that tell whether what should be kept was kept
_GIVEN = ("a forget, reference or retain sample", "given to the method")
_STRANGE = (f"one of {NONMEMBERS}", f"among {NONMEMBERS}")
_SPLIT = f"name other ones, or split the reference set: one part for [data] reference, the rest for {NONMEMBERS}"
_RETAIN_SHARE, _RETAIN_LEAST = 0.01, 50  # of the training data, where no retain set is named


def choose(job: Job, reader: Reader, *, audit: bool = False) -> tuple[dict[str, Rows], list[str]]:
    """Return the rows of every set, by name, and what was done in place of something that was not given.

    Beside the sets that the job names there are "kept", training rows that are neither forgotten nor retained, and
    "retain", where the training data are there to draw it from. References and test rows that are training rows too
    are left out: the model was trained on them. For an `audit` every such training row is kept, since models are
    trained on them, and the strangers of [audit] are there too; what the method is given is the same.
    """
    rows = {name: found for name in job.data.sets if (found := reader.given(name)) is not None}
    if job.oracle is not None and job.oracle.members is not None and job.oracle.nonmembers is not None:
        rows["shadow_members"] = reader.named("[oracle] members", job.oracle.members)
        rows["shadow_nonmembers"] = reader.named("[oracle] nonmembers", job.oracle.nonmembers)
    if audit and job.audit.nonmembers is not None:
        rows["nonmembers"] = reader.named(NONMEMBERS, job.audit.nonmembers)
    rows = {name: aligned(part, rows.get("train", rows["forget"])) for name, part in rows.items()}
    notes: list[str] = []
    seed = job.method.seed
    if "train" in rows:
        for name in ("reference", "test", "nonmembers"):
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
    for name in ("nonmembers", "test"):
        if name in rows:
            rows[name] = _unused(rows[name], given, *_GIVEN, notes)
    if "nonmembers" in rows and "test" in rows:
        rows["test"] = _unused(rows["test"], [rows["nonmembers"]], *_STRANGE, notes)
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
        remedy = _SPLIT if part.name == NONMEMBERS else "name other ones"
        raise InputError(f"every {part.name} sample is also {each}, so none is left to measure anything on; {remedy}")
    gone = len(part) - len(left)
    if gone:
        notes.append(f"{gone} {part.name} samples are also {all_of_them}, and are left out of the {part.name}")
    return left


# Whose labels must be the model's classes; others may have classes of their own, and then nobody reads them.
_LABELLED = ("retain", "kept", "test", "train")


@dataclass(frozen=True, eq=False, kw_only=True)
class JobSets(Sets):
    """The samples of a job by role (see `Sets`), and what else is known about them.

    `kept` is a part of the training data, unless the sets are read for an audit; `nonmembers`, the samples of [audit]
    nonmembers, are there for an audit alone.

    Attributes
    ----------
    shadow_members, shadow_nonmembers : Samples or None
        What the shadow model of [oracle] was trained on, and what it was not trained on.
    rows : dict of str to Rows
        The rows behind the sets by name: roles, "train", "shadow_members" and "shadow_nonmembers".
    classes : tuple of str
        The names of the classes, in the order of the logits.
    notes : list of str
        What was done in place of something that the job does not give.
    """

    shadow_members: Samples | None = None
    shadow_nonmembers: Samples | None = None
    rows: dict[str, Rows]
    classes: tuple[str, ...]
    notes: list[str] = field(default_factory=list)

    @property
    def parts(self) -> dict[str, Samples]:
        """The sets that there are, by name."""
        names = (*ROLES, "shadow_members", "shadow_nonmembers")
        return {name: part for name in names if (part := self.get(name)) is not None}


def read_sets(job: Job, loaded: Format, reader: Reader, *, audit: bool = False) -> JobSets:
    """Read, choose and prepare every set that the job names; for an `audit` all of the training data."""
    rows, notes = choose(job, reader, audit=audit)
    wanted = [name for name in rows if name != "train"]
    prepare = _preparation(job, loaded)
    ready = dict(zip(wanted, prepare([rows[name] for name in wanted]), strict=True))
    for name in ("reference", "retain"):
        if name in ready:
            ready[name], rows[name] = _apart(ready[name], rows[name], ready["forget"], rows["forget"], notes)
    count = predict_logits(loaded.model, ready["forget"].rows([0]), forward=loaded.forward).shape[1]
    classes = _class_names(job, loaded, rows, count, notes)
    for name in wanted:
        ready[name] = _numbered(ready[name], rows[name], classes, count, loaded)
    try:
        return JobSets(**ready, rows=rows, classes=tuple(classes), notes=notes)
    except OverlapError as error:
        raise error.at(
            remedy="leave those records out of the set or, where the records differ, see why they are the same to the "
            "model"
        ) from None


def read_train(job: Job, loaded: Format, reader: Reader) -> tuple[Samples, Rows, int]:
    """Read and prepare all of the training data, with labels, and no other set; tell the model's classes too."""
    rows = reader.given("train")
    if rows is None:
        raise InputError("[data] names no train; give all of the training data")
    (samples,) = _preparation(job, loaded)([rows])
    count = predict_logits(loaded.model, samples.rows([0]), forward=loaded.forward).shape[1]
    classes = _class_names(job, loaded, {"train": rows}, count, [])
    samples = _numbered(samples, rows, classes, count, loaded)
    if samples.labels is None:
        raise InputError("the training data have no labels, and models are trained on them; give the column of labels")
    return samples, rows, count


def read_unseen(job: Job, loaded: Format, reader: Reader, train: Rows) -> Samples | None:
    """Read and prepare the reference samples, less those that are training samples too; None where there are none.

    All of them are taken, whatever count says: what it draws depends on the samples to forget, which nobody knows yet.
    """
    source = job.data.reference
    if source is None or any(each.count is not None for each in _bases(job, source)):
        return None
    rows = reader.named("reference", source.model_copy(update={"count": None}))
    left = aligned(rows, train).without([train])
    return None if left is None else Samples(_preparation(job, loaded)([left])[0].inputs)


def _bases(job: Job, source: Source) -> list[Source]:
    """Return the sets that a set is taken of, one after the other."""
    found: list[Source] = []
    while source.of is not None:
        source = getattr(job.data, source.of)
        found.append(source)
    return found


def prepared_for(job: Job, other: Format, sets: JobSets) -> dict[str, Samples]:
    """Return the samples by name as another model takes them: a pipeline has preparing steps of its own."""
    parts = sets.parts
    if job.data.prepare is not None or type(other).prepare is Format.prepare:
        return parts
    made = _preparation(job, other)([sets.rows[name] for name in parts])
    return {name: Samples(new.inputs, parts[name].labels) for name, new in zip(parts, made, strict=True)}


def _apart(samples: Samples, rows: Rows, forget: Samples, forgotten: Rows, notes: list[str]) -> tuple[Samples, Rows]:
    """Leave out records that differ from every forgotten one, and yet are the same to the model as one of them.

    Records that are equal to a forgotten one are not left out here: they are a mistake, and the method says so.
    """
    if shape_of(samples.inputs) != shape_of(forget.inputs):
        return samples, rows
    ours, theirs = content_keys(samples, forget)
    known = set(theirs)
    same = np.array([key in known for key in ours], dtype=bool) & rows.apart_from([forgotten])
    if not same.any() or same.all():
        return samples, rows
    left = np.flatnonzero(~same)
    notes.append(f"{same.sum()} {rows.name} samples are the same to the model as forgotten ones, and are left out")
    return samples.rows(left), rows.take(left)


def _preparation(job: Job, loaded: Format) -> Callable[[list[Rows]], list[Samples]]:
    own = find(job.data.prepare, "[data] prepare") if job.data.prepare else None

    def prepared(parts: list[Rows]) -> list[Samples]:
        records = [part.content for part in parts if isinstance(part.content, Records)]
        by_format = iter(loaded.prepare(records) or [] if own is None and records else [])
        return [_samples(part, own, job, by_format) for part in parts]

    return prepared


def _samples(part: Rows, own: Callable[..., Any] | None, job: Job, by_format: Any) -> Samples:
    secret = part.name == "forget"
    if isinstance(part.content, Samples):
        return part.content
    if own is not None:
        key = f"[data] prepare = {job.data.prepare!r} on {part.name}"
        made = call(own, key, part.content, secret=secret)
        found: Samples = call(Samples.read, key, made, part.name, secret=secret)
    else:
        made = next(by_format, None)
        found = _plain(part.content) if made is None else Samples.read(made, part.name)
    if len(found) != len(part):
        raise InputError(f"{part.name}: {len(part)} records became {len(found)} samples, expected one for each")
    return found


def _plain(records: Records) -> Samples:
    if records.kind == "text":
        raise InputError(
            "the records are text, and nothing says how the model takes it; name a function that turns records into "
            'inputs: prepare = "package.module:function" in [data]'
        )
    samples = records.samples()
    if records.kind == "image" and isinstance(samples.inputs, torch.Tensor):
        return Samples(samples.inputs.float() / 255, samples.labels)
    return samples


def _class_names(job: Job, loaded: Format, rows: dict[str, Rows], count: int, notes: list[str]) -> list[str]:
    if job.data.classes is not None:
        if len(set(job.data.classes)) != count:
            raise InputError(
                f"[data] classes has {len(set(job.data.classes))} names, but the model has {count} classes"
            )
        return list(job.data.classes)
    if loaded.classes is not None and len(loaded.classes) == count:
        return [str(name) for name in loaded.classes]
    # References and shadows may be of other classes, and so may what is to be forgotten.
    known = [rows[name].content for name in ("train", "test", "retain") if name in rows]
    tables = [records for records in known if isinstance(records, Records) and records.names]
    named = {name for records in tables if records.by_name for name in records.names}
    if named and len(named) == count:
        notes.append("labels are names: classes were numbered in alphabetical order (say otherwise with classes =)")
        return sorted(named)
    if named:
        return [str(at) for at in range(count)]
    longest = max((records.names for records in tables), key=len, default=())
    return [longest[at] if at < len(longest) else str(at) for at in range(count)]


def _numbered(samples: Samples, part: Rows, classes: list[str], count: int, loaded: Format) -> Samples:
    """Give samples the class numbers of the model, where their records have labels and they have none yet."""
    records = part.content
    if not isinstance(records, Records):
        return _checked(samples, count, part.name)
    if records.labels is None:
        return _checked(samples, count, part.name)
    if records.by_name:
        if part.name not in _LABELLED and not set(records.names) <= set(classes):
            return Samples(samples.inputs)
        return Samples(samples.inputs, torch.from_numpy(_by_name(records, classes, count, part.name)))
    if samples.labels is None or loaded.classes is not None:
        numbers = records.labels
        if loaded.classes is not None and loaded.classes.dtype.kind in "iu":
            if part.name not in _LABELLED and not np.isin(numbers, loaded.classes).all():
                return Samples(samples.inputs)
            numbers = _by_value(records.labels, loaded.classes, part.name)
        samples = Samples(samples.inputs, torch.from_numpy(np.asarray(numbers, dtype=np.int64)))
    return _checked(samples, count, part.name)


def _by_name(records: Records, classes: list[str], count: int, name: str) -> Array:
    places = {each: at for at, each in enumerate(classes)}
    unknown = [each for each in records.names if each not in places]
    if unknown:
        raise InputError(
            f"the labels of {name} are names, and {len(unknown)} of them are not among the model's {count} classes, or "
            "the sets hold names of only some classes, so that their numbers are not known; use class numbers"
        )
    return np.array([places[each] for each in records.names], dtype=np.int64)[records.labels]


def _by_value(labels: Array, known: Array, name: str) -> Array:
    if not np.isin(labels, known).all():
        wrong = int(np.sum(~np.isin(labels, known)))
        raise InputError(f"{wrong} labels of {name} are not among the model's {len(known)} classes; correct them")
    return np.searchsorted(known, labels)


def _checked(samples: Samples, count: int, name: str) -> Samples:
    labels = samples.labels
    if labels is not None and (int(labels.min()) < 0 or int(labels.max()) >= count):
        if name not in _LABELLED:
            return Samples(samples.inputs)
        raise InputError(
            f"the labels of {name} run from {int(labels.min())} to {int(labels.max())}, but the model's {count} "
            f"classes are 0 to {count - 1}; correct the labels"
        )
    return samples
