"""The sets of a job as a model takes them, and what of each is used for what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from forsaken.data.duplicates import content_keys
from forsaken.data.nest import shape_of
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import InputError
from forsaken.jobs.choosing import aligned, choose
from forsaken.jobs.code import call, find
from forsaken.jobs.formats import Format
from forsaken.jobs.rows import STRANGERS, Reader, Rows
from forsaken.jobs.settings import Job, Source
from forsaken.models.logits import predict_logits
from forsaken.types import Array

# Whose labels must be the model's classes; others may have classes of their own, and then nobody reads them.
_LABELLED = ("retain", "kept", "test", "train")


@dataclass(frozen=True, slots=True)
class Sets:
    """Everything that a run reads, as samples.

    Attributes
    ----------
    forget, reference, retain : Samples
        What the method gets; the last two may be None.
    kept : Samples or None
        Training samples that are neither forgotten nor retained, to see whether they were kept.
    test : Samples or None
        Labelled samples for the accuracy; those drawn as references are not among them.
    members, nonmembers : Samples or None
        Of the oracle's shadow model.
    rows : dict of str to Rows
        The rows behind the sets, the training data too.
    classes : tuple of str
        The names of the classes, in the order of the logits.
    notes : list of str
        What was done in place of something that was not given.
    strangers : Samples or None
        Of an audit: samples like the forgotten ones that the model was never trained on.
    """

    forget: Samples
    reference: Samples | None
    retain: Samples | None
    kept: Samples | None
    test: Samples | None
    members: Samples | None
    nonmembers: Samples | None
    rows: dict[str, Rows]
    classes: tuple[str, ...]
    notes: list[str] = field(default_factory=list)
    strangers: Samples | None = None


def read_sets(job: Job, loaded: Format, reader: Reader, *, audit: bool = False) -> Sets:
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
    parts = {name: ready.get(name) for name in ("reference", "retain", "kept", "test", "members", "nonmembers")}
    parts["strangers"] = ready.get(STRANGERS)
    return Sets(forget=ready["forget"], **parts, rows=rows, classes=tuple(classes), notes=notes)


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


def prepared_for(job: Job, other: Format, sets: Sets) -> Sets:
    """Return the sets as another model takes them: one with steps of its own before the classifier prepares anew."""
    if job.data.prepare is not None or type(other).prepare is Format.prepare:
        return sets
    names = [name for name in ("forget", "kept", "test", "reference", "members", "nonmembers") if name in sets.rows]
    made = _preparation(job, other)([sets.rows[name] for name in names])
    labels = {name: getattr(sets, name).labels for name in names}
    found: dict[str, Any] = {name: Samples(new.inputs, labels[name]) for name, new in zip(names, made, strict=True)}
    return replace(sets, **found)


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
