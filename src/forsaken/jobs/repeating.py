"""How the references of a run were made, so that an audit can make others like them."""

from __future__ import annotations

from typing import Any

from forsaken.auditing.held_out import HeldOut
from forsaken.data.duplicates import content_keys
from forsaken.data.records import Records
from forsaken.errors import InputError, SettingsError
from forsaken.jobs.certificate import Certificate
from forsaken.jobs.method import by_references
from forsaken.jobs.rows import Rows
from forsaken.jobs.sets import Sets
from forsaken.jobs.settings import Job
from forsaken.references.fitting import CUSTOM
from forsaken.references.rows import units


def held_out_of(job: Job, certificate: Certificate, sets: Sets) -> HeldOut | None:
    """Return how references like the run's are made; None where it went by none.

    The table itself is not needed, which the run advised to delete: the certificate tells its folds, and the groups
    stand in the training data.
    """
    stated = certificate.references
    if stated is None or not by_references(job):
        return None
    if stated.view == CUSTOM:
        raise SettingsError(
            "the views of this run's references were made by a function, so that nobody here knows how to make others "
            'like them for the models of this profile; profile = "standard" works'
        )
    views = stated.views or 0
    if stated.by == "row":
        return HeldOut(stated.folds, "row", views=views, view=stated.view)
    if stated.by != "group":
        raise SettingsError(
            "the references of this run were handed in, so that nobody here knows how to make others like them for the "
            'models of this profile; profile = "standard" works'
        )
    train, name = sets.rows["train"], None if job.references is None else job.references.group
    if name is None or not isinstance(train.content, Records) or name not in train.content.columns:
        raise InputError(
            "the folds of this run's references were drawn by group, and [references] group names no column of [data] "
            "train; name the one that they were drawn by"
        )
    parts = [sets.rows[part] for part in ("kept", "retain", "forget") if part in sets.rows]
    groups = tuple(group for part in parts for group in _groups(part, train, name))
    return HeldOut(stated.folds, "group", groups, views, stated.view)


def _groups(part: Rows, train: Rows, name: str) -> list[Any]:
    """Return the group of each row of a set, known by its content; groups that share a row are one, as in the table.

    A row that is no training row any more is in the group that its own column tells, or else in one of its own.
    """
    column = _column(train, name)
    ours, theirs = content_keys(part.content, train.content)
    number = units(theirs, column).tolist()
    known, named = dict(zip(theirs, number, strict=True)), dict(zip(column, number, strict=True))
    alone: list[Any] = [("alone", part.name, at) for at in range(len(part))]
    own = _column(part, name) or alone
    return [known.get(key, named.get(each, each)) for key, each in zip(ours, own, strict=True)]


def _column(rows: Rows, name: str) -> list[str]:
    """Return whose each row is, as text: a column may be read as numbers in one file and as names in another."""
    found = rows.content.columns.get(name) if isinstance(rows.content, Records) else None
    return [] if found is None else [str(each) for each in found.tolist()]
