"""Inputs that are mostly zero: weights that no sample uses are not looked at, and zeros are not multiplied.

Bags of words and one-hot features are such inputs: two hundred documents use a third of a vocabulary, and each of them
a hundredth. A linear layer that comes first is then as good as one of the used columns alone, times a sparse matrix.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from forsaken.data.nest import leaves
from forsaken.data.samples import Samples
from forsaken.models.logits import LinearModel, LogitModel

_WORTH = 0.75  # the share of used columns below which it pays to leave the others out
_SPARSE = 0.1  # the share of numbers that are not zero, below which a sparse product is faster than a dense one


@dataclass(frozen=True, slots=True)
class Narrow:
    """The columns of the first layer's weight that some sample uses.

    Attributes
    ----------
    name : str
        The weight.
    used : Tensor, shape (u,)
        Its columns, in order.
    width : int
        How many there are in all.
    sparse : bool
        Whether the inputs are mostly zero within these columns too. The weight is then kept transposed, since a sparse
        matrix is multiplied with the rows of the other one.
    """

    name: str
    used: Tensor
    width: int
    sparse: bool = False

    def cut(self, weight: Tensor) -> Tensor:
        """Return the part of the weight that is looked at, as it is kept."""
        narrow = self.inputs(weight)
        return narrow.t().contiguous() if self.sparse else narrow

    def inputs(self, given: Tensor) -> Tensor:
        """Return the used columns of inputs."""
        return given.index_select(-1, self.used.to(given.device))

    def thinned(self, placed: Tensor) -> Tensor:
        """Return inputs in the form in which the first layer takes them fastest: rows without their zeros."""
        if not self.sparse:
            return placed
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            return placed.to_sparse_csr()

    def turned(self, part: Tensor) -> Tensor:
        """Transpose a part, or a matrix that is to be one, where the weight is kept transposed."""
        return part.t() if self.sparse else part

    def positions(self, narrow: Tensor, size: int) -> Tensor:
        """Return where entries of the part that is looked at stand in the weight; both are flat, and it has `size`."""
        used = self.used.to(narrow.device)
        if self.sparse:
            rows, columns = narrow % (size // self.width), narrow // (size // self.width)
        else:
            rows, columns = narrow // len(used), narrow % len(used)
        return rows * self.width + used[columns]


def narrowing(adapter: LogitModel, samples: Iterable[Samples]) -> Narrow | None:
    """Return which columns of a first linear layer these samples use; None where there is none, or nearly all are.

    The model must be that layer, or a plain `nn.Sequential` that begins with it, called with one matrix of floats.
    """
    found, parts = first_linear(adapter), list(samples)
    if found is None or not parts:
        return None
    name, layer = found
    used = used_columns(layer, parts)
    if used is None:
        return None
    count = int(used.sum())
    filled = sum(int((leaf != 0).sum()) for part in parts for leaf in leaves(part.inputs))
    sparse = adapter.device.type == "cpu" and filled <= _SPARSE * sum(map(len, parts)) * count
    if count == 0 or (count > _WORTH * len(used) and not sparse):
        return None
    return Narrow(f"{name}weight", used.nonzero()[:, 0], len(used), sparse)


def first_linear(adapter: LogitModel) -> tuple[str, nn.Linear | LinearModel] | None:
    """Return the linear layer that alone sees the inputs, with the start of its weights' names."""
    found = None if adapter.call is not None else _first(adapter.model, "")
    if found is None:
        return None
    weight = found[1].weight
    shared = sum(other is weight for _, other in adapter.model.named_parameters(remove_duplicate=False))
    return found if shared == 1 and weight.requires_grad else None


def used_columns(layer: nn.Linear | LinearModel, samples: Iterable[Samples]) -> Tensor | None:
    """Return which columns of the layer's weight some sample uses; None where inputs are no matrices of floats."""
    used = torch.zeros(layer.weight.shape[1], dtype=torch.bool)
    for part in samples:
        rows = part.inputs
        if not isinstance(rows, Tensor) or rows.dim() != 2 or not rows.is_floating_point():
            return None
        if rows.shape[1] != len(used):
            return None
        used |= (rows != 0).any(0).cpu()
    return used


def _first(module: nn.Module, name: str) -> tuple[str, nn.Linear | LinearModel] | None:
    """Return the layer that sees the inputs first, with the start of its weights' names, if it is a linear one."""
    if any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)) or "forward" in vars(module):
        return None
    if type(module) is nn.Linear or type(module) is LinearModel:
        return name, module
    if type(module) is nn.Sequential and len(module):
        first = next(iter(module._modules))
        return _first(module[0], f"{name}{first}.")
    return None
