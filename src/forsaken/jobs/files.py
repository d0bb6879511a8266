"""The files of a job: what it reads, and what it writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from forsaken.auditing.result import FILE as AUDIT
from forsaken.errors import OutputError
from forsaken.jobs.certificate import FILE
from forsaken.jobs.settings import Job, Source

__all__ = [
    "ARRAYS",
    "AUDIT",
    "AUDIT_MODELS",
    "CERTIFICATE",
    "COPIES",
    "KIND",
    "MASK",
    "RECORD_KEY",
    "REPORT",
    "RESULT",
    "ROWS",
    "SCHEMA",
    "inputs_of",
    "outputs_of",
    "weights_name",
]

SCHEMA, KIND = 2, "forsaken.result"  # of result.json
CERTIFICATE = FILE
RESULT, ARRAYS, REPORT = "result.json", "posteriors.npz", "report.html"
RECORD_KEY, MASK = "records.key", "mask.safetensors"
ROWS, COPIES = "rows-to-delete.csv", "copies-that-stay.csv"
AUDIT_MODELS = "audit-models"  # what an audit measured of each model that it trained


def inputs_of(job: Job) -> Iterator[Path]:
    """Return every file and folder that a job reads."""
    named = [job.path, job.resolve(job.model.weights)]
    sources = list(job.data.sets.values())
    if job.oracle is not None:
        sources += [each for each in (job.oracle.members, job.oracle.nonmembers) if each is not None]
        named += [job.resolve(each) for each in (job.oracle.file, job.oracle.weights, job.oracle.retrained) if each]
    if job.audit.nonmembers is not None:
        sources.append(job.audit.nonmembers)
    others = (job.chain.previous, job.output.record_key, job.output.signing_key)
    named += [job.resolve(each) for each in others if each]
    yield from named
    for source in sources:
        yield from _paths(job, source)


def outputs_of(job: Job) -> list[str]:
    """Return the names that a run of this job writes for sure."""
    weights = weights_name(job)
    keys = [] if job.output.record_key else [RECORD_KEY]
    others = [RESULT, ARRAYS, CERTIFICATE, REPORT, *keys, *([MASK] if job.output.mask else [])]
    if weights in (*others, AUDIT, AUDIT_MODELS):
        raise OutputError(f"the weights are called {weights}, as another file of the results is; rename them")
    return [weights, *others]


def weights_name(job: Job) -> str:
    """Return what the new weights are called: as the old ones."""
    path = job.resolve(job.model.weights)
    return path.name if path.name not in ("", ".", "..") else path.resolve().name


def _paths(job: Job, source: Source) -> Iterator[Path]:
    if source.path is not None:
        yield job.resolve(source.path)
    if isinstance(source.ids, str):
        yield job.resolve(source.ids)
