"""Losses that several methods share: how far a student is from its teacher, and the gradient of the cross-entropy."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div

from forsaken.data.samples import Samples
from forsaken.errors import NonFiniteError
from forsaken.models.logits import LogitModel
from forsaken.unlearning.forsaken.parameters import ParameterSpace, prepared
from forsaken.unlearning.request import Request


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Return the mean of KL(teacher ‖ student) over samples, from the logits of both.

    >>> even, sure = torch.zeros(1, 2), torch.tensor([[0.0, 0.75]]).log_softmax(1)
    >>> divergence(even, even).item()
    0.0
    >>> bool(divergence(sure, even) > 0)
    True
    """
    return kl_div(student.log_softmax(1), teacher.log_softmax(1), reduction="batchmean", log_target=True)


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
                for name, gradient in zip(total, found, strict=True):
                    if gradient is not None:
                        total[name] += gradient.to_dense() if gradient.is_sparse else gradient
    if not all(bool(torch.isfinite(each).all()) for each in total.values()):
        raise NonFiniteError("the gradient of the cross-entropy is NaN or infinite; check the model's weights")
    return {name: each.detach() for name, each in total.items()}
