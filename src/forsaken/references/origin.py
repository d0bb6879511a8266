"""How a table of references came about, what it cost, and when it pays."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """The seconds of all trainings of a table, and how many they were.

    >>> Costs(160.0, 4).break_even(), Costs(160.0, 4).break_even(unlearning=20.0)
    (5, 9)
    """

    seconds: float
    trainings: int

    @property
    def each(self) -> float:
        """The seconds of one training, which are those of retraining too: it takes as many steps."""
        return self.seconds / self.trainings if self.trainings else 0.0

    def plus(self, seconds: float) -> Costs:
        """Return the costs with one training more."""
        return Costs(self.seconds + seconds, self.trainings + 1)

    def break_even(self, unlearning: float = 0.0) -> int | None:
        """Return from which request on the table is cheaper than retraining for each; None if it never is.

        Parameters
        ----------
        unlearning : float
            The seconds of one unlearning.
        """
        saved = self.each - unlearning
        return math.floor(self.seconds / saved + 1e-9) + 1 if saved > 0 else None

    def of_a_request(self, requests: int, unlearning: float) -> float:
        """Return the seconds of each of so many requests, with their share of the table."""
        return self.seconds / requests + unlearning


@dataclass(frozen=True, slots=True)
class Origin:
    """How a table came about.

    Attributes
    ----------
    folds : int
        How many; 0 where logits were handed in.
    by : str
        What the folds were drawn by: "row" or "group"; "claim" where logits were handed in.
    steps : int or None
        The steps of each training, where known.
    seed : int
        What decided folds and trainings.
    costs : Costs
        Of the trainings.
    """

    folds: int
    by: str
    steps: int | None
    seed: int
    costs: Costs
