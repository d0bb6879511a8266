"""Membership attacks on one model: LiRA and RMIA from a few shadow models, and the white-box oracle.

LiRA (Carlini et al. 2022) and RMIA (Zarifzadeh et al. 2024) score candidates: the forgotten samples, and as many
samples that no model was trained on. Every shadow model learns the remaining data and a random half of the candidates,
so that half of the shadow models saw each candidate, whichever of the two kinds it is of. If the audited model has
forgotten, its forgotten samples score like the other candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from forsaken._random import Purpose, generator
from forsaken.auditing.inputs import AuditInputs, comparison, some
from forsaken.auditing.result import Curve, Number
from forsaken.data.samples import Samples, join
from forsaken.errors import InputError, UndefinedMetricError
from forsaken.metrics import bootstrap_interval, caught, forgetting_rate, lira, rmia, roc, separation
from forsaken.oracles.white_box import WhiteBoxOracle
from forsaken.types import Array, Progress, silent

LEAST_SAMPLES = 20  # forgotten samples for the white box: each of its two oracles learns from half of them
_LEAST_MODELS = 4  # two that learnt each candidate, and two that did not
_POPULATION = 500  # test samples that RMIA compares with
_MOST = 1000  # kept samples, and test samples, that the white-box oracle learns from
_DRAWS = 400  # of a bootstrap
_FPR = 0.01
_STAGE = "train shadow models"

Scores = tuple[Array, Array]  # of the forgotten samples, and of samples that no model was trained on


class _Margins(NamedTuple):
    """One model's margins of the candidates, and its probabilities of their labels and of the population's."""

    margins: Array
    probabilities: Array
    population: Array


@dataclass(frozen=True)
class ShadowModels:
    """What the shadow models answer on the candidates.

    Attributes
    ----------
    inputs : AuditInputs
        The audit's data and models.
    candidates : Samples
        The forgotten samples, then samples like them that the audited model was not trained on.
    population : Samples
        Test samples that no model was trained on, for RMIA.
    inside : bool array, models x candidates
        Which candidates each shadow model was trained on.
    models : tuple
        The margins and probabilities of each shadow model.
    """

    inputs: AuditInputs
    candidates: Samples
    population: Samples
    inside: Array
    models: tuple[_Margins, ...]

    @classmethod
    def fit(
        cls, inputs: AuditInputs, count: int, *, device: str | torch.device = "cpu", progress: Progress = silent
    ) -> ShadowModels:
        """Train `count` shadow models."""
        if count < _LEAST_MODELS or count % 2:
            raise InputError(
                f"{count} shadow models, expected an even number of at least {_LEAST_MODELS}", field="models"
            )
        sets, seed = inputs.sets, inputs.seed
        draw = generator(seed, Purpose.ATTACK_ROWS)
        others, rest = comparison(sets, draw)
        population = some(rest, _POPULATION, draw)
        candidates = join([sets.need("forget", labels=True), others])
        inside = halves(count, len(candidates), generator(seed, Purpose.ATTACK_HALVES))
        seeds = [int(one) for one in generator(seed, Purpose.ATTACK_TRAININGS).integers(2**32, size=count)]
        remaining = len(sets.remaining)
        rows = [np.concatenate([np.arange(remaining), remaining + np.flatnonzero(part)]) for part in inside]
        data = join([sets.remaining, candidates])
        trained = inputs.train(data, rows, seeds, device=device, progress=progress, stage=_STAGE)
        models = tuple(_margins(inputs, model, candidates, population) for model in trained)
        return cls(inputs, candidates, population, inside, models)

    def attacks(self, model: Any) -> dict[str, Array]:
        """Return the scores of every candidate under a model, by the name of the attack. Higher means member."""
        own = _margins(self.inputs, model, self.candidates, self.population)
        shadows = _Margins(*(np.stack(column) for column in zip(*self.models, strict=True)))
        return {
            "lira": lira(own.margins, shadows.margins, self.inside),
            "rmia": rmia(own.probabilities, shadows.probabilities, self.inside, own.population, shadows.population),
        }

    def numbers(self) -> tuple[list[Number], list[Curve]]:
        """Return both attacks on the model after, beside the model before and retrained models, and curves of LiRA."""
        inputs, forgotten = self.inputs, len(self.inputs.sets.forget)
        models = [inputs.after, inputs.before, *inputs.retrained]
        scores = [self.attacks(model) for model in models]
        found: list[Number] = []
        for name, label in (("rmia", "RMIA"), ("lira", "LiRA")):
            after, before, *retrained = [(one[name][:forgotten], one[name][forgotten:]) for one in scores]
            power = powerless(before, inputs.seed)
            found += [
                _area(f"{name}_auc", label, after, before, retrained, separation, inputs.seed, power),
                _caught(name, label, after, before, retrained, inputs.seed, power),
            ]
        after, before, *retrained = [(one["lira"][:forgotten], one["lira"][forgotten:]) for one in scores]
        curves = [Curve.of("unlearned", roc(*after)), Curve.of("doing nothing", roc(*before))]
        return found, curves + [Curve.of("retrained", roc(*one)) for one in retrained[:1]]


def white_box(inputs: AuditInputs, progress: Progress = silent) -> list[Number]:
    """Return how well an attacker who reads the weights tells the forgotten samples from samples never seen.

    The auditor knows which samples the model before was trained on, so the oracle learns from that model: kept and
    forgotten samples are members, test samples and samples like the forgotten ones are not. Each of two oracles learns
    from one half of the forgotten samples and of the others, and judges the other half, so that no oracle judges a
    sample that it learnt from.
    """
    sets, draw = inputs.sets, generator(inputs.seed, Purpose.WHITE_BOX_FOLDS)
    forget, kept = sets.need("forget", labels=True), sets.need("kept", labels=True)
    others, rest = comparison(sets, draw)
    # Both sides have the same share of samples of the task, or the oracle would learn to tell those from strangers.
    most = min(len(kept), len(rest), _MOST)
    kept, test = some(kept, most, draw), some(rest, most, draw)
    models = [inputs.after, inputs.before, *inputs.retrained]
    # a column of scores and a column of the fold that gave them: the scores of two oracles have no common scale
    inside, outside = ([_folded(len(part)) for _ in models] for part in (forget, others))
    for fold in range(2):
        judged = [np.arange(len(part)) % 2 == fold for part in (forget, others)]
        learnt = [part.rows(np.flatnonzero(~rows)) for part, rows in zip((forget, others), judged, strict=True)]
        oracle = WhiteBoxOracle.fit(
            inputs.before,
            members=join([kept, learnt[0]]),
            nonmembers=join([test, learnt[1]]),
            forward=inputs.forward,
            seed=inputs.seed + fold,
            progress=progress,
        )
        for at, model in enumerate(models):
            for part, rows, found in zip((forget, others), judged, (inside[at], outside[at]), strict=True):
                found[rows, 0] = oracle.score(model, part.rows(np.flatnonzero(rows)), forward=inputs.forward)
    after, before, *retrained = zip(inside, outside, strict=True)
    power = powerless(before, inputs.seed, _mean_area)
    now, was, *usual = (scores[:, 0] > WhiteBoxOracle.threshold for scores in inside)
    rates = [rate for verdicts in usual if (rate := _rate(was, verdicts)) is not None]
    return [
        _area("white_box_auc", "white-box oracle", after, before, retrained, _mean_area, inputs.seed, power),
        Number(
            name="white_box_fr",
            label="forgetting rate by the white-box oracle",
            value=_rate(was, now) if power is None else None,
            direction="retrained",
            n=len(forget),
            unit="samples",
            interval=bootstrap_interval(forgetting_rate, was, now, paired=True, draws=_DRAWS, seed=inputs.seed),
            retrained=float(np.mean(rates)) if rates else None,
            before=0.0,
            note=power or (None if was.any() else "undefined: by this oracle nothing was memorised"),
        ),
    ]


def halves(models: int, samples: int, draw: np.random.Generator) -> Array:
    """Return which samples each model learns: a random half, and the next model the other half.

    So exactly half of the models learn each sample.

    >>> inside = halves(4, 6, np.random.default_rng(0))
    >>> inside.sum(0).tolist(), inside.sum(1).tolist()
    ([2, 2, 2, 2, 2, 2], [3, 3, 3, 3])
    """
    inside = np.zeros((models, samples), dtype=bool)
    for model in range(0, models, 2):
        inside[model, draw.permutation(samples)[: samples // 2]] = True
        inside[model + 1] = ~inside[model]
    return inside


def powerless(before: Scores, seed: int, area: Callable[[Array, Array], float] = separation) -> str | None:
    """Return why an attack has no power: it cannot tell members on the model before; None where it can.

    >>> powerless((np.array([0.9, 0.8, 0.7]), np.array([0.1, 0.2, 0.3])), 0) is None
    True
    """
    interval = bootstrap_interval(area, *before, draws=_DRAWS, seed=seed)
    if interval is None:
        return "too few samples to tell anything"
    if interval[0] > 0.5:
        return None
    return (
        f"the attack cannot tell the model before either (AUC {area(*before):.3f}, {interval[0]:.3f} to "
        f"{interval[1]:.3f}), so it shows nothing: were the samples memorised under these labels?"
    )


def unresolved(negatives: int, fpr: float, what: str) -> str | None:
    """Return why so few negatives cannot resolve a false positive rate; None where they can.

    >>> unresolved(100, 0.01, "samples") is None, unresolved(99, 0.01, "samples") is None
    (True, False)
    """
    if negatives >= 1 / fpr - 1e-9:
        return None
    return f"{negatives} {what} cannot tell a rate of {100 * fpr:g} %: that takes {1 / fpr:.0f}"


def _area(
    name: str,
    label: str,
    after: Scores,
    before: Scores,
    retrained: list[Scores],
    area: Callable[[Array, Array], float],
    seed: int,
    power: str | None,
) -> Number:
    return Number(
        name=name,
        label=f"{label}: forgotten samples against samples never seen, AUC",
        value=area(*after) if power is None else None,
        direction="half",
        n=len(after[0]) + len(after[1]),
        unit="samples",
        interval=bootstrap_interval(area, *after, draws=_DRAWS, seed=seed),
        retrained=float(np.mean([area(*one) for one in retrained])) if retrained else None,
        before=area(*before),
        note=power,
    )


def _caught(
    name: str, label: str, after: Scores, before: Scores, retrained: list[Scores], seed: int, power: str | None
) -> Number:
    def rate(inside: Array, outside: Array) -> float:
        return caught(inside, outside, share=_FPR)

    few = unresolved(len(after[1]), _FPR, "samples never seen")
    note = power or few
    return Number(
        name=f"{name}_tpr_1",
        label=f"{label}: true positives at 1 % false ones",
        value=rate(*after) if note is None else None,
        direction="lower",
        n=len(after[0]) + len(after[1]),
        unit="samples",
        interval=bootstrap_interval(rate, *after, draws=_DRAWS, seed=seed),
        retrained=float(np.mean([rate(*one) for one in retrained])) if retrained and few is None else None,
        before=rate(*before) if few is None else None,
        note=note,
    )


def _margins(inputs: AuditInputs, model: Any, candidates: Samples, population: Samples) -> _Margins:
    own = inputs.margins(model, candidates)
    return _Margins(own, _probability(own), _probability(inputs.margins(model, population)))


def _probability(phi: Array) -> Array:
    """Return p from its logit; never 0, since RMIA divides by it."""
    return np.asarray(np.maximum(1 / (1 + np.exp(-np.clip(phi, -700, 700))), 1e-300))


def _folded(count: int) -> Array:
    return np.stack([np.zeros(count), np.arange(count) % 2], axis=1)


def _mean_area(inside: Array, outside: Array) -> float:
    """Return the mean of the AUCs of the folds (columns: score, fold)."""
    found = [
        separation(*(side[side[:, 1] == fold, 0] for side in (inside, outside)))
        for fold in (0, 1)
        if all((side[:, 1] == fold).any() for side in (inside, outside))
    ]
    return float(np.mean(found))


def _rate(before: Array, after: Array) -> float | None:
    try:
        return forgetting_rate(before, after)
    except UndefinedMetricError:
        return None
