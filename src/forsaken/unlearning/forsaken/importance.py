"""ω: how much each parameter matters to the samples that are to be kept (Eq. penalty_omega).

ω_d = mean over D_0 of |∂ loss(x) / ∂θ_d|, the absolute value *inside* the mean: gradients are taken sample by
sample. A batch gradient would let samples cancel each other and depend on the batch size.

There are three ways to the gradients of single samples, tried in this order for the same result: rules for the common
kinds of layers, which need one pass over many samples (`LayerRules`); `torch.func.vmap`, which needs memory for the
gradients of a chunk of samples; and one sample after the other, for layers that vmap cannot batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from forsaken.data.nest import Nest, map_nest
from forsaken.data.samples import Samples
from forsaken.errors import InputError, NonFiniteError
from forsaken.models.layers import hooked, patches
from forsaken.models.logits import centre, differentiable
from forsaken.types import Progress, Tick
from forsaken.unlearning.forsaken.parameters import ParameterSpace, default_batch_size
from forsaken.unlearning.settings import choice, number

_CHUNK_NUMBERS = 2**25  # gradient entries held at once: 128 MiB in float32
_ROWS = 256  # samples in a pass, where layers have rules
_TRIED = 4  # samples on which the rules are checked against autograd
_AGREED, _ROUNDING = 1e-2, 1e-5  # differences allowed there: relative to the part's own norm, to the largest part's
_NO_RULE = (RuntimeError, TypeError, ValueError, LookupError, AttributeError)

Map: TypeAlias = Callable[[Tensor], Tensor]
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Settings of how "owlqn" and "lbfgs" use ω: s = (ω / mean ω + f)^(−p), and the weights w of the L1 term.

    Attributes
    ----------
    power : float
        p, the power of ω in the coordinates; 0 leaves the coordinates as they are.
    floor : float
        f, below which ω is not told from zero.
    weights : {"none", "importance", "importance-raw"}
        w: 1; ω / mean ω + f; ω itself, as in the paper.
    """

    power: float = number(0.25, "p, the power of the importance in the coordinates")
    floor: float = number(0.01, "f, added to the importance over its mean", least=1e-6)
    weights: str = choice("none", "weights of the L1 term", ("importance", "importance-raw", "none"))


def logit_energy(logits: Tensor, label: Tensor) -> Tensor:  # noqa: ARG001 (one signature for all losses)
    """½ Σ c(z)², c subtracts the mean over the classes. Its gradient does not vanish on memorised samples."""
    return 0.5 * centre(logits).square().sum()


def cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Return the paper's loss. It and its gradients are nearly zero on memorised samples."""
    return torch.nn.functional.cross_entropy(logits, label)


LOSSES: dict[str, Loss] = {"logits": logit_energy, "loss": cross_entropy}


def scaled(omega: Tensor, count: int | None = None, floor: float = 0.01) -> Tensor:
    """Return ω / mean ω + floor: on the scale of 1 whatever the model, and nowhere zero; 1 where ω is all zero.

    The mean is over `count` parameters where that is more than ω has entries: ω is zero at the others.
    """
    mean = omega.sum() / (omega.numel() if count is None else count)
    return torch.where(mean > 0, omega / mean.clamp_min(torch.finfo(omega.dtype).tiny) + floor, torch.ones_like(omega))


def importance(
    space: ParameterSpace,
    samples: Samples,
    kind: str,
    progress: Progress,
    *,
    of: Map = Tensor.abs,
    batch_size: int | None = None,
) -> Tensor:
    """Return ω, shape (d,), from the gradients of single samples at the current θ.

    Parameters
    ----------
    space : ParameterSpace
        The parameters; the model must be in evaluation mode.
    samples : Samples
        D_0, with labels for ``kind="loss"``.
    kind : {"logits", "loss"}
        Whose gradient: of the logits' energy, or of the cross-entropy as in the paper.
    progress : callable
        Called with the number of samples done.
    of : callable
        What of each sample's gradient is averaged, entry by entry: its magnitude, or its square. It must map products
        to products.
    batch_size : int, optional
        The most samples in a pass, where layers have rules.

    Notes
    -----
    Memory: about `_CHUNK_NUMBERS` gradient entries, and the activations of one pass.
    """
    loss, labels = LOSSES[kind], samples.labels
    if labels is None:
        if kind == "loss":
            raise InputError(
                'importance="loss" needs labels of the retain samples; give retain=(inputs, labels), '
                'or importance="logits"'
            )
        labels = torch.zeros(len(samples), dtype=torch.long)
    labels = labels.to(space.adapter.device)
    total = torch.zeros(space.size, dtype=space.dtype, device=space.adapter.device)
    sizes = {
        _by_rules: min(_ROWS, batch_size or default_batch_size(space.adapter, samples) or _ROWS),
        _by_vmap: max(1, min(len(samples), _CHUNK_NUMBERS // max(1, space.size))),
        _one_by_one: 1,
    }
    done = 0
    for way, size in sizes.items():
        for sums, count in way(space, samples, labels, loss, of, done, size):
            for cut, part in zip(space.slices.values(), sums, strict=True):
                if part is not None:
                    total[cut] += part.reshape(-1)
            done += count
            progress(Tick("importance", done, len(samples)))
    omega = total / len(samples)
    if not bool(torch.isfinite(omega).all()):
        raise NonFiniteError("the importance of some parameters is NaN or infinite; check the model's weights")
    return omega


Sums: TypeAlias = Iterator[tuple[Sequence[Tensor | None], int]]
"""Sums over some samples, part by part of a space, and over how many; ends where a way cannot go on."""


def _by_rules(
    space: ParameterSpace, samples: Samples, labels: Tensor, loss: Loss, of: Map, done: int, size: int
) -> Sums:
    """Go layer by layer, until the model or a sample has no rule."""
    layers = LayerRules(space, loss)
    while done < len(samples):
        part = samples.rows(range(done, min(done + size, len(samples))))
        inputs, label = space.place(part.inputs), labels[done : done + len(part)]
        if done == 0 and not layers.agree(inputs, label):
            return
        try:
            sums = layers.sums(inputs, label, of)
        except torch.OutOfMemoryError:
            if size == 1:
                return
            size //= 2
            continue
        except _NO_RULE:  # these samples take another path through the model than those before them
            return
        yield sums, len(part)
        done += len(part)


def _by_vmap(
    space: ParameterSpace, samples: Samples, labels: Tensor, loss: Loss, of: Map, done: int, size: int
) -> Sums:
    """Go in chunks of samples, where vmap can batch every layer and a chunk has more than one sample."""

    def one(parts: dict[str, Tensor], inputs: object, label: Tensor) -> Tensor:
        single = map_nest(lambda leaf: leaf.unsqueeze(0), inputs)  # type: ignore[arg-type]
        return loss(space.logits(single, parts), label.unsqueeze(0))

    together = vmap(grad(one), in_dims=(None, 0, 0))
    detached = {name: part.detach() for name, part in space.parts.items()}
    while size > 1 and done < len(samples):
        part = samples.rows(range(done, min(done + size, len(samples))))
        inputs, label = space.place(part.inputs), labels[done : done + len(part)]
        try:
            with warnings.catch_warnings():
                # vmap tells its own developers where it loops inside; a user cannot act on it
                warnings.filterwarnings("ignore", message="There is a performance drop")
                gradients = together(detached, inputs, label)
        except RuntimeError:  # a layer that vmap cannot batch; any other fault shows again one by one
            return
        yield [of(gradients[name]).sum(0) for name in space.parts], len(part)
        done += len(part)


def _one_by_one(
    space: ParameterSpace, samples: Samples, labels: Tensor, loss: Loss, of: Map, done: int, size: int
) -> Sums:
    """Go sample by sample, with any model."""
    for at in range(done, len(samples), size):
        inputs = space.place(samples.rows(range(at, at + 1)).inputs)
        yield _single(space, inputs, labels[at : at + 1], loss, of), 1


def _single(space: ParameterSpace, inputs: Nest, label: Tensor, loss: Loss, of: Map) -> list[Tensor | None]:
    """Return `of` of the gradient of one sample, part by part; None for parts that play no role."""
    logits = differentiable(space.logits(inputs))
    found = torch.autograd.grad(loss(logits, label), list(space.parts.values()), allow_unused=True)
    return [None if g is None else of(g.to_dense() if g.is_sparse else g) for g in found]


# --- rules for layers ------------------------------------------------------------------------------------------------
#
# A rule takes a layer, its input a, the gradient δ that comes back to its output (one row a sample in both) and `of`,
# and returns Σ over samples of `of` of the sample's gradient, by the layer's own parameter names. The gradient of a
# linear layer's weight is the outer product δ aᵀ. Where a weight is used at many positions of a sample (convolutions,
# sequences), the outer products of the positions are added up first, by one product a sample.


def _products(one: Tensor, other: Tensor, of: Map, numbers: int, ready: Map = lambda part: part) -> Tensor:
    """Return Σ_n of(one_n · ready(other)_nᵀ), a few samples n at a time; one sample's product takes `numbers`."""
    size = max(1, _CHUNK_NUMBERS // max(1, numbers))
    pairs = zip(torch.split(one, size), torch.split(other, size), strict=True)
    return reduce(Tensor.add_, (of(left @ ready(right).transpose(-1, -2)).sum(0) for left, right in pairs))


def _linear(layer: nn.Linear, given: Tensor, back: Tensor, of: Map) -> dict[str, Tensor]:
    del layer
    if given.dim() == 2:  # |δ aᵀ| = |δ| |a|ᵀ, so that the sum over samples is one matrix product
        return {"weight": of(back).T @ of(given), "bias": of(back).sum(0)}
    given, back = given.flatten(1, -2), back.flatten(1, -2)
    weight = _products(back.mT, given.mT, of, back.shape[2] * given.shape[2])
    return {"weight": weight, "bias": of(back.sum(1)).sum(0)}


def _convolution(layer: nn.Conv1d | nn.Conv2d, given: Tensor, back: Tensor, of: Map) -> dict[str, Tensor]:
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise NotImplementedError

    def unfolded(part: Tensor) -> Tensor:
        seen = patches(layer, part)
        return seen if layer.groups == 1 else seen.reshape(len(seen), layer.groups, -1, seen.shape[2])

    places = back.flatten(2)
    grouped = places if layer.groups == 1 else places.reshape(len(places), layer.groups, -1, places.shape[2])
    seen = layer.weight[0].numel() * layer.groups * places.shape[2]  # numbers that one sample unfolds to
    weight = _products(grouped, given, of, max(layer.weight.numel(), seen), unfolded)
    return {"weight": weight.reshape(layer.weight.shape), "bias": of(places.sum(2)).sum(0)}


def _batch_norm(layer: Any, given: Tensor, back: Tensor, of: Map) -> dict[str, Tensor]:
    if layer.training or layer.running_mean is None:
        raise NotImplementedError
    shape = (1, -1, *[1] * (given.dim() - 2))
    mean, deviation = layer.running_mean.view(shape), (layer.running_var + layer.eps).sqrt().view(shape)
    places = tuple(range(2, given.dim()))
    product, plain = (given - mean) / deviation * back, back
    if places:
        product, plain = product.sum(places), plain.sum(places)
    return {"weight": of(product).sum(0), "bias": of(plain).sum(0)}


def _layer_norm(layer: nn.LayerNorm, given: Tensor, back: Tensor, of: Map) -> dict[str, Tensor]:
    normed = nn.functional.layer_norm(given, layer.normalized_shape, eps=layer.eps)
    between = tuple(range(1, given.dim() - len(layer.normalized_shape)))
    product, plain = normed * back, back
    if between:
        product, plain = product.sum(between), plain.sum(between)
    return {"weight": of(product).sum(0), "bias": of(plain).sum(0)}


def _embedding(layer: nn.Embedding, given: Tensor, back: Tensor, of: Map) -> dict[str, Tensor]:
    if layer.max_norm is not None or layer.scale_grad_by_freq:
        raise NotImplementedError
    words, skipped = layer.num_embeddings, -1 if layer.padding_idx is None else layer.padding_idx
    sample = torch.arange(len(given), device=given.device).view(-1, *[1] * (given.dim() - 1))
    pairs, where = torch.unique(sample * words + given, return_inverse=True)  # a token of a sample is one pair

    def gathered(values: Tensor, rows: Tensor, count: int, skip: int) -> Tensor:
        # torch's own sum of an embedding's gradient: unlike index_add it gives the same bits each time on a GPU
        return torch.ops.aten.embedding_dense_backward(values, rows, count, skip, False)  # type: ignore[no-any-return]

    each = gathered(back.flatten(0, -2), where.flatten(), len(pairs), -1)
    return {"weight": gathered(of(each), pairs % words, words, skipped)}


RULES: dict[type[nn.Module], Callable[[Any, Tensor, Tensor, Map], dict[str, Tensor]]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
}


class LayerRules:
    """The layers of a model that have a rule, for the parameters of a space.

    Whether the rules hold for a model cannot be read off its layers, since a model may use them in any way: `agree`
    tries them on a few samples.

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

    def agree(self, inputs: Nest, labels: Tensor) -> bool:
        """Return whether the rules and autograd on single samples give the same sums, on a few of these samples."""
        if self._shared or not {name.rpartition(".")[0] for name in self.space.parts} <= self.owners.keys():
            return False
        rows = torch.linspace(0, len(labels) - 1, min(_TRIED, len(labels))).long().to(labels.device)
        few, labels = map_nest(lambda leaf: leaf[rows.to(leaf.device)], inputs), labels[rows]
        try:
            with _no_tf32():
                found = self.sums(few, labels, torch.abs)
                expected = [torch.zeros_like(part) for part in self.space.parts.values()]
                for at in range(len(labels)):
                    alone = map_nest(lambda leaf, at=at: leaf[at : at + 1], few)  # type: ignore[misc]
                    single = _single(self.space, alone, labels[at : at + 1], self.loss, torch.abs)
                    expected = [old if new is None else old + new for old, new in zip(expected, single, strict=True)]
        except _NO_RULE:
            return False  # any other fault of the model shows again one by one
        sizes = [float(part.norm()) for part in expected]
        return all(
            size > 0 and float((ours - part).norm()) <= _AGREED * size + _ROUNDING * max(sizes)
            for ours, part, size in zip(found, expected, sizes, strict=True)
        )

    def sums(self, inputs: Nest, labels: Tensor, of: Map) -> list[Tensor]:
        """Return Σ over samples of `of` of their gradients, part by part; raises one of `_NO_RULE` without a rule."""
        parts = {name: part.detach() for name, part in self.space.parts.items()}
        with self._watched(len(labels)) as seen:
            total = self._total(self.space.logits(inputs, parts), labels)
            back = torch.autograd.grad(total, [output for _, output in seen.values()], allow_unused=True)
        found = self._apply(seen, dict(zip(seen, back, strict=True)), of)
        return [
            self.space.turned(name, found[name]).reshape(part.shape) if name in found else torch.zeros_like(part)
            for name, part in self.space.parts.items()
        ]

    def _total(self, logits: Tensor, labels: Tensor) -> Tensor:
        return vmap(lambda z, label: self.loss(z.unsqueeze(0), label.unsqueeze(0)))(logits, labels).sum()

    def _apply(
        self, seen: Mapping[str, tuple[Tensor, Tensor]], back: Mapping[str, Tensor | None], of: Map
    ) -> dict[str, Tensor]:
        """Return the sums by parameter name, in the space's dtype: half precision would overflow."""
        found: dict[str, Tensor] = {}
        for name, (given, _) in seen.items():
            module, rule = self.owners[name]
            gradient = back[name]
            if gradient is None:
                continue
            inputs = given.to(self.space.dtype) if given.is_floating_point() else given
            for kind, value in rule(module, inputs, gradient.to(self.space.dtype), of).items():
                found[f"{name}.{kind}" if name else kind] = value
        return found

    @contextmanager
    def _watched(self, count: int) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
        """Note the input and the output of each layer while the model is called with `count` samples."""
        seen: dict[str, tuple[Tensor, Tensor]] = {}

        names = {module: name for name, (module, _) in self.owners.items()}

        def note(module: nn.Module, given: tuple[Any, ...], _: object, output: Tensor) -> Tensor:
            name = names[module]
            known = len(given) == 1 and isinstance(given[0], Tensor) and isinstance(output, Tensor)
            if name in seen or not known or not len(given[0]) == len(output) == count:
                raise NotImplementedError("a layer that is called twice, or not with one row for each sample")
            output = output if output.requires_grad else output.requires_grad_(True)
            seen[name] = given[0].detach(), output
            return output

        with hooked(names, note):
            yield seen


@contextmanager
def _no_tf32() -> Iterator[None]:
    """Let a GPU convolve in full precision: the sums that are compared must not differ by rounding of the inputs."""
    cudnn = torch.backends.cudnn
    if not torch.cuda.is_available():
        yield
        return
    with cudnn.flags(
        enabled=cudnn.enabled, benchmark=cudnn.benchmark, deterministic=cudnn.deterministic, allow_tf32=False
    ):
        yield
