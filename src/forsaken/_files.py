"""The one place where files are written: a reader never finds half of one, and a power cut takes none back.

A file is written under another name in the same folder (its draft), flushed to the disk, and renamed; then the folder
is flushed too, since a new name is a change of the folder. A folder is written in the same way.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from forsaken.errors import ForsakenError, OutputError

_DRAFT = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{12}\.draft", re.DOTALL)
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK}


def write_atomically(
    path: str | os.PathLike[str], content: bytes, *, private: bool = False, replace: bool = True
) -> Path:
    """Write `content` to a file; only the owner may read a `private` one. See `draft_of`."""
    goal = Path(path)
    with draft_of(goal, replace=replace) as draft, create(draft, private=private) as file:
        file.write(content)
    return goal


@contextmanager
def draft_of(path: Path, *, replace: bool = True) -> Iterator[Path]:
    """Return a new path beside `path` to write a file or folder to; after the block it is flushed and renamed.

    A block that fails leaves nothing, and every `OSError` in it becomes an `OutputError`. Without `replace` a file that
    is there under the name `path` is an error, however late it came.
    """
    if "\0" in str(path):
        raise OutputError(f"cannot write {str(path)!r}: no file can be called so", remedy="give another name")
    draft = path.parent / f".{path.name}.{secrets.token_hex(6)}.draft"
    try:
        with _in_words(f"cannot write {path}"):
            yield draft
            flush(draft)
            if replace:
                draft.replace(path)
            else:
                _rename_to_new(draft, path)
            _flush(path.parent)
    except OutputError as error:
        if not path.parent.is_dir() and not error.remedy:
            raise error.with_remedy("does its folder exist?") from error.__cause__
        raise
    finally:
        with suppress(OSError):
            _remove(draft)


@contextmanager
def _in_words(problem: str) -> Iterator[None]:
    """Raise an `OutputError` for what the system says about a file; an error of Forsaken stays as it is."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ForsakenError):
            raise
        raise OutputError(f"{problem}: {error.strerror or error}") from error


def create(path: Path, *, private: bool = False) -> BinaryIO:
    """Open a file for writing that is not there yet. For drafts: `draft_of` flushes it and gives it its name."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags, 0o600 if private else 0o666), "wb")


def extend(path: Path, *, anew: bool) -> BinaryIO:
    """Open a file that grows over several runs, such as a download, to write at its end, or `anew`; never a link."""
    flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    return os.fdopen(os.open(path, flags | (os.O_TRUNC if anew else os.O_APPEND), 0o666), "wb")


@contextmanager
def no_more_open_than(sources: Iterable[Path]) -> Iterator[None]:
    """Give files that are made inside the block no permission for others that one of `sources` lacks.

    Where others may not read a source, they may not read the new files; where they may not write to one, they may not
    write to them. Of a folder every file in it counts, and not the folders around it; a source that is not there is
    passed over. The umask of the whole process is changed, so this is for the command line.
    """
    closed = 0
    for source in sources if os.name == "posix" else ():
        below = [Path(folder) / name for folder, _, names in os.walk(source) for name in names]
        for path in (source, *below):
            with suppress(OSError):
                mode = path.stat().st_mode
                # Who may not read a source must not even enter a folder: 7; who may only read it must not write: 2.
                for bits in (0o070, 0o007):
                    closed |= bits & (0o077 if not mode & bits & 0o044 else 0o022 if not mode & bits & 0o022 else 0)
    before = os.umask(0o077)
    os.umask(before | closed)
    try:
        yield
    finally:
        os.umask(before)


def copy_path(source: Path, goal: Path) -> None:
    """Copy a file or a folder to a name that is not taken; the copies have the permissions of new files."""
    with draft_of(goal) as draft:
        if source.is_dir():
            shutil.copytree(source, draft, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(source, draft)


def make_folder(path: Path, mode: int = 0o777, *, new: bool = False) -> None:
    """Make a folder, and those around it that are not there; with `new`, one that is there is an error."""
    with _in_words(f"cannot make the folder {path}"):
        made = [each for each in (path, *path.parents) if not each.exists()]
        for each in reversed(made[1:]):
            each.mkdir(exist_ok=True)
        path.mkdir(mode=mode, exist_ok=not new)
        for each in reversed(made):
            _flush(each.parent)


def move(source: Path, goal: Path) -> None:
    """Rename a flushed file or folder; a file may replace another."""
    with _in_words(f"cannot write {goal}"):
        source.replace(goal)
        _flush(goal.parent)
        if source.parent != goal.parent:
            _flush(source.parent)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with what is in it; what is not there is no error."""
    if os.path.lexists(path):
        with _in_words(f"cannot remove {path}"):
            _remove(path)
            _flush(path.parent)


def remove_drafts(folder: Path, *names: str) -> None:
    """Remove drafts that killed writers left in a folder: of these names, or else of any, also in folders below.

    Only for whoever holds the lock of the folder: the draft of a writer at work would go too.
    """
    with _in_words(f"cannot remove what is unfinished in {folder}"):
        for path in list(folder.iterdir() if names else folder.rglob(".*.draft")):
            found = _DRAFT.fullmatch(path.name)
            if found is not None and (not names or found["name"] in names):
                _remove(path)


def flush(path: Path) -> None:
    """Return when a file, or a folder with all that is in it, is on the disk and not only in the system's memory."""
    with _in_words(f"cannot write {path}"):
        if path.is_dir():
            for inside in sorted(path.iterdir()):
                if not inside.is_symlink():
                    flush(inside)
        _flush(path)


def _flush(path: Path) -> None:
    """Flush one file, or the list of names that a folder is."""
    if os.name == "nt" and path.is_dir():  # pragma: no cover (Windows flushes no folders)
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # what a file system says that cannot flush a folder
            raise
    finally:
        os.close(handle)


def _rename_to_new(draft: Path, path: Path) -> None:
    """Rename a file to a name that must not be taken."""
    try:
        os.link(draft, path)  # unlike a rename, it never replaces
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        draft.replace(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
