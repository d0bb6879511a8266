"""LiRA: membership of one model's training data, from reference models with and without the sample."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from forsaken._checks import Problems
from forsaken.errors import InputError
from forsaken.metrics.arrays import (
    Bools,
    Floats,
    check_finite,
    check_graded,
    check_samples,
    check_sides,
    floats,
    inside_mask,
    matrix,
)
from forsaken.metrics.normals import FLOOR, log_density

ENOUGH = 8  # models a side from which on a sample's own standard deviation is worth more than everybody's


def lira(observed: ArrayLike, references: ArrayLike, inside: ArrayLike, *, floor: float = FLOOR) -> Floats:
    """Return log N(φ; in) - log N(φ; out) for each sample. Higher means member (Carlini et al. 2022).

    Each sample has a normal of the reference models that were trained on it and one of those that were not. Where a
    sample has fewer than 8 models on a side, the standard deviations are pooled over all samples: squares around each
    sample's own mean, over their degrees of freedom, one figure a side.

    Parameters
    ----------
    observed : float array (samples,)
        Margins (`margins`) under the model in question.
    references : float array (models x samples)
        Margins of the same samples under the reference models.
    inside : bool array (models x samples)
        Whether that model was trained on that sample; at least 2 models on each side of every sample.
    floor : float
        No standard deviation is taken to be smaller.

    Examples
    --------
    >>> references = [[5.0, 5.2], [4.6, 4.9], [0.1, 0.4], [-0.3, 0.2]]
    >>> inside = [[True, True], [True, True], [False, False], [False, False]]
    >>> lira([4.8, 0.1], references, inside) > 0
    array([ True, False])
    """
    problems = Problems("lira")
    problems.number("floor", floor, least=1e-9)
    problems.report()
    models, target = matrix(references, "references"), floats(observed, "observed", "a flat array of margins")
    if target.ndim != 1:
        raise InputError(f"observed has shape {target.shape}, expected a flat array: one margin a sample")
    check_samples(target, "observed", models, "references")
    check_finite(target, "observed")
    check_graded(models, target)
    seen = inside_mask(inside, models)
    check_sides(seen, least=2)
    pooled = min(int(seen.sum(axis=0).min()), int((~seen).sum(axis=0).min())) < ENOUGH
    return log_density(target, *_normals(models, seen, floor, pooled=pooled)) - log_density(
        target, *_normals(models, ~seen, floor, pooled=pooled)
    )


def _normals(models: Floats, chosen: Bools, floor: float, *, pooled: bool) -> tuple[Floats, Floats]:
    counts = chosen.sum(axis=0)
    mean = np.where(chosen, models, 0.0).sum(axis=0) / counts
    squares = np.where(chosen, (models - mean) ** 2, 0.0).sum(axis=0)
    variance = np.full_like(squares, squares.sum() / (counts - 1).sum()) if pooled else squares / (counts - 1)
    return mean, np.maximum(np.sqrt(variance), floor)
