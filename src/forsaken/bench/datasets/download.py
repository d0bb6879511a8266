"""Getting a dataset: downloaded from its home, checked, parsed, and written as Parquet into the data folder.

A download that was interrupted goes on where it stopped. Nothing is ever half-written under its final name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from forsaken._files import create, draft_of, extend, flush, make_folder, move, remove, remove_drafts, write_atomically
from forsaken.bench.datasets.registry import Archive, Dataset
from forsaken.bench.datasets.store import (
    VARIABLE,
    WRITTEN,
    check_originals,
    data_folder,
    dataset_named,
    digest_of,
    files_of,
    originals_of,
    recorded,
)
from forsaken.errors import DataError, DownloadError, OutputError
from forsaken.types import Progress, Tick, silent

if TYPE_CHECKING:
    from requests import Response

_KINDS = ("md5", "sha256")
CHECKSUMS = "checksums.json"  # SHA-256 of the first download of every archive that has no published checksum
TIMEOUT = (20.0, 60.0)  # seconds to connect, and between two pieces of an answer
_PIECE, _MIB = 2**16, 2**20


def get_dataset(
    name: str, *, keep_originals: bool = False, force: bool = False, progress: Progress = silent
) -> list[Path]:
    """Download a dataset from its home, parse it, and write its normalised Parquet files; they appear only complete.

    Returns
    -------
    list of Path
        The normalised files. What is there already is left as it is, unless `force`.
    """
    dataset = dataset_named(name)
    stems = list(dict.fromkeys(dataset.parts.values()))
    if not force and all(files_of(dataset, stem) for stem in stems):
        return [path for stem in stems for path in files_of(dataset, stem)]
    folder = data_folder()
    originals = folder / "originals"
    with _alone(folder):
        remove_drafts(folder, *(f"{stem}.parquet" for stem in stems), WRITTEN)
        files = originals_of(dataset, folder)
        check_originals(dataset)
        files |= {each.file: fetch(each, originals, progress) for each in dataset.archives if each.file not in files}
        recorded(folder / WRITTEN)  # a damaged record must show before anything is written
        tables = dataset.parse(files, progress)
        if set(tables) != set(stems):
            raise DataError(
                f"the archives of {dataset.name} gave {sorted(tables)}, expected {sorted(stems)}; get all of them"
            )
        for stem, table in tables.items():
            _check_rows(dataset, stem, table)
        written = [_write(table, folder / f"{stem}.parquet", progress) for stem, table in tables.items()]
        if not keep_originals:
            for archive in dataset.archives:
                remove(originals / archive.file)
        return written


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time write to a data folder: two downloads of one file would spoil each other."""
    try:
        make_folder(folder)
        lock = FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except Timeout as error:
        raise OutputError(f"another process is getting a dataset into {folder}; wait until it is done") from error
    except OutputError as error:
        raise error.with_remedy(f"name another folder in {VARIABLE}") from error
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror}; name another folder in {VARIABLE}") from error
    try:
        yield
    finally:
        lock.release()


def _check_rows(dataset: Dataset, stem: str, table: pa.Table) -> None:
    expected = sum(rows for split, rows in dataset.rows.items() if dataset.parts[split] == stem)
    if table.num_rows != expected:
        raise DataError(
            f"the archive of {dataset.name} gave {table.num_rows:,} rows for {stem}, expected {expected:,}; "
            "delete it from the folder originals and get it again"
        )


def _write(table: pa.Table, path: Path, progress: Progress) -> Path:
    progress(Tick(f"write {path.name}", 0, 1))
    with draft_of(path) as draft:
        with create(draft) as file:
            pq.write_table(table, file, compression="zstd", row_group_size=5000)
        # Noted before the file has its name: a kill in between leaves a note too many, not a file that no note checks.
        _record(path.parent / WRITTEN, path.name, digest_of(draft, "sha256"))
    progress(Tick(f"write {path.name}", 1, 1))
    return path


def _record(path: Path, name: str, digest: str) -> None:
    known = recorded(path) | {name: digest}
    write_atomically(path, json.dumps(known, indent=1, sort_keys=True).encode() + b"\n")


def fetch(archive: Archive, folder: Path, progress: Progress = silent) -> Path:
    """Return the path of an archive in `folder`, downloading it unless it is there and has the right checksum.

    An interrupted download leaves `<file>.part`. The next one asks for the rest of it alone where a checksum is known:
    the checksum shows when the file has changed at its home in the meantime. Where no checksum is published, the
    SHA-256 of the first download is kept in `checksums.json` in the folder, and checked from then on.

    Raises
    ------
    DownloadError
        The file cannot be reached, or the transfer stopped; call again to go on.
    DataError
        The file is not the one that was published; it has been removed.
    OutputError
        The folder cannot be written to.
    """
    path, part = folder / archive.file, folder / f"{archive.file}.part"
    try:
        make_folder(folder)
        known = archive.checksum or recorded(folder / CHECKSUMS).get(archive.file)
        kind, _, expected = (known or "sha256:").partition(":")
        if kind not in _KINDS:
            raise DataError(
                f"{folder / CHECKSUMS} has a checksum of kind {kind!r} for {archive.file}",
                expected=" or ".join(_KINDS),
                remedy="remove its line, and the file is fetched anew",
            )
        if path.is_file() and expected and digest_of(path, kind) != expected:
            remove(path)
        if not path.is_file():
            if not expected:
                remove(part)  # without a checksum, parts of two versions could be joined unnoticed
            _download(archive, part, progress)
            found = digest_of(part, kind)
            if expected and found != expected:
                remove(part)
                raise DataError(
                    f"{archive.file} from {archive.url} has the wrong checksum and was removed ({kind} {found}, "
                    f"expected {expected})",
                    remedy="try again; if it happens again, the file at its home has changed"
                    + ("" if archive.checksum else f": to accept the new one, remove its line from {CHECKSUMS}"),
                )
            flush(part)
            move(part, path)
        if not expected:
            _record(folder / CHECKSUMS, archive.file, f"sha256:{digest_of(path, 'sha256')}")
    except (DownloadError, OutputError):
        raise
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}; is the disk full?") from error
    return path


def _download(archive: Archive, part: Path, progress: Progress) -> None:
    """Download an archive into `part`, after the bytes that are there already if the server can go on from them."""
    import requests  # noqa: PLC0415 (only downloads need it)

    size = part.stat().st_size if part.is_file() else 0
    # Archives must arrive as they are: a compressed transfer could not be resumed.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={size}-"} if size else {})
    try:
        with requests.get(archive.url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if (
                response.status_code == 416
            ):  # there is nothing after these bytes; the checksum tells whether all is well
                return
            size = _start(response, archive, part, size)
            length = response.headers.get("Content-Length", "")
            total = size + int(length) if length.isdecimal() else 0
            with extend(part, anew=not size) as file:
                for piece in response.iter_content(_PIECE):
                    file.write(piece)
                    if size // _MIB != (size + len(piece)) // _MIB:
                        progress(Tick(f"download {archive.file}", (size + len(piece)) // _MIB, -(-total // _MIB)))
                    size += len(piece)
    except requests.Timeout as error:
        raise _failure(archive, part, "no answer in time") from error
    except requests.RequestException as error:
        raise _failure(archive, part, "the connection broke, or the server cannot be reached") from error
    if total and size != total:
        raise _failure(archive, part, f"it ended after {size:,} of {total:,} bytes")
    progress(Tick(f"download {archive.file}", -(-size // _MIB), -(-total // _MIB)))


def _start(response: Response, archive: Archive, part: Path, size: int) -> int:
    """Return from which byte on an answer tells the file: `size`, or zero where the server sends all of it."""
    if response.status_code not in (200, 206):
        raise _failure(archive, part, f"the server answered {response.status_code} {response.reason}")
    if response.headers.get("Content-Type", "").startswith("text/html"):
        raise _failure(archive, part, "the server sent a web page instead, perhaps one to log in to the network")
    if response.status_code == 200:
        return 0
    if not response.headers.get("Content-Range", "").startswith(f"bytes {size}-"):
        remove(part)
        raise _failure(archive, part, "the server went on from another byte")
    return size


def _failure(archive: Archive, part: Path, cause: str) -> DownloadError:
    kept = part.stat().st_size if part.is_file() else 0
    return DownloadError(
        f"cannot download {archive.file} from {archive.url}: {cause}",
        remedy=f"check the network and try again ({kept:,} bytes are kept and not asked for again), or put the file "
        f"into {part.parent} yourself",
    )
