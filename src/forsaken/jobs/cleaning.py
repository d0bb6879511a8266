"""Cleaning: the training data without the forgotten records, in the format that they came in.

A record that stays in the training data comes back with the next training. Row numbers are those of `read_records`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa

from forsaken._files import draft_of, write_atomically
from forsaken.data.duplicates import content_keys
from forsaken.data.readers import picture_files
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import DataError, DataNotFoundError, InputError, OutputError, UnknownNameError
from forsaken.jobs.output import ROWS as ROWS_FILE
from forsaken.jobs.rewriting import UnsafeError, check_rows, rewrite_csv, rewrite_npz, rewrite_parquet
from forsaken.types import Array

Mode: TypeAlias = Literal["dataset", "rows"]
_REWRITE: dict[str, Callable[[Path, Path, Array], None]] = {
    ".csv": rewrite_csv,
    ".npz": rewrite_npz,
    ".parquet": rewrite_parquet,
}
_UNREADABLE = (pa.ArrowException, BadZipFile, ValueError, EOFError, UnicodeDecodeError)


def _unheard(sentence: str) -> None:
    """Tell nobody."""


def rows_of(forget: Records | Samples, train: Records | Samples) -> Array:
    """Return the training rows, in order, whose content equals that of a record to forget; labels do not count."""
    ours, theirs = content_keys(forget, train)
    wanted = set(ours)
    return np.array([row for row, key in enumerate(theirs) if key in wanted], dtype=np.int64)


def write_cleaned(
    source: Path | None,
    rows: Sequence[int] | Array,
    goal_folder: Path,
    *,
    mode: Mode = "dataset",
    ids: Sequence[object] | Array | None = None,
    note: Callable[[str], object] = _unheard,
) -> Path:
    """Write the training data without `rows`, or the list of these rows, and return the path of the file.

    Parameters
    ----------
    source : path or None
        A `.parquet`, `.csv` or `.npz` file, which is never changed; a folder of pictures; None for data without a file.
    rows : sequence of int
        The rows to take out, numbered from 0 as `read_records` does.
    goal_folder : path
        Where `cleaned.<suffix>` or `rows-to-delete.csv` is written.
    mode : "dataset" or "rows"
        Write the data, or the list. Where a source cannot be rewritten safely the list is written in either mode.
    ids : sequence, optional
        The id of every training row, for the list; without it ids are row numbers.
    note : callable
        Told, in one sentence, why a list was written where the data were asked for.
    """
    if mode not in ("dataset", "rows"):
        raise UnknownNameError("way of cleaning", mode, ("dataset", "rows"))
    gone = _checked_rows(rows)
    if source is not None and not source.exists():
        raise DataNotFoundError(f"no file or folder {source}; check the path of the training data")
    if mode == "dataset":
        suffix = "" if source is None or source.is_dir() else source.suffix.lower()
        if source is None or suffix not in _REWRITE:
            what = "data without a file of their own" if source is None else f"a folder of pictures, {source.name}"
            note(f"{ROWS_FILE} lists what is to leave the training data: they are {what}, and not written anew")
        else:
            try:
                return _rewritten(source, gone, goal_folder / f"cleaned{suffix}")
            except UnsafeError as error:
                note(f"{ROWS_FILE} lists the rows to delete: {source.name} cannot be written anew safely ({error})")
    return _write_list(source, gone, goal_folder / ROWS_FILE, ids)


def _checked_rows(rows: Sequence[int] | Array) -> Array:
    found = np.asarray(rows)
    if found.size == 0:
        return np.zeros(0, dtype=np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise InputError(f"rows are of type {found.dtype} and shape {found.shape}, expected a list of row numbers")
    return np.unique(found.astype(np.int64))


def _rewritten(source: Path, gone: Array, goal: Path) -> Path:
    if goal.exists() and goal.samefile(source):
        raise OutputError(
            f"{goal} is the training data themselves and would be overwritten; give another output folder"
        )
    try:
        with draft_of(goal) as draft:
            _REWRITE[source.suffix.lower()](source, draft, gone)
    except UnsafeError:
        raise
    except _UNREADABLE as error:
        if isinstance(error, InputError | DataError | OutputError):
            raise
        # Arrow's own message may quote a row.
        raise DataError(f"{source} cannot be read ({type(error).__name__}); get or export it again") from None
    return goal


def _write_list(source: Path | None, gone: Array, goal: Path, ids: Sequence[object] | Array | None) -> Path:
    names: Sequence[Any] | Array | None = ids
    if source is not None and source.is_dir():
        names = [path.relative_to(source).as_posix() for path in picture_files(source)]
    count = None if names is None else len(names)
    check_rows(gone, count, goal.name if source is None else source.name)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "file" if source is not None and source.is_dir() else "id"])
    writer.writerows([row, row if names is None else names[row]] for row in gone.tolist())
    return write_atomically(goal, text.getvalue().encode())
