"""The full profile: unlearned against retrained models, by sample and by request (U-LiRA, KLoM, the NeurIPS score)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forsaken.auditing.attacks import unresolved
from forsaken.auditing.before_after import ensemble_before_after
from forsaken.auditing.inputs import Caveat
from forsaken.auditing.measurements import BEFORE, PARTS, RETRAINED, Matrices
from forsaken.auditing.result import Curve, Divergence, Number, Spread
from forsaken.errors import InputError
from forsaken.metrics import (
    FEW,
    Floor,
    KlomFloor,
    RequestFloor,
    ULira,
    bootstrap_interval,
    forgetting_epsilon,
    forgetting_quality,
    jackknife_intervals,
    klom,
    klom_floor,
    klom_summary,
    request_floor,
    request_interval,
    request_u_lira,
    smallest_shift,
    u_lira,
    u_lira_floor,
    u_lira_intervals,
)
from forsaken.types import Array

_LEAST = 4  # originals: with fewer no number would mean anything
_SAME = 1e-9  # margins that differ by less are those of one model
_SHOWN = 6  # of the samples that the attack tells best
NEIGHBOURS = "neighbours"  # further margins of an ensemble (`Ensembles.besides`)
_PAIRS = "pairs of a sample and a model"
_LABELS = {
    "forget": "forgotten samples",
    "retain": "kept training samples",
    "test": "test samples",
    NEIGHBOURS: "neighbours of the forgotten samples",
}


@dataclass(frozen=True, slots=True)
class Floors:
    """What N retrained models against N others say: the floors of U-LiRA (by sample and by request) and of KLoM.

    `shifts` are the smallest shifts of the forgotten samples that U-LiRA would have seen, by sample and by request.
    They are the same for every method that is judged by the same retrained models, and take longer to compute than
    everything else.
    """

    u_lira: Mapping[str, Floor]
    request: Mapping[str, RequestFloor]
    shifts: tuple[float | None, float | None]
    klom: Mapping[str, KlomFloor]

    @classmethod
    def of(cls, matrices: Matrices, count: int, *, seed: int = 0) -> Floors:
        """Compute the floors from the first 2 `count` retrained models."""
        both = {part: margins_of(matrices, RETRAINED, part)[: 2 * count] for part in parts_of(matrices)}
        samples = {part: u_lira_floor(margins, seed=seed) for part, margins in both.items()}
        request = {part: request_floor(both[part], seed=seed) for part in both if part not in ("retain", "test")}
        shifts = (
            smallest_shift(both["forget"], samples["forget"], seed=seed),
            smallest_shift(both["forget"], request["forget"], request_u_lira, seed=seed),
        )
        return cls(samples, request, shifts, {part: klom_floor(both[part], seed=seed) for part in PARTS})


def parts_of(matrices: Matrices) -> tuple[str, ...]:
    """Return the sets that U-LiRA attacks: the three of every ensemble, and neighbours where they were measured."""
    return (*PARTS, NEIGHBOURS) if NEIGHBOURS in matrices.facts.get(RETRAINED, {}) else PARTS


def margins_of(matrices: Matrices, group: str, part: str) -> Array:
    """Return the margins of a group of models on a set, or on the neighbours."""
    return matrices.facts[group][part] if part == NEIGHBOURS else matrices.margins[group][part]


class Full:
    """What the measurements of an ensemble say about one method.

    There are twice as many retrained models as originals: the unlearned models are compared with one half, and the two
    halves with each other, which gives the floor at the same N.

    Parameters
    ----------
    matrices : Matrices
        Of the originals, of the unlearned models and of the retrained models.
    method : str
        The group of the unlearned models.
    seed : int
        For halvings and intervals.
    floors : Floors, optional
        The floors of the same matrices, where another method's `Full` has computed them.
    """

    def __init__(self, matrices: Matrices, method: str, *, seed: int = 0, floors: Floors | None = None) -> None:
        for group in (BEFORE, RETRAINED, method):
            if group not in matrices.margins:
                raise InputError(
                    f"the matrices hold no {group!r} models, only {', '.join(matrices.margins)}; measure them"
                )
        self.matrices, self.method, self.seed = matrices, method, seed
        self.count = len(matrices.margins[method]["forget"])
        retrained = len(matrices.margins[RETRAINED]["forget"])
        if self.count < _LEAST:
            raise InputError(
                f"{self.count} originals are too few to tell anything",
                field="models",
                remedy=f"train at least {_LEAST}, and {FEW} for a number that others can rely on (models=)",
            )
        if retrained < 2 * self.count:
            raise InputError(
                f"there are {retrained} retrained models for {self.count} originals; the floor needs twice as many, "
                f"{2 * self.count}"
            )
        first, second = self._halves("forget")
        if np.ptp(np.concatenate([first, second]), axis=0).max() <= _SAME:
            raise InputError(
                f"the {2 * self.count} retrained models all give the same margins: their training has no randomness, "
                "so an ensemble of it tells nothing",
                field="profile",
                remedy="use the profile standard, or a training function that draws the rows that it learns from by "
                "its seed (a bootstrap)",
            )
        self.parts = parts_of(matrices)
        self.attack: dict[str, ULira] = {
            part: u_lira(self._margins(method, part), self._halves(part)[0]) for part in self.parts
        }
        self.idle: dict[str, ULira] = {
            part: u_lira(self._margins(BEFORE, part), self._halves(part)[0]) for part in self.parts
        }
        self.floors = Floors.of(matrices, self.count, seed=seed) if floors is None else floors
        self._even = u_lira(second, first)

    @property
    def floor(self) -> Floor:
        """The range of the AUC of retrained against retrained models, on the forget set."""
        return self.floors.u_lira["forget"]

    def caveats(self) -> list[Caveat]:
        """Return what makes the numbers weaker than they look."""
        if self.count >= FEW:
            return []
        problem = (
            f"{self.count} originals: U-LiRA and KLoM want at least {FEW}; with fewer the attack is weak, and passing "
            "it shows little"
        )
        return [Caveat(problem, "models", f"give models={FEW}")]

    def numbers(self) -> list[Number]:
        """Return every number, U-LiRA first."""
        return [
            *self._areas(),
            *self._shifts(),
            *self._divergences(),
            self._score(),
            *self._accuracies(),
            *ensemble_before_after(self.matrices, self.method, self.seed),
        ]

    def klom(self) -> list[Divergence]:
        """Return KLoM on each set, beside its floor and its ceiling."""
        found = []
        for part in PARTS:
            first, floor = self._halves(part)[0], self.floors.klom[part]
            value, ceiling = (klom_summary(klom(self._margins(group, part), first)) for group in (self.method, BEFORE))
            floors = floor.mean, floor.p95_mean
            found.append(Divergence(part=part, n=first.shape[1], value=value, floor=floors, ceiling=ceiling))
        return found

    def curves(self) -> list[Curve]:
        """Return the ROC curves of unlearned models, models before and retrained models, against retrained models."""
        named = {"unlearned": self.attack["forget"], "doing nothing": self.idle["forget"], "retrained": self._even}
        return [Curve.of(name, found.roc) for name, found in named.items()]

    def worst(self) -> list[Spread]:
        """Return the margins of the samples that the attack tells best."""
        sets = self.matrices.margins
        rows = np.argsort(-self.attack["forget"].per_sample, kind="stable")[:_SHOWN]

        def rounded(group: str, row: int) -> tuple[float, ...]:
            return tuple(np.round(sets[group]["forget"][:, row], 3).tolist())

        return [
            Spread(
                row=row,
                unlearned=rounded(self.method, row),
                retrained=rounded(RETRAINED, row),
                before=rounded(BEFORE, row),
            )
            for row in map(int, rows)
        ]

    def _margins(self, group: str, part: str) -> Array:
        return margins_of(self.matrices, group, part)[: self.count]

    def _halves(self, part: str) -> tuple[Array, Array]:
        """Return the margins of the retrained models: those that judge, and as many others."""
        both = margins_of(self.matrices, RETRAINED, part)
        return both[: self.count], both[self.count : 2 * self.count]

    def _areas(self) -> list[Number]:
        intervals = {
            part: u_lira_intervals(self._margins(self.method, part), self._halves(part)[0]) for part in self.parts
        }
        attack, idle, floor, own = self.attack["forget"], self.idle["forget"], self.floor, intervals["forget"]
        trace = "a trace of the forgotten samples or of the unlearning"
        return [
            self._area("forget", "u_lira_auc", "U-LiRA on the forgotten samples: AUC", own.auc),
            self._request("forget", "u_lira_request_auc", "U-LiRA on the request as a whole: AUC over models"),
            Number(
                name="u_lira_worst",
                label="U-LiRA on the tenth of them that is told best: AUC",
                value=attack.worst,
                direction="retrained",
                n=2 * self.count * len(attack.worst_rows),
                unit=_PAIRS,
                interval=own.worst,
                retrained=floor.worst_mean,
                before=idle.worst,
                floor=(floor.worst_low, floor.worst_high),
                note=_note(own.worst, "choosing the best told chooses noise, so the floor is the yardstick, not 0.5"),
            ),
            self._caught("u_lira_tpr_1", 0.01, [one.tpr_at_1 for one in (attack, idle, self._even)], own.tpr_at_1),
            self._caught("u_lira_tpr_01", 0.001, [one.tpr_at_01 for one in (attack, idle, self._even)], own.tpr_at_01),
            *(
                self._area(part, f"u_lira_auc_{part}", f"U-LiRA on {_LABELS[part]}: AUC, {trace}", intervals[part].auc)
                for part in ("retain", "test")
            ),
            *(self._near(intervals[NEIGHBOURS].auc) if NEIGHBOURS in self.parts else ()),
        ]

    def _near(self, interval: tuple[float, float] | None) -> list[Number]:
        kind = _LABELS[NEIGHBOURS]
        whole = f"U-LiRA on the {kind}, all of them at once: AUC over models"
        return [
            self._area(NEIGHBOURS, "u_lira_auc_neighbours", f"U-LiRA on the {kind}: AUC", interval),
            self._request(NEIGHBOURS, "u_lira_request_auc_neighbours", whole),
        ]

    def _request(self, part: str, name: str, label: str) -> Number:
        ours, before, first = self._margins(self.method, part), self._margins(BEFORE, part), self._halves(part)[0]
        floor, interval = self.floors.request[part], request_interval(ours, first)
        return Number(
            name=name,
            label=label,
            value=request_u_lira(ours, first),
            direction="half",
            n=2 * self.count,
            unit="models",
            interval=interval,
            retrained=floor.mean,
            before=request_u_lira(before, first),
            floor=(floor.low, floor.high),
            note=_note(interval, f"the sum over {first.shape[1]} samples, of an attacker who knows the whole request"),
        )

    def _shifts(self) -> list[Number]:
        """Return how small a difference the attacks would have seen with so many models and samples."""
        note = (
            "in standard deviations of each sample's margin among retrained models; a shift of all samples by as much "
            "is seen in four audits of five"
        )
        none = "no shift up to 8 standard deviations would have been seen: there are too few models"
        named = ("u_lira_smallest_shift", "sample by sample"), ("u_lira_request_smallest_shift", "on the whole request")
        return [
            Number(
                name=name,
                label=f"the smallest shift that U-LiRA would have seen, {how}",
                value=value,
                direction="lower",
                n=2 * self.count,
                unit="models",
                note=none if value is None else note,
            )
            for (name, how), value in zip(named, self.floors.shifts, strict=True)
        ]

    def _area(self, part: str, name: str, label: str, interval: tuple[float, float] | None) -> Number:
        attack, floor = self.attack[part], self.floors.u_lira[part]
        return Number(
            name=name,
            label=label,
            value=attack.auc,
            direction="half",
            n=_pairs(attack),
            unit=_PAIRS,
            interval=interval,
            retrained=floor.mean,
            before=self.idle[part].auc,
            floor=(floor.low, floor.high),
            note=_note(interval),
        )

    def _caught(self, name: str, fpr: float, values: Sequence[float], interval: tuple[float, float] | None) -> Number:
        attack = self.attack["forget"]
        told: dict[str, Any] = {"name": name, "label": f"U-LiRA: true positives at {100 * fpr:g} % false ones"}
        told |= {"direction": "lower", "n": _pairs(attack), "unit": _PAIRS}
        few = unresolved(attack.scores_retrained.size, fpr, "pairs of the retrained models")
        if few is not None:
            return Number(**told, value=None, note=few)
        ours, before, retrained = values
        return Number(**told, value=ours, interval=interval, retrained=retrained, before=before, note=_note(interval))

    def _divergences(self) -> list[Number]:
        told = (
            f"retrained: the floor, over halvings of the {2 * self.count} retrained models; before: the ceiling; all "
            f"at {self.count} models a side"
        )
        found = []
        for one in self.klom():
            floor = self.floors.klom[one.part]
            ranges = (floor.low, floor.high), (floor.p95_low, floor.p95_high)
            intervals = jackknife_intervals(
                lambda mine, theirs: klom_summary(klom(mine, theirs)),
                self._margins(self.method, one.part),
                self._halves(one.part)[0],
                scale="positive",
            )
            kind = {"retain": "kept samples"}.get(one.part, _LABELS[one.part])
            for at, (name, label) in enumerate((("mean", "mean"), ("p95", "95th percentile"))):
                found.append(
                    Number(
                        name=f"klom_{one.part}_{name}",
                        label=f"KLoM on {kind}, {label}",
                        value=one.value[at],
                        direction="lower",
                        n=one.n,
                        unit="samples",
                        interval=intervals[at],
                        retrained=one.floor[at],
                        before=one.ceiling[at],
                        floor=ranges[at],
                        note=_note(intervals[at], told),
                    )
                )
        return found

    def _score(self) -> Number:
        first, second = self._halves("forget")
        places = np.arange(self.count)

        def score(group: str, rows: Array, others: Array) -> float:
            margins = self._margins(group, "forget")
            # N is that of the whole ensemble: it only decides from which epsilon on a sample counts as told apart.
            found = forgetting_quality(forgetting_epsilon(margins[rows], first[others]), self.count)
            for part in ("retain", "test"):
                found *= float(self._accuracy(group, part)[rows].mean() / self._accuracy(RETRAINED, part).mean())
            return found

        (interval,) = jackknife_intervals(
            lambda rows, others: [score(self.method, rows, others)], places, places, scale="positive"
        )
        return Number(
            name="neurips_score",
            label="the NeurIPS-2023 score",
            value=score(self.method, places, places),
            direction="higher",
            n=first.shape[1],
            unit="samples",
            interval=interval,
            retrained=forgetting_quality(forgetting_epsilon(second, first), self.count),
            before=score(BEFORE, places, places),
            note=_note(interval),
        )

    def _accuracy(self, group: str, part: str) -> Array:
        return self.matrices.accuracy[group][part][: self.count * (2 if group == RETRAINED else 1)]

    def _accuracies(self) -> list[Number]:
        return [
            Number(
                name=f"ensemble_accuracy_{part}",
                label=f"accuracy on {_LABELS[part]}, mean of the ensemble",
                value=float(self._accuracy(self.method, part).mean()),
                direction="retrained",
                n=self.count,
                unit="models",
                interval=bootstrap_interval(
                    lambda values: float(values.mean()), self._accuracy(self.method, part), draws=400, seed=self.seed
                ),
                retrained=float(self._accuracy(RETRAINED, part).mean()),
                before=float(self._accuracy(BEFORE, part).mean()),
            )
            for part in ("retain", "test")
        ]


def _pairs(attack: ULira) -> int:
    return attack.scores_unlearned.size + attack.scores_retrained.size


def _note(interval: tuple[float, float] | None, *more: str) -> str:
    how = "the interval leaves out each model once, on these samples"
    return "; ".join((*more, how if interval else "no interval: leaving out any one model does not move it"))
