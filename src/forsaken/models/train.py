"""The training loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from forsaken._random import torch_seed
from forsaken.data.nest import Nest, map_nest
from forsaken.data.samples import Samples
from forsaken.errors import InputError, NonFiniteError
from forsaken.types import Progress, Tick, silent


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a network is trained: Adam on the cross-entropy."""

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float = 0.0


def train(
    build: Callable[[], nn.Module],
    data: Samples,
    recipe: Recipe,
    *,
    seed: int,
    progress: Progress = silent,
    stage: str = "train",
) -> nn.Module:
    """Build a network and train it; the same seed gives the same weights.

    Parameters
    ----------
    build : callable
        Returns a new network; its initial weights follow `seed`.
    data : Samples
        Inputs and labels.
    recipe : Recipe
        Epochs, batch size, learning rate, weight decay.
    seed : int
        Decides the initial weights, the order of the samples and dropout.
    progress, stage
        Who is told about the epochs, and under which name.

    Returns
    -------
    Module
        In evaluation mode.
    """
    if data.labels is None:
        raise InputError("training needs labels; give (inputs, labels)")
    labels = data.labels
    with torch_seed(seed):
        network = build()
        network.train()
        optimiser = torch.optim.Adam(network.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
        for epoch in range(recipe.epochs):
            order = torch.randperm(len(data))
            for rows in torch.split(order, recipe.batch_size):
                loss = nn.functional.cross_entropy(network(_take(data.inputs, rows)), labels[rows])
                optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
            if not bool(torch.isfinite(loss)):
                raise NonFiniteError(f"the training loss is {loss.item()} in epoch {epoch + 1}; lower the rate")
            progress(Tick(stage, epoch + 1, recipe.epochs))
    return network.eval()


def _take(inputs: Nest, rows: torch.Tensor) -> Nest:
    return map_nest(lambda leaf: leaf[rows], inputs)
