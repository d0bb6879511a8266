"""On a GPU: the same contract, the same bits, and masks that travel to the CPU. Skipped where there is none."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import forsaken
from forsaken.bench.networks import build
from forsaken.data.samples import Samples
from forsaken.models.train import train
from forsaken.models.weights import fingerprint
from forsaken.recipe import Network, Recipe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.out = nn.Embedding(50, 16), nn.LSTM(16, 24, 2, batch_first=True), nn.Linear(24, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.words(x))[0][:, -1])


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 4)
    )


CASES = {
    "convolution": (convolution, lambda draw: torch.randn(100, 3, 12, 12, generator=draw)),
    "recurrent": (Recurrent, lambda draw: torch.randint(50, (100, 9), generator=draw)),
}


@pytest.mark.parametrize("case", CASES)
def test_contract_on_a_gpu(case: str) -> None:
    build, data = CASES[case]
    draw = torch.Generator().manual_seed(0)
    x, y = data(draw), torch.randint(4, (100,), generator=draw)
    model = build().cuda().train()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimiser.step()
    before = copy.deepcopy(model.state_dict())
    first, again = (forsaken.unlearn(model, x[:10], None, x[10:50], target="uniform") for _ in range(2))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert first.history[-1].distance < first.details.facts["distance_before"]
    assert first.model.training
    for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert a.is_cuda
        assert torch.equal(a, b)
    on_cpu = first.mask.apply(copy.deepcopy(model).cpu())
    for a, b in zip(first.model.parameters(), on_cpu.parameters(), strict=True):
        assert torch.equal(a.cpu(), b)


@pytest.mark.parametrize("name", ["text-convolutions", "vgg16"])
def test_training_gives_the_same_bits_on_a_gpu(name: str) -> None:
    draw = torch.Generator().manual_seed(0)
    if name == "vgg16":
        network, inputs = Network(name, {"classes": 4}), torch.randint(256, (200, 3, 32, 32), generator=draw).byte()
    else:
        network = Network(name, {"words": 90, "classes": 4, "dropout": 0.3})
        inputs = torch.randint(90, (200, 40), generator=draw)
    data = Samples(inputs, torch.randint(4, (200,), generator=draw))
    recipe = Recipe(3, 32, 0.01, optimiser="sgd", schedule="one-cycle")
    first, again = (train(lambda: build(network), data, recipe, seed=1, device="cuda") for _ in range(2))
    assert fingerprint(first) == fingerprint(again)
    assert all(weight.dtype == torch.float32 and weight.is_contiguous() for weight in first.parameters())
