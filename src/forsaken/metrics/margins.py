"""The margin: how far a model is on the side of a sample's label. Every attack here starts from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from forsaken.errors import InputError
from forsaken.metrics.arrays import Floats, check_finite, floats


def margins(logits: ArrayLike, labels: ArrayLike) -> Floats:
    """Return φ = logit_y - logsumexp(the other logits), in float64. Higher means surer of the label.

    It is the log-odds of the label, log(p / (1 - p)), without the rounding of a probability close to 1: take it from
    logits, never from probabilities.

    Parameters
    ----------
    logits : float array of shape (..., samples, classes)
        One model's or many models' outputs before the softmax; two classes or more.
    labels : integer array of shape (samples,)
        The label of each sample.

    Returns
    -------
    float64 array of shape (..., samples)
        With many models: models x samples, as `u_lira` and `klom` take it.

    Examples
    --------
    >>> margins([[2.0, 0.0], [0.0, 3.0]], [0, 0]).tolist()
    [2.0, -3.0]
    """
    answers = floats(logits, "logits", "an array of shape (..., samples, classes)")
    if answers.ndim < 2 or answers.shape[-1] < 2:
        raise InputError(
            f"logits has shape {answers.shape}, expected (..., samples, classes) with two classes or more; a model "
            "with one output z has the logits (0, z)"
        )
    check_finite(answers, "logits")
    rows, right = np.arange(answers.shape[-2]), _labels(labels, *answers.shape[-2:])
    others = answers.copy()
    others[..., rows, right] = -np.inf
    return np.asarray(answers[..., rows, right] - logsumexp(others, axis=-1), dtype=np.float64)


def _labels(labels: ArrayLike, samples: int, classes: int) -> NDArray[np.integer]:
    found = np.asarray(labels)
    if not np.issubdtype(found.dtype, np.integer) or found.shape != (samples,):
        raise InputError(
            f"labels has dtype {found.dtype} and shape {found.shape}, expected {samples} whole numbers, one a sample"
        )
    if samples and (found.min() < 0 or found.max() >= classes):
        raise InputError(
            f"labels run from {found.min()} to {found.max()}, expected 0 to {classes - 1} for logits of {classes} "
            "classes; number the classes from 0"
        )
    return found
