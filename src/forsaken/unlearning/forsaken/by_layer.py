"""ω layer by layer: what goes into each layer and what comes back to it tell every sample's gradient in one pass.

The gradient of one sample's loss with respect to a linear layer's weight is the outer product δ aᵀ of what comes back
to the layer's output and what went in; its magnitude is |δ| |a|ᵀ, and the sum over samples one matrix product. Where
a weight is used at many places of a sample (convolutions, sequences), the outer products of the places are added up
first, by one product a sample. Whether the rules know a model is not looked up but tried: on a few samples their
gradients must add up to what autograd says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from forsaken.data.nest import Nest, map_nest
from forsaken.unlearning.forsaken.space import ParameterSpace

Of = Callable[[Tensor], Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]

_AT_ONCE = 2**25  # numbers of gradients held at once: 128 MiB in float32
_TRIED = 4  # samples on which the rules are tried
_AGREED = 1e-2  # how far they may be from autograd there, relative to the gradients' size; a GPU rounds inputs to TF32


@dataclass
class Seen:
    """What went into a layer, and what came out of it."""

    given: Tensor
    output: Tensor


def _in_parts(one: Tensor, other: Tensor, of: Of) -> Tensor:
    """Return Σ_n of(one_n · other_nᵀ) for matrices with one more axis of samples in front, few samples at a time."""
    size = max(1, _AT_ONCE // max(1, one.shape[-2] * other.shape[-2] * (one.shape[1] if one.dim() == 4 else 1)))
    pairs = zip(torch.split(one, size), torch.split(other, size), strict=True)
    return reduce(Tensor.add_, (of(left @ right.transpose(-1, -2)).sum(0) for left, right in pairs))


def _linear(layer: nn.Linear, given: Tensor, back: Tensor, of: Of) -> dict[str, Tensor]:
    del layer
    if given.dim() == 2:
        return {"weight": of(back).T @ of(given), "bias": of(back).sum(0)}
    given, back = given.flatten(1, -2), back.flatten(1, -2)
    return {"weight": _in_parts(back.mT, given.mT, of), "bias": of(back.sum(1)).sum(0)}


def _convolution(layer: nn.Conv1d | nn.Conv2d, given: Tensor, back: Tensor, of: Of) -> dict[str, Tensor]:
    flat = isinstance(layer, nn.Conv1d)
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise NotImplementedError

    def both(value: tuple[int, ...], first: int) -> tuple[int, ...]:
        return (first, *value) if flat else value

    seen = nn.functional.unfold(
        given.unsqueeze(2) if flat else given,
        both(layer.kernel_size, 1),
        dilation=both(layer.dilation, 1),
        padding=both(layer.padding, 0),
        stride=both(layer.stride, 1),
    )
    places, groups = back.flatten(2), layer.groups
    if groups > 1:
        one, other = (part.reshape(len(part), groups, -1, part.shape[2]) for part in (places, seen))
    else:
        one, other = places, seen
    weight = _in_parts(one, other, of)
    return {"weight": weight.reshape(layer.weight.shape), "bias": of(places.sum(2)).sum(0)}


def _batch_norm(layer: Any, given: Tensor, back: Tensor, of: Of) -> dict[str, Tensor]:
    if layer.training or layer.running_mean is None:
        raise NotImplementedError
    shape = (1, -1, *[1] * (given.dim() - 2))
    mean, deviation = layer.running_mean.view(shape), (layer.running_var + layer.eps).sqrt().view(shape)
    places = tuple(range(2, given.dim()))
    product, plain = (given - mean) / deviation * back, back
    if places:
        product, plain = product.sum(places), plain.sum(places)
    return {"weight": of(product).sum(0), "bias": of(plain).sum(0)}


def _layer_norm(layer: nn.LayerNorm, given: Tensor, back: Tensor, of: Of) -> dict[str, Tensor]:
    normed = nn.functional.layer_norm(given, layer.normalized_shape, eps=layer.eps)
    between = tuple(range(1, given.dim() - len(layer.normalized_shape)))
    product, plain = normed * back, back
    if between:
        product, plain = product.sum(between), plain.sum(between)
    return {"weight": of(product).sum(0), "bias": of(plain).sum(0)}


def _embedding(layer: nn.Embedding, given: Tensor, back: Tensor, of: Of) -> dict[str, Tensor]:
    if layer.max_norm is not None or layer.scale_grad_by_freq:
        raise NotImplementedError
    words, skipped = layer.num_embeddings, -1 if layer.padding_idx is None else layer.padding_idx
    sample = torch.arange(len(given), device=given.device).view(-1, *[1] * (given.dim() - 1))
    pairs, where = torch.unique(sample * words + given, return_inverse=True)  # a word of a sample is one pair

    def gathered(values: Tensor, rows: Tensor, count: int, skip: int) -> Tensor:
        # torch's own sum of an embedding's gradient: unlike index_add it gives the same bits each time on a GPU
        return torch.ops.aten.embedding_dense_backward(values, rows, count, skip, False)  # type: ignore[no-any-return]

    each = gathered(back.flatten(0, -2), where.flatten(), len(pairs), -1)
    return {"weight": gathered(of(each), pairs % words, words, skipped)}


RULES: dict[type[nn.Module], Callable[[Any, Tensor, Tensor, Of], dict[str, Tensor]]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
}


class ByLayer:
    """The layers of a model that have a rule, for the parameters of a space.

    Parameters
    ----------
    space : ParameterSpace
        The parameters; the model must be in evaluation mode.
    loss : callable
        The loss of one sample.
    """

    def __init__(self, space: ParameterSpace, loss: Loss) -> None:
        self.space, self.loss = space, loss
        self.owners: dict[str, tuple[nn.Module, Callable[..., dict[str, Tensor]]]] = {}
        for name, module in space.adapter.model.named_modules():
            rule = next((rule for kind, rule in RULES.items() if isinstance(module, kind)), None)
            own = [own for own, _ in module.named_parameters(name, recurse=False)]
            if rule is not None and not space.parts.keys().isdisjoint(own):
                self.owners[name] = module, rule

    def knows(self, inputs: Nest, labels: Tensor) -> bool:
        """Return whether the rules say what autograd says, on the first of these samples."""
        few, labels = map_nest(lambda leaf: leaf[:_TRIED], inputs), labels[:_TRIED]
        names, weights = list(self.space.parts), list(self.space.parts.values())
        if not {name.rpartition(".")[0] for name in names} <= self.owners.keys():
            return False
        try:
            with self._watched() as seen:
                logits = self.space.logits(few)
                total, outputs = self._total(logits, labels), [each.output for each in seen.values()]
                found = torch.autograd.grad(total, [*outputs, *weights], allow_unused=True)
            back = dict(zip(seen, found, strict=False))
            plain, size = (self._sums(seen, back, of) for of in (torch.clone, torch.abs))
            alone = self.space.logits(map_nest(lambda leaf: leaf[:1], few))
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
            return False  # a layer is called in a way of its own, or twice; what is truly wrong shows again elsewhere
        expected = [0 * size[name] if g is None else g for name, g in zip(names, found[len(seen) :], strict=True)]
        apart = float((alone - logits[:1]).detach().abs().max())  # does a sample's answer depend on the others?
        return apart <= _AGREED * (1 + float(logits.detach().abs().max())) and all(
            float((plain[name] - (g.to_dense() if g.is_sparse else g)).norm()) <= _AGREED * float(size[name].norm())
            for name, g in zip(names, expected, strict=True)
        )

    def sums(self, inputs: Nest, labels: Tensor, of: Of) -> list[Tensor]:
        """Return Σ over samples of `of` of their gradients, part by part.

        `of` must turn products into products, as magnitudes and squares do.
        """
        parts = {name: part.detach() for name, part in self.space.parts.items()}
        with self._watched() as seen:
            total = self._total(self.space.logits(inputs, parts), labels)
            found = torch.autograd.grad(total, [each.output for each in seen.values()], allow_unused=True)
        return list(self._sums(seen, dict(zip(seen, found, strict=True)), of).values())

    def _total(self, logits: Tensor, labels: Tensor) -> Tensor:
        return vmap(lambda z, label: self.loss(z.unsqueeze(0), label.unsqueeze(0)))(logits, labels).sum()

    def _sums(self, seen: dict[str, Seen], back: Mapping[str, Tensor | None], of: Of) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, each in seen.items():
            module, rule = self.owners[name]
            came = back[name]
            if came is None:
                continue
            given = each.given.to(self.space.dtype) if each.given.is_floating_point() else each.given
            for kind, value in rule(module, given, came.to(self.space.dtype), of).items():
                found[f"{name}.{kind}" if name else kind] = value
        return {
            name: self.space.turned(name, found[name]).reshape(part.shape) if name in found else torch.zeros_like(part)
            for name, part in self.space.parts.items()
        }

    @contextmanager
    def _watched(self) -> Iterator[dict[str, Seen]]:
        """Note what goes into the layers and comes out, while the model is called."""
        seen: dict[str, Seen] = {}

        def watch(name: str) -> Callable[..., Tensor]:
            def note(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
                del module
                if name in seen or len(given) != 1:
                    raise NotImplementedError("a layer that is called twice, or with more than its input")
                output = output if output.requires_grad else output.requires_grad_(True)
                seen[name] = Seen(given[0].detach(), output)
                return output.clone()  # what comes next may write into it

            return note

        handles = [module.register_forward_hook(watch(name)) for name, (module, _) in self.owners.items()]
        try:
            yield seen
        finally:
            for handle in handles:
                handle.remove()
