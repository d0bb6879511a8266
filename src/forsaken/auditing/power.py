"""Whether an attack can tell anything at all: before anything was forgotten, and with so few samples."""

from __future__ import annotations

from collections.abc import Callable

from forsaken.metrics import bootstrap_interval, separation
from forsaken.types import Array

_DRAWS = 400


def powerless(before: tuple[Array, Array], seed: int, area: Callable[[Array, Array], float] = separation) -> str | None:
    """Return why the scores of members and others under the model before show no power; None where they do.

    >>> powerless((np.array([0.9, 0.8, 0.7]), np.array([0.1, 0.2, 0.3])), 0) is None
    True
    """
    interval = bootstrap_interval(area, *before, draws=_DRAWS, seed=seed)
    if interval is None:
        return "too few samples to tell anything"
    if interval[0] > 0.5:
        return None
    return (
        f"the attack cannot tell the model before either (AUC {area(*before):.3f}, {interval[0]:.3f} to "
        f"{interval[1]:.3f}), so that it shows nothing: were the samples memorised under these labels?"
    )


def unresolved(negatives: int, share: float, what: str) -> str | None:
    """Return why so few negatives cannot tell a share of false positives; None where they can.

    >>> unresolved(100, 0.01, "samples") is None, unresolved(99, 0.01, "samples") is None
    (True, False)
    """
    if negatives >= 1 / share - 1e-9:
        return None
    return f"{negatives} {what} cannot tell a rate of {100 * share:g} %: that takes {1 / share:.0f}"
