"""How well a score tells two sets of samples apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from forsaken.errors import EmptyError, InputError


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
    inside, outside = _scores(members, "members"), _scores(others, "others")
    ordered = np.sort(outside)
    below, up_to = (np.searchsorted(ordered, inside, side=side) for side in ("left", "right"))
    return float((below + up_to).sum() / (2 * len(inside) * len(outside)))


def _scores(values: ArrayLike, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    try:
        scores = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a flat array of scores: {error}") from error
    if scores.ndim != 1:
        raise InputError(f"{name} has shape {scores.shape}, expected a flat array of scores")
    if not len(scores):
        raise EmptyError(f"{name} is empty; the separation needs at least one score on either side")
    if np.isnan(scores).any():
        raise InputError(f"{name} holds NaN, which is neither more nor less than any score; leave those samples out")
    return scores
