"""The likelihood ratio between two normals: how well the best attack on one number tells two kinds of models apart."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from forsaken._checks import Problems

_LEAST = 1e-12  # standard deviation
_REACH, _POINTS = 9.0, 3601  # of the quadrature: standard deviations to each side, and points


def likelihood_ratio_auc(shift: float, spread: float, sigma: float) -> float:
    """Return the AUC of the likelihood ratio between N(shift, spread²) and N(0, sigma²).

    The ratio grows with the distance |x - c| from c = -shift·sigma² / (spread² - sigma²) where the first normal is the
    wider one, and falls with it where it is the narrower one. So for a wider one, with Φ of the standard normal,

        AUC = E[Φ((c + h) / sigma) - Φ((c - h) / sigma)]        h = |x - c|, x from N(shift, spread²)

    which is (2/π)·arctan(spread / sigma) without a shift. For equal widths it is Φ(|shift| / (√2·sigma)).

    Parameters
    ----------
    shift : float
        The distance between the means; its sign makes no difference.
    spread, sigma : float
        The two standard deviations, both above 0.

    Examples
    --------
    >>> round(likelihood_ratio_auc(0.0, 1.18, 0.32), 2), round(likelihood_ratio_auc(0.0, 0.86, 0.35), 2)
    (0.83, 0.75)
    >>> round(likelihood_ratio_auc(1.0, 1.0, 1.0), 3), likelihood_ratio_auc(0.0, 1.0, 1.0)
    (0.76, 0.5)
    """
    problems = Problems("likelihood_ratio_auc")
    problems.number("shift", abs(shift), least=0.0)
    problems.number("spread", spread, least=_LEAST)
    problems.number("sigma", sigma, least=_LEAST)
    problems.report()
    far, wide = abs(shift) / sigma, spread / sigma
    if abs(wide - 1) < 1e-6:
        return float(ndtr(far / math.sqrt(2)))
    centre = -far / (wide**2 - 1)
    z = np.linspace(-_REACH, _REACH, _POINTS)
    away = np.abs(far + wide * z - centre)
    inside = ndtr(centre + away) - ndtr(centre - away)
    found = float(np.trapezoid(inside * np.exp(-(z**2) / 2), z) / math.sqrt(2 * math.pi))
    return min(1.0, max(0.0, found if wide > 1 else 1 - found))
