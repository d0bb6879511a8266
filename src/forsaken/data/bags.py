"""Bags: texts and sequences of tokens as weighted bags of small pieces, and the most alike of two sets of them.

The cosine of two bags is first guessed from short sketches (each piece is added to one of 1,024 sums, with a random
sign), which are one matrix product for thousands of pairs, and then computed for the few pairs that come near.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from forsaken.types import Array

Pieces: TypeAlias = tuple[Array, Array]
"""The row of each piece, from 0, and a hash of 64 bits."""

_SKETCH_BITS, _TABLE_BITS = 10, 20
_SIZE, _TABLE = 2**_SKETCH_BITS, 2**_TABLE_BITS
_MARGIN = 0.06  # the cosine of two sketches is off by (1 - cosine²) / 32 or so: more than five times that at 0.8
_CHECKED = 8  # of the bags that seem near, so many are compared in full
_COUNTED = 5000  # bags from which it is learnt how rare a piece is
_STEP, _STIR = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)


class Bags:
    """Bags to compare others with, by the cosine of their weighted pieces: the rarer a piece, the more it weighs.

    Parameters
    ----------
    pieces : callable
        Returns the pieces of given rows of the other set.
    wanted : pieces
        The pieces of the bags to look for.
    count : int
        How many bags these are.
    others : int
        Rows of the other set.
    weigh : bool
        Whether rare pieces weigh more; if not, all weigh the same.
    """

    def __init__(
        self, pieces: Callable[[Array], Pieces], wanted: Pieces, count: int, others: int, *, weigh: bool = True
    ) -> None:
        self.pieces = pieces
        self.weights = np.ones(_TABLE, dtype=np.float32)
        if weigh:
            seen = _presence(wanted, count)
            total = count
            sample = evenly(others, _COUNTED)
            for part in np.array_split(sample, max(1, len(sample) // 250)):
                seen += _presence(pieces(part), len(part))
                total += len(part)
            self.weights = (np.log((1 + total) / (1 + seen)) + 1).astype(np.float32)
        weighted = self._weighted(wanted)
        self.sketches = self._sketch(weighted, count)
        self.bags = self._matrix(weighted, count)

    def near(self, rows: Array, threshold: float) -> tuple[Array, Array, Array]:
        """Return pairs of a position in `rows` and a wanted bag whose cosine is at least `threshold`, and the cosine.

        Of more than eight wanted bags that seem near to a row, the eight nearest are compared.
        """
        found = self._weighted(self.pieces(rows))
        guess = self._sketch(found, len(rows)) @ self.sketches.T
        if guess.shape[1] > _CHECKED:
            least = np.partition(guess, -_CHECKED, axis=1)[:, -_CHECKED, None]
            guess[guess < least] = -1
        at, bag = np.nonzero(guess >= threshold - _MARGIN)
        if len(at) == 0:
            return at, bag, np.zeros(0)
        cosine = np.asarray(self._matrix(found, len(rows))[at].multiply(self.bags[bag]).sum(axis=1)).ravel()
        close = cosine >= threshold
        return at[close], bag[close], np.minimum(cosine[close], 1.0)

    def _weighted(self, pieces: Pieces) -> tuple[Array, Array, Array]:
        """Return each piece of a row once: the row, the piece's place in the table, and its weight."""
        row, code = pieces
        keys, times = np.unique(row * _TABLE + _place(code), return_counts=True)
        place = keys % _TABLE
        # The logarithm keeps a row of dots from outweighing all the rest of a text.
        return keys // _TABLE, place, self.weights[place] * (1 + np.log(times))

    def _sketch(self, weighted: tuple[Array, Array, Array], count: int) -> Array:
        row, place, weight = weighted
        sign = 1 - 2 * ((place >> _SKETCH_BITS) & 1)
        sums = np.bincount(row * _SIZE + place % _SIZE, weight * sign, count * _SIZE)
        matrix = sums.reshape(count, _SIZE).astype(np.float32)
        length = np.linalg.norm(matrix, axis=1, keepdims=True)
        return np.asarray(matrix / np.maximum(length, 1e-12))

    def _matrix(self, weighted: tuple[Array, Array, Array], count: int) -> Any:
        row, place, weight = weighted
        norm = np.sqrt(np.bincount(row, weight**2, count))
        return sparse.csr_matrix((weight / norm[row], (row, place)), shape=(count, _TABLE))


def pieces_of_texts(texts: Sequence[str] | Array, size: int) -> Pieces:
    """Return the runs of `size` letters of each text, whatever their case and the width of their gaps."""
    plain = [f" {' '.join(text.casefold().split())} " for text in texts]
    letters = np.frombuffer("".join(plain).encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    lengths = np.array([len(text) for text in plain], dtype=np.int64)
    row = np.repeat(np.arange(len(plain)), lengths)
    ahead = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(letters))  # letters from here to the text's end
    run = letters[: max(0, len(letters) - size + 1)]
    for step in range(1, size):
        run = run * _STEP + letters[step : step + len(run)]
    whole = ahead[: len(run)] >= size
    return row[: len(run)][whole], _stir(run[whole])


def evenly(rows: int, most: int) -> Array:
    """Return at most `most` of so many rows, from the first to the last."""
    return np.unique(np.linspace(0, rows - 1, min(rows, most)).astype(np.int64))


def join_codes(one: Array, two: Array) -> Array:
    """Return a hash of each pair of whole numbers."""
    return _stir(_stir(one.astype(np.uint64)) + two.astype(np.uint64) * _STEP)


def _stir(codes: Array) -> Array:
    """Return hashes whose every bit depends on every bit of `codes`."""
    mixed = (codes ^ (codes >> np.uint64(32))) * _STIR
    mixed = (mixed ^ (mixed >> np.uint64(29))) * _STEP
    return np.asarray(mixed ^ (mixed >> np.uint64(32)))


def _place(code: Array) -> Array:
    return (code >> np.uint64(64 - _TABLE_BITS)).astype(np.int64)


def _presence(pieces: Pieces, count: int) -> Array:
    """Return the number of bags that each piece is in."""
    row, code = pieces
    once = np.unique(row * _TABLE + _place(code))
    return np.bincount(once % _TABLE, minlength=_TABLE) if count else np.zeros(_TABLE, dtype=np.int64)
