"""Suspects: planted wrong labels rank first, and bad input is told in words."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import forsaken
from forsaken.bench.networks import training_of
from forsaken.bench.scenarios.table import load_scenario
from forsaken.errors import InputError, NotHeldOutError
from forsaken.models.train import Training
from forsaken.recipe import Recipe


def test_planted_wrong_labels_rank_first() -> None:
    draw = np.random.default_rng(0)
    labels = torch.arange(90) % 3
    inputs = torch.nn.functional.one_hot(labels, 3).float() * 4 + torch.tensor(draw.normal(size=(90, 3))).float() * 0.3
    planted = [4, 31, 77]
    wrong = labels.clone()
    wrong[planted] = (wrong[planted] + 1) % 3
    training = Training(lambda: nn.Linear(3, 3), Recipe(epochs=30, batch_size=30, learning_rate=0.1))
    references = forsaken.References.fit(training, (inputs, wrong), folds=3, seed=1)
    found = forsaken.rank_suspects(references, (inputs, wrong))
    assert set(found.rows[:3].tolist()) == set(planted)
    assert sorted(found.rows.tolist()) == list(range(90))
    assert (np.diff(found.scores) <= 0).all()
    assert found.doubted() == 3
    assert found.doubted(0.01) <= found.doubted(0.5) <= found.doubted(0.99)


def test_bad_input_is_told_in_words() -> None:
    x = torch.eye(3)
    references = forsaken.References.claimed(x, torch.zeros(3, 2))
    with pytest.raises(InputError, match="give \\(inputs, labels\\)"):
        forsaken.rank_suspects(references, x)
    with pytest.raises(InputError, match=r"1 of 3 labels of data are out of range, .* 2 classes"):
        forsaken.rank_suspects(references, (x, torch.tensor([0, 1, 2])))
    with pytest.raises(NotHeldOutError):
        forsaken.rank_suspects(references, (x + 1, torch.tensor([0, 1, 1])))


def test_poisoned_digits_are_put_right_by_grouped_references() -> None:
    scenario = load_scenario("poison-digits", seed=100)
    target = forsaken.fit(scenario, scenario.train, seed=1)
    clean = forsaken.fit(scenario, scenario.kept, seed=3)
    own = scenario.test.labels == 5

    def recall(model: nn.Module) -> float:
        return float((model(scenario.test.inputs[own]).argmax(1) == 5).float().mean())

    groups = [*range(len(scenario.kept)), *[-1] * len(scenario.forget)]
    references = forsaken.References.fit(training_of(scenario), scenario.train, 4, groups, seed=6, model=target)
    method = forsaken.Forsaken.out_of_fold()
    result = method(target, scenario.forget, retain=scenario.retain, references=references, seed=0)
    cost = recall(clean) - recall(target)
    assert cost > 0.03
    assert recall(result.model) - recall(target) >= 0.8 * cost
