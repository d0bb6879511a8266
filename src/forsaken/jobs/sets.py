"""From a job file to the samples of a request: which rows play which role, and what the model takes for them."""

from __future__ import annotations

from collections.abc import Collection
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
from forsaken.jobs.configuration import Job, Source, trains_again
from forsaken.jobs.formats import Format
from forsaken.jobs.rows import NONMEMBERS, Reader, Rows, comparable
from forsaken.models.logits import predict_logits
from forsaken.sets import ROLES, Sets
from forsaken.types import Array
from forsaken.unlearning.stops import STOPS, override, stop_strange_inputs

_JUDGED = 2000  # training rows, at most, that a run looks at to see what was kept
_RETAIN_SHARE, _RETAIN_LEAST = 0.01, 50  # of the training data, where no retain set is named
_RETAIN_BESIDE_REFERENCES, _RETAIN_MOST = 0.1, 1000  # small networks hold them in place beside the curvature
# Whose labels must be the model's classes; samples of other sets may have classes of their own, and lose their labels.
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
    rows, notes = _choose(job, reader, audit=audit)
    wanted = [name for name in rows if name != "train"]
    ready = dict(zip(wanted, _prepared(job, loaded, [rows[name] for name in wanted]), strict=True))
    for name in ("reference", "retain"):
        if name not in ready:
            continue
        # Rows that are equal to a forgotten one stay, as a mistake that `Sets` reports.
        same = _same_to_model(ready[name], ready["forget"]) & rows[name].apart_from([rows["forget"]])
        if not same.all():
            rows[name] = _left(rows[name], same, "the same to the model as forgotten ones", notes)
            ready[name] = ready[name].rows(np.flatnonzero(~same))
    allow = STOPS if audit else job.output.allow
    trained: dict[str, Samples] = {
        name: ready[name] for name in ("kept", "retain", "test", "reference") if name in ready
    }
    stop_strange_inputs(ready["forget"], trained, allow)
    classes = _class_names(job, loaded, ready["forget"], rows, notes)
    strict = _LABELLED if "unknown-labels" in allow else (*_LABELLED, "forget")
    ready = {name: _labelled(samples, rows[name], classes, loaded, strict) for name, samples in ready.items()}
    if not audit:
        _stop_unknown_records(rows, allow)
    try:
        return JobSets(**ready, rows=rows, classes=tuple(classes), notes=notes)
    except OverlapError as error:
        remedy = (
            "leave those records out of the set or, where the records differ, see why they are the same to the model"
        )
        raise error.with_remedy(remedy) from None


def read_train(job: Job, loaded: Format, reader: Reader) -> tuple[Samples, Rows, int]:
    """Read and prepare all of the training data, with labels, and no other set; return the number of classes too."""
    rows = reader.given("train")
    if rows is None:
        raise InputError("[data] names no train", remedy="give all of the training data")
    (samples,) = _prepared(job, loaded, [rows])
    classes = _class_names(job, loaded, samples, {"train": rows}, [])
    samples = _labelled(samples, rows, classes, loaded, _LABELLED)
    if samples.labels is None:
        raise InputError("the training data have no labels to train models with", remedy="give the column of labels")
    return samples, rows, len(classes)


def read_unseen(job: Job, loaded: Format, reader: Reader, train: Rows) -> Samples | None:
    """Read and prepare the reference samples, less those that are training samples too; None where there are none.

    All of them are taken, whatever count says: what it draws depends on the samples to forget, which nobody knows yet.
    """
    source = job.data.reference
    if source is None or _is_drawn_from(job, source):
        return None
    rows = reader.named("reference", source.model_copy(update={"count": None}))
    left = _aligned(rows, train).without([train])
    return None if left is None else Samples(_prepared(job, loaded, [left])[0].inputs)


def _is_drawn_from(job: Job, source: Source) -> bool:
    """Return whether a set is taken of one that is itself drawn at random."""
    base = job.data.sets[source.of] if source.of is not None else None
    return base is not None and (base.count is not None or _is_drawn_from(job, base))


def prepared_for(job: Job, other: Format, sets: JobSets) -> dict[str, Samples]:
    """Return the samples by name as another model takes them: a pipeline has preparing steps of its own."""
    parts = sets.parts
    if job.data.prepare is not None or type(other).prepare is Format.prepare:
        return parts
    made = _prepared(job, other, [sets.rows[name] for name in parts])
    return {name: Samples(new.inputs, parts[name].labels) for name, new in zip(parts, made, strict=True)}


def prepared_again(job: Job, other: Format, sets: JobSets) -> JobSets:
    """Return the sets as another model takes them, less the references and retain samples that it cannot tell apart.

    Those are the ones that are the same to that model as a forgotten one; an `OverlapError` where all of a set are.
    """
    parts, rows = prepared_for(job, other, sets), dict(sets.rows)
    for name in ("reference", "retain"):
        if name in parts and not (same := _same_to_model(parts[name], parts["forget"])).all():
            left = np.flatnonzero(~same)
            parts[name], rows[name] = parts[name].rows(left), rows[name].take(left)
    changed: dict[str, Any] = {**parts, "rows": rows}
    return replace(sets, **changed)


def prepared_rows(job: Job, loaded: Format, rows: Rows) -> Samples:
    """Return what the model takes for rows of one set."""
    return _prepared(job, loaded, [rows])[0]


def _choose(job: Job, reader: Reader, *, audit: bool) -> tuple[dict[str, Rows], list[str]]:
    """Return the rows of every set, by name, and what was done in place of something that the job does not give.

    Beside the sets that the job names there are "kept", training rows that are neither forgotten nor retained, and
    "retain", where there are training data to draw it from. Rows of reference, test and nonmembers that the model was
    trained on are left out, and so are those of test and nonmembers that the method is given: no number measured on
    them would be honest.
    """
    notes: list[str] = []
    rows = {name: reader.named(name, source) for name, source in job.data.sets.items()}
    if job.oracle is not None and job.oracle.members is not None and job.oracle.nonmembers is not None:
        rows["shadow_members"] = reader.named("[oracle] members", job.oracle.members)
        rows["shadow_nonmembers"] = reader.named("[oracle] nonmembers", job.oracle.nonmembers)
    if audit and job.audit.nonmembers is not None:
        rows["nonmembers"] = reader.named(NONMEMBERS, job.audit.nonmembers)
    base = rows.get("train", rows["forget"])
    rows = {name: _aligned(part, base) for name, part in rows.items()}
    forget, train = rows["forget"], rows.get("train")
    if train is not None:
        for name in (each for each in ("reference", "test", "nonmembers") if each in rows):
            # Rows that are to be forgotten stay, as a mistake that `Sets` reports.
            known = ~rows[name].apart_from([train]) & rows[name].apart_from([forget])
            rows[name] = _left(rows[name], known, "in the training data", notes)
        if "retain" not in rows and trains_again(job):
            if not audit and (free := np.flatnonzero(train.apart_from([forget]))).size:
                rows["retain"] = train.take(free, "retain")  # a new model learns from nothing else
        elif "retain" not in rows and (drawn := _retain(job, train, forget)) is not None:
            rows["retain"] = drawn
            notes.append(f"no retain samples were named: {len(drawn)} were drawn from the training data")
        left = train.without([rows[name] for name in ("forget", "retain") if name in rows])
        if left is not None:
            order = generator(job.method.seed, Purpose.JOB_JUDGED_KEPT).permutation(len(left))
            rows["kept"] = left.take(np.sort(order[: None if audit else _JUDGED]), "kept")
    given = [rows[name] for name in ("forget", "reference", "retain") if name in rows]
    for name in ("nonmembers", "test"):
        if name in rows:
            rows[name] = _left(rows[name], ~rows[name].apart_from(given), "also given to the method", notes)
    if "nonmembers" in rows and "test" in rows:
        used = ~rows["test"].apart_from([rows["nonmembers"]])
        rows["test"] = _left(rows["test"], used, f"also among {NONMEMBERS}", notes)
    return rows, notes


def _left(part: Rows, gone: Array, why: str, notes: list[str]) -> Rows:
    """Return a set without some rows, and note why; an error where none is left."""
    if gone.all():
        remedy = "name other ones"
        if part.name == NONMEMBERS:
            remedy += f", or split the reference set: one part for [data] reference, the rest for {NONMEMBERS}"
        raise InputError(f"every {part.name} sample is {why}, so none is left", field=part.name, remedy=remedy)
    if gone.any():
        notes.append(f"{gone.sum()} of {len(part)} {part.name} samples are {why}, and are left out")
    return part.take(np.flatnonzero(~gone))


def _aligned(part: Rows, model: Rows) -> Rows:
    """Return rows whose columns stand in the order of `model`'s: features are known by name, not by place."""
    own, wanted = part.content, model.content
    if not isinstance(own, Records) or not isinstance(wanted, Records) or not own.fields or not wanted.fields:
        return part
    if own.fields == wanted.fields:
        return part
    if set(own.fields) != set(wanted.fields):
        absent, more = sorted(set(wanted.fields) - set(own.fields)), sorted(set(own.fields) - set(wanted.fields))
        told = [f"lacks {absent[0]!r}"] if absent else []
        told += [f"has {more[0]!r} besides"] if more else []
        problem = f"the columns of {part.name} and {model.name} differ: {part.name} {' and '.join(told)}"
        raise InputError(problem, field=part.name, remedy="give both the same")
    order = [own.fields.index(name) for name in wanted.fields]
    return replace(part, content=replace(own, content=own.content[:, order], fields=wanted.fields))


def _retain(job: Job, train: Rows, forget: Rows) -> Rows | None:
    free = train.apart_from([forget])
    if not free.any():
        return None
    wanted = int(len(train) * _RETAIN_SHARE)
    if job.references is not None:
        wanted = max(wanted, min(int(len(train) * _RETAIN_BESIDE_REFERENCES), _RETAIN_MOST))
    # At most half, or nothing would be left to see what was kept.
    count = min(max(_RETAIN_LEAST, wanted), max(1, int(free.sum()) // 2))
    order = generator(job.method.seed, Purpose.JOB_DRAWN_RETAIN).permutation(len(train))
    return train.take(np.sort(order[free[order]][:count]), "retain")


def _same_to_model(samples: Samples, forget: Samples) -> Array:
    """Return which samples are the same inputs as a forgotten one."""
    if shape_of(samples.inputs) != shape_of(forget.inputs):
        return np.zeros(len(samples), dtype=bool)
    ours, theirs = content_keys(samples, forget)
    known = set(theirs)
    return np.array([key in known for key in ours], dtype=bool)


def _prepared(job: Job, loaded: Format, parts: list[Rows]) -> list[Samples]:
    """Return what the model takes for each set: by the job's own function, by the model's format, or as it is."""
    own = find(job.data.prepare, "[data] prepare") if job.data.prepare else None
    records = [part.content for part in parts if isinstance(part.content, Records)]
    made = iter(loaded.prepare(records) or [] if own is None and records else [])
    found = []
    for part in parts:
        if isinstance(part.content, Samples):
            samples = part.content
        elif own is not None:
            key = f"[data] prepare = {job.data.prepare!r} on {part.name}"
            returned = call(own, key, part.content, secret=True)  # whatever set it is: a text may quote a record
            samples = call(Samples.read, key, returned, part.name, secret=True)
        else:
            by_format = next(made, None)
            samples = _plain(part.content) if by_format is None else Samples.read(by_format, part.name)
        if len(samples) != len(part):
            problem = f"{part.name}: {len(part)} records became {len(samples)} samples"
            raise InputError(problem, field=part.name, expected="one for each")
        found.append(samples)
    return found


def _plain(records: Records) -> Samples:
    if records.kind == "text":
        raise InputError(
            "the records are text, and nothing says how the model takes it",
            field="prepare",
            remedy='name a function that turns records into inputs: prepare = "package.module:function" in [data]',
        )
    samples = records.samples()
    if records.kind == "image" and isinstance(samples.inputs, torch.Tensor):
        return Samples(samples.inputs.float() / 255, samples.labels)
    return samples


def _class_names(job: Job, loaded: Format, samples: Samples, rows: dict[str, Rows], notes: list[str]) -> list[str]:
    """Return the names of the classes, as many as the model has logits for a sample."""
    count = predict_logits(loaded.model, samples.rows([0]), forward=loaded.forward).shape[1]
    if job.data.classes is not None:
        if len(set(job.data.classes)) != count:
            problem = f"[data] classes has {len(set(job.data.classes))} names, but the model has {count} classes"
            raise InputError(problem, field="classes")
        return list(job.data.classes)
    if loaded.classes is not None and len(loaded.classes) == count:
        return [str(name) for name in loaded.classes]
    # References and shadows may be of other classes, and so may what is to be forgotten.
    known = [rows[name].content for name in ("train", "test", "retain") if name in rows]
    tables = [records for records in known if isinstance(records, Records) and records.names]
    named = {name for records in tables if records.by_name for name in records.names}
    if named and len(named) == count:
        notes.append(
            "labels are names, and the classes were numbered in alphabetical order; classes in [data] changes that"
        )
        return sorted(named)
    longest = () if named else max((records.names for records in tables), key=len, default=())
    return [*longest[:count], *_numbers(count)[len(longest) :]]


def _numbers(count: int) -> list[str]:
    return [str(at) for at in range(count)]


def _stop_unknown_records(rows: dict[str, Rows], allow: Collection[str]) -> None:
    """Raise an error if records to forget are not in the training data, where both can be compared."""
    forget, train = rows["forget"], rows.get("train")
    if train is None or "unknown-records" in allow or not comparable(forget.content, train.content):
        return
    absent = int(forget.apart_from([train]).sum())
    if absent:
        raise InputError(
            f"{absent} of {len(forget)} records to forget are not in [data] train",
            field="forget",
            expected="records that the model was trained on, as they stand there",
            remedy=f"name the rows by their ids, or give them in the same form; {override('unknown-records')}",
        )


def _labelled(samples: Samples, part: Rows, classes: list[str], loaded: Format, strict: Collection[str]) -> Samples:
    """Return samples whose labels are class numbers of the model, by the names or numbers in their records.

    Labels of the sets named in `strict` must be the model's; of other sets they are left out where one is not.
    """
    records, labels, own = part.content, samples.labels, loaded.classes
    expected, remedy = f"0 to {len(classes) - 1}", "correct the labels"
    if isinstance(records, Records) and records.labels is not None:
        numbers = records.labels
        if records.by_name:
            expected, remedy = "their names", "use class numbers, or name all classes in order: classes = in [data]"
            places = {name: at for at, name in enumerate(classes)}
            numbers = np.array([places.get(name, -1) for name in records.names])[numbers]
        elif own is not None and own.dtype.kind in "iu":
            expected = "the numbers that it was fitted on"
            numbers = np.where(np.isin(numbers, own), np.searchsorted(own, numbers), -1)
        if labels is None or records.by_name or own is not None:
            labels = torch.from_numpy(np.asarray(numbers, dtype=np.int64))
    if labels is None:
        return samples
    wrong = int(((labels < 0) | (labels >= len(classes))).sum())
    if part.name == "forget" and isinstance(records, Records) and records.by_name and classes == _numbers(len(classes)):
        strict = ()  # nobody said what the classes are called
    if wrong and part.name in strict:
        if part.name == "forget":
            remedy = f"{remedy}; {override('unknown-labels')}, which leaves all labels of the set out"
        problem = f"{wrong} of {len(part)} labels of {part.name} are none of the model's {len(classes)} classes"
        raise InputError(problem, field=part.name, expected=expected, remedy=remedy)
    return Samples(samples.inputs, None if wrong else labels)
