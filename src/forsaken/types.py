"""Words that every room uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np


@dataclass(frozen=True, slots=True)
class Tick:
    """A sign of life: `done` of `total` steps of a stage. What it says never describes a sample."""

    stage: str
    done: int
    total: int
    text: str = ""


Array: TypeAlias = np.ndarray[Any, Any]
"""A NumPy array of any shape and dtype; docstrings say which."""

Progress: TypeAlias = Callable[[Tick], None]
"""Told about each step. It cancels the work by raising; nothing has been changed by then."""


def silent(tick: Tick) -> None:
    """Tell nobody."""
