"""Models of folds that were kept: what they learnt, and their weights where no network is at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from forsaken.errors import InputError, SettingsError
from forsaken.references.entries import Entries
from forsaken.references.folds import units
from forsaken.references.keys import as_keys
from forsaken.types import Array


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of a kept model that was read without its network: good for writing it again, and nothing else."""

    state: Mapping[str, Tensor]


def built(models: Sequence[Any]) -> Sequence[Any]:
    """Return the models, or raise a `SettingsError` where they are weights alone."""
    if any(isinstance(model, Weights) for model in models):
        raise SettingsError(
            "the kept models of this table were read without a network; load it with build=, a function that returns "
            "one, or let go of them with drop_models()"
        )
    return models


@dataclass(frozen=True, slots=True, eq=False)
class Taught:
    """Which rows the kept models were trained on, forgotten ones included: each model on all but those of its fold.

    Attributes
    ----------
    content : bytes, shape (n, 32)
        The keyed hash of each row.
    groups : bytes, shape (n, 32), or None
        The keyed hash of each row's group.
    fold : int array, shape (n,)
        The fold, and so the one model that did not learn it.
    fold_of : dict
        The fold of each content and of each group.
    """

    content: Array
    groups: Array | None
    fold: Array
    fold_of: dict[bytes, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fold_of", _folds(self.content, self.groups, self.fold))

    def learnt(self, content: Array, model: int | None = None) -> Array:
        """Return, row by row, whether this model learnt it; for None, whether any did."""
        folds = [self.fold_of.get(key) for key in as_keys(content)]
        return np.array([fold is not None and fold != model for fold in folds], dtype=bool)

    def fold_for(self, content: Array, groups: Array | None, table: Entries, folds: int) -> Array:
        """Return a fold for each new row, whose model learnt neither it nor a row of its group.

        Where several are so, it is that of the group's other rows in the table, or the smallest. Rows that share
        their content or a group go together.
        """
        sizes = np.bincount(table.fold, minlength=folds)
        later = _folds(table.content, table.groups, table.fold)
        keys = as_keys(content)
        names = keys if groups is None else as_keys(groups)
        unit = units(keys, None if groups is None else names)
        chosen = np.empty(len(keys), dtype=np.int64)
        order = np.argsort(unit, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(unit[order])) + 1):
            own = {key for row in rows for key in (keys[row], names[row])}
            barred = {self.fold_of[key] for key in own if key in self.fold_of}
            known = barred | {later[key] for key in own if key in later}
            if barred and len(known) > 1:
                raise InputError(
                    f"{len(rows)} new rows (first: row {rows[0]} of those that are new) belong together, by a group or "
                    "as copies, with old rows of several folds, so that every kept model learnt some of these; leave "
                    "them out, or drop_models() and extend with train="
                )
            chosen[rows] = min(known) if known else int(sizes.argmin())
            sizes[chosen[rows[0]]] += len(rows)
        return chosen


def _folds(content: Array, groups: Array | None, fold: Array) -> dict[bytes, int]:
    found = dict(zip(as_keys(content), fold.tolist(), strict=True))
    if groups is not None:
        found |= zip(as_keys(groups), fold.tolist(), strict=True)
    return found
