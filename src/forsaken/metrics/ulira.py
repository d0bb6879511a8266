"""U-LiRA: telling unlearned models from models that never saw the sample, sample by sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from forsaken._checks import Problems
from forsaken.metrics.arrays import Floats, check_graded, frozen, matrix, pair
from forsaken.metrics.intervals import Interval, jackknife_intervals
from forsaken.metrics.membership import fit, fit_without_each, log_density
from forsaken.metrics.roc import Roc, caught, roc, separation, tpr_at

FEW = 16  # with fewer models a side than this an audit warns
LEAST = 3  # the standard deviation of what is left without the model under test takes two
NEAR = 0.03  # of 0.5: too close to chance to call it anything else


@dataclass(frozen=True, slots=True, eq=False)
class ULira:
    """What U-LiRA found. 0.5 is ideal for the areas; below it is no better than above.

    Attributes
    ----------
    auc : float
        Area under the ROC curve of all (sample, model) pairs, pooled.
    tpr_at_1, tpr_at_01 : float
        True positive rates at 1 % and at 0.1 % false positives. With fewer than 100 (1,000) pairs a side: without any
        false positive.
    worst : float
        `auc` over the worst tenth of the samples. Choosing the worst chooses noise: read it beside `Floor.worst_high`.
    worst_rows : int array
        Those samples, the worst first.
    per_sample : float array (samples,)
        The area for each sample; noisy, and biased below 0.5 with few models.
    scores_unlearned, scores_retrained : float arrays (models x samples)
        log N_u(φ) - log N_r(φ); higher means unlearned.
    roc : Roc
        The pooled curve.
    """

    auc: float
    tpr_at_1: float
    tpr_at_01: float
    worst: float
    worst_rows: NDArray[np.intp]
    per_sample: Floats
    scores_unlearned: Floats
    scores_retrained: Floats
    roc: Roc


@dataclass(frozen=True, slots=True)
class Floor:
    """Where U-LiRA lies for models that were all retrained: 2.5 %, 97.5 %, mean of the AUC and of its worst tenth."""

    low: float
    high: float
    mean: float
    worst_low: float
    worst_high: float
    worst_mean: float


class ULiraIntervals(NamedTuple):
    """Intervals of the numbers of `ULira`, each None where no single model moves the number."""

    auc: Interval | None
    worst: Interval | None
    tpr_at_1: Interval | None
    tpr_at_01: Interval | None


class _Attack(NamedTuple):
    unlearned: Floats
    retrained: Floats
    auc: float
    worst: float
    worst_rows: NDArray[np.intp]
    per_sample: Floats


def u_lira(unlearned: ArrayLike, retrained: ArrayLike) -> ULira:
    """Attack unlearned models with a likelihood ratio for each sample.

    For each sample a normal is fitted to the margins of the unlearned models and one to those of the retrained models;
    the model under test is left out of the fit of its own side. Its score is log N_u(φ) - log N_r(φ). No standard
    deviation is taken to be below 0.1.

    Parameters
    ----------
    unlearned, retrained : float arrays (models x samples)
        Margins (`margins`) on the same forget samples; at least 3 models each, 16 (`FEW`) for a number to rely on.

    Examples
    --------
    >>> draw = np.random.default_rng(0)
    >>> retrained, memorised = draw.normal(0, 1, (32, 50)), draw.normal(6, 1, (16, 50))
    >>> u_lira(memorised, retrained[:16]).auc > 0.99
    True
    >>> at_floor(u_lira(retrained[:16], retrained[16:]).auc, u_lira_floor(retrained))
    True
    """
    left, right = pair(unlearned, retrained, least=LEAST)
    check_graded(left, right)
    found = _attack(left, right)
    curve = roc(found.unlearned.ravel(), found.retrained.ravel())
    rows = found.worst_rows.copy()
    rows.setflags(write=False)
    return ULira(
        auc=found.auc,
        tpr_at_1=tpr_at(curve, 0.01),
        tpr_at_01=tpr_at(curve, 0.001),
        worst=found.worst,
        worst_rows=rows,
        per_sample=frozen(found.per_sample),
        scores_unlearned=frozen(found.unlearned),
        scores_retrained=frozen(found.retrained),
        roc=curve,
    )


def u_lira_intervals(unlearned: ArrayLike, retrained: ArrayLike) -> ULiraIntervals:
    """Return 95 % intervals: how far the numbers of `u_lira` would move with other models, on the same samples.

    Each model is left out once, on either side, and the attack is made anew (`jackknife_intervals`, on the logit).
    Resampling the scores of one attack would be too narrow by far: the fits are part of the noise, and the samples of
    one model move together. The worst tenth is chosen anew too, but that choosing finds noise is no matter of width:
    read it beside `Floor.worst_high`.

    Parameters
    ----------
    unlearned, retrained : float arrays (models x samples)
        As in `u_lira`; at least 4 models each.

    Examples
    --------
    >>> models = np.random.default_rng(0).normal(size=(32, 50))
    >>> low, high = u_lira_intervals(models[:16], models[16:]).auc
    >>> low < 0.5 < high < 0.6
    True
    """
    left, right = pair(unlearned, retrained, least=LEAST + 1)
    check_graded(left, right)

    def numbers(mine: Floats, theirs: Floats) -> tuple[float, ...]:
        found = _attack(mine, theirs)
        sides = found.unlearned.ravel(), found.retrained.ravel()
        return found.auc, found.worst, caught(*sides, share=0.01), caught(*sides, share=0.001)

    return ULiraIntervals(*jackknife_intervals(numbers, left, right, scale="share"))


def u_lira_floor(retrained: ArrayLike, *, halvings: int = 200, seed: int = 0) -> Floor:
    """Return where `u_lira` lies when retrained models are attacked as if they were unlearned ones.

    2N retrained models are split at random into N against N, `halvings` times: the model is the unit, not the pair. To
    compare with N unlearned models against N retrained, give 2N. With an odd number each halving leaves one out.

    Parameters
    ----------
    retrained : float array (models x samples)
        Margins of at least 6 retrained models.
    halvings : int
        How many random halvings.
    seed : int
        Of the halvings.

    Examples
    --------
    >>> found = u_lira_floor(np.random.default_rng(0).normal(size=(32, 100)))
    >>> found.low < 0.5 < found.high, found.worst_mean > found.mean
    (True, True)
    """
    problems = Problems("u_lira_floor")
    problems.whole("halvings", halvings, least=1)
    problems.whole("seed", seed, least=0)
    problems.report()
    models = matrix(retrained, "retrained", least=2 * LEAST)
    check_graded(models)
    draw, half = np.random.default_rng(seed), len(models) // 2
    areas = np.empty((halvings, 2))
    for row in areas:
        order = draw.permutation(len(models))
        found = _attack(models[order[:half]], models[order[half : 2 * half]])
        row[:] = found.auc, found.worst
    (low, worst_low), (high, worst_high) = np.percentile(areas, [2.5, 97.5], axis=0).tolist()
    mean, worst_mean = areas.mean(axis=0).tolist()
    return Floor(low, high, mean, worst_low, worst_high, worst_mean)


def at_floor(auc: float, floor: Floor) -> bool:
    """Return whether an AUC is where retrained models lie themselves, or within 0.03 of 0.5.

    Examples
    --------
    >>> floor = Floor(0.45, 0.55, 0.5, 0.6, 0.7, 0.65)
    >>> at_floor(0.54, floor), at_floor(0.56, floor), at_floor(0.44, floor)
    (True, False, False)
    """
    return floor.low <= auc <= floor.high or abs(auc - 0.5) <= NEAR + 1e-9


def _attack(left: Floats, right: Floats) -> _Attack:
    mine = log_density(left, *fit_without_each(left)) - log_density(left, *fit(right))
    theirs = log_density(right, *fit(left)) - log_density(right, *fit_without_each(right))
    each = _areas(mine, theirs)
    worst = np.argsort(-each, kind="stable")[: -(-len(each) // 10)]
    auc = separation(mine.ravel(), theirs.ravel())
    return _Attack(mine, theirs, auc, separation(mine[:, worst].ravel(), theirs[:, worst].ravel()), worst, each)


def _areas(positives: Floats, negatives: Floats) -> Floats:
    # Mann and Whitney: the AUC from the sum of the positives' ranks, all columns at once
    n, m = len(positives), len(negatives)
    ranks = rankdata(np.concatenate([positives, negatives]), axis=0)
    return np.asarray((ranks[:n].sum(axis=0) - n * (n + 1) / 2) / (n * m), dtype=np.float64)
