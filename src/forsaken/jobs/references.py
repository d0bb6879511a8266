"""A job's table of references: `forsaken references fit | show | extend`, and what a run does with the table."""

from __future__ import annotations

import copy
import os
import time
import warnings as python_warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn

from forsaken._files import make_folder, remove, remove_drafts
from forsaken._keys import key_file, key_warning, read_record_key, remove_empty_key, write_record_key
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import (
    DataNotFoundError,
    ForsakenError,
    InputError,
    ModelError,
    NotHeldOutError,
    OutputError,
    SettingsError,
)
from forsaken.jobs.after import extended_table, extension_of
from forsaken.jobs.certificate import Certificate, ReferenceTable, ReferenceWorth, file_hash
from forsaken.jobs.code import UserModel, call, find, inherited
from forsaken.jobs.configuration import LARGEST_SEED, NAME, Job, ReferenceSettings, method_of, read_job, target_of
from forsaken.jobs.formats import PROGRAM, SKOPS, EstimatorFile, Format, HuggingFaceFolder, load_model
from forsaken.jobs.output import CERTIFICATE, REFERENCES, REFERENCES_KEY, held, inputs_of
from forsaken.jobs.rows import Reader, Rows
from forsaken.jobs.sets import JobSets, read_train, read_unseen
from forsaken.models.logits import Forward, LinearModel, as_module
from forsaken.models.train import Training, steps_of, train
from forsaken.models.weights import fingerprint
from forsaken.progress import step
from forsaken.recipe import Recipe
from forsaken.references.curvature import Curvature
from forsaken.references.rows import as_keys, row_hashes
from forsaken.references.store import save, write_table
from forsaken.references.table import References
from forsaken.references.worth import GOAL, MOST
from forsaken.types import Array, Progress, Tick, silent
from forsaken.unlearning.forsaken.method import Forsaken

FOLDS = 4  # where nothing tells how many are needed
REQUESTS = (1, 10, 100)  # numbers of requests over which the cost of a table is spread, to show
SHARES = (0.1, 0.5)  # of the time of a training, that a request may take: it decides when a table pays
STAGE = "make the kept models forget"
_WARM_UP, _TIMED = 5, 20  # training steps: the first ones are many times slower than the rest
_SHORT = 5.0  # seconds; where the warm-up took longer, its own time is good enough
_RECIPE = "recipe = { epochs = 20, batch_size = 64, learning_rate = 1e-3 }"
_NO_KEY = bytes(32)  # the facts about a table can be read without its key
_TRAINING = UserModel("it was trained", memory="use a smaller batch, or a GPU")
_KEPT = UserModel("it was to forget", memory="use a GPU")


# --- how models like the job's are trained ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refit:
    """Fits estimators with the parameters of one that is there; labels are numbers in the order of its classes."""

    estimator: Any

    def __call__(self, samples: Samples, seed: int) -> Any:
        """Return a new estimator that has learnt the samples."""
        if samples.labels is None or not isinstance(samples.inputs, Tensor):
            raise InputError("an estimator learns from one matrix of inputs with labels; give the training data so")
        known, labels = np.asarray(self.estimator.classes_), samples.labels.numpy()
        learnt = len(np.unique(labels))
        if learnt < len(known):
            raise InputError(
                f"one model would learn {learnt} of the {len(known)} classes, since all rows of the others are left "
                "out of its training data (they are to be forgotten, or share a fold); give more rows of them, more "
                "folds or no group, or audit with the profile quick"
            )
        twin = clone(self.estimator)
        if "random_state" in twin.get_params():
            twin.set_params(random_state=seed)
        with python_warnings.catch_warnings():
            # The user's own estimator stopped there too, and the warning would come once a model.
            python_warnings.simplefilter("ignore", ConvergenceWarning)
            return twin.fit(samples.inputs.numpy(), known[labels])


def training_problems(job: Job, otherwise: str) -> list[SettingsError]:
    """Return every reason why no model can be trained like the job's; `otherwise` is what else the user can do."""
    weights, found = job.resolve(job.model.weights), []
    if weights.suffix.lower() in PROGRAM:
        problem = "[model] weights is a .pt2 program, and nothing in it says how to train another from the start"
        found.append(SettingsError(problem, field="weights", remedy=otherwise))
    elif weights.suffix.lower() not in SKOPS:
        if weights.is_dir() and job.model.base is None:
            problem = "[model] weights is the folder of a Hugging Face model, and nothing says what it was trained from"
            expected = 'base = "folder" in [model], or base = "config.json" for a training from random weights'
            found.append(SettingsError(problem, field="base", expected=expected, remedy=f"or {otherwise}"))
        if job.audit.recipe is None:
            expected = f"how the model was trained, such as {_RECIPE}"
            found.append(SettingsError("[audit] recipe is missing", field="recipe", expected=expected))
    if job.data.train is None:
        found.append(SettingsError("[data] train is missing", field="train", expected="all of the training data"))
    return found


def training_of(job: Job, loaded: Format) -> Training | Refit:
    """Return how models like the job's are trained; `training_problems` must have found no reason against it."""
    if isinstance(loaded, EstimatorFile):
        return Refit(loaded.model)
    if job.audit.recipe is None:
        raise SettingsError("[audit] recipe is missing", field="recipe")
    return Training(_builder(job, loaded), Recipe(**job.audit.recipe.model_dump()), job.model.device)


def _builder(job: Job, loaded: Format) -> Callable[[], nn.Module]:
    """Return what builds a network like the job's, before its training."""
    if isinstance(loaded, HuggingFaceFolder):
        return loaded.build
    if job.model.factory is None:
        raise SettingsError("[model] factory is missing", field="factory")
    return partial(call, find(job.model.factory, "[model] factory"), "[model] factory", **job.model.arguments)


def _training_by_rows(job: Job, loaded: Format, data: Samples) -> Any:
    """Return how models are trained on some rows of `data`, as `References.fit` takes it."""
    found = training_of(job, loaded)
    if isinstance(found, Training):
        return found

    def refit(rows: Array, steps: int | None, seed: int) -> Any:  # noqa: ARG001 (an estimator is fitted to the end)
        return found(data.rows(rows), seed)

    # A fit that goes on knows its finished folds by this name, and must not take another estimator's for its own.
    refit.__qualname__ = f"refit {file_hash(job.resolve(job.model.weights))}"
    return refit


def seconds_a_training(
    training: Training | Refit, data: Samples, rows: int, progress: Progress = silent, *, forward: Forward | None = None
) -> float:
    """Return about how long training one model on so many `rows` takes, from some steps on `data`."""

    def spent(steps: int) -> float:
        start = time.perf_counter()
        if isinstance(training, Training):
            recipe, device = training.recipe, training.device
            train(
                training.build,
                data,
                recipe,
                seed=0,
                forward=forward,
                device=device,
                steps=steps,
                progress=progress,
                stage="train for some steps",
            )
        else:
            training(data, 0)
        return time.perf_counter() - start

    first = spent(_WARM_UP)
    if not isinstance(training, Training):
        return first if first >= _SHORT else spent(_TIMED)
    # Building the network and moving the data take their time once, however many steps follow: two lengths tell apart.
    few = spent(_WARM_UP) if first < _SHORT else first
    many = spent(_WARM_UP + _TIMED) if first < _SHORT else None
    each = few / _WARM_UP if many is None else max(0.0, many - few) / _TIMED
    steps = training.recipe.epochs * steps_of(rows, training.recipe, training.build())
    return max(0.0, few - _WARM_UP * each) + each * steps


def without_table(job: Job) -> list[str]:
    """Return what a run that goes by the mean of strangers cannot claim, and how to do better where it can be done."""
    if job.references is not None or target_of(job) != "class-mean":
        return []
    possible = not training_problems(job, "")
    better = (
        f"this job has all that references need: add [references] and run forsaken references fit {job.path}"
        if possible
        else "with all training data in [data] train and a recipe in [audit] a table of references can be made, which "
        "takes each record to where a model that never saw it is"
    )
    return [
        'target = "class-mean" makes the forgotten records look like strangers on average; an attack that compares '
        f"record by record may still find them, and wrongly labelled ones may keep their label; {better}"
    ]


# --- where the table and its key are ---------------------------------------------------------------------------------


def settings_of(job: Job) -> ReferenceSettings:
    """Return what a job says about its table of references."""
    if job.references is None:
        raise SettingsError(f"{job.path} has no table [references]; add one, empty if the defaults will do")
    return job.references


def place_of(job: Job) -> Path:
    """Return where the table of references is, or is to be."""
    return job.resolve(settings_of(job).file)


def key_place(job: Job) -> Path:
    """Return where the key of the table is: where [output] record_key says, or else beside the table."""
    named = job.output.record_key
    return key_file(place_of(job)) if named is None else job.resolve(named)


def unfinished(path: Path) -> Path:
    """Return the folder beside a table where an unfinished fit keeps its finished folds."""
    return path.with_name(f".{path.name}.unfinished")


# --- the commands ----------------------------------------------------------------------------------------------------


def fit_table(job: Job, *, engine: str = "local", force: bool = False, progress: Progress = silent) -> dict[str, Any]:
    """Train one model for each fold without that fold, write the table and its key, and return the table's facts.

    Only the model, the training data, the reference samples and the recipe are read. A fit that was killed goes on
    with its finished folds, unless models are kept. A table that is there is replaced only with `force`.
    """
    settings, path = settings_of(job), place_of(job)
    _check_trainable(job)
    key, notes = _key(job, path)
    _check_free(job, path, force)
    with _workplace(path) as place, inherited(job.folder), _TRAINING:
        loaded, samples, rows, _, reader = _read(job, progress)
        unseen, folds = read_unseen(job, loaded, reader, rows), settings.folds
        if folds == "auto" and unseen is None:
            folds = FOLDS
            notes.append(
                f"there are {FOLDS} folds, as [data] has no reference samples that would tell how many are needed"
            )
        table = References.fit(
            _training_by_rows(job, loaded, samples),
            samples,
            folds,
            _groups(job, rows),
            seed=settings.seed,
            model=loaded.model,
            budget=settings.budget if folds == "auto" else None,
            views=settings.views,
            view=settings.view,
            unseen=unseen,
            keep_models=settings.keep_models,
            key=key,
            forward=loaded.forward,
            engine=engine,
            folder=place,
            progress=progress,
        )
        with step(progress, "write the table"):
            (save if job.output.record_key is None else write_table)(table, path)
        # The table is on the disk now: these folds, and those of fits that were never finished, are no longer needed.
        for left in place.iterdir():
            if left.suffix != ".lock":
                remove(left)
    notes += shortfall(table)
    return _facts(table, path) | {"key": str(key_place(job)), "group": settings.group, "notes": notes}


def extend_table(job: Job, after: Path | None = None, *, progress: Progress = silent) -> dict[str, Any]:
    """Add the training rows that are not in the table yet, and return the cost and the table's facts.

    The curvature is measured again where rows were added or where it is of other weights than the model's. A table that
    a certificate states is never changed: with `after`, the folder of a request, which `job` is to follow, the longer
    table is written beside that folder, where `--after` finds it.
    """
    settings, path = settings_of(job), place_of(job)
    check_table(job)
    goal = path if after is None else extended_table(after, Certificate.read(after / CERTIFICATE))
    if goal.name == REFERENCES and (goal.parent / CERTIFICATE).is_file():
        raise OutputError(
            f"{goal} is as the certificate beside it states, which would hold no more if rows were added",
            remedy=f"run {extension_of(job)}, which writes a table beside that folder, or name a copy of the table and "
            "of its key in [references] file",
        )
    notes: list[str] = []
    with _workplace(goal), inherited(job.folder), _TRAINING:
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
                    "they are in the table again, as if never forgotten; to undo this, take them out of train and "
                    "extend the table as it was before"
                )
            old = samples.rows(np.setdiff1d(np.arange(len(samples)), new))
            if not table.models:
                _check_trainable(job)
            table.extend(
                samples.rows(new),
                None if groups is None else [groups[at] for at in new],
                train=None if table.models else _training_by_rows(job, loaded, old),
                old=old,
                seed=(settings.seed + 1) % (LARGEST_SEED + 1),
                progress=progress,
            )
        spent = time.perf_counter() - start
        if len(new) or table.curvature is None or not _is_of(table.curvature, loaded.model):
            table.curvature = Curvature.fit(loaded.model, samples, forward=loaded.forward, progress=progress)
            notes.append("the curvature was measured for the model as it is now")
            with step(progress, "write the table"):
                (write_table if job.output.record_key else save)(table, goal)
            path = goal
    cost = {
        "added": len(new),
        "added_trainings": table.origin.costs.trainings - before.trainings,
        "added_seconds": spent if len(new) else 0.0,
    }
    return _facts(table, path) | cost | {"notes": [*notes, *shortfall(table), *debts(table)]}


def show_table(path: Path) -> dict[str, Any]:
    """Return the facts about a table: that of a job file, or a file itself. No key is needed."""
    place = place_of(read_job(path)) if path.suffix.lower() == Path(NAME).suffix else path
    table = References.load(place, key=_NO_KEY)
    return _facts(table, place) | {"notes": [*shortfall(table), *debts(table)]}


def when_it_pays(table: References, seconds: float) -> list[str]:
    """Return a sentence on whether a table pays for requests that take so many seconds each, or nothing."""
    costs = table.origin.costs
    if not costs.trainings:
        return []
    took = f"forgetting took {seconds:.1f} s, and retraining takes about {costs.each:.1f} s"
    first = costs.break_even(seconds)
    if first is None:
        return [f"{took}: for requests like this one, retrain instead"]
    table_too = f"with the {costs.seconds:.1f} s of the table counted, it is cheaper from request {first} on"
    return [f"{took}: {table_too}, if it serves so many before it must be fitted anew"]


def debts(table: References) -> list[str]:
    """Return a sentence about forgotten records that the kept models of a table still remember, or nothing."""
    if not table.owed:
        return []
    records = "1 forgotten record" if table.owed == 1 else f"{table.owed} forgotten records"
    return [
        f"the models kept in the table of references still remember {records}: make a new table without them "
        "(forsaken references fit), and delete this one"
    ]


def shortfall(table: References) -> list[str]:
    """Return a sentence about references that an attack would tell from retrained models, or nothing."""
    worth, found = table.worth, []
    if worth is not None and table.refit_due:
        found.append(
            f"{table.forgotten} rows were forgotten since the table of references was fitted, and its answers come "
            "from models that knew most of them: an attack that compares sample by sample would tell these references "
            f"from retrained models with an AUC of about {table.worth_now:.2f}, in place of {worth.auc:.2f} at first; "
            "fit the table anew on the cleaned data (forsaken references fit)"
        )
    if worth is None or worth.auc < GOAL:
        return found
    budget = table.origin.budget
    few = f"{table.origin.folds} folds" + ("" if budget is None else f" (all that {budget} trainings allow)")
    needed = worth.folds_needed
    more = f"more than {MOST} folds" if needed is None else f"about {needed} folds"
    return [
        *found,
        f"an attack that compares sample by sample would tell these reference models from retrained ones with an AUC "
        f"of about {worth.auc:.2f} ({worth.low:.2f} to {worth.high:.2f}; 0.5 is chance), since {few} are few; {more} "
        f"would bring it below {GOAL}: set folds (or a larger budget) in [references] and fit again, or retrain",
    ]


def _facts(table: References, path: Path) -> dict[str, Any]:
    costs = table.origin.costs
    return {
        "file": str(path),
        **table.about(),
        "break_even": {f"{share:g}": costs.break_even(share * costs.each) for share in SHARES},
        "seconds_a_request": {str(count): costs.of_a_request(count, 0.0) for count in REQUESTS},
    }


def _read(job: Job, progress: Progress) -> tuple[Format, Samples, Rows, int, Reader]:
    with step(progress, "read the model"):
        loaded = load_model(job)
    with step(progress, "read the data"):
        reader = Reader(job, progress)
        return (loaded, *read_train(job, loaded, reader), reader)


def _check_trainable(job: Job) -> None:
    found = training_problems(job, "make the table in Python, with forsaken.References.fit and a function that trains")
    if job.data.train is not None and job.data.train.count is not None:
        problem = "[data] train.count takes a part of the training data"
        found.append(SettingsError(problem, field="count", expected="all of them", remedy="leave count out"))
    if found:
        raise SettingsError.of(f"{job.path}: no references can be trained as the job stands", found)


def _check_free(job: Job, path: Path, force: bool) -> None:
    """Raise an error before any work if the table cannot be written, or would replace another file."""
    others = {each.resolve() for each in inputs_of(job.model_copy(update={"references": None}))}
    if path.resolve() in others:
        raise OutputError(f"[references] file is {path}, which the job reads for something else; give another name")
    if path.is_dir():
        raise OutputError(f"{path} is a folder, expected the name of a file for the table of references")
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {path}: there is no folder {path.parent}; make it, or give another name")
    if os.path.lexists(path) and not force:
        left = (
            f" ({unfinished(path)} is left from a fit that was stopped: delete it)" if unfinished(path).is_dir() else ""
        )
        raise OutputError(
            f"{path} is there already and is not overwritten{left}; add new rows with forsaken references extend, "
            "give another name, or replace it with --force"
        )


def check_table(job: Job) -> None:
    """Raise an error if the table of references of a job, or its key, is not there."""
    path, key = place_of(job), key_place(job)
    if not path.exists():
        raise DataNotFoundError(
            f"there is no table of references {path}; make it with: forsaken references fit {job.path}"
        )
    if not key.exists():
        raise DataNotFoundError(
            f"there is no key {key}, without which no row is found in the table of references {path}; put it back, or "
            f"make a new table with: forsaken references fit {job.path} --force"
        )


def _key(job: Job, path: Path) -> tuple[bytes | None, list[str]]:
    """Return the key for a new table (None where a new key is to be made), and warnings about its file."""
    beside = key_file(path)
    remove_empty_key(beside)
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
            f"none of the {count} rows of [data] train is in {path}, so these are other data, or prepared in "
            f"another way, or {key_place(job)} is not the key of this table; check which of these it is, and correct it"
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


@contextmanager
def _workplace(path: Path) -> Iterator[Path]:
    """Give the folder of unfinished work beside a table to this process alone; an empty folder is removed."""
    place = unfinished(path)
    if place.is_symlink():
        raise OutputError(f"{place} is a link, expected a folder for unfinished work; remove the link")
    make_folder(place, 0o700)
    try:
        with held(place, path):
            remove_drafts(path.parent, path.name, key_file(path).name)
            yield place
    finally:
        with suppress(OSError):  # not empty: the next fit goes on there
            place.rmdir()


# --- what a run does with the table ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Table:
    """The table of references that a run reads, and the path and SHA-256 of its file."""

    table: References
    path: Path
    sha256: str

    def check_held(self, job: Job, forget: Samples) -> None:
        """Raise an error if some records to forget are not in the table."""
        missing = absent(self.table, forget)
        if not len(missing):
            return
        doubts, gone = [], self.table.forgotten
        if len(missing) == len(forget):
            doubts.append(f"none is: is {key_place(job)} the key of this table, and the table of this model?")
        if gone:
            rows = "1 row was" if gone == 1 else f"{gone} rows were"
            doubts.append(
                f"{rows} forgotten earlier and left it: if these are the same records, there is nothing to do"
            )
        doubt = f" ({' '.join(doubts)})" if doubts else ""
        raise NotHeldOutError(
            f"{len(missing)} of {len(forget)} records to forget are not in the table of references {self.path}{doubt}, "
            "which therefore has no answer of a model that never saw them; where the model learnt them later, add them "
            f"with: {extension_of(job)}; otherwise check that [data] forget and train are read in "
            "the same way, so that prepare makes the same inputs of a record in both",
            rows=missing.tolist(),
        )


def absent(table: References, samples: Samples) -> Array:
    """Return the rows of `samples` that are not in a table."""
    known = table.entries.places
    return np.flatnonzero([key not in known for key in as_keys(row_hashes(samples, table.key))])


def table_for(job: Job, loaded: Format, classes: int) -> Table:
    """Read the job's table for a model of so many classes."""
    path, digest = place_of(job), file_hash(place_of(job))
    key = read_record_key(key_place(job))
    table = References.load(path, key=key, build=_network_of(job, loaded), forward=loaded.forward)
    if table.classes != classes:
        raise InputError(
            f"the table of references {path} tells {table.classes} classes apart, the model {classes}: it was made for "
            "another model; name this one's in [references] file, or make one with: forsaken references fit"
        )
    return Table(table, path, digest)


def hand_on(
    read: Table, job: Job, loaded: Format, sets: JobSets, after: Any, folder: Path, progress: Progress = silent
) -> tuple[ReferenceTable, list[str], list[str]]:
    """Write the table without the forgotten rows to `folder`, with the curvature of the model `after`.

    Kept models that learnt some of the rows are made to forget them first. Returns what the certificate states about
    the table that was read, notes and warnings.
    """
    table, before, notes = read.table, read.table.about(), []
    if not isinstance(method_of(job), Forsaken):
        notes.append(f"the references were not used: the method {job.method.name} has no use for them")
    gone = sets.forget
    missing = absent(table, gone)
    if len(missing):
        notes.append(f"{len(missing)} of {len(gone)} forgotten records were not in the table of references")
        gone = gone.rows(np.delete(np.arange(len(gone)), missing))
    if table.curvature is not None and not _is_of(table.curvature, loaded.model):
        table.curvature = None
        notes.append(
            "the curvature in the table of references was measured for other weights, and was left out of the new "
            f"table; measure it anew with: {extension_of(job)}"
        )
    warnings: list[str] = []
    if len(gone):
        try:
            notes += _forget(table, gone, job, loaded, sets, after, progress)
        except ForsakenError as error:
            table.forget(gone, before=loaded.model, after=after)
            warnings.append(f"the kept models of the table of references could not be made to forget: {error}")
    elif table.curvature is not None:
        table.curvature = replace(table.curvature, weights=fingerprint(as_module(after)))
    write_table(table, folder / REFERENCES)
    if job.output.record_key is None:
        write_record_key(folder / REFERENCES_KEY, table.key)
    notes.append(
        f"the new {REFERENCES} beside the new weights no longer holds the forgotten records, and --after uses it for "
        "the next request; delete the old table, which still holds what models answered about them"
    )
    if unfinished(read.path).is_dir():
        notes.append(
            f"{unfinished(read.path)} holds what models of a fit that was stopped said, about the forgotten records "
            "too if it had them: delete it, or finish that fit without them"
        )
    warnings += [*shortfall(table), *debts(table)]
    kept = [part for part in (sets.retain, sets.kept) if part is not None]
    strange = sum(len(absent(table, part)) for part in kept) if before["forgotten"] else 0
    if strange:
        warnings.append(
            f"{strange} of {sum(map(len, kept))} training samples that were to be kept are not in the table of "
            "references: where an earlier run forgot them, take them out of [data] train, of which retain and the "
            "cleaned data are made"
        )
    about = {name: before[name] for name in ("rows", "folds", "by", "steps", "claimed", "forgotten", "models_kept")}
    about |= {} if table.views is None else {"views": table.views.count, "view": table.views.name}
    if table.worth is not None:
        now = {} if table.worth_now is None else {"worth_now": round(table.worth_now, 3), "refit_due": table.refit_due}
        about |= {"worth": ReferenceWorth(**asdict(table.worth)), **now}
    return ReferenceTable(sha256=read.sha256, **about, models_owe=table.owed), notes, warnings


def _is_of(curvature: Curvature, model: object) -> bool:
    return curvature.weights == fingerprint(as_module(model))


def _network_of(job: Job, loaded: Format) -> Callable[[], nn.Module]:
    """Return a function that builds a network for the weights of a kept model."""

    def build() -> nn.Module:
        if isinstance(loaded, EstimatorFile):
            return LinearModel(copy.deepcopy(loaded.model))
        if job.model.factory is None and not isinstance(loaded, HuggingFaceFolder):
            raise ModelError(
                f"the table of references {place_of(job)} keeps models, and [model] has no factory that builds a "
                "network for their weights; name the model that the table was made for"
            )
        return _builder(job, loaded)().to(job.model.device)

    return build


def _forget(
    table: References, gone: Samples, job: Job, loaded: Format, sets: JobSets, after: Any, progress: Progress
) -> list[str]:
    """Take rows out of the table and its curvature; kept models forget them by the job's own method. Returns notes."""
    if not table.models:
        table.forget(gone, before=loaded.model, after=after)
        return []
    done, count, method = 0, len(table.models), method_of(job)

    def unlearn(model: Any, samples: Samples, targets: Tensor) -> Any:
        nonlocal done
        progress(Tick(STAGE, done, count))
        found = method(
            model, samples, sets.reference, sets.retain, targets=targets, forward=loaded.forward, seed=job.method.seed
        )
        done += 1
        return found.model

    try:
        with _KEPT:
            table.forget(gone, unlearn, before=loaded.model, after=after)
    finally:
        progress(Tick(STAGE, count, count))
    return [
        f"{done} of the {count} models kept in the table of references had learnt some of the records, and were made "
        "to forget them as well"
    ]
