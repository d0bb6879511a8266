"""The words that the optimisers share: what they see, what they report, what they return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

SLACK = 1e-2  # how far two calls of a model may differ by rounding, relative to the distance; for half precision
IMPURE = (
    "the model answers differently when it is called again with gradients: it draws random numbers, changes its input "
    "in place, or takes torch's fast path for transformers (enable_nested_tensor=False)"
)


@dataclass(frozen=True, slots=True)
class Smooth:
    """The smooth part at one point: two means and their weighted sum."""

    distance: float
    anchor: float
    value: float  # distance + β · anchor


@dataclass(frozen=True, slots=True)
class Point:
    """Where an optimiser stands after an iteration."""

    iteration: int
    objective: float
    smooth: Smooth
    penalty: float
    nonzero: int
    step: float


@dataclass(frozen=True, slots=True)
class Found:
    """What an optimiser found: ν, after how many iterations, and why it stopped there."""

    nu: Tensor
    iterations: int
    stopped: str


Watch: TypeAlias = Callable[[Point], "str | None"]
"""Sees each point; returns why to stop there, or None to go on."""
