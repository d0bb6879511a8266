"""Rewriting: a file of rows without some of them, everything else as it was."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from forsaken.data.readers import INPUT_KEYS
from forsaken.errors import DataError, ForsakenError, InputError, OutputError
from forsaken.types import Array

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
