"""Methods that prepare at training time: what they are told, and what it costs."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from forsaken.data.samples import Samples
from forsaken.models.train import Training
from forsaken.types import Progress, silent
from forsaken.unlearning.base import Unlearner


@dataclass(frozen=True, slots=True)
class Cost:
    """What a method pays before the first request, beyond training the model once.

    Attributes
    ----------
    seconds : float
        Of training, with all that the method does on the way.
    bytes : int
        What it keeps on disk or in memory until a request comes.
    unbounded_bytes : int
        What it would keep without a bound on the space.
    """

    seconds: float
    bytes: int
    unbounded_bytes: int

    def to_dict(self) -> dict[str, float | int]:
        """Return the numbers by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Readied:
    """A model that a method trained so that it can forget later; hand `model` to the method with the request."""

    model: nn.Module
    cost: Cost


class UpfrontUnlearner(Unlearner):
    """A method that has to be there when the model is trained. `about.upfront` says what for."""

    @abstractmethod
    def prepare(
        self,
        training: Training,
        data: Samples,
        *,
        seed: int,
        folder: Path | None = None,
        watched: torch.Tensor | None = None,
        progress: Progress = silent,
    ) -> Readied:
        """Train the model in the method's own way.

        Parameters
        ----------
        training : Training
            The network, the recipe and the device.
        data : Samples
            The training data, with labels.
        seed : int
            Decides everything that is drawn.
        folder : Path, optional
            Where the method may keep files; a method that needs one says so.
        watched : int tensor, optional
            Rows that may have to be forgotten, for a method that must know them beforehand.
        progress : callable
            Told about each step.
        """
