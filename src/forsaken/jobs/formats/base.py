"""A model of the user's, read from a file: what is unlearned, how it takes records, and how it is written back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forsaken.data.records import Records
from forsaken.models.logits import Forward


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a job file says of the model.

    Attributes
    ----------
    weights : Path
        The file or folder.
    factory, arguments
        Builds the network that weights alone do not describe.
    trusted : tuple of str
        Types that skops may load beyond its own list.
    """

    weights: Path
    factory: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    trusted: tuple[str, ...] = ()


class Format(ABC):
    """A model in one file format. Subclasses read it in the constructor.

    Attributes
    ----------
    name : str
        What a certificate calls the format.
    model : Module or estimator
        What is unlearned.
    forward : callable or None
        How to call it, where its output is not the logits themselves.
    classes : array or None
        The labels that the model itself knows, in the order of its logits.
    """

    name: str
    model: Any
    forward: Forward | None = None
    classes: Any = None

    @abstractmethod
    def __init__(self, checkpoint: Checkpoint) -> None:
        """Read the model."""

    @abstractmethod
    def write(self, model: Any, goal: Path) -> None:
        """Write a model of this kind to `goal` as the original was written."""

    def prepare(self, parts: Sequence[Records]) -> list[Any] | None:  # noqa: ARG002
        """Return what the model takes for each of these sets of records; None where the format does not know."""
        return None
