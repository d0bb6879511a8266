"""Membership in one model's training data, from reference models with and without the sample: LiRA and RMIA."""

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

SIGMA = 0.1  # the least standard deviation: a handful of margins can agree by chance


def fit(values: Floats) -> tuple[Floats, Floats]:
    """Return each column's mean and standard deviation (one degree of freedom less), the latter at least 0.1."""
    return values.mean(axis=0), np.maximum(values.std(axis=0, ddof=1), SIGMA)


def fit_without_each(values: Floats) -> tuple[Floats, Floats]:
    """Return what `fit` would give for each row if that row were left out, for three rows or more.

    With n rows, mean m and sum of squares Q = Σ(x - m)², leaving x_i out gives the mean (n·m - x_i) / (n - 1) and the
    sum of squares Q - (x_i - m)²·n / (n - 1).
    """
    n, mean = len(values), values.mean(axis=0)
    apart = values - mean
    squares = np.sum(apart**2, axis=0) - apart**2 * (n / (n - 1))
    # the difference of two equal sums can round below zero
    return mean - apart / (n - 1), np.maximum(np.sqrt(np.maximum(squares, 0.0) / (n - 2)), SIGMA)


def log_density(values: Floats, mean: Floats, std: Floats) -> Floats:
    """Return the log of the normal density, up to a constant that cancels in every ratio."""
    return np.asarray(-0.5 * ((values - mean) / std) ** 2 - np.log(std), dtype=np.float64)


ENOUGH = 8  # models a side from which on a sample's own standard deviation is worth more than everybody's


def lira(observed: ArrayLike, references: ArrayLike, inside: ArrayLike) -> Floats:
    """Return log N(φ; in) - log N(φ; out) for each sample. Higher means member (Carlini et al. 2022).

    Each sample has a normal of the reference models that were trained on it and one of those that were not. Where a
    sample has fewer than 8 models on a side, the standard deviations are pooled over all samples: squares around each
    sample's own mean, over their degrees of freedom, one figure a side. No standard deviation is taken to be below 0.1.

    Parameters
    ----------
    observed : float array (samples,)
        Margins (`margins`) under the model in question.
    references : float array (models x samples)
        Margins of the same samples under the reference models.
    inside : bool array (models x samples)
        Whether that model was trained on that sample; at least 2 models on each side of every sample.

    Examples
    --------
    >>> references = [[5.0, 5.2], [4.6, 4.9], [0.1, 0.4], [-0.3, 0.2]]
    >>> inside = [[True, True], [True, True], [False, False], [False, False]]
    >>> lira([4.8, 0.1], references, inside) > 0
    array([ True, False])
    """
    models, target = matrix(references, "references"), floats(observed, "observed", "a flat array of margins")
    if target.ndim != 1:
        raise InputError(f"observed has shape {target.shape}, expected a flat array: one margin a sample")
    check_samples(target, "observed", models, "references")
    check_finite(target, "observed")
    check_graded(models, target)
    seen = inside_mask(inside, models)
    check_sides(seen, least=2)
    pooled = min(int(seen.sum(axis=0).min()), int((~seen).sum(axis=0).min())) < ENOUGH
    return log_density(target, *_normals(models, seen, pooled=pooled)) - log_density(
        target, *_normals(models, ~seen, pooled=pooled)
    )


def _normals(models: Floats, chosen: Bools, *, pooled: bool) -> tuple[Floats, Floats]:
    counts = chosen.sum(axis=0)
    mean = np.where(chosen, models, 0.0).sum(axis=0) / counts
    squares = np.where(chosen, (models - mean) ** 2, 0.0).sum(axis=0)
    variance = np.full_like(squares, squares.sum() / (counts - 1).sum()) if pooled else squares / (counts - 1)
    return mean, np.maximum(np.sqrt(variance), SIGMA)


def rmia(
    observed: ArrayLike,
    references: ArrayLike,
    inside: ArrayLike,
    population_observed: ArrayLike,
    population_references: ArrayLike,
    *,
    gamma: float = 1.0,
) -> Floats:
    """Return the share of population samples that each sample outdoes by `gamma`. Higher means member.

    With ratio(x) = p(x | θ) / Pr(x) the score is the share of population samples z with ratio(x) / ratio(z) >= γ
    (Zarifzadeh et al. 2024). Pr(x) is the mean of two means: over the reference models trained on x and over those not;
    Pr(z) is the mean over all, since none was trained on z. γ is 1, not 2, by default: with models of both kinds in
    Pr(x), a member that is as likely as under the models trained on it has a ratio of at most 2, so that γ = 2 would
    ask for more than there can be wherever ratio(z) is about 1.

    Parameters
    ----------
    observed : float array (samples,)
        The probability, in (0, 1], of each sample's own label under the model in question.
    references : float array (models x samples)
        The same under the reference models.
    inside : bool array (models x samples)
        Whether that model was trained on that sample; at least one model on each side of every sample.
    population_observed, population_references : float arrays (population,), (models x population)
        The same for samples that no model was trained on.
    gamma : float
        How far a sample must outdo a population sample.

    Examples
    --------
    >>> rmia([0.9, 0.2], [[0.8, 0.7], [0.2, 0.3]], [[True, True], [False, False]], [0.5, 0.4], [[0.5, 0.5], [0.5, 0.5]])
    array([1., 0.])
    """
    problems = Problems("rmia")
    problems.number("gamma", gamma, least=1e-9)
    problems.report()
    target, models = _probabilities(observed, "observed", 1), _probabilities(references, "references", 2)
    public = _probabilities(population_observed, "population_observed", 1)
    strangers = _probabilities(population_references, "population_references", 2)
    check_samples(target, "observed", models, "references")
    check_samples(public, "population_observed", strangers, "population_references")
    if len(models) != len(strangers):
        raise InputError(
            f"references has {len(models)} models and population_references {len(strangers)}; ask the same models"
        )
    seen = inside_mask(inside, models)
    check_sides(seen, least=1)
    counts = seen.sum(axis=0)
    within = np.where(seen, models, 0.0).sum(axis=0) / counts
    without = np.where(seen, 0.0, models).sum(axis=0) / (len(models) - counts)
    ratios = target / (0.5 * (within + without))
    rivals = np.sort(gamma * public / strangers.mean(axis=0))
    return np.asarray(np.searchsorted(rivals, ratios, side="right") / len(rivals), dtype=np.float64)


def _probabilities(values: ArrayLike, name: str, axes: int) -> Floats:
    shape = "a flat array" if axes == 1 else "models x samples"
    found = floats(values, name, f"probabilities, {shape}")
    if found.ndim != axes or not found.size:
        raise InputError(f"{name} has shape {found.shape}, expected {shape} of probabilities, at least one")
    if not ((found > 0) & (found <= 1)).all():
        raise InputError(
            f"{name} holds values from {found.min()} to {found.max()}, expected probabilities in (0, 1]; take the "
            "softmax in float64 (margins φ give 1 / (1 + exp(-φ)))"
        )
    return found
