"""Running statistics of batch-norm layers: which buffers hold them, and how to measure them anew on other samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from forsaken.data.samples import Samples
from forsaken.models.logits import Forward, LogitModel, evaluation

_BATCH = 512
_ORDER = 0  # the seed of the order in which samples are batched: data files are often sorted by class


def statistics_of(model: nn.Module) -> list[str]:
    """Return the names of the layers whose running statistics a model carries, those of exported programs included.

    >>> statistics_of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
    ['1']
    """
    end = "running_mean"
    return [name.removesuffix(end).rstrip(".") for name, _ in model.named_buffers() if name.endswith(end)]


def measure_statistics(model: nn.Module, samples: Samples, *, forward: Forward | None = None) -> list[str]:
    """Replace the running statistics of `model` by those of `samples`, in one pass; return the names of the layers.

    As in training, batch-norm layers normalise by the batch; everything else is in evaluation mode. The sums of all
    batches are pooled, with every sample of the same weight: unlike the moving average of a training, the statistics
    hold nothing of samples that are not in `samples`, and nothing of the order in which a training met them.

    Parameters
    ----------
    model : Module
        Changed in place. Statistics of layers that are no batch-norm modules (in exported programs) stay.
    samples : Samples
        At least two.
    forward : callable, optional
        See `forsaken.models.logits.LogitModel`.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)}
    layers = {name: layer for name, layer in layers.items() if layer.running_mean is not None}
    if not layers or len(samples) < 2:
        return []
    sums = {name: _Sums(layer.num_features) for name, layer in layers.items()}
    kept = [
        (layer, layer.momentum, None if layer.num_batches_tracked is None else layer.num_batches_tracked.clone())
        for layer in layers.values()
    ]
    hooks = [layer.register_forward_pre_hook(sums[name].hook()) for name, layer in layers.items()]
    adapter = LogitModel(model, forward)
    order = np.random.default_rng(_ORDER).permutation(len(samples))
    count = max(1, len(samples) // _BATCH)  # a last batch of one sample has no variance: the batches are of one size
    try:
        with evaluation(model), torch.no_grad():
            for layer, _, _ in kept:
                layer.train()
                layer.momentum = 0.0  # the running statistics stay until all sums are there
            for rows in np.array_split(order, count):
                adapter(adapter.place(samples.rows(np.sort(rows)).inputs))
    finally:
        for hook in hooks:
            hook.remove()
        for layer, momentum, tracked in kept:
            layer.momentum = momentum
            if tracked is not None and layer.num_batches_tracked is not None:
                layer.num_batches_tracked.copy_(tracked)
    for name, layer in layers.items():
        mean, variance = sums[name].moments()
        if layer.running_mean is not None and layer.running_var is not None and sums[name].count > 1:
            layer.running_mean.copy_(mean)
            layer.running_var.copy_(variance)
    return list(layers)


@dataclass(slots=True)
class _Sums:
    """Count, sum and sum of squares of each channel of a layer's inputs."""

    channels: int
    count: int = 0
    first: Tensor | None = None
    second: Tensor | None = None

    def hook(self) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        """Return a hook that adds a batch."""

        def add(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            values = given[0].detach().double().movedim(1, -1).reshape(-1, self.channels)
            first, second = values.sum(0), values.square().sum(0)
            self.first = first if self.first is None else self.first + first
            self.second = second if self.second is None else self.second + second
            self.count += len(values)

        return add

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the unbiased variance; a layer that was never called has neither."""
        if self.first is None or self.second is None:
            return torch.zeros(self.channels), torch.ones(self.channels)
        mean = self.first / self.count
        return mean, (self.second - self.count * mean.square()).clamp(min=0) / max(1, self.count - 1)
