"""Words that every room uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Tick:
    """A sign of life: `done` of `total` steps of a stage. What it says never describes a sample."""

    stage: str
    done: int
    total: int
    text: str = ""


Progress: TypeAlias = Callable[[Tick], None]
"""Told about each step. It cancels the work by raising; nothing has been changed by then."""


def silent(tick: Tick) -> None:
    """Tell nobody."""
