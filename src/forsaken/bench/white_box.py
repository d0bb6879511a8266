"""Black box and white box beside each other: what both oracles say of one model that forgot (Table white_box).

The black box learnt from the shadow. The white box learns from the target itself, of which half of the members are
known: half of the kept samples and half of the forget set, beside half of the test set and half of as many strangers
that were never trained on, under random labels as the forgotten ones were. The other halves are judged; then the two
change places, so that every sample is judged by an oracle that was not trained on it. The oracle learns from equally
many kept and test samples, and equally many forgotten and unseen strangers; otherwise it would learn that strangers are
non-members.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from forsaken._random import Purpose, generator
from forsaken.bench.scenarios.scenario import Scenario
from forsaken.bench.trial import Stage
from forsaken.data.samples import Samples, join
from forsaken.errors import SettingsError, UndefinedMetricError
from forsaken.metrics import catastrophic_forgetting_rate, forgetting_rate, separation
from forsaken.oracles.base import OracleReport
from forsaken.oracles.white_box import WhiteBoxOracle
from forsaken.types import Array

_PAIRS = (("kept", "test"), ("test", "kept"), ("forget", "strangers"), ("strangers", "forget"))
_LAYERS = 1
Scores = Mapping[str, Mapping[str, Array]]  # by model (before, after, retrained) and set


def compared(stage: Stage, after: Any, *, device: str | torch.device = "cpu") -> dict[str, float | None]:
    """Return the verdicts of three oracles: black box, white box, and white box under the model's own predictions.

    Each name begins with its oracle: `black_box_fr` and so on.
    """
    models = {"before": stage.target, "after": after, "retrained": stage.retrained}
    sets, seed = _sets_of(stage.scenario), stage.scenario.seed
    halves = _halves(sets, seed)
    black = {
        model: {name: stage.oracle.score(net, part) for name, part in sets.items()} for model, net in models.items()
    }
    found = {"black_box": judged(black, halves, stage.oracle.threshold)}
    for name, labels in (("white_box", "given"), ("white_box_predicted", "predicted")):
        scores = _crossed(sets, halves, stage.target, models, labels=labels, seed=seed, device=device)
        found[name] = judged(scores, halves, WhiteBoxOracle.threshold)
    return {f"{name}_{key}": value for name, own in found.items() for key, value in own.items()}


def codes(
    stage: Stage, models: Mapping[str, Any], parts: Mapping[str, Samples], *, device: str | torch.device = "cpu"
) -> dict[str, Array]:
    """Return the encoder's ten units for each sample of `parts` under each model, for a picture."""
    sets = _sets_of(stage.scenario)
    short = {name: sets[name].rows(np.arange(min(len(sets[name]), len(sets[other])))) for name, other in _PAIRS}
    oracle = WhiteBoxOracle.fit(
        stage.target,
        members=join([short["kept"], short["forget"]]),
        nonmembers=join([short["test"], short["strangers"]]),
        layers=_LAYERS,
        seed=stage.scenario.seed,
        device=device,
    )
    return {
        name: np.concatenate([oracle.encode(model, part) for part in parts.values()]) for name, model in models.items()
    }


def judged(scores: Scores, halves: Mapping[str, Array], threshold: float) -> dict[str, float | None]:
    """Return what the scores of one oracle say of the models."""

    def verdicts(model: str, *names: str) -> Array:
        return np.concatenate([scores[model][name] for name in names]) > threshold

    def rate(of: Callable[[Array, Array], float], model: str, name: str) -> float | None:
        try:
            return of(verdicts("before", name), verdicts(model, name))
        except UndefinedMetricError:
            return None

    def auc(model: str) -> float:
        # half by half: the scores of two oracles have no scale in common
        parts = [[scores[model][name][halves[name] == half] for name in ("forget", "strangers")] for half in (0, 1)]
        return float(np.mean([separation(*pair) for pair in parts]))

    report = OracleReport.of(verdicts("before", "kept", "forget"), verdicts("before", "test", "strangers"))
    found: dict[str, float | None] = {
        "memorised": int(verdicts("before", "forget").sum()),
        "balanced_accuracy": report.balanced_accuracy,
        "fr": rate(forgetting_rate, "after", "forget"),
        "fr_retrained": rate(forgetting_rate, "retrained", "forget"),
        "cfr": rate(catastrophic_forgetting_rate, "after", "kept"),
        "cfr_retrained": rate(catastrophic_forgetting_rate, "retrained", "kept"),
    }
    return found | {f"auc_{model}": auc(model) for model in scores}


def _sets_of(scenario: Scenario) -> dict[str, Samples]:
    """Return what is judged, with labels: as many strangers as are forgotten, which the method is not given."""
    strangers = scenario.sets(nonmembers=True).nonmembers
    if strangers is None:
        raise SettingsError(
            f"{scenario.name} forgets samples of the task itself; black box and white box are compared on strangers"
        )
    return {
        "forget": scenario.forget,
        "kept": scenario.unseen_kept,
        "test": scenario.test,
        "strangers": strangers,
    }


def _halves(sets: Mapping[str, Samples], seed: int) -> dict[str, Array]:
    """Return, for each sample of each set, which half it is in."""
    return {
        name: generator(seed, Purpose.BENCH_HALVES, at).permutation(np.arange(len(part)) % 2)
        for at, (name, part) in enumerate(sets.items())
    }


def _crossed(
    sets: Mapping[str, Samples],
    halves: Mapping[str, Array],
    target: Any,
    models: Mapping[str, Any],
    **settings: Any,
) -> dict[str, dict[str, Array]]:
    """Return the scores of every set under every model, each half by an oracle that was fitted on the other."""
    found = {model: {name: np.empty(len(part)) for name, part in sets.items()} for model in models}
    for known in (0, 1):
        half = {name: part.rows(np.flatnonzero(halves[name] == known)) for name, part in sets.items()}
        alike = {name: half[name].rows(np.arange(min(len(half[name]), len(half[other])))) for name, other in _PAIRS}
        oracle = WhiteBoxOracle.fit(
            target,
            members=join([alike["kept"], alike["forget"]]),
            nonmembers=join([alike["test"], alike["strangers"]]),
            layers=_LAYERS,
            **settings,
        )
        for model, scores in found.items():
            for name, part in sets.items():
                rows = np.flatnonzero(halves[name] != known)
                scores[name][rows] = oracle.score(models[model], part.rows(rows))
    return found
