"""Many networks trained at once: a batched matrix product for all of them in place of one for each."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from forsaken._random import checked_seed, torch_seed
from forsaken.data.nest import map_nest
from forsaken.data.samples import Samples
from forsaken.errors import EmptyError, InputError, NonFiniteError, SettingsError
from forsaken.models.augment import Augmenter, stacked
from forsaken.models.stack import Stack, Start, clip_each
from forsaken.models.train import (
    TICK,
    batches_of,
    optimiser_of,
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

_SMALL = 1_000_000  # trainable weights; on a CPU larger networks wait for memory, and gain little from company
_SMALL_ON_CPU, _LARGE_ON_CPU, _ON_GPU = 16, 4, 64
_CPU_BYTES, _GPU_BYTES = 2**29, 2**34
_KEPT_BYTES = 31 * 2**20
_COPIES = 4  # weights, gradients and the two moments of Adam
_PROBE = 4  # samples of a trial step
# The relative distance of gradients that is no mistake; bfloat16 on a GPU turns units on and off.
_AGREE, _AGREE_ON_GPU = 1e-2, 0.3


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
    the same as `train`'s on a CPU; on a GPU it follows the seed as well, with other draws.

    Parameters
    ----------
    build, data, recipe, device, steps
        See `train`. Each network starts from a copy of its own of what `build` returns.
    rows : sequence of index arrays
        The samples of each network.
    seeds : sequence of int
        One for each network: initial weights, order and dropout.
    at_once : int, optional
        How many to train together. By default on a CPU 16 small networks (below a million weights) or up to 4 large
        ones in 0.5 GB, on a GPU up to 64 in 16 GB; weights, gradients and the optimiser's state count.
    progress, stage
        Who is told about the steps of all networks, and under which name.

    Returns
    -------
    iterator of list of Module
        The networks in the order of `rows`, in evaluation mode on `device`; each list is trained when it is asked for,
        and held by nobody else.
    """
    if data.labels is None:
        raise InputError("training needs labels; give (inputs, labels)")
    if at_once is not None and (isinstance(at_once, bool) or not isinstance(at_once, int) or at_once < 1):
        raise SettingsError(f"at_once is {at_once!r}, expected a whole number >= 1, or None for as many as pay")
    place = usable_device(device)
    members = _members(len(data), rows, seeds)
    if not members:
        return iter(())
    network = Start.of(build, members[0].seed, place).network
    an_epoch = [steps_of(len(member.rows), recipe, network) for member in members]
    total = sum(recipe.epochs * count if steps is None else steps for count in an_epoch)
    course = _Course(build, data, recipe, place, steps, _Teller(progress, stage, total, len(members)))
    if not vectorises(build, data, device=place):
        return ([course.alone(member)] for member in members)
    return course.together(members, at_once or at_once_for(build, device=place))


def vectorises(build: Callable[[], nn.Module], data: Samples, *, device: str | torch.device = "cpu") -> bool:
    """Return whether such networks can be trained together on such data: a trial step of two of them tells.

    They cannot where layers are recurrent or count what they see (batch-norm), where draws are random other than by
    `nn.Dropout`, where weights play no part in the loss, and wherever `torch.func.vmap` refuses or finds gradients
    other than the ordinary ones.
    """
    place = usable_device(device)
    if data.labels is None:
        raise InputError("training needs labels; give (inputs, labels)")
    starts = [Start.of(build, seed, place) for seed in (0, 1)]
    counting = (nn.RNNBase, nn.modules.batchnorm._BatchNorm)
    if any(isinstance(module, counting) for module in starts[0].network.modules()):
        return False
    order = torch.arange(min(_PROBE, len(data)))
    probe = _moved(data.rows(order), place)
    try:
        with warnings.catch_warnings(), repeatable(place):
            warnings.simplefilter("error", UserWarning)  # vmap warns where it goes through the networks one by one
            stack = Stack(starts, place)
            before = fingerprint(stack.base)
            batch, labels = _batch(probe, torch.stack([order, order.flip(0)]).to(place))
            noise = stack.noise(batch)
            found, _ = stack.gradients(batch, labels, noise)
            plain = [stack.gradients_of(at, batch, labels, noise) for at in range(2)]
            after = fingerprint(stack.base)
    except (RuntimeError, NotImplementedError, UserWarning):
        return False
    pairs = [(found[name][at], own) for at in range(2) for name, own in plain[at].items()]
    return before == after and all(_agree(one, other) for one, other in pairs)


def at_once_for(build: Callable[[], nn.Module], *, device: str | torch.device = "cpu") -> int:
    """Return how many such networks pay to be trained together: see `train_many`.

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
    """One network to be: its number, its samples and its seed."""

    number: int
    rows: Tensor
    seed: int


@dataclass(slots=True)
class _Teller:
    """One stream of ticks over the steps of all networks."""

    progress: Progress
    stage: str
    total: int
    networks: int
    done: int = 0

    def tell(self, steps: int, text: str = "") -> None:
        self.progress(Tick(self.stage, self.done + steps, self.total, text))


@dataclass(frozen=True, slots=True)
class _Course:
    """What all networks have in common."""

    build: Callable[[], nn.Module]
    data: Samples
    recipe: Recipe
    place: torch.device
    steps: int | None
    teller: _Teller

    def alone(self, member: _Member) -> nn.Module:
        """Train one network by `train`."""
        who = f"network {member.number + 1} of {self.teller.networks}"
        last = 0

        def pass_on(tick: Tick) -> None:
            nonlocal last
            last = tick.done
            self.teller.tell(tick.done, f"{who}, {tick.text}" if tick.text else "")

        try:
            network = train(
                lambda: copy.deepcopy(self.build()),
                self.data.rows(member.rows),
                self.recipe,
                seed=member.seed,
                device=self.place,
                steps=self.steps,
                progress=pass_on,
            )
        except NonFiniteError as error:
            raise NonFiniteError(f"network {member.number}: {error}") from error
        self.teller.done += last
        return network

    def together(self, members: Sequence[_Member], at_once: int) -> Iterator[list[nn.Module]]:
        """Train neighbours with equally many samples together, at most `at_once` of them."""
        data = _moved(self.data, self.place)
        # glibc gives blocks of megabytes back to the system at every step, and a page fault brings back each of their
        # pages. Once a block near its bound of 32 MB was freed, it keeps such blocks: a fifth of the time on a CPU.
        torch.empty(_KEPT_BYTES, dtype=torch.uint8)
        for _, group in groupby(members, key=lambda member: len(member.rows)):
            alike = list(group)
            for at in range(0, len(alike), at_once):
                yield self._chunk(data, alike[at : at + at_once])

    def _chunk(self, data: Samples, members: Sequence[_Member]) -> list[nn.Module]:
        recipe, teller, size = self.recipe, self.teller, len(members)
        starts = [Start.of(self.build, member.seed, self.place) for member in members]
        stack = Stack(starts, self.place)
        optimiser = optimiser_of(list(stack.weights.values()), recipe, fused=True)
        count = len(members[0].rows)
        an_epoch = steps_of(count, recipe, stack.base)
        step, steps = 0, recipe.epochs * an_epoch if self.steps is None else self.steps
        epochs = -(-steps // an_epoch)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_at(recipe, step, steps))
        augmenters = [Augmenter(recipe, member.seed, self.place) for member in members]
        who = f"networks {members[0].number + 1} to {members[-1].number + 1} of {teller.networks}"
        with repeatable(self.place):
            for epoch in range(epochs):
                orders = [torch.randperm(count, generator=start.order) for start in starts]
                order = torch.stack([member.rows[at] for member, at in zip(members, orders, strict=True)], dim=1)
                for at in batches_of(order.to(self.place), recipe.batch_size, stack.base)[: steps - step]:
                    batch, labels = _batch(data, at.T)
                    batch = stacked(batch, augmenters, recipe)
                    gradients, losses = stack.gradients(batch, labels, stack.noise(batch))
                    if recipe.clip is not None:
                        clip_each(gradients, recipe.clip)
                    for name, weight in stack.weights.items():
                        weight.grad = gradients[name]
                    optimiser.step()
                    schedule.step()
                    step += 1
                    if step % TICK == 0:
                        teller.tell(step * size)
                for member, loss in zip(members, losses.tolist(), strict=True):
                    if not math.isfinite(loss):
                        said = f"the training loss is {loss} in epoch {epoch + 1}; lower the rate"
                        raise NonFiniteError(f"network {member.number}: {said}")
                teller.tell(step * size, f"{who}, epoch {epoch + 1} of {epochs}")
        teller.done += step * size
        return stack.networks()


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


def _moved(data: Samples, place: torch.device) -> Samples:
    labels = None if data.labels is None else data.labels.to(place)
    return Samples(map_nest(lambda leaf: leaf.to(place), data.inputs), labels)


def _batch(data: Samples, at: Tensor) -> tuple[Any, Tensor]:
    if data.labels is None:
        raise InputError("training needs labels; give (inputs, labels)")
    return take(data.inputs, at), data.labels[at]


def _agree(one: Tensor, other: Tensor | None) -> bool:
    if other is None:
        return False
    return bool(
        (one - other).norm()
        <= (_AGREE_ON_GPU if other.is_cuda else _AGREE) * other.norm() + torch.finfo(other.dtype).eps
    )
