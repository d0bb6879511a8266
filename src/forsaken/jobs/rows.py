"""The sets of a job as rows: read from files or functions, chosen by id, or drawn."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forsaken._random import Purpose, generator
from forsaken.data.duplicates import content_keys
from forsaken.data.nest import shape_of
from forsaken.data.readers import LABEL, from_table, picture_files, read_csv, read_parquet, read_records
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import DataError, DataNotFoundError, EmptyError, InputError
from forsaken.jobs.code import call, find
from forsaken.jobs.configuration import Job, Source
from forsaken.types import Array, Progress, silent

NONMEMBERS = "[audit] nonmembers"  # as messages call them; [oracle] has nonmembers of its own

_TABLES = {".csv": read_csv, ".parquet": read_parquet}
_SECRET = ("forget", "retain", "train")  # sets that hold records to forget, or may
_DRAWS = {
    "forget": Purpose.JOB_FORGET,
    "reference": Purpose.JOB_REFERENCE,
    "retain": Purpose.JOB_RETAIN,
    "train": Purpose.JOB_TRAIN,
    "test": Purpose.JOB_TEST,
    "[oracle] members": Purpose.JOB_MEMBERS,
    "[oracle] nonmembers": Purpose.JOB_NONMEMBERS,
    NONMEMBERS: Purpose.JOB_STRANGERS,
}


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one set.

    Attributes
    ----------
    name : str
        What messages call the set.
    content : Records or Samples
        Rows as people know them; or numbers, where a function of the user's returned those.
    home : str
        The set that they were taken from: another one's name, or their own.
    index : int array
        Their row numbers there.
    ids : array, optional
        Their ids: a column of a table where the job names one; of pictures in a folder their files, as "cat/12.png".
    path : Path, optional
        The file or folder they were read from.
    """

    name: str
    content: Records | Samples
    home: str
    index: Array
    ids: Array | None = None
    path: Path | None = None

    def __len__(self) -> int:
        return len(self.content)

    def take(self, at: Array, name: str | None = None) -> Rows:
        """Return the rows at `at`, in that order, under a name of their own."""
        ids = None if self.ids is None else self.ids[at]
        return Rows(name or self.name, self.content.rows(at), self.home, self.index[at], ids, self.path)

    def without(self, others: Iterable[Rows]) -> Rows | None:
        """Return the rows that are not among `others`; None if none is left."""
        left = self.apart_from(others)
        return self.take(np.flatnonzero(left)) if left.any() else None

    def apart_from(self, others: Iterable[Rows]) -> Array:
        """Return which rows are not among `others`, neither by number nor by content."""
        left = np.ones(len(self), dtype=bool)
        for other in others:
            if other.home == self.home:
                left &= ~np.isin(self.index, other.index)
            if comparable(self.content, other.content):
                ours, theirs = content_keys(self.content, other.content)
                known = set(theirs)
                left &= np.array([key not in known for key in ours], dtype=bool)
        return left


def comparable(one: Records | Samples, two: Records | Samples) -> bool:
    """Return whether rows of two sets can be compared: records of one kind, or samples of one shape."""
    if isinstance(one, Samples) and isinstance(two, Samples):
        return shape_of(one.inputs) == shape_of(two.inputs)
    if not isinstance(one, Records) or not isinstance(two, Records):
        return False
    return one.kind == two.kind and one.content.shape[1:] == two.content.shape[1:]


class Reader:
    """Reads the sets of a job, each once."""

    def __init__(self, job: Job, progress: Progress = silent) -> None:
        self.job = job
        self.progress = progress
        self._read: dict[str, Rows] = {}

    def given(self, name: str) -> Rows | None:
        """Return a set of [data], or None where the job does not name it."""
        source: Source | None = getattr(self.job.data, name)
        return None if source is None else self.named(name, source)

    def named(self, name: str, source: Source) -> Rows:
        """Return a set that the job describes; `name` is what it is called."""
        if name not in self._read:
            self._read[name] = self._chosen(name, source)
        return self._read[name]

    def _chosen(self, name: str, source: Source) -> Rows:
        rows = self._whole(name, source)
        if source.ids is not None:
            rows = rows.take(_places(rows, self._ids(source.ids, name), name, self.job.data.id), name)
        if source.count is not None:
            rows = self._drawn(rows, source.count, name)
        return rows

    def _whole(self, name: str, source: Source) -> Rows:
        if source.of is not None:
            base = self.given(source.of)
            if base is None:
                raise InputError(f"{name} is taken of {source.of!r}, which [data] does not name")
            return base.take(np.arange(len(base)), name)
        if source.path is not None:
            return self._file(name, self.job.resolve(source.path))
        return self._function(name, source)

    def _file(self, name: str, path: Path) -> Rows:
        data = self.job.data
        if path.suffix.lower() in _TABLES and path.is_file():
            return self._table(name, path)
        records = read_records(path, size=data.size if path.is_dir() else None, progress=self.progress)
        ids = None
        if path.is_dir():
            ids = np.array([file.relative_to(path).as_posix() for file in picture_files(path)], dtype=object)
        return Rows(name, records, name, np.arange(len(records)), ids, path)

    def _table(self, name: str, path: Path) -> Rows:
        """Read a table. Ids and labels are asked for where they are there: references may have neither."""
        data = self.job.data
        table = _TABLES[path.suffix.lower()](path)
        label = data.label if data.label in table.column_names else LABEL
        if label != data.label and (name in ("test", "retain") or label in table.column_names):
            found = ", ".join(table.column_names)
            raise DataError(f"{name}: {path} has no column {data.label!r} (found: {found}); name the one of the labels")
        column = data.id if data.id in table.column_names else None
        group = None if self.job.references is None else self.job.references.group
        beside = [name for name in dict.fromkeys((column, group)) if name is not None and name in table.column_names]
        records = from_table(
            table,
            str(path),
            label=label,
            size=data.size,
            columns=beside,
            progress=self.progress,
        )
        return Rows(name, records, name, np.arange(len(records)), records.columns.get(column or ""), path)

    def _function(self, name: str, source: Source) -> Rows:
        key = name if name.startswith("[") else f"[data] {name}"
        function = find(str(source.python), key)
        secret = name in _SECRET
        found = call(function, f"{key} = {source.python!r}", secret=secret, **source.arguments)
        if not isinstance(found, Records):
            found = call(Samples.read, f"{key} = {source.python!r}", found, name, secret=secret)
        return Rows(name, found, name, np.arange(len(found)))

    def _ids(self, ids: list[Any] | str, name: str) -> list[str]:
        if isinstance(ids, list):
            return [str(one) for one in ids]
        return _read_ids(self.job.resolve(ids), self.job.data.id, name)

    def _drawn(self, rows: Rows, count: int, name: str) -> Rows:
        forget = self.given("forget") if name != "forget" else None
        free = np.ones(len(rows), dtype=bool) if forget is None else rows.apart_from([forget])
        if free.sum() < count:
            raise InputError(
                f"{name}: {count} rows are asked for, but {free.sum()} are there besides those to forget; lower count"
            )
        # All rows are put in order, so that another request draws the same ones, but for what it forgets.
        order = generator(self.job.method.seed, _DRAWS[name]).permutation(len(rows))
        return rows.take(np.sort(order[free[order]][:count]), name)


def _read_ids(path: Path, column: str | None, name: str) -> list[str]:
    """Read one id a line; of a table with commas the first column. A header that is the id's column is passed over."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise DataNotFoundError(f"{name}: no file of ids {path}; check the path") from error
    except OSError as error:
        raise DataError(f"{name}: the file of ids {path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: the file of ids {path} is not UTF-8; save it as UTF-8 text") from error
    if "\0" in text:
        raise DataError(f"{name}: {path} is not a text file, expected one id a line")
    try:
        found = [line[0].strip() for line in csv.reader(text.splitlines()) if line and line[0].strip()]
    except csv.Error as error:
        raise DataError(f"{name}: the file of ids {path} cannot be read as lines ({error})") from error
    if found and column is not None and found[0] == column:
        found = found[1:]
    if not found:
        raise EmptyError(f"{name}: the file of ids {path} names no id; write one a line")
    return found


def _places(rows: Rows, ids: list[str], name: str, column: str | None) -> Array:
    """Return the rows that have these ids, in the order of the ids. No id is ever quoted."""
    if rows.ids is None:
        if column is not None and rows.path is not None and rows.path.suffix.lower() in _TABLES:
            raise DataError(
                f"the ids of {name} are looked for in the column {column!r}, which {rows.path} does not have; name the "
                'column that it has: id = "..." in [data], or leave id out and give row numbers'
            )
        return _numbers(ids, len(rows), name, rows.home)
    by_id: dict[str, list[int]] = {}
    for at, one in enumerate(rows.ids):
        by_id.setdefault(str(one), []).append(at)
    folder = rows.path is not None and rows.path.is_dir()
    where = 'among the files, such as "cat/12.png",' if folder else f"in the column {column!r}"
    missing = [at for at, one in enumerate(ids) if one not in by_id]
    if missing:
        raise InputError(
            f"{name}: {len(missing)} of {len(ids)} ids are not {where} of {rows.home} (first: number {missing[0] + 1} "
            "of the list); check the ids"
        )
    return np.array(list(dict.fromkeys(at for one in ids for at in by_id[one])), dtype=np.int64)


def _numbers(ids: list[str], count: int, name: str, home: str) -> Array:
    digits = len(str(count))
    known = [one.isascii() and one.isdigit() and len(one) <= digits and int(one) < count for one in ids]
    wrong = [at for at, fits in enumerate(known) if not fits]
    if wrong:
        raise InputError(
            f"{name}: {len(wrong)} of {len(ids)} ids are no row numbers of {home} (first: number {wrong[0] + 1} of the "
            f'list), expected 0 to {count - 1}; where the ids stand in a column, name it: id = "..." in [data]'
        )
    return np.array(list(dict.fromkeys(int(one) for one in ids)), dtype=np.int64)
