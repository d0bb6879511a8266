"""What an oracle and a test set say of one model, beside the model before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from forsaken.errors import UndefinedMetricError
from forsaken.metrics import catastrophic_forgetting_rate, forgetting_rate
from forsaken.oracles.shadow import ShadowOracle
from forsaken.types import Array

View = Mapping[str, Array]  # posteriors (samples x classes) by set: forget, and kept and test where there are any


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an oracle and a test set say of one model. The retrained model's verdict belongs beside it.

    Attributes
    ----------
    fr : float or None
        Forgetting rate on the forget set; compare with the retrained model's. None where nothing was memorised.
    cfr : float or None
        Catastrophic forgetting rate on kept training samples that no method used; lower is better.
    accuracy : float or None
        On the test set.
    confidence : float
        The mean largest posterior of the forget samples; compare with the retrained model's.
    """

    fr: float | None
    cfr: float | None
    accuracy: float | None
    confidence: float

    def to_dict(self) -> dict[str, float | None]:
        """Return the numbers by name."""
        return asdict(self)


def judge(oracle: ShadowOracle | None, before: View, view: View, truth: Array | None) -> Verdict:
    """Judge a model by its posteriors, beside those of the model before; `truth` are the test labels."""
    return Verdict(
        fr=_rate(forgetting_rate, oracle, before, view, "forget"),
        cfr=_rate(catastrophic_forgetting_rate, oracle, before, view, "kept"),
        accuracy=None if truth is None else float(np.mean(view["test"].argmax(1) == truth)),
        confidence=float(view["forget"].max(1).mean()),
    )


def members(oracle: ShadowOracle, posterior: Array) -> Array:
    """Return the oracle's verdicts on rows of posteriors; true = member."""
    return oracle.score_posteriors(posterior) > oracle.threshold


def _rate(
    rate: Callable[[Array, Array], float], oracle: ShadowOracle | None, before: View, view: View, part: str
) -> float | None:
    if oracle is None or part not in view:
        return None
    try:
        return rate(members(oracle, before[part]), members(oracle, view[part]))
    except UndefinedMetricError:  # nothing was memorised: no number, rather than one that means nothing
        return None
