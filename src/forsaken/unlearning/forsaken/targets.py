"""P: where the posteriors of the forgotten samples should go."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from forsaken.errors import InputError

_FLOOR = 1e-12  # the smallest posterior a target keeps


def centre(logits: Tensor) -> Tensor:
    """Subtract the mean over the classes: what is left fixes the posterior and is fixed by it.

    >>> centre(torch.tensor([[1.0, 3.0]]))
    tensor([[-1.,  1.]])
    """
    return logits - logits.mean(dim=-1, keepdim=True)


def target_logits(posterior: Tensor) -> Tensor:
    """Return log max(P, 1e-12), centred, in float64."""
    return centre(posterior.double().clamp_min(_FLOOR).log())


@dataclass(frozen=True, slots=True)
class ClassRows:
    """One posterior a class, averaged over reference samples.

    Attributes
    ----------
    rows : Tensor, shape (p, p), float64
        Row c is the mean posterior of the references of class c; the mean of all where there is none.
    missing : tuple of int
        The classes without a reference of their own.
    """

    rows: Tensor
    missing: tuple[int, ...]


def class_rows(posterior: Tensor, classes: Tensor) -> ClassRows:
    """Average the references' posteriors class by class.

    Parameters
    ----------
    posterior : Tensor, shape (n, p)
        The references' posteriors. They are averaged, not their logits.
    classes : Tensor, shape (n,)
        The class of each: the model's own prediction (`class-mean`) or the true one (`corrected`).
    """
    p = posterior.shape[1]
    member = torch.nn.functional.one_hot(classes, p).double()
    counts = member.sum(0)
    sums = member.T @ posterior.double()
    overall = posterior.double().mean(0, keepdim=True)
    rows = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], overall)
    return ClassRows(rows, tuple((counts == 0).nonzero()[:, 0].tolist()))


def uniform(count: int, classes: int) -> Tensor:
    """Return the logits of the ideal non-member (Def. forgotten): 1/p in every class, so 0 everywhere."""
    return torch.zeros(count, classes, dtype=torch.float64)


def look_like_posteriors(rows: Tensor) -> bool:
    """Return whether rows of "logits" are probabilities by mistake: all positive, all sums one, not all constant.

    >>> look_like_posteriors(torch.tensor([[0.2, 0.8]])), look_like_posteriors(torch.tensor([[-1.0, 2.0]]))
    (True, False)
    """
    sums = bool(((rows.sum(1) - 1).abs() < 1e-4).all())
    return sums and bool((rows > 0).all()) and bool((rows.amax(1) > rows.amin(1)).any())


def given(targets: object, count: int, classes: int) -> Tensor:
    """Check logits handed in sample by sample, and centre them."""
    try:
        logits = torch.as_tensor(targets).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"targets is of type {type(targets).__name__}, which is no array of numbers; expected logits of shape "
            f"({count}, {classes})"
        ) from error
    if logits.is_complex():
        raise InputError(f"targets has dtype {logits.dtype}, expected real logits; take their real part")
    logits = logits.double()
    if logits.dim() == 1:
        logits = logits.unsqueeze(1)
    if logits.dim() == 2 and logits.shape[1] == 1 and classes == 2:
        logits = torch.cat([-logits / 2, logits / 2], dim=1)
    if tuple(logits.shape) != (count, classes):
        raise InputError(
            f"targets has shape {tuple(logits.shape)}, expected ({count}, {classes}): one row of logits a forget "
            "sample, one column a class"
        )
    if not bool(torch.isfinite(logits).all()):
        raise InputError("targets holds NaN or infinite logits; clamp posteriors before taking their logarithm")
    if look_like_posteriors(logits):
        raise InputError("targets are probabilities (rows that sum to one), expected logits; give their logarithm")
    return centre(logits)
