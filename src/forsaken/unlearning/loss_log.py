"""The losses of a training, epoch by epoch, for methods that train: kept beside it, without a pass of their own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from forsaken.data.nest import map_nest
from forsaken.data.samples import Samples
from forsaken.errors import NonFiniteError
from forsaken.models.logits import PREDICT_BATCH, evaluation, predict_logits
from forsaken.models.train import steps_of, train
from forsaken.recipe import Recipe
from forsaken.result import Step
from forsaken.unlearning.request import Request
from forsaken.unlearning.sets import labelled


class LossLog:
    """An `Observer` that notes the mean loss of each epoch, and the loss on D after it.

    The loss of a batch comes from the logits that the training itself computed; the only passes added are those over
    D, once an epoch, in evaluation mode and without gradients.

    Parameters
    ----------
    data : Samples
        The training data, with labels.
    forget : Samples
        D.
    known : int tensor, shape (|D|,)
        The labels that D's loss is told against.
    recipe : Recipe
        Of the training.
    """

    def __init__(self, data: Samples, forget: Samples, known: Tensor, recipe: Recipe) -> None:
        self._data, self._count, self._labels = data, len(data), data.labels
        self._forget, self._known = forget, known
        self._recipe, self._an_epoch = recipe, 1
        self._handle: RemovableHandle | None = None
        self._logits: Tensor | None = None
        self._steps = 0
        self._sum: Tensor | None = None
        self._epochs: list[tuple[Tensor, Tensor, float, float]] = []
        self._begun = time.perf_counter()

    @property
    def steps(self) -> int:
        """How many steps were seen."""
        return self._steps

    def train(
        self, build: Callable[[], nn.Module], request: Request, *, device: str | torch.device, stage: str, rate: str
    ) -> nn.Module:
        """Train what `build` returns and log it; `rate` names what to lower where the training runs away."""
        try:
            network = train(
                lambda: self.attach(build()),
                self._data,
                self._recipe,
                seed=request.seed,
                device=device,
                observer=self,
                progress=request.progress,
                stage=stage,
            )
        except NonFiniteError as error:
            raise NonFiniteError(f"{error}: lower {rate}") from error
        finally:
            self.detach()
        _check_finite(network, self.history(), rate)
        return network

    def attach(self, network: nn.Module) -> nn.Module:
        """Look at the answers of `network` from now on, until `detach`."""

        def note(_: nn.Module, __: object, logits: Tensor) -> None:
            self._logits = logits.detach()

        self._an_epoch = steps_of(self._count, self._recipe, network)
        self._handle = network.register_forward_hook(note)
        return network

    def detach(self) -> None:
        """Leave the network without a trace."""
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._logits = None

    def before(self, network: nn.Module, rows: Tensor, optimiser: torch.optim.Optimizer) -> None:  # noqa: ARG002
        """Add the loss of this batch."""
        if self._logits is None or self._labels is None:
            return
        if self._sum is None:
            self._labels = self._labels.to(rows.device)
            self._sum = torch.zeros((), dtype=torch.float64, device=rows.device)
        self._sum += _loss(self._logits, self._labels[rows]) * len(rows)

    def after(self, network: nn.Module, rows: Tensor, optimiser: torch.optim.Optimizer) -> None:
        """Close the epoch at its last batch."""
        self._steps += 1
        if self._steps % self._an_epoch or self._sum is None:
            return
        rate = float(optimiser.param_groups[0]["lr"])
        mean = self._sum / self._count
        self._epochs.append((mean, self._on_forget(network, rows.device), rate, time.perf_counter() - self._begun))
        self._sum = torch.zeros_like(self._sum)

    def _on_forget(self, network: nn.Module, place: torch.device) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=place)
        with evaluation(network), torch.no_grad():
            parts = zip(self._forget.batches(PREDICT_BATCH), torch.split(self._known, PREDICT_BATCH), strict=True)
            for part, labels in parts:
                logits = network(map_nest(lambda leaf: leaf.to(place, copy=True), part.inputs))
                total += _loss(logits, labels.to(place)) * len(part)
        return total / len(self._forget)

    def history(self) -> tuple[Step, ...]:
        """Return one entry an epoch: objective and anchor are the mean loss of its batches, distance the loss on D."""
        return tuple(
            Step(
                iteration=number,
                objective=float(mean),
                distance=float(forgotten),
                anchor=float(mean),
                penalty=0.0,
                density=0.0,
                step=rate,
                seconds=seconds,
            )
            for number, (mean, forgotten, rate, seconds) in enumerate(self._epochs, 1)
        )


def learnt(student: nn.Module, request: Request) -> tuple[Tensor, int]:
    """Return the labels that D's loss is told against, and how many classes the model has.

    Where D comes without labels they are the classes that the model answers; nothing is trained on them.
    """
    logits = predict_logits(student, request.forget, forward=request.forward)
    classes = logits.shape[1]
    found = None if request.forget.labels is None else labelled(request, "forget", classes).labels
    return logits.argmax(1) if found is None else found, classes


def _check_finite(network: nn.Module, history: tuple[Step, ...], rate: str) -> None:
    losses = [value for step in history for value in (step.objective, step.distance)]
    weights = all(bool(torch.isfinite(value).all()) for value in network.parameters())
    if not weights or not all(math.isfinite(loss) for loss in losses):
        raise NonFiniteError(f"the training ran away: a weight or a loss is NaN or infinite; lower {rate}")


def _loss(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten()).double()
