"""The paper's two rates, from an oracle's verdicts before and after (true = member)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from forsaken.errors import InputError, UndefinedMetricError

Verdicts = np.ndarray[Any, np.dtype[np.bool_]]


def forgetting_rate(before: ArrayLike, after: ArrayLike) -> float:
    """Return FR = (AF - BF) / BT on the forget set (Eq. forgetting_rate). Higher means more was forgotten.

    AF and BF count the non-members after and before, BT the members before. FR is negative where more
    samples look like members than before; it is not clipped. It says nothing by itself: compare it with the FR
    of a model retrained without the samples.

    Parameters
    ----------
    before, after : bool arrays of one length
        The oracle's verdicts on the same forget samples; true = member.

    Examples
    --------
    The paper's own example: of 100 samples 10 are non-members before and 90 after.

    >>> before, after = np.arange(100) >= 10, np.arange(100) >= 90
    >>> round(forgetting_rate(before, after), 2)
    0.89
    """
    was, now = _verdicts(before, after)
    return (int(np.sum(~now)) - int(np.sum(~was))) / _members(was, "forget samples")


def catastrophic_forgetting_rate(before: ArrayLike, after: ArrayLike) -> float:
    """Return CFR = (BT - AT) / BT on training samples that were to be kept. Lower is better.

    Measure it on training samples outside the forget set and outside the retain set that the method used:
    on the latter it is not honest.

    Parameters
    ----------
    before, after : bool arrays of one length
        The oracle's verdicts on the same kept training samples; true = member.

    Examples
    --------
    >>> catastrophic_forgetting_rate([True, True, True, True], [True, True, True, False])
    0.25
    """
    was, now = _verdicts(before, after)
    return (int(np.sum(was)) - int(np.sum(now))) / _members(was, "kept samples")


def _verdicts(before: ArrayLike, after: ArrayLike) -> tuple[Verdicts, Verdicts]:
    try:
        was, now = np.asarray(before), np.asarray(after)
    except ValueError as error:
        raise InputError(f"before and after must be flat boolean arrays of verdicts: {error}") from error
    for name, verdicts in (("before", was), ("after", now)):
        if verdicts.dtype != np.bool_ or verdicts.ndim != 1:
            raise InputError(
                f"{name} has dtype {verdicts.dtype} and shape {verdicts.shape}, expected a flat boolean array of "
                "verdicts; compare scores with a threshold first"
            )
    if len(was) != len(now):
        raise InputError(f"before has {len(was)} verdicts and after has {len(now)}; they must be on the same samples")
    return was, now


def _members(was: Verdicts, what: str) -> int:
    count = int(np.sum(was))
    if count == 0:
        raise UndefinedMetricError(
            f"none of the {len(was)} {what} was a member before by this oracle's verdicts, so the rate is undefined: "
            "nothing was memorised, or the oracle is weak (ShadowOracle.evaluate tells)"
        )
    return count
