"""Types that every part of the package uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np


@dataclass(frozen=True, slots=True)
class Tick:
    """Progress: `done` of `total` steps of a stage. Its text never describes a sample."""

    stage: str
    done: int
    total: int
    text: str = ""


Array: TypeAlias = np.ndarray[Any, Any]
"""A NumPy array of any shape and dtype; docstrings say which."""

Progress: TypeAlias = Callable[[Tick], None]
"""Called with each `Tick`. If it raises, the work is cancelled, and nothing has been changed."""


def silent(tick: Tick) -> None:
    """Report no progress."""
