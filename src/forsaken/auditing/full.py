"""The full profile: against retrained models, sample by sample (U-LiRA, KLoM, the NeurIPS-2023 score)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from forsaken.auditing.curves import caught, curve
from forsaken.auditing.matrices import BEFORE, PARTS, RETRAINED, Matrices
from forsaken.auditing.result import Curve, Divergence, Number, Spread
from forsaken.errors import InputError
from forsaken.metrics import (
    FEW,
    Floor,
    ULira,
    bootstrap_interval,
    forgetting_epsilon,
    forgetting_quality,
    klom,
    klom_summary,
    separation,
    u_lira,
    u_lira_floor,
)

Array = np.ndarray[Any, Any]

LEAST = 4  # originals, below which no number would mean anything
_SHOWN = 6  # of the worst samples
_DRAWS = 400
_ALL = slice(None)


def _area(unlearned: Array, retrained: Array) -> float:
    return separation(unlearned, retrained)


def check_count(originals: int) -> None:
    """Refuse so few originals that no number would mean anything."""
    if originals < LEAST:
        raise InputError(
            f"{originals} originals are too few to tell anything; train at least {LEAST}, and {FEW} for a number that "
            "others can rely on (models=)"
        )


class Full:
    """What the matrices of an ensemble say of one method.

    The retrained models are twice as many as the originals: one half stands against the unlearned models, the other
    half against the first, which is the floor at the same N.

    Parameters
    ----------
    matrices : Matrices
        Of the originals, the method's and the retrained models.
    method : str
        Whose unlearned models are judged.
    seed : int
        For halvings and intervals.
    """

    def __init__(self, matrices: Matrices, method: str, *, seed: int = 0) -> None:
        for who in (BEFORE, RETRAINED, method):
            if who not in matrices.margins:
                raise InputError(
                    f"the matrices hold no {who!r} models, only {', '.join(matrices.margins)}; measure them"
                )
        self.matrices, self.method, self.seed = matrices, method, seed
        self.count = len(matrices.margins[method]["forget"])
        retrained = len(matrices.margins[RETRAINED]["forget"])
        check_count(self.count)
        if retrained < 2 * self.count:
            raise InputError(
                f"there are {retrained} retrained models for {self.count} originals; the floor needs twice as many, "
                f"{2 * self.count}"
            )
        self.attack = {part: self._attacked(method, part) for part in PARTS}
        self.idle = {part: self._attacked(BEFORE, part) for part in PARTS}
        self.floors = {part: u_lira_floor(self._retrained(part), seed=seed) for part in PARTS}

    @property
    def floor(self) -> Floor:
        """Where the AUC of retrained against retrained models lies, on the forget set."""
        return self.floors["forget"]

    def warnings(self) -> list[str]:
        """Return what makes the numbers weaker than they look."""
        if self.count >= FEW:
            return []
        return [
            f"{self.count} originals: U-LiRA and KLoM want at least {FEW}; with fewer the attack is weak, and passing "
            f"it shows little (models={FEW})"
        ]

    def numbers(self) -> list[Number]:
        """Return every number, the strongest first."""
        told, idle, floor = self.attack["forget"], self.idle["forget"], self.floor
        even = self._even("forget")
        pairs: dict[str, Any] = {
            "n": told.scores_unlearned.size + told.scores_retrained.size,
            "unit": "pairs of a sample and a model",
        }
        found = [
            Number(
                "u_lira_auc",
                "U-LiRA on the forgotten samples: AUC",
                told.auc,
                "half",
                **pairs,
                interval=self._interval(told),
                retrained=floor.mean,
                before=idle.auc,
                floor=(floor.low, floor.high),
            ),
            Number(
                "u_lira_worst",
                "U-LiRA on the tenth of them that is told best: AUC",
                told.worst,
                "retrained",
                **pairs,
                interval=self._interval(told, _area, told.worst_rows),
                retrained=floor.worst_mean,
                before=idle.worst,
                floor=(floor.worst_low, floor.worst_high),
            ),
            Number(
                "u_lira_tpr_1",
                "U-LiRA: true positives at 1 % false ones",
                told.tpr_at_1,
                "lower",
                **pairs,
                interval=self._interval(told, partial(caught, share=0.01)),
                retrained=even.tpr_at_1,
                before=idle.tpr_at_1,
            ),
            Number(
                "u_lira_tpr_01",
                "U-LiRA: true positives at 0.1 % false ones",
                told.tpr_at_01,
                "lower",
                **pairs,
                interval=self._interval(told, partial(caught, share=0.001)),
                retrained=even.tpr_at_01,
                before=idle.tpr_at_01,
            ),
        ]
        for part, label in (("retain", "kept training samples"), ("test", "test samples")):
            one, range_ = self.attack[part], self.floors[part]
            found.append(
                Number(
                    f"u_lira_auc_{part}",
                    f"U-LiRA on {label}: AUC, a trace of the unlearning",
                    one.auc,
                    "half",
                    n=one.scores_unlearned.size + one.scores_retrained.size,
                    unit=pairs["unit"],
                    interval=self._interval(one),
                    retrained=range_.mean,
                    before=self.idle[part].auc,
                    floor=(range_.low, range_.high),
                )
            )
        return [*found, *self._divergences(), self._score(), *self._accuracies()]

    def klom(self) -> list[Divergence]:
        """Return KLoM on each set, beside its floor and its ceiling."""
        return [self._divergence(part) for part in PARTS]

    def curves(self) -> list[Curve]:
        """Return the ROC curves: unlearned, doing nothing, and retrained, each against retrained models."""
        named = {
            "unlearned": self.attack["forget"],
            "doing nothing": self.idle["forget"],
            "retrained": self._even("forget"),
        }
        return [curve(name, told.roc) for name, told in named.items()]

    def worst(self) -> list[Spread]:
        """Return the margins of the samples that the attack tells best."""
        sets = self.matrices.margins
        rows = np.argsort(-self.attack["forget"].per_sample, kind="stable")[:_SHOWN]
        return [
            Spread(
                int(row),
                unlearned=_rounded(sets[self.method]["forget"][:, row]),
                retrained=_rounded(sets[RETRAINED]["forget"][:, row]),
                before=_rounded(sets[BEFORE]["forget"][:, row]),
            )
            for row in rows
        ]

    def _retrained(self, part: str) -> Array:
        return self.matrices.margins[RETRAINED][part][: 2 * self.count]

    def _attacked(self, who: str, part: str) -> ULira:
        return u_lira(self.matrices.margins[who][part][: self.count], self._retrained(part)[: self.count])

    def _even(self, part: str) -> ULira:
        both = self._retrained(part)
        return u_lira(both[self.count :], both[: self.count])

    def _interval(
        self, told: ULira, statistic: Callable[[Array, Array], float] = _area, rows: Array | slice = _ALL
    ) -> tuple[float, float] | None:
        """Return an interval with the model as the unit, since the samples of one model move together."""
        scores = told.scores_unlearned[:, rows], told.scores_retrained[:, rows]
        return bootstrap_interval(
            lambda unlearned, retrained: statistic(unlearned.ravel(), retrained.ravel()),
            *scores,
            draws=_DRAWS,
            seed=self.seed,
        )

    def _divergence(self, part: str) -> Divergence:
        both, sets = self._retrained(part), self.matrices.margins
        first, second = both[: self.count], both[self.count :]
        value, floor, ceiling = (
            klom_summary(klom(matrix[: self.count], first))
            for matrix in (sets[self.method][part], second, sets[BEFORE][part])
        )
        return Divergence(part, first.shape[1], value=value, floor=floor, ceiling=ceiling)

    def _divergences(self) -> list[Number]:
        labels = {"forget": "forgotten", "retain": "kept", "test": "test"}
        found = []
        for one in self.klom():
            values = klom(
                self.matrices.margins[self.method][one.part][: self.count], self._retrained(one.part)[: self.count]
            )
            for at, (name, label) in enumerate((("mean", "mean"), ("p95", "95th percentile"))):
                found.append(
                    Number(
                        f"klom_{one.part}_{name}",
                        f"KLoM on {labels[one.part]} samples, {label}",
                        one.value[at],
                        "lower",
                        n=one.n,
                        unit="samples",
                        interval=self._over_samples(values, lambda drawn, at=at: klom_summary(drawn)[at]),  # type: ignore[misc]
                        retrained=one.floor[at],
                        before=one.ceiling[at],
                        note=f"floor and ceiling at the same N of {self.count} models",
                    )
                )
        return found

    def _over_samples(self, values: Array, statistic: Callable[[Array], float]) -> tuple[float, float] | None:
        return bootstrap_interval(statistic, values, draws=_DRAWS, seed=self.seed)

    def _score(self) -> Number:
        both, sets = self._retrained("forget"), self.matrices.margins
        first, second = both[: self.count], both[self.count :]
        ours = forgetting_epsilon(sets[self.method]["forget"][: self.count], first)
        return Number(
            "neurips_score",
            "the NeurIPS-2023 score",
            self._quality(self.method, ours),
            "higher",
            n=first.shape[1],
            unit="samples",
            interval=self._over_samples(ours, partial(self._quality, self.method)),
            retrained=self._quality(RETRAINED, forgetting_epsilon(second, first)),
            before=self._quality(BEFORE, forgetting_epsilon(sets[BEFORE]["forget"][: self.count], first)),
        )

    def _quality(self, who: str, epsilons: Array) -> float:
        own, usual = self.matrices.accuracy[who], self.matrices.accuracy[RETRAINED]
        kept, right = (float(own[part].mean() / usual[part].mean()) for part in ("retain", "test"))
        return forgetting_quality(epsilons, self.count) * kept * right

    def _accuracies(self) -> list[Number]:
        accuracy = self.matrices.accuracy
        return [
            Number(
                f"ensemble_accuracy_{part}",
                f"accuracy on {label}, mean of the ensemble",
                float(accuracy[self.method][part].mean()),
                "retrained",
                n=self.count,
                unit="models",
                interval=bootstrap_interval(
                    lambda values: float(values.mean()), accuracy[self.method][part], draws=_DRAWS, seed=self.seed
                ),
                retrained=float(accuracy[RETRAINED][part].mean()),
                before=float(accuracy[BEFORE][part].mean()),
            )
            for part, label in (("retain", "kept training samples"), ("test", "test samples"))
        ]


def _rounded(values: Array) -> tuple[float, ...]:
    return tuple(float(value) for value in np.round(values, 3))
