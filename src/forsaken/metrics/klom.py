"""KLoM: how differently a sample's margins are spread under unlearned and under retrained models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forsaken._checks import Problems
from forsaken.metrics.arrays import Floats, matrix, pair, scores

RAREST = 1e-5  # what an empty bin of the retrained models counts as, so that the divergence stays finite


@dataclass(frozen=True, slots=True)
class KlomFloor:
    """The range of KLoM where all models were retrained, so that there is nothing to find.

    `low` and `high` are the 2.5 % and 97.5 % quantiles over random halvings of the models, `mean` is the mean over
    them, of the samples' mean KLoM; `p95_low`, `p95_high` and `p95_mean` are those of the samples' 95th percentile.
    """

    low: float
    high: float
    mean: float
    p95_low: float
    p95_high: float
    p95_mean: float


def klom(unlearned: ArrayLike, retrained: ArrayLike, *, bins: int = 20, clip: float = 100.0) -> Floats:
    """Return KL(unlearned || retrained) of the margins' histograms, for each sample. Lower is better.

    It means nothing by itself and depends strongly on the number of models: show it beside retrained against retrained
    (its floor) and doing nothing against retrained (its ceiling), all with the same number of models.

    Parameters
    ----------
    unlearned, retrained : float arrays (models x samples)
        Margins (`margins`) on the same samples; at least 2 models each.
    bins : int
        Equal bins over the range of both; the last one holds its upper end.
    clip : float
        Margins are clipped to ± this first.

    Returns
    -------
    float array (samples,)
        0 for a sample all of whose margins are equal.

    Examples
    --------
    >>> klom([[0.0], [1.0]], [[0.0], [1.0]]).tolist()
    [0.0]
    >>> klom([[0.0], [1.0]], [[0.0], [0.0]]).round(3).tolist()  # ½ log(½ / 1) + ½ log(½ / 1e-5)
    [5.063]
    """
    problems = Problems("klom")
    problems.whole("bins", bins, least=1)
    problems.number("clip", clip, least=1e-9)
    problems.report()
    left, right = (np.clip(one, -clip, clip) for one in pair(unlearned, retrained, least=2))
    edges = np.linspace(np.minimum(left.min(0), right.min(0)), np.maximum(left.max(0), right.max(0)), bins + 1)
    p, q = (_shares(one, edges) for one in (left, right))
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = p * np.log(p / np.maximum(q, RAREST))
    return np.asarray(np.where(p > 0, terms, 0.0).sum(axis=0), dtype=np.float64)


def klom_summary(values: ArrayLike) -> tuple[float, float]:
    """Return the mean and the 95th percentile over samples.

    Examples
    --------
    >>> klom_summary(range(101))
    (50.0, 95.0)
    """
    found = scores(values, "values")
    return float(found.mean()), float(np.percentile(found, 95))


def klom_floor(retrained: ArrayLike, *, halvings: int = 200, seed: int = 0) -> KlomFloor:
    """Return where the summary of `klom` lies when retrained models stand on both sides.

    2N retrained models are split at random into N against N, `halvings` times. To compare with N unlearned models
    against N retrained, give 2N: the floor depends strongly on N. With an odd number each halving leaves one out.

    Parameters
    ----------
    retrained : float array (models x samples)
        Margins of at least 4 retrained models.
    halvings, seed : int
        How many random halvings, and what decides them.

    Examples
    --------
    >>> found = klom_floor(np.random.default_rng(0).normal(size=(32, 100)))
    >>> found.low < found.mean < found.high < found.p95_mean
    True
    """
    problems = Problems("klom_floor")
    problems.whole("halvings", halvings, least=1)
    problems.whole("seed", seed, least=0)
    problems.report()
    models = matrix(retrained, "retrained", least=4)
    draw, half = np.random.default_rng(seed), len(models) // 2
    found = np.empty((halvings, 2))
    for row in found:
        order = draw.permutation(len(models))
        row[:] = klom_summary(klom(models[order[:half]], models[order[half : 2 * half]]))
    (low, p95_low), (high, p95_high) = np.percentile(found, [2.5, 97.5], axis=0).tolist()
    mean, p95_mean = found.mean(axis=0).tolist()
    return KlomFloor(low, high, mean, p95_low, p95_high, p95_mean)


def _shares(values: Floats, edges: Floats) -> Floats:
    place = _bins(values, edges)
    bins, samples = len(edges) - 1, values.shape[1]
    counts = np.bincount((place * samples + np.arange(samples)).ravel(), minlength=bins * samples)
    return np.asarray(counts.reshape(bins, samples) / len(values), dtype=np.float64)


def _bins(values: Floats, edges: Floats) -> NDArray[np.intp]:
    last, width = len(edges) - 2, edges[-1] - edges[0]
    share = (values - edges[0]) / np.where(width > 0, width, 1.0)
    place = np.minimum((share * (last + 1)).astype(np.intp), last)
    # The product can round across an edge; the edges decide, and the last bin holds its upper end.
    lower, upper = np.take_along_axis(edges, place, 0), np.take_along_axis(edges, place + 1, 0)
    place -= values < lower
    place += values >= upper
    return np.asarray(np.clip(place, 0, last), dtype=np.intp)
