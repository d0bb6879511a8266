"""ROC curves for pictures."""

from __future__ import annotations

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
