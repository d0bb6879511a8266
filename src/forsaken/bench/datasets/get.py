"""Getting a dataset: fetched from its home, parsed, and written in its normalised form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from forsaken._files import draft_of, write_atomically
from forsaken.bench.datasets.fetch import fetch
from forsaken.bench.datasets.folder import VARIABLE, data_folder
from forsaken.bench.datasets.registry import Dataset
from forsaken.bench.datasets.store import (
    WRITTEN,
    check_originals,
    dataset_named,
    digest_of,
    files_of,
    originals_of,
    recorded,
)
from forsaken.errors import DataError, OutputError
from forsaken.types import Progress, Tick, silent


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot make the folder {folder}: {error.strerror}; name another one in {VARIABLE}"
        ) from error
    with _alone(folder):
        return _get(dataset, folder, keep_originals, progress)


def _get(dataset: Dataset, folder: Path, keep_originals: bool, progress: Progress) -> list[Path]:
    stems = set(dataset.parts.values())
    originals = folder / "originals"
    files = originals_of(dataset, folder)
    check_originals(dataset)
    files |= {a.file: fetch(a, originals, progress) for a in dataset.archives if a.file not in files}
    recorded()  # a damaged record must show before anything is written
    tables = dataset.parse(files, progress)
    if set(tables) != stems:
        raise DataError(
            f"the archives of {dataset.name} gave {sorted(tables)}, expected {sorted(stems)}; get all of them"
        )
    for stem, table in tables.items():
        _check_rows(dataset, stem, table)
    written = [_write(table, folder / f"{stem}.parquet", progress) for stem, table in tables.items()]
    if not keep_originals:
        for archive in dataset.archives:
            (originals / archive.file).unlink(missing_ok=True)
    return written


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time write to a data folder: two downloads of one file would spoil each other."""
    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise OutputError(f"another process is getting a dataset into {folder}; wait until it is done") from error
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
        pq.write_table(table, draft, compression="zstd", row_group_size=5000)
    known = recorded() | {path.name: digest_of(path, "sha256")}
    write_atomically(path.parent / WRITTEN, json.dumps(known, indent=1, sort_keys=True).encode() + b"\n")
    progress(Tick(f"write {path.name}", 1, 1))
    return path
