"""Full retraining, the yardstick: a new network that never sees the forgotten samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from forsaken._random import torch_seed
from forsaken.data.nest import Nest, map_nest
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError
from forsaken.models.logits import LinearModel, LogitModel
from forsaken.models.train import Training
from forsaken.unlearning.base import About, Details, Unlearner
from forsaken.unlearning.loss_log import LossLog, learnt
from forsaken.unlearning.request import Request
from forsaken.unlearning.sets import labelled

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
        log = LossLog(kept, forget, known, training.recipe)
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
