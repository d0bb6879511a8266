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
from forsaken.data.readers import LABEL, TABLES, from_table, picture_files, read_records, read_table
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import DataError, DataNotFoundError, EmptyError, InputError
from forsaken.jobs.code import call, find
from forsaken.jobs.configuration import Job, Source
from forsaken.types import Array, Progress, silent

NONMEMBERS = "[audit] nonmembers"  # as messages call them; [oracle] has nonmembers of its own

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
        source = self.job.data.sets.get(name)
        return None if source is None else self.named(name, source)

    def named(self, name: str, source: Source) -> Rows:
        """Return a set that the job describes; `name` is what messages call it."""
        if name not in self._read:
            rows = self._whole(name, source)
            if source.ids is not None:
                rows = rows.take(_places(rows, self._ids(source.ids, name), name, self.job.data.id), name)
            if source.count is not None:
                rows = self._drawn(rows, source.count, name)
            self._read[name] = rows
        return self._read[name]

    def _whole(self, name: str, source: Source) -> Rows:
        if source.of is not None:
            base = self.named(source.of, self.job.data.sets[source.of])
            return base.take(np.arange(len(base)), name)
        if source.path is None:
            return self._function(name, source)
        path = self.job.resolve(source.path)
        if path.suffix.lower() in TABLES and path.is_file():
            return self._table(name, path)
        records = read_records(path, size=self.job.data.size if path.is_dir() else None, progress=self.progress)
        ids = None
        if path.is_dir():
            ids = np.array([file.relative_to(path).as_posix() for file in picture_files(path)], dtype=object)
        return Rows(name, records, name, np.arange(len(records)), ids, path)

    def _table(self, name: str, path: Path) -> Rows:
        """Read a table. Labels are asked for where they must be, ids where the table has them."""
        data = self.job.data
        group = None if self.job.references is None else self.job.references.group
        named = [each for each in dict.fromkeys((data.id, group)) if each is not None]
        table = read_table(path, [each for each in named if each != data.label])  # as numbers, 007 and 7 would be one
        label = data.label if data.label in table.column_names else LABEL
        if label != data.label and (name in ("test", "retain") or label in table.column_names):
            problem = f"{name}: {path} has no column {data.label!r} (found: {', '.join(table.column_names)})"
            raise DataError(problem, field="label", remedy="name the one of the labels")
        beside = [each for each in named if each in table.column_names]
        try:
            records = from_table(table, str(path), label=label, size=data.size, columns=beside, progress=self.progress)
        except DataError as error:
            gone = [each for each in named if each not in beside]
            if not gone:
                raise
            # The column that was meant is then taken for a feature.
            found = ", ".join(table.column_names)
            problem = f"{name}: {path} has no column {gone[0]!r}, which the job file names (found: {found}); {error}"
            raise DataError(problem) from error
        return Rows(name, records, name, np.arange(len(records)), records.columns.get(data.id or ""), path)

    def _function(self, name: str, source: Source) -> Rows:
        key = name if name.startswith("[") else f"[data] {name}"
        function = find(str(source.python), key)
        found = call(function, f"{key} = {source.python!r}", secret=True, **source.arguments)
        if not isinstance(found, Records):
            found = call(Samples.read, f"{key} = {source.python!r}", found, name, secret=True)
        return Rows(name, found, name, np.arange(len(found)))

    def _ids(self, ids: list[Any] | str, name: str) -> list[str]:
        if isinstance(ids, list):
            return [str(one) for one in ids]
        return _read_ids(self.job.resolve(ids), self.job.data.id, name)

    def _drawn(self, rows: Rows, count: int, name: str) -> Rows:
        forget = self.given("forget") if name != "forget" else None
        free = np.ones(len(rows), dtype=bool) if forget is None else rows.apart_from([forget])
        if free.sum() < count:
            problem = f"{name}: {count} rows are asked for, but {free.sum()} are there besides those to forget"
            raise InputError(problem, field=name, remedy="lower count")
        # All rows are put in order, so that another request draws the same ones, but for what it forgets.
        order = generator(self.job.method.seed, _DRAWS[name]).permutation(len(rows))
        return rows.take(np.sort(order[free[order]][:count]), name)


def _read_ids(path: Path, column: str | None, name: str) -> list[str]:
    """Read one id a line, or the first column of a CSV table. A header that is the name of the id column is skipped."""
    what = f"{name}: the file of ids {path}"
    try:
        text = path.read_text(encoding="utf-8-sig")
        found = [line[0].strip() for line in csv.reader(text.splitlines()) if line and line[0].strip()]
    except FileNotFoundError as error:
        raise DataNotFoundError(f"{name}: no file of ids {path}", remedy="check the path") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{what} is not UTF-8", remedy="save it as UTF-8 text") from error
    except (OSError, csv.Error) as error:
        raise DataError(f"{what} cannot be read ({error})", expected="one id a line") from error
    if "\0" in text:
        raise DataError(f"{what} is not a text file", expected="one id a line")
    if found and found[0] == column:
        found = found[1:]
    if not found:
        raise EmptyError(f"{what} names no id", remedy="write one a line")
    return found


def _places(rows: Rows, ids: list[str], name: str, column: str | None) -> Array:
    """Return the rows that have these ids, in the order of the ids. No id is ever quoted."""
    known: Iterable[Any] = range(len(rows)) if rows.ids is None else rows.ids
    where, remedy = f"in the column {column!r} of {rows.home}", "check the ids"
    if rows.ids is None:
        if column is not None and rows.path is not None and rows.path.suffix.lower() in TABLES:
            problem = f"the ids of {name} are looked for in the column {column!r}, which {rows.path} does not have"
            remedy = 'name the column that it has: id = "..." in [data], or leave id out and give row numbers'
            raise DataError(problem, field="id", remedy=remedy)
        where = f"among the row numbers of {rows.home}, 0 to {len(rows) - 1}"
        remedy = 'where the ids stand in a column, name it: id = "..." in [data]'
    elif rows.path is not None and rows.path.is_dir():
        where = f'among the files, such as "cat/12.png", of {rows.home}'
    by_id: dict[str, list[int]] = {}
    for at, one in enumerate(known):
        by_id.setdefault(str(one), []).append(at)
    missing = [at for at, one in enumerate(ids) if one not in by_id]
    if missing:
        problem = (
            f"{name}: {len(missing)} of {len(ids)} ids are not {where} (first: number {missing[0] + 1} of the list)"
        )
        raise InputError(problem, field=name, remedy=remedy)
    return np.array(list(dict.fromkeys(at for one in ids for at in by_id[one])), dtype=np.int64)
