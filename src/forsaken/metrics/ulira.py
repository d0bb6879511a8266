"""U-LiRA: telling unlearned models from models that never saw the samples, sample by sample and by all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
BOUND = 3.0  # of a sample's log-likelihood ratio in the sum over a request: 20 to 1
POWER = 0.8  # the share of audits that would see a shift which "would have been seen"
_WIDEST = 8.0  # sigma: the largest shift that is tried


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


class RequestFloor(NamedTuple):
    """Where `request_u_lira` lies for models that were all retrained: 2.5 %, 97.5 %, mean."""

    low: float
    high: float
    mean: float


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
    found = [_attack(*halves) for halves in _halvings("u_lira_floor", retrained, halvings, seed)]
    areas = np.array([(one.auc, one.worst) for one in found])
    (low, worst_low), (high, worst_high) = np.percentile(areas, [2.5, 97.5], axis=0).tolist()
    mean, worst_mean = areas.mean(axis=0).tolist()
    return Floor(low, high, mean, worst_low, worst_high, worst_mean)


def request_u_lira(unlearned: ArrayLike, retrained: ArrayLike) -> float:
    """Attack unlearned models by all samples of a request at once, and return the AUC over models.

    A model's score is the sum over the samples of log N_u(φ) - log N_r(φ), each bounded to ±3 (`BOUND`). The AUC is the
    share of pairs, one unlearned and one retrained model, in which the unlearned model scores higher; both models of a
    pair are left out of both fits. A shift that is too small to be told by any one sample adds up over a request.

    Two details differ from the sum of the scores of `u_lira`. There each model is scored by a fit of its own, which
    makes the AUC of equal models fall below 0.5, the more the more samples are summed (0.40 for 200 samples and 16
    models). And without a bound a few samples in the tails, where a normal fitted to 16 values is wrong by far, decide
    the sum.

    Parameters
    ----------
    unlearned, retrained : float arrays (models x samples)
        As in `u_lira`.

    Examples
    --------
    >>> draw = np.random.default_rng(0)
    >>> retrained, shifted = draw.normal(0, 1, (16, 300)), draw.normal(0.4, 1, (16, 300))
    >>> u_lira(shifted, retrained).auc < 0.6, request_u_lira(shifted, retrained) > 0.95
    (True, True)
    """
    left, right = pair(unlearned, retrained, least=LEAST)
    check_graded(left, right)
    return _request(left, right)


def request_interval(unlearned: ArrayLike, retrained: ArrayLike) -> Interval | None:
    """Return the 95 % interval of `request_u_lira`, as `u_lira_intervals` does; at least 4 models a side."""
    left, right = pair(unlearned, retrained, least=LEAST + 1)
    check_graded(left, right)
    return jackknife_intervals(lambda mine, theirs: (_request(mine, theirs),), left, right, scale="share")[0]


def request_floor(retrained: ArrayLike, *, halvings: int = 200, seed: int = 0) -> RequestFloor:
    """Return where `request_u_lira` lies for retrained models, over the halvings of `u_lira_floor`.

    Examples
    --------
    >>> found = request_floor(np.random.default_rng(0).normal(size=(32, 100)))
    >>> found.low < 0.5 < found.high
    True
    """
    areas = [_request(*halves) for halves in _halvings("request_floor", retrained, halvings, seed)]
    low, high = np.percentile(areas, [2.5, 97.5]).tolist()
    return RequestFloor(low, high, float(np.mean(areas)))


def _auc(unlearned: Floats, retrained: Floats) -> float:
    """Return the AUC of `u_lira`, and nothing else."""
    mine, theirs = _scores(unlearned, retrained)
    return separation(mine.ravel(), theirs.ravel())


def smallest_shift(
    retrained: ArrayLike,
    floor: Floor | RequestFloor,
    attack: Callable[[Floats, Floats], float] = _auc,
    *,
    halvings: int = 40,
    seed: int = 0,
) -> float | None:
    """Return the smallest shift of every margin, in σ, that an attack with so many models and samples would have seen.

    Retrained models are halved as for the floor, and all margins of one half are moved by a multiple of each sample's
    own standard deviation. A shift is seen where the AUC is not at the floor (`at_floor`); the smallest is the one that
    four halvings in five (`POWER`) see. So models that differ from retrained ones by less may pass the audit.

    Parameters
    ----------
    retrained : float array (models x samples)
        Margins of 2N retrained models.
    floor : Floor or RequestFloor
        Of the same models and the same attack.
    attack : callable
        From the margins of two groups of models to an AUC: by default that of `u_lira`; or `request_u_lira`.
    halvings, seed : int
        How many halvings, and their seed.

    Returns
    -------
    float or None
        None where even a shift of 8 σ would not have been seen.
    """
    sides = list(_halvings("smallest_shift", retrained, halvings, seed))
    spread = matrix(retrained, "retrained").std(axis=0, ddof=1)

    def seen(shift: float) -> bool:
        missed = 0
        for left, right in sides:
            missed += at_floor(attack(left + shift * spread, right), floor)
            if missed > (1 - POWER) * len(sides):
                return False
        return True

    if not seen(_WIDEST):
        return None
    low, high = 0.0, _WIDEST
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if seen(middle) else (middle, high)
    return high


def at_floor(auc: float, floor: Floor | RequestFloor) -> bool:
    """Return whether an AUC is where retrained models lie themselves, or within 0.03 of 0.5.

    Examples
    --------
    >>> floor = Floor(0.45, 0.55, 0.5, 0.6, 0.7, 0.65)
    >>> at_floor(0.54, floor), at_floor(0.56, floor), at_floor(0.44, floor)
    (True, False, False)
    """
    return floor.low <= auc <= floor.high or abs(auc - 0.5) <= NEAR + 1e-9


def _halvings(name: str, retrained: ArrayLike, halvings: int, seed: int) -> Iterator[tuple[Floats, Floats]]:
    problems = Problems(name)
    problems.whole("halvings", halvings, least=1)
    problems.whole("seed", seed, least=0)
    problems.report()
    models = matrix(retrained, "retrained", least=2 * LEAST)
    check_graded(models)
    draw, half = np.random.default_rng(seed), len(models) // 2
    for _ in range(halvings):
        order = draw.permutation(len(models))
        yield models[order[:half]], models[order[half : 2 * half]]


def _request(left: Floats, right: Floats) -> float:
    mine, theirs = fit_without_each(left), fit_without_each(right)
    own, won = log_density(right, *theirs), 0.0
    for row, mean, std in zip(left, *mine, strict=True):  # this model against every retrained one
        ratios = log_density(row, mean, std) - log_density(row, *theirs), log_density(right, mean, std) - own
        ours, others = (np.clip(each, -BOUND, BOUND).sum(axis=1) for each in ratios)
        won += np.sum(ours > others) + 0.5 * np.sum(ours == others)
    return float(won / (len(left) * len(right)))


def _scores(left: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Return log N_u(φ) - log N_r(φ) of the unlearned and of the retrained models."""
    mine = log_density(left, *fit_without_each(left)) - log_density(left, *fit(right))
    theirs = log_density(right, *fit(left)) - log_density(right, *fit_without_each(right))
    return mine, theirs


def _attack(left: Floats, right: Floats) -> _Attack:
    mine, theirs = _scores(left, right)
    each = _areas(mine, theirs)
    worst = np.argsort(-each, kind="stable")[: -(-len(each) // 10)]
    auc = separation(mine.ravel(), theirs.ravel())
    return _Attack(mine, theirs, auc, separation(mine[:, worst].ravel(), theirs[:, worst].ravel()), worst, each)


def _areas(positives: Floats, negatives: Floats) -> Floats:
    # Mann and Whitney: the AUC from the sum of the positives' ranks, all columns at once
    n, m = len(positives), len(negatives)
    ranks = rankdata(np.concatenate([positives, negatives]), axis=0)
    return np.asarray((ranks[:n].sum(axis=0) - n * (n + 1) / 2) / (n * m), dtype=np.float64)
