"""How well a score tells two sets apart: the area under the ROC curve, and the curve where false positives are rare."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from sklearn.metrics import roc_curve

from forsaken.errors import InputError
from forsaken.metrics.arrays import Floats, frozen, scores


def separation(members: ArrayLike, others: ArrayLike) -> float:
    """Return the area under the ROC curve of a score that is higher for members: 0.5 means no difference.

    It is the chance that a random member scores higher than a random other sample; ties count half. A value below 0.5
    tells the two apart just as well, the other way round.

    Parameters
    ----------
    members, others : float arrays
        The scores of both sets, such as largest posteriors.

    Examples
    --------
    >>> separation([0.9, 0.8], [0.1, 0.2])
    1.0
    >>> separation([0.9, 0.5], [0.5, 0.5])
    0.75
    """
    inside, outside = scores(members, "members"), scores(others, "others")
    # sorted needles walk through the haystack in one direction, which is several times faster
    inside, ordered = np.sort(inside), np.sort(outside)
    below, up_to = (np.searchsorted(ordered, inside, side=side) for side in ("left", "right"))
    return float((below + up_to).sum() / (2 * len(inside) * len(outside)))


@dataclass(frozen=True, slots=True, eq=False)
class Roc:
    """A ROC curve.

    Attributes
    ----------
    fpr, tpr : float arrays
        False and true positive rates from (0, 0) to (1, 1); corners only, so a straight run has two points.
    auc : float
        The area under it.
    """

    fpr: Floats
    tpr: Floats
    auc: float


def roc(positives: ArrayLike, negatives: ArrayLike) -> Roc:
    """Return the ROC curve of a score that is higher for positives.

    Parameters
    ----------
    positives, negatives : flat float arrays
        The scores of both sides. Infinite scores are fine, NaN is not.

    Examples
    --------
    >>> curve = roc([0.9, 0.4], [0.5, 0.1])
    >>> curve.fpr.tolist(), curve.tpr.tolist(), curve.auc
    ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0], 0.75)
    """
    inside, outside = scores(positives, "positives"), scores(negatives, "negatives")
    # ranks say the same and are always finite, which scikit-learn asks for
    ranks = np.unique(np.concatenate([inside, outside]), return_inverse=True)[1]
    truth = np.repeat([1, 0], [len(inside), len(outside)])
    fpr, tpr, _ = roc_curve(truth, ranks, drop_intermediate=False)
    kept = _corners(fpr, tpr)
    return Roc(frozen(fpr[kept]), frozen(tpr[kept]), separation(inside, outside))


def tpr_at(curve: Roc, fpr: float) -> float:
    """Return the largest true positive rate whose false positive rate does not exceed `fpr`.

    Nothing is interpolated: with fewer than 1 / `fpr` negatives it is the rate without any false positive.

    Examples
    --------
    >>> tpr_at(roc([0.9, 0.4], [0.5, 0.1]), 0.01)
    0.5
    """
    if not 0.0 <= fpr <= 1.0:
        raise InputError(f"fpr is {fpr}, expected a rate from 0 to 1")
    return float(curve.tpr[curve.fpr <= fpr].max())


def caught(positives: ArrayLike, negatives: ArrayLike, *, share: float) -> float:
    """Return the true positive rate at such a share of false ones, as `tpr_at` does, without the curve.

    Examples
    --------
    >>> caught([3.0, 1.0], [2.0, 0.0], share=0.01)
    0.5
    """
    inside, outside = np.asarray(positives), np.asarray(negatives)
    allowed = int(share * len(outside))
    if allowed >= len(outside):
        return 1.0
    return float(np.mean(inside > np.partition(outside, -allowed - 1)[-allowed - 1]))


def _corners(fpr: Floats, tpr: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    # Only points inside a run straight up or straight across go: `tpr_at` never needs those.
    across, up = np.diff(fpr) > 0, np.diff(tpr) > 0
    kept = np.ones(len(fpr), dtype=bool)
    kept[1:-1] = (across[:-1] | across[1:]) & (up[:-1] | up[1:])
    return kept
