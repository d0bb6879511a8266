"""What the metrics take: flat scores, and margins (models x samples), checked once."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from forsaken.errors import EmptyError, InputError

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

# Squares of larger margins overflow; no network that works has them.
LARGEST = 1e100


def floats(values: ArrayLike, name: str, what: str) -> Floats:
    """Return `values` as float64, or say that they are no numbers."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be {what}: {error}") from error


def scores(values: ArrayLike, name: str) -> Floats:
    """Return a flat array of scores without NaN, at least one."""
    found = floats(values, name, "a flat array of scores")
    if found.ndim != 1:
        raise InputError(f"{name} has shape {found.shape}, expected a flat array of scores")
    if not len(found):
        raise EmptyError(f"{name} is empty; it takes at least one score")
    if np.isnan(found).any():
        raise InputError(f"{name} holds NaN, which is neither more nor less than any score; leave those samples out")
    return found


def matrix(values: ArrayLike, name: str, *, least: int = 1) -> Floats:
    """Return a matrix of finite margins, models x samples, of at least `least` models."""
    found = floats(values, name, "a matrix of margins, models x samples")
    if found.ndim != 2:
        raise InputError(
            f"{name} has shape {found.shape}, expected models x samples; one sample alone has shape (models, 1)"
        )
    if not found.shape[1]:
        raise EmptyError(f"{name} has shape {found.shape}: there is no sample in it")
    if len(found) < least:
        raise InputError(f"{name} has {len(found)} models, expected at least {least}; train more of them")
    check_finite(found, name)
    return found


def pair(unlearned: ArrayLike, retrained: ArrayLike, *, least: int) -> tuple[Floats, Floats]:
    """Return two matrices of margins on the same samples, of at least `least` models each."""
    left, right = matrix(unlearned, "unlearned", least=least), matrix(retrained, "retrained", least=least)
    check_samples(left, "unlearned", right, "retrained")
    return left, right


def check_samples(left: Floats, name: str, right: Floats, other: str) -> None:
    """Raise unless the last axes of both are equally long."""
    if left.shape[-1] != right.shape[-1]:
        raise InputError(
            f"{name} has {left.shape[-1]} samples (shape {left.shape}) and {other} has {right.shape[-1]} (shape "
            f"{right.shape}); they must be the same samples in the same order, in columns"
        )


def check_finite(found: Floats, name: str) -> None:
    """Raise where a margin is NaN, infinite or absurdly large."""
    bad = ~(np.abs(found) <= LARGEST)
    if bad.any():
        first = tuple(int(place) for place in np.argwhere(bad)[0])
        where = f"model {first[0]}, sample {first[1]}" if found.ndim == 2 else f"{first}"
        raise InputError(
            f"{name} holds {int(bad.sum())} values that are not finite, the first at {where}; a network that diverged "
            "says nothing: leave it out or train it again"
        )


def check_graded(*matrices: Floats) -> None:
    """Raise where there is nothing but 0 and 1: a normal fitted to right and wrong answers means nothing."""
    if all(bool(np.isin(one, (0.0, 1.0)).all()) for one in matrices):
        raise InputError(
            "the matrices hold nothing but 0 and 1, as if they were right and wrong answers; a normal cannot be fitted "
            "to those: give margins, forsaken.metrics.margins(logits, labels)"
        )


def inside_mask(inside: ArrayLike, references: Floats) -> Bools:
    """Return which model was trained on which sample: booleans of the references' shape."""
    found = np.asarray(inside)
    if found.dtype != np.bool_ or found.shape != references.shape:
        raise InputError(
            f"inside has dtype {found.dtype} and shape {found.shape}, expected booleans of the references' shape "
            f"{references.shape}: true where that model was trained on that sample"
        )
    return found


def check_sides(inside: Bools, *, least: int) -> None:
    """Raise unless each sample has at least `least` models that saw it and as many that did not."""
    seen = inside.sum(axis=0)
    for counts, what in ((seen, "were trained on it"), (len(inside) - seen, "were not trained on it")):
        worst = int(np.argmin(counts))
        if counts[worst] < least:
            raise InputError(
                f"only {int(counts[worst])} of the {len(inside)} reference models {what} (sample {worst}), expected at "
                f"least {least}; train more reference models, each on a random half of the samples"
            )


def frozen(values: Floats) -> Floats:
    """Return a copy that cannot be written to, for results that must not change."""
    kept = values.copy()
    kept.setflags(write=False)
    return kept


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
    if outside := int(((found < 0) | (found >= classes)).sum()):
        raise InputError(
            f"{outside} of {samples} labels are out of range, expected 0 to {classes - 1} for logits of {classes} "
            "classes; number the classes from 0"
        )
    return found
