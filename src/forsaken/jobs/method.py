"""The method of a job, as it says."""

from __future__ import annotations

from typing import Any

from forsaken.jobs.settings import Job
from forsaken.unlearning.base import Unlearner
from forsaken.unlearning.forsaken.aims import OUT_OF_FOLD
from forsaken.unlearning.methods import build


def method_of(job: Job, **changes: Any) -> Unlearner:
    """Return a job's method, with `changes` to its settings; where there is a [references] table, it goes by that."""
    return build(job.method.name, {**job.method.settings, **changes}, references=job.references is not None)


def target_of(job: Job) -> str | None:
    """Return where the answers on forgotten samples go; None for a method that has no such setting."""
    return getattr(method_of(job), "target", None)


def by_references(job: Job) -> bool:
    """Return whether the method goes by the table of references, and not only keeps it up to date."""
    return target_of(job) == OUT_OF_FOLD
