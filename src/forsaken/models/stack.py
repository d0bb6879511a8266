"""Networks of one shape as one: their weights stacked, and a step of all of them in one pass."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from forsaken._random import torch_seed
from forsaken.data.nest import Nest, leaves, map_nest
from forsaken.models.train import loss_of, precision

_EPS = 1e-6  # as in torch's clip_grad_norm_

Named: TypeAlias = dict[str, Tensor]
Step: TypeAlias = Callable[..., tuple[Named, Tensor]]


@dataclass(frozen=True, slots=True)
class Start:
    """A new network, and the generators of its order and its dropout, in the state that `train` would find them in."""

    network: nn.Module
    order: torch.Generator
    dropout: torch.Generator

    @classmethod
    def of(cls, build: Callable[[], nn.Module], seed: int, place: torch.device) -> Start:
        """Build a network under `seed`; a network that `build` hands out twice is copied."""
        with torch_seed(seed):
            network = copy.deepcopy(build())
            order = torch.Generator()
            order.set_state(torch.get_rng_state())
        dropout = order if place.type == "cpu" else torch.Generator(place).manual_seed(seed)
        return cls(network.to(place), order, dropout)


@dataclass(frozen=True, slots=True)
class _Draw:
    """The draws of one dropout layer for one network."""

    name: str
    keep: float
    shape: torch.Size
    kind: torch.dtype


class _Masked(nn.Module):
    """Dropout whose draws come from outside: inside `vmap` no network has a generator of its own."""

    noise: Tensor

    def __init__(self, keep: float) -> None:
        super().__init__()
        self.keep = keep
        self.register_buffer("noise", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.noise


class Stack:
    """Networks of one shape; `weights` holds every trainable parameter with one more axis, the first, over networks.

    Memory: the networks as they were given, and the stacked weights; frozen parameters and buffers that are equal in
    all networks stand once.
    """

    def __init__(self, starts: Sequence[Start], place: torch.device) -> None:
        self.starts, self.place = starts, place
        self.base = _with_masks(copy.deepcopy(starts[0].network)).train()
        states = [{**dict(s.network.named_parameters()), **dict(s.network.named_buffers())} for s in starts]
        self.weights: Named = {}
        self._rest: Named = {}
        self._axes: dict[str, int | None] = {}
        for name, value in states[0].items():
            values = [state[name].detach() for state in states]
            if value.requires_grad:
                self.weights[name] = torch.stack(values)
                continue
            shared = all(torch.equal(values[0], other) for other in values)
            self._rest[name] = values[0] if shared else torch.stack(values)
            self._axes[name] = None if shared else 0
        self._draws: dict[int, list[_Draw]] = {}
        self._steps: dict[int, Step] = {}

    def noise(self, batch: Nest) -> Named:
        """Draw the dropout of one step, layer by layer in the order in which a network asks for it."""
        count = _batch_size(batch)
        if count not in self._draws:
            self._draws[count] = self._listen(map_nest(lambda leaf: leaf[0], batch))
        drawn = {}
        for draw in self._draws[count]:
            noise = torch.empty((len(self.starts), *draw.shape), dtype=draw.kind, device=self.place)
            for part, start in zip(noise, self.starts, strict=True):
                part.bernoulli_(draw.keep, generator=start.dropout)
            drawn[draw.name] = noise.div_(draw.keep)
        return drawn

    def gradients(self, batch: Nest, labels: Tensor, noise: Named) -> tuple[Named, Tensor]:
        """Return the gradients of all networks, and their losses; `batch` is networks x samples x ..."""
        count = _batch_size(batch)
        given = (self.weights, self._rest, noise, batch, labels)
        if count not in self._steps:

            def loss(weights: Named, rest: Named, noise: Named, batch: Nest, labels: Tensor) -> Tensor:
                return self._loss(weights, rest, noise, batch, labels)  # tracing miscounts a method's arguments

            axes = (0, self._axes, 0, 0, 0)
            with precision(self.place):
                # Traced once, the step runs without vmap's overhead: a fifth of the time of small networks on a CPU.
                self._steps[count] = make_fx(vmap(grad_and_value(loss), in_dims=axes))(*given)
        return self._steps[count](*given)

    def gradients_of(self, at: int, batch: Nest, labels: Tensor, noise: Named) -> dict[str, Tensor | None]:
        """Return the gradients of one network by ordinary differentiation; None for weights that play no part."""
        weights = {name: stacked[at].clone().requires_grad_() for name, stacked in self.weights.items()}
        rest = {name: value if self._axes[name] is None else value[at] for name, value in self._rest.items()}
        own = {name: value[at] for name, value in noise.items()}
        with precision(self.place):
            loss = self._loss(weights, rest, own, map_nest(lambda leaf: leaf[at], batch), labels[at])
        found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        return dict(zip(weights, found, strict=True))

    def networks(self) -> list[nn.Module]:
        """Return the networks, with copies of the weights as they are by now."""
        for at, start in enumerate(self.starts):
            for name, weight in start.network.named_parameters():
                if name in self.weights:
                    weight.data.copy_(self.weights[name][at])
        return [start.network.eval() for start in self.starts]

    def _loss(self, weights: Named, rest: Named, noise: Named, batch: Nest, labels: Tensor) -> Tensor:
        return loss_of(functional_call(self.base, {**weights, **rest, **noise}, (batch,)), labels)

    def _listen(self, batch: Nest) -> list[_Draw]:
        """Find out which dropout layers a forward pass asks, in which order, and for what shape."""
        heard: list[_Draw] = []

        def note(name: str, keep: float) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
            return lambda _, given: heard.append(_Draw(f"{name}.noise", keep, given[0].shape, given[0].dtype))

        layers = {name: module for name, module in self.base.named_modules() if isinstance(module, _Masked)}
        hooks = [layer.register_forward_pre_hook(note(name, layer.keep)) for name, layer in layers.items()]
        try:
            with torch.no_grad(), precision(self.place):
                self.base(batch)
        finally:
            for hook in hooks:
                hook.remove()
        if len({draw.name for draw in heard}) < len(heard):
            raise RuntimeError("a dropout layer is asked twice in one pass; it has one mask a step")
        return heard


def clip_each(gradients: Named, largest: float) -> None:
    """Scale the gradients of each network down to the norm `largest`, in place, as torch's clip_grad_norm_ does.

    >>> found = {"weight": torch.tensor([[3.0, 4.0], [0.3, 0.4]])}
    >>> clip_each(found, 1.0)
    >>> found["weight"].round(decimals=3).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.30000001192092896, 0.4000000059604645]]
    """
    norms = torch.stack([part.flatten(1).norm(dim=1) for part in gradients.values()]).norm(dim=0)
    scale = (largest / (norms + _EPS)).clamp(max=1.0)
    for part in gradients.values():
        part.mul_(scale.view(-1, *[1] * (part.dim() - 1)).to(part.dtype))


def _with_masks(module: nn.Module) -> nn.Module:
    for name, child in module.named_children():
        if type(child) is nn.Dropout and child.p < 1:
            module.add_module(name, _Masked(1 - child.p) if child.p else nn.Identity())
        else:
            _with_masks(child)
    return module


def _batch_size(batch: Nest) -> int:
    return leaves(batch)[0].shape[1]
