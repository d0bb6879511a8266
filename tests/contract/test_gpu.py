"""On a GPU: the same contract, the same bits, and masks that travel to the CPU. Skipped where there is none."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import forsaken

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
