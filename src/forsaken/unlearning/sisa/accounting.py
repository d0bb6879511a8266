"""What DP-SGD spends: Opacus's accountant over the stages of a shard, and the noise that a budget asks for."""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from scipy.optimize import brentq

from forsaken.errors import SettingsError
from forsaken.unlearning.sisa.shards import Stage

# Orders of the Rényi divergence. Any set gives a valid bound; at ε near 16 the best order lies between 2 and 4, and
# the many fractions that Opacus tries by itself take it half a minute for one shard.
ORDERS = (1.1, 1.25, 1.5, 2.0, 2.25, 2.5, 2.75, 3.0, 3.5, 4.0, 5.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)
_GRID = 4  # sampling rates an octave
_SLACK = 1e-3  # how much more noise than the budget asks for, relative


def opacus(part: str = "opacus") -> Any:
    """Return a module of Opacus, or raise a `SettingsError` that says how to install it."""
    try:
        return importlib.import_module(part)
    except ImportError as error:
        raise SettingsError(
            "DP-SGD needs Opacus, which is not installed; run: pip install 'forsaken[dp]' (or pip install opacus)"
        ) from error


def private_plan(sizes: Sequence[int], dealt: Sequence[int], epochs: int, batch: int) -> tuple[Stage, ...]:
    """Return the stages of a shard for DP-SGD, where each step draws each row with the same chance.

    Chances and steps follow the rows that were dealt, not those that are left: what a step may reveal must not depend
    on who was forgotten. Chances lie on a coarse grid (at most 19 % more than batch / rows), since each other one costs
    the accountant time.

    >>> [(stage.rate, stage.steps) for stage in private_plan([8, 16, 24], [8, 16, 24], epochs=4, batch=8)]
    [(1.0, 2), (0.5, 4), (0.3535533905932738, 6)]
    """
    share = 2 * epochs / (len(dealt) + 1)
    due, stages = 0.0, []
    for rows, at_first in zip(sizes, dealt, strict=True):
        due += share * at_first
        rate = 2.0 ** (-math.floor(_GRID * math.log2(max(1.0, at_first / batch))) / _GRID)
        steps = max(0, round(due / (rate * at_first)))
        due -= steps * rate * at_first
        expected = max(1, round(rate * at_first))
        stages.append(Stage(rows, expected, steps, round(steps * rate * rows), rate))
    return tuple(stages)


def history(stages: Iterable[Stage], noise: float) -> list[tuple[float, float, int]]:
    """Return what Opacus's accountant takes: noise multiplier, sampling rate and steps, one entry a rate."""
    steps: dict[float, int] = {}
    for stage in stages:
        if stage.steps:
            steps[stage.rate] = steps.get(stage.rate, 0) + stage.steps
    return [(noise, rate, count) for rate, count in steps.items()]


def spent(stages: Iterable[Stage], noise: float, delta: float) -> float:
    """Return ε after these stages, by Opacus's Rényi accountant; they compose one after the other."""
    accountant = opacus("opacus.accountants").RDPAccountant()
    accountant.history = history(stages, noise)
    if not accountant.history:
        return 0.0
    with warnings.catch_warnings():
        # far from the budget the best order lies outside; the bound holds all the same
        warnings.filterwarnings("ignore", message="Optimal order is the")
        return float(accountant.get_epsilon(delta, alphas=list(ORDERS)))


def noise_for(stages: Sequence[Stage], epsilon: float, delta: float) -> float:
    """Return the noise multiplier at which all stages of a shard together spend ε at most, and nearly that."""

    def excess(log_noise: float) -> float:
        return spent(stages, math.exp(log_noise), delta) - epsilon

    low = high = 0.0
    while excess(low) < 0:
        low -= 1.0
    while excess(high) > 0:
        high += 1.0
        if high > 15:
            raise SettingsError(f"ε = {epsilon:g} at δ = {delta:g} is too little for any noise; raise epsilon or delta")
    root: float = brentq(excess, low, high, xtol=_SLACK / 2) if low < high else high
    return math.exp(root + _SLACK)
