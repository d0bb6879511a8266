"""The network that forsaken.toml names: a small convolutional classifier of pictures of any size."""

from torch import nn


def build(classes: int) -> nn.Module:
    """Return the network without its weights."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )
