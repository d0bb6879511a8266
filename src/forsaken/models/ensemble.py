"""Many networks of one shape trained together: one batched matrix product for all of them in place of one for each.

The weights of the networks are stacked (`Stack`), and `torch.func.vmap` turns a training step of one network into a
step of all of them. The results are those of `forsaken.models.train.train`, up to rounding.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from forsaken._random import checked_seed, torch_seed
from forsaken.data.nest import Nest, leaves, map_nest
from forsaken.data.samples import Samples
from forsaken.errors import EmptyError, InputError, NonFiniteError, SettingsError
from forsaken.models.augment import Augmenter
from forsaken.models.train import (
    TICK,
    batches_of,
    loss_of,
    optimiser_of,
    placed,
    precision,
    rate_at,
    repeatable,
    steps_of,
    take,
    train,
    usable_device,
)
from forsaken.models.weights import fingerprint
from forsaken.recipe import Recipe
from forsaken.types import Progress, Tick, silent

_SMALL = 1_000_000  # trainable weights; on a CPU, larger networks are limited by memory and gain little together
_SMALL_ON_CPU, _LARGE_ON_CPU, _ON_GPU = 16, 4, 64  # networks trained together
_CPU_BYTES, _GPU_BYTES = 2**29, 2**34  # the memory they may take
_KEPT_BYTES = 31 * 2**20
_COPIES = 4  # of the weights: themselves, their gradients and the two moments of Adam
_PROBE = 4  # samples of the trial step
_AGREE, _AGREE_ON_GPU = 1e-2, 0.3  # relative distance of equal gradients; bfloat16 on a GPU turns units on and off
_EPS = 1e-6  # as in torch's clip_grad_norm_

Named: TypeAlias = dict[str, Tensor]
Step: TypeAlias = Callable[..., tuple[Named, Tensor]]


def train_many(
    build: Callable[[], nn.Module],
    data: Samples,
    recipe: Recipe,
    *,
    rows: Sequence[Tensor | np.ndarray[Any, Any]],
    seeds: Sequence[int],
    device: str | torch.device = "cpu",
    steps: int | None = None,
    at_once: int | None = None,
    progress: Progress = silent,
    stage: str = "train",
) -> Iterator[list[nn.Module]]:
    """Train network i on ``data.rows(rows[i])`` with ``seeds[i]``, as `train` would, up to rounding.

    Networks that cannot be trained together (see `vectorises`) are trained one after the other by `train`. Neighbours
    in `rows` are trained together where they have equally many samples, so put equal counts side by side. Dropout is
    that of `train` on a CPU; on a GPU it follows the seed as well, with other draws.

    Parameters
    ----------
    build, data, recipe, device, steps
        See `train`. Each network starts from its own copy of what `build` returns.
    rows : sequence of index arrays
        The samples of each network.
    seeds : sequence of int
        One for each network: decides its initial weights, order and dropout.
    at_once : int, optional
        How many to train together. By default on a CPU 16 small networks (below a million weights) or up to 4 large
        ones in 0.5 GB, on a GPU up to 64 in 16 GB, counting weights, gradients and the optimiser's state.
    progress, stage
        Called with a `Tick` under the name `stage`, counting the steps of all networks.

    Returns
    -------
    iterator of list of Module
        The networks in the order of `rows`, in evaluation mode on `device`. Each list is trained when it is asked for,
        and no other reference to it is kept.
    """
    if at_once is not None and (isinstance(at_once, bool) or not isinstance(at_once, int) or at_once < 1):
        raise SettingsError(f"at_once is {at_once!r}, expected a whole number >= 1, or None for as many as pay")
    place = usable_device(device)
    members = _members(len(data), rows, seeds)
    if not members:
        return iter(())
    stackable = vectorises(build, data, device=place)
    network = Start.of(build, members[0].seed, place).network
    an_epoch = [steps_of(len(member.rows), recipe, network) for member in members]
    total = sum(recipe.epochs * count if steps is None else steps for count in an_epoch)
    run = _Run(build, data, recipe, place, steps, progress, stage, total, len(members))
    if not stackable:
        return ([run.alone(member)] for member in members)
    return run.together(members, at_once or at_once_for(build, device=place))


def vectorises(build: Callable[[], nn.Module], data: Samples, *, device: str | torch.device = "cpu") -> bool:
    """Return whether such networks can be trained together on such data, by a trial step of two of them.

    They cannot where layers are recurrent or have running statistics (batch-norm), where random numbers are drawn other
    than by `nn.Dropout`, where a weight does not affect the loss, and where `torch.func.vmap` fails or its gradients
    differ from ordinary ones.
    """
    place = usable_device(device)
    order = torch.arange(min(_PROBE, len(data)))
    probe = placed(data.rows(order), place)
    starts = [Start.of(build, seed, place) for seed in (0, 1)]
    unfit = (nn.RNNBase, nn.modules.batchnorm._BatchNorm)
    if any(isinstance(module, unfit) for module in starts[0].network.modules()):
        return False
    try:
        with warnings.catch_warnings(), repeatable(place):
            warnings.simplefilter("error", UserWarning)  # vmap warns where it falls back to a loop over the networks
            stack = Stack(starts, place)
            before = fingerprint(stack.base)
            batch, labels = (take(part, torch.stack([order, order.flip(0)]).to(place)) for part in probe)
            noise = stack.noise(batch)
            found, _ = stack.gradients(batch, labels, noise)  # type: ignore[arg-type]
            plain = [stack.gradients_of(at, batch, labels, noise) for at in range(2)]  # type: ignore[arg-type]
            after = fingerprint(stack.base)
    except (RuntimeError, NotImplementedError, UserWarning):
        return False
    pairs = [(found[name][at], own) for at in range(2) for name, own in plain[at].items()]
    return before == after and all(_agree(one, other) for one, other in pairs)


def at_once_for(build: Callable[[], nn.Module], *, device: str | torch.device = "cpu") -> int:
    """Return how many such networks to train together by default: see `train_many`.

    >>> at_once_for(lambda: nn.Linear(64, 8)), at_once_for(lambda: nn.Linear(10_000, 512))
    (16, 4)
    """
    place = usable_device(device)
    with torch_seed(0):
        weights = [weight for weight in build().parameters() if weight.requires_grad]
    size = max(1, _COPIES * sum(weight.numel() * weight.element_size() for weight in weights))
    if place.type != "cpu":
        return max(1, min(_ON_GPU, _GPU_BYTES // size))
    if sum(weight.numel() for weight in weights) < _SMALL:
        return _SMALL_ON_CPU
    return max(1, min(_LARGE_ON_CPU, _CPU_BYTES // size))


@dataclass(frozen=True, slots=True)
class _Member:
    """One network to train: its number, its samples and its seed."""

    number: int
    rows: Tensor
    seed: int


@dataclass(slots=True)
class _Run:
    """A training of `count` networks; `done` counts the steps of those that are finished."""

    build: Callable[[], nn.Module]
    data: Samples
    recipe: Recipe
    place: torch.device
    steps: int | None
    progress: Progress
    stage: str
    total: int
    count: int
    done: int = 0

    def alone(self, member: _Member) -> nn.Module:
        """Train one network by `train`."""
        last = 0

        def pass_on(tick: Tick) -> None:
            nonlocal last
            last = tick.done
            text = f"network {member.number + 1} of {self.count}, {tick.text}" if tick.text else ""
            self.progress(Tick(self.stage, self.done + last, self.total, text))

        try:
            network = train(
                self.build,
                self.data.rows(member.rows),
                self.recipe,
                seed=member.seed,
                device=self.place,
                steps=self.steps,
                progress=pass_on,
            )
        except NonFiniteError as error:
            raise NonFiniteError(f"network {member.number}: {error}") from error
        self.done += last
        return network

    def together(self, members: Sequence[_Member], at_once: int) -> Iterator[list[nn.Module]]:
        """Train neighbours with equally many samples together, at most `at_once` of them."""
        inputs, labels = placed(self.data, self.place)
        # glibc returns blocks of megabytes to the system at every step, and each of their pages must then be faulted in
        # again. After it has freed one block near its limit of 32 MB it keeps such blocks: a fifth of the time.
        torch.empty(_KEPT_BYTES, dtype=torch.uint8)
        for _, group in groupby(members, key=lambda member: len(member.rows)):
            alike = list(group)
            for at in range(0, len(alike), at_once):
                yield self._chunk(inputs, labels, alike[at : at + at_once])

    def _chunk(self, inputs: Nest, labels: Tensor, members: Sequence[_Member]) -> list[nn.Module]:
        recipe, size, count = self.recipe, len(members), len(members[0].rows)
        starts = [Start.of(self.build, member.seed, self.place) for member in members]
        stack = Stack(starts, self.place)
        optimiser = optimiser_of(list(stack.weights.values()), recipe, fused=True)
        an_epoch = steps_of(count, recipe, stack.base)
        step, steps = 0, recipe.epochs * an_epoch if self.steps is None else self.steps
        epochs = -(-steps // an_epoch)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_at(recipe, step, steps))
        augmenters = [Augmenter(recipe, member.seed, self.place) for member in members]
        who = f"networks {members[0].number + 1} to {members[-1].number + 1} of {self.count}"
        with repeatable(self.place):
            for epoch in range(epochs):
                orders = [torch.randperm(count, generator=start.order) for start in starts]
                order = torch.stack([member.rows[at] for member, at in zip(members, orders, strict=True)], dim=1)
                for at in batches_of(order.to(self.place), recipe.batch_size, stack.base)[: steps - step]:
                    batch = augmented(take(inputs, at.T), augmenters)
                    gradients, losses = stack.gradients(batch, labels[at.T], stack.noise(batch))
                    if recipe.clip is not None:
                        clip_each(gradients, recipe.clip)
                    for name, weight in stack.weights.items():
                        weight.grad = gradients[name]
                    optimiser.step()
                    schedule.step()
                    step += 1
                    if step % TICK == 0:
                        self.progress(Tick(self.stage, self.done + step * size, self.total))
                for member, loss in zip(members, losses.tolist(), strict=True):
                    if not math.isfinite(loss):
                        said = f"the training loss is {loss} in epoch {epoch + 1}; lower the rate"
                        raise NonFiniteError(f"network {member.number}: {said}")
                text = f"{who}, epoch {epoch + 1} of {epochs}"
                self.progress(Tick(self.stage, self.done + step * size, self.total, text))
        self.done += step * size
        return stack.networks()


@dataclass(frozen=True, slots=True)
class Start:
    """A new network, and the generators of its order and its dropout, in the state in which `train` would use them."""

    network: nn.Module
    order: torch.Generator
    dropout: torch.Generator

    @classmethod
    def of(cls, build: Callable[[], nn.Module], seed: int, place: torch.device) -> Start:
        """Build a network under `seed`; it is copied, since `build` may return one network twice."""
        with torch_seed(seed):
            network = copy.deepcopy(build())
            order = torch.Generator()
            order.set_state(torch.get_rng_state())
        dropout = order if place.type == "cpu" else torch.Generator(place).manual_seed(seed)
        return cls(network.to(place), order, dropout)


class _Masked(nn.Module):
    """Dropout whose mask is handed in as a buffer: inside `vmap` a network has no generator of its own."""

    noise: Tensor

    def __init__(self, keep: float) -> None:
        super().__init__()
        self.keep = keep
        self.p = 1 - keep  # attention of Hugging Face models asks its dropout layer for the share, and draws itself
        self.register_buffer("noise", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.noise


class _Undropped(nn.Identity):
    """Dropout that leaves nothing out; it is asked for its share as well."""

    p = 0.0


@dataclass(frozen=True, slots=True)
class _Draw:
    """The mask that one dropout layer needs for one network."""

    name: str
    keep: float
    shape: torch.Size
    kind: torch.dtype


class Stack:
    """Networks of one shape; `weights` holds every trainable parameter with a first axis over the networks.

    Memory: the networks as they were given, and the stacked weights; frozen parameters and buffers that are equal in
    all networks are held once.
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
        self._draws: dict[int, list[_Draw]] = {}  # by batch size, as are the traced steps
        self._steps: dict[int, Step] = {}

    def noise(self, batch: Nest) -> Named:
        """Draw the dropout masks of one step, layer by layer in the order in which a network calls its layers."""
        count = leaves(batch)[0].shape[1]
        if count not in self._draws:
            self._draws[count] = self._dropout_calls(_of_network(batch, 0))
        drawn = {}
        for draw in self._draws[count]:
            noise = torch.empty((len(self.starts), *draw.shape), dtype=draw.kind, device=self.place)
            for part, start in zip(noise, self.starts, strict=True):
                part.bernoulli_(draw.keep, generator=start.dropout)
            drawn[draw.name] = noise.div_(draw.keep)
        return drawn

    def gradients(self, batch: Nest, labels: Tensor, noise: Named) -> tuple[Named, Tensor]:
        """Return the gradients and losses of all networks; `batch` is networks x samples x ..."""
        count = leaves(batch)[0].shape[1]
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
        """Return the gradients of one network by ordinary differentiation; None for weights that do not matter."""
        weights = {name: stacked[at].clone().requires_grad_() for name, stacked in self.weights.items()}
        rest = {name: value if self._axes[name] is None else value[at] for name, value in self._rest.items()}
        own = {name: value[at] for name, value in noise.items()}
        with precision(self.place):
            loss = self._loss(weights, rest, own, _of_network(batch, at), labels[at])
        found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        return dict(zip(weights, found, strict=True))

    def networks(self) -> list[nn.Module]:
        """Return the networks, with copies of the current weights."""
        for at, start in enumerate(self.starts):
            for name, weight in start.network.named_parameters():
                if name in self.weights:
                    weight.data.copy_(self.weights[name][at])
        return [start.network.eval() for start in self.starts]

    def _loss(self, weights: Named, rest: Named, noise: Named, batch: Nest, labels: Tensor) -> Tensor:
        return loss_of(functional_call(self.base, {**weights, **rest, **noise}, (batch,)), labels)

    def _dropout_calls(self, batch: Nest) -> list[_Draw]:
        """Find out by a forward pass which dropout layers are called, in which order, and with which shape."""
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
            raise RuntimeError("a dropout layer is called twice in one pass; it has one mask a step")
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


def augmented(batch: Nest, augmenters: Sequence[Augmenter]) -> Nest:
    """Augment a batch of several networks (networks x samples x ...), each by its own augmenter."""
    if all(augmenter.idle for augmenter in augmenters):
        return batch
    parts = [leaves(augment(_of_network(batch, at))) for at, augment in enumerate(augmenters)]
    joined = iter([torch.stack([part[at] for part in parts]) for at in range(len(parts[0]))])
    return map_nest(lambda _: next(joined), batch)


def _of_network(batch: Nest, at: int) -> Nest:
    return map_nest(lambda leaf: leaf[at], batch)


def _with_masks(module: nn.Module) -> nn.Module:
    for name, child in module.named_children():
        if type(child) is nn.Dropout and child.p < 1:
            module.add_module(name, _Masked(1 - child.p) if child.p else _Undropped())
        else:
            _with_masks(child)
    return module


def _members(count: int, rows: Sequence[Any], seeds: Sequence[int]) -> list[_Member]:
    if len(rows) != len(seeds):
        raise InputError(f"rows names {len(rows)} networks and seeds {len(seeds)}; give one seed for each network")
    members = []
    for number, (given, seed) in enumerate(zip(rows, seeds, strict=True)):
        at = given.cpu() if isinstance(given, Tensor) else torch.from_numpy(np.array(given))
        if at.numel() == 0:
            raise EmptyError(f"rows[{number}] is empty; give each network at least one sample")
        if at.dim() != 1 or at.is_floating_point() or at.dtype == torch.bool:
            raise InputError(f"rows[{number}] is {at.dim()}-dimensional of {at.dtype}, expected row numbers")
        if int(at.min()) < 0 or int(at.max()) >= count:
            raise InputError(f"rows[{number}] reaches from {at.min()} to {at.max()}, expected 0 to {count - 1}")
        members.append(_Member(number, at.long(), checked_seed(seed)))
    return members


def _agree(one: Tensor, other: Tensor | None) -> bool:
    if other is None:
        return False
    bound = (_AGREE_ON_GPU if other.is_cuda else _AGREE) * other.norm() + torch.finfo(other.dtype).eps
    return bool((one - other).norm() <= bound)
