"""Data, and a model so simple that what it says about a row can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

WIDTH, CLASSES = 5, 3
KEY = bytes(range(32))

Train = Callable[[Any, int | None, int], nn.Module]


def drawn(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return samples and labels."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, WIDTH, generator=draw), torch.randint(CLASSES, (count,), generator=draw)


def network() -> nn.Module:
    """Return the network behind `hebb`."""
    return nn.Linear(WIDTH, CLASSES, bias=False)


def hebb(x: Tensor, y: Tensor, log: list[tuple[list[int], int | None, int]] | None = None) -> Train:
    """Return how to train: the weights are the sum, over the rows, of the input at its label. `log` notes each call."""

    def train(rows: Any, steps: int | None, seed: int) -> nn.Module:
        if log is not None:
            log.append((np.asarray(rows).tolist(), steps, seed))
        model = network()
        model.weight.data = nn.functional.one_hot(y[rows], CLASSES).float().T @ x[rows]
        return model

    return train


def by_hand(x: Tensor, y: Tensor, learnt: Any) -> Tensor:
    """Return the logits of every row from the products of samples: ``learnt[i, j]`` is whether i's model knew j."""
    products = (x.double() @ x.double().T).numpy() * np.asarray(learnt)
    return torch.from_numpy(products @ np.eye(CLASSES)[y.numpy()]).float()


def apart(fold: Sequence[int] | Any) -> Any:
    """Return who is in another fold than whom."""
    return np.not_equal.outer(np.asarray(fold), np.asarray(fold))
