"""The rows of a table of references: hashes, folds and logits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from forsaken.references.keys import as_keys
from forsaken.types import Array

CLAIMED = -1  # the fold of a row whose logits somebody handed in


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """What is known of each row of the training data, in their order.

    Attributes
    ----------
    content : bytes, shape (n, 32)
        The keyed hash of each row.
    groups : bytes, shape (n, 32), or None
        The keyed hash of each row's group.
    fold : int array, shape (n,)
        In which fold it was held out; `CLAIMED` where that is somebody's word.
    logits : Tensor, shape (n, classes), float32
        What the model that never saw it says.
    views : Tensor, shape (n, views, classes), float32, or None
        What that model says of the row's views.
    places : dict
        The first row of each content.
    """

    content: Array
    groups: Array | None
    fold: Array
    logits: Tensor
    views: Tensor | None = None
    places: dict[bytes, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        first: dict[bytes, int] = {}
        for at, key in enumerate(as_keys(self.content)):
            first.setdefault(key, at)
        object.__setattr__(self, "places", first)

    def copies_of(self, places: Array) -> Array:
        """Return all rows that have the content of the rows at `places`."""
        wanted = set(as_keys(self.content[places]))
        return np.flatnonzero([key in wanted for key in as_keys(self.content)])

    def without(self, rows: Array) -> Entries:
        """Return the other rows."""
        left = np.ones(len(self.fold), dtype=bool)
        left[rows] = False
        groups, there = None if self.groups is None else self.groups[left], torch.from_numpy(left)
        views = None if self.views is None else self.views[there].clone()
        return Entries(self.content[left], groups, self.fold[left], self.logits[there].clone(), views)

    def joined(self, other: Entries) -> Entries:
        """Return these rows and then the other ones."""
        groups = None if self.groups is None or other.groups is None else np.concatenate([self.groups, other.groups])
        return Entries(
            np.concatenate([self.content, other.content]),
            groups,
            np.concatenate([self.fold, other.fold]),
            torch.cat([self.logits, other.logits]),
            None if self.views is None or other.views is None else torch.cat([self.views, other.views]),
        )
