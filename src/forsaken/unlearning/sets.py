"""The sets of a request as a method needs them: there, with labels, and of classes that the model knows."""

from __future__ import annotations

from torch import nn

from forsaken.data.samples import Samples
from forsaken.errors import InputError
from forsaken.models.logits import predict_logits
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
