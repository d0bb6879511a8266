"""The training loop: deterministic, and it leaves the program's randomness alone."""

from __future__ import annotations

import pytest
import torch

from forsaken.data.samples import Samples
from forsaken.errors import InputError, NonFiniteError
from forsaken.models.nets import mlp
from forsaken.models.train import Recipe, train
from forsaken.models.weights import fingerprint, same_bits

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


def test_progress_counts_epochs() -> None:
    ticks = []
    train(build, DATA, Recipe(3, 16, 1e-2), seed=0, progress=ticks.append, stage="here")
    assert [(tick.stage, tick.done, tick.total) for tick in ticks] == [("here", 1, 3), ("here", 2, 3), ("here", 3, 3)]


def test_fingerprint_sees_every_bit() -> None:
    model = torch.nn.BatchNorm1d(3)
    before = fingerprint(model)
    model.running_mean[1] = -0.0
    assert fingerprint(model) != before, "even the sign of zero, and buffers too"


def test_same_bits() -> None:
    a, b = torch.tensor([0.0, 1.0, torch.nan]), torch.tensor([-0.0, 1.0, torch.nan])
    assert same_bits(a, b).tolist() == [False, True, True]
