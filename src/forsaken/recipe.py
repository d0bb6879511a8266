"""How a network is built and trained, as plain values that can be printed, compared and saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from forsaken._checks import Problems

Optimiser: TypeAlias = Literal["adam", "sgd"]
Schedule: TypeAlias = Literal["constant", "one-cycle"]
Augmentation: TypeAlias = Literal["mirror-shift", "word-dropout"]


@dataclass(frozen=True, slots=True)
class Network:
    """A network by its name (a row of `forsaken.bench.networks.NETWORKS`) and its settings.

    >>> print(Network("mlp", {"sizes": (64, 8), "dropout": 0.5}))
    mlp(sizes=(64, 8), dropout=0.5)
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.settings.items())})"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a network is trained on the cross-entropy.

    Attributes
    ----------
    epochs, batch_size : int
        Passes over the data, and samples a step; every epoch has a new order.
    learning_rate : float
        The highest learning rate of the schedule.
    weight_decay : float
        As torch's optimisers take it.
    optimiser : str
        "adam", or "sgd" with Nesterov momentum of 0.9.
    schedule : str
        "constant", or "one-cycle": up linearly over a fifth of the steps, then down to zero.
    clip : float, optional
        The largest norm of a step's gradient.
    augmentation : str, optional
        How the samples of each step are changed: "mirror-shift" (pictures are mirrored and shifted by up to two pixels)
        or "word-dropout" (a fifth of the words is left out).
    """

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float = 0.0
    optimiser: Optimiser = "adam"
    schedule: Schedule = "constant"
    clip: float | None = None
    augmentation: Augmentation | None = None

    def __post_init__(self) -> None:
        found = Problems("Recipe")
        found.whole("epochs", self.epochs, least=0)
        found.whole("batch_size", self.batch_size, least=1)
        found.number("learning_rate", self.learning_rate, least=0.0)
        found.number("weight_decay", self.weight_decay, least=0.0)
        found.choice("optimiser", self.optimiser, get_args(Optimiser))
        found.choice("schedule", self.schedule, get_args(Schedule))
        if self.clip is not None:
            found.number("clip", self.clip, least=1e-12)
        if self.augmentation is not None:
            found.choice("augmentation", self.augmentation, get_args(Augmentation))
        found.report()

    def to_dict(self) -> dict[str, Any]:
        """Return the settings by name."""
        return asdict(self)
