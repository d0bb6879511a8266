"""Every classifier of the table of networks can be unlearned: from the scenario's own inputs, by the default method."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import forsaken
from forsaken.bench.networks import NETWORKS, build
from forsaken.data.samples import Samples
from forsaken.models.train import train
from forsaken.recipe import Network, Recipe

DRAW = torch.Generator().manual_seed(0)
TOKENS = torch.randint(2, 60, (70, 1000), generator=DRAW)
CASES = {
    "mlp": (Network("mlp", {"sizes": (20, 32, 3)}), {}, torch.randn(70, 20, generator=DRAW)),
    "news-convolutions": (
        Network("news-convolutions", {"classes": 3, "channels": 16}),
        {"vectors": torch.randn(60, 20, generator=DRAW)},
        TOKENS,
    ),
    "small-colour-convolutions": (
        Network("small-colour-convolutions", {"classes": 3}),
        {},
        torch.randint(256, (70, 3, 32, 32), generator=DRAW, dtype=torch.uint8),
    ),
    "small-convolutions": (
        Network("small-convolutions", {"classes": 3}),
        {},
        torch.randn(70, 1, 8, 8, generator=DRAW),
    ),
    "text-convolutions": (
        Network("text-convolutions", {"words": 60, "classes": 3, "dimensions": 16, "channels": 8, "dropout": 0.2}),
        {},
        TOKENS[:, :40],
    ),
    "vgg16": (
        Network("vgg16", {"classes": 3}),
        {},
        torch.randint(256, (70, 3, 32, 32), generator=DRAW, dtype=torch.uint8),
    ),
}


def test_every_classifier_has_a_case() -> None:
    assert set(CASES) == set(NETWORKS) - {"language-model"}


@pytest.mark.parametrize("name", CASES)
def test_it_learns_by_heart_and_forgets(name: str) -> None:
    network, given, inputs = CASES[name]
    data = Samples(inputs[:40], torch.arange(40) % 3)
    epochs = 4 if name == "vgg16" else 60
    model = train(lambda: build(network, given), data, Recipe(epochs, 20, 2e-3), seed=0)
    before = copy.deepcopy(model.state_dict())
    found = forsaken.unlearn(
        model, data.rows(range(4)), None, data.rows(range(4, 10)), seed=0, iterations=3, target="uniform"
    )
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert found.history[-1].distance < found.details.facts["distance_before"]
    frozen = [key for key, weight in model.named_parameters() if not weight.requires_grad]
    new = found.model.state_dict()
    assert all(torch.equal(new[key], before[key]) for key in frozen)
    buffers = [key for key, _ in model.named_buffers()]
    assert all(torch.equal(new[key], before[key]) for key in buffers), "batch-norm keeps its statistics"
    assert isinstance(found.model, nn.Module)
