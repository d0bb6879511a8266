"""The files of a job: what it reads, what it writes, and the output folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from forsaken._files import write_atomically
from forsaken._keys import key_file
from forsaken.auditing.result import EARLIER
from forsaken.auditing.result import FILES as AUDIT_FILES
from forsaken.errors import DataNotFoundError, OutputError
from forsaken.jobs.certificate import FILE as CERTIFICATE_FILE

if TYPE_CHECKING:
    from forsaken.jobs.configuration import Job

AUDITS, CERTIFICATE = AUDIT_FILES, CERTIFICATE_FILE
RESULT, ARRAYS, REPORT = "result.json", "posteriors.npz", "report.html"
RECORD_KEY, MASK = "records.key", "mask.safetensors"
ROWS, COPIES = "rows-to-delete.csv", "copies-that-stay.csv"
REFERENCES = "references.safetensors"  # the table without the forgotten rows
REFERENCES_KEY = key_file(Path(REFERENCES)).name
AUDIT_MODELS = "audit-models"  # what an audit measured of each model that it trained
# What some runs write and others do not; a mask of an earlier run must not outlive its certificate.
_CLEANED = (f"cleaned{suffix}" for suffix in (".csv", ".npz", ".parquet"))
_SOMETIMES = (MASK, COPIES, ROWS, REFERENCES, REFERENCES_KEY, *_CLEANED)
# What was made from a run after it, and goes before its certificate does: it must not be taken for another run's.
_AFTERWARDS = (EARLIER, *AUDITS.values(), AUDIT_MODELS)
_HIDDEN, _LIST, _LOCK = ".unfinished", ".unfinished.json", ".forsaken.lock"


def inputs_of(job: Job) -> list[Path]:
    """Return every file and folder that a job reads."""
    texts = [job.model.weights, job.chain.previous, job.output.record_key, job.output.signing_key]
    if job.oracle is not None:
        texts += [job.oracle.file, job.oracle.weights, job.oracle.retrained]
    for source in job.sources.values():
        texts += [source.path, source.ids if isinstance(source.ids, str) else None]
    return [job.path, *(job.resolve(text) for text in texts if text is not None), *table_files(job)]


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
    if weights in (*others, *_AFTERWARDS):
        raise OutputError(f"the weights are called {weights}, as another file of the results is; rename them")
    return [weights, *others]


def weights_name(job: Job) -> str:
    """Return what the new weights are called: as the old ones."""
    path = job.resolve(job.model.weights)
    return path.name if path.name not in ("", ".", "..") else path.resolve().name


@contextmanager
def output(
    folder: Path, *, force: bool = False, inputs: Iterable[Path] = (), names: Iterable[str] = ()
) -> Iterator[Path]:
    """Give a folder to write to; what is in it afterwards is moved to `folder`, unless the block fails.

    What a killed run left behind is removed first. A result that is there already is replaced only with `force`, and
    a file that the run reads is never replaced.

    Parameters
    ----------
    folder : Path
        Made where it is not there.
    force : bool
        Whether files of an earlier run may be replaced.
    inputs : paths
        What the run reads.
    names : names of files
        What the run will write for sure, so that it is refused before the work and not after it.
    """
    read = [path.resolve() for path in inputs]
    made = _make(folder, read)
    hidden = folder / _HIDDEN
    try:
        with held(folder):
            try:
                _tidy(folder, read)
                if (folder / CERTIFICATE).exists() and not force:
                    raise OutputError(
                        f"{folder} holds the result of an earlier run, which is not overwritten; name another folder "
                        "with --out, or replace it with --force"
                    )
                _check_free(folder, names, force, read)
                hidden.mkdir(mode=0o700)
                yield hidden
                _publish(hidden, folder, force, read)
            finally:
                shutil.rmtree(hidden, ignore_errors=True)
    finally:
        for each in made:
            if each.is_dir() and not any(each.iterdir()):
                each.rmdir()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep a folder to this process inside the block; another run or audit that wants it is told so."""
    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise OutputError(f"another run is writing to {folder}; wait for it, or name another folder") from error
    except (OSError, NotImplementedError) as error:
        raise OutputError(f"cannot write to {folder}: {getattr(error, 'strerror', None) or error}") from error
    try:
        yield
    except OSError as error:
        if isinstance(error, OutputError) or not _is_ours(error, folder):
            raise
        raise OutputError(f"cannot write to {folder}: {error.strerror}") from error
    finally:
        # Unlinked while it is held: after the release the file may be the next holder's already. A system that does
        # not unlink open files keeps it, which harms nobody.
        with suppress(OSError):
            (folder / _LOCK).unlink(missing_ok=True)
        lock.release()


def _make(folder: Path, inputs: list[Path]) -> list[Path]:
    """Make the folder where it is not there, and return what was made, from the inside out."""
    try:
        is_file, place = folder.exists() and not folder.is_dir(), folder.resolve()
        around = [] if is_file else [each for each in inputs if each.is_dir() and place.is_relative_to(each)]
        made = [each for each in (folder, *folder.parents) if not each.exists()]
        if not is_file and not around:
            folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"cannot make the folder {folder}: {reason}", remedy="name another one") from error
    if is_file:
        raise OutputError(f"{folder} is a file, not a folder", remedy="name another one")
    if around:
        problem = f"{folder} lies in {around[0]}, which the job reads"
        raise OutputError(problem, remedy="name an output folder outside of it")
    return made


def _tidy(folder: Path, inputs: list[Path]) -> None:
    """Remove what a killed run left: its hidden place, and the files that it had begun to move into sight."""
    listed = folder / _LIST
    if listed.is_file() and not listed.is_symlink():
        try:
            names = json.loads(listed.read_bytes())
        except (OSError, ValueError):
            names = []
        for name in names if isinstance(names, list) else []:
            plain = isinstance(name, str) and name == Path(name).name and name not in ("", ".", "..")
            if plain and (folder / name).resolve() not in inputs:
                _remove(folder / name)
        listed.unlink()
    _remove(folder / _HIDDEN)


def _check_free(folder: Path, names: Iterable[str], force: bool, inputs: list[Path]) -> None:
    taken = [name for name in names if os.path.lexists(folder / name)]
    for name in taken:
        if (folder / name).resolve() in inputs:
            raise OutputError(
                f"{folder / name} is read by this job and would be overwritten; name another output folder"
            )
    if taken and not force:
        raise OutputError(
            f"{folder / taken[0]} is there already and is not overwritten; name another folder with --out, or replace "
            "it with --force"
        )


def _publish(hidden: Path, folder: Path, force: bool, inputs: list[Path]) -> None:
    names = sorted(path.name for path in hidden.iterdir())
    _check_free(folder, names, force, inputs)
    with _undisturbed():
        # The certificate goes first and comes last: a folder with one is whole, whatever happens in between.
        earlier = (folder / CERTIFICATE).exists()
        for name in (*_AFTERWARDS, CERTIFICATE, *_SOMETIMES) if earlier else (CERTIFICATE,):
            if name == CERTIFICATE or (name not in names and (folder / name).resolve() not in inputs):
                _remove(folder / name)
        write_atomically(folder / _LIST, json.dumps(names).encode())
        for name in sorted(names, key=lambda name: name == CERTIFICATE):
            if (hidden / name).is_dir() or (folder / name).is_dir():
                _remove(folder / name)
            (hidden / name).replace(folder / name)
        (folder / _LIST).unlink()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put off signals to stop until the files are in place; it takes milliseconds."""
    waiting: list[tuple[int, Any]] = []
    before: dict[int, Any] = {}
    try:
        for stop in (signal.SIGINT, signal.SIGTERM):
            before[int(stop)] = signal.signal(stop, lambda *told: waiting.append(told))
    except ValueError:  # not the main thread, which alone is interrupted
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for number, frame in waiting[:1]:
        if callable(before[number]):
            before[number](number, frame)
        else:
            signal.raise_signal(number)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_ours(error: OSError, folder: Path) -> bool:
    return error.filename is not None and Path(os.fsdecode(error.filename)).is_relative_to(folder)
