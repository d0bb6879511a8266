"""Full retraining, the yardstick: a new network that never sees the forgotten samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from forsaken._random import torch_seed
from forsaken.data.nest import Nest, map_nest
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError, NonFiniteError
from forsaken.models.logits import PREDICT_BATCH, Forward, LinearModel, LogitModel, caller, evaluation, predict_logits
from forsaken.models.train import Training, steps_of, train
from forsaken.recipe import Recipe
from forsaken.result import Step
from forsaken.unlearning.base import About, Details, Request, Unlearner, labelled

_RATE = "learning_rate of the training's recipe"


@dataclass(frozen=True, kw_only=True)
class Retrain(Unlearner):
    """Train a new network on what remains: exact, and as dear as training was.

    ``retain=`` must be *all* of the remaining training data with labels, since the new network learns from nothing
    else; ``training=`` says how the model came about. The new weights are, bit for bit, those of
    ``training.run(retain, seed=seed)``. Other methods are measured against it: what it forgets is forgotten, what it
    costs is what unlearning has to save.

    Notes
    -----
    The new network is built and trained on `training.device`; its weights are then put into the copy of the model, on
    the model's own device.
    """

    about: ClassVar[About] = About(
        summary="train a new network, with the same recipe, on everything but the forgotten samples",
        paper='the yardstick of every comparison, also in Liu et al., "Learn to Forget: Machine Unlearning via Neuron '
        'Masking"',
        needs=("forget", "retain (all of the remaining training data, with labels)", "training"),
    )

    def run(self, student: nn.Module, request: Request) -> Details:
        """Train anew and put the weights into `student`. See `Unlearner.run`."""
        if isinstance(student, LinearModel):
            raise ModelError(
                f"{type(student.estimator).__name__} is trained by its own fit, not by a recipe; call fit on the "
                "remaining data"
            )
        training = _training(request)
        known, classes = learnt(student, request)
        retain = labelled(request, "retain", classes)
        with torch_seed(request.seed):
            sketch = training.build()
        _check_same_kind(sketch, student)
        kind = LogitModel(sketch).dtype
        forget, kept = (Samples(_as_kind(part.inputs, kind), part.labels) for part in (request.forget, retain))
        log = LossLog(kept, forget, known, training.recipe, request.forward)
        rate = f"{_RATE}, {training.recipe.learning_rate:g}"
        network = log.train(training.build, request, device=training.device, stage="retrain", rate=rate)
        history = log.history()
        student.load_state_dict(network.state_dict())
        facts = {"samples": len(retain), "epochs": training.recipe.epochs, "steps": log.steps}
        note = f"trained anew on {len(retain):,} samples; they must be all that remain of the training data"
        return Details("iterations", len(history), log.steps, history, None, facts, (note,))

    def hint(self, details: Details) -> str:  # noqa: ARG002 (one reason only)
        """Say why new weights can be the old ones."""
        return "the model handed over is itself the one trained on `retain` with this seed; give another seed"


def _training(request: Request) -> Training:
    if request.training is None:
        raise InputError(
            "retrain needs to know how the model was trained, and training is None; give for example "
            "training=forsaken.Training(lambda: MyNetwork(), forsaken.Recipe(epochs=10, batch_size=64, "
            "learning_rate=1e-3))"
        )
    if request.retain is None:
        raise InputError(
            "retrain learns from retain alone, and retain is None; give all of the remaining training data: "
            "retain=(inputs, labels)"
        )
    return request.training


def _as_kind(inputs: Nest, kind: torch.dtype | None) -> Nest:
    return map_nest(lambda leaf: leaf.to(kind) if kind is not None and leaf.is_floating_point() else leaf, inputs)


def _check_same_kind(sketch: nn.Module, student: nn.Module) -> None:
    """Tell before the training, not after it, that the new weights would not fit the model."""
    new = {name: tuple(value.shape) for name, value in sketch.state_dict().items()}
    old = {name: tuple(value.shape) for name, value in student.state_dict().items()}
    for name in [*old, *new]:
        if new.get(name) != old.get(name):
            there, here = (f"of shape {found[name]}" if name in found else "missing" for found in (new, old))
            raise ModelError(
                f"training.build makes another network than the model handed over: {name} is {there} in the new one "
                f"and {here} in the model; give the build that made the model"
            )


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
        The labels with which the loss on D is computed.
    recipe : Recipe
        Of the training.
    forward : callable, optional
        How to call the network; see `forsaken.unlearn`.
    """

    def __init__(
        self, data: Samples, forget: Samples, known: Tensor, recipe: Recipe, forward: Forward | None = None
    ) -> None:
        self._data, self._labels = data, data.labels
        self._forget, self._known = forget, known
        self._recipe, self._forward = recipe, forward
        self._steps, self._an_epoch = 0, 1
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
                build,
                self._data,
                self._recipe,
                seed=request.seed,
                forward=self._forward,
                device=device,
                observer=self,
                progress=request.progress,
                stage=stage,
            )
        except NonFiniteError as error:
            raise NonFiniteError(f"{error}: lower {rate}") from error
        _check_finite(network, self.history(), rate)
        return network

    def before(self, network: nn.Module, rows: Tensor, logits: Tensor) -> None:
        """Add the loss of this batch."""
        if self._labels is None:
            return
        if self._sum is None:
            self._an_epoch = steps_of(len(self._data), self._recipe, network)
            self._labels = self._labels.to(rows.device)
            self._sum = torch.zeros((), dtype=torch.float64, device=rows.device)
        self._sum += _loss(logits.detach(), self._labels[rows]) * len(rows)

    def after(self, network: nn.Module, rows: Tensor, optimiser: torch.optim.Optimizer) -> None:
        """Close the epoch at its last batch."""
        self._steps += 1
        if self._steps % self._an_epoch or self._sum is None:
            return
        rate = float(optimiser.param_groups[0]["lr"])
        mean = self._sum / len(self._data)
        self._epochs.append((mean, self._on_forget(network, rows.device), rate, time.perf_counter() - self._begun))
        self._sum = torch.zeros_like(self._sum)

    def _on_forget(self, network: nn.Module, place: torch.device) -> Tensor:
        total, logits_of = torch.zeros((), dtype=torch.float64, device=place), caller(network, self._forward)
        with evaluation(network), torch.no_grad():
            parts = zip(self._forget.batches(PREDICT_BATCH), torch.split(self._known, PREDICT_BATCH), strict=True)
            for part, labels in parts:
                logits = logits_of(map_nest(lambda leaf: leaf.to(place, copy=True), part.inputs))
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
    """Return the labels with which the loss on D is computed, and how many classes the model has.

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
