"""Any model of a scenario, trained: a network by the training loop, a linear model by scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from forsaken.data.nest import leaves
from forsaken.data.samples import Samples
from forsaken.data.scenario import Scenario
from forsaken.errors import InputError
from forsaken.models.nets import build
from forsaken.models.train import Training
from forsaken.types import Progress, Tick, silent

# Weakly regularised, since the experiments rest on what a model memorises.
ESTIMATORS: dict[str, Callable[[int], Any]] = {
    "logistic-regression": lambda seed: LogisticRegression(C=100.0, max_iter=1000, random_state=seed),
    "svm": lambda seed: LinearSVC(C=10.0, max_iter=5000, random_state=seed),
}


def parameter_count(scenario: Scenario) -> int:
    """Return how many trainable parameters the scenario's model has."""
    if scenario.network.name in ESTIMATORS:
        width = sum(leaf[0].numel() for leaf in leaves(scenario.kept.inputs))
        columns = 1 if scenario.classes == 2 else scenario.classes
        return columns * (width + 1)
    network = build(scenario.network, scenario.given)
    return sum(weight.numel() for weight in network.parameters() if weight.requires_grad)


def training_of(scenario: Scenario, device: str | torch.device = "cpu") -> Training:
    """Return how the scenario's network is trained, for methods that train again."""
    return Training(lambda: build(scenario.network, scenario.given), scenario.recipe, device)


def fit(
    scenario: Scenario,
    data: Samples,
    *,
    seed: int,
    device: str | torch.device = "cpu",
    progress: Progress = silent,
    stage: str = "train",
) -> Any:
    """Train the scenario's model on `data`; the same seed gives the same weights.

    Parameters
    ----------
    scenario : Scenario
        Says which model, and how it is trained.
    data : Samples
        Inputs and labels: the scenario's `train`, `kept` or `shadow_members`, or rows of them.
    seed : int
        Decides initial weights, order and dropout.
    device : str or device
        Where to train a network; "auto" is the first GPU, or the CPU.
    progress, stage
        Who is told, and under which name.

    Returns
    -------
    Module or estimator
        A network in evaluation mode, or a fitted scikit-learn estimator.
    """
    name = scenario.network.name
    if name not in ESTIMATORS:
        return training_of(scenario, device).run(data, seed=seed, progress=progress, stage=stage)
    if data.labels is None:
        raise InputError("training needs labels; give (inputs, labels)")
    progress(Tick(stage, 0, 1))
    (inputs,) = leaves(data.inputs)
    estimator = ESTIMATORS[name](seed).fit(inputs.flatten(1).numpy(), data.labels.numpy())
    progress(Tick(stage, 1, 1))
    return estimator
