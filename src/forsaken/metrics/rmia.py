"""RMIA: membership from how a sample's likelihood ratio compares with those of samples nobody trained on."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from forsaken._checks import Problems
from forsaken.errors import InputError
from forsaken.metrics.arrays import Floats, check_samples, check_sides, floats, inside_mask


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
