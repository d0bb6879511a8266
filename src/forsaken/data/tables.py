"""Tables: Parquet and CSV files, and the rows of an Arrow table as records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from forsaken.data.pictures import decode_pictures
from forsaken.data.records import Records
from forsaken.errors import DataError, EmptyError, UnknownNameError
from forsaken.types import Array, Progress, silent

TEXT, IMAGE, LABEL, NAME, SPLIT = "text", "image", "label", "label_name", "split"
_NOT_FEATURES = (LABEL, NAME, SPLIT, "doc_id", "newid", "id")
MOST_CLASSES = 1_000_000  # a larger class number is a mistake, such as an id in the wrong column
_LARGEST_BLOCK = 2**30  # Arrow reads a CSV file in blocks, and a text cannot be longer than one


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read the columns of a Parquet file that are there; a damaged file is an error."""
    try:
        with pq.ParquetFile(path) as file:
            known = file.schema_arrow.names
            return file.read(columns=None if columns is None else [name for name in known if name in columns])
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as Parquet ({_safe(error)}); get or export it again") from error


def read_csv(path: Path) -> pa.Table:
    """Read a CSV file with a header line; the column `text` is text whatever it looks like."""
    size = path.stat().st_size
    if size == 0:
        raise EmptyError(f"{path} holds no rows; give at least one")
    try:
        table = pa.csv.read_csv(
            path,
            read_options=pa.csv.ReadOptions(block_size=min(size, _LARGEST_BLOCK)),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(column_types={TEXT: pa.string()}),
        )
        table.column_names  # noqa: B018 (names are decoded when they are asked for)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as CSV ({_safe(error)}); expected a header line, commas, quoted texts, and UTF-8"
        ) from error
    return table


def from_table(
    table: pa.Table,
    where: str,
    *,
    label: str = LABEL,
    size: tuple[int, int] | None = None,
    columns: Sequence[str] = (),
    progress: Progress = silent,
) -> Records:
    """Read the rows of an Arrow table; `where` is what error messages call it."""
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"{where} has more than one column {twice[0]!r}; rename or drop one")
    if table.num_rows == 0:
        raise EmptyError(f"{where} holds no rows; give at least one")
    if label not in names and label != LABEL:
        raise DataError(f"{where}: {UnknownNameError('label column', label, names)}")
    near = [name for name in names if name.lower() == label.lower() and name != label]
    if label not in names and near:
        raise DataError(f"{where} has a column {near[0]!r}, expected {label!r}; rename it, or give label={near[0]!r}")
    numbers, classes = labels_of(table, label, where) if label in names else (None, ())
    kept = {name: column_of(table, name, where) for name in columns}
    content = _content(table, where, {label, *columns}, size, progress)
    fields = () if {TEXT, IMAGE} & set(names) else tuple(_numeric(table, {label, *columns}))
    by_name = label in names and not _is_number(table[label].type)
    return Records(content, numbers, classes, kept, by_name, fields)


def column_of(table: pa.Table, name: str, where: str) -> Array:
    """Return a column of plain values, all of which must be there."""
    if name not in table.column_names:
        raise DataError(f"{where} has no column {name!r} (found: {', '.join(table.column_names)})")
    column = table[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_nested(column.type):
        raise DataError(f"{where}: column {name!r} is of type {column.type}, expected one plain value a row")
    values = column.to_pylist()
    _refuse_gaps(values, name, where)
    return np.array(values, dtype=object if _is_text(column.type) else None)


def labels_of(table: pa.Table, label: str, where: str) -> tuple[Array, tuple[str, ...]]:
    """Return class numbers and, where known, the names of the classes."""
    values = column_of(table, label, where)
    if values.dtype == object and all(isinstance(value, str) for value in values):
        if "" in values:
            raise DataError(f"{where}: column {label!r} is empty in row {values.tolist().index('')}; name the class")
        known, numbers = np.unique(values.astype(str), return_inverse=True)
        return numbers.astype(np.int64), tuple(known.tolist())
    if values.dtype.kind not in "iub":
        raise DataError(
            f"{where}: column {label!r} is of type {table[label].type}, expected class numbers (1, not 1.0) or names; "
            "convert it"
        )
    outside = np.flatnonzero((values < 0) | (values >= MOST_CLASSES))
    if len(outside):
        raise DataError(
            f"{where}: the label of row {outside[0]} is out of range, expected a class number of 0 or more and below "
            f"{MOST_CLASSES:,}; is {label!r} the right column?"
        )
    numbers = values.astype(np.int64)
    if NAME not in table.column_names:
        return numbers, ()
    pairs = dict(zip(numbers.tolist(), table[NAME].to_pylist(), strict=True))
    return numbers, tuple(str(pairs.get(number) or number) for number in range(int(numbers.max()) + 1))


def _content(table: pa.Table, where: str, other: set[str], size: tuple[int, int] | None, progress: Progress) -> Array:
    if IMAGE in table.column_names:
        encoded = _encoded(table, where)
        names = [f"{where}: the picture of row {at}" for at in range(len(encoded))]
        return decode_pictures(encoded, names=names, size=size, progress=progress)
    if TEXT in table.column_names:
        texts = column_of(table, TEXT, where)
        if texts.dtype != object or not all(isinstance(text, str) for text in texts):
            kind = table[TEXT].type
            advice = "save the file as UTF-8" if pa.types.is_binary(kind) else "write them as text"
            raise DataError(f"{where}: column 'text' is of type {kind}, expected strings; {advice}")
        return texts
    fields = [field for field in table.schema if field.name not in (*other, *_NOT_FEATURES)]
    numeric = _numeric(table, other)
    if numeric and len(numeric) < len(fields):
        odd = next(field for field in fields if field.name not in numeric)
        raise DataError(
            f"{where}: column {odd.name!r} is of type {odd.type}, expected numbers; encode it, drop it, or keep "
            f"it beside the features with columns=[{odd.name!r}]"
        )
    if not numeric:
        found = ", ".join(table.column_names)
        raise DataError(
            f"{where} has no column 'text', 'image' or of numbers (found: {found}); rename the one with the inputs"
        )
    features = np.stack([column_of(table, name, where).astype(np.float32) for name in numeric], axis=1)
    bad = np.argwhere(~np.isfinite(features))
    if len(bad):
        row, column = bad[0]
        raise DataError(f"{where}: column {numeric[column]!r} is NaN or infinite in row {row}; clean or drop it")
    return features


def _numeric(table: pa.Table, other: set[str]) -> list[str]:
    """Return the columns that features are made of."""
    inside = [field for field in table.schema if field.name not in (*other, *_NOT_FEATURES)]
    return [field.name for field in inside if _is_number(field.type)]


def _encoded(table: pa.Table, where: str) -> list[bytes]:
    column = table[IMAGE].combine_chunks()
    if pa.types.is_struct(column.type):
        if "bytes" not in [field.name for field in column.type]:
            raise DataError(f"{where}: column 'image' is a struct without a field 'bytes' for the encoded picture")
        column = column.field("bytes")
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise DataError(f"{where}: column 'image' is of type {column.type}, expected the bytes of encoded pictures")
    encoded: list[bytes] = column.to_pylist()
    _refuse_gaps(encoded, IMAGE, where)
    return encoded


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _refuse_gaps(values: Iterable[object], name: str, where: str) -> None:
    for at, value in enumerate(values):
        if value is None:
            raise DataError(f"{where}: column {name!r} has no value in row {at}; fill it in or drop the row")


def _safe(error: Exception) -> str:
    """Say what went wrong without the content of a row, which Arrow's own message may quote."""
    row = re.search(r"(Row #\d+: )?Expected \d+ columns, got \d+", str(error))
    return row[0] if row else type(error).__name__
