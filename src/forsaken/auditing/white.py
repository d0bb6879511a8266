"""The white-box oracle in an audit: trained on the model before, asked about the model after, sample by sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from forsaken._random import Purpose, generator
from forsaken.auditing.case import Case, comparison, some
from forsaken.auditing.power import powerless
from forsaken.auditing.result import Number
from forsaken.data.samples import Samples, join
from forsaken.errors import UndefinedMetricError
from forsaken.metrics import bootstrap_interval, forgetting_rate, separation
from forsaken.oracles.white_box import WhiteBoxOracle
from forsaken.types import Array, Progress, silent

_MOST = 1000  # kept and test samples that it learns from
_DRAWS = 400
LEAST = 20  # forgotten samples, and strangers: two oracles learn from half of them each


def white_box(case: Case, progress: Progress = silent) -> list[Number]:
    """Return how well an attacker who reads the weights tells the forgotten samples from samples never seen.

    The auditor knows which samples the model before was trained on, so the oracle learns from that model: kept and
    forgotten samples are members, test samples and strangers are not. Each of two oracles learns from one half of the
    forgotten samples and of the strangers, and judges the other half, so that none is judged on what it learnt from.
    """
    sets, draw = case.sets, generator(case.seed, Purpose.WHITE_BOX_FOLDS)
    forget = sets.need("forget", labels=True)
    others, rest = comparison(sets, draw)
    # as many of either kind on both sides, or a stranger would seem a non-member for being a stranger
    most = min(len(sets.need("kept", labels=True)), len(rest), _MOST)
    kept, test = some(sets.need("kept", labels=True), most, draw), some(rest, most, draw)
    models = {"after": case.after, "before": case.before} | {
        f"retrained {at}": one for at, one in enumerate(case.retrained)
    }
    inside = {name: np.empty(len(forget)) for name in models}
    outside = {name: np.empty(len(others)) for name in models}
    for fold in range(2):
        mine, theirs = (np.arange(len(part)) % 2 == fold for part in (forget, others))
        oracle = WhiteBoxOracle.fit(
            case.before,
            members=join([kept, forget.rows(np.flatnonzero(~mine))]),
            nonmembers=join([test, others.rows(np.flatnonzero(~theirs))]),
            forward=case.forward,
            seed=case.seed + fold,
            progress=progress,
        )
        for name, model in models.items():
            inside[name][mine] = _scores(oracle, model, forget, mine, case)
            outside[name][theirs] = _scores(oracle, model, others, theirs, case)
    usual = [name for name in models if name.startswith("retrained")]
    sides = {name: (_by_fold(inside[name]), _by_fold(outside[name])) for name in models}
    power = powerless(sides["before"], case.seed, _area)
    verdicts = {name: values > WhiteBoxOracle.threshold for name, values in inside.items()}
    beside = [rate for name in usual if (rate := _rate(verdicts["before"], verdicts[name])) is not None]
    return [
        Number(
            "white_box_auc",
            "white-box oracle: forgotten samples against samples never seen, AUC",
            _area(*sides["after"]) if power is None else None,
            "half",
            n=len(forget) + len(others),
            unit="samples",
            interval=bootstrap_interval(_area, *sides["after"], draws=_DRAWS, seed=case.seed),
            retrained=float(np.mean([_area(*sides[name]) for name in usual])) if usual else None,
            before=_area(*sides["before"]),
            note=power,
        ),
        Number(
            "white_box_fr",
            "forgetting rate by the white-box oracle",
            _rate(verdicts["before"], verdicts["after"]) if power is None else None,
            "retrained",
            n=len(forget),
            unit="samples",
            interval=bootstrap_interval(
                forgetting_rate, verdicts["before"], verdicts["after"], paired=True, draws=_DRAWS, seed=case.seed
            ),
            retrained=float(np.mean(beside)) if beside else None,
            before=0.0,
            note=power or (None if verdicts["before"].any() else "undefined: by this oracle nothing was memorised"),
        ),
    ]


def _by_fold(scores: Array) -> Array:
    return np.stack([scores, np.arange(len(scores)) % 2], axis=1)


def _area(inside: Array, outside: Array) -> float:
    """Return the mean AUC of the folds: two oracles' scores have no scale in common."""
    found = [
        separation(*(side[side[:, 1] == fold, 0] for side in (inside, outside)))
        for fold in (0, 1)
        if all((side[:, 1] == fold).any() for side in (inside, outside))
    ]
    return float(np.mean(found))


def _scores(oracle: WhiteBoxOracle, model: Any, samples: Samples, chosen: Array, case: Case) -> Array:
    return oracle.score(model, samples.rows(np.flatnonzero(chosen)), forward=case.forward)


def _rate(before: Array, after: Array) -> float | None:
    try:
        return forgetting_rate(before, after)
    except UndefinedMetricError:
        return None
