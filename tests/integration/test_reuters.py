"""The bars of the Reuters benchmark, on one seed, with the real newswires."""

from __future__ import annotations

import os
from typing import Any

import pytest

from forsaken import Forsaken
from forsaken.auditing.judgement import members
from forsaken.bench.rows import Outcome
from forsaken.bench.trial import Stage, prepare
from forsaken.bench.trials import judged
from forsaken.models.logits import posteriors

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("FORSAKEN_DATA"), reason="FORSAKEN_DATA does not name the datasets' folder"),
]


def verdict_on(stage: Stage, model: object) -> dict[str, Any]:
    return judged(stage, Outcome(model, stage.target, stage.scenario.retain_rows))


def test_one_seed_of_the_benchmark() -> None:
    stage = prepare("reuters-35-11", seed=0)
    scenario = stage.scenario
    assert (len(scenario.kept), len(scenario.forget), scenario.classes) == (3784, 200, 35)
    assert len(scenario.retain_rows) == 38
    assert len(scenario.reference) == 1000
    before, retrained = verdict_on(stage, stage.target), verdict_on(stage, stage.retrained)
    assert before["accuracy"] > 0.86
    memorised = members(stage.oracle, posteriors(stage.target, scenario.forget))
    assert memorised.sum() >= 100, "most of the forget set is memorised"
    result = Forsaken()(stage.target, scenario.forget, scenario.reference, scenario.retain, seed=0)
    after = verdict_on(stage, result.model)
    assert after["fr"] >= retrained["fr"] - 0.02
    assert after["cfr"] <= 0.08
    assert before["accuracy"] - after["accuracy"] <= 0.01
    assert result.mask.density <= 0.05
