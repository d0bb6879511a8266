"""A job with everything that it names read, and its method run on that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from forsaken.errors import ForsakenError, InputError, ModelError, OverlapError
from forsaken.jobs.files import check_there
from forsaken.jobs.formats import Format, load_model
from forsaken.jobs.judge import oracle_of
from forsaken.jobs.method import by_references, method_of
from forsaken.jobs.references import Table, table_for
from forsaken.jobs.rows import Reader
from forsaken.jobs.sets import Sets, read_sets
from forsaken.jobs.settings import Job
from forsaken.models.logits import told
from forsaken.oracles.shadow import ShadowOracle
from forsaken.types import Progress, Tick, silent
from forsaken.unlearning.base import Unlearned


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job with its model, its sets and its table of references read."""

    job: Job
    loaded: Format
    sets: Sets
    oracle: ShadowOracle | None
    table: Table | None = None


def prepare_job(job: Job, progress: Progress = silent) -> Prepared:
    """Read everything that a job names."""
    check_there(job)
    progress(Tick("read the model", 0, 1))
    loaded = load_model(job)
    progress(Tick("read the model", 1, 1))
    reader = Reader(job, progress)
    progress(Tick("read the data", 0, 1))
    sets = read_sets(job, loaded, reader)
    progress(Tick("read the data", 1, 1))
    table = None if job.references is None else table_for(job, loaded, len(sets.classes))
    return Prepared(job, loaded, sets, oracle_of(job, sets, loaded), table)


def unlearn_prepared(ready: Prepared, progress: Progress = silent, **changes: Any) -> Unlearned[Any]:
    """Run the job's method, with `changes` to its settings."""
    job, sets = ready.job, ready.sets
    method = method_of(job, **changes)
    if getattr(method, "target", None) in ("class-mean", "corrected") and sets.reference is None:
        raise InputError(
            f'target = "{method.settings["target"]}" needs reference samples, like those to forget but never trained '
            "on, and [data] names none; forsaken unlearn JOB --dry-run says what can serve"
        )
    if ready.table is not None and by_references(job):
        ready.table.check_held(job, sets.forget)
    try:
        return method(
            ready.loaded.model,
            sets.forget,
            sets.reference,
            sets.retain,
            references=None if ready.table is None else ready.table.table,
            forward=ready.loaded.forward,
            seed=job.method.seed,
            progress=progress,
        )
    except OverlapError as error:
        told_of = str(error).partition(";")[0]
        raise InputError(
            f"{told_of}; leave those records out of the set or, where the records differ, see why they are the same to "
            "the model"
        ) from error
    except InputError as error:
        if "forsaken.Curvature.fit" not in str(error):
            raise
        raise InputError(
            f"{str(error).partition(';')[0]}; name the table of references that lies beside these weights, or measure "
            f"the curvature anew with: forsaken references extend {job.path}"
        ) from error
    except ForsakenError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ModelError(
            "there is not enough memory; in [method] give a batch_size, a smaller history, or fewer parameters"
        ) from error
    except Exception as error:  # the model is the user's, and may raise anything
        raise ModelError(f"the model failed while it was to forget: {told(error)}") from error
