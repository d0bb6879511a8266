"""The score of the NeurIPS 2023 unlearning challenge: a differential-privacy view of each forgotten sample."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from forsaken._checks import Problems
from forsaken.errors import InputError
from forsaken.metrics.arrays import Floats, pair, scores

CAP = 50.0  # what an infinite ε counts as
STEP = 0.5  # H halves with every step of ε


def forgetting_epsilon(unlearned: ArrayLike, retrained: ArrayLike, *, delta: float = 1e-5) -> Floats:
    """Return ε for each sample: how well a threshold tells unlearned from retrained models. Lower is better.

    ε is the largest over thresholds of max{log(1-δ-FPR) - log FNR, log(1-δ-FNR) - log FPR}. What a threshold calls
    unlearned is an interval of margins or all outside one; open intervals are the single thresholds. Both rates zero:
    infinite, counted as 50. Exactly one rate zero: that threshold is dropped, since so few models cannot tell the rate.
    Never below 0, which is also the answer where no threshold is left: then no threshold tells anything.

    Parameters
    ----------
    unlearned, retrained : float arrays (models x samples)
        Margins (`margins`) on the same forget samples; at least 2 models each.
    delta : float
        The δ of the formula.

    Examples
    --------
    >>> forgetting_epsilon([[5.0], [6.0]], [[1.0], [2.0]]).tolist()  # one threshold parts them without a mistake
    [50.0]
    >>> forgetting_epsilon([[1.0], [1.0]], [[1.0], [1.0]]).tolist()
    [0.0]
    """
    problems = Problems("forgetting_epsilon")
    problems.number("delta", delta, least=0.0, most=0.5)
    problems.report()
    left, right = pair(unlearned, retrained, least=2)
    table = _epsilons(len(left), len(right), delta)
    return np.array([_largest(*columns, table) for columns in zip(left.T, right.T, strict=True)])


def forgetting_quality(epsilons: ArrayLike, models: int) -> float:
    """Return the mean over samples of H = 2^-⌊ε / 0.5⌋, 0 past ⌈ln(N - 1)⌉. From 0 to 1, higher is better.

    Parameters
    ----------
    epsilons : float array (samples,)
        From `forgetting_epsilon`.
    models : int
        N, the number of models on either side.

    Examples
    --------
    >>> forgetting_quality([0.0, 0.4, 0.5, 50.0], models=16)
    0.625
    """
    problems = Problems("forgetting_quality")
    problems.whole("models", models, least=2)
    problems.report()
    found = scores(epsilons, "epsilons")
    if (found < 0).any():
        raise InputError(f"epsilons holds {found.min()}, expected 0 or more; take them from forgetting_epsilon")
    # a finite ε never exceeds ln(N - 1), so past it there are only samples told apart without a mistake
    told_apart = found > math.ceil(math.log(models - 1))
    return float(np.where(told_apart, 0.0, 2.0 ** -np.floor(np.where(told_apart, 0.0, found) / STEP)).mean())


def neurips_score(
    unlearned: ArrayLike, retrained: ArrayLike, *, retain_ratio: float, test_ratio: float, delta: float = 1e-5
) -> float:
    """Return forgetting quality times both accuracy ratios. Higher is better.

    A model destroyed to chance does not win: the ratios sink it.

    Parameters
    ----------
    unlearned, retrained : float arrays (models x samples)
        Margins on the same forget samples, of equally many models.
    retain_ratio, test_ratio : float
        Mean accuracy of the unlearned models over that of the retrained models, on retain and on test data.
    delta : float
        As in `forgetting_epsilon`.

    Examples
    --------
    >>> same = np.arange(8.0).reshape(4, 2)
    >>> neurips_score(same, same, retain_ratio=1.0, test_ratio=0.9)
    0.9
    """
    problems = Problems("neurips_score")
    problems.number("retain_ratio", retain_ratio, least=0.0)
    problems.number("test_ratio", test_ratio, least=0.0)
    problems.report()
    left, right = pair(unlearned, retrained, least=2)
    if len(left) != len(right):
        raise InputError(
            f"unlearned has {len(left)} models and retrained {len(right)}; the score is defined for equally many: "
            f"leave out {abs(len(left) - len(right))} of the larger set"
        )
    quality = forgetting_quality(forgetting_epsilon(left, right, delta=delta), len(left))
    return quality * retain_ratio * test_ratio


def _epsilons(n: int, m: int, delta: float) -> Floats:
    """Return ε for a region that holds i of n unlearned and j of m retrained margins, or for its outside."""
    share, false = np.arange(n + 1)[:, None] / n, np.arange(m + 1)[None, :] / m
    with np.errstate(divide="ignore", invalid="ignore"):
        inside, outside = _epsilon(false, 1.0 - share, delta), _epsilon(1.0 - false, share, delta)
    return np.maximum(np.maximum(inside, outside), 0.0)


def _epsilon(fpr: Floats, fnr: Floats, delta: float) -> Floats:
    fpr, fnr = np.broadcast_arrays(fpr, fnr)
    # fmax passes over the logarithm of a negative number, where 1 - δ leaves nothing to bound
    value = np.fmax(np.log(1 - delta - fpr) - np.log(fnr), np.log(1 - delta - fnr) - np.log(fpr))
    value = np.where((fpr == 0) | (fnr == 0), -np.inf, value)
    value = np.where((fpr == 0) & (fnr == 0), CAP, value)
    return np.asarray(np.fmin(np.nan_to_num(value, nan=-np.inf, neginf=-np.inf), CAP), dtype=np.float64)


def _largest(left: Floats, right: Floats, table: Floats) -> float:
    # Thresholds lie between neighbouring values: below a cut there are so many unlearned and so many retrained.
    values = np.unique(np.concatenate([left, right]))
    below = np.concatenate([[0], np.searchsorted(np.sort(left), values, side="right")])
    below_too = np.concatenate([[0], np.searchsorted(np.sort(right), values, side="right")])
    start, stop = np.triu_indices(len(below))
    return float(table[below[stop] - below[start], below_too[stop] - below_too[start]].max())
