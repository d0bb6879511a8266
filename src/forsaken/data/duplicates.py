"""Duplicates: copies of forgotten records that are still in the training data, and would bring them back.

Exact duplicates have equal content. What a near one is depends on the data: `forsaken.data.likeness` says it, and
benchmarks/duplicates.py measures how many edited copies are found and how many unrelated rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from forsaken.data.likeness import Likeness, likeness_of
from forsaken.data.nest import Nest, as_kinds, common_kind, leaves, row_keys, shape_of
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import InputError
from forsaken.types import Array, Progress, Tick, silent

STAGE = "look for duplicates"


@dataclass(frozen=True, slots=True)
class Pair:
    """A training row and the forgotten row that it is most like; similarity 1 is equal, or as good as equal."""

    train: int
    forget: int
    similarity: float


@dataclass(frozen=True, slots=True)
class Duplicates:
    """Training rows that are exact or near duplicates of forgotten records, in their order; none is in both."""

    exact: tuple[Pair, ...]
    near: tuple[Pair, ...]


def find_duplicates(
    forget: Records | Samples, train: Records | Samples, *, skip: Iterable[int] = (), progress: Progress = silent
) -> Duplicates:
    """Look for duplicates of forgotten records in the training data.

    Parameters
    ----------
    forget, train : records or samples
        Both of one kind. Labels do not count.
    skip : iterable of int
        Training rows that are the forgotten records themselves.
    progress : callable
        Told after each block of training rows.
    """
    ours, theirs = content_keys(forget, train)
    count = len(train)
    left = np.ones(count, dtype=bool)
    left[_checked(skip, count)] = False
    first: dict[bytes, int] = {}
    for row, key in enumerate(ours):
        first.setdefault(key, row)
    exact = tuple(Pair(row, first[key], 1.0) for row, key in enumerate(theirs) if left[row] and key in first)
    left[[pair.train for pair in exact]] = False
    near: list[Pair] = []
    if len(forget) and left.any():
        for done, pairs in _near(likeness_of(forget, train), np.flatnonzero(left)):
            near += pairs
            progress(Tick(STAGE, done, int(left.sum())))
    return Duplicates(exact, tuple(near))


def content_keys(one: Records | Samples, two: Records | Samples) -> tuple[list[Any], list[Any]]:
    """Return a key for each row of two sets, equal where the content of the rows is equal."""
    if isinstance(one, Samples) and isinstance(two, Samples):
        return _sample_keys(one.inputs, two.inputs)
    if not isinstance(one, Records) or not isinstance(two, Records):
        raise InputError(
            f"forget is of type {type(one).__name__}, train of type {type(two).__name__}; expected Records or Samples, "
            "and the same for both"
        )
    if one.kind != two.kind:
        raise InputError(f"the rows to forget are of kind {one.kind}, the training data {two.kind}; expected one kind")
    if one.kind == "text":
        return one.content.tolist(), two.content.tolist()
    if one.kind == "image" and one.content.shape[1:] != two.content.shape[1:]:
        return [None] * len(one), [b""] * len(two)  # pictures of different sizes are never equal, but may look alike
    return _sample_keys(torch.from_numpy(one.content), torch.from_numpy(two.content))


def _sample_keys(one: Nest, two: Nest) -> tuple[list[bytes], list[bytes]]:
    if shape_of(one) != shape_of(two):
        raise InputError(
            f"a row to forget has shape {shape_of(one)}, a training row {shape_of(two)}; expected one shape: prepare "
            "both in the same way"
        )
    kinds = [common_kind(a.dtype, b.dtype) for a, b in zip(leaves(one), leaves(two), strict=True)]
    return row_keys(as_kinds(one, kinds)), row_keys(as_kinds(two, kinds))


def _near(likeness: Likeness, rows: Array) -> Iterator[tuple[int, list[Pair]]]:
    """Return, block by block, the number of rows looked at and the pairs found."""
    for start in range(0, len(rows), likeness.block):
        part = rows[start : start + likeness.block]
        at, forget, similarity = likeness.near(part)
        order = np.lexsort((forget, -similarity, at))
        best = order[np.unique(at[order], return_index=True)[1]]
        found = zip(part[at[best]].tolist(), forget[best].tolist(), similarity[best].tolist(), strict=True)
        yield start + len(part), [Pair(*pair) for pair in found]


def _checked(skip: Iterable[int], count: int) -> Array:
    rows = np.array(list(skip), dtype=np.int64)
    outside = rows[(rows < 0) | (rows >= count)]
    if len(outside):
        raise InputError(f"row {outside[0]} is to be skipped, expected a training row of 0 to {count - 1}")
    return rows
