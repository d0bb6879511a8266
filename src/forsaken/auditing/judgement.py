"""The numbers that a model is judged by after it forgot: FR, CFR, accuracy, confidence, separation.

The demonstration, the jobs and the quick audit all compute them here. The inputs are posteriors, not models: each model
is evaluated once on each set, and every number is a function of those arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

import numpy as np

from forsaken.errors import UndefinedMetricError
from forsaken.metrics import catastrophic_forgetting_rate, forgetting_rate, margins, separation
from forsaken.oracles.shadow import ShadowOracle
from forsaken.result import BeforeAfter, ByClass, Check, Count, Part, Rate, Retrained, Separation, Share
from forsaken.types import Array
from forsaken.verdict import ACCURACY_LOSS

_WIDTH = 1.96  # standard errors
_SHARE = 0.1  # by which shares and AUCs of two retrained models may differ
MARGIN = 1.0  # the same for a mean margin, in logits
LEFT = 0.2  # of the way from the yardstick to the model before, for a mean margin: models of few data are less sure
_CONFIDENCE = 0.05
_LEAST = 1e-300  # posterior, of which the logarithm is taken

Posteriors: TypeAlias = Mapping[str, Array]
"""What one model answers: by role ("forget", and "kept", "test", "reference" where given), samples x classes."""


@dataclass(frozen=True, slots=True)
class Rates:
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
    found = {name: rates(oracle, before, answers, test_labels) for name, answers in models.items()}
    usual = found.get("retrained")

    def each(quantity: Callable[[Posteriors], float]) -> BeforeAfter:
        return BeforeAfter(**{name: quantity(answers) for name, answers in models.items()})

    def members_before(role: str) -> int | None:
        return None if oracle is None or role not in before else int(members(oracle, before[role]).sum())

    roles: tuple[Literal["reference", "test"], ...] = ("reference", "test")
    against = next((role for role in roles if role in before), None)
    return Judgement(
        fr=found["after"].fr,
        cfr=found["after"].cfr,
        accuracy_before=found["before"].accuracy,
        accuracy_after=found["after"].accuracy,
        forget_confidence=BeforeAfter(**{name: one.confidence for name, one in found.items()}),
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


def rates(oracle: ShadowOracle | None, before: Posteriors, answers: Posteriors, test_labels: Array | None) -> Rates:
    """Return the numbers of the one model that gave `answers`; FR and CFR compare it with the model before."""
    return Rates(
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


def compare(
    before: Posteriors,
    after: Posteriors,
    usual: Sequence[Posteriors],
    *,
    oracle: ShadowOracle | None = None,
    forget_labels: Array | None = None,
    test_labels: Array | None = None,
    spread: float | None = None,
) -> tuple[Check, ...]:
    """Return the numbers of a model before and after beside those of models that never saw the samples.

    A number counts as equal to theirs where it differs by no more than two such models may, than chance allows (1.96
    standard errors over the samples), or than theirs differ from each other (two standard deviations).

    Parameters
    ----------
    before, after : mapping of str to array (samples x classes)
        The posteriors of both models by role.
    usual : sequence of mappings
        The same for each model that never saw the samples; roles may be missing. Without one there are no checks.
    oracle : ShadowOracle, optional
        For the forgetting rate.
    forget_labels, test_labels : int array, optional
        The labels that were learnt for the forgotten samples, and the true ones of the test samples.
    spread : float, optional
        How far models that never saw a sample differ on it, relative to the size of their logits (`References.spread`),
        where `usual` is what a table of references holds.
    """
    found: list[Check] = []

    def mean(
        name: str, label: str, role: str, quantity: Callable[[Array], Array], base: float, left: float = 0
    ) -> None:
        theirs = np.stack([quantity(one[role]) for one in usual if role in one]).astype(float)
        old, new = (quantity(one[role]).astype(float) for one in (before, after))
        centre, count = float(theirs.mean()), len(new)
        chance = _WIDTH * float(theirs.mean(0).std()) / count**0.5
        between = 2 * float(theirs.mean(1).std(ddof=1)) if len(theirs) > 1 else 0.0
        slack = max(base, chance, between, left * abs(float(old.mean()) - centre))
        damage = role == "test"
        found.append(
            Check(
                name=name,
                label=label,
                before=float(old.mean()),
                after=float(new.mean()),
                usual=centre,
                # A model may lose as much as retraining does, and its bound is not lower for a retrained one that won.
                low=min(centre, float(old.mean())) - slack if damage else centre - slack,
                high=None if damage else centre + slack,
                n=count,
                damage=damage,
            )
        )

    if not usual:
        return ()
    if forget_labels is not None:
        learnt = forget_labels
        mean(
            "learnt_label",
            "share of forgotten samples that still get the learnt label",
            "forget",
            lambda rows: correct(rows, learnt),
            _SHARE,
        )
        mean(
            "margin",
            "mean margin of the learnt label",
            "forget",
            lambda rows: margins(np.log(np.maximum(rows, _LEAST)), learnt),
            MARGIN,
            LEFT,
        )
    else:
        label = "mean confidence on the forgotten samples"
        mean("confidence", label, "forget", lambda rows: rows.max(1), _CONFIDENCE)
    if spread is not None:
        found.append(_distance(before["forget"], after["forget"], usual[0]["forget"], spread))
    for role in ("reference", "nonmembers", "test"):
        if role in before and all(role in one for one in usual):
            found.append(_told_apart(before, after, usual, role))
            break
    if oracle is not None and all("forget" in one for one in usual) and spread is None:
        found += _forgetting_rate(oracle, before, after, usual)
    if test_labels is not None and all("test" in one for one in usual):
        truth = test_labels
        mean("accuracy", "test accuracy", "test", lambda rows: correct(rows, truth), ACCURACY_LOSS)
    return tuple(found)


def chance_of_auc(ours: int, others: int) -> float:
    """Return how far the AUC of two equally distributed samples is from 0.5 by chance: 1.96 standard errors.

    >>> round(chance_of_auc(100, 100), 3)
    0.08
    """
    return float(_WIDTH * ((ours + others + 1) / (12 * ours * others)) ** 0.5)


def moved_away(before: float, after: float, retrained: float | None, ours: int, others: int) -> bool:
    """Return whether an AUC of forgotten samples against samples like them, never trained on, moved away from its aim.

    The aim is the retrained model's AUC, and only where there is none the method's own, which is 0.5.

    >>> moved_away(0.559, 0.256, None, 100, 300), moved_away(0.559, 0.45, None, 100, 300)
    (True, False)
    """
    aim = 0.5 if retrained is None else retrained
    return abs(after - aim) > abs(before - aim) + max(_SHARE, chance_of_auc(ours, others))


def _told_apart(before: Posteriors, after: Posteriors, usual: Sequence[Posteriors], role: str) -> Check:
    def area(answers: Posteriors) -> float:
        return separation(answers["forget"].max(1), answers[role].max(1))

    theirs = np.array([area(one) for one in usual])
    between = 2 * float(theirs.std(ddof=1)) if len(theirs) > 1 else 0.0
    chance = 2**0.5 * chance_of_auc(len(after["forget"]), len(after[role]))  # of both values
    slack = max(_SHARE, between, chance)
    return Check(
        name="confidence_auc",
        label="AUC of telling the forgotten samples from unseen ones by confidence",
        before=area(before),
        after=area(after),
        usual=float(theirs.mean()),
        low=float(theirs.mean()) - slack,
        high=float(theirs.mean()) + slack,
        n=len(after["forget"]) + len(after[role]),
    )


def _forgetting_rate(
    oracle: ShadowOracle, before: Posteriors, after: Posteriors, usual: Sequence[Posteriors]
) -> list[Check]:
    theirs = [_rate(forgetting_rate, oracle, before, one, "forget") for one in usual]
    ours, known = _rate(forgetting_rate, oracle, before, after, "forget"), [one for one in theirs if one is not None]
    count = int(members(oracle, before["forget"]).sum())
    if ours is None or not known:
        return []
    centre = float(np.mean(known))
    between = 2 * float(np.std(known, ddof=1)) if len(known) > 1 else 0.0
    slack = max(_SHARE, between, _WIDTH * (max(0.0, centre * (1 - centre)) / count) ** 0.5)
    return [
        Check(
            name="fr",
            label="forgetting rate (FR)",
            before=0.0,
            after=ours,
            usual=centre,
            low=centre - slack,
            high=centre + slack,
            n=count,
        )
    ]


def _distance(before: Array, after: Array, usual: Array, spread: float) -> Check:
    """Return the root mean square distance of centred logits, in units of the logits' size."""

    def centred(rows: Array) -> Array:
        logits = np.log(np.maximum(rows, _LEAST))
        return np.asarray(logits - logits.mean(1, keepdims=True))

    target = centred(usual)
    size = max(float(np.sqrt(np.mean(target**2))), _LEAST)
    old, new = (float(np.sqrt(np.mean((centred(rows) - target) ** 2))) / size for rows in (before, after))
    return Check(
        name="distance",
        label="distance of the answers from those of models that never saw the samples",
        before=old,
        after=new,
        usual=spread,
        high=spread,
        n=len(after),
    )


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
