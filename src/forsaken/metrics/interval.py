"""Bootstrap intervals: how far a number would move with other samples, or with other models."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from forsaken._checks import Problems
from forsaken.errors import EmptyError, InputError, UndefinedMetricError


def bootstrap_interval(
    statistic: Callable[..., float],
    *groups: ArrayLike,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    paired: bool = False,
) -> tuple[float, float] | None:
    """Return the percentile interval of `statistic(*groups)` over resampled groups, or None where there is none.

    There is none where a group has one unit only, and where more than half of the draws leave the statistic undefined;
    fewer such draws are left out.

    Never resample models and fit `u_lira` again: a copy of the model under test would stay in the fit. For that there
    is `u_lira_intervals`, which leaves models out.

    Parameters
    ----------
    statistic : callable
        From the groups to a number. A draw for which it raises UndefinedMetricError or is not finite is left out.
    groups : arrays
        The first axis of each is the unit that is drawn, with replacement: samples, or models.
    draws : int
        How many resamplings.
    level : float
        The share of the draws that the interval holds.
    seed : int
        Of the draws.
    paired : bool
        Draw the same units from every group (before and after on the same samples) instead of each on its own.

    Examples
    --------
    >>> low, high = bootstrap_interval(np.mean, np.arange(100.0))
    >>> 43 < low < 45 < 54 < high < 56
    True
    """
    problems = Problems("bootstrap_interval")
    problems.whole("draws", draws, least=1)
    problems.number("level", level, least=1e-6, most=1 - 1e-6)
    problems.whole("seed", seed, least=0)
    problems.report()
    arrays = [np.asarray(group) for group in groups]
    sizes = _sizes(arrays, paired=paired)
    if min(sizes) < 2:
        return None
    draw, found = np.random.default_rng(seed), []
    for _ in range(draws):
        chosen = [draw.integers(size, size=size) for size in (sizes[:1] if paired else sizes)]
        rows = chosen * len(arrays) if paired else chosen
        value = _value(statistic, [array[row] for array, row in zip(arrays, rows, strict=True)])
        if math.isfinite(value):
            found.append(value)
    if len(found) < draws / 2:
        return None
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _value(statistic: Callable[..., float], groups: list[np.ndarray[Any, Any]]) -> float:
    try:
        return float(statistic(*groups))
    except UndefinedMetricError:
        return math.nan


def _sizes(arrays: list[np.ndarray[Any, Any]], *, paired: bool) -> list[int]:
    if not arrays:
        raise EmptyError("bootstrap_interval has nothing to resample; give at least one group")
    for place, array in enumerate(arrays):
        if not array.ndim or not len(array):
            raise EmptyError(f"group {place} has shape {array.shape}; its first axis must hold the units to resample")
    sizes = [len(array) for array in arrays]
    if paired and len(set(sizes)) > 1:
        raise InputError(f"the groups have {sizes} units; paired groups must have the same units in the same order")
    return sizes
