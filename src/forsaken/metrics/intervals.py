"""Intervals: how far a number would move with other samples (bootstrap) or with other models (jackknife)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import t as student

from forsaken._checks import Problems
from forsaken.errors import EmptyError, InputError, UndefinedMetricError
from forsaken.metrics.arrays import Floats


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


Interval: TypeAlias = tuple[float, float]
# A line has no ends, "positive" ends at 0, a share at 0 and at 1.
Scale: TypeAlias = Literal["line", "positive", "share"]


def jackknife_intervals(
    statistic: Callable[..., Sequence[float]], *groups: ArrayLike, scale: Scale = "line", level: float = 0.95
) -> tuple[Interval | None, ...]:
    """Return an interval for each number of `statistic(*groups)`, from leaving out each unit of each group once.

    Unlike a bootstrap it never holds a unit twice, so that a model under test cannot stay in a fit that leaves it out.
    With t₍ᵢ₎ for the number without unit i of n, a group's variance is (n - 1) / n · Σ (t₍ᵢ₎ - mean)²; the groups are
    independent of each other, so their variances add, and Student's t has as many degrees of freedom as there are units
    beyond one a group.

    There is None where no unit moves the number, since that is no certainty.

    Parameters
    ----------
    statistic : callable
        From the groups to one or more finite numbers. It must work with one unit less in a group.
    groups : arrays
        The first axis of each is the unit: models, or their places. At least 3 units each.
    scale : str
        "line": symmetric. "share": for numbers from 0 to 1, symmetric in the logit, and "positive": in the logarithm.
        Where the error exceeds the distance to an end (at the end itself, above all) these are symmetric on the line
        too, and cut off there: the tangent of a logit says nothing so far away.
    level : float
        How often the interval should hold what the number is on average over other models.

    Examples
    --------
    >>> (low, high), = jackknife_intervals(lambda values: [values.mean()], np.arange(100.0))  # the usual one of a mean
    >>> round(low, 3), round(high, 3)
    (43.743, 55.257)
    """
    problems = Problems("jackknife_intervals")
    problems.choice("scale", scale, get_args(Scale))
    problems.number("level", level, least=1e-6, most=1 - 1e-6)
    problems.report()
    arrays = [np.asarray(group) for group in groups]
    sizes = [len(array) if array.ndim else 0 for array in arrays]
    if not arrays or min(sizes) < 3:
        raise InputError(f"the groups have {sizes} units; leaving one out takes at least 3 in each: train more models")
    values = _numbers(statistic, arrays)
    variance = np.zeros_like(values)
    for place, size in enumerate(sizes):
        without = np.stack(
            [
                _numbers(statistic, [*arrays[:place], np.delete(arrays[place], unit, axis=0), *arrays[place + 1 :]])
                for unit in range(size)
            ]
        )
        variance += (size - 1) * without.var(axis=0)
    reach = float(student.ppf((1 + level) / 2, sum(sizes) - len(sizes)))
    return tuple(
        _interval(float(value), float(error), reach, scale)
        for value, error in zip(values, np.sqrt(variance), strict=True)
    )


def _numbers(statistic: Callable[..., Sequence[float]], groups: list[np.ndarray[Any, Any]]) -> Floats:
    found = np.atleast_1d(np.asarray(statistic(*groups), dtype=np.float64))
    if found.ndim != 1 or not np.isfinite(found).all():
        raise InputError(f"the statistic is {found.tolist()}, expected one or more finite numbers")
    return found


def _interval(value: float, error: float, reach: float, scale: Scale) -> Interval | None:
    # rounding alone can move a number by so much
    if error <= 1e-12 * max(1.0, abs(value)):
        return None
    if scale == "share" and error < min(value, 1 - value):
        centre, width = math.log(value / (1 - value)), reach * error / (value * (1 - value))
        return _expit(centre - width), _expit(centre + width)
    if scale == "positive" and error < value:
        factor = math.exp(reach * error / value)
        return value / factor, value * factor
    least, most = {"line": (-math.inf, math.inf), "positive": (0.0, math.inf), "share": (0.0, 1.0)}[scale]
    return max(value - reach * error, least), min(value + reach * error, most)


def _expit(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0
