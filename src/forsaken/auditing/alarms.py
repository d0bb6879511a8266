"""The two alarms of every audit: a model that forgot too much, and one that forgot nothing."""

from __future__ import annotations

import numpy as np

from forsaken.auditing.case import Case
from forsaken.auditing.quick import Quick
from forsaken.auditing.result import Alarm, Number
from forsaken.metrics import bootstrap_interval
from forsaken.models.logits import as_module
from forsaken.models.weights import fingerprint
from forsaken.types import Array

_WIDTH = 1.96  # standard deviations: a band of 95 %
_SIGMA = 0.1  # as in U-LiRA: no sample's band is narrower
_SLACK = 0.1  # of the share of samples in a band: as much as one model differs from others
_ENOUGH = 4  # retrained models for a band
_FAR = 1.0  # of a mean margin, in the logits' unit: more than two retrained models differ by


def no_op(case: Case, quick: Quick) -> Alarm:
    """Tell whether the model is the one before, in its weights or in its answers."""
    if fingerprint(as_module(case.before)) == fingerprint(as_module(case.after)):
        return Alarm("no-op", True, "No weight has changed: nothing was unlearned.")
    count, (visible, judged) = len(quick.before["forget"]), quick.moved(quick.after)
    if visible == 0:
        return Alarm(
            "no-op",
            True,
            f"Weights have changed, but for none of the {count} forgotten samples has the answer, or a posterior by "
            "more than 0.01: to an attacker nothing was unlearned.",
        )
    if judged == 0 and any(quick.moved(view)[1] for view in quick.retrained):
        return Alarm(
            "no-op",
            True,
            f"The answer and the oracle's verdict are as before for all {count} forgotten samples, and for a retrained "
            "model they are not: to this oracle nothing was unlearned.",
        )
    return Alarm("no-op", False, f"Answers or posteriors have changed for {visible} of the {count} forgotten samples.")


def outside_band(margins: Array, retrained: Array) -> tuple[Array, Array]:
    """Return which samples lie below, and which above, the 95 % band of the retrained models' margins.

    Parameters
    ----------
    margins : array, samples
        Of the model in question.
    retrained : array, models x samples
        Of models that never saw the samples; the one in question is not among them.
    """
    centre = retrained.mean(0)
    width = _WIDTH * np.maximum(retrained.std(0, ddof=1), _SIGMA)
    return margins < centre - width, margins > centre + width


def over_forgetting(
    case: Case, quick: Quick, margins: Array | None, retrained: Array | None
) -> tuple[Alarm, list[Number]]:
    """Tell whether the forgotten samples lie further out than they do for models that never saw them.

    With the margins of several retrained models, samples are counted that lie below these models' 95 % band, beside the
    same count for each retrained model against the others. With fewer of them the mean margins are compared (the mean
    confidences, where the samples have no labels); with none nothing can be told.
    """
    labelled = case.sets.forget.labels is not None
    if margins is None and labelled:
        margins = case.margins(case.after, case.sets.forget)
    if retrained is None and labelled and case.retrained:
        retrained = np.stack([case.margins(model, case.sets.forget) for model in case.retrained])
    if margins is not None and retrained is not None:
        if len(retrained) >= _ENOUGH:
            return _by_band(case, margins, retrained)
        return _by_margin(case, margins, retrained.mean(0)), []
    if not quick.retrained:
        return Alarm("over-forgetting", None, "Not known: it takes a retrained model to tell."), []
    ours, usual = quick.after["forget"].max(1), np.mean([view["forget"].max(1) for view in quick.retrained], axis=0)
    gap = bootstrap_interval(
        lambda one, two: float(np.mean(one - two)), ours, usual, paired=True, draws=1000, seed=case.seed
    )
    told = f"{ours.mean():.3f}, for the retrained model {usual.mean():.3f}"
    if gap is not None and gap[1] < -0.05:
        return Alarm(
            "over-forgetting", True, f"The model is less sure of the forgotten samples than a retrained one: {told}."
        ), []
    return Alarm("over-forgetting", False, f"The mean confidence on the forgotten samples is {told}."), []


def _by_margin(case: Case, ours: Array, usual: Array) -> Alarm:
    """Compare the mean margin of the labels: it sees confident wrong answers too, which a confidence does not."""
    gap = bootstrap_interval(
        lambda one, two: float(np.mean(one - two)), ours, usual, paired=True, draws=1000, seed=case.seed
    )
    told = f"{ours.mean():.2f}, for the retrained model {usual.mean():.2f}"
    if gap is not None and gap[1] < -_FAR:
        return Alarm(
            "over-forgetting",
            True,
            f"The forgotten samples lie further out than for a retrained model: mean margin {told}.",
        )
    return Alarm("over-forgetting", False, f"The mean margin of the forgotten samples is {told}.")


def _by_band(case: Case, margins: Array, retrained: Array) -> tuple[Alarm, list[Number]]:
    below, above = outside_band(margins, retrained)
    others = [outside_band(retrained[at], np.delete(retrained, at, axis=0)) for at in range(len(retrained))]
    usual_below = np.array([each[0].mean() for each in others])
    usual_inside = np.array([1 - each[0].mean() - each[1].mean() for each in others])
    before = outside_band(case.margins(case.before, case.sets.need("forget", labels=True)), retrained)
    limit = max(0.05, float(np.quantile(usual_below, 0.975)))
    share = float(below.mean())
    inside = 1 - share - float(above.mean())
    number = Number(
        "within_band",
        "forgotten samples inside the retrained models' 95 % band",
        inside,
        "retrained",
        n=len(margins),
        unit="samples",
        interval=bootstrap_interval(
            lambda drawn: float(drawn.mean()), (~(below | above)).astype(float), seed=case.seed
        ),
        retrained=float(usual_inside.mean()),
        before=1 - float((before[0] | before[1]).mean()),
        floor=(float(np.quantile(usual_inside, 0.025)), float(np.quantile(usual_inside, 0.975))),
        note="of the audited model itself, not of the ensemble",
    )
    told = (
        f"{share:.1%} of the forgotten samples lie below the retrained models' 95 % band (retrained models: "
        f"{usual_below.mean():.1%}, at most {limit:.1%} would be usual), {above.mean():.1%} above it."
    )
    return Alarm("over-forgetting", share > limit, told), [number]


def like_the_ensemble(margins: Array, ensemble: Array) -> bool:
    """Return whether a model's margins lie in the band of an ensemble as often as those of its own members do."""

    def inside(own: Array, others: Array) -> float:
        below, above = outside_band(own, others)
        return 1 - float(below.mean()) - float(above.mean())

    usual = [inside(ensemble[at], np.delete(ensemble, at, axis=0)) for at in range(len(ensemble))]
    return inside(margins, ensemble) >= min(float(np.quantile(usual, 0.025)), float(np.mean(usual)) - _SLACK)
