"""Every kind of model of a scenario is trained by one call."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator

from forsaken.bench.networks import fit, parameter_count
from forsaken.bench.scenarios.table import load_scenario
from forsaken.data.samples import Samples
from forsaken.errors import InputError, SettingsError, UnknownNameError
from forsaken.models.logits import accuracy
from forsaken.models.weights import fingerprint
from forsaken.recipe import Network, Recipe

DIGITS = load_scenario("digits", seed=3)


def test_a_network_is_trained_by_the_scenario_s_recipe() -> None:
    quick = dataclasses.replace(DIGITS, recipe=dataclasses.replace(DIGITS.recipe, epochs=3))
    a, b = (fit(quick, quick.train, seed=1) for _ in range(2))
    assert fingerprint(a) == fingerprint(b)
    assert accuracy(a, quick.test) > 0.8
    assert parameter_count(quick) == 64 * 2048 + 2048 + 2048 * 8 + 8


@pytest.mark.parametrize("model", ["logistic-regression", "svm"])
def test_linear_models_take_the_network_s_place(model: str) -> None:
    scenario = load_scenario("digits", seed=3, model=model)
    assert scenario.network == Network(model)
    assert torch.equal(scenario.kept.inputs, DIGITS.kept.inputs)
    found = fit(scenario, scenario.train, seed=1)
    assert isinstance(found, BaseEstimator)
    assert accuracy(found, scenario.test) > 0.85
    assert np.size(found.coef_) + np.size(found.intercept_) == parameter_count(scenario)


def test_linear_models_need_labels_and_a_task_they_can_learn() -> None:
    scenario = load_scenario("digits", seed=3, model="svm")
    with pytest.raises(InputError, match="labels"):
        fit(scenario, Samples(scenario.test.inputs), seed=0)
    with pytest.raises(UnknownNameError, match="did you mean 'svm'"):
        load_scenario("digits", model="svn")
    with pytest.raises(SettingsError, match="c10-t has pictures"):
        load_scenario("c10-t", model="svm")
    with pytest.raises(SettingsError, match="ptb-canaries has sequences"):
        load_scenario("ptb-canaries", model="svm")


def test_sequences_are_learnt_position_by_position() -> None:
    tokens = torch.arange(12).repeat(40, 3)[:, :21]
    shift = torch.arange(40)[:, None]
    stream = (tokens + shift) % 12
    data = Samples(stream[:, :-1], stream[:, 1:])
    network = Network("language-model", {"words": 12, "units": 24})
    scenario = dataclasses.replace(DIGITS, network=network, recipe=Recipe(40, 20, 1e-2, clip=5.0))
    model = fit(scenario, data, seed=0)
    assert (model(data.inputs).argmax(-1) == data.labels).double().mean() > 0.95, "the next number follows"


def test_positions_that_do_not_count_change_nothing() -> None:
    stream = torch.randint(8, (20, 11), generator=torch.Generator().manual_seed(0))
    labels = stream[:, 1:].clone()
    labels[:, 6:] = -100
    other = stream[:, :-1].clone()
    other[:, 6:] = 0  # what follows is never looked at by what comes before, and does not count itself
    scenario = dataclasses.replace(
        DIGITS, network=Network("language-model", {"words": 8, "units": 4}), recipe=Recipe(2, 20, 1e-2)
    )
    a, b = (fit(scenario, Samples(inputs, labels), seed=0) for inputs in (stream[:, :-1], other))
    assert torch.allclose(a.dense.weight, b.dense.weight, atol=1e-6)
