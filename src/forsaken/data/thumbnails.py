"""Thumbnails: pictures made small and grey, to see which of them look alike."""

from __future__ import annotations

from itertools import product

import numpy as np

from forsaken.data.bags import evenly
from forsaken.types import Array

PICTURES = 0.99  # cosine of two thumbnails less their means
_SIDE = 16
_SHIFT = 1  # pixels
_LEAST = 12  # smaller pictures are compared as a whole
_PIXELS, _SCORES = 4_000_000, 16_000_000  # numbers, pairs looked at together
_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # how bright red, green and blue look (ITU-R BT.601)


class Thumbnails:
    """Pictures, alike where their thumbnails are: as they stand, shifted by a pixel, or in the mirror.

    The middle of a training picture is compared with every window of that size in a picture to forget, so that what a
    shift has filled the edge with does not matter.

    Parameters
    ----------
    forget, train : arrays
        n x height x width x channels; of different sizes, they are compared as a whole.
    """

    def __init__(self, forget: Array, train: Array) -> None:
        same = forget.shape[1:3] == train.shape[1:3] and min(train.shape[1:3]) >= _LEAST
        self.edge = _SHIFT if same else 0
        self.train = train
        self.block = int(max(1, min(4096, _SCORES / len(forget), _PIXELS / train[0].size)))
        self.flat = float(np.ptp(train[evenly(len(train), 1000)])) / 255
        offsets = list(product(range(2 * self.edge + 1), repeat=2))
        step = int(max(1, _PIXELS / forget[0].size))
        parts = [forget[at : at + step] for at in range(0, len(forget), step)]
        seen = [view for part in parts for view in (part, part[:, :, ::-1])]
        views = [[self._small(view, down, right) for view in seen] for down, right in offsets]
        self.windows = [np.concatenate(of[side::2]) for of in views for side in range(2)]

    def near(self, rows: Array) -> tuple[Array, Array, Array]:
        """Return pairs of a position in `rows` and a picture to forget that look alike, and their similarity."""
        small = self._small(self.train[rows], self.edge, self.edge)
        cosine = small @ self.windows[0].T
        for window in self.windows[1:]:
            np.maximum(cosine, small @ window.T, out=cosine)
        at, forget = np.nonzero(cosine >= PICTURES)
        return at, forget, np.minimum(cosine[at, forget], 1.0).astype(np.float64)

    def _small(self, pictures: Array, down: int, right: int) -> Array:
        height, width = (side - 2 * self.edge for side in pictures.shape[1:3])
        return thumbnails(pictures[:, down : down + height, right : right + width], self.flat)


def thumbnails(pictures: Array, flat: float = 0.0) -> Array:
    """Return pictures (n x height x width x channels) as grey ones of 16 x 16, mean zero and length one, in rows.

    Where the standard deviation is `flat` or less there is nothing to compare, and the row is zero.
    """
    values = pictures.astype(np.float32)
    grey = values @ _GREY if pictures.shape[3] == 3 else values.mean(axis=3)
    small = _area(grey.shape[1]) @ grey @ _area(grey.shape[2]).T
    rows = small.reshape(len(small), -1)
    rows = rows - rows.mean(axis=1, keepdims=True)
    spread = rows.std(axis=1, keepdims=True)
    return np.asarray(np.divide(rows, spread * _SIDE, out=np.zeros_like(rows), where=spread > flat))


def _area(pixels: int) -> Array:
    """Return the matrix that averages `pixels` into 16 by the area that they cover."""
    edges = np.linspace(0, pixels, _SIDE + 1)
    at = np.arange(pixels)
    cover = np.clip(np.minimum(edges[1:, None], at + 1) - np.maximum(edges[:-1, None], at), 0, None)
    return np.asarray(cover / cover.sum(axis=1, keepdims=True), dtype=np.float32)
