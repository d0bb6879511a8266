"""A wide first layer in few coordinates: a displacement that samples can tell lies in the span of their own inputs.

The gradient of a first linear layer W (out x in) on samples with inputs H (k x in) is always Bᵀ H. The smallest
displacement in the metric A ⊗ G is therefore C L⁻¹H(A + λ)⁻¹ for some C (out x k), where L Lᵀ = H(A + λ)⁻¹Hᵀ: k columns
in place of ten thousand words, and in these coordinates A is the identity. What the samples bring is then a row of L,
and what the layer said before is a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forsaken.data.samples import Samples
from forsaken.models.logits import LogitModel
from forsaken.references.curvature import Curvature
from forsaken.unlearning.forsaken.narrow import first_linear, used_columns

_WORTH = 0.5  # samples beside the used columns, above which the coordinates save nothing
_SLACK = 1e-6  # of the mean, added to the Gram matrix's diagonal: two samples may be equal


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """Coordinates for the weight of a first linear layer, and for its bias.

    Attributes
    ----------
    name, bias : str, str or None
        The weight, and the bias that moves with it.
    used : Tensor, shape (u,)
        The columns that some sample uses; the others stay as they are.
    basis : Tensor, shape (k, u), or (k, u + 1) with the bias last
        What a coordinate adds to the weight.
    weight : Tensor, shape (out, u)
        The weight as it was.
    width : int
        The columns of the whole weight.
    """

    name: str
    bias: str | None
    used: Tensor
    basis: Tensor
    weight: Tensor
    width: int

    @property
    def left_out(self) -> tuple[str, ...]:
        """The parameters that are no part of the space: the coordinates stand for them."""
        return () if self.bias is None else (self.bias,)

    def cut(self, weight: Tensor) -> Tensor:
        """Return where the coordinates begin: nothing is added yet."""
        return weight.new_zeros(len(weight), len(self.basis))

    def inputs(self, given: Tensor) -> Tensor:
        """Return the coordinates of inputs, and beside them what the layer said of them before (without the bias)."""
        rows = given.to(self.basis.device, self.basis.dtype).index_select(1, self.used)
        full = rows if self.bias is None else torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        return torch.cat([full @ self.basis.T, rows @ self.weight.T], 1)

    def thinned(self, placed: Tensor) -> Tensor:
        """Return inputs as `logits` takes them."""
        return placed

    def turned(self, part: Tensor) -> Tensor:
        """Return the weight that the layer takes for `inputs`: the coordinates, and the identity for what it said."""
        eye = torch.eye(len(part), dtype=part.dtype, device=part.device)
        return torch.cat([part, eye], 1)

    def entries(self, part: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Return, by parameter, the flat positions that coordinates change, and by how much."""
        change = part @ self.basis.to(part)
        out = torch.arange(len(part), device=part.device)[:, None] * self.width
        places = (out + self.used.to(part.device)[None, :]).reshape(-1)
        found = {self.name: (places, change[:, : len(self.used)].reshape(-1))}
        if self.bias is not None:
            found[self.bias] = (torch.arange(len(part), device=part.device), change[:, -1])
        return found


def first_layer(
    adapter: LogitModel, samples: Sequence[Samples], curvature: Curvature, damping: float, chosen: frozenset[str]
) -> FirstLayer | None:
    """Return coordinates for a first linear layer that is wide beside the samples; None where there is none such.

    Parameters
    ----------
    adapter : LogitModel
        The model must be that layer, or a plain `nn.Sequential` that begins with it, called with one matrix.
    samples : sequence of Samples
        All that will be passed.
    curvature, damping
        See `Metric`.
    chosen : frozenset of str
        The parameters that may change.
    """
    found = first_linear(adapter)
    if found is None or f"{found[0]}weight" not in chosen or f"{found[0]}weight" not in curvature.factors:
        return None
    name, layer = f"{found[0]}weight", found[1]
    counted = used_columns(layer, samples)
    if counted is None:
        return None
    used, rows = counted.nonzero()[:, 0], sum(map(len, samples))
    if not len(used) or rows > _WORTH * len(used):
        return None
    bias = curvature.factors[name].bias
    bias = bias if bias in chosen else None
    width, device = layer.weight.shape[1], adapter.device
    columns = used if bias is None else torch.cat([used, torch.tensor([width])])
    divide = curvature.divide_inputs(name, damping, device, columns.to(device))
    weight = layer.weight.detach()
    inputs = torch.cat([part.inputs.to(device, weight.dtype) for part in samples])[:, used.to(device)]  # type: ignore[union-attr]
    full = inputs if bias is None else torch.cat([inputs, inputs.new_ones(rows, 1)], 1)
    whitened = divide(full)
    gram = whitened @ full.T
    gram = (gram + gram.T) / 2
    gram.diagonal().add_(_SLACK * float(gram.diagonal().mean()))
    root, failed = torch.linalg.cholesky_ex(gram)
    if int(failed):
        return None
    basis = torch.linalg.solve_triangular(root, whitened, upper=False)
    return FirstLayer(name, bias, used.to(device), basis, weight[:, used.to(device)], width)
