"""The numbers that a model is judged by after it forgot: FR, CFR, accuracy, confidence, separation.

The demonstration, the jobs and the quick audit all compute them here. The inputs are posteriors, not models: each model
is evaluated once on each set, and every number is a function of those arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

import numpy as np

from forsaken.errors import UndefinedMetricError
from forsaken.metrics import catastrophic_forgetting_rate, forgetting_rate, separation
from forsaken.oracles.shadow import ShadowOracle
from forsaken.result import BeforeAfter, ByClass, Count, Part, Rate, Retrained, Separation, Share
from forsaken.types import Array

Posteriors: TypeAlias = Mapping[str, Array]
"""What one model answers: by role ("forget", and "kept", "test", "reference" where given), samples x classes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The numbers of one model. They are read beside those of a retrained model.

    Attributes
    ----------
    fr : float or None
        Forgetting rate on the forget set. None without an oracle, and where the oracle finds no member before.
    cfr : float or None
        Catastrophic forgetting rate on kept training samples that the method did not use; lower is better.
    accuracy : float or None
        On the test set; None without test labels.
    confidence : float
        Mean largest posterior of the forget samples.
    """

    fr: float | None
    cfr: float | None
    accuracy: float | None
    confidence: float

    def to_dict(self) -> dict[str, float | None]:
        """Return the numbers by name."""
        return asdict(self)


class Judgement(Part):
    """All numbers of a run: the model before, the model after, and a retrained model where there is one.

    The fields have the names and types of `forsaken.result.Result` (the two counts: of `forsaken.result.Counts`), so a
    result takes them over as they are. What cannot be known is None.
    """

    fr: Rate | None
    cfr: Rate | None
    accuracy_before: Share | None
    accuracy_after: Share | None
    forget_confidence: BeforeAfter
    forget_accuracy: BeforeAfter | None
    separation: Separation | None
    retrain: Retrained | None
    by_class: ByClass | None
    memorised_before: Count | None
    kept_members_before: Count | None


def judge(
    before: Posteriors,
    after: Posteriors,
    retrained: Posteriors | None = None,
    *,
    oracle: ShadowOracle | None = None,
    test_labels: Array | None = None,
    forget_labels: Array | None = None,
    retrain_seconds: float | None = None,
) -> Judgement:
    """Judge a model that forgot by its posteriors, beside the model before and a retrained model.

    Parameters
    ----------
    before, after, retrained : mapping of str to array (samples x classes)
        The posteriors of each model by role. "forget" is required; "kept" gives CFR, "test" the accuracies, and
        "reference" (or else "test") the samples that the forgotten ones are compared with in `separation`.
    oracle : ShadowOracle, optional
        Gives FR, CFR and the counts of members.
    test_labels, forget_labels : int array, optional
        The true classes of the test samples, and the labels that were learnt for the forgotten samples.
    retrain_seconds : float, optional
        How long the retraining took; part of `Judgement.retrain`.
    """
    models = {"before": before, "after": after} | ({} if retrained is None else {"retrained": retrained})
    verdicts = {name: verdict(oracle, before, answers, test_labels) for name, answers in models.items()}
    usual = verdicts.get("retrained")

    def each(quantity: Callable[[Posteriors], float]) -> BeforeAfter:
        return BeforeAfter(**{name: quantity(answers) for name, answers in models.items()})

    def members_before(role: str) -> int | None:
        return None if oracle is None or role not in before else int(members(oracle, before[role]).sum())

    roles: tuple[Literal["reference", "test"], ...] = ("reference", "test")
    against = next((role for role in roles if role in before), None)
    return Judgement(
        fr=verdicts["after"].fr,
        cfr=verdicts["after"].cfr,
        accuracy_before=verdicts["before"].accuracy,
        accuracy_after=verdicts["after"].accuracy,
        forget_confidence=BeforeAfter(**{name: found.confidence for name, found in verdicts.items()}),
        forget_accuracy=None
        if forget_labels is None
        else each(lambda answers: float(np.mean(correct(answers["forget"], forget_labels)))),
        # Samples like the forgotten ones come first: others would be told apart by what they are.
        separation=None
        if against is None
        else Separation(
            against=against,
            n=len(before[against]),
            **dict(each(lambda answers: separation(answers["forget"].max(1), answers[against].max(1)))),
            spread=each(lambda answers: float(answers["forget"].max(1).std())),
            spread_of_others=float(after[against].max(1).std()),
        ),
        retrain=None
        if usual is None
        else Retrained(fr=usual.fr, cfr=usual.cfr, accuracy=usual.accuracy, seconds=retrain_seconds),
        by_class=None if test_labels is None else accuracy_by_class(test_labels, before["test"], after["test"]),
        memorised_before=members_before("forget"),
        kept_members_before=members_before("kept"),
    )


def verdict(oracle: ShadowOracle | None, before: Posteriors, answers: Posteriors, test_labels: Array | None) -> Verdict:
    """Return the numbers of the one model that gave `answers`; FR and CFR compare it with the model before."""
    return Verdict(
        fr=_rate(forgetting_rate, oracle, before, answers, "forget"),
        cfr=_rate(catastrophic_forgetting_rate, oracle, before, answers, "kept"),
        accuracy=None if test_labels is None else float(np.mean(correct(answers["test"], test_labels))),
        confidence=float(answers["forget"].max(1).mean()),
    )


def members(oracle: ShadowOracle, posterior: Array) -> Array:
    """Return the oracle's verdicts on rows of posteriors; true = member."""
    return oracle.score_posteriors(posterior) > oracle.threshold


def correct(posterior: Array, labels: Array) -> Array:
    """Return for each row whether its largest posterior is that of the label.

    >>> correct(np.array([[0.9, 0.1], [0.8, 0.2]]), np.array([0, 1]))
    array([ True, False])
    """
    return np.asarray(posterior.argmax(1) == labels)


def accuracy_by_class(labels: Array, before: Array, after: Array) -> ByClass | None:
    """Return the accuracy of each class before and after; None where there is no sample.

    Parameters
    ----------
    labels : int array, shape (n,)
        True classes.
    before, after : array, shape (n, classes)
        Posteriors (or logits) of the same samples. A class without a sample has the accuracy None.

    Examples
    --------
    >>> accuracy_by_class(np.array([0, 0]), np.array([[0.9, 0.1], [0.2, 0.8]]), np.eye(2)[[0, 0]]).before
    [0.5, None]
    """
    if not len(labels):
        return None
    rows = [labels == number for number in range(before.shape[1])]

    def shares(posterior: Array) -> list[float | None]:
        right = correct(posterior, labels)
        return [float(right[own].mean()) if own.any() else None for own in rows]

    return ByClass(support=[int(own.sum()) for own in rows], before=shares(before), after=shares(after))


def _rate(
    rate: Callable[[Array, Array], float],
    oracle: ShadowOracle | None,
    before: Posteriors,
    answers: Posteriors,
    role: str,
) -> float | None:
    if oracle is None or role not in answers:
        return None
    try:
        return rate(members(oracle, before[role]), members(oracle, answers[role]))
    except UndefinedMetricError:  # the oracle found no member before: there is no rate, and a 0 would mean something
        return None
