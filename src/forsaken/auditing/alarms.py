"""The two alarms of every audit: a model that forgot nothing (no-op), and one that forgot too much."""

from __future__ import annotations

import numpy as np

from forsaken.auditing.inputs import AuditInputs
from forsaken.auditing.quick import Quick
from forsaken.auditing.result import Alarm, Number
from forsaken.metrics import bootstrap_interval
from forsaken.models.logits import as_module
from forsaken.models.weights import fingerprint
from forsaken.types import Array

_WIDTH = 1.96  # standard deviations: a band of 95 %
_SIGMA = 0.1  # the least standard deviation of a sample, as in U-LiRA
_SLACK = 0.1  # by which the share of samples inside a band may differ between two models of one ensemble
_ENOUGH = 4  # retrained models for a band
_FAR_MARGIN = 1.0  # of a mean margin, in logits: two retrained models differ by less
_FAR_CONFIDENCE = 0.05


def no_op(inputs: AuditInputs, quick: Quick) -> Alarm:
    """Raise the alarm where the model after is the model before, in its weights or in its answers."""
    if fingerprint(as_module(inputs.before)) == fingerprint(as_module(inputs.after)):
        return Alarm(name="no-op", raised=True, told="No weight has changed: nothing was unlearned.")
    count, (visible, judged) = len(quick.before["forget"]), quick.moved(quick.after)
    raised, told = False, f"Answers or posteriors have changed for {visible} of the {count} forgotten samples."
    if visible == 0:
        raised, told = (
            True,
            f"Weights have changed, but for none of the {count} forgotten samples has the answer, or a posterior by "
            "more than 0.01: to an attacker nothing was unlearned.",
        )
    elif judged == 0 and any(quick.moved(answers)[1] for answers in quick.retrained):
        raised, told = (
            True,
            f"The answer and the oracle's verdict are as before for all {count} forgotten samples, and for a retrained "
            "model they are not: to this oracle nothing was unlearned.",
        )
    return Alarm(name="no-op", raised=raised, told=told)


def over_forgetting(
    inputs: AuditInputs, quick: Quick, margins: Array | None = None, retrained: Array | None = None
) -> tuple[Alarm, list[Number]]:
    """Raise the alarm where the forgotten samples lie further out than for models that never saw them.

    With four retrained models or more, the samples below the 95 % band of these models' margins are counted, beside the
    same count for each retrained model against the others. With fewer retrained models the mean margins are compared,
    or the mean confidences where the samples have no labels. Without a retrained model the alarm is undecided.

    Parameters
    ----------
    inputs : AuditInputs
        The audit's data and models.
    quick : Quick
        The posteriors of these models.
    margins : array, samples, optional
        The margins of the model after on the forgotten samples, where they are known already.
    retrained : array, models x samples, optional
        The same for retrained models of an ensemble; by default for the retrained models of `inputs`.
    """
    forget = inputs.sets.forget
    if forget.labels is not None:
        if margins is None:
            margins = inputs.margins(inputs.after, forget)
        if retrained is None and inputs.retrained:
            retrained = np.stack([inputs.margins(model, forget) for model in inputs.retrained])
        if retrained is not None and len(retrained) >= _ENOUGH:
            return _by_band(inputs, margins, retrained)
        if retrained is not None:
            usual = retrained.mean(0)
            told = f"mean margin {margins.mean():.2f}, for the retrained model {usual.mean():.2f}"
            raised = _below(margins, usual, _FAR_MARGIN, inputs.seed)
            return _by_mean(raised, "The forgotten samples lie further out than for a retrained model", told), []
    if not quick.retrained:
        told = "Not known: it takes a retrained model to tell."
        return Alarm(name="over-forgetting", raised=None, told=told), []
    ours, usual = quick.after["forget"].max(1), np.mean([one["forget"].max(1) for one in quick.retrained], axis=0)
    told = f"mean confidence {ours.mean():.3f}, for the retrained model {usual.mean():.3f}"
    raised = _below(ours, usual, _FAR_CONFIDENCE, inputs.seed)
    return _by_mean(raised, "The model is less sure of the forgotten samples than a retrained one", told), []


def like_the_ensemble(margins: Array, ensemble: Array) -> bool:
    """Return whether a model's margins lie in the band of an ensemble as often as those of its own members do."""

    def inside(own: Array, others: Array) -> float:
        below, above = outside_band(own, others)
        return 1 - float(below.mean()) - float(above.mean())

    usual = [inside(ensemble[at], np.delete(ensemble, at, axis=0)) for at in range(len(ensemble))]
    return inside(margins, ensemble) >= min(float(np.quantile(usual, 0.025)), float(np.mean(usual)) - _SLACK)


def outside_band(margins: Array, retrained: Array) -> tuple[Array, Array]:
    """Return which samples lie below, and which above, the 95 % band of the retrained models' margins.

    Parameters
    ----------
    margins : array, samples
        Of the model in question.
    retrained : array, models x samples
        Of models that never saw the samples; the one in question is not among them.

    Examples
    --------
    >>> retrained = np.array([[0.0], [2.0], [4.0]])  # mean 2, standard deviation 2: from -1.92 to 5.92
    >>> outside_band(np.array([-2.0]), retrained)
    (array([ True]), array([False]))
    """
    centre = retrained.mean(0)
    width = _WIDTH * np.maximum(retrained.std(0, ddof=1), _SIGMA)
    return margins < centre - width, margins > centre + width


def _below(ours: Array, usual: Array, far: float, seed: int) -> bool:
    """Return whether the mean of ours lies below the usual mean by more than `far`, for sure."""
    gap = bootstrap_interval(
        lambda one, two: float(np.mean(one - two)), ours, usual, paired=True, draws=1000, seed=seed
    )
    return gap is not None and gap[1] < -far


def _by_mean(raised: bool, problem: str, told: str) -> Alarm:
    text = f"{problem}: {told}." if raised else f"On the forgotten samples: {told}."
    return Alarm(name="over-forgetting", raised=raised, told=text)


def _by_band(inputs: AuditInputs, margins: Array, retrained: Array) -> tuple[Alarm, list[Number]]:
    below, above = outside_band(margins, retrained)
    others = [outside_band(retrained[at], np.delete(retrained, at, axis=0)) for at in range(len(retrained))]
    usual_below = np.array([each[0].mean() for each in others])
    usual_inside = np.array([1 - each[0].mean() - each[1].mean() for each in others])
    before = outside_band(inputs.margins(inputs.before, inputs.sets.forget), retrained)
    limit = max(0.05, float(np.quantile(usual_below, 0.975)))
    share = float(below.mean())
    number = Number(
        name="within_band",
        label="forgotten samples inside the retrained models' 95 % band",
        value=1 - share - float(above.mean()),
        direction="retrained",
        n=len(margins),
        unit="samples",
        interval=bootstrap_interval(
            lambda drawn: float(drawn.mean()), (~(below | above)).astype(float), seed=inputs.seed
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
    return Alarm(name="over-forgetting", raised=share > limit, told=told), [number]
