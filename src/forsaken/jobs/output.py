"""The files of a job: what it reads, what it writes, and the output folder."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, ValidationError

from forsaken._files import flush, make_folder, move, remove, remove_drafts, write_atomically
from forsaken._keys import key_file
from forsaken.auditing.result import EARLIER as EARLIER_AUDIT
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
_AFTERWARDS = (EARLIER_AUDIT, *AUDITS.values(), AUDIT_MODELS)
_HIDDEN, _LIST, _LOCK = ".unfinished", ".unfinished.json", ".forsaken.lock"
_REPLACED = ".replaced"  # the files of an earlier run, until the new ones are in their place
EARLIER = (
    "earlier"  # certificates that were replaced, each with its key: without them nothing that was issued is checked
)
_OWN = (_HIDDEN, _LIST, _LOCK, _REPLACED, EARLIER)
_KEPT = (CERTIFICATE, RECORD_KEY, REFERENCES_KEY)


def inputs_of(job: Job) -> list[Path]:
    """Return every file and folder that a job reads."""
    texts = [job.model.weights, job.model.base, job.chain.previous, job.output.record_key, job.output.signing_key]
    if job.oracle is not None:
        texts += [job.oracle.file, job.oracle.weights, job.oracle.retrained]
    for source in job.sources.values():
        texts += [source.path, source.ids if isinstance(source.ids, str) else None]
    texts += [] if job.chain.signers == "anyone" else job.chain.signers
    return [job.path, *(job.resolve(text) for text in texts if text is not None), *table_files(job)]


def record_key_of(job: Job, folder: Path) -> Path:
    """Return where the record key of a job's run in `folder` lies."""
    named = job.output.record_key
    return folder / RECORD_KEY if named is None else job.resolve(named)


def sources_of(job: Job) -> list[Path]:
    """Return the files and folders that decide who may read what a job writes: all that it reads but keys and tables.

    Keys, and the table of references, which Forsaken wrote itself, are for their owner alone whatever they are made of.
    """
    keys = [text for text in (job.output.record_key, job.output.signing_key) if text is not None]
    private = {*map(job.resolve, keys), *table_files(job)}
    return [path for path in inputs_of(job) if path not in private]


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
    if weights in (*others, *_AFTERWARDS, EARLIER):
        raise OutputError(f"the weights are called {weights}, as another file of the results is; rename them")
    return [weights, *others]


def weights_name(job: Job) -> str:
    """Return what the new weights are called: as the old ones."""
    path = job.resolve(job.model.weights)
    return path.name if path.name not in ("", ".", "..") else path.resolve().name


def is_half_moved(folder: Path) -> bool:
    """Return whether a run was killed while it moved its result into a folder; the next run undoes that."""
    return (folder / _LIST).exists()


@contextmanager
def output(
    folder: Path, *, force: bool = False, inputs: Iterable[Path] = (), names: Iterable[str] = ()
) -> Iterator[Path]:
    """Give a folder to write to; what is in it afterwards is moved to `folder`, unless the block fails.

    What a killed run left behind is removed first, and what it was about to replace is put back. A result that is there
    already is replaced only with `force`: its certificate and its key stay in the folder `earlier`, and the rest goes
    when the new result is on the disk. A file that the run reads is never replaced.

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
            _settle(folder, read)
            if (folder / CERTIFICATE).exists() and not force:
                raise OutputError(
                    f"{folder} holds the result of an earlier run, which is not overwritten; name another folder "
                    "with --out, or replace it with --force"
                )
            _check_free(folder, names, force, read)
            try:
                make_folder(hidden, 0o700, new=True)
                yield hidden
                _publish(hidden, folder, force, read)
            finally:
                with suppress(OSError):  # the next run removes it
                    remove(hidden)
    finally:
        for each in made:
            if each.is_dir() and not any(each.iterdir()):
                remove(each)


@contextmanager
def held(folder: Path, goal: Path | None = None) -> Iterator[None]:
    """Keep a folder to this process inside the block; another run or audit that wants it is told so.

    `goal` is the file that messages name in place of a folder that the user does not know.
    """
    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        other = "name another folder" if goal is None else "give another name"
        raise OutputError(f"another run is writing to {goal or folder}; wait for it, or {other}") from error
    except (OSError, NotImplementedError) as error:
        raise OutputError(f"cannot write to {folder}: {getattr(error, 'strerror', None) or error}") from error
    try:
        remove_drafts(folder)
        yield
    except OSError as error:
        if isinstance(error, OutputError) or not _is_ours(error, folder):
            raise
        raise OutputError(f"cannot write to {folder}: {error.strerror}") from error
    finally:
        # Unlinked while it is held: after the release the file may be the next holder's already. A system that does
        # not unlink open files keeps it, which harms nobody.
        with suppress(OSError):
            remove(folder / _LOCK)
        lock.release()


def _make(folder: Path, inputs: list[Path]) -> list[Path]:
    """Make the folder where it is not there, and return what was made, from the inside out."""
    try:
        is_file, place = folder.exists() and not folder.is_dir(), folder.resolve()
        around = [] if is_file else [each for each in inputs if each.is_dir() and place.is_relative_to(each)]
        made = [each for each in (folder, *folder.parents) if not each.exists()]
        if not is_file and not around:
            make_folder(folder)
    except OutputError as error:
        raise error.with_remedy("name another one") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OutputError(f"cannot make the folder {folder}: {reason}", remedy="name another one") from error
    if is_file:
        raise OutputError(f"{folder} is a file, not a folder", remedy="name another one")
    if around:
        problem = f"{folder} lies in {around[0]}, which the job reads"
        raise OutputError(problem, remedy="name an output folder outside of it")
    return made


class _Move(BaseModel):
    """What a run is about to move into sight: the SHA-256 of each of its files, and the names that it moves away first.

    The record lies in the folder from before the first move until after the last one. Where a next run finds it, the
    run was killed in between, and every move is undone.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    new: dict[str, str]
    old: tuple[str, ...]


def _settle(folder: Path, inputs: list[Path]) -> None:
    """Undo what a killed run did: remove its files, and put back those that it was about to replace.

    Only files whose SHA-256 the run had written down are removed, and all of them are checked before the first goes.
    """
    listed, hidden, replaced = folder / _LIST, folder / _HIDDEN, folder / _REPLACED
    for place in (listed, hidden, replaced):
        if place.is_symlink():
            raise _refusal(folder, place.name, "is a link")
    if listed.is_file():
        told = _read_list(folder)
        for path in _leftovers(folder, told, inputs):
            if path.is_dir():
                path.rmdir()
            else:
                remove(path)
        for name in reversed(told.old):  # the certificate last, here too: this may be interrupted as well
            if os.path.lexists(replaced / name):
                move(replaced / name, folder / name)
        remove(listed)
    remove(replaced)
    remove(hidden)


def _read_list(folder: Path) -> _Move:
    try:
        return _Move.model_validate_json((folder / _LIST).read_bytes(), strict=False)
    except (OSError, ValidationError) as error:
        raise _refusal(folder, _LIST, "holds no SHA-256 of each file, as this version writes them down") from error


def _leftovers(folder: Path, told: _Move, inputs: list[Path]) -> list[Path]:
    """Return what a killed run had moved into sight: its certificate first, files before their folders.

    Whatever is not as that run left it is refused by name.
    """
    for name in (*told.new, *told.old):
        parts = Path(name).parts
        plain = bool(parts) and ".." not in parts and "\0" not in name and Path(name).as_posix() == name
        if not plain or Path(name).is_absolute() or parts[0] in _OWN:
            raise _refusal(folder, name, "is no name of a file that a run writes")
    # An earlier run's file that was not moved away yet, or that is back already.
    untouched = {name for name in told.old if not os.path.lexists(folder / _REPLACED / name)}
    files, folders = [], []
    for top in sorted({Path(name).parts[0] for name in told.new}.union(told.old) - untouched):
        for path in (folder / top, *(folder / top).rglob("*")) if os.path.lexists(folder / top) else ():
            name = path.relative_to(folder).as_posix()
            if path.is_symlink():
                raise _refusal(folder, name, "is a link")
            if path.resolve() in inputs:
                raise _refusal(folder, name, "is read by this job")
            if path.is_dir():
                folders.append(path)
            elif path.is_file() and _digest(path) == told.new.get(name):
                files.append(path)
            else:
                raise _refusal(folder, name, "is not as the killed run wrote it")
    return [*sorted(files, key=lambda path: path != folder / CERTIFICATE), *sorted(folders, reverse=True)]


def _refusal(folder: Path, name: str, why: str) -> OutputError:
    return OutputError(
        f"a run was killed while it moved its files into {folder}, and {name!r}, which stands in its record {_LIST} or "
        f"in its way, {why}; nothing was removed",
        remedy=f"move that file away, or look at {folder} and remove {_LIST} with what is not yours",
    )


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
    """Move what a run wrote into sight, and what it replaces away; all of it, or nothing."""
    names = sorted(path.name for path in hidden.iterdir())
    _check_free(folder, names, force, inputs)
    earlier = os.path.lexists(folder / CERTIFICATE)
    leaving = (CERTIFICATE, *names, *((*_AFTERWARDS, *_SOMETIMES) if earlier else ()))
    there = [name for name in dict.fromkeys(leaving) if os.path.lexists(folder / name)]
    old = [name for name in there if name in names or (folder / name).resolve() not in inputs]
    flush(hidden)
    new = {
        path.relative_to(hidden).as_posix(): _digest(path) for path in sorted(hidden.rglob("*")) if not path.is_dir()
    }
    _keep_certificate(folder, old)
    with _undisturbed():
        try:
            write_atomically(folder / _LIST, _Move(new=new, old=tuple(old)).model_dump_json().encode())
            make_folder(folder / _REPLACED, 0o700)
            # The certificate goes first and comes last: a folder with one is whole, whatever happens in between.
            for name in old:
                move(folder / name, folder / _REPLACED / name)
            for name in sorted(names, key=lambda name: name == CERTIFICATE):
                move(hidden / name, folder / name)
            remove(folder / _LIST)
        except OSError:
            with suppress(OSError):  # what fails here too, the next run does
                _settle(folder, inputs)
            raise
        remove(folder / _REPLACED)


def _keep_certificate(folder: Path, leaving: list[str]) -> None:
    """Copy a certificate that is to be replaced, and the keys beside it, to a folder of their own, where they stay."""
    if not any(name in leaving for name in _KEPT):
        return
    kept = {name: (folder / name).read_bytes() for name in _KEPT if (folder / name).is_file()}
    digest = hashlib.sha256(b"".join(name.encode() + b"\0" + content for name, content in kept.items())).hexdigest()
    day = max(datetime.fromtimestamp((folder / name).stat().st_mtime, UTC) for name in kept).strftime("%Y-%m-%d")
    place = folder / EARLIER / f"{day}-{digest[:12]}"
    for each in (place.parent, place):
        if each.is_symlink() or (each.exists() and not each.is_dir()):
            raise OutputError(f"{each} is no folder, expected one for the certificates that are replaced; move it away")
    make_folder(place.parent, 0o700)
    make_folder(place, 0o700)
    for name, content in kept.items():
        if not (place / name).exists():
            write_atomically(place / name, content, private=name != CERTIFICATE)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def _is_ours(error: OSError, folder: Path) -> bool:
    return error.filename is not None and Path(os.fsdecode(error.filename)).is_relative_to(folder)
