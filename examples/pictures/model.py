"""The network that forsaken.toml names: a small convolutional classifier of 8 x 8 pictures."""

from torch import nn


def build(classes: int = 8) -> nn.Module:
    """Return the network without its weights."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )
