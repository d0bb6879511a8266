"""A plan: what a scenario is before its data are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from forsaken.bench.scenarios.scenario import Frame, Scenario
from forsaken.bench.scenarios.splits import Sizes
from forsaken.recipe import Network, Recipe
from forsaken.types import Progress


@dataclass(frozen=True, slots=True)
class Paper:
    """What the paper reports for a scenario (None: nothing). Rates are shares, not percentages.

    Attributes
    ----------
    train_accuracy, test_accuracy : float, optional
        Where strangers are forgotten, with them learnt; else without any (Table neural_network_performance).
    memorised : int, optional
        BT: how many of the 200 forget samples its oracle took for members before.
    oracle : float, optional
        The balanced accuracy that its accuracy, precision and recall imply (Table membership_inference).
    fr, retrained_fr : float, optional
        The forgetting rate of its method and of full retraining.
    parameters : str
        The size of its network.
    """

    train_accuracy: float | None = None
    test_accuracy: float | None = None
    memorised: int | None = None
    oracle: float | None = None
    fr: float | None = None
    retrained_fr: float | None = None
    parameters: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return what is reported, by name."""
        return {key: value for key, value in asdict(self).items() if value not in (None, "")}


@dataclass(frozen=True, slots=True)
class Plan:
    """One row of the table of scenarios.

    Attributes
    ----------
    summary : str
        What is learnt and what is forgotten, in a line.
    datasets : tuple of str
        What must lie in the data folder.
    classes : int
        Of the task.
    build : callable
        ``build(plan, seed, progress)`` returns the scenario.
    options : mapping
        What the builder needs to know beside the sizes.
    note : str
        Where it departs from the paper, and why.
    """

    name: str
    summary: str
    datasets: tuple[str, ...]
    classes: int
    network: Network
    recipe: Recipe
    build: Callable[[Plan, int, Progress], Scenario]
    sizes: Sizes = field(default_factory=Sizes)
    options: Mapping[str, Any] = field(default_factory=dict)
    paper: Paper | None = None
    note: str = ""

    def frame(self, seed: int) -> Frame:
        """Return what the scenario of a seed is, apart from its samples."""
        return Frame(self.name, seed, self.classes, self.sizes, self.network, self.recipe)
