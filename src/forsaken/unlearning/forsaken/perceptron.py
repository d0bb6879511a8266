"""ω of a perceptron, without a gradient for each sample: its layers are products, and so are their gradients.

The gradient of one sample's loss with respect to a linear layer's weight is the outer product δ aᵀ of what comes back
to the layer's output and what went in. Its magnitude is |δ| |a|ᵀ, and the sum over samples one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import vmap

from forsaken.models.logits import as_logits
from forsaken.unlearning.forsaken.space import ParameterSpace

# Layers that look at each sample, and each number of it, alone. In evaluation mode dropout does nothing.
PLAIN = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Dropout, nn.Identity)


def layers(model: nn.Module, name: str = "") -> list[tuple[str, nn.Module]] | None:
    """Return the layers of a perceptron in their order, by name; None of any other model."""
    if any((model._forward_hooks, model._forward_pre_hooks, model._backward_hooks)) or "forward" in vars(model):
        return None
    if type(model) in (*PLAIN, nn.Linear):
        return [(name, model)]
    if type(model) is not nn.Sequential:
        return None
    found: list[tuple[str, nn.Module]] = []
    for own, child in model._modules.items():  # not named_children, which leaves out a layer that is there twice
        below = None if child is None else layers(child, f"{name}.{own}" if name else own)
        if below is None:
            return None
        found += below
    return found


def perceptron_importance(
    space: ParameterSpace,
    inputs: object,
    labels: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    of: Callable[[Tensor], Tensor],
) -> list[Tensor] | None:
    """Return the sum over samples of `of` of each gradient, part by part; None where the model is no perceptron.

    `of` must turn products into products, as magnitudes and squares do. The other parameters are as in `importance`.
    """
    order = layers(space.adapter.model) if space.adapter.call is None else None
    if order is None or not isinstance(inputs, Tensor) or inputs.dim() != 2 or not inputs.is_floating_point():
        return None
    weights: dict[str, Tensor] = dict(space.adapter.model.named_parameters())
    weights |= {name: space.turned(name, part).to(space.dtypes[name]) for name, part in space.parts.items()}
    into: dict[str, Tensor] = {}
    out: dict[str, Tensor] = {}
    flow = inputs
    for name, module in order:
        if not isinstance(module, nn.Linear):
            flow = module(flow.clone() if getattr(module, "inplace", False) else flow)
            continue
        start = f"{name}." if name else ""
        own = [f"{start}{kind}" for kind in ("weight", "bias") if getattr(module, kind) is not None]
        if start in into or any(each not in weights for each in own):  # there twice, or shared with another layer
            return None
        into[start] = flow.detach()
        flow = nn.functional.linear(flow, *(weights[each].detach() for each in own))
        out[start] = flow = flow if flow.requires_grad else flow.requires_grad_(True)
    known = {f"{start}{kind}" for start in out for kind in ("weight", "bias")}
    if not known.issuperset(space.parts):  # parameters that are no layer's
        return None
    values = vmap(lambda z, label: loss(z.unsqueeze(0), label.unsqueeze(0)))(as_logits(flow), labels)
    back = dict(zip(out, torch.autograd.grad(values.sum(), list(out.values())), strict=True))
    sums = []
    for name in space.parts:
        layer, dot, kind = name.rpartition(".")
        start = layer + dot
        delta = of(back[start].to(space.dtype))
        found = delta.sum(0) if kind == "bias" else delta.T @ of(into[start].to(space.dtype))
        sums.append(space.turned(name, found))
    return sums
