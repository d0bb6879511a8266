"""The quick profile: one oracle's rates, the accuracy and the confidence, each with an interval."""

from __future__ import annotations

from typing import Any

import numpy as np

from forsaken.auditing.case import Case, labels_of
from forsaken.auditing.result import Number
from forsaken.auditing.verdict import View, judge, members
from forsaken.data.samples import Samples
from forsaken.errors import InputError, OracleError, UndefinedMetricError
from forsaken.metrics import bootstrap_interval, catastrophic_forgetting_rate, forgetting_rate
from forsaken.models.logits import posteriors
from forsaken.oracles.base import OracleReport
from forsaken.sets import ROLES
from forsaken.types import Array

_DRAWS = 1000
_SEEN = 0.01  # a change of a posterior that somebody could see


class Quick:
    """What the posteriors of the model before, after and of retrained ones say."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.before, self.after = self._seen(case.before), self._seen(case.after)
        self.retrained = [self._seen(model) for model in case.retrained]
        widths = {view["forget"].shape[1] for view in (self.before, self.after, *self.retrained)}
        if len(widths) > 1 or (case.oracle is not None and widths != {case.oracle.classes}):
            oracle = "" if case.oracle is None else f", and the oracle's shadow had {case.oracle.classes}"
            raise OracleError(
                f"the models have {sorted(widths)} classes{oracle}; all of them must be models of one task"
            )
        test = case.sets.test
        self.truth = None if test is None or test.labels is None else labels_of(test)
        self._check_labels(widths.pop())
        self.weak = self._weakness()

    def warnings(self, *, ensemble: bool = False) -> list[str]:
        """Return what makes the numbers weaker than they look; `ensemble` where retrained models were trained."""
        found = [] if self.weak is None else [self.weak]
        if self.case.oracle is not None and self._known() is None:
            found.append(
                "nobody knows how good the oracle is, since there are neither test samples nor non-members to try it "
                "on; give test= or nonmembers="
            )
        if self.case.oracle is None:
            found.append("there is no oracle, so that FR and CFR are not known; give oracle=ShadowOracle.fit(...)")
        if not self.retrained and not ensemble:
            found.append(
                "no retrained model stands beside the numbers, so that too much forgetting looks like enough; give "
                "retrained=, or use the profile full, which trains some"
            )
        return found

    def numbers(self) -> list[Number]:
        """Return FR, CFR, the accuracies and the confidence."""
        forget, kept = len(self.before["forget"]), len(self.before.get("kept", ()))
        found = []
        if self.case.oracle is not None:
            found.append(self._rate("fr", "forgetting rate (FR)", "forget", forgetting_rate, "retrained", forget))
            if kept:
                label = "collateral on kept training samples (CFR)"
                found.append(self._rate("cfr", label, "kept", catastrophic_forgetting_rate, "lower", kept))
            report = self.oracle_report()
            if report is not None:
                found.append(self._oracle(report))
        if self.truth is not None:
            found.append(self._mean("accuracy", "test accuracy", "test", "retrained", self._right))
        label = "mean confidence on the forgotten samples"
        found.append(self._mean("forget_confidence", label, "forget", "retrained", lambda rows: rows.max(1)))
        labels = self.case.sets.forget.labels
        if labels is not None:
            truth = labels.numpy()
            label = "forgotten samples still answered with the label that was learnt"
            found.append(
                self._mean("forget_accuracy", label, "forget", "retrained", lambda rows: rows.argmax(1) == truth)
            )
        return found

    def oracle_report(self) -> OracleReport | None:
        """Judge the oracle on the model before, where the truth is known."""
        sides = self._known()
        return None if sides is None or self.case.oracle is None else self.case.oracle.evaluate_posteriors(*sides)

    def moved(self, view: View) -> tuple[int, int]:
        """Return for how many forgotten samples a model differs from the one before: visibly, and to the oracle.

        Visible is another answer, or a posterior that moved by more than 0.01. Without an oracle both are the same.
        """
        old, new = self.before["forget"], view["forget"]
        other = old.argmax(1) != new.argmax(1)
        visible = other | (np.abs(old - new).max(1) > _SEEN)
        if self.case.oracle is None or self.weak is not None:
            return int(visible.sum()), int(visible.sum())
        judged = other | (members(self.case.oracle, old) != members(self.case.oracle, new))
        return int(visible.sum()), int(judged.sum())

    def _seen(self, model: Any) -> View:
        sets = self.case.sets
        parts = {"forget": sets.forget, "kept": sets.kept, "test": sets.test, "nonmembers": sets.nonmembers}
        return {
            name: posteriors(model, Samples(part.inputs), forward=self.case.forward)
            for name, part in parts.items()
            if part is not None
        }

    def _known(self) -> tuple[Array, Array] | None:
        """Return the posteriors of known members and of known non-members under the model before."""
        inside = [self.before[name] for name in ("kept", "forget") if name in self.before]
        outside = [self.before[name] for name in ("test", "nonmembers") if name in self.before]
        return (np.concatenate(inside), np.concatenate(outside)) if outside else None

    def _check_labels(self, classes: int) -> None:
        for name in ROLES:
            part: Samples | None = getattr(self.case.sets, name)
            if part is None or part.labels is None or name == "reference":
                continue
            low, high = int(part.labels.min()), int(part.labels.max())
            if low < 0 or high >= classes:
                raise InputError(
                    f"the labels of {name} reach from {low} to {high}, but the model has {classes} classes; number "
                    f"them from 0 to {classes - 1}"
                )

    def _weakness(self) -> str | None:
        """Say so where the oracle cannot tell members: at all, or forgotten samples from others of their kind."""
        sides, oracle = self._known(), self.case.oracle
        if oracle is None or sides is None:
            return None
        if "nonmembers" in self.before:
            alike = self._chance(self.before["forget"], self.before["nonmembers"])
            if alike is not None:
                return alike
        return self._chance(*sides)

    def _chance(self, inside: Array, outside: Array) -> str | None:
        oracle = self.case.oracle
        if oracle is None:
            return None
        verdicts = [members(oracle, side) for side in (inside, outside)]
        interval = bootstrap_interval(_balanced, *verdicts, draws=_DRAWS, seed=self.case.seed)
        if interval is None or interval[0] > 0.5:
            return None
        return (
            f"the oracle is no better than chance on the model before (balanced accuracy {_balanced(*verdicts):.3f}, "
            f"interval {interval[0]:.3f} to {interval[1]:.3f}), so that its rates mean nothing and are left out; train "
            "the shadow as the model was trained, on data of the same kind, or use the profile standard or full"
        )

    def _oracle(self, report: OracleReport) -> Number:
        sides = self._known()
        verdicts = (
            [] if sides is None or self.case.oracle is None else [members(self.case.oracle, one) for one in sides]
        )
        return Number(
            "oracle_balanced_accuracy",
            "the oracle's balanced accuracy on the model before",
            report.balanced_accuracy,
            "higher",
            n=report.members + report.nonmembers,
            unit="samples",
            interval=bootstrap_interval(_balanced, *verdicts, draws=_DRAWS, seed=self.case.seed),
        )

    def _rate(self, name: str, label: str, part: str, rate: Any, direction: Any, n: int) -> Number:
        oracle = self.case.oracle
        if oracle is None or self.weak is not None:
            return Number(name, label, None, direction, n, "samples", note="the oracle is no better than chance")
        was, now = (members(oracle, view[part]) for view in (self.before, self.after))
        try:
            value = rate(was, now)
        except UndefinedMetricError:
            note = "undefined: by this oracle nothing was memorised"
            return Number(name, label, None, direction, n, "samples", note=note)
        usual = [judge(oracle, self.before, view, None) for view in self.retrained]
        beside = [found for one in usual if (found := getattr(one, name)) is not None]
        return Number(
            name,
            label,
            value,
            direction,
            n,
            "samples",
            interval=bootstrap_interval(rate, was, now, paired=True, draws=_DRAWS, seed=self.case.seed),
            retrained=float(np.mean(beside)) if beside else None,
            before=0.0,
        )

    def _mean(self, name: str, label: str, part: str, direction: Any, quantity: Any) -> Number:
        values = quantity(self.after[part]).astype(float)
        usual = [float(np.mean(quantity(view[part]))) for view in self.retrained]
        return Number(
            name,
            label,
            float(values.mean()),
            direction,
            len(values),
            "samples",
            interval=bootstrap_interval(lambda drawn: float(drawn.mean()), values, draws=_DRAWS, seed=self.case.seed),
            retrained=float(np.mean(usual)) if usual else None,
            before=float(np.mean(quantity(self.before[part]))),
        )

    def _right(self, rows: Array) -> Array:
        return np.asarray(rows.argmax(1) == self.truth)


def _balanced(inside: Array, outside: Array) -> float:
    return float((inside.mean() + 1 - outside.mean()) / 2)
