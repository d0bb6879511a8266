"""The quick profile: the oracle's rates, accuracy and confidence, each with an interval over samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from forsaken.auditing.inputs import AuditInputs, Caveat
from forsaken.auditing.judgement import Posteriors, correct, members, rates
from forsaken.auditing.result import Number
from forsaken.data.samples import Samples, check_labels
from forsaken.errors import OracleError, UndefinedMetricError
from forsaken.metrics import bootstrap_interval, catastrophic_forgetting_rate, forgetting_rate
from forsaken.models.logits import posteriors
from forsaken.sets import ROLES
from forsaken.types import Array

_ROLES = ("forget", "kept", "test", "nonmembers")
_VISIBLE = 0.01  # a change of a posterior that an attacker could see


class Quick:
    """The posteriors of the model before, the model after and retrained models, and the numbers made of them.

    Attributes
    ----------
    before, after : mapping
        Posteriors by role.
    retrained : list of mappings
        The same for each retrained model.
    weakness : str or None
        Why the oracle cannot tell members on the model before, where its interval allows chance.
    """

    def __init__(self, inputs: AuditInputs) -> None:
        self.inputs = inputs
        self.before, self.after = self._posteriors(inputs.before), self._posteriors(inputs.after)
        self.retrained = [self._posteriors(model) for model in inputs.retrained]
        widths = {answers["forget"].shape[1] for answers in (self.before, self.after, *self.retrained)}
        if len(widths) > 1 or (inputs.oracle is not None and widths != {inputs.oracle.classes}):
            oracle = "" if inputs.oracle is None else f", and the oracle's shadow had {inputs.oracle.classes}"
            raise OracleError(
                f"the models have {sorted(widths)} classes{oracle}; all of them must be models of one task",
                field="oracle" if len(widths) == 1 else "",
            )
        self._check_labels(widths.pop())
        inside = [self.before[role] for role in ("kept", "forget") if role in self.before]
        outside = [self.before[role] for role in ("test", "nonmembers") if role in self.before]
        self._known = (np.concatenate(inside), np.concatenate(outside)) if outside else None
        self.weakness = self._weakness()

    def caveats(self, *, ensemble: bool) -> list[Caveat]:
        """Return what makes the numbers weaker than they look; `ensemble`: the audit trained retrained models."""
        found = []
        if self.weakness is not None:
            found.append(Caveat(self.weakness))
        if self.inputs.oracle is None:
            remedy = "give oracle=ShadowOracle.fit(...)"
            found.append(Caveat("there is no oracle, so FR and CFR are not known", "oracle", remedy))
        elif self._known is None:
            found.append(
                Caveat(
                    "the quality of the oracle is not known, since there are neither test samples nor non-members to "
                    "evaluate it on",
                    "test",
                    "give test= or nonmembers=",
                )
            )
        if not self.retrained and not ensemble:
            found.append(
                Caveat(
                    "there is no retrained model to compare the numbers with, so forgetting too much looks like "
                    "forgetting enough",
                    "retrained",
                    "give retrained=, or use the profile full, which trains some",
                )
            )
        return found

    def numbers(self) -> list[Number]:
        """Return FR, CFR, the oracle's balanced accuracy, the accuracies and the confidence."""
        sets, oracle, found = self.inputs.sets, self.inputs.oracle, []
        if oracle is not None:
            found.append(self._rate("fr", "forgetting rate (FR)", "forget", forgetting_rate, "retrained"))
            if "kept" in self.before:
                label = "collateral on kept training samples (CFR)"
                found.append(self._rate("cfr", label, "kept", catastrophic_forgetting_rate, "lower"))
            if self._known is not None:
                verdicts = [members(oracle, side) for side in self._known]
                found.append(
                    Number(
                        name="oracle_balanced_accuracy",
                        label="the oracle's balanced accuracy on the model before",
                        value=oracle.evaluate_posteriors(*self._known).balanced_accuracy,
                        direction="higher",
                        n=sum(map(len, verdicts)),
                        unit="samples",
                        interval=self._interval(_balanced_accuracy, *verdicts),
                    )
                )
        if sets.test is not None and sets.test.labels is not None:
            truth = sets.test.labels.numpy()
            found.append(self._mean("accuracy", "test accuracy", "test", lambda rows: correct(rows, truth)))
        label = "mean confidence on the forgotten samples"
        found.append(self._mean("forget_confidence", label, "forget", lambda rows: rows.max(1)))
        if sets.forget.labels is not None:
            learnt = sets.forget.labels.numpy()
            label = "share of forgotten samples that still get the learnt label"
            found.append(self._mean("forget_accuracy", label, "forget", lambda rows: correct(rows, learnt)))
        return found + self._neighbours()

    def _neighbours(self) -> list[Number]:
        if self.inputs.neighbours is None:
            return []
        label = "mean confidence on neighbours of the forgotten samples"
        found = [self._mean("neighbour_confidence", label, "neighbours", lambda rows: rows.max(1))]
        if self.inputs.neighbours.labels is not None:
            learnt = self.inputs.neighbours.labels.numpy()
            label = "neighbours of the forgotten samples answered with the label that was learnt"
            found.append(self._mean("neighbour_accuracy", label, "neighbours", lambda rows: correct(rows, learnt)))
        return found

    def moved(self, answers: Posteriors) -> tuple[int, int]:
        """Return for how many forgotten samples a model differs from the model before: visibly, and to the oracle.

        A difference is visible if the predicted class changed, or a posterior moved by more than 0.01. Without an
        oracle that can tell members, both counts are of visible differences.
        """
        old, new, oracle = self.before["forget"], answers["forget"], self.inputs.oracle
        other = old.argmax(1) != new.argmax(1)
        visible = other | (np.abs(old - new).max(1) > _VISIBLE)
        judged = visible
        if oracle is not None and self.weakness is None:
            judged = other | (members(oracle, old) != members(oracle, new))
        return int(visible.sum()), int(judged.sum())

    def _posteriors(self, model: Any) -> Posteriors:
        parts = {role: part for role in _ROLES if (part := self.inputs.sets.get(role)) is not None}
        if self.inputs.neighbours is not None:
            parts["neighbours"] = self.inputs.neighbours
        return {
            role: posteriors(model, Samples(part.inputs), forward=self.inputs.forward) for role, part in parts.items()
        }

    def _check_labels(self, classes: int) -> None:
        for role in ROLES:
            part = self.inputs.sets.get(role)
            if part is not None and role != "reference":
                check_labels(part, role, classes)

    def _weakness(self) -> str | None:
        """Return why the oracle cannot tell members: of the task, or among samples like the forgotten ones."""
        oracle = self.inputs.oracle
        if oracle is None or self._known is None:
            return None
        pairs = [self._known]
        if "nonmembers" in self.before:
            pairs.insert(0, (self.before["forget"], self.before["nonmembers"]))
        for inside, outside in pairs:
            verdicts = members(oracle, inside), members(oracle, outside)
            interval = self._interval(_balanced_accuracy, *verdicts)
            if interval is not None and interval[0] <= 0.5:
                return (
                    "the oracle is no better than chance on the model before (balanced accuracy "
                    f"{_balanced_accuracy(*verdicts):.3f}, interval {interval[0]:.3f} to {interval[1]:.3f}), so "
                    "its rates mean nothing and are left out; train the shadow as the model was trained, on data of "
                    "the same kind, or use the profile standard or full"
                )
        return None

    def _rate(
        self,
        name: Literal["fr", "cfr"],
        label: str,
        role: str,
        rate: Callable[[Array, Array], float],
        direction: Literal["retrained", "lower"],
    ) -> Number:
        oracle = self.inputs.oracle
        told: dict[str, Any] = {"name": name, "label": label, "direction": direction, "unit": "samples"}
        told["n"] = len(self.before[role])
        if oracle is None or self.weakness is not None:
            return Number(**told, value=None, note="the oracle is no better than chance")
        was, now = members(oracle, self.before[role]), members(oracle, self.after[role])
        try:
            value = rate(was, now)
        except UndefinedMetricError:
            return Number(**told, value=None, note="undefined: by this oracle nothing was memorised")
        verdicts = [rates(oracle, self.before, answers, None) for answers in self.retrained]
        return Number(
            **told,
            value=value,
            interval=self._interval(rate, was, now, paired=True),
            retrained=_mean([found for one in verdicts if (found := getattr(one, name)) is not None]),
            before=0.0,
        )

    def _mean(self, name: str, label: str, role: str, quantity: Callable[[Array], Array]) -> Number:
        values = quantity(self.after[role]).astype(float)
        return Number(
            name=name,
            label=label,
            value=float(values.mean()),
            direction="retrained",
            n=len(values),
            unit="samples",
            interval=self._interval(lambda drawn: float(drawn.mean()), values),
            retrained=_mean([float(np.mean(quantity(answers[role]))) for answers in self.retrained]),
            before=float(np.mean(quantity(self.before[role]))),
        )

    def _interval(
        self, statistic: Callable[..., float], *groups: Array, paired: bool = False
    ) -> tuple[float, float] | None:
        return bootstrap_interval(statistic, *groups, paired=paired, draws=1000, seed=self.inputs.seed)


def _balanced_accuracy(inside: Array, outside: Array) -> float:
    return float((inside.mean() + 1 - outside.mean()) / 2)


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
