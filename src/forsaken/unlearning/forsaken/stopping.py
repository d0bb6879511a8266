"""When to stop: more iterations than needed hardly forget more, and cost accuracy (Training Iteration of Generator)."""

from __future__ import annotations

import time

from forsaken.result import Step
from forsaken.types import Progress, Tick
from forsaken.unlearning.forsaken.search import Point

STOPS = ("calibrated", "converged", "none")
SETTLED, SPAN = 1e-4, 5  # converged: the objective changed by less than this share of itself over so many iterations


class Watcher:
    """Sees every point of an optimiser, keeps the history, tells the progress, and says why to stop.

    Parameters
    ----------
    rule : {"converged", "calibrated", "none"}
        When to stop before the last iteration.
    bound : float or None
        The distance at which "calibrated" stops.
    trainable, iterations : int
        The model's trainable parameters; the most iterations.
    progress : callable
        Told about each iteration.
    """

    def __init__(self, rule: str, bound: float | None, trainable: int, iterations: int, progress: Progress) -> None:
        self.rule, self.bound, self.trainable, self.iterations = rule, bound, trainable, iterations
        self.progress = progress
        self.history: list[Step] = []
        self._begun = time.perf_counter()

    def __call__(self, point: Point) -> str | None:
        """Take note of a point; return why to stop there, or None."""
        smooth = point.smooth
        self.history.append(
            Step(
                iteration=point.iteration,
                objective=point.objective,
                distance=smooth.distance,
                anchor=smooth.anchor,
                penalty=point.penalty,
                density=point.nonzero / self.trainable,
                step=point.step,
                seconds=time.perf_counter() - self._begun,
            )
        )
        self.progress(Tick("forget", point.iteration, self.iterations, f"objective {point.objective:.4g}"))
        if self.rule == "calibrated" and self.bound is not None and smooth.distance <= self.bound:
            return "calibrated"
        if self.rule == "converged" and len(self.history) > SPAN:
            earlier = self.history[-1 - SPAN].objective
            if abs(earlier - point.objective) < SETTLED * abs(point.objective):
                return "converged"
        return None
