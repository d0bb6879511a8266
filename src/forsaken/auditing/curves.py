"""ROC curves for pictures, and a point on them that is found quickly."""

from __future__ import annotations

from typing import Any

import numpy as np

from forsaken.auditing.result import Curve
from forsaken.metrics import Roc


def curve(name: str, roc: Roc, most: int = 400) -> Curve:
    """Return a ROC curve for a picture: where it has more points, those at even steps of log FPR."""
    fpr, tpr = roc.fpr, roc.tpr
    if len(fpr) > most:
        grid = np.unique(np.searchsorted(fpr, np.geomspace(max(fpr[fpr > 0].min(), 1e-6), 1, most), side="right") - 1)
        keep = np.unique([0, *grid, len(fpr) - 1])
        fpr, tpr = fpr[keep], tpr[keep]
    return Curve(name, tuple(map(float, np.round(fpr, 6))), tuple(map(float, np.round(tpr, 6))))


def caught(positives: np.ndarray[Any, Any], negatives: np.ndarray[Any, Any], *, share: float) -> float:
    """Return the true positive rate at such a share of false ones, as `tpr_at` does, without the curve.

    >>> caught(np.array([3.0, 1.0]), np.array([2.0, 0.0]), share=0.01)
    0.5
    """
    allowed = int(share * len(negatives))
    if allowed >= len(negatives):
        return 1.0
    return float(np.mean(positives > np.partition(negatives, -allowed - 1)[-allowed - 1]))
