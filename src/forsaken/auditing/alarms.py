"""The alarms of an audit (nothing was forgotten, too little, too much), and what its verdict rests on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forsaken.auditing.inputs import AuditInputs
from forsaken.auditing.judgement import LEFT, MARGIN, Posteriors, compare, moved_away
from forsaken.auditing.quick import Quick
from forsaken.auditing.result import Alarm, Number
from forsaken.metrics import bootstrap_interval, separation
from forsaken.metrics.ulira import NEAR
from forsaken.models.logits import as_module
from forsaken.models.weights import fingerprint
from forsaken.result import Check
from forsaken.types import Array
from forsaken.verdict import LEAST_RECORDS

_WIDTH = 1.96  # standard deviations: a band of 95 %
_SIGMA = 0.1  # the least standard deviation of a sample, as in U-LiRA
_SLACK = 0.1  # by which the share of samples inside a band may differ between two models of one ensemble
_ENOUGH = 4  # retrained models for a band
_FAR_CONFIDENCE = 0.05
_FAR_AUC = 0.1
_BY_RETRAINED = ("rmia_auc", "lira_auc", "white_box_auc")  # attacks that are read beside the retrained model's value


def no_op(inputs: AuditInputs, quick: Quick) -> Alarm:
    """Raise the alarm where the model after is the model before, in its weights or in its answers."""
    if fingerprint(as_module(inputs.before)) == fingerprint(as_module(inputs.after)):
        return Alarm(name="no-op", raised=True, told="No weight has changed: nothing was unlearned.")
    count, (visible, judged) = len(quick.before["forget"]), quick.moved(quick.after)
    raised, told = False, f"Answers or posteriors have changed for {visible} of the {count} forgotten samples."
    if visible == 0:
        raised, told = (
            True,
            f"Weights have changed, but not the answers: each of the {count} forgotten samples gets the same class, "
            "and no posterior moved by more than 0.01. To an attacker nothing was unlearned.",
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
    with the allowance of the verdict (`compare`), or the mean confidences where the samples have no labels. Without a
    retrained model the alarm is undecided.

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
            before = inputs.margins(inputs.before, forget).mean()
            told = f"mean margin {margins.mean():.2f}, for the retrained model {usual.mean():.2f}"
            # The allowance of the verdict: what it takes for a retrained model's margin must raise no alarm.
            far = max(MARGIN, LEFT * abs(float(before - usual.mean())))
            raised = _below(margins, usual, far, inputs.seed)
            problem = "The forgotten samples lie further out than for a retrained model"
            return _by_mean(raised, problem, told, len(margins)), []
    if not quick.retrained:
        told = "Not known: it takes a retrained model to tell."
        return Alarm(name="over-forgetting", raised=None, told=told), []
    ours, usual = quick.after["forget"].max(1), np.mean([one["forget"].max(1) for one in quick.retrained], axis=0)
    told = f"mean confidence {ours.mean():.3f}, for the retrained model {usual.mean():.3f}"
    raised = _below(ours, usual, _FAR_CONFIDENCE, inputs.seed)
    return _by_mean(raised, "The model is less sure of the forgotten samples than a retrained one", told, len(ours)), []


def under_forgetting(checks: Sequence[Check], moved: str, records: int) -> Alarm:
    """Raise the alarm where the model still remembers: a number lies on the side of the model before, or moved away.

    Of fewer than `LEAST_RECORDS` records no number is told: a mean over a few could identify one of them.

    Parameters
    ----------
    checks : sequence of Check
        Of the audit; see `checks_of`. Without any, the alarm is undecided.
    moved : str
        That the method moved away from its own aim, as a sentence; empty where it did not.
    records : int
        How many samples were to be forgotten.
    """
    left = [check for check in checks if check.remembered]
    if left:
        first, more = left[0], f" ({len(left) - 1} more such)" if len(left) > 1 else ""
        told = (
            f": {first.after:.3g}, {first.before:.3g} before and {first.usual:.3g} retrained"
            if records >= LEAST_RECORDS
            else ""
        )
        return Alarm(name="under-forgetting", raised=True, told=f"{first.label}{told}{more}.")
    if moved:
        return Alarm(name="under-forgetting", raised=True, told=moved)
    if not checks:
        told = "Not known: it takes a retrained model to tell."
        return Alarm(name="under-forgetting", raised=None, told=told)
    return Alarm(name="under-forgetting", raised=False, told="No number lies on the side of the model before.")


def checks_of(
    inputs: AuditInputs,
    quick: Quick,
    numbers: Sequence[Number],
    margins: Array | None = None,
    retrained: Array | None = None,
) -> tuple[Check, ...]:
    """Return every number of an audit that has a yardstick beside it, the strongest attack first.

    Parameters
    ----------
    inputs, quick : AuditInputs, Quick
        The audit's data and models, and their posteriors.
    numbers : sequence of Number
        What the attacks of the profile found.
    margins, retrained : array, optional
        As in `over_forgetting`.
    """
    labels, test, forget = inputs.sets.forget.labels, inputs.sets.test, inputs.sets.forget
    found = [check for number in numbers if (check := as_check(number)) is not None]
    found += compare(
        quick.before,
        quick.after,
        quick.retrained,
        oracle=None if quick.weakness else inputs.oracle,
        forget_labels=None if labels is None else labels.numpy(),
        test_labels=None if test is None or test.labels is None else test.labels.numpy(),
    )
    if labels is not None and retrained is None and len(inputs.retrained) >= _ENOUGH:
        retrained = np.stack([inputs.margins(model, forget) for model in inputs.retrained])
    if labels is not None and retrained is not None:
        found.append(
            _above_band(inputs, inputs.margins(inputs.after, forget) if margins is None else margins, retrained)
        )
    return tuple(found)


def _above_band(inputs: AuditInputs, margins: Array, retrained: Array) -> Check:
    """Return how many forgotten samples lie above the band of the retrained models, and for how many that is usual."""
    others = [outside_band(retrained[at], np.delete(retrained, at, axis=0))[1] for at in range(len(retrained))]
    usual = np.array([above.mean() for above in others])
    before = outside_band(inputs.margins(inputs.before, inputs.sets.forget), retrained)[1]
    return Check(
        name="above_band",
        label="forgotten samples above the retrained models' 95 % band",
        before=float(before.mean()),
        after=float(outside_band(margins, retrained)[1].mean()),
        usual=float(usual.mean()),
        high=max(0.05, float(np.quantile(usual, 0.975))),
        n=len(margins),
    )


def as_check(number: Number) -> Check | None:
    """Return a number of an attack as a check; None where it has no yardstick."""
    low: float | None
    if number.name == "u_lira_auc" and number.floor is not None:
        low, high = min(number.floor[0], 0.5 - NEAR), max(number.floor[1], 0.5 + NEAR)
    elif number.name == "u_lira_worst" and number.floor is not None:
        low, high = None, number.floor[1]
    elif number.name in _BY_RETRAINED and number.retrained is not None:
        ends = number.interval or (0.0, 0.0)
        slack = max(_FAR_AUC, (ends[1] - ends[0]) / 2)
        low, high = number.retrained - slack, number.retrained + slack
    else:
        return None
    if number.value is None:
        return None
    return Check(
        name=number.name,
        label=number.label,
        before=number.before,
        after=number.value,
        usual=number.retrained if number.retrained is not None else 0.5,
        low=low,
        high=high,
        n=number.n,
    )


def aim_left(quick: Quick) -> str:
    """Return a sentence where the confidence tells the forgotten samples from others like them better than before."""
    if "nonmembers" not in quick.before:
        return ""

    def area(answers: Posteriors) -> float:
        return separation(answers["forget"].max(1), answers["nonmembers"].max(1))

    before, after = area(quick.before), area(quick.after)
    retrained = float(np.mean([area(one) for one in quick.retrained])) if quick.retrained else None
    sizes = len(quick.before["forget"]), len(quick.before["nonmembers"])
    return told_if_moved(before, after, retrained, *sizes)


def told_if_moved(before: float, after: float, retrained: float | None, ours: int, others: int) -> str:
    """Return a sentence where an AUC moved away from its aim; see `moved_away`."""
    if not moved_away(before, after, retrained, ours, others):
        return ""
    aim = "0.50, the method's own aim" if retrained is None else f"{retrained:.2f}, a retrained model's"
    told = f": AUC {after:.2f}, {before:.2f} before; the aim is {aim}" if ours >= LEAST_RECORDS else ""
    return f"By confidence, the forgotten samples are easier to tell from samples like them than before{told}."


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


def _by_mean(raised: bool, problem: str, told: str, records: int) -> Alarm:
    if records < LEAST_RECORDS:  # a mean over a few records could identify one of them
        text = f"{problem}, on average." if raised else "Not by the average over the forgotten samples."
    else:
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
