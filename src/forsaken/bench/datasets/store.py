"""Datasets by name: found in the data folder, in their normalised form or as the original files, loaded and checked."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute

from forsaken._untrusted import parse_json, read_at_most
from forsaken.bench.datasets.registry import DATASETS, Dataset
from forsaken.data.readers import IMAGE, LABEL, NAME, SPLIT, TEXT, from_table, labels_of, read_parquet
from forsaken.data.records import Records
from forsaken.errors import DataError, DataNotFoundError, UnknownNameError
from forsaken.types import Array, Progress, Tick, silent

VARIABLE = "FORSAKEN_DATA"
WRITTEN = "normalised.json"  # SHA-256 of every Parquet file that `get_dataset` wrote
_MOST_BYTES = 2**24  # of a file of checksums


def data_folder() -> Path:
    """Return the folder that the variable FORSAKEN_DATA names, or else the platform's cache folder for Forsaken."""
    named = os.environ.get(VARIABLE)
    if not named:
        import pooch  # noqa: PLC0415 (machines without downloads have the folder named)

        return Path(pooch.os_cache("forsaken"))
    try:
        return Path(named).expanduser()
    except RuntimeError as error:
        raise DataNotFoundError(f"{VARIABLE} is {named!r}, whose home folder is not known; give a path") from error


def dataset_named(name: str) -> Dataset:
    """Return the row of the registry."""
    if name not in DATASETS:
        raise UnknownNameError("dataset", name, DATASETS)
    return DATASETS[name]


def load_dataset(
    name: str,
    split: str | None = None,
    *,
    size: tuple[int, int] | None = None,
    columns: Sequence[str] = (),
    progress: Progress = silent,
) -> Records:
    """Load a public dataset that lies in the data folder.

    Parameters
    ----------
    name : str
        A name that `forsaken datasets list` shows.
    split : str, optional
        One part, such as "train" or "test"; all parts in their order without it.
    size : pair, optional
        Height and width that pictures are resized to.
    columns : sequence of str
        Further columns to keep.
    progress : callable
        Called while pictures are decoded.
    """
    dataset = dataset_named(name)
    if split is not None and split not in dataset.parts:
        raise UnknownNameError(f"split of {name}", split, dataset.parts)
    stems = list(dict.fromkeys(stem for part, stem in dataset.parts.items() if split in (None, part)))
    tables = [_only(table_of(dataset, stem, columns, progress), dataset, stem, split) for stem in stems]
    where = f"dataset {name}" + (f", {split}" if split else "")
    records = from_table(_joined(tables, where), where, size=size, columns=columns, progress=progress)
    if records.labels is None or not dataset.classes:
        return records
    labels = checked_labels(records.labels, dataset.classes, where)
    return Records(records.content, labels, records.names or dataset.class_names, records.columns)


def checked_labels(labels: Array, classes: int, where: str) -> Array:
    """Return labels as int64 if each is one of 0 to `classes` - 1 and every class has a row."""
    numbers = labels.astype(np.int64)
    outside = np.flatnonzero((numbers < 0) | (numbers >= classes))
    if len(outside):
        raise DataError(
            f"{where}: the label of row {outside[0]} is {numbers[outside[0]]}, expected 0 to {classes - 1} "
            f"({len(outside)} rows in all are out of range); correct the labels, or get the file again"
        )
    missing = sorted(set(range(classes)) - set(np.unique(numbers).tolist()))
    if missing:
        raise DataError(
            f"{where}: class {missing[0]} is empty ({len(missing)} of {classes} classes are), expected one row or more "
            "of each; is the file complete?"
        )
    return numbers


def files_of(dataset: Dataset, stem: str) -> list[Path]:
    """Return the Parquet files of a stem in the data folder: one, all shards of a set, or none."""
    folder = data_folder()
    whole = folder / f"{stem}.parquet"
    if whole.is_file():
        return [whole]
    shards = sorted(folder.glob(f"{stem}-[0-9]*-of-[0-9]*.parquet"))
    count = len(shards)
    if [path.name for path in shards] != [f"{stem}-{at:05d}-of-{count:05d}.parquet" for at in range(count)]:
        expected = int(shards[-1].stem.rpartition("-of-")[2])
        raise DataError(
            f"{folder} holds {count} of the {expected} files {stem}-*.parquet, or of several sets; copy the others "
            f"there too, or remove them and run: forsaken datasets get {dataset.name}"
        )
    return shards


def presence(dataset: Dataset) -> Literal["yes", "part", "no"]:
    """Return whether the dataset lies in the data folder: all of it, a part, or nothing."""
    try:
        found = [bool(files_of(dataset, stem)) for stem in dataset.parts.values()]
    except DataError:
        return "part"
    originals = originals_of(dataset, data_folder())
    if all(found) or len(originals) == len(dataset.archives):
        return "yes"
    return "part" if any(found) or originals else "no"


def check_originals(dataset: Dataset) -> str:
    """Compare the original files that lie in the data folder with their published checksums."""
    published = {archive.file: archive.checksum for archive in dataset.archives if archive.checksum}
    found = originals_of(dataset, data_folder())
    for name, path in found.items():
        kind, _, expected = published.get(name, "").partition(":")
        if expected and (seen := digest_of(path, kind, unpack=path.name != name)) != expected:
            raise DataError(f"{path}: its {kind} is {seen}, published is {expected}; delete it and get it again")
    return "original files, checksum as published" if set(found) <= set(published) else "original files"


def table_of(dataset: Dataset, stem: str, columns: Sequence[str], progress: Progress) -> pa.Table:
    """Return the rows of a stem, from its Parquet files or from the original files that lie in the data folder."""
    wanted = [TEXT, IMAGE, LABEL, NAME, SPLIT, *columns]
    paths = files_of(dataset, stem)
    if paths:
        where = f"dataset {dataset.name}, {stem}"
        again = f"run: forsaken datasets get {dataset.name} --force"
        try:
            table = _joined([read_parquet(path, wanted) for path in paths], where)
        except DataError as error:
            raise DataError(f"{error}; {again}") from error
        if LABEL in table.column_names and not pa.types.is_integer(table[LABEL].type):
            raise DataError(f"{where}: labels are of type {table[LABEL].type}, expected class numbers; {again}")
        return table
    files = originals_of(dataset, data_folder())
    check_originals(dataset)
    found = dataset.parse(files, progress).get(stem) if files else None
    if found is None:
        raise DataNotFoundError(
            f"no file {stem}.parquet in {data_folder()} ({VARIABLE} or the cache folder); "
            f"run: forsaken datasets get {dataset.name}"
        )
    return found


def _only(table: pa.Table, dataset: Dataset, stem: str, split: str | None) -> pa.Table:
    shared = sum(1 for other in dataset.parts.values() if other == stem) > 1
    if split is None or not shared:
        return table
    if SPLIT not in table.column_names or not pa.types.is_string(table[SPLIT].type):
        raise DataError(f"{stem} has no column 'split' of names, expected one with {', '.join(dataset.parts)}")
    return table.filter(pa.compute.equal(table[SPLIT], split))


def _joined(tables: list[pa.Table], where: str) -> pa.Table:
    try:
        return pa.concat_tables(tables, promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{where}: its files have columns of different types; write them alike") from error


def originals_of(dataset: Dataset, folder: Path) -> dict[str, Path]:
    """Return the original files that somebody has put into the data folder, as they are or gzipped."""
    found = {}
    for archive in dataset.archives:
        for path in (folder / archive.file, folder / f"{archive.file}.gz"):
            if path.is_file():
                found[archive.file] = path
                break
    return found


def recorded(path: Path) -> dict[str, str]:
    """Return the checksums, by file name, that a JSON file notes; none where there is no such file."""
    try:
        found: Any = parse_json(read_at_most(path, _MOST_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); delete it: it only notes checksums") from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise DataError(f"{path} does not map file names to checksums; delete it, and they are recorded anew")
    return found


def digest_of(path: Path, kind: str, *, unpack: bool = False) -> str:
    """Return a checksum of a file, or of what a gzip file holds."""
    try:
        with gzip.open(path) if unpack else path.open("rb") as file:
            return hashlib.file_digest(file, kind).hexdigest()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); delete it and get it again") from error


@dataclass(frozen=True, slots=True)
class Finding:
    """What a look at one file of the data folder found."""

    dataset: str
    file: str
    rows: int
    problem: str = ""
    note: str = ""


def check_datasets(names: Sequence[str] | None = None, progress: Progress = silent) -> Iterator[Finding]:
    """Look at every file of the named datasets (all that are there, by default): checksum, rows, columns, labels."""
    chosen = [dataset_named(name) for name in names or DATASETS]
    for dataset in chosen if names else [dataset for dataset in chosen if presence(dataset) != "no"]:
        name = dataset.name
        stems = list(dict.fromkeys(dataset.parts.values()))
        for at, stem in enumerate(stems):
            progress(Tick(f"check {name}", at, len(stems)))
            try:
                yield from _check_stem(dataset, stem)
            except DataNotFoundError as error:
                if names:
                    yield Finding(name, f"{stem}.parquet", 0, problem=str(error))
            except DataError as error:
                yield Finding(name, f"{stem}.parquet", 0, problem=str(error))
        progress(Tick(f"check {name}", len(stems), len(stems)))


def _check_stem(dataset: Dataset, stem: str) -> Iterator[Finding]:
    paths = files_of(dataset, stem)
    table = table_of(dataset, stem, (), silent)
    known = recorded(data_folder() / WRITTEN)
    note = ""
    for path in paths:
        expected = known.get(path.name)
        if expected and (found := digest_of(path, "sha256")) != expected:
            problem = (
                f"its SHA-256 is {found}, expected {expected}, which was noted when it was written; "
                f"run: forsaken datasets get {dataset.name} --force"
            )
            yield Finding(dataset.name, path.name, table.num_rows, problem=problem)
            return
        note = "checksum as written" if expected else "no checksum recorded"
    if not paths:
        note = check_originals(dataset)
    where = f"dataset {dataset.name}, {stem}"
    wanted = [IMAGE if dataset.kind == "image" else TEXT, *([LABEL] if dataset.classes else [])]
    for column in wanted:
        if column not in table.column_names:
            raise DataError(f"{where} has no column {column!r} (found: {', '.join(table.column_names)}); get it again")
    if dataset.classes:
        checked_labels(labels_of(table, LABEL, where)[0], dataset.classes, where)
    complete = sum(rows for split, rows in dataset.rows.items() if dataset.parts[split] == stem)
    share = "" if table.num_rows == complete else f"; a part of the complete {complete:,}"
    name = f"{stem}.parquet" if len(paths) == 1 else f"{stem}-*.parquet" if paths else f"{stem} (original files)"
    yield Finding(dataset.name, name, table.num_rows, note=note + share)
