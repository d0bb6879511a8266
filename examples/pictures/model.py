"""The network, as `forsaken.toml` names it: a small convolutional classifier of 8 x 8 pictures."""

from torch import nn


def build(classes: int = 10) -> nn.Module:
    """Return the network without its weights."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )
