"""Tasks by name: a scenario with the network and the recipe that belong to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from forsaken.data import digits, reuters
from forsaken.data.scenario import Scenario
from forsaken.models.nets import mlp
from forsaken.models.train import Recipe


@dataclass(frozen=True, slots=True)
class Task:
    """What is trained, on what, and how."""

    scenario: Callable[[int], Scenario]
    network: Callable[[], nn.Module]
    recipe: Recipe


TASKS: dict[str, Task] = {
    "digits": Task(
        scenario=digits.digits,
        network=lambda: mlp((64, 2048, digits.CLASSES)),
        recipe=Recipe(epochs=200, batch_size=64, learning_rate=3e-3),
    ),
    "reuters-35-11": Task(
        scenario=reuters.reuters_35_11,
        network=lambda: mlp((reuters.VOCABULARY, 512, 256, reuters.CLASSES), dropout=0.5),
        recipe=Recipe(epochs=40, batch_size=128, learning_rate=1e-3),
    ),
}
