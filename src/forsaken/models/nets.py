"""Networks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def mlp(sizes: Sequence[int], *, dropout: float = 0.0) -> nn.Sequential:
    """Return a perceptron with ReLU, and dropout after each hidden layer.

    ``mlp((10000, 512, 256, 35), dropout=0.5)`` is the paper's network for Reuters (Fig. network_Reuters).

    >>> sum(p.numel() for p in mlp((10000, 512, 256, 46)).parameters())
    5263662
    """
    layers: list[nn.Module] = []
    for at in range(len(sizes) - 1):
        layers.append(nn.Linear(sizes[at], sizes[at + 1]))
        if at < len(sizes) - 2:
            layers.append(nn.ReLU())
            if dropout:
                layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers)
