"""Reading a dataset from a Parquet, CSV or NPZ file, or from a folder of pictures, into records.

Files may be damaged or hostile: whatever a library raises over one becomes a `DataError` that names the file, and no
message quotes the content of a row.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet as pq

from forsaken._untrusted import UnreadableError, check_expansion, read_npz
from forsaken.data.pictures import decode_pictures
from forsaken.data.records import Records
from forsaken.errors import DataError, DataNotFoundError, EmptyError, SettingsError, UnknownNameError
from forsaken.types import Array, Progress, silent

INPUT_KEYS = ("inputs", "x", "X", "data", "images", "features")
_LABEL_KEYS = ("labels", "label", "y", "Y", "targets")
TEXT, IMAGE, LABEL, NAME, SPLIT = "text", "image", "label", "label_name", "split"
_NOT_FEATURES = (LABEL, NAME, SPLIT, "doc_id", "newid", "id")
TABLES = (".csv", ".parquet")
_PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
_MOST_CLASSES = 1_000_000  # a larger class number is a mistake, such as an id in the wrong column
_LARGEST_BLOCK = 2**30  # Arrow reads a CSV file in blocks, and a text cannot be longer than one
_BATCH = 8192  # rows of a Parquet file that are expanded before their size is looked at
# What Arrow raises over a file that is not what its name says.
_NOT_A_TABLE = (pa.ArrowException, OSError, UnicodeDecodeError, UnreadableError, MemoryError, OverflowError)


def read_records(
    path: str | os.PathLike[str],
    *,
    label: str = LABEL,
    size: tuple[int, int] | None = None,
    columns: Sequence[str] = (),
    progress: Progress = silent,
) -> Records:
    """Read a dataset of your own.

    Parameters
    ----------
    path : path
        A `.parquet` or `.csv` file with a column `text`, a column `image` (encoded pictures) or numeric columns; a
        `.npz` file with arrays `inputs` (or `x`) and `labels` (or `y`); or a folder with one folder of
        pictures a class, or with pictures alone, which then have no labels.
    label : str
        The column of the labels in a table; names become class numbers in alphabetical order. Where there is no
        column `label`, the records have no labels.
    size : pair, optional
        Height and width that encoded pictures are resized to.
    columns : sequence of str
        Further columns of a table to keep.
    progress : callable
        Called while pictures are decoded.
    """
    place = Path(path)
    try:
        folder, file = place.is_dir(), place.is_file()
    except OSError as error:
        raise DataNotFoundError(f"cannot look for {place}: {error.strerror}") from error
    if folder:
        _refuse(place, "a folder of pictures", label=label != LABEL, columns=columns)
        return _read_folder(place, size, progress)
    if not file:
        raise DataNotFoundError(f"no file or folder {place}; check the path")
    suffix = place.suffix.lower()
    if suffix == ".npz":
        _refuse(place, "an NPZ file", label=label != LABEL, columns=columns, size=size)
        return _read_npz(place)
    if suffix not in TABLES:
        raise DataError(f"{place} ends in {suffix!r}, expected .parquet, .csv, .npz or a folder of pictures")
    return from_table(read_table(place), str(place), label=label, size=size, columns=columns, progress=progress)


def _refuse(place: Path, what: str, **given: object) -> None:
    for name, value in given.items():
        if value:
            raise SettingsError(f"{name}= means nothing for {what} such as {place}; leave it out", field=name)


def picture_files(place: Path) -> list[Path]:
    """Return the pictures of a folder in the order that they are read: class by class, or all that lie in it."""
    classes = _class_folders(place)
    files = [_pictures_in(folder) for folder in classes or [place]]
    kinds = " ".join(_PICTURES)
    if not classes and not files[0]:
        raise DataError(
            f"{place} holds no pictures ({kinds}) and no folders of them, expected one folder for each class, or "
            "pictures alone where labels are not needed"
        )
    for folder, inside in zip(classes, files, strict=False):
        if not inside:
            raise DataError(f"class folder {folder} is empty, expected pictures ({kinds}); fill it")
    found = [path for inside in files for path in inside]
    for path in found:
        spelt = path.relative_to(place).as_posix().encode("utf-8", "backslashreplace").decode()
        if spelt != path.relative_to(place).as_posix():
            raise DataError(f"the name of the picture {spelt} in {place} is not UTF-8", remedy="rename it")
    return found


def _class_folders(place: Path) -> list[Path]:
    return sorted(path for path in _entries(place) if path.is_dir())


def _pictures_in(place: Path) -> list[Path]:
    return sorted(path for path in _entries(place) if path.suffix.lower() in _PICTURES and path.is_file())


def _entries(place: Path) -> list[Path]:
    """Return what lies in a folder, but for names that start with a dot, which are left by file managers."""
    try:
        return [path for path in place.iterdir() if not path.name.startswith(".")]
    except OSError as error:
        raise DataError(
            f"the folder {place} cannot be read ({error.strerror})", remedy="check who may read it"
        ) from error


def _read_folder(place: Path, size: tuple[int, int] | None, progress: Progress) -> Records:
    files, classes = picture_files(place), _class_folders(place)
    pixels = decode_pictures(_Files(files), names=[str(path) for path in files], size=size, progress=progress)
    if not classes:
        return Records(pixels)
    numbers = {folder: number for number, folder in enumerate(classes)}
    labels = np.array([numbers[path.parent] for path in files], dtype=np.int64)
    return Records(pixels, labels, tuple(path.name for path in classes), by_name=True)


class _Files(Sequence[bytes]):
    """The bytes of files, each read when it is asked for: a folder may hold more than memory does."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, at: Any) -> Any:
        try:
            return self.files[at].read_bytes()
        except OSError as error:
            raise DataError(f"{self.files[at]} cannot be read ({error.strerror}); replace or remove it") from error


def _read_npz(path: Path) -> Records:
    try:
        found, arrays = read_npz(path, (*INPUT_KEYS, *_LABEL_KEYS))
    except (UnreadableError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            f"{path} cannot be read as NPZ: {reason}", expected="arrays of numbers that np.savez wrote"
        ) from error
    inputs, labels = (next((arrays[key] for key in keys if key in arrays), None) for keys in (INPUT_KEYS, _LABEL_KEYS))
    if inputs is None:
        raise DataError(f"{path} has no array 'inputs' or 'x' (found: {', '.join(found)}); name one of them so")
    if inputs.ndim == 0 or len(inputs) == 0:
        raise EmptyError(f"{path} holds no rows; give at least one")
    if inputs.dtype.kind not in "fiub":
        raise DataError(f"{path}: inputs of type {inputs.dtype}, expected numbers")
    if inputs.dtype != np.uint8 or inputs.ndim != 4:
        inputs = inputs.astype(np.float32)
        bad = np.flatnonzero(~np.isfinite(inputs.reshape(len(inputs), -1)).all(axis=1))
        if len(bad):
            raise DataError(f"{path}: the inputs of row {bad[0]} are NaN or infinite; clean or drop the row")
    if labels is None:
        return Records(inputs)
    if labels.shape != (len(inputs),):
        raise DataError(
            f"{path}: {len(inputs)} rows of inputs but labels of shape {labels.shape}, expected ({len(inputs)},)"
        )
    if labels.dtype.kind not in "iub":
        raise DataError(f"{path}: labels of type {labels.dtype}, expected class numbers; convert them")
    return Records(inputs, _class_numbers(labels, str(path)))


def _class_numbers(labels: Array, where: str, advice: str = "") -> Array:
    outside = np.flatnonzero((labels < 0) | (labels >= _MOST_CLASSES))
    if len(outside):
        raise DataError(
            f"{where}: the label of row {outside[0]} is out of range, expected a class number of 0 or more and below "
            f"{_MOST_CLASSES:,}{advice}"
        )
    return labels.astype(np.int64)


def read_table(path: Path, texts: Sequence[str] = ()) -> pa.Table:
    """Read a Parquet or CSV file; the columns `texts` of a CSV file, such as ids, are text whatever they look like."""
    return read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path, texts)


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read the columns of a Parquet file that are there; a damaged file is an error."""
    try:
        with pq.ParquetFile(path) as file:
            known = file.schema_arrow.names
            return _expanded(file, None if columns is None else [name for name in known if name in columns])
    except PermissionError as error:
        raise _closed(path, error) from error
    except _NOT_A_TABLE as error:
        raise DataError(f"{path} cannot be read as Parquet ({_safe(error)}); get or export it again") from error


def _expanded(file: pq.ParquetFile, columns: list[str] | None) -> pa.Table:
    """Read a Parquet file bit by bit: a few bytes of it can stand for any number of equal values."""
    size, batches = 0, []
    for batch in file.iter_batches(batch_size=_BATCH, columns=columns):
        size += batch.nbytes
        check_expansion(size)
        batch.validate(full=True)  # texts that are not UTF-8 would fail later, when they are taken out
        batches.append(batch)
    schema = file.schema_arrow if columns is None else pa.schema([file.schema_arrow.field(name) for name in columns])
    return pa.Table.from_batches(batches, batches[0].schema if batches else schema)


def _read_csv(path: Path, texts: Sequence[str]) -> pa.Table:
    """Read a CSV file with a header line; the column `text` is text too.

    An empty cell of another column has no value: nobody could name the row by it.
    """
    size = path.stat().st_size
    if size == 0:
        raise EmptyError(f"{path} holds no rows; give at least one")
    try:
        table = pa.csv.read_csv(
            path,
            read_options=pa.csv.ReadOptions(block_size=min(size, _LARGEST_BLOCK)),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys((TEXT, *texts), pa.string())),
        )
        for at, name in enumerate(table.column_names):  # names are decoded when they are asked for
            if name in texts and name != TEXT:
                filled = pa.compute.not_equal(table[at], "")
                table = table.set_column(at, name, pa.compute.if_else(filled, table[at], pa.scalar(None, pa.string())))
    except PermissionError as error:
        raise _closed(path, error) from error
    except _NOT_A_TABLE as error:
        raise DataError(
            f"{path} cannot be read as CSV ({_safe(error)}); expected a header line, commas, quoted texts, and UTF-8"
        ) from error
    return table


def _closed(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be read ({error.strerror})", remedy="check who may read it")


def _safe(error: Exception) -> str:
    """Say what went wrong without the content of a row, which Arrow's own message may quote."""
    if isinstance(error, UnreadableError):
        return str(error)
    row = re.search(r"(Row #\d+: )?Expected \d+ columns, got \d+", str(error))
    return row[0] if row else type(error).__name__


def from_table(
    table: pa.Table,
    where: str,
    *,
    label: str = LABEL,
    size: tuple[int, int] | None = None,
    columns: Sequence[str] = (),
    progress: Progress = silent,
) -> Records:
    """Return the rows of an Arrow table as records; `where` is what error messages call the table."""
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
    by_name = label in names and not _is_number(table[label].type)
    kept = {name: _column(table, name, where) for name in columns}
    if IMAGE in names:
        encoded = _encoded(table, where)
        called = [f"{where}: the picture of row {at}" for at in range(len(encoded))]
        pixels = decode_pictures(encoded, names=called, size=size, progress=progress)
        return Records(pixels, numbers, classes, kept, by_name)
    if TEXT in names:
        return Records(_texts(table, where), numbers, classes, kept, by_name)
    features, fields = _features(table, where, {label, *columns, *_NOT_FEATURES})
    return Records(features, numbers, classes, kept, by_name, fields)


def labels_of(table: pa.Table, label: str, where: str) -> tuple[Array, tuple[str, ...]]:
    """Return class numbers and, where known, the names of the classes."""
    values = _column(table, label, where)
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
    numbers = _class_numbers(values, where, f"; is {label!r} the right column?")
    if NAME not in table.column_names:
        return numbers, ()
    pairs = dict(zip(numbers.tolist(), table[NAME].to_pylist(), strict=True))
    return numbers, tuple(str(pairs.get(number) or number) for number in range(int(numbers.max()) + 1))


def _column(table: pa.Table, name: str, where: str) -> Array:
    """Return a column of plain values, all of which must be there."""
    if name not in table.column_names:
        raise DataError(f"{where} has no column {name!r} (found: {', '.join(table.column_names)})")
    column = table[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if pa.types.is_nested(kind):
        raise DataError(f"{where}: column {name!r} is of type {kind}, expected one plain value a row")
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    # NumPy makes floats of whole numbers below and above 2^63, and two ids may become one.
    dtype = object if text else kind.to_pandas_dtype() if pa.types.is_integer(kind) else None
    return np.array(_whole(column.to_pylist(), name, where), dtype=dtype)


def _texts(table: pa.Table, where: str) -> Array:
    texts = _column(table, TEXT, where)
    if texts.dtype != object or not all(isinstance(text, str) for text in texts):
        kind = table[TEXT].type
        advice = "save the file as UTF-8" if pa.types.is_binary(kind) else "write them as text"
        raise DataError(f"{where}: column 'text' is of type {kind}, expected strings; {advice}")
    return texts


def _features(table: pa.Table, where: str, other: set[str]) -> tuple[Array, tuple[str, ...]]:
    """Return the numbers of all columns but the `other` ones, and the names of these columns."""
    fields = [field for field in table.schema if field.name not in other]
    odd = next((field for field in fields if not _is_number(field.type)), None)
    names = tuple(field.name for field in fields if _is_number(field.type))
    if not names:
        found = ", ".join(table.column_names)
        raise DataError(
            f"{where} has no column 'text', 'image' or of numbers (found: {found}); rename the one with the inputs"
        )
    if odd is not None:
        raise DataError(
            f"{where}: column {odd.name!r} is of type {odd.type}, expected numbers; encode it, drop it, or keep "
            f"it beside the features (columns=[{odd.name!r}] in Python; [data] id or [references] group in a job file)"
        )
    features = np.stack([_column(table, name, where).astype(np.float32) for name in names], axis=1)
    bad = np.argwhere(~np.isfinite(features))
    if len(bad):
        row, column = bad[0]
        raise DataError(f"{where}: column {names[column]!r} is NaN or infinite in row {row}; clean or drop it")
    return features, names


def _encoded(table: pa.Table, where: str) -> list[bytes]:
    column = table[IMAGE].combine_chunks()
    if pa.types.is_struct(column.type):
        if "bytes" not in [field.name for field in column.type]:
            raise DataError(f"{where}: column 'image' is a struct without a field 'bytes' for the encoded picture")
        column = column.field("bytes")
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise DataError(f"{where}: column 'image' is of type {column.type}, expected the bytes of encoded pictures")
    return _whole(column.to_pylist(), IMAGE, where)


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _whole(values: list[Any], name: str, where: str) -> list[Any]:
    """Return the values of a column if none is missing."""
    if None in values:
        at = next(at for at, value in enumerate(values) if value is None)
        raise DataError(f"{where}: column {name!r} has no value in row {at}; fill it in or drop the row")
    return values
