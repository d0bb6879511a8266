"""The training loop: one network, one recipe, one seed. `ensemble.train_many` trains many networks alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from forsaken._random import torch_seed
from forsaken.data.nest import Nest, map_nest
from forsaken.data.samples import Samples
from forsaken.errors import InputError, NonFiniteError, SettingsError
from forsaken.models.augment import Augmenter
from forsaken.models.logits import Forward, caller, copied
from forsaken.recipe import Recipe
from forsaken.types import Progress, Tick, silent

_WARM_UP = 0.2  # the share of the steps over which a one-cycle schedule rises
_MOMENTUM = 0.9
TICK = 20  # steps between two ticks


@dataclass(frozen=True, slots=True)
class Training:
    """How a model was trained, so that another one like it can be: a function that builds the network, and a recipe."""

    build: Callable[[], nn.Module]
    recipe: Recipe
    device: str | torch.device = "cpu"

    def __post_init__(self) -> None:
        if isinstance(self.build, nn.Module) or not callable(self.build):
            raise SettingsError(
                f"build is a {type(self.build).__name__}, expected a function that builds a new network",
                field="build",
                remedy="give its class, or a function: lambda: MyNetwork(...)",
            )
        if not isinstance(self.recipe, Recipe):
            raise SettingsError(f"recipe is {self.recipe!r}, expected a Recipe", field="recipe")

    def run(
        self,
        data: Samples,
        *,
        seed: int,
        forward: Forward | None = None,
        progress: Progress = silent,
        stage: str = "train",
    ) -> nn.Module:
        """Train a new network on `data`; see `train`."""
        recipe, device = self.recipe, self.device
        return train(
            self.build, data, recipe, seed=seed, forward=forward, device=device, progress=progress, stage=stage
        )


class Observer(Protocol):
    """Is called at every step of a training; it must not change anything."""

    def before(self, network: nn.Module, rows: Tensor, logits: Tensor) -> None:
        """Look at the logits of the batch `rows`, before their gradients are computed."""

    def after(self, network: nn.Module, rows: Tensor, optimiser: torch.optim.Optimizer) -> None:
        """Look at the weights after they have changed."""


def train(
    build: Callable[[], nn.Module],
    data: Samples,
    recipe: Recipe,
    *,
    seed: int,
    forward: Forward | None = None,
    device: str | torch.device = "cpu",
    steps: int | None = None,
    observer: Observer | None = None,
    progress: Progress = silent,
    stage: str = "train",
) -> nn.Module:
    """Build a network and train it; the same seed gives the same weights on the same kind of device.

    Parameters
    ----------
    build : callable
        Returns a new network, whose initial weights follow `seed`, or a trained one to continue with. A copy of it is
        trained.
    data : Samples
        Inputs and labels; for a language model the labels are sequences too.
    recipe : Recipe
        Epochs, batch size, optimiser, rate and schedule.
    seed : int
        Decides the initial weights, the order of the samples and dropout.
    forward : callable, optional
        How to call the network; see `forsaken.unlearn`.
    device : str or device
        Where to train. On a GPU the data move there whole, and matrix products are in bfloat16.
    steps : int, optional
        How many steps to take, in place of the recipe's epochs.
    observer : Observer, optional
        Called twice in every step.
    progress, stage
        Called with a `Tick` under the name `stage` after each epoch, and now and then between.

    Returns
    -------
    Module
        In evaluation mode, on `device`.
    """
    place = usable_device(device)
    inputs, labels = placed(data, place)
    with torch_seed(seed), repeatable(place):
        network = copied(build()).to(place).train()
        if place.type == "cuda":  # convolutions are faster there with the channels last
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimiser = optimiser_of([weight for weight in network.parameters() if weight.requires_grad], recipe)
        an_epoch = steps_of(len(data), recipe, network)
        step, steps = 0, recipe.epochs * an_epoch if steps is None else steps
        epochs = -(-steps // an_epoch)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: rate_at(recipe, step, steps))
        augment, logits_of = Augmenter(recipe, seed, place), caller(network, forward)
        for epoch in range(epochs):
            order = torch.randperm(len(data)).to(place)
            for rows in batches_of(order, recipe.batch_size, network)[: steps - step]:
                with precision(place):
                    logits = logits_of(augment(take(inputs, rows)))
                    loss = loss_of(logits, labels[rows])
                if observer is not None:
                    observer.before(network, rows, logits)
                optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                if recipe.clip is not None:
                    nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
                optimiser.step()
                if observer is not None:
                    observer.after(network, rows, optimiser)
                schedule.step()
                step += 1
                if step % TICK == 0:
                    progress(Tick(stage, step, steps))
            if not bool(torch.isfinite(loss)):
                raise NonFiniteError(f"the training loss is {loss.item()} in epoch {epoch + 1}; lower the rate")
            progress(Tick(stage, step, steps, f"epoch {epoch + 1} of {epochs}"))
    network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return network.eval()


def placed(data: Samples, place: torch.device) -> tuple[Nest, Tensor]:
    """Return the inputs and labels of data on a device."""
    if data.labels is None:
        raise InputError("training needs labels; give (inputs, labels)")
    return map_nest(lambda leaf: leaf.to(place), data.inputs), data.labels.to(place)


def steps_of(count: int, recipe: Recipe, network: nn.Module) -> int:
    """Return how many steps `train` takes for one epoch over `count` samples; batch-norm matters, see `batches_of`.

    >>> steps_of(9, Recipe(1, 4, 1e-3), nn.Linear(2, 2)), steps_of(9, Recipe(1, 4, 1e-3), nn.BatchNorm1d(2))
    (3, 2)
    """
    return len(batches_of(torch.arange(count), recipe.batch_size, network))


def usable_device(device: str | torch.device) -> torch.device:
    """Return the device, if it can be used; "auto" is the first GPU, or the CPU where there is none."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device {str(device)!r} cannot be used ({error}); expected auto, cpu or cuda") from error
    return place


def optimiser_of(weights: Sequence[Tensor], recipe: Recipe, *, fused: bool = False) -> torch.optim.Optimizer:
    """Return the recipe's optimiser of `weights`; `fused` is faster on a CPU and rounds differently."""
    # One kernel for all weights on a GPU, where small networks wait for kernel launches and not for arithmetic.
    fuse = fused or weights[0].is_cuda or None
    shared = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay, "fused": fuse}
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(weights, momentum=_MOMENTUM, nesterov=True, **shared)  # type: ignore[arg-type]
    return torch.optim.Adam(weights, **shared)  # type: ignore[arg-type]


def rate_at(recipe: Recipe, step: int, steps: int) -> float:
    """Return the factor of the learning rate at a step, of `steps` in all."""
    if recipe.schedule == "constant":
        return 1.0
    top = max(1, round(_WARM_UP * steps))
    return min((step + 1) / top, (steps - step) / max(1, steps - top))


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy; the labels may be sequences."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())


def precision(place: torch.device) -> AbstractContextManager[object]:
    """Compute matrix products in bfloat16 inside the block, on a GPU."""
    # On a CPU bfloat16 is slow at best, and on some virtual machines an illegal instruction.
    return torch.autocast("cuda", dtype=torch.bfloat16) if place.type == "cuda" else nullcontext()


@contextmanager
def repeatable(place: torch.device) -> Iterator[None]:
    """Restrict cuDNN to deterministic algorithms inside the block."""
    if place.type != "cuda":
        yield
        return
    flags = torch.backends.cudnn
    was = flags.deterministic, flags.benchmark
    flags.deterministic, flags.benchmark = True, False
    try:
        yield
    finally:
        flags.deterministic, flags.benchmark = was


def batches_of(order: Tensor, size: int, network: nn.Module) -> list[Tensor]:
    """Cut an order into batches; a last batch of one sample, which batch-norm cannot take, joins the one before."""
    parts = list(torch.split(order, size))
    normed = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in network.modules())
    if normed and len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def take(inputs: Nest, rows: Tensor) -> Nest:
    """Return the inputs at `rows`; a matrix of rows gives one more axis."""
    return map_nest(lambda leaf: leaf[rows], inputs)
