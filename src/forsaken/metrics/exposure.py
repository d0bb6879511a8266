"""Exposure: how much more likely than chance a model finds a secret (Carlini et al. 2019, "The Secret Sharer").

A secret r fills the places of a format s[.]; R is the space of all fills. With the log-perplexity P of a fill,

    exposure(r) = log2 |R| − log2 rank(r),   rank: how many fills of R have a log-perplexity of at most P(s[r])

A secret that the model never saw has 1.44 bits on average, and more than 10 once in 1,024 times.
"""

from __future__ import annotations

import numpy as np
from scipy import optimize, special, stats

from forsaken.errors import InputError
from forsaken.types import Array

_GRID = 8001  # points of the integral below a secret
_DEEP = 14.0  # how many scales below a secret the integral begins


def exposure_by_rank(secrets: Array, fills: Array, *, all_fills: bool = False) -> Array:
    """Return the exposure in bits from the secrets' ranks among fills.

    Parameters
    ----------
    secrets, fills : arrays
        Log-perplexities of the secrets and of fills.
    all_fills : bool
        Whether `fills` are the whole space, the secrets among them: the exposure is then exact. Otherwise they are a
        sample, and the exposure is at most log2(fills + 1).

    Examples
    --------
    >>> exposure_by_rank(np.array([1.0, 4.0]), np.array([1.0, 2.0, 3.0, 4.0]), all_fills=True).tolist()
    [2.0, 0.0]
    >>> exposure_by_rank(np.array([0.0]), np.arange(1.0, 4.0)).tolist()
    [2.0]
    """
    values, others = _checked(secrets, fills)
    below = np.searchsorted(np.sort(others), values, side="right")
    if not all_fills:
        return np.asarray(np.log2(len(others) + 1) - np.log2(below + 1))
    if (below == 0).any():
        raise InputError("a secret is more likely than every fill of the whole space; the space must contain it")
    return np.asarray(np.log2(len(others)) - np.log2(below))


def exposure_by_fit(secrets: Array, fills: Array) -> Array:
    """Return the exposure in bits from a skew-normal distribution that is fitted to the log-perplexities of fills.

    exposure = −log2 ∫ ρ(x) dx up to the secret's log-perplexity, with ρ fitted by maximum likelihood. It reaches
    further than a rank among sampled fills can. The integral is taken in logarithms, since it underflows for secrets
    that were learnt by heart.
    """
    values, others = _checked(secrets, fills)
    if len(others) < 20 or np.ptp(others) == 0:
        raise InputError(f"{len(others)} fills of {len(np.unique(others))} values, expected at least 20 that differ")
    shape, place, scale = _fitted(others)
    steps = np.linspace(-_DEEP, 0.0, _GRID)
    points = values[:, None] + scale * steps[None]
    z = (points - place) / scale
    density = np.log(2 / scale) + stats.norm.logpdf(z) + special.log_ndtr(shape * z)
    weights = np.full(_GRID, scale * (steps[1] - steps[0]))
    weights[[0, -1]] /= 2
    total = special.logsumexp(density, b=weights[None], axis=1)
    # far above all fills the integral begins too late, and is 1 but for rounding
    total = np.where(values > place + _DEEP / 2 * scale, 0.0, total)
    return np.asarray(np.maximum(-total / np.log(2), 0.0))


def _fitted(values: Array) -> tuple[float, float, float]:
    """Return shape, location and scale of the likeliest skew-normal, started from the method of moments."""
    mean, spread = float(values.mean()), float(values.std())
    skew = float(np.clip(stats.skew(values), -0.95, 0.95))
    root = abs(skew) ** (2 / 3)
    delta = np.sign(skew) * np.sqrt(np.pi / 2 * root / (root + ((4 - np.pi) / 2) ** (2 / 3)))
    scale = spread / np.sqrt(1 - 2 * delta**2 / np.pi)
    start = np.array([delta / np.sqrt(1 - delta**2), mean - scale * delta * np.sqrt(2 / np.pi), np.log(scale)])
    some = values if len(values) <= 20_000 else values[:20_000]

    def cost(point: Array) -> float:
        z = (some - point[1]) / np.exp(point[2])
        return float(point[2] - (stats.norm.logpdf(z) + special.log_ndtr(point[0] * z)).mean())

    found = optimize.minimize(cost, start, method="Nelder-Mead", options={"maxiter": 2000, "xatol": 1e-6}).x
    return float(found[0]), float(found[1]), float(np.exp(found[2]))


def _checked(secrets: Array, fills: Array) -> tuple[Array, Array]:
    values, others = (np.asarray(part, dtype=np.float64).reshape(-1) for part in (secrets, fills))
    if not len(values) or not len(others) or not (np.isfinite(values).all() and np.isfinite(others).all()):
        raise InputError(
            f"{len(values)} secrets and {len(others)} fills, expected some of both with finite log-perplexities"
        )
    return values, others
