"""Likeness: which training rows are nearly the same as a row to forget, by what the rows are."""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from forsaken.data.bags import Bags, Pieces, evenly, join_codes, pieces_of_texts
from forsaken.data.nest import leaves
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.data.thumbnails import Thumbnails
from forsaken.types import Array

Found: TypeAlias = tuple[Array, Array, Array]
"""Pairs: the position of a training row among those asked for, a row to forget, and their similarity."""

TEXT = 0.75  # cosine of bags of runs of letters
IN_PLACE, IN_ANY_ORDER = 0.9, 0.95  # share of equal tokens; cosine of their counts
FEATURES = 0.05  # RMS difference, in standard deviations of the training data
_RUN = 5  # letters
_VOCABULARY = 256  # with fewer tokens than that, counts alone say little
_COUNTED = 5000  # rows from which tokens are counted
_CLOSER = 0.2  # beside the usual distance of neighbours
_NEIGHBOURS = 1000  # rows from which the usual distance of neighbours is learnt
_ELEMENTS = 2_000_000  # letters or numbers of training rows looked at together
_SCORES = 16_000_000  # pairs looked at together
_CHECKED = 8  # of the rows that seem near, so many are compared in double precision
_PICTURE_CHANNELS = (1, 3, 4)


class Likeness(Protocol):
    """Rows to forget, ready to be compared with `block` training rows at a time."""

    block: int

    def near(self, rows: Array) -> Found:
        """Return what is nearly the same among these training rows."""
        ...


def likeness_of(forget: Records | Samples, train: Records | Samples) -> Likeness:
    """Return the comparison that fits the kind of the rows; both sets are of one kind and not empty."""
    if isinstance(forget, Records) and isinstance(train, Records):
        if forget.kind == "text":
            return Texts(forget.content, train.content)
        if forget.kind == "image":
            return Thumbnails(forget.content, train.content)
        forget, train = forget.samples(), train.samples()
    ours, theirs = leaves(forget.inputs), leaves(train.inputs)  # type: ignore[union-attr]
    if len(ours) == 1 and ours[0].dim() == 4 and ours[0].shape[1] in _PICTURE_CHANNELS:
        return Thumbnails(_channels_last(ours[0]), _channels_last(theirs[0]))
    if any(leaf.is_floating_point() for leaf in ours):
        return Features(ours, theirs)
    return Tokens(ours, theirs)


class Texts:
    """Texts, alike where they share most of their runs of five letters, rare ones first."""

    def __init__(self, forget: Array, train: Array) -> None:
        letters = sum(map(len, train)) / len(train)
        self.block = _block(letters, len(forget))
        self.bags = Bags(
            lambda rows: pieces_of_texts(train[rows], _RUN), pieces_of_texts(forget, _RUN), len(forget), len(train)
        )

    def near(self, rows: Array) -> Found:
        """Return what is nearly the same among these training rows."""
        return self.bags.near(rows, TEXT)


class Tokens:
    """Rows of whole numbers, alike where most stand in the same place, or where their counts are alike.

    The most common number, such as that of padding, does not count where both rows have it.
    """

    def __init__(self, forget: list[Tensor], train: list[Tensor]) -> None:
        sample = evenly(len(train[0]), _COUNTED)
        known = [np.unique(_matrix([leaf], sample), return_counts=True) for leaf in train]
        # Masks say where there are tokens, not which.
        used = [at for at, (values, _) in enumerate(known) if len(values) > 2] or list(range(len(known)))
        self.train = [train[at] for at in used]
        width = [leaf[0].numel() for leaf in self.train]
        self.filler = np.concatenate(
            [np.full(wide, known[at][0][known[at][1].argmax()]) for at, wide in zip(used, width, strict=True)]
        )
        self.forget = _matrix([forget[at] for at in used], np.arange(len(forget[0])))
        count, others = len(self.forget), len(train[0])
        self.block = _block(sum(width), count)
        self.placed = Bags(self._placed_pieces, self._pieces(self.forget, True), count, others, weigh=False)
        self.counts = None
        if max(len(known[at][0]) for at in used) > _VOCABULARY:
            self.counts = Bags(self._loose_pieces, self._pieces(self.forget, False), count, others)

    def near(self, rows: Array) -> Found:
        """Return what is nearly the same among these training rows."""
        at, forget, _ = self.placed.near(rows, IN_PLACE)  # never less than the share of equal tokens
        ours, theirs = self.forget[forget], _matrix(self.train, rows[at])
        counted = (ours != self.filler) | (theirs != self.filler)
        share = ((ours == theirs) & counted).sum(axis=1) / np.maximum(counted.sum(axis=1), 1)
        close = share >= IN_PLACE
        found = at[close], forget[close], share[close]
        if self.counts is None:
            return found
        more = self.counts.near(rows, IN_ANY_ORDER)
        return tuple(np.concatenate(pair) for pair in zip(found, more, strict=True))  # type: ignore[return-value]

    def _placed_pieces(self, rows: Array) -> Pieces:
        return self._pieces(_matrix(self.train, rows), True)

    def _loose_pieces(self, rows: Array) -> Pieces:
        return self._pieces(_matrix(self.train, rows), False)

    def _pieces(self, matrix: Array, placed: bool) -> Pieces:
        row, column = np.nonzero(matrix != self.filler)
        return row, join_codes(matrix[row, column], column if placed else np.zeros_like(column))


class Features:
    """Rows of numbers, alike where they differ by little beside the spread of each column.

    With few columns every row has close neighbours: a near duplicate is also five times closer than those usually are.
    """

    def __init__(self, forget: list[Tensor], train: list[Tensor]) -> None:
        self.train = train
        wide = sum(leaf[0].numel() for leaf in train)
        self.block = _block(wide, len(forget[0]))
        total, square, largest = np.zeros(wide), np.zeros(wide), np.zeros(wide)
        parts = [np.arange(at, min(at + self.block, len(train[0]))) for at in range(0, len(train[0]), self.block)]
        for part in parts:
            total += _matrix(train, part).sum(axis=0)
        self.mean = total / len(train[0])
        for part in parts:
            away = _matrix(train, part) - self.mean
            square += (away**2).sum(axis=0)
            largest = np.maximum(largest, np.abs(away + self.mean).max(axis=0))
        spread = np.sqrt(square / len(train[0]))
        self.used = spread > 1e-6 * largest  # what is left of a constant column is rounding
        self.spread = spread[self.used]
        self.forget = self._standard(forget, np.arange(len(forget[0])))
        self.rough = self.forget.astype(np.float32)
        self.length = (self.forget**2).sum(axis=1)
        self.limit = min(FEATURES, _CLOSER * self._usual_distance()) if self.used.any() else 0.0

    def near(self, rows: Array) -> Found:
        """Return what is nearly the same among these training rows."""
        if not self.used.any():
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0)
        part = self._standard(self.train, rows)
        both = (part**2).sum(axis=1)[:, None] + self.length
        square = both - 2 * (part.astype(np.float32) @ self.rough.T)
        if square.shape[1] > _CHECKED:
            most = np.partition(square, _CHECKED - 1, axis=1)[:, _CHECKED - 1, None]
            square[square > most] = np.inf
        limit = self.limit**2 * part.shape[1] + 1e-5 * both  # single precision is off by that much
        at, forget = np.nonzero(square <= limit)
        rms = np.sqrt(((part[at] - self.forget[forget]) ** 2).mean(axis=1))
        close = rms <= self.limit
        return at[close], forget[close], 1 - rms[close]

    def _usual_distance(self) -> float:
        """Return the median RMS difference between a training row and the nearest that is not its equal."""
        sample = self._standard(self.train, evenly(len(self.train[0]), _NEIGHBOURS))
        length = (sample**2).sum(axis=1)
        square = (length[:, None] + length - 2 * sample @ sample.T) / sample.shape[1]
        square[square <= 1e-9] = np.inf
        nearest = square.min(axis=1)
        known = nearest[np.isfinite(nearest)]
        # Among m times as many rows of d columns the nearest is closer by the d-th root of m.
        crowd = (len(sample) / len(self.train[0])) ** (1 / sample.shape[1])
        return float(np.sqrt(np.median(known)) * crowd) if len(known) else np.inf

    def _standard(self, parts: list[Tensor], rows: Array) -> Array:
        return np.asarray((_matrix(parts, rows) - self.mean)[:, self.used] / self.spread)


def _block(elements: float, wanted: int) -> int:
    """Return how many training rows of so many elements are looked at together."""
    return int(max(1, min(4096, _ELEMENTS / max(1.0, elements), _SCORES / wanted)))


def _matrix(parts: list[Tensor], rows: Array) -> Array:
    """Return the given rows of all tensors side by side, as float64 or int64."""
    at = torch.from_numpy(rows)
    side_by_side = torch.cat([part[at].reshape(len(rows), part[0].numel()) for part in parts], dim=1)
    return side_by_side.to(torch.float64 if side_by_side.is_floating_point() else torch.int64).numpy()


def _channels_last(pictures: Tensor) -> Array:
    array = pictures.detach().float() if pictures.dtype == torch.bfloat16 else pictures.detach()
    return array.permute(0, 2, 3, 1).cpu().numpy()
