"""Membership attacks from a handful of reference models: LiRA (Carlini et al. 2022), RMIA (Zarifzadeh et al. 2024).

The forgotten samples and as many that no model was trained on are the candidates. Every reference model learns the
remaining data and a random half of the candidates, so that each candidate is inside half of the references and outside
the others, whichever of the two kinds it is of. The attacks then score all candidates under the model that forgot. If
it has forgotten, its forgotten samples score like the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from forsaken._random import Purpose, generator
from forsaken.auditing.case import Case, comparison, some
from forsaken.auditing.curves import curve
from forsaken.auditing.power import powerless, unresolved
from forsaken.auditing.result import Curve, Number
from forsaken.auditing.trainings import trained
from forsaken.data.samples import Samples, join
from forsaken.errors import InputError
from forsaken.metrics import bootstrap_interval, caught, lira, rmia, roc, separation
from forsaken.types import Array, Progress, silent

LEAST = 4  # references: two with and two without each candidate
_POPULATION = 500
_DRAWS = 400
_SHARE = 0.01  # of false positives
STAGE = "train the references"


@dataclass(frozen=True, slots=True)
class Seen:
    """The margins of one model on the candidates, and its posteriors of their labels on the population too."""

    margins: Array
    probabilities: Array
    population: Array


@dataclass(frozen=True)
class ReferenceModels:
    """Margins of reference models on candidates (forgotten samples first, then as many others).

    Attributes
    ----------
    case : Case
        The audit's data and models.
    candidates : Samples
        Forgotten samples, then samples like them that the audited model was not trained on.
    forgotten : int
        How many of the candidates are forgotten ones.
    population : Samples
        Test samples that no model was trained on, for RMIA.
    inside : bool array, models x candidates
        Which candidates each reference model was trained on.
    models : tuple of Seen
        What each reference says.
    """

    case: Case
    candidates: Samples
    forgotten: int
    population: Samples
    inside: Array
    models: tuple[Seen, ...]

    @classmethod
    def fit(
        cls, case: Case, count: int, *, device: str | torch.device = "cpu", progress: Progress = silent
    ) -> ReferenceModels:
        """Train the reference models."""
        if count < LEAST or count % 2:
            raise InputError(f"{count} reference models, expected an even number of at least {LEAST}")
        sets = case.sets
        draw = generator(case.seed, Purpose.ATTACK_ROWS)
        forgotten = sets.need("forget", labels=True)
        others, rest = comparison(sets, draw)
        population = some(rest, _POPULATION, draw)
        candidates = join([forgotten, others])
        inside = halves(count, len(candidates), generator(case.seed, Purpose.ATTACK_HALVES))
        seeds = [int(seed) for seed in generator(case.seed, Purpose.ATTACK_TRAININGS).integers(2**32, size=count)]
        data = join([sets.remaining, candidates])
        base = np.arange(len(sets.remaining))
        rows = [np.concatenate([base, len(base) + np.flatnonzero(part)]) for part in inside]
        seen = tuple(
            look(case, model, candidates, population)
            for model in trained(case, data, rows, seeds, device=device, progress=progress, stage=STAGE)
        )
        return cls(case, candidates, len(forgotten), population, inside, seen)

    def attacks(self, model: Any) -> dict[str, Array]:
        """Return the scores of every candidate under a model, by the name of the attack. Higher means member."""
        seen = look(self.case, model, self.candidates, self.population)
        return {
            "lira": lira(seen.margins, np.stack([one.margins for one in self.models]), self.inside),
            "rmia": rmia(
                seen.probabilities,
                np.stack([one.probabilities for one in self.models]),
                self.inside,
                seen.population,
                np.stack([one.population for one in self.models]),
            ),
        }

    def numbers(self) -> tuple[list[Number], list[Curve]]:
        """Return both attacks on the model that forgot, beside the model before and retrained ones."""
        case = self.case
        after, before = self.attacks(case.after), self.attacks(case.before)
        retrained = [self.attacks(model) for model in case.retrained]
        found, curves = [], []
        for name, label in (("rmia", "RMIA"), ("lira", "LiRA")):
            scores, old = self._split(after[name]), self._split(before[name])
            power = powerless(old, case.seed)
            told: dict[str, Any] = {"n": len(after[name]), "unit": "samples"}
            usual = [self._split(each[name]) for each in retrained]
            found += [
                Number(
                    f"{name}_auc",
                    f"{label}: forgotten samples against samples never seen, AUC",
                    separation(*scores) if power is None else None,
                    "half",
                    **told,
                    note=power,
                    interval=bootstrap_interval(separation, *scores, draws=_DRAWS, seed=case.seed),
                    retrained=float(np.mean([separation(*each) for each in usual])) if usual else None,
                    before=separation(*old),
                ),
                self._caught(name, label, scores, old, usual, power),
            ]
            if name == "lira":
                curves = [curve("unlearned", roc(*scores)), curve("doing nothing", roc(*old))]
                curves += [curve("retrained", roc(*each)) for each in usual[:1]]
        return found, curves

    def _caught(
        self,
        name: str,
        label: str,
        scores: tuple[Array, Array],
        old: tuple[Array, Array],
        usual: list[tuple[Array, Array]],
        power: str | None,
    ) -> Number:
        def rate(inside: Array, outside: Array) -> float:
            return caught(inside, outside, share=_SHARE)

        note = power or unresolved(len(scores[1]), _SHARE, "samples never seen")
        known = unresolved(len(scores[1]), _SHARE, "") is None
        return Number(
            f"{name}_tpr_1",
            f"{label}: true positives at 1 % false ones",
            rate(*scores) if note is None else None,
            "lower",
            n=len(scores[0]) + len(scores[1]),
            unit="samples",
            interval=bootstrap_interval(rate, *scores, draws=_DRAWS, seed=self.case.seed),
            retrained=float(np.mean([rate(*each) for each in usual])) if usual and known else None,
            before=rate(*old) if known else None,
            note=note,
        )

    def _split(self, scores: Array) -> tuple[Array, Array]:
        return scores[: self.forgotten], scores[self.forgotten :]


def halves(models: int, samples: int, draw: np.random.Generator) -> Array:
    """Return which samples each model sees: a half of them, and the model after it the other half.

    So every sample is seen by exactly half of the models, and all models see as many.

    >>> inside = halves(4, 6, np.random.default_rng(0))
    >>> inside.sum(0).tolist(), inside.sum(1).tolist()
    ([2, 2, 2, 2, 2, 2], [3, 3, 3, 3])
    """
    inside = np.zeros((models, samples), dtype=bool)
    for model in range(0, models, 2):
        inside[model, draw.permutation(samples)[: samples // 2]] = True
        inside[model + 1] = ~inside[model]
    return inside


def look(case: Case, model: Any, candidates: Samples, population: Samples) -> Seen:
    """Return a model's margins and the posteriors of the labels."""
    own = case.margins(model, candidates)
    return Seen(own, _probability(own), _probability(case.margins(model, population)))


def _probability(phi: Array) -> Array:
    """Return p from its logit; never 0, which no ratio could take."""
    return np.asarray(np.maximum(1 / (1 + np.exp(-np.clip(phi, -700, 700))), 1e-300))
