"""A job's table of references: made from all of the training data, added to, and told about."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forsaken._keys import key_file, key_warning, read_record_key
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import ForsakenError, InputError, ModelError, OutputError, SettingsError
from forsaken.jobs.certificate import file_hash
from forsaken.jobs.code import inherited
from forsaken.jobs.evidence import Refit, training_of
from forsaken.jobs.files import inputs_of
from forsaken.jobs.formats import PROGRAM, SKOPS, Format, load_model
from forsaken.jobs.output import held
from forsaken.jobs.references import (
    absent,
    found_place,
    key_place,
    owed_words,
    place_of,
    settings_of,
    table_for,
    unfinished,
)
from forsaken.jobs.rows import Reader, Rows
from forsaken.jobs.sets import read_train, read_unseen
from forsaken.jobs.settings import LARGEST_SEED, NAME, Job
from forsaken.models.logits import as_module, told
from forsaken.models.train import Training
from forsaken.models.weights import fingerprint
from forsaken.references.curvature import Curvature
from forsaken.references.store import save, write_table
from forsaken.references.table import References
from forsaken.types import Array, Progress, Tick, silent

REQUESTS = (1, 10, 100)  # over which the cost of a table is spread, to show
_RECIPE = "recipe = { epochs = 20, batch_size = 64, learning_rate = 1e-3 }"
_ANY = bytes(32)  # what a table says of itself needs no key


class RefitRows:
    """Fits an estimator like one that is there on some rows of the data; its name is that of the estimator's file."""

    def __init__(self, refit: Refit, data: Samples, name: str) -> None:
        self.refit, self.data = refit, data
        self.__qualname__ = f"refit {name}"  # so that a fit which goes on takes no other estimator's folds for its own

    def __call__(self, rows: Array, steps: int | None, seed: int) -> Any:  # noqa: ARG002 (it is fitted to the end)
        """Return a new estimator that has learnt these rows."""
        part, known = self.data.rows(rows), len(self.refit.estimator.classes_)
        learnt = 0 if part.labels is None else len(np.unique(part.labels.numpy()))
        if learnt < known:
            raise InputError(
                f"without one fold the training data have {learnt} of the {known} classes, since the others are all in "
                "that fold; give more rows of them, or more folds, or leave group out"
            )
        return self.refit(part, seed)


def fit_table(job: Job, *, engine: str = "local", force: bool = False, progress: Progress = silent) -> dict[str, Any]:
    """Train a model for each fold without it, write the table and its key, and return what there is to know about it.

    Only the model, the training data, the reference samples and the recipe are read. A fit that was killed goes on,
    where networks or estimators were finished and none are kept. A table is replaced only with `force`.
    """
    settings, path = settings_of(job), place_of(job)
    _check_trainable(job)
    key, notes = _key(job, path)
    _check_free(job, path, force)
    with _workplace(path) as place, inherited(job.folder), _own_words():
        loaded, samples, rows, _, reader = _read(job, progress)
        table = References.fit(
            _training(job, loaded, samples),
            samples,
            settings.folds,
            _groups(job, rows),
            seed=settings.seed,
            model=loaded.model,
            views=settings.views,
            view=settings.view,
            unseen=read_unseen(job, loaded, reader, rows),
            keep_models=settings.keep_models,
            key=key,
            forward=loaded.forward,
            engine=engine,
            folder=place,
            progress=progress,
        )
        progress(Tick("write the table", 0, 1))
        (save if job.output.record_key is None else write_table)(table, path)
        progress(Tick("write the table", 1, 1))
        for left in place.iterdir():  # of other settings, from fits that were never finished
            if left.suffix != ".lock":
                left.unlink()
    return _facts(table, path) | {"key": str(key_place(job)), "group": settings.group, "notes": notes}


def extend_table(job: Job, *, progress: Progress = silent) -> dict[str, Any]:
    """Add the training rows that are not in the table yet, and return what that cost and the table as it is now.

    Where rows came in, or the curvature is not that of the model, it is measured anew.
    """
    settings, path = settings_of(job), found_place(job)
    notes: list[str] = []
    with _workplace(path), inherited(job.folder), _own_words():
        loaded, samples, rows, classes, _ = _read(job, progress)
        table = table_for(job, loaded, classes).table
        new = absent(table, samples)
        groups = _groups(job, rows)
        _check_extension(job, table, len(new), len(samples))
        before, start = table.origin.costs, time.perf_counter()
        if len(new):
            if table.forgotten:
                notes.append(
                    f"{table.forgotten} rows were forgotten and left this table: where [data] train still holds them, "
                    "they are in the table again now, and are as good as not forgotten"
                )
            old = samples.rows(np.setdiff1d(np.arange(len(samples)), new))
            if not table.models:
                _check_trainable(job)
            table.extend(
                samples.rows(new),
                None if groups is None else [groups[at] for at in new],
                train=None if table.models else _training(job, loaded, old),
                old=old,
                seed=(settings.seed + 1) % (LARGEST_SEED + 1),
                progress=progress,
            )
        spent = time.perf_counter() - start
        own = table.curvature is not None and table.curvature.weights == fingerprint(as_module(loaded.model))
        if len(new) or not own:
            table.curvature = Curvature.fit(loaded.model, samples, forward=loaded.forward, progress=progress)
            notes.append("the curvature was measured for the model as it is now")
            progress(Tick("write the table", 0, 1))
            write_table(table, path)
            progress(Tick("write the table", 1, 1))
    cost = {
        "added": len(new),
        "added_trainings": table.origin.costs.trainings - before.trainings,
        "added_seconds": spent if len(new) else 0.0,
    }
    return _facts(table, path) | cost | {"notes": [*notes, *_owed(table)]}


def show_table(path: Path) -> dict[str, Any]:
    """Return what there is to know about a table: that of a job file, or a file itself. No key is needed."""
    place = path
    if path.suffix.lower() == Path(NAME).suffix:
        from forsaken.jobs.reading import read_job  # noqa: PLC0415 (only where a job is named)

        place = place_of(read_job(path))
    table = References.load(place, key=_ANY)
    return _facts(table, place) | {"notes": _owed(table)}


def _facts(table: References, path: Path) -> dict[str, Any]:
    costs = table.origin.costs
    return {
        "file": str(path),
        **table.about(),
        "break_even": costs.break_even(),
        "seconds_a_request": {str(count): costs.of_a_request(count, 0.0) for count in REQUESTS},
    }


def _owed(table: References) -> list[str]:
    return [owed_words(table.owed)] if table.owed else []


def _read(job: Job, progress: Progress) -> tuple[Format, Samples, Rows, int, Reader]:
    if job.data.train is None:
        raise _lacking(job, ["[data] train is missing, expected all of the training data"])
    progress(Tick("read the model", 0, 1))
    loaded = load_model(job)
    progress(Tick("read the model", 1, 1))
    progress(Tick("read the data", 0, 1))
    reader = Reader(job, progress)
    found = read_train(job, loaded, reader)
    progress(Tick("read the data", 1, 1))
    return (loaded, *found, reader)


def _check_trainable(job: Job) -> None:
    """Raise every reason at once why no model can be trained like the job's."""
    weights, source = job.resolve(job.model.weights), job.data.train
    found = []
    if weights.is_dir() or weights.suffix.lower() in PROGRAM:
        what = "the folder of a Hugging Face model" if weights.is_dir() else "a .pt2 program"
        found.append(
            f"[model] weights is {what}, and nothing in it says how to train another from the start; make the table in "
            "Python, with forsaken.References.fit and a function that trains"
        )
    elif weights.suffix.lower() not in SKOPS and job.audit.recipe is None:
        found.append(f"[audit] recipe is missing, expected how the model was trained, such as {_RECIPE}")
    if source is None:
        found.append("[data] train is missing, expected all of the training data")
    elif source.count is not None:
        found.append("[data] train.count takes a part of the training data, expected all of them; leave count out")
    if found:
        raise _lacking(job, found)


def _lacking(job: Job, problems: list[str]) -> SettingsError:
    listed = "".join(f"\n  - {problem}" for problem in problems)
    return SettingsError(f"{job.path}: no references can be trained as the job stands{listed}")


def _check_free(job: Job, path: Path, force: bool) -> None:
    """Make sure before any work that the table can be written where it belongs, and takes nobody's place."""
    others = {each.resolve() for each in inputs_of(job.model_copy(update={"references": None}))}
    if path.resolve() in others:
        raise OutputError(f"[references] file is {path}, which the job reads for something else; give another name")
    if path.is_dir():
        raise OutputError(f"{path} is a folder, expected the name of a file for the table of references")
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {path}: there is no folder {path.parent}; make it, or give another name")
    if os.path.lexists(path) and not force:
        raise OutputError(
            f"{path} is there already and is not overwritten; add new rows to it with forsaken references extend, give "
            "another name, or replace it with --force"
        )


def _key(job: Job, path: Path) -> tuple[bytes | None, list[str]]:
    """Return the key that is there for a new table (None where a new one is to be made), and what to warn of."""
    beside = key_file(path)
    there = os.path.lexists(beside)
    if job.output.record_key is None:
        return (read_record_key(beside) if there else None), []
    named = job.resolve(job.output.record_key)
    key, warning = read_record_key(named), key_warning(named)
    if there and read_record_key(beside) != key:
        raise SettingsError(
            f"{beside} holds another key than {named}, the [output] record_key, which is to be the table's; move the "
            "former away"
        )
    return key, [] if warning is None else [warning]


def _check_extension(job: Job, table: References, new: int, count: int) -> None:
    group, path = settings_of(job).group, place_of(job)
    if (group is None) != (table.entries.groups is None):
        found = "names no group" if group is None else f"group is {group!r}"
        raise SettingsError(
            f"[references] {found}, but the folds of {path} were drawn by {table.origin.by}; say what was said when it "
            "was made, or make a new one with: forsaken references fit"
        )
    if new == count and len(table):
        raise InputError(
            f"none of the {count} rows of [data] train is in {path}, so that these are other data, or prepared in "
            f"another way, or {key_place(job)} is not the key of this table; put right which it is"
        )


def _groups(job: Job, rows: Rows) -> list[Any] | None:
    name, content = settings_of(job).group, rows.content
    if name is None:
        return None
    if not isinstance(content, Records) or name not in content.columns:
        raise InputError(
            f"[references] group is {name!r}, which is no column of [data] train; name one that it has (.csv and "
            ".parquet have columns), or leave group out"
        )
    return list(content.columns[name].tolist())


def _training(job: Job, loaded: Format, data: Samples) -> Training | RefitRows:
    found = training_of(job, loaded)
    if found is None:
        raise _lacking(job, [f"[audit] recipe is missing, such as {_RECIPE}"])
    if isinstance(found, Training):
        return found
    return RefitRows(found, data, file_hash(job.resolve(job.model.weights)))


@contextmanager
def _workplace(path: Path) -> Iterator[Path]:
    """Give the folder beside a table where unfinished work lies, to this process alone; it goes once it is empty."""
    place = unfinished(path)
    if place.is_symlink():
        raise OutputError(f"{place} is a link, expected a folder for unfinished work; remove the link")
    try:
        place.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make the folder {place}: {error.strerror}; does the folder above exist?") from error
    try:
        with held(place):
            yield place
    finally:
        with suppress(OSError):  # not empty: the next fit goes on there
            place.rmdir()


@contextmanager
def _own_words() -> Iterator[None]:
    """Turn what a model of the user's raises while it is trained into an error in house words."""
    try:
        yield
    except ForsakenError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ModelError("there is not enough memory to train the models; use a smaller batch, or a GPU") from error
    except Exception as error:  # the model is the user's, and may raise anything
        raise ModelError(f"the model failed while it was trained: {told(error)}") from error
