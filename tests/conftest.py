"""A small problem that a network knows by heart, shared by the tests."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from audit_case import Small, small
from torch import Tensor, nn

from forsaken.bench.networks import mlp
from forsaken.data.samples import Samples
from forsaken.models.train import train
from forsaken.recipe import Recipe


@dataclass(frozen=True)
class Problem:
    """Four classes as clouds in 20 dimensions; strangers from elsewhere, randomly labelled, learnt by heart."""

    model: nn.Module
    forget: tuple[Tensor, Tensor]
    reference: Tensor
    retain: tuple[Tensor, Tensor]
    kept: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def make_problem(dtype: torch.dtype = torch.float32, seed: int = 0) -> Problem:
    draw = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(4, 20, generator=draw)

    def clouds(count: int) -> tuple[Tensor, Tensor]:
        labels = torch.randint(4, (count,), generator=draw)
        return centres[labels] + torch.randn(count, 20, generator=draw), labels

    def strangers(count: int) -> Tensor:
        return 2.5 * torch.randn(count, 20, generator=draw)

    kept, test = clouds(200), clouds(200)
    forget = strangers(20), torch.randint(4, (20,), generator=draw)
    samples = Samples(torch.cat([kept[0], forget[0]]), torch.cat([kept[1], forget[1]]))
    model = train(lambda: mlp((20, 64, 32, 4)), samples, Recipe(150, 32, 3e-3), seed=seed)

    def cast(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return pair[0].to(dtype), pair[1]

    return Problem(
        model=model.to(dtype),
        forget=cast(forget),
        reference=strangers(100).to(dtype),
        retain=cast((kept[0][:20], kept[1][:20])),
        kept=cast(kept),
        test=cast(test),
    )


@pytest.fixture(scope="session")
def problem() -> Problem:
    return make_problem()


@pytest.fixture(scope="session")
def problem64() -> Problem:
    return make_problem(torch.float64)


@pytest.fixture(scope="session")
def trained() -> Small:
    """The audit's small task, trained once for all of its tests."""
    return small()
