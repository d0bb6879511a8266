"""The rows of a table of references: how a row is recognised, which fold it belongs to, and its logits.

A row is recognised by a keyed hash of its inputs, so that somebody who has the table, but not its key, cannot test
guesses about what was trained on.
"""

from __future__ import annotations

import hmac
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import GroupKFold
from torch import Tensor

from forsaken._keys import KEY_BYTES, new_record_key
from forsaken._random import Purpose, generator
from forsaken.data.nest import map_nest
from forsaken.data.record_hashes import record_hashes
from forsaken.data.samples import Samples
from forsaken.errors import InputError, SettingsError
from forsaken.types import Array

WIDTH = 32  # bytes of a hash
LEAST = 2  # folds
CLAIMED = -1  # the fold of a row whose logits were handed in: nothing proves that the row was held out


def checked_key(key: object) -> bytes:
    """Return the key, or a new one for None."""
    if key is None:
        return new_record_key()
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        found = f"{len(key)} bytes" if isinstance(key, bytes) else f"of type {type(key).__name__}"
        raise SettingsError(f"key is {found}, expected {KEY_BYTES} random bytes; None makes new ones")
    return key


def row_hashes(samples: Samples, key: bytes) -> Array:
    """Return the keyed hash of each sample's inputs, as bytes (samples x 32).

    The width of a number plays no role: floats hash alike where they are equal in float32, and so do equal integers. A
    float never hashes like an integer.
    """

    def widened(leaf: Tensor) -> Tensor:
        return leaf.detach().cpu().to(torch.float32 if leaf.is_floating_point() else torch.int64)

    plain = Samples(map_nest(widened, samples.inputs))
    return _matrix([bytes.fromhex(text) for text in record_hashes(plain, key)])


def group_hashes(groups: Iterable[Any], key: bytes) -> Array:
    """Return the keyed hash of each row's group (a name or a whole number), as bytes (rows x 32)."""
    if not isinstance(groups, Iterable) or isinstance(groups, str | bytes):
        raise InputError(f"groups is of type {type(groups).__name__}, expected a list with the group of each row")
    found = []
    for at, group in enumerate(groups):
        single = isinstance(group, np.generic) or (isinstance(group, Tensor) and group.dim() == 0)
        value = group.item() if single else group
        if not isinstance(value, str | int | bytes) or isinstance(value, bool):
            # Only the type is named: a group may be the name of a person.
            raise InputError(
                f"the group of row {at} is of type {type(value).__name__}, expected a name or a whole number"
            )
        # The number 1 and the text "1" are one group, since a column of a file may be read as either.
        text = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        found.append(hmac.digest(key, b"group\0" + text, "sha256"))
    return _matrix(found)


def as_keys(hashes: Array) -> list[bytes]:
    """Return the rows of a matrix of bytes as values that a dictionary can hold."""
    return [row.tobytes() for row in hashes]


def _matrix(digests: list[bytes]) -> Array:
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(len(digests), WIDTH).copy()


def assign_folds(content: Sequence[Hashable], groups: Sequence[Hashable] | None, *, folds: int, seed: int) -> Array:
    """Return the fold of each row, from 0; folds have about the same number of rows.

    Rows with equal content, and rows of one group, share a fold: a model that was trained on a copy of a row, or on
    another record of the same person, is not a model that never saw that person.

    Parameters
    ----------
    content : sequence
        What each row is, equal where rows are equal.
    groups : sequence or None
        To whom each row belongs.
    folds : int
        How many folds, 2 at least.
    seed : int
        Decides which rows come into which fold.

    Examples
    --------
    >>> found = assign_folds(["a", "b", "c", "a"], None, folds=2, seed=0)
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
    # GroupKFold places the largest groups first, and equally large ones in the order of their numbers, so the numbers
    # are drawn at random.
    numbers = generator(seed, Purpose.FOLDS).permutation(count)[unit]
    fold = np.empty(len(unit), dtype=np.int64)
    for at, (_, held_out) in enumerate(GroupKFold(folds).split(unit, groups=numbers)):
        fold[held_out] = at
    return fold


def units(content: Sequence[Hashable], groups: Sequence[Hashable] | None) -> Array:
    """Return, for each row, the number of its unit: the rows that must share a fold.

    Two rows are in one unit if they have equal content or the same group, directly or through other rows (union-find).
    """
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


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceRows:
    """The rows of a table, in the order of the training data.

    Attributes
    ----------
    content : bytes, shape (n, 32)
        The keyed hash of each row.
    groups : bytes, shape (n, 32), or None
        The keyed hash of each row's group.
    fold : int array, shape (n,)
        The fold in which the row was held out; `CLAIMED` where its logits were handed in.
    logits : Tensor, shape (n, classes), float32
        The logits of the row by a model that never saw it.
    views : Tensor, shape (n, views, classes), float32, or None
        The logits of the row's augmented copies by the same model.
    places : dict
        The number of the first row with each content.
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
        """Return the numbers of all rows that have the content of a row at `places`."""
        wanted = set(as_keys(self.content[places]))
        return np.flatnonzero([key in wanted for key in as_keys(self.content)])

    def without(self, rows: Array) -> ReferenceRows:
        """Return the table's rows without those at `rows`."""
        left = np.ones(len(self.fold), dtype=bool)
        left[rows] = False
        groups, there = None if self.groups is None else self.groups[left], torch.from_numpy(left)
        views = None if self.views is None else self.views[there].clone()
        return ReferenceRows(self.content[left], groups, self.fold[left], self.logits[there].clone(), views)

    def joined(self, other: ReferenceRows) -> ReferenceRows:
        """Return these rows, followed by the other ones."""
        groups = None if self.groups is None or other.groups is None else np.concatenate([self.groups, other.groups])
        return ReferenceRows(
            np.concatenate([self.content, other.content]),
            groups,
            np.concatenate([self.fold, other.fold]),
            torch.cat([self.logits, other.logits]),
            None if self.views is None or other.views is None else torch.cat([self.views, other.views]),
        )
