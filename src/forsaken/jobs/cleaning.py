"""Cleaning: the training data without the forgotten records, in the format that they came in.

A record that stays in the training data comes back with the next training. Row numbers are those of `read_records`.
"""

from __future__ import annotations

import csv
import io
import mmap
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TypeAlias
from zipfile import BadZipFile, ZipFile, ZipInfo

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from forsaken._files import draft_of, write_atomically
from forsaken.data.duplicates import Duplicates, content_keys, find_duplicates
from forsaken.data.readers import INPUT_KEYS, picture_files
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import DataError, DataNotFoundError, ForsakenError, InputError, OutputError, UnknownNameError
from forsaken.jobs.configuration import Job
from forsaken.jobs.output import COPIES
from forsaken.jobs.output import ROWS as ROWS_FILE
from forsaken.jobs.rows import Rows, comparable
from forsaken.types import Array, Progress

_BOM = b"\xef\xbb\xbf"
# A quote opens a quoted field only where the field begins, as in Arrow's reader; possessive, so that no input is slow.
_FIELD = rb'(?:"[^"]*+(?:""[^"]*+)*+"[^,\r\n]*+|(?!")[^,\r\n]*+)'
_LINE = re.compile(_FIELD + rb"(?:," + _FIELD + rb")*+(?:\r\n|\r|\n|\Z)")
_FIELDS = re.compile(rb"(?:^|,)" + _FIELD)
_LARGEST_BLOCK = 2**30  # Arrow reads a CSV file in blocks, and a text cannot be longer than one
_EMPTY = (b"", b"\n", b"\r", b"\r\n")


class UnsafeError(ForsakenError):
    """A file that cannot be written anew without the risk of changing what is to stay; the message says why."""


def check_rows(rows: Array, count: int | None, where: str) -> None:
    """Raise unless every row is one of `count` (None: unknown) rows."""
    outside = rows[(rows < 0) | (rows >= (np.inf if count is None else count))]
    if len(outside):
        known = "0 or more" if count is None else f"0 to {count - 1}"
        raise InputError(
            f"row {outside[0]} is not in {where}, expected {known} ({len(outside)} rows in all are out of range); "
            "number rows from 0, as read_records does"
        )


def rewrite_csv(source: Path, goal: Path, gone: Array) -> None:
    """Write a CSV file without the rows `gone`; every other byte is as it was."""
    unwanted = {row + 1 for row in gone.tolist()}
    count = columns = 0
    with source.open("rb") as file, goal.open("xb") as out:
        if source.stat().st_size == 0:
            raise UnsafeError("it is empty")
        with closing(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) as content:
            start = len(_BOM) if content[: len(_BOM)] == _BOM else 0
            out.write(content[:start])
            for line in _lines(content, start):
                if line in _EMPTY:
                    out.write(line)  # no row: the reader passes over it
                    continue
                columns = columns or len(_FIELDS.findall(line))
                if count not in unwanted:
                    out.write(line)
                count += 1
    check_rows(gone, count - 1, source.name)
    before, after = _cells(source, columns), _cells(goal, columns)
    if before.num_rows != count:
        raise UnsafeError(f"its lines make {count - 1} rows, but the reader finds {before.num_rows - 1}")
    kept = np.ones(count, dtype=bool)
    kept[gone + 1] = False
    if not after.equals(before.filter(pa.array(kept))):
        raise OutputError(f"the rows of {goal.name} are not those of {source.name} less the forgotten ones")


def _lines(content: mmap.mmap, start: int) -> Iterator[bytes]:
    while start < len(content):
        found = _LINE.match(content, start)
        if found is None:
            raise UnsafeError("a quote is opened and never closed")
        yield found.group()
        start = found.end()


def _cells(path: Path, columns: int) -> pa.Table:
    """Read every cell of a CSV file as the bytes that it is, the header as the first row."""
    size = path.stat().st_size
    return pa.csv.read_csv(
        path,
        pa.csv.ReadOptions(block_size=min(size, _LARGEST_BLOCK), autogenerate_column_names=True),
        pa.csv.ParseOptions(newlines_in_values=True),
        pa.csv.ConvertOptions(column_types={f"f{at}": pa.binary() for at in range(columns)}),
    )


def rewrite_parquet(source: Path, goal: Path, gone: Array) -> None:
    """Write a Parquet file without the rows `gone`, a row group at a time; schema and compression are as they were."""
    with pq.ParquetFile(source) as file:
        count, groups = file.metadata.num_rows, file.num_row_groups
        check_rows(gone, count, source.name)
        kept = np.ones(count, dtype=bool)
        kept[gone] = False
        plain = _without_dictionaries(file.schema_arrow)
        start = 0
        with pq.ParquetWriter(goal, plain, store_schema=False, **_writing(file.metadata)) as writer:
            for group in range(groups):
                table = file.read_row_group(group)
                part = table.filter(pa.array(kept[start : start + len(table)]))
                start += len(table)
                if len(part):
                    writer.write_table(part.cast(plain), row_group_size=len(part))
            writer.add_key_value_metadata(file.metadata.metadata or {})
        with pq.ParquetFile(goal) as written:
            same = written.schema_arrow.equals(file.schema_arrow, check_metadata=True)
            if written.metadata.num_rows != count - len(gone) or not same:
                raise OutputError(f"{goal.name} does not hold {source.name} less {len(gone)} of its {count} rows")


def _without_dictionaries(schema: pa.Schema) -> pa.Schema:
    """Return a schema that stores the values themselves.

    A dictionary keeps the values of the rows that have left it, and Arrow writes them all. The file's own note of its
    Arrow schema makes dictionaries of them again for whoever reads it.
    """
    return pa.schema([field.with_type(_plain(field.type)) for field in schema])


def _plain(kind: Any) -> Any:
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_plain(kind.key_type)), kind.item_field.with_type(_plain(kind.item_type))
        )
    for is_kind, make in ((pa.types.is_list, pa.list_), (pa.types.is_large_list, pa.large_list)):
        if is_kind(kind):
            return make(kind.value_field.with_type(_plain(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)), kind.list_size)
    return kind


def _writing(metadata: Any) -> dict[str, Any]:
    """Return how the columns of a Parquet file are stored, as settings of the writer."""
    version = metadata.format_version if metadata.format_version in ("1.0", "2.4", "2.6") else "2.6"
    if metadata.num_row_groups == 0:
        return {"version": version}
    group = metadata.row_group(0)
    columns = [group.column(at) for at in range(metadata.num_columns)]
    coded = [column.path_in_schema for column in columns if any("DICTIONARY" in code for code in column.encodings)]
    packed = {column.path_in_schema: column.compression.replace("UNCOMPRESSED", "NONE") for column in columns}
    return {
        "version": version,
        "compression": packed,
        "use_dictionary": coded or False,
        "write_statistics": [column.path_in_schema for column in columns if column.is_stats_set] or False,
        "use_deprecated_int96_timestamps": any(column.physical_type == "INT96" for column in columns),
    }


def rewrite_npz(source: Path, goal: Path, gone: Array) -> None:
    """Write an NPZ file without the rows `gone` in every array that has one entry a row."""
    with np.load(source, allow_pickle=False) as arrays, ZipFile(source) as old, ZipFile(goal, "x") as new:
        count = _rows_of_npz(arrays, source)
        check_rows(gone, count, source.name)
        for member in old.infolist():
            name = member.filename.removesuffix(".npy")
            array = _array(arrays, name)
            if array is None or array.shape[:1] != (count,):
                new.writestr(_like(member), old.read(member))
                continue
            with new.open(_like(member), "w", force_zip64=True) as out:
                np.lib.format.write_array(out, np.delete(array, gone, axis=0), allow_pickle=False)
    with np.load(source, allow_pickle=False) as arrays, np.load(goal, allow_pickle=False) as written:
        for name in arrays.files:
            before = _array(arrays, name)
            if before is not None and before.shape[:1] == (count,):
                _check_array(written[name], np.delete(before, gone, axis=0), name, goal)


def _rows_of_npz(arrays: Any, source: Path) -> int:
    name = next((key for key in INPUT_KEYS if key in arrays.files), None)
    if name is None:
        raise DataError(
            f"{source} has no array 'inputs' or 'x' (found: {', '.join(arrays.files)}); name one of them so"
        )
    return len(arrays[name])


def _array(arrays: Any, name: str) -> Array | None:
    """Return an array of an NPZ file, or None for what is no array."""
    try:
        array = arrays[name] if name in arrays.files else None
    except ValueError as error:
        raise UnsafeError(
            f"its array {name!r} holds objects, which are not loaded since they may carry code"
        ) from error
    return array if isinstance(array, np.ndarray) else None


def _like(member: ZipInfo) -> ZipInfo:
    copy = ZipInfo(member.filename, member.date_time)
    copy.compress_type, copy.external_attr = member.compress_type, member.external_attr
    return copy


def _check_array(found: Array, expected: Array, name: str, goal: Path) -> None:
    if found.dtype != expected.dtype or found.shape != expected.shape or found.tobytes() != expected.tobytes():
        raise OutputError(f"array {name!r} of {goal.name} is not the source's less the forgotten rows")


Mode: TypeAlias = Literal["dataset", "rows"]
_REWRITE: dict[str, Callable[[Path, Path, Array], None]] = {
    ".csv": rewrite_csv,
    ".npz": rewrite_npz,
    ".parquet": rewrite_parquet,
}
_UNREADABLE = (pa.ArrowException, BadZipFile, ValueError, EOFError, UnicodeDecodeError)


def _unheard(_sentence: str) -> None:
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
        file = write_cleaned(
            train.path if whole else None,
            train.index[gone],
            folder,
            mode=job.output.cleaned,
            ids=train.ids if whole else None,
            note=warnings.append,
        ).name
    found = {"rows": len(gone), "exact": len(copies.exact), "near": len(copies.near), "not_found": absent}
    return found | {"file": file}


def _write_copies(copies: Duplicates, train: Rows, folder: Path) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "id", "forget_row", "similarity"])
    for pair in sorted((*copies.exact, *copies.near), key=lambda pair: pair.train):
        row = int(train.index[pair.train])
        own = row if train.ids is None else train.ids[pair.train]
        writer.writerow([row, own, pair.forget, f"{pair.similarity:.3f}"])
    write_atomically(folder / COPIES, text.getvalue().encode())


def _places(forget: Rows, train: Rows) -> Array:
    """Return where in the training data the forget records are: by row number, or else by content."""
    if forget.home == train.home:
        return np.flatnonzero(np.isin(train.index, forget.index))
    return rows_of(forget.content, train.content)
