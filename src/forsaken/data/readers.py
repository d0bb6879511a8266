"""Reading a dataset of whatever form: Parquet, CSV, NPZ, or a folder of pictures by class."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from forsaken.data.pictures import decode_pictures
from forsaken.data.records import Array, Records
from forsaken.errors import DataError, DataNotFoundError, EmptyError
from forsaken.types import Progress, silent

_TEXT, _IMAGE, _LABEL, _NAME = "text", "image", "label", "label_name"
_NOT_FEATURES = ("split", "doc_id", "newid", "id")
_INPUT_KEYS = ("inputs", "x", "X", "data", "images", "features")
_LABEL_KEYS = ("labels", "label", "y", "Y", "targets")
_PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")


def read_records(
    path: str | os.PathLike[str],
    *,
    label: str = _LABEL,
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
        pictures a class.
    label : str
        The column of the labels; names become class numbers in alphabetical order. Where there is no such column,
        the records have no labels.
    size : pair, optional
        Height and width that pictures are resized to.
    columns : sequence of str
        Further columns to keep.
    progress : callable
        Told while pictures are decoded.
    """
    place = Path(path)
    if place.is_dir():
        return _read_folder(place, size, progress)
    if not place.is_file():
        raise DataNotFoundError(f"no file or folder {place}; check the path")
    suffix = place.suffix.lower()
    if suffix == ".parquet":
        return from_table(read_parquet(place), str(place), label=label, size=size, columns=columns, progress=progress)
    if suffix == ".csv":
        return from_table(_read_csv(place), str(place), label=label, size=size, columns=columns, progress=progress)
    if suffix == ".npz":
        return _read_npz(place)
    raise DataError(f"{place} ends in {suffix!r}, expected .parquet, .csv, .npz or a folder of pictures; convert it")


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read the columns of a Parquet file that are there; a damaged file is an error."""
    try:
        with pq.ParquetFile(path) as file:
            known = set(file.schema_arrow.names)
            return file.read(columns=None if columns is None else [name for name in columns if name in known])
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet ({error}); get or export it again") from error


def from_table(
    table: pa.Table,
    where: str,
    *,
    label: str = _LABEL,
    size: tuple[int, int] | None = None,
    columns: Sequence[str] = (),
    progress: Progress = silent,
) -> Records:
    """Read the rows of an Arrow table; `where` is what error messages call it."""
    if table.num_rows == 0:
        raise EmptyError(f"{where} holds no rows; give at least one")
    names: tuple[str, ...] = ()
    labels = None
    if label in table.column_names:
        labels, names = _labels(table, label, where)
    return Records(
        _content(table, where, label, size, progress),
        labels,
        names,
        {name: _column(table, name, where) for name in columns},
    )


def _content(table: pa.Table, where: str, label: str, size: tuple[int, int] | None, progress: Progress) -> Array:
    if _IMAGE in table.column_names:
        column = table[_IMAGE].combine_chunks()
        encoded = (column.field("bytes") if pa.types.is_struct(column.type) else column).to_pylist()
        _refuse_gaps(encoded, _IMAGE, where)
        names = [f"{where}: the picture of row {at}" for at in range(len(encoded))]
        return decode_pictures(encoded, names=names, size=size, progress=progress)
    if _TEXT in table.column_names:
        texts = table[_TEXT].to_pylist()
        _refuse_gaps(texts, _TEXT, where)
        if not all(isinstance(text, str) for text in texts):
            raise DataError(f"{where}: column 'text' is of type {table[_TEXT].type}, expected strings")
        return np.array(texts, dtype=object)
    numeric = [
        name
        for name in table.column_names
        if name not in (label, *_NOT_FEATURES)
        and (pa.types.is_integer(table[name].type) or pa.types.is_floating(table[name].type))
    ]
    if not numeric:
        found = ", ".join(table.column_names)
        raise DataError(
            f"{where} has no column 'text', 'image' or of numbers (found: {found}); rename the one with the inputs"
        )
    return np.stack([_column(table, name, where).astype(np.float32) for name in numeric], axis=1)


def _column(table: pa.Table, name: str, where: str) -> Array:
    if name not in table.column_names:
        raise DataError(f"{where} has no column {name!r} (found: {', '.join(table.column_names)})")
    values = table[name].to_pylist()
    _refuse_gaps(values, name, where)
    return np.array(values, dtype=object if pa.types.is_string(table[name].type) else None)


def _refuse_gaps(values: Iterable[object], name: str, where: str) -> None:
    for at, value in enumerate(values):
        if value is None:
            raise DataError(f"{where}: column {name!r} has no value in row {at}; fill it in or drop the row")


def _labels(table: pa.Table, label: str, where: str) -> tuple[Array, tuple[str, ...]]:
    values = _column(table, label, where)
    if values.dtype == object:
        known, numbers = np.unique(values.astype(str), return_inverse=True)
        return numbers.astype(np.int64), tuple(known.tolist())
    if values.dtype.kind not in "iub":
        raise DataError(f"{where}: column {label!r} is of type {values.dtype}, expected class numbers or names")
    numbers = values.astype(np.int64)
    if numbers.min() < 0:
        raise DataError(f"{where}: the label of row {numbers.argmin()} is {numbers.min()}, expected 0 or more")
    if _NAME not in table.column_names:
        return numbers, ()
    pairs = dict(zip(numbers.tolist(), table[_NAME].to_pylist(), strict=True))
    return numbers, tuple(str(pairs.get(number, number)) for number in range(numbers.max() + 1))


def _read_csv(path: Path) -> pa.Table:
    options = pa.csv.ParseOptions(newlines_in_values=True)
    try:
        return pa.csv.read_csv(path, parse_options=options)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} cannot be read as CSV ({type(error).__name__}); expected a header line, commas, quoted texts, "
            "and UTF-8"
        ) from error


def _read_npz(path: Path) -> Records:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            inputs = next((arrays[key] for key in _INPUT_KEYS if key in arrays), None)
            labels = next((arrays[key] for key in _LABEL_KEYS if key in arrays), None)
            found = ", ".join(arrays)
    except (ValueError, OSError, EOFError, BadZipFile) as error:
        raise DataError(
            f"{path} cannot be read as NPZ; expected arrays of numbers that np.savez wrote (objects are refused, since "
            "they may carry code)"
        ) from error
    if inputs is None:
        raise DataError(f"{path} has no array 'inputs' or 'x' (found: {found}); name one of them so")
    if inputs.ndim == 0 or len(inputs) == 0:
        raise EmptyError(f"{path} holds no rows; give at least one")
    if labels is not None and (labels.ndim != 1 or len(labels) != len(inputs)):
        raise DataError(f"{path}: {len(inputs)} rows of inputs but labels of shape {labels.shape}")
    if labels is not None and (labels.dtype.kind not in "iub" or labels.min() < 0):
        raise DataError(f"{path}: labels of type {labels.dtype}, expected class numbers of 0 or more")
    if inputs.dtype.kind not in "fiub":
        raise DataError(f"{path}: inputs of type {inputs.dtype}, expected numbers")
    picture = inputs.dtype == np.uint8 and inputs.ndim == 4
    return Records(
        inputs if picture else inputs.astype(np.float32), None if labels is None else labels.astype(np.int64)
    )


def _read_folder(place: Path, size: tuple[int, int] | None, progress: Progress) -> Records:
    classes = sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise DataError(f"{place} holds no folders, expected one folder of pictures for each class")
    files: list[Path] = []
    labels: list[int] = []
    for number, folder in enumerate(classes):
        inside = sorted(path for path in folder.iterdir() if path.suffix.lower() in _PICTURES)
        if not inside:
            raise DataError(
                f"class folder {folder} is empty, expected pictures ({', '.join(_PICTURES)}); remove or fill it"
            )
        files += inside
        labels += [number] * len(inside)
    pixels = decode_pictures(
        _Lazily(files),
        names=[str(path) for path in files],
        size=size,
        progress=progress,
    )
    return Records(pixels, np.array(labels, dtype=np.int64), tuple(path.name for path in classes))


class _Lazily(Sequence[bytes]):
    """The bytes of files, read when asked for: a folder may hold more than memory does."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, at: Any) -> Any:
        return self.files[at].read_bytes()
