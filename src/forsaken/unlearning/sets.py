"""The sets of a request as a method needs them: there, with labels, and of classes that the model knows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from forsaken.data.samples import Samples
from forsaken.errors import InputError, NonFiniteError
from forsaken.models.logits import LogitModel, predict_logits
from forsaken.unlearning.forsaken.space import ParameterSpace, prepared
from forsaken.unlearning.request import Request


def class_count(student: nn.Module, request: Request) -> int:
    """Return how many classes the model has, from its answer to one sample."""
    return predict_logits(student, request.forget.rows([0]), forward=request.forward).shape[1]


def given(request: Request, name: str) -> Samples:
    """Return the set called `name`, which the method cannot do without."""
    found: Samples | None = getattr(request, name)
    if found is None:
        raise InputError(f"this method needs {name} samples; give {name}=...")
    return found


def labelled(request: Request, name: str, classes: int) -> Samples:
    """Return the set called `name`, whose labels the method needs, one of `classes` each."""
    found: Samples | None = getattr(request, name)
    if found is None:
        raise InputError(f"this method needs {name} samples with labels; give {name}=(inputs, labels)")
    if found.labels is None:
        raise InputError(f"this method needs the labels of the {name} samples; give {name}=(inputs, labels)")
    outside = (found.labels < 0) | (found.labels >= classes)
    if bool(outside.any()):
        # the count alone: a label belongs to a record, and must not end up in a log
        raise InputError(
            f"{int(outside.sum())} of {len(found)} labels of {name} are out of range, expected class numbers from 0 to "
            f"{classes - 1}, as the model has {classes} classes; correct them"
        )
    return found


def loss_gradient(
    student: nn.Module, request: Request, terms: list[tuple[float, Samples]], batch_size: int
) -> dict[str, Tensor]:
    """Return the gradient of Σ factor · CE(samples) by each trainable parameter, in evaluation mode.

    Parameters
    ----------
    student, request
        The model as it is, and how it is called.
    terms : list of (factor, Samples)
        The cross-entropy is the mean over each set, so the batch size plays no role.
    batch_size : int
        Samples in a pass.
    """
    space = ParameterSpace(LogitModel(student, request.forward))
    total = {name: torch.zeros_like(part) for name, part in space.parts.items()}
    with prepared(student):
        for factor, samples in terms:
            for part in samples.batches(batch_size):
                labels = part.labels.to(space.adapter.device)  # type: ignore[union-attr]
                logits = space.logits(space.adapter.place(part.inputs))
                loss = cross_entropy(logits, labels, reduction="sum") * (factor / len(samples))
                found = torch.autograd.grad(loss, list(space.parts.values()), allow_unused=True)
                for one, gradient in zip(total.values(), found, strict=True):
                    if gradient is not None:
                        one += gradient.to_dense() if gradient.is_sparse else gradient
    if not all(bool(torch.isfinite(each).all()) for each in total.values()):
        raise NonFiniteError("the gradient of the cross-entropy is NaN or infinite; check the model's weights")
    return {name: each.detach() for name, each in total.items()}
