"""How well a score tells two sets of samples apart."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from forsaken.metrics.arrays import scores


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
