"""Reading a dataset of whatever form: Parquet, CSV, NPZ, or a folder of pictures by class."""

from __future__ import annotations

import os
import tokenize
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from forsaken.data.pictures import decode_pictures
from forsaken.data.records import Records
from forsaken.data.tables import LABEL, MOST_CLASSES, from_table, read_csv, read_parquet
from forsaken.errors import DataError, DataNotFoundError, EmptyError, SettingsError
from forsaken.types import Array, Progress, silent

INPUT_KEYS = ("inputs", "x", "X", "data", "images", "features")
_LABEL_KEYS = ("labels", "label", "y", "Y", "targets")
_PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
# All that NumPy raises over a file that is not what its name says.
_NO_NPZ = (ValueError, OSError, EOFError, BadZipFile, zlib.error, RuntimeError, MemoryError, SyntaxError, TypeError)


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
        Told while pictures are decoded.
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
    if suffix not in (".parquet", ".csv"):
        raise DataError(f"{place} ends in {suffix!r}, expected .parquet, .csv, .npz or a folder of pictures")
    table = read_parquet(place) if suffix == ".parquet" else read_csv(place)
    return from_table(table, str(place), label=label, size=size, columns=columns, progress=progress)


def _refuse(place: Path, what: str, **given: object) -> None:
    for name, value in given.items():
        if value:
            raise SettingsError(f"{name}= means nothing for {what} such as {place}; leave it out")


def _read_npz(path: Path) -> Records:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = list(arrays.files)
            inputs, labels = (_member(arrays, keys) for keys in (INPUT_KEYS, _LABEL_KEYS))
    except (*_NO_NPZ, AttributeError, tokenize.TokenError) as error:
        raise DataError(
            f"{path} cannot be read as NPZ; expected arrays of numbers that np.savez wrote (objects are refused, since "
            "they may carry code)"
        ) from error
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
    return Records(inputs, None if labels is None else _npz_labels(labels, len(inputs), path))


def _member(arrays: Any, keys: Sequence[str]) -> Array | None:
    name = next((key for key in keys if key in arrays.files), None)
    if name is None:
        return None
    member = arrays[name]
    if not isinstance(member, np.ndarray):
        raise TypeError(name)
    return member


def _npz_labels(labels: Array, count: int, path: Path) -> Array:
    if labels.shape != (count,):
        raise DataError(f"{path}: {count} rows of inputs but labels of shape {labels.shape}, expected ({count},)")
    if labels.dtype.kind not in "iub":
        raise DataError(f"{path}: labels of type {labels.dtype}, expected class numbers; convert them")
    outside = np.flatnonzero((labels < 0) | (labels >= MOST_CLASSES))
    if len(outside):
        raise DataError(
            f"{path}: the label of row {outside[0]} is out of range, expected a class number of 0 or more and below "
            f"{MOST_CLASSES:,}"
        )
    return labels.astype(np.int64)


def picture_files(place: Path) -> list[Path]:
    """Return the pictures of a folder in the order that they are read: class by class, or all that lie in it."""
    classes = _class_folders(place)
    if not classes:
        files = _pictures_in(place)
        if not files:
            raise DataError(
                f"{place} holds no pictures ({' '.join(_PICTURES)}) and no folders of them, expected one folder for "
                "each class, or pictures alone where labels are not needed"
            )
        return files
    for folder in classes:
        if not _pictures_in(folder):
            raise DataError(f"class folder {folder} is empty, expected pictures ({' '.join(_PICTURES)}); fill it")
    return [path for folder in classes for path in _pictures_in(folder)]


def _class_folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))


def _pictures_in(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if _is_picture(path))


def _read_folder(place: Path, size: tuple[int, int] | None, progress: Progress) -> Records:
    files, classes = picture_files(place), _class_folders(place)
    pixels = decode_pictures(_Lazily(files), names=[str(path) for path in files], size=size, progress=progress)
    if not classes:
        return Records(pixels)
    numbers = {folder: number for number, folder in enumerate(classes)}
    labels = np.array([numbers[path.parent] for path in files], dtype=np.int64)
    return Records(pixels, labels, tuple(path.name for path in classes), by_name=True)


def _is_picture(path: Path) -> bool:
    # Names that start with a dot are left by file managers.
    return path.suffix.lower() in _PICTURES and not path.name.startswith(".") and path.is_file()


class _Lazily(Sequence[bytes]):
    """The bytes of files, read when asked for: a folder may hold more than memory does."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, at: Any) -> Any:
        try:
            return self.files[at].read_bytes()
        except OSError as error:
            raise DataError(f"{self.files[at]} cannot be read ({error.strerror}); replace or remove it") from error
