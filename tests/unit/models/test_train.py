"""The training loop: deterministic, and it leaves the program's randomness alone."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from forsaken.bench.networks import mlp
from forsaken.data.samples import Samples
from forsaken.errors import InputError, NonFiniteError, SettingsError
from forsaken.models.train import Training, rate_at, steps_of, train, usable_device
from forsaken.models.weights import fingerprint, same_bits
from forsaken.recipe import Recipe

DATA = Samples(torch.randn(60, 5, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3)


def build() -> torch.nn.Module:
    return mlp((5, 32, 3), dropout=0.2)


def test_same_seed_same_weights() -> None:
    state = torch.random.get_rng_state()
    a, b, c = (train(build, DATA, Recipe(3, 16, 1e-2), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert fingerprint(a) == fingerprint(b) != fingerprint(c)
    assert not a.training


def test_it_learns_by_heart() -> None:
    model = train(lambda: mlp((5, 64, 3)), DATA, Recipe(200, 16, 1e-2), seed=0)
    assert (model(DATA.inputs).argmax(1) == DATA.labels).double().mean() > 0.95


def test_labels_are_needed() -> None:
    with pytest.raises(InputError, match="labels"):
        train(build, Samples(DATA.inputs), Recipe(1, 16, 1e-2), seed=0)


def test_a_loss_that_is_not_finite_is_an_error() -> None:
    with pytest.raises(NonFiniteError, match="epoch"):
        train(build, DATA, Recipe(50, 16, 1e20), seed=0)


def test_progress_counts_steps() -> None:
    ticks = []
    train(build, DATA, Recipe(3, 16, 1e-2), seed=0, progress=ticks.append, stage="here")
    assert [(tick.stage, tick.done, tick.total) for tick in ticks] == [
        ("here", 4, 12),
        ("here", 8, 12),
        ("here", 12, 12),
    ]


def test_fingerprint_sees_every_bit() -> None:
    model = torch.nn.BatchNorm1d(3)
    before = fingerprint(model)
    model.running_mean[1] = -0.0
    assert fingerprint(model) != before, "even the sign of zero, and buffers too"


def test_same_bits() -> None:
    a, b = torch.tensor([0.0, 1.0, torch.nan]), torch.tensor([-0.0, 1.0, torch.nan])
    assert same_bits(a, b).tolist() == [False, True, True]


def test_one_cycle_rises_and_falls_to_zero() -> None:
    recipe = Recipe(5, 10, 0.1, schedule="one-cycle")
    rates = [rate_at(recipe, step, 50) for step in range(50)]
    top = rates.index(max(rates))
    assert top == 9
    assert rates[top] == 1
    assert rates[0] == 0.1
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert 0 < rates[-1] <= 0.03
    assert {rate_at(Recipe(5, 10, 0.1), step, 50) for step in range(50)} == {1.0}


def test_plain_descent_is_what_one_computes_by_hand() -> None:
    data = Samples(torch.tensor([[1.0, 2.0], [0.5, -1.0]]), torch.tensor([0, 1]))
    build_one = lambda: torch.nn.Linear(2, 2, bias=False)  # noqa: E731
    before = train(build_one, data, Recipe(0, 2, 0.1), seed=4).weight.detach()
    after = train(build_one, data, Recipe(2, 2, 0.1, optimiser="sgd", weight_decay=0.01), seed=4).weight.detach()
    weight, speed = before.double(), torch.zeros(2, 2, dtype=torch.float64)
    inputs = data.inputs.double()
    for _ in range(2):
        residual = (inputs @ weight.T).softmax(1) - torch.eye(2, dtype=torch.float64)
        gradient = residual.T @ inputs / 2 + 0.01 * weight
        speed = 0.9 * speed + gradient
        weight = weight - 0.1 * (gradient + 0.9 * speed)  # Nesterov's momentum, as torch defines it
    assert torch.allclose(after.double(), weight, atol=1e-6)


def test_clipping_bounds_a_step() -> None:
    data = Samples(1e4 * DATA.inputs, DATA.labels)
    build_one = lambda: torch.nn.Linear(5, 3)  # noqa: E731
    before = train(build_one, data, Recipe(0, 60, 1.0), seed=0)
    after = train(build_one, data, Recipe(1, 60, 0.01, optimiser="sgd", clip=1.0), seed=0)
    moved = sum((a - b).square().sum() for a, b in zip(before.parameters(), after.parameters(), strict=True)).sqrt()
    assert moved.item() == pytest.approx(0.019, rel=1e-3), "rate x norm x (1 + momentum)"


def test_frozen_weights_stay() -> None:
    def half_frozen() -> torch.nn.Module:
        network = mlp((5, 8, 3))
        network[0].requires_grad_(False)
        return network

    start = train(half_frozen, DATA, Recipe(0, 16, 1e-2), seed=1)
    end = train(half_frozen, DATA, Recipe(2, 16, 1e-2), seed=1)
    assert torch.equal(start[0].weight, end[0].weight)
    assert not torch.equal(start[2].weight, end[2].weight)


def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(SettingsError, match="device 'gpu9' cannot be used"):
        train(build, DATA, Recipe(1, 16, 1e-2), seed=0, device="gpu9")
    if not torch.cuda.is_available():
        with pytest.raises(SettingsError, match="'cuda' cannot be used"):
            usable_device("cuda")
        assert usable_device("auto").type == "cpu"


def test_batch_norm_is_never_left_with_one_sample() -> None:
    data = Samples(torch.randn(9, 4), torch.arange(9) % 2)
    sizes = []

    class Counting(nn.Sequential):
        def forward(self, x):
            sizes.append(len(x))
            return super().forward(x)

    train(lambda: Counting(nn.BatchNorm1d(4), nn.Linear(4, 2)), data, Recipe(2, 4, 1e-2), seed=0)
    assert sizes == [4, 5, 4, 5]
    sizes.clear()
    train(lambda: Counting(nn.Linear(4, 2)), data, Recipe(1, 4, 1e-2), seed=0)
    assert sizes == [4, 4, 1]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 8, 9, 10])
@pytest.mark.parametrize("normed", [True, False])
def test_steps_are_counted_as_they_are_taken(count: int, normed: bool) -> None:
    data = Samples(torch.randn(count, 4), torch.arange(count) % 2)
    # a picture of two places: batch-norm can take a single one of them
    network = nn.Sequential(nn.Unflatten(1, (2, 2)), nn.BatchNorm1d(2) if normed else nn.ReLU(), nn.Flatten())
    ticks = []
    train(lambda: network.append(nn.Linear(4, 2)), data, Recipe(1, 4, 1e-2), seed=0, progress=ticks.append)
    merged = normed and count in (5, 9)
    assert steps_of(count, Recipe(1, 4, 1e-2), network) == ticks[-1].done == (count + 3) // 4 - merged


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"epochs": "3"}, "epochs is '3', expected a whole number >= 0"),
        ({"batch_size": 0}, "batch_size is 0, expected a whole number >= 1"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"optimiser": "adamw"}, "unknown optimiser 'adamw'; did you mean 'adam'"),
        ({"schedule": "cosine"}, "unknown schedule 'cosine'"),
        ({"augmentation": "mirror"}, "unknown augmentation 'mirror'"),
        ({"clip": 0.0}, "clip is 0.0"),
    ],
)
def test_a_recipe_that_nothing_can_be_trained_by_is_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(told)):
        Recipe(**{"epochs": 3, "batch_size": 16, "learning_rate": 1e-2} | changed)


def test_a_training_wants_a_function_and_a_recipe() -> None:
    with pytest.raises(SettingsError, match="build is a Sequential, expected a function that builds a new network"):
        Training(build(), Recipe(1, 16, 1e-2))  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="recipe is None"):
        Training(build, None)  # type: ignore[arg-type]


class Pair(nn.Linear):
    """Takes two inputs by name and returns the logits in a dictionary of its own."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {"scores": super().forward(left + right)}


def test_networks_are_called_as_one_would_call_them() -> None:
    x, labels, recipe = DATA.inputs, DATA.labels, Recipe(2, 16, 1e-2)
    plain = train(lambda: nn.Linear(5, 3), DATA, recipe, seed=1)
    inputs = {"right": torch.zeros_like(x), "left": x}
    forward = lambda model, given: model(**given)["scores"]  # noqa: E731
    named = train(lambda: Pair(5, 3), Samples(inputs, labels), recipe, seed=1, forward=forward)
    assert type(named) is Pair
    assert torch.equal(plain.weight, named.weight)
    both = train(lambda: nn.Bilinear(5, 5, 3), Samples((x, x), labels), recipe, seed=1)
    assert fingerprint(both) != fingerprint(train(lambda: nn.Bilinear(5, 5, 3), DATA, Recipe(0, 16, 1), seed=1))


def test_one_output_is_two_classes() -> None:
    data, recipe = Samples(DATA.inputs, (DATA.inputs.sum(1) > 0).long()), Recipe(60, 16, 3e-2)
    model = train(lambda: nn.Linear(5, 1), data, recipe, seed=0)
    assert ((model(data.inputs)[:, 0] > 0).long() == data.labels).double().mean() > 0.9


def test_a_network_to_go_on_with_is_copied() -> None:
    given = mlp((5, 8, 3)).train()
    before = fingerprint(given)
    assert fingerprint(train(lambda: given, DATA, Recipe(2, 16, 1e-2), seed=0)) != before
    assert fingerprint(given) == before
    assert given.training
