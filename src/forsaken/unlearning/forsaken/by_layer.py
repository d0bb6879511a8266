"""ω layer by layer: what goes into each layer and what comes back to it tell every sample's gradient in one pass.

The gradient of one sample's loss with respect to a linear layer's weight is the outer product δ aᵀ of what comes back
to the layer's output and what went in; its magnitude is |δ| |a|ᵀ, and the sum over samples one matrix product. Where
a weight is used at many places of a sample (convolutions, sequences), the outer products of the places are added up
first, by one product a sample. Whether the rules know a model is not looked up but tried: on a few samples they must
say what autograd says of each sample alone.
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
_AGREED, _ROUNDING = 1e-2, 1e-5  # how far they may be off there: of a part's importance, and of the largest part's
UNKNOWN = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AttributeError)


@dataclass
class Seen:
    """What went into a layer, and what came out of it."""

    given: Tensor
    output: Tensor


def _products(one: Tensor, other: Tensor, of: Of, numbers: int, ready: Of = lambda part: part) -> Tensor:
    """Return Σ_n of(one_n · ready(other)_nᵀ), few samples at a time; `numbers`: what a sample's product takes."""
    size = max(1, _AT_ONCE // max(1, numbers))
    pairs = zip(torch.split(one, size), torch.split(other, size), strict=True)
    return reduce(Tensor.add_, (of(left @ ready(right).transpose(-1, -2)).sum(0) for left, right in pairs))


def _linear(layer: nn.Linear, given: Tensor, back: Tensor, of: Of) -> dict[str, Tensor]:
    del layer
    if given.dim() == 2:
        return {"weight": of(back).T @ of(given), "bias": of(back).sum(0)}
    given, back = given.flatten(1, -2), back.flatten(1, -2)
    weight = _products(back.mT, given.mT, of, back.shape[2] * given.shape[2])
    return {"weight": weight, "bias": of(back.sum(1)).sum(0)}


def _convolution(layer: nn.Conv1d | nn.Conv2d, given: Tensor, back: Tensor, of: Of) -> dict[str, Tensor]:
    flat, padding = isinstance(layer, nn.Conv1d), layer.padding
    if layer.padding_mode != "zeros" or isinstance(padding, str):
        raise NotImplementedError

    def both(value: tuple[int, ...], first: int) -> tuple[int, ...]:
        return (first, *value) if flat else value

    def unfolded(part: Tensor) -> Tensor:
        seen = nn.functional.unfold(
            part.unsqueeze(2) if flat else part,
            both(layer.kernel_size, 1),
            dilation=both(layer.dilation, 1),
            padding=both(padding, 0),
            stride=both(layer.stride, 1),
        )
        return seen if layer.groups == 1 else seen.reshape(len(seen), layer.groups, -1, seen.shape[2])

    places = back.flatten(2)
    grouped = places if layer.groups == 1 else places.reshape(len(places), layer.groups, -1, places.shape[2])
    seen = layer.weight[0].numel() * layer.groups * places.shape[2]  # numbers that a sample becomes
    weight = _products(grouped, given, of, max(layer.weight.numel(), seen), unfolded)
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


@contextmanager
def _exact() -> Iterator[None]:
    """Let a GPU convolve without rounding its inputs: what is compared must not differ by that."""
    cudnn = torch.backends.cudnn
    if not torch.cuda.is_available():
        yield
        return
    with cudnn.flags(
        enabled=cudnn.enabled, benchmark=cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False
    ):
        yield


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
        model = space.adapter.model
        for name, module in model.named_modules():
            rule = next((rule for kind, rule in RULES.items() if isinstance(module, kind)), None)
            own = [own for own, _ in module.named_parameters(name, recurse=False)]
            if rule is not None and not space.parts.keys().isdisjoint(own):
                self.owners[name] = module, rule
        every = [weight for _, weight in model.named_parameters(remove_duplicate=False)]
        self._shared = len(every) > len({id(weight) for weight in every})

    def knows(self, inputs: Nest, labels: Tensor) -> bool:
        """Return whether the rules say what autograd says of single samples, on a few of these."""
        if self._shared or not {name.rpartition(".")[0] for name in self.space.parts} <= self.owners.keys():
            return False
        rows = torch.linspace(0, len(labels) - 1, min(_TRIED, len(labels))).long().to(labels.device)
        few, labels = map_nest(lambda leaf: leaf[rows.to(leaf.device)], inputs), labels[rows]
        try:
            with _exact():
                found = self.sums(few, labels, torch.abs)
                expected = self._one_by_one(few, labels)
        except UNKNOWN:
            return False  # a layer is called in a way of its own; what is truly wrong shows again elsewhere
        sizes = [float(part.norm()) for part in expected]
        return all(
            size > 0 and float((ours - part).norm()) <= _AGREED * size + _ROUNDING * max(sizes)
            for ours, part, size in zip(found, expected, sizes, strict=True)
        )

    def _one_by_one(self, inputs: Nest, labels: Tensor) -> list[Tensor]:
        """Return the sums of magnitudes of single samples' gradients."""
        weights = list(self.space.parts.values())
        sums = [torch.zeros_like(weight) for weight in weights]
        for at in range(len(labels)):
            alone = map_nest(lambda leaf, at=at: leaf[at : at + 1], inputs)  # type: ignore[misc]
            value = self._total(self.space.logits(alone), labels[at : at + 1])
            for part, found in enumerate(torch.autograd.grad(value, weights, allow_unused=True)):
                if found is not None:
                    sums[part] += (found.to_dense() if found.is_sparse else found).abs()
        return sums

    def sums(self, inputs: Nest, labels: Tensor, of: Of) -> list[Tensor]:
        """Return Σ over samples of `of` of their gradients, part by part; raises one of `UNKNOWN` where no rule holds.

        `of` must turn products into products, as magnitudes and squares do.
        """
        parts = {name: part.detach() for name, part in self.space.parts.items()}
        with self._watched(len(labels)) as seen:
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
    def _watched(self, count: int) -> Iterator[dict[str, Seen]]:
        """Note what goes into the layers and comes out, while the model is called."""
        seen: dict[str, Seen] = {}

        def watch(name: str) -> Callable[..., Tensor]:
            def note(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
                del module
                known = len(given) == 1 and isinstance(given[0], Tensor) and isinstance(output, Tensor)
                if name in seen or not known or not len(given[0]) == len(output) == count:
                    raise NotImplementedError("a layer that is called twice, or not with one row for each sample")
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
