"""The files of a job: what it reads, and what it writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from forsaken._keys import key_file
from forsaken.auditing.result import FILE as AUDIT
from forsaken.errors import DataNotFoundError, OutputError
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
    "REFERENCES",
    "REFERENCES_KEY",
    "REPORT",
    "RESULT",
    "ROWS",
    "SCHEMA",
    "check_there",
    "inputs_of",
    "outputs_of",
    "table_files",
    "weights_name",
]

SCHEMA, KIND = 2, "forsaken.result"  # of result.json
CERTIFICATE = FILE
RESULT, ARRAYS, REPORT = "result.json", "posteriors.npz", "report.html"
RECORD_KEY, MASK = "records.key", "mask.safetensors"
ROWS, COPIES = "rows-to-delete.csv", "copies-that-stay.csv"
REFERENCES = "references.safetensors"  # the table without the forgotten rows
REFERENCES_KEY = key_file(Path(REFERENCES)).name
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
    yield from (*named, *table_files(job))
    for source in sources:
        yield from _paths(job, source)


def table_files(job: Job) -> list[Path]:
    """Return the table of references and, where the job names no key, the key beside it; nothing without a table."""
    if job.references is None:
        return []
    table = job.resolve(job.references.file)
    return [table] if job.output.record_key else [table, key_file(table)]


def check_there(job: Job, *, references: bool = True) -> None:
    """Raise an error that lists every file and folder which a job reads and which is not there.

    The table of references counts only with `references`.
    """
    table = table_files(job)
    missing = [path for path in dict.fromkeys(inputs_of(job)) if not path.exists()]
    if not references:
        missing = [path for path in missing if path not in table]
    if not missing:
        return
    listed = "".join(f"\n  - {path}" for path in missing)
    if table and table[0] in missing:
        listed += f"\nThe table of references is made by: forsaken references fit {job.path}"
    elif table and (job.resolve(job.output.record_key) if job.output.record_key else table[-1]) in missing:
        listed += "\nThat is the key of the table of references, without which no row is found in it: put it back, or "
        listed += f"make a new table with: forsaken references fit {job.path} --force"
    raise DataNotFoundError(f"{job.path} names what is not there (paths are relative to it):{listed}")


def outputs_of(job: Job) -> list[str]:
    """Return the names that a run of this job writes for sure."""
    weights = weights_name(job)
    keys = [] if job.output.record_key else [RECORD_KEY]
    table = [] if job.references is None else [REFERENCES, *([REFERENCES_KEY] if keys else [])]
    others = [RESULT, ARRAYS, CERTIFICATE, REPORT, *keys, *table, *([MASK] if job.output.mask else [])]
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
