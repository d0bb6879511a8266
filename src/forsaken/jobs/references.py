"""A job's table of references: read for a run, and after it without the rows that were forgotten."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from forsaken._keys import key_file, read_record_key, write_record_key
from forsaken.data.samples import Samples
from forsaken.errors import DataNotFoundError, ForsakenError, InputError, ModelError, NotHeldOutError, SettingsError
from forsaken.jobs.certificate import ReferenceTable, file_hash
from forsaken.jobs.code import call, find
from forsaken.jobs.files import REFERENCES, REFERENCES_KEY
from forsaken.jobs.formats import EstimatorFile, Format
from forsaken.jobs.method import method_of
from forsaken.jobs.sets import Sets
from forsaken.jobs.settings import Job, ReferenceSettings
from forsaken.models.logits import LinearModel, as_module, told
from forsaken.models.weights import fingerprint
from forsaken.references.rows import as_keys, row_hashes
from forsaken.references.store import write_table
from forsaken.references.table import References
from forsaken.types import Array, Progress, Tick, silent
from forsaken.unlearning.forsaken.method import Forsaken

STAGE = "make the kept models forget"


def settings_of(job: Job) -> ReferenceSettings:
    """Return what a job says about its table of references."""
    if job.references is None:
        raise SettingsError(f"{job.path} has no table [references]; add one, empty if the defaults will do")
    return job.references


def place_of(job: Job) -> Path:
    """Return where the table of references lies."""
    return job.resolve(settings_of(job).file)


def found_place(job: Job) -> Path:
    """Return where the table of references lies, and raise an error where it does not."""
    path = place_of(job)
    if not path.exists():
        raise DataNotFoundError(
            f"there is no table of references {path}; make it with: forsaken references fit {job.path}"
        )
    return path


def key_place(job: Job) -> Path:
    """Return where the key of the table lies: where [output] record_key says, or else beside the table."""
    named = job.output.record_key
    return key_file(place_of(job)) if named is None else job.resolve(named)


def unfinished(path: Path) -> Path:
    """Return the folder beside a table where a fit that is not done keeps what it has."""
    return path.with_name(f".{path.name}.unfinished")


def absent(table: References, samples: Samples) -> Array:
    """Return which samples are not in a table."""
    known = table.entries.places
    return np.flatnonzero([key not in known for key in as_keys(row_hashes(samples, table.key))])


@dataclass(frozen=True, slots=True)
class Table:
    """The table of references that a run reads.

    Attributes
    ----------
    table : References
        With the kept models, where there are any.
    path : Path
        The file.
    sha256 : str
        Of the file.
    """

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
            doubts.append(f"{rows} forgotten and left it: where these records are among them, there is nothing to do")
        doubt = f" ({' '.join(doubts)})" if doubts else ""
        raise NotHeldOutError(
            f"{len(missing)} of {len(forget)} records to forget are not in the table of references {self.path}{doubt}, "
            "so that nothing proves a model which never saw them; where the model learnt them later, add them with: "
            f"forsaken references extend {job.path}; otherwise give them as the training data are given, of which "
            "prepare must make the same inputs in every set",
            rows=missing.tolist(),
        )


@dataclass(frozen=True, slots=True)
class HandedOn:
    """What became of the table: what a certificate states of it, and what people are told."""

    stated: ReferenceTable
    notes: list[str]
    warnings: list[str]


def table_for(job: Job, loaded: Format, classes: int) -> Table:
    """Read the job's table for a model of so many classes."""
    path, secret = found_place(job), key_place(job)
    if not secret.exists():
        raise DataNotFoundError(
            f"there is no key {secret}, without which no row is found in the table of references {path}; put it back, "
            f"or make a new table with: forsaken references fit {job.path} --force"
        )
    digest = file_hash(path)
    table = References.load(path, key=read_record_key(secret), build=network_of(job, loaded), forward=loaded.forward)
    if table.classes != classes:
        raise InputError(
            f"the table of references {path} tells {table.classes} classes apart, the model {classes}: it was made for "
            "another model; name this one's in [references] file, or make one with: forsaken references fit"
        )
    return Table(table, path, digest)


def network_of(job: Job, loaded: Format) -> Callable[[], nn.Module]:
    """Return what builds a network for the weights of a kept model."""

    def build() -> nn.Module:
        if isinstance(loaded, EstimatorFile):
            return LinearModel(copy.deepcopy(loaded.model))
        if job.model.factory is None:
            raise ModelError(
                f"the table of references {place_of(job)} keeps models, and [model] has no factory that builds a "
                "network for their weights; name the model that the table was made for"
            )
        made = call(find(job.model.factory, "[model] factory"), "[model] factory", **job.model.arguments)
        network: nn.Module = made.to(job.model.device)
        return network

    return build


def hand_on(
    read: Table, job: Job, loaded: Format, sets: Sets, after: Any, folder: Path, progress: Progress = silent
) -> HandedOn:
    """Write the table without the forgotten rows to `folder`, with the curvature of the model `after`.

    Kept models are made to forget the rows first.
    """
    before = read.table.about()
    table = read.table
    notes: list[str] = []
    warnings: list[str] = []
    method = method_of(job)
    if not isinstance(method, Forsaken):
        notes.append(f"the references were not used: {job.method.name} does not go by them")
    gone = sets.forget
    missing = absent(table, gone)
    if len(missing):
        notes.append(f"{len(missing)} of {len(gone)} forgotten records were not in the table of references")
        gone = gone.rows(np.delete(np.arange(len(gone)), missing))
    notes += _check_curvature(table, job, loaded)
    if len(gone):
        notes += _forget(table, gone, job, loaded, sets, after, warnings, progress)
    elif table.curvature is not None:
        table.curvature = replace(table.curvature, weights=fingerprint(as_module(after)))
    write_table(table, folder / REFERENCES)
    if job.output.record_key is None:
        write_record_key(folder / REFERENCES_KEY, table.key)
    notes.append(
        f"{REFERENCES} beside the new weights is the table of references without the forgotten records: name it in "
        "[references] file from now on, and delete the old one, which still tells what models said about them"
    )
    if unfinished(read.path).is_dir():
        notes.append(
            f"{unfinished(read.path)} holds what models of a fit that was stopped said, about the forgotten records "
            "too if it had them: delete it, or finish that fit without them"
        )
    if table.owed:
        warnings.append(owed_words(table.owed))
    if before["forgotten"]:
        warnings += _strangers(table, sets)
    about = {name: before[name] for name in ("rows", "folds", "by", "steps", "claimed", "forgotten", "models_kept")}
    about |= {} if table.views is None else {"views": table.views.count, "view": table.views.name}
    return HandedOn(ReferenceTable(sha256=read.sha256, **about, models_owe=table.owed), notes, warnings)


def _check_curvature(table: References, job: Job, loaded: Format) -> list[str]:
    """Drop a curvature that is not the model's, and say so."""
    if table.curvature is None or table.curvature.weights == fingerprint(as_module(loaded.model)):
        return []
    table.curvature = None
    return [
        "the curvature in the table of references was measured for other weights, and was left out of the new table; "
        f"measure it anew with: forsaken references extend {job.path}"
    ]


def _strangers(table: References, sets: Sets) -> list[str]:
    """Warn of training samples that are to be kept and are not in a table which earlier runs took rows out of."""
    parts = [part for part in (sets.retain, sets.kept) if part is not None]
    count = sum(len(absent(table, part)) for part in parts)
    if not count:
        return []
    return [
        f"{count} of {sum(map(len, parts))} training samples that were to be kept are not in the table of references: "
        "where an earlier run forgot them, take them out of [data] train, of which retain and the cleaned data are made"
    ]


def owed_words(count: int) -> str:
    """Return the sentence about kept models that remember."""
    records = "1 forgotten record" if count == 1 else f"{count} forgotten records"
    return (
        f"the models kept in the table of references still remember {records}: make a new table without them "
        "(forsaken references fit), and delete this one"
    )


def _forget(
    table: References,
    gone: Samples,
    job: Job,
    loaded: Format,
    sets: Sets,
    after: Any,
    warnings: list[str],
    progress: Progress,
) -> list[str]:
    """Take rows out of the table and its curvature; where models are kept, with the job's own method for each."""
    both = {"before": loaded.model, "after": after}
    if not table.models:
        table.forget(gone, **both)
        return []
    done = 0

    def unlearn(model: Any, samples: Samples, targets: Tensor) -> Any:
        nonlocal done
        progress(Tick(STAGE, done, len(table.models)))
        found = method_of(job)(
            model, samples, sets.reference, sets.retain, targets=targets, forward=loaded.forward, seed=job.method.seed
        )
        done += 1
        return found.model

    try:
        table.forget(gone, unlearn, **both)
    except Exception as error:  # noqa: BLE001 (the model is the user's, and may raise anything)
        table.forget(gone, **both)
        why = str(error) if isinstance(error, ForsakenError) else told(error)
        warnings.append(f"the kept models of the table of references could not be made to forget: {why}")
        return []
    finally:
        progress(Tick(STAGE, len(table.models), len(table.models)))
    return [
        f"{done} of the {len(table.models)} models kept in the table of references had learnt some of the records, and "
        "were made to forget them as well"
    ]
