"""The sets of a job as a model takes them, and what of each is used for what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from forsaken._random import generator
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import InputError
from forsaken.jobs.code import call, find
from forsaken.jobs.formats.base import Format
from forsaken.jobs.rows import Reader, Rows
from forsaken.jobs.settings import Job
from forsaken.models.logits import predict_logits

Array = np.ndarray[Any, Any]

_JUDGED = 2000  # training rows, at most, that tell whether what should be kept was kept
_RETAIN_SHARE, _RETAIN_LEAST = 0.01, 50  # of the training data, where no retain set is named
# Whose labels must be the model's classes; others may have classes of their own, and then nobody reads them.
_LABELLED = ("retain", "kept", "test")


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


def read_sets(job: Job, loaded: Format, reader: Reader) -> Sets:
    """Read, choose and prepare every set that the job names."""
    rows = {name: found for name in job.data.sets if (found := reader.given(name)) is not None}
    if job.oracle is not None:
        for name in ("members", "nonmembers"):
            source = getattr(job.oracle, name)
            if source is not None:
                rows[name] = reader.named(name, source)
    notes: list[str] = []
    seed = job.method.seed
    if "retain" not in rows and "train" in rows:
        drawn = _retain(rows["train"], rows["forget"], seed)
        if drawn is not None:
            rows["retain"] = drawn
            notes.append(f"no retain samples were named: {len(drawn)} were drawn from the training data")
    if "train" in rows:
        kept = _kept(rows, seed)
        if kept is not None:
            rows["kept"] = kept
    if "test" in rows:
        rows |= _judged_test(rows, notes)
    wanted = [name for name in rows if name != "train"]
    prepare = _preparation(job, loaded)
    ready = dict(zip(wanted, prepare([rows[name] for name in wanted]), strict=True))
    count = predict_logits(loaded.model, ready["forget"].rows([0]), forward=loaded.forward).shape[1]
    classes = _class_names(loaded, rows, count)
    for name in wanted:
        ready[name] = _numbered(ready[name], rows[name], classes, count, loaded)
    parts = {name: ready.get(name) for name in ("reference", "retain", "kept", "test", "members", "nonmembers")}
    return Sets(forget=ready["forget"], **parts, rows=rows, classes=tuple(classes), notes=notes)


def prepared_for(job: Job, other: Format, sets: Sets) -> Sets:
    """Return the sets as another model takes them: one with steps of its own before the classifier prepares anew."""
    if job.data.prepare is not None or type(other).prepare is Format.prepare:
        return sets
    names = [name for name in ("forget", "kept", "test", "reference", "members", "nonmembers") if name in sets.rows]
    made = _preparation(job, other)([sets.rows[name] for name in names])
    labels = {name: getattr(sets, name).labels for name in names}
    found: dict[str, Any] = {name: Samples(new.inputs, labels[name]) for name, new in zip(names, made, strict=True)}
    return replace(sets, **found)


def _retain(train: Rows, forget: Rows, seed: int) -> Rows | None:
    free = train.apart_from([forget])
    if not free.any():
        return None
    # At most half, or nothing would be left to see what was kept.
    count = min(max(_RETAIN_LEAST, int(len(train) * _RETAIN_SHARE)), max(1, int(free.sum()) // 2))
    order = generator(seed, 31).permutation(len(train))
    return train.take(np.sort(order[free[order]][:count]), "retain")


def _kept(rows: dict[str, Rows], seed: int) -> Rows | None:
    others = [rows[name] for name in ("forget", "retain") if name in rows]
    left = rows["train"].without(others)
    if left is None:
        return None
    return left.take(np.sort(generator(seed, 32).permutation(len(left))[:_JUDGED]), "kept")


def _judged_test(rows: dict[str, Rows], notes: list[str]) -> dict[str, Rows]:
    """Return the test set without what the method is given of it: on those rows no accuracy is honest."""
    used = [rows[name] for name in ("forget", "reference", "retain") if name in rows]
    left = rows["test"].without(used)
    if left is None:
        raise InputError(
            "every test sample is also a forget, reference or retain sample, so none is left to measure the accuracy "
            "on; name other ones"
        )
    gone = len(rows["test"]) - len(left)
    if gone:
        notes.append(f"{gone} test samples are also given to the method, and are left out of the test")
    return {"test": left}


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


def _class_names(loaded: Format, rows: dict[str, Rows], count: int) -> list[str]:
    if loaded.classes is not None and len(loaded.classes) == count:
        return [str(name) for name in loaded.classes]
    # References and shadows may be of other classes, and so may what is to be forgotten.
    known = [rows[name].content for name in ("train", "test", "retain") if name in rows]
    tables = [records for records in known if isinstance(records, Records) and records.names]
    named = {name for records in tables if records.by_name for name in records.names}
    if named:
        return sorted(named) if len(named) == count else [str(at) for at in range(count)]
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
