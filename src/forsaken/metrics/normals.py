"""Normals fitted to the few margins that a sample has, one a model."""

from __future__ import annotations

import numpy as np

from forsaken.metrics.arrays import Floats

FLOOR = 0.1  # of a standard deviation: a handful of margins can agree by chance


def fit(values: Floats, floor: float) -> tuple[Floats, Floats]:
    """Return each column's mean and standard deviation (one degree of freedom less), the latter at least `floor`."""
    return values.mean(axis=0), np.maximum(values.std(axis=0, ddof=1), floor)


def fit_without_each(values: Floats, floor: float) -> tuple[Floats, Floats]:
    """Return what `fit` would give for each row if that row were left out, for three rows or more.

    With n rows, mean m and sum of squares Q = Σ(x - m)², leaving x_i out gives the mean (n·m - x_i) / (n - 1) and the
    sum of squares Q - (x_i - m)²·n / (n - 1).
    """
    n, mean = len(values), values.mean(axis=0)
    apart = values - mean
    squares = np.sum(apart**2, axis=0) - apart**2 * (n / (n - 1))
    # the difference of two equal sums can round below zero
    return mean - apart / (n - 1), np.maximum(np.sqrt(np.maximum(squares, 0.0) / (n - 2)), floor)


def log_density(values: Floats, mean: Floats, std: Floats) -> Floats:
    """Return the log of the normal density, up to a constant that cancels in every ratio."""
    return np.asarray(-0.5 * ((values - mean) / std) ** 2 - np.log(std), dtype=np.float64)
