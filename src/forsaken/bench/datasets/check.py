"""Checking the files of the data folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forsaken.bench.datasets.registry import DATASETS, Dataset
from forsaken.bench.datasets.store import (
    check_originals,
    checked_labels,
    dataset_named,
    digest_of,
    files_of,
    presence,
    recorded,
    table_of,
)
from forsaken.data.readers import IMAGE, LABEL, TEXT, labels_of
from forsaken.errors import DataError, DataNotFoundError
from forsaken.types import Progress, Tick, silent


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
    known = recorded()
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
