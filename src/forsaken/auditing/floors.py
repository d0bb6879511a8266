"""What retrained models score against each other: no method can be asked for less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forsaken.auditing.matrices import PARTS, RETRAINED, Matrices
from forsaken.metrics import Floor, KlomFloor, klom_floor, u_lira_floor


@dataclass(frozen=True, slots=True)
class Floors:
    """The floors of U-LiRA and of KLoM by set, of N retrained models against N others.

    They are the same for every method that is judged by the same models, and take longer than the rest.
    """

    u_lira: Mapping[str, Floor]
    klom: Mapping[str, KlomFloor]

    @classmethod
    def of(cls, matrices: Matrices, count: int, *, seed: int = 0) -> Floors:
        """Compute them from the first 2 `count` retrained models."""
        both = {part: matrices.margins[RETRAINED][part][: 2 * count] for part in PARTS}
        return cls(
            {part: u_lira_floor(margins, seed=seed) for part, margins in both.items()},
            {part: klom_floor(margins, seed=seed) for part, margins in both.items()},
        )
