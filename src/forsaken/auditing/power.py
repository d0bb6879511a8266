"""Whether an attack can tell anything at all: one that cannot tell the model before shows nothing of the one after."""

from __future__ import annotations

from typing import Any

import numpy as np

from forsaken.metrics import bootstrap_interval, separation

Array = np.ndarray[Any, Any]

_DRAWS = 400


def powerless(before: tuple[Array, Array], seed: int) -> str | None:
    """Return why the scores of members and others under the model before show no power; None where they do.

    >>> powerless((np.array([0.9, 0.8, 0.7]), np.array([0.1, 0.2, 0.3])), 0) is None
    True
    """
    interval = bootstrap_interval(separation, *before, draws=_DRAWS, seed=seed)
    if interval is None:
        return "too few samples to tell anything"
    if interval[0] > 0.5:
        return None
    return (
        f"the attack cannot tell the model before either (AUC {separation(*before):.3f}, {interval[0]:.3f} to "
        f"{interval[1]:.3f}), so that it shows nothing: were the samples memorised under these labels?"
    )
