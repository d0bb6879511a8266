"""Datasets by name: found on disk in their normalised form, or fetched, parsed and written there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from forsaken._files import draft_of, write_atomically
from forsaken.data.fetch import fetch
from forsaken.data.folder import VARIABLE, data_folder
from forsaken.data.records import Records, checked_labels
from forsaken.data.registry import DATASETS, Dataset
from forsaken.data.tables import IMAGE, LABEL, NAME, SPLIT, TEXT, from_table, labels_of, read_parquet
from forsaken.errors import DataError, DataNotFoundError, OutputError, UnknownNameError
from forsaken.types import Progress, Tick, silent

_WRITTEN = "normalised.json"  # SHA-256 of every Parquet file that `get_dataset` wrote


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
        Told while pictures are decoded.
    """
    dataset = dataset_named(name)
    if split is not None and split not in dataset.parts:
        raise UnknownNameError(f"split of {name}", split, dataset.parts)
    stems = list(dict.fromkeys(stem for part, stem in dataset.parts.items() if split in (None, part)))
    tables = [_only(_table(dataset, stem, columns, progress), dataset, stem, split) for stem in stems]
    where = f"dataset {name}" + (f", {split}" if split else "")
    records = from_table(_joined(tables, where), where, size=size, columns=columns, progress=progress)
    if records.labels is None or not dataset.classes:
        return records
    labels = checked_labels(records.labels, dataset.classes, where)
    return Records(records.content, labels, records.names or dataset.class_names, records.columns)


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
    """Tell how much of the dataset lies in the data folder."""
    try:
        found = [bool(files_of(dataset, stem)) for stem in dataset.parts.values()]
    except DataError:
        return "part"
    originals = _originals(dataset, data_folder())
    if all(found) or len(originals) == len(dataset.archives):
        return "yes"
    return "part" if any(found) or originals else "no"


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
    originals = folder / "originals"
    files = _originals(dataset, folder)
    _check_originals(dataset)
    files |= {a.file: fetch(a, originals, progress) for a in dataset.archives if a.file not in files}
    _recorded()  # a damaged record must show before anything is written
    tables = dataset.parse(files, progress)
    if set(tables) != set(stems):
        raise DataError(f"the archives of {name} gave {sorted(tables)}, expected {sorted(stems)}; get all of them")
    for stem, table in tables.items():
        _check_rows(dataset, stem, table)
    written = [_write(table, folder / f"{stem}.parquet", progress) for stem, table in tables.items()]
    if not keep_originals:
        for archive in dataset.archives:
            (originals / archive.file).unlink(missing_ok=True)
    return written


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
    for dataset in [dataset_named(name) for name in names or DATASETS]:
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
    table = _table(dataset, stem, (), silent)
    known = _recorded()
    note = ""
    for path in paths:
        expected = known.get(path.name)
        if expected and (found := _digest(path, "sha256")) != expected:
            problem = (
                f"its SHA-256 is {found}, expected {expected}, which was noted when it was written; "
                f"run: forsaken datasets get {dataset.name} --force"
            )
            yield Finding(dataset.name, path.name, table.num_rows, problem=problem)
            return
        note = "checksum as written" if expected else "no checksum recorded"
    if not paths:
        note = _check_originals(dataset)
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


def _check_originals(dataset: Dataset) -> str:
    published = {archive.file: archive.checksum for archive in dataset.archives if archive.checksum}
    found = {name: path for name, path in _originals(dataset, data_folder()).items() if path.name == name}
    for name, path in found.items():
        kind, _, expected = published.get(name, "").partition(":")
        if expected and (seen := _digest(path, kind)) != expected:
            raise DataError(f"{path}: its {kind} is {seen}, published is {expected}; delete it and get it again")
    return "original files, checksum as published" if found and set(found) <= set(published) else "original files"


def _table(dataset: Dataset, stem: str, columns: Sequence[str], progress: Progress) -> pa.Table:
    wanted = [TEXT, IMAGE, LABEL, NAME, SPLIT, *columns]
    paths = files_of(dataset, stem)
    if paths:
        where = f"dataset {dataset.name}, {stem}"
        table = _joined([read_parquet(path, wanted) for path in paths], where)
        if LABEL in table.column_names and not pa.types.is_integer(table[LABEL].type):
            raise DataError(f"{where}: labels are of type {table[LABEL].type}, expected class numbers; get it again")
        return table
    files = _originals(dataset, data_folder())
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


def _originals(dataset: Dataset, folder: Path) -> dict[str, Path]:
    """Return the original files that somebody has put into the data folder, as they are or gzipped."""
    found = {}
    for archive in dataset.archives:
        for path in (folder / archive.file, folder / f"{archive.file}.gz"):
            if path.is_file():
                found[archive.file] = path
                break
    return found


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
    known = _recorded() | {path.name: _digest(path, "sha256")}
    write_atomically(path.parent / _WRITTEN, json.dumps(known, indent=1, sort_keys=True).encode() + b"\n")
    progress(Tick(f"write {path.name}", 1, 1))
    return path


def _recorded() -> dict[str, str]:
    path = data_folder() / _WRITTEN
    try:
        found: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); delete it: it only notes checksums") from error
    return dict(found) if isinstance(found, dict) else {}


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest()
