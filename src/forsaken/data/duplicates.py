"""Copies of forgotten records in the training data, which would bring the records back at the next training.

An exact duplicate has the same content. A near duplicate is a close neighbour in a space that fits the kind of data:

========  =====================================================  ==========================================
data      the vector of a row                                    near where
========  =====================================================  ==========================================
texts     TF-IDF weights of its runs of five letters             cosine >= 0.75
pictures  a grey thumbnail of 16 x 16 less its mean              cosine >= 0.99, also mirrored or shifted by a pixel
tokens    its tokens with their places; its counts of tokens     cosine >= 0.9; cosine >= 0.95
features  its columns, standardised                              root mean square difference <= 0.05, and five times
                                                                 closer than neighbours usually are
========  =====================================================  ==========================================

benchmarks/duplicates.py measures how many edited copies are found, and how many unrelated rows are reported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
import torch
from scipy import sparse
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.metrics import pairwise_distances, pairwise_distances_argmin_min
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from forsaken.data.nest import Nest, as_kinds, common_kind, leaves, row_keys, shape_of
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import InputError
from forsaken.types import Array, Progress, Tick, silent

STAGE = "look for duplicates"
TEXT, PICTURES, IN_PLACE, IN_ANY_ORDER, FEATURES = 0.75, 0.99, 0.9, 0.95, 0.95  # least similarities
_SAMPLE = 5000  # training rows from which the weight of a piece of text, or the most common token, is learnt
_NEIGHBOURS = 1000  # training rows from which the usual distance of neighbours is learnt
_CLOSER = 0.2  # times that distance
_HASHES = 2**20  # columns of a sparse vector
_VOCABULARY = 256  # with fewer different tokens, counts alone say little
_SIDE, _SHIFT = 16, 1  # pixels of a thumbnail; by how many pixels a picture may be shifted
_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # how bright red, green and blue look (ITU-R BT.601)
_ELEMENTS, _PAIRS = 2_000_000, 16_000_000  # numbers or letters, and pairs of rows, that are in memory together


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
    forget, train : Records or Samples
        Both of one kind. Labels do not count.
    skip : iterable of int
        Training rows that are the forgotten records themselves.
    progress : callable
        Called after each block of training rows.
    """
    ours, theirs = content_keys(forget, train)
    left = np.ones(len(train), dtype=bool)
    left[list(skip)] = False
    first = {key: row for row, key in reversed(list(enumerate(ours)))}
    exact = tuple(Pair(row, first[key], 1.0) for row, key in enumerate(theirs) if left[row] and key in first)
    left[[pair.train for pair in exact]] = False
    rows = np.flatnonzero(left)
    near: list[Pair] = []
    if len(forget) and len(rows):
        spaces = _spaces(forget, train)
        step = min((space.block for space in spaces), default=len(rows))
        for start in range(0, len(rows), step):
            block = rows[start : start + step]
            near += _near(spaces, block)
            progress(Tick(STAGE, start + len(block), len(rows)))
    return Duplicates(exact, tuple(near))


def content_keys(one: Records | Samples, two: Records | Samples) -> tuple[list[Any], list[Any]]:
    """Return a key for each row of two sets, equal where the content of the rows is equal."""
    if isinstance(one, Samples) and isinstance(two, Samples):
        return _sample_keys(one.inputs, two.inputs)
    if not isinstance(one, Records) or not isinstance(two, Records):
        raise InputError(
            f"forget is of type {type(one).__name__}, train of type {type(two).__name__}",
            expected="Records or Samples, and the same for both",
        )
    if one.kind != two.kind:
        raise InputError(
            f"the rows to forget are of kind {one.kind}, the training data {two.kind}", expected="one kind"
        )
    if one.kind == "text":
        return one.content.tolist(), two.content.tolist()
    if one.kind == "image" and one.content.shape[1:] != two.content.shape[1:]:
        return [None] * len(one), [b""] * len(two)  # pictures of different sizes are never equal, but may look alike
    return _sample_keys(torch.from_numpy(one.content), torch.from_numpy(two.content))


def _sample_keys(one: Nest, two: Nest) -> tuple[list[bytes], list[bytes]]:
    if shape_of(one) != shape_of(two):
        raise InputError(
            f"a row to forget has shape {shape_of(one)}, a training row {shape_of(two)}",
            expected="one shape",
            remedy="prepare both in the same way",
        )
    kinds = [common_kind(a.dtype, b.dtype) for a, b in zip(leaves(one), leaves(two), strict=True)]
    return row_keys(as_kinds(one, kinds)), row_keys(as_kinds(two, kinds))


class _Space(ABC):
    """Vectors of forgotten rows, and of training rows when they are asked for.

    Attributes
    ----------
    forgotten : int
        The number of forgotten rows.
    forget : matrix
        Their vectors; a multiple of `forgotten` where a row has several views.
    least : float
        The least similarity, which is one minus the distance, of a near duplicate.
    block : int
        How many training rows to compare at a time.
    metric : str
        The distance of two vectors.
    """

    metric: Literal["cosine", "euclidean"] = "cosine"
    least: float
    forget: Any

    def __init__(self, forgotten: int, elements: float) -> None:
        self.forgotten = forgotten
        self.block = int(max(1, min(4096, _ELEMENTS / max(1.0, elements), _PAIRS / forgotten)))

    @abstractmethod
    def vectors(self, rows: Array) -> Any:
        """Return the vectors of these training rows."""


def _spaces(forget: Records | Samples, train: Records | Samples) -> list[_Space]:
    """Return the spaces that fit the kind of the rows; both sets are of one kind and not empty."""
    if isinstance(forget, Records) and isinstance(train, Records):
        if forget.kind == "text":
            return [_Texts(forget.content, train.content)]
        if forget.kind == "image":
            return [_Pictures(forget.content, train.content)]
        forget, train = forget.samples(), train.samples()
    ours, theirs = leaves(forget.inputs), leaves(train.inputs)  # type: ignore[union-attr]
    if len(ours) == 1 and ours[0].dim() == 4 and ours[0].shape[1] in (1, 3, 4):
        return [_Pictures(_channels_last(ours[0]), _channels_last(theirs[0]))]
    if any(leaf.is_floating_point() for leaf in ours):
        features = _Features(ours, theirs)
        return [features] if features.used.any() else []
    # Masks say where there are tokens, not which.
    rows = _evenly(len(theirs[0]), _SAMPLE)
    different = [len(np.unique(_matrix([leaf], rows))) for leaf in theirs]
    used = [at for at, count in enumerate(different) if count > 2] or range(len(theirs))
    ours, theirs = [ours[at] for at in used], [theirs[at] for at in used]
    in_any_order = [_TokenCounts(ours, theirs)] if max(different) > _VOCABULARY else []
    return [_PlacedTokens(ours, theirs), *in_any_order]


def _near(spaces: Sequence[_Space], rows: Array) -> list[Pair]:
    """Return which of these training rows are near duplicates, each with the forgotten row that it is most like."""
    best, similarity = np.zeros(len(rows), dtype=np.int64), np.full(len(rows), -np.inf)
    for space in spaces:
        at, distance = pairwise_distances_argmin_min(space.vectors(rows), space.forget, metric=space.metric)
        better = (1 - distance >= space.least) & (1 - distance > similarity)
        best[better], similarity[better] = at[better] % space.forgotten, 1 - distance[better]
    return [Pair(int(rows[at]), int(best[at]), float(similarity[at])) for at in np.flatnonzero(similarity > -np.inf)]


class _Texts(_Space):
    """Texts by the weights of their runs of five letters: the rarer a run in the training data, the more it weighs."""

    least = TEXT

    def __init__(self, forget: Array, train: Array) -> None:
        super().__init__(len(forget), sum(map(len, train)) / len(train))
        self.train = train
        self.hashes = HashingVectorizer(
            preprocessor=_plain,
            analyzer="char",
            ngram_range=(5, 5),
            n_features=_HASHES,
            alternate_sign=False,
            norm=None,
        )
        # The logarithm of the counts keeps a row of dots from outweighing all the rest of a text.
        self.weights = TfidfTransformer(sublinear_tf=True)
        ours = self.hashes.transform(forget)
        self.weights.fit(sparse.vstack([ours, self.hashes.transform(train[_evenly(len(train), _SAMPLE)])]))
        self.forget = self.weights.transform(ours)

    def vectors(self, rows: Array) -> Any:
        return self.weights.transform(self.hashes.transform(self.train[rows]))


def _plain(text: str) -> str:
    """Return a text in one case and with single blanks; half a character pair cannot be hashed, and is replaced."""
    return f" {' '.join(text.casefold().split())} ".encode("utf-8", "replace").decode()


class _PlacedTokens(_Space):
    """Rows of whole numbers by which number stands where; the most common one, such as padding, does not count."""

    least = IN_PLACE

    def __init__(self, forget: list[Tensor], train: list[Tensor]) -> None:
        super().__init__(len(forget[0]), sum(leaf[0].numel() for leaf in train))
        self.train = train
        rows = _evenly(len(train[0]), _SAMPLE)
        self.filler = np.concatenate([np.full(leaf[0].numel(), _most_common(leaf, rows)) for leaf in train])
        self.forget = self.encoded(_matrix(forget, np.arange(self.forgotten)))

    def encoded(self, tokens: Array) -> Any:
        row, place = np.nonzero(tokens != self.filler)
        column = (tokens[row, place] * 1_000_003 + place * 7_919) % _HASHES  # primes spread the pairs over the columns
        return sparse.csr_matrix((np.ones(len(row)), (row, column)), shape=(len(tokens), _HASHES))

    def vectors(self, rows: Array) -> Any:
        return self.encoded(_matrix(self.train, rows))


class _TokenCounts(_PlacedTokens):
    """Rows of whole numbers by how often each number occurs, the rarer in the training data the heavier."""

    least = IN_ANY_ORDER

    def __init__(self, forget: list[Tensor], train: list[Tensor]) -> None:
        self.weights: TfidfTransformer | None = None
        super().__init__(forget, train)
        sample = self.vectors(_evenly(len(train[0]), _SAMPLE))
        self.weights = TfidfTransformer(sublinear_tf=True).fit(sparse.vstack([self.forget, sample]))
        self.forget = self.weights.transform(self.forget)

    def encoded(self, tokens: Array) -> Any:
        row, place = np.nonzero(tokens != self.filler)
        shape = (len(tokens), _HASHES)
        counts = sparse.csr_matrix((np.ones(len(row)), (row, tokens[row, place] % _HASHES)), shape=shape)
        return counts if self.weights is None else self.weights.transform(counts)


class _Features(_Space):
    """Rows of numbers by their columns, each in standard deviations of the training data.

    With few columns every row has close neighbours, so a near duplicate is also five times closer than those are.
    """

    metric = "euclidean"

    def __init__(self, forget: list[Tensor], train: list[Tensor]) -> None:
        super().__init__(len(forget[0]), sum(leaf[0].numel() for leaf in train))
        self.train = train
        self.scaler = StandardScaler()
        for start in range(0, len(train[0]), self.block):
            self.scaler.partial_fit(_matrix(train, np.arange(start, min(start + self.block, len(train[0])))))
        self.used = self.scaler.var_ > (1e-6 * self.scaler.mean_) ** 2  # what is left of a constant column is rounding
        if self.used.any():
            self.forget = self.standardised(_matrix(forget, np.arange(self.forgotten)))
            self.least = max(FEATURES, 1 - _CLOSER * self.usual_distance())

    def standardised(self, rows: Array) -> Array:
        # Divided by the root of the number of columns, so that the distance is a root mean square.
        return np.asarray(self.scaler.transform(rows)[:, self.used] / np.sqrt(self.used.sum()))

    def vectors(self, rows: Array) -> Array:
        return self.standardised(_matrix(self.train, rows))

    def usual_distance(self) -> float:
        """Return the median distance between a training row and the nearest that is not its equal."""
        sample = self.vectors(_evenly(len(self.train[0]), _NEIGHBOURS))
        distance = pairwise_distances(sample)
        nearest = np.where(distance > 1e-6, distance, np.inf).min(axis=1)
        known = nearest[np.isfinite(nearest)]
        # Among m times as many rows of d columns the nearest is closer by the d-th root of m.
        crowd = (len(sample) / len(self.train[0])) ** (1 / sample.shape[1])
        return float(np.median(known) * crowd) if len(known) else np.inf


class _Pictures(_Space):
    """Pictures by their thumbnails.

    The middle of a training picture is compared with every window of that size in a picture to forget and in its mirror
    image: what a shift has filled the edge with does not matter. Small pictures, and pictures of another size, are
    compared as a whole.
    """

    least = PICTURES

    def __init__(self, forget: Array, train: Array) -> None:
        super().__init__(len(forget), train[0].size)
        same = forget.shape[1:3] == train.shape[1:3] and min(train.shape[1:3]) >= 12
        self.edge = _SHIFT if same else 0
        self.train = train
        # A picture whose brightness hardly varies looks like every other: it is compared with none.
        self.flat = float(np.ptp(train[_evenly(len(train), _NEIGHBOURS)])) / 255
        shifts = list(product(range(2 * self.edge + 1), repeat=2))
        views = (forget, forget[:, :, ::-1])
        self.forget = np.concatenate([self.thumbnails(view, *shift) for view in views for shift in shifts])

    def vectors(self, rows: Array) -> Array:
        return self.thumbnails(self.train[rows], self.edge, self.edge)

    def thumbnails(self, pictures: Array, down: int, right: int) -> Array:
        height, width = (side - 2 * self.edge for side in pictures.shape[1:3])
        window = pictures[:, down : down + height, right : right + width]
        step = int(max(1, _ELEMENTS / window[0].size))
        grey = (_grey(window[at : at + step]) for at in range(0, len(window), step))
        small = np.concatenate([_area(height) @ part @ _area(width).T for part in grey]).reshape(len(window), -1)
        small -= small.mean(axis=1, keepdims=True)
        small[small.std(axis=1) <= self.flat] = 0
        return small


def _grey(pictures: Array) -> Array:
    values = pictures.astype(np.float32)
    return np.asarray(values @ _GREY if values.shape[3] == 3 else values.mean(axis=3))


def _area(pixels: int) -> Array:
    """Return the matrix that averages `pixels` into the side of a thumbnail, by the area that they cover."""
    edges = np.linspace(0, pixels, _SIDE + 1)
    at = np.arange(pixels)
    cover = np.clip(np.minimum(edges[1:, None], at + 1) - np.maximum(edges[:-1, None], at), 0, None)
    return np.asarray(cover / cover.sum(axis=1, keepdims=True), dtype=np.float32)


def _channels_last(pictures: Tensor) -> Array:
    array = pictures.detach().float() if pictures.dtype == torch.bfloat16 else pictures.detach()
    return array.permute(0, 2, 3, 1).cpu().numpy()


def _evenly(rows: int, most: int) -> Array:
    """Return at most `most` of so many rows, from the first to the last."""
    return np.unique(np.linspace(0, rows - 1, min(rows, most)).astype(np.int64))


def _most_common(leaf: Tensor, rows: Array) -> Any:
    values, counts = np.unique(_matrix([leaf], rows), return_counts=True)
    return values[counts.argmax()]


def _matrix(parts: Sequence[Tensor], rows: Array) -> Array:
    """Return the given rows of all tensors side by side, as float64 or int64."""
    at = torch.from_numpy(rows)
    side_by_side = torch.cat([part[at].reshape(len(rows), part[0].numel()) for part in parts], dim=1)
    return side_by_side.to(torch.float64 if side_by_side.is_floating_point() else torch.int64).numpy()
