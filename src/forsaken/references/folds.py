"""Folds: which rows are held out together."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from sklearn.model_selection import GroupKFold

from forsaken._random import Purpose, generator
from forsaken.errors import InputError, SettingsError
from forsaken.types import Array

LEAST = 2


def deal(content: Sequence[Hashable], groups: Sequence[Hashable] | None, *, folds: int, seed: int) -> Array:
    """Return the fold of each row, from 0; folds have about the same number of rows.

    Rows with equal content, and rows of one group, share a fold: a model that saw the copy of a row, or another record
    of the same person, is not innocent of it.

    Parameters
    ----------
    content : sequence
        What each row is, equal where rows are equal.
    groups : sequence or None
        Whose each row is.
    folds : int
        How many, 2 at least.
    seed : int
        Decides who comes into which fold.

    Examples
    --------
    >>> found = deal(["a", "b", "c", "a"], None, folds=2, seed=0)
    >>> bool(found[0] == found[3]), sorted(np.bincount(found).tolist())
    (True, [2, 2])
    """
    if isinstance(folds, bool) or not isinstance(folds, int) or folds < LEAST:
        raise SettingsError(f"folds is {folds!r}, expected a whole number >= {LEAST}; 4 is a good one")
    if groups is not None and len(groups) != len(content):
        raise InputError(f"groups names the group of {len(groups)} rows, but there are {len(content)}; give one a row")
    unit = units(content, groups)
    count = int(unit.max(initial=-1)) + 1
    if count < folds:
        what = "rows that differ" if groups is None else "groups that share no row"
        raise InputError(f"there are {count} {what}, too few for {folds} folds; give more, or fewer folds")
    # GroupKFold deals the largest groups first, and equal ones in the order of their numbers: those are drawn.
    numbers = generator(seed, Purpose.FOLDS).permutation(count)[unit]
    fold = np.empty(len(unit), dtype=np.int64)
    for at, (_, held_out) in enumerate(GroupKFold(folds).split(unit, groups=numbers)):
        fold[held_out] = at
    return fold


def units(content: Sequence[Hashable], groups: Sequence[Hashable] | None) -> Array:
    """Return the number of each row's unit: rows joined by equal content or by a group, one by way of the other."""
    first: dict[tuple[str, Hashable], int] = {}
    parent = list(range(len(content)))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    for row in range(len(content)):
        keys: list[tuple[str, Hashable]] = [("content", content[row])]
        if groups is not None:
            keys.append(("group", groups[row]))
        for key in keys:
            parent[root(row)] = root(first.setdefault(key, row))
    roots = np.array([root(row) for row in range(len(content))], dtype=np.int64)
    return np.unique(roots, return_inverse=True)[1]
