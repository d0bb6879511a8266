"""Laws that hold whatever the numbers are (evaluation.md, section 3, as far as built)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from forsaken import Forsaken, ShadowOracle
from forsaken.bench.rows import Outcome
from forsaken.bench.trial import Stage, prepare
from forsaken.bench.trials import judged
from forsaken.models.logits import posteriors


@pytest.fixture(scope="module")
def stage() -> Stage:
    torch.set_num_threads(1)
    return prepare("digits", seed=7)


def verdict_on(stage: Stage, model: object) -> dict[str, Any]:
    return judged(stage, Outcome(model, stage.target, stage.scenario.retain_rows))


def test_doing_nothing_forgets_nothing(stage: Stage) -> None:
    verdict = verdict_on(stage, stage.target)
    assert (verdict["fr"], verdict["cfr"]) == (0.0, 0.0)


def test_an_over_trained_model_gives_the_oracle_an_edge(stage: Stage) -> None:
    scenario = stage.scenario
    inside = stage.oracle.score(stage.target, scenario.train)
    outside = stage.oracle.score(stage.target, scenario.test)
    truth = np.repeat([1, 0], [len(inside), len(outside)])
    assert roc_auc_score(truth, np.concatenate([inside, outside])) > 0.5


def test_retraining_forgets(stage: Stage) -> None:
    verdict = verdict_on(stage, stage.retrained)
    assert verdict["fr"] > 0.3
    assert verdict["confidence"] < verdict_on(stage, stage.target)["confidence"]


def test_forsaken_forgets_at_least_as_much_as_retraining(stage: Stage) -> None:
    scenario = stage.scenario
    result = Forsaken()(stage.target, scenario.forget, scenario.reference, scenario.retain)
    verdict = verdict_on(stage, result.model)
    assert verdict["fr"] >= verdict_on(stage, stage.retrained)["fr"] - 0.02


def test_a_destroyed_model_does_not_win(stage: Stage) -> None:
    broken = torch.nn.Sequential(torch.nn.Linear(64, 8))
    torch.nn.init.zeros_(broken[0].weight)
    verdict = verdict_on(stage, broken)
    assert verdict["fr"] == 1.0, "it remembers nothing"
    assert verdict["cfr"] == 1.0, "and that is its undoing"
    assert verdict["accuracy"] < 0.3


def test_the_oracle_does_not_follow_the_order_of_classes(stage: Stage) -> None:
    before = posteriors(stage.target, stage.scenario.forget)
    shuffled = before[:, np.random.default_rng(0).permutation(before.shape[1])]
    assert np.array_equal(stage.oracle.score_posteriors(before), stage.oracle.score_posteriors(shuffled))


def test_scores_mean_member_everywhere() -> None:
    sure, unsure = np.diag([9.0] * 5), np.diag([1.0] * 5)
    oracle = ShadowOracle.fit(torch.nn.Identity(), members=sure, nonmembers=unsure)
    assert oracle.score(torch.nn.Identity(), sure).min() > oracle.score(torch.nn.Identity(), unsure).max()
