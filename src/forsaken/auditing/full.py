"""The full profile: against retrained models, sample by sample (U-LiRA, KLoM, the NeurIPS-2023 score)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forsaken.auditing.curves import curve
from forsaken.auditing.floors import Floors
from forsaken.auditing.matrices import BEFORE, PARTS, RETRAINED, Matrices
from forsaken.auditing.power import unresolved
from forsaken.auditing.result import Curve, Divergence, Interval, Number, Spread
from forsaken.errors import InputError
from forsaken.metrics import (
    FEW,
    Floor,
    ULira,
    bootstrap_interval,
    forgetting_epsilon,
    forgetting_quality,
    jackknife_intervals,
    klom,
    klom_summary,
    u_lira,
    u_lira_intervals,
)
from forsaken.types import Array

LEAST = 4  # originals, below which no number would mean anything
_SAME = 1e-9  # margins that differ by less are those of one model
_SHOWN = 6  # of the worst samples
_DRAWS = 400
_OTHERS = (("retain", "kept training samples"), ("test", "test samples"))
_PAIRS = "pairs of a sample and a model"
_OVER_MODELS = "the interval leaves out each model once, on these samples"


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
    floors : Floors, optional
        Those of the same matrices and count, where they are known: judging another method need not compute them again.
    """

    def __init__(self, matrices: Matrices, method: str, *, seed: int = 0, floors: Floors | None = None) -> None:
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
        if np.ptp(self._retrained("forget"), axis=0).max() <= _SAME:
            raise InputError(
                f"the {2 * self.count} retrained models all give the same margins: their training has no randomness, "
                "so an ensemble of it tells nothing; use the profile standard, or a training function that draws the "
                "rows that it learns from by its seed (a bootstrap)"
            )
        self.attack = {part: self._attacked(method, part) for part in PARTS}
        self.idle = {part: self._attacked(BEFORE, part) for part in PARTS}
        self.floors = Floors.of(matrices, self.count, seed=seed) if floors is None else floors

    @property
    def floor(self) -> Floor:
        """Where the AUC of retrained against retrained models lies, on the forget set."""
        return self.floors.u_lira["forget"]

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
        return [*self._areas(), *self._divergences(), self._score(), *self._accuracies()]

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

    def _areas(self) -> list[Number]:
        ours = self.matrices.margins[self.method]
        spans = {
            part: u_lira_intervals(ours[part][: self.count], self._retrained(part)[: self.count]) for part in PARTS
        }
        told, idle, even, span = self.attack["forget"], self.idle["forget"], self._even("forget"), spans["forget"]
        return [
            self._area("forget", "u_lira_auc", "U-LiRA on the forgotten samples: AUC", span.auc),
            Number(
                "u_lira_worst",
                "U-LiRA on the tenth of them that is told best: AUC",
                told.worst,
                "retrained",
                n=2 * self.count * len(told.worst_rows),
                unit=_PAIRS,
                interval=span.worst,
                retrained=self.floor.worst_mean,
                before=idle.worst,
                floor=(self.floor.worst_low, self.floor.worst_high),
                note=_note(span.worst, "choosing the best told chooses noise, so the floor is the yardstick, not 0.5"),
            ),
            self._caught("u_lira_tpr_1", 0.01, [told.tpr_at_1, idle.tpr_at_1, even.tpr_at_1], span.tpr_at_1),
            self._caught("u_lira_tpr_01", 0.001, [told.tpr_at_01, idle.tpr_at_01, even.tpr_at_01], span.tpr_at_01),
            *(
                self._area(
                    part,
                    f"u_lira_auc_{part}",
                    f"U-LiRA on {label}: AUC, a trace of the forgotten samples or of the unlearning",
                    spans[part].auc,
                )
                for part, label in _OTHERS
            ),
        ]

    def _area(self, part: str, name: str, label: str, interval: Interval | None) -> Number:
        told, floor = self.attack[part], self.floors.u_lira[part]
        return Number(
            name,
            label,
            told.auc,
            "half",
            n=_pairs(told),
            unit=_PAIRS,
            interval=interval,
            retrained=floor.mean,
            before=self.idle[part].auc,
            floor=(floor.low, floor.high),
            note=_note(interval),
        )

    def _caught(self, name: str, share: float, values: Sequence[float], interval: Interval | None) -> Number:
        told = self.attack["forget"]
        negatives = told.scores_retrained.size
        label = f"U-LiRA: true positives at {100 * share:g} % false ones"
        fixed: dict[str, Any] = {"direction": "lower", "n": _pairs(told), "unit": _PAIRS}
        few = unresolved(negatives, share, "pairs of the retrained models")
        if few is not None:
            return Number(name, label, None, note=few, **fixed)
        ours, before, retrained = values
        note = _note(interval)
        return Number(name, label, ours, interval=interval, retrained=retrained, before=before, note=note, **fixed)

    def _divergence(self, part: str) -> Divergence:
        first, sets, floor = self._retrained(part)[: self.count], self.matrices.margins, self.floors.klom[part]
        value, ceiling = (klom_summary(klom(sets[who][part][: self.count], first)) for who in (self.method, BEFORE))
        return Divergence(part, first.shape[1], value=value, floor=(floor.mean, floor.p95_mean), ceiling=ceiling)

    def _divergences(self) -> list[Number]:
        labels = {"forget": "forgotten", "retain": "kept", "test": "test"}
        told = (
            f"retrained: the floor, over halvings of the {2 * self.count} retrained models; before: the ceiling; all "
            f"at {self.count} models a side"
        )
        found = []
        for one in self.klom():
            floor = self.floors.klom[one.part]
            ranges = (floor.low, floor.high), (floor.p95_low, floor.p95_high)
            spans = jackknife_intervals(
                lambda mine, theirs: klom_summary(klom(mine, theirs)),
                self.matrices.margins[self.method][one.part][: self.count],
                self._retrained(one.part)[: self.count],
                scale="positive",
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
                        interval=spans[at],
                        retrained=one.floor[at],
                        before=one.ceiling[at],
                        floor=ranges[at],
                        note=_note(spans[at], told),
                    )
                )
        return found

    def _score(self) -> Number:
        both, sets = self._retrained("forget"), self.matrices.margins
        first, second = both[: self.count], both[self.count :]
        places = np.arange(self.count)

        def quality(who: str, own: Array, rows: Array, others: Array) -> float:
            # N is that of the whole score: it only says where a sample counts as told apart
            found = forgetting_quality(forgetting_epsilon(own[rows], first[others]), self.count)
            for part in ("retain", "test"):
                found *= float(self._accuracy(who, part)[rows].mean() / self._accuracy(RETRAINED, part).mean())
            return found

        ours = sets[self.method]["forget"]
        (interval,) = jackknife_intervals(
            lambda rows, others: [quality(self.method, ours, rows, others)], places, places, scale="positive"
        )
        return Number(
            "neurips_score",
            "the NeurIPS-2023 score",
            quality(self.method, ours, places, places),
            "higher",
            n=first.shape[1],
            unit="samples",
            interval=interval,
            retrained=forgetting_quality(forgetting_epsilon(second, first), self.count),
            before=quality(BEFORE, sets[BEFORE]["forget"], places, places),
            note=_note(interval),
        )

    def _accuracy(self, who: str, part: str) -> Array:
        return self.matrices.accuracy[who][part][: self.count * (2 if who == RETRAINED else 1)]

    def _accuracies(self) -> list[Number]:
        return [
            Number(
                f"ensemble_accuracy_{part}",
                f"accuracy on {label}, mean of the ensemble",
                float(self._accuracy(self.method, part).mean()),
                "retrained",
                n=self.count,
                unit="models",
                interval=bootstrap_interval(
                    lambda values: float(values.mean()),
                    self._accuracy(self.method, part),
                    draws=_DRAWS,
                    seed=self.seed,
                ),
                retrained=float(self._accuracy(RETRAINED, part).mean()),
                before=float(self._accuracy(BEFORE, part).mean()),
            )
            for part, label in _OTHERS
        ]


def _pairs(told: ULira) -> int:
    return told.scores_unlearned.size + told.scores_retrained.size


def _note(interval: Interval | None, *more: str) -> str:
    how = _OVER_MODELS if interval else "no interval: leaving out any one model does not move it"
    return "; ".join((*more, how))


def _rounded(values: Array) -> tuple[float, ...]:
    return tuple(float(value) for value in np.round(values, 3))
