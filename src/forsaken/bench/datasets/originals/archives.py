"""Reading archives as streams: nothing is unpacked to disk, and damage has a clear name."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from forsaken.errors import DataError, DataNotFoundError
from forsaken.types import Progress, Tick

_STEP = 8 * 2**20  # compressed bytes from one sign of life to the next
_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile),
    *(EOFError, UnicodeDecodeError, NotImplementedError),
)


def damaged(path: Path, problem: str) -> DataError:
    """Return the error for a file that is not what its name says."""
    return DataError(f"{path} is damaged or not the original: {problem}; delete it and download it again")


def given(files: Mapping[str, Path], name: str) -> Path:
    """Return the path of an archive that must be there."""
    path = files.get(name)
    if path is None or not path.is_file():
        raise DataNotFoundError(f"the original file {name} is not among {sorted(files)}; download it first")
    return path


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong while `path` is read inside the block into one error that names it."""
    try:
        yield
    except _DAMAGE as error:
        raise damaged(path, str(error) or type(error).__name__) from error


def unzipped(path: Path) -> bytes:
    """Return the content of a gzip file."""
    with reading(path), gzip.open(path) as file:
        return file.read()


def tar_members(path: Path, wanted: Callable[[str], bool], progress: Progress) -> Iterator[tuple[str, bytes]]:
    """Return name and content of the plain files of a .tar.gz that are `wanted`, in the archive's order.

    The archive is read to its end even when nothing more is wanted: only there stands the checksum of what was read.
    """
    total = path.stat().st_size
    told = 0
    with reading(path), path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as plain:
        # tarfile's own gzip stream takes a cut-off file for a complete one; GzipFile raises.
        with tarfile.open(fileobj=plain, mode="r|") as tar:
            for member in tar:
                if raw.tell() - told >= _STEP:
                    told = raw.tell()
                    progress(Tick(f"read {path.name}", told // 2**20, total // 2**20))
                file = tar.extractfile(member) if member.isfile() and wanted(member.name) else None
                if file is not None:
                    yield member.name, file.read()
        while plain.read(2**20):
            pass
    progress(Tick(f"read {path.name}", total // 2**20, total // 2**20))


def chosen_members(path: Path, names: tuple[str, ...], progress: Progress) -> dict[str, bytes]:
    """Return the members of a .tar.gz whose last parts are `names`; all of them must be there."""
    found = {
        name.rpartition("/")[2]: content
        for name, content in tar_members(path, lambda name: name.rpartition("/")[2] in names, progress)
    }
    missing = ", ".join(name for name in names if name not in found)
    if missing:
        raise damaged(path, f"it holds no {missing}")
    return found
