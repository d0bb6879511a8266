"""Cleaning: the training data without the forgotten records, in the format that they came in.

A record that stays in the training data comes back with the next training. Row numbers are those of `read_records`.
Values of the rows that stay are as they were; how a file is laid out (quotes, compression) is up to Arrow and NumPy.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from forsaken._files import create, draft_of, write_atomically
from forsaken._untrusted import UnreadableError, read_npz
from forsaken.data.duplicates import Duplicates, content_keys, find_duplicates
from forsaken.data.readers import INPUT_KEYS, picture_files, read_parquet
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import DataError, ForsakenError, InputError, OutputError
from forsaken.jobs.configuration import Job
from forsaken.jobs.output import COPIES
from forsaken.jobs.output import ROWS as ROWS_FILE
from forsaken.jobs.rows import Rows, comparable
from forsaken.types import Array, Progress

_LARGEST_BLOCK = 2**30  # Arrow reads a CSV file in blocks, and a text cannot be longer than one
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet takes for the beginning of a formula
_NUMBER = re.compile(r"[+-]?[0-9.]+")
_UNREADABLE = (pa.ArrowException, BadZipFile, ValueError, EOFError)


class UnsafeError(ForsakenError):
    """A file that cannot be written anew without the risk of changing what is to stay; the message says why."""


def write_cleaned(
    source: Path | None,
    rows: Sequence[int] | Array,
    folder: Path,
    *,
    mode: Literal["dataset", "rows"] = "dataset",
    ids: Sequence[object] | Array | None = None,
) -> tuple[Path, str]:
    """Write the training data without `rows`, or the list of these rows.

    Parameters
    ----------
    source : path or None
        A `.parquet`, `.csv` or `.npz` file, which is never changed; a folder of pictures; None for data without a file.
    rows : sequence of int
        The rows to take out, numbered from 0 as `read_records` does.
    folder : path
        Where `cleaned.<suffix>` or `rows-to-delete.csv` is written.
    mode : "dataset" or "rows"
        Write the data, or the list. Where a source cannot be written anew the list is written in either mode.
    ids : sequence, optional
        The id of every training row, for the list; without it ids are row numbers.

    Returns
    -------
    path, str
        The file, and a sentence on why it is a list where the data were asked for; else an empty text.
    """
    given, why = np.asarray(rows), ""
    if given.size and given.dtype.kind not in "iu":
        raise InputError(f"rows are of dtype {given.dtype}", field="rows", expected="row numbers, counted from 0")
    gone = np.unique(given.astype(np.int64))
    if mode == "dataset":
        suffix = "" if source is None or source.is_dir() else source.suffix.lower()
        if source is None or suffix not in _WRITERS:
            what = "data without a file of their own" if source is None else f"the folder of pictures {source.name}"
            why = f"delete what {ROWS_FILE} lists from your training data: {what} cannot be rewritten here"
        else:
            try:
                return _rewritten(source, gone, folder / f"cleaned{suffix}"), why
            except UnsafeError as error:
                why = f"{ROWS_FILE} lists the rows to delete: {source.name} cannot be written anew safely ({error})"
    return _write_list(source, gone, folder / ROWS_FILE, ids), why


def _rewritten(source: Path, gone: Array, goal: Path) -> Path:
    if goal.exists() and goal.samefile(source):
        raise OutputError(
            f"{goal} is the training data themselves and would be overwritten; give another output folder"
        )
    try:
        with draft_of(goal) as draft:
            _WRITERS[source.suffix.lower()](source, draft, gone)
    except _UNREADABLE as error:
        if isinstance(error, ForsakenError):
            raise
        # Arrow's own message may quote a row.
        raise DataError(f"{source} cannot be read ({type(error).__name__}); get or export it again") from None
    return goal


def _write_csv(source: Path, goal: Path, gone: Array) -> None:
    try:
        table = _read_as_text(source)
    except pa.ArrowInvalid as error:
        if _is_utf8(source):
            raise
        raise UnsafeError("it is not UTF-8 throughout") from error
    kept = table.filter(_staying(gone, len(table), source))
    with source.open("rb") as file, create(goal) as out:
        mark = file.read(len(codecs.BOM_UTF8))
        out.write(mark if mark == codecs.BOM_UTF8 else b"")  # without it Excel takes the text for another encoding
        pa.csv.write_csv(kept, out)
    if not _read_as_text(goal).equals(kept):
        raise OutputError(f"the rows of {goal.name} are not those of {source.name} less the forgotten ones")


def _is_utf8(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            return all(True for _ in file)
    except UnicodeDecodeError:
        return False


def _read_as_text(path: Path) -> pa.Table:
    """Read every column of a CSV file as text, so that each value stays as it is written: 007, 1.50, NaN."""
    reading = pa.csv.ReadOptions(block_size=min(path.stat().st_size, _LARGEST_BLOCK))
    parsing = pa.csv.ParseOptions(newlines_in_values=True)
    with pa.csv.open_csv(path, reading, parsing) as file:
        texts = {name: pa.string() for name in file.schema.names}
    return pa.csv.read_csv(path, reading, parsing, pa.csv.ConvertOptions(column_types=texts))


def _write_parquet(source: Path, goal: Path, gone: Array) -> None:
    table = read_parquet(source)
    kept = table.filter(_staying(gone, len(table), source))
    for at, field in enumerate(kept.schema):
        if pa.types.is_dictionary(field.type):
            # A dictionary keeps the values of the rows that have left, and Arrow would write them all.
            anew = kept[at].cast(field.type.value_type).dictionary_encode().cast(field.type)
            kept = kept.set_column(at, field, anew)
        elif "dictionary" in str(field.type):
            raise UnsafeError(f"its column {field.name!r} holds dictionaries, which keep the values of rows that left")
    with create(goal) as out:
        pq.write_table(kept, out)
    if pq.read_metadata(goal).num_rows != len(kept):
        raise OutputError(f"the rows of {goal.name} are not those of {source.name} less the forgotten ones")


def _write_npz(source: Path, goal: Path, gone: Array) -> None:
    try:
        _, arrays = read_npz(source)
    except UnreadableError as error:
        read_npz(source, INPUT_KEYS)  # where not even these can be read, the file is damaged
        raise UnsafeError(str(error)) from error
    inputs = next((arrays[name] for name in INPUT_KEYS if name in arrays), None)
    if inputs is None:
        raise DataError(f"{source} has no array 'inputs' or 'x' (found: {', '.join(arrays)}); name one of them so")
    if "file" in arrays:
        raise UnsafeError("it holds an array called 'file', which NumPy cannot write")
    stays = _staying(gone, len(inputs), source)
    with create(goal) as out:
        kept: dict[str, Any] = {
            name: array[stays] if array.shape[:1] == stays.shape else array for name, array in arrays.items()
        }
        np.savez(out, **kept)
    _, written = read_npz(goal)
    if {name: part.shape for name, part in written.items()} != {name: part.shape for name, part in kept.items()}:
        raise OutputError(f"the arrays of {goal.name} are not those of {source.name} less the forgotten rows")


_WRITERS: dict[str, Callable[[Path, Path, Array], None]] = {
    ".csv": _write_csv,
    ".npz": _write_npz,
    ".parquet": _write_parquet,
}


def _staying(gone: Array, count: int, source: Path) -> Array:
    """Return for each of `count` rows whether it stays."""
    _check_rows(gone, count, source.name)
    stays = np.ones(count, dtype=bool)
    stays[gone] = False
    return stays


def _check_rows(rows: Array, count: float, where: str) -> None:
    outside = rows[(rows < 0) | (rows >= count)]
    if len(outside):
        raise InputError(f"row {outside[0]} is not in {where} ({len(outside)} rows in all); number rows from 0")


def _write_list(source: Path | None, gone: Array, goal: Path, ids: Sequence[Any] | Array | None) -> Path:
    pictures = source is not None and source.is_dir()
    if source is not None and pictures:
        ids = [path.relative_to(source).as_posix() for path in picture_files(source)]
    _check_rows(gone, np.inf if ids is None else len(ids), goal.name if source is None else source.name)
    lines = [[row, row if ids is None else ids[row]] for row in gone.tolist()]
    return _write_rows(goal, [["row", "file" if pictures else "id"], *lines])


def _write_rows(goal: Path, lines: Sequence[Sequence[object]]) -> Path:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[_as_cell(value) for value in line] for line in lines])
    return write_atomically(goal, text.getvalue().encode())


def _as_cell(value: object) -> object:
    """Return a value for a list that people open in a spreadsheet, which would run a text such as =HYPERLINK(...).

    >>> _as_cell("=1+1"), _as_cell("-5"), _as_cell("anna@home"), _as_cell(7)
    ("'=1+1", '-5', 'anna@home', 7)
    """
    risky = isinstance(value, str) and value[:1] in _FORMULA and not _NUMBER.fullmatch(value)
    return f"'{value}" if risky else value


def rows_of(forget: Records | Samples, train: Records | Samples) -> Array:
    """Return the training rows, in order, whose content equals that of a record to forget; labels do not count."""
    ours, theirs = content_keys(forget, train)
    wanted = set(ours)
    return np.array([row for row, key in enumerate(theirs) if key in wanted], dtype=np.int64)


def clean(
    job: Job, rows: Mapping[str, Rows], folder: Path, warnings: list[str], progress: Progress
) -> dict[str, Any] | None:
    """Take the forgotten records out of the training data, and look for copies of them that stay there."""
    train, forget = rows.get("train"), rows["forget"]
    if train is None:
        warnings.append(
            "the forgotten records must leave the training data too, or the next training brings them back; with train "
            "= in [data] this is done here"
        )
        return None
    if not comparable(forget.content, train.content):
        warnings.append(
            "the forget records and the training data are of different kinds, so neither were they found there nor "
            "copies of them; give both in the same way, or name the rows by their ids"
        )
        return None
    gone = _places(forget, train)
    absent = int(forget.apart_from([train]).sum())
    if absent:
        warnings.append(
            f"{absent} of {len(forget)} forget records were not found in the training data; are these the data, in the "
            "same form, that the model was trained on?"
        )
    copies = find_duplicates(forget.content, train.content, skip=gone.tolist(), progress=progress)
    if copies.exact or copies.near:
        _write_copies(copies, train, folder)
        warnings.append(
            f"copies of forgotten records stay in the training data ({len(copies.exact)} exact, {len(copies.near)} "
            f"near; listed in {COPIES}): while they are there, the model may still know what was to be forgotten"
        )
    file = None
    if job.output.cleaned != "none" and len(gone):
        # Of a part of a file only the row numbers are written: the rest of the file was not read.
        source = job.data.train
        whole = source is not None and source.path is not None and source.ids is None and source.count is None
        path, why = write_cleaned(
            train.path if whole else None,
            train.index[gone],
            folder,
            mode=job.output.cleaned,
            ids=train.ids if whole else None,
        )
        file = path.name
        warnings += [why] if why else []
    found = {"rows": len(gone), "exact": len(copies.exact), "near": len(copies.near), "not_found": absent}
    return found | {"file": file}


def _write_copies(copies: Duplicates, train: Rows, folder: Path) -> None:
    lines: list[list[object]] = [["row", "id", "forget_row", "similarity"]]
    for pair in sorted((*copies.exact, *copies.near), key=lambda pair: pair.train):
        row = int(train.index[pair.train])
        own = row if train.ids is None else train.ids[pair.train]
        lines.append([row, own, pair.forget, f"{pair.similarity:.3f}"])
    _write_rows(folder / COPIES, lines)


def _places(forget: Rows, train: Rows) -> Array:
    """Return where in the training data the forget records are: by row number, or else by content."""
    if forget.home == train.home:
        return np.flatnonzero(np.isin(train.index, forget.index))
    return rows_of(forget.content, train.content)
