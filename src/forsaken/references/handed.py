"""Logits and models that somebody hands in: that they never saw the rows is that person's word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, SequentialSampler

from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError
from forsaken.models.logits import Forward, predict_logits


def in_order(data: object, name: str, what: str) -> None:
    """Refuse a loader that shuffles, where something goes by the order of its samples."""
    if isinstance(data, DataLoader) and not isinstance(data.sampler, SequentialSampler):
        raise InputError(
            f"{what} of {name}, but its loader shuffles, so that rows would be taken for others; give a loader with "
            "shuffle=False, or a Dataset"
        )


def as_given(logits: object, count: int) -> Tensor:
    """Return logits that were handed in for `count` samples, checked; one column z is the classes (-z/2, z/2)."""
    try:
        raw = torch.as_tensor(logits).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"logits is of type {type(logits).__name__}, expected an array (rows, classes)") from error
    if raw.is_complex():
        raise InputError(f"logits has dtype {raw.dtype}, expected real numbers; take their real part")
    found = raw.float()
    if found.dim() == 1:
        found = found.unsqueeze(1)
    if found.dim() == 2 and found.shape[1] == 1:
        found = torch.cat([-found / 2, found / 2], dim=1)
    if found.dim() != 2 or len(found) != count or found.shape[1] == 0:
        raise InputError(f"logits has shape {tuple(found.shape)}, expected ({count}, classes): one row a sample")
    if not bool(torch.isfinite(found).all()):
        raise InputError("logits holds NaN or infinite values; give finite ones")
    return found


def answers(
    models: Sequence[Any], samples: Samples, held_out: Sequence[Sequence[int]], forward: Forward | None
) -> tuple[list[int], Tensor]:
    """Return the rows that some model is said never to have seen, and what the last such model says about each."""
    if len(models) != len(held_out):
        raise InputError(f"{len(models)} models but {len(held_out)} sets of held-out rows; give one for each model")
    found: dict[int, Tensor] = {}
    for model, rows in zip(models, held_out, strict=True):
        at = _row_numbers(rows)
        if at.size and (at.min() < 0 or at.max() >= len(samples)):
            raise InputError(f"held-out rows reach from {at.min()} to {at.max()}, expected 0 to {len(samples) - 1}")
        if at.size:
            said = predict_logits(model, samples.rows(at), forward=forward).float()
            found |= dict(zip(at.tolist(), said, strict=True))
    if not found:
        raise InputError("no model is said to have held out any row; name some in held_out")
    if len({len(row) for row in found.values()}) > 1:
        raise ModelError("the models tell different numbers of classes apart; give models of one task")
    order = sorted(found)
    return order, torch.stack([found[at] for at in order])


def _row_numbers(rows: Sequence[int]) -> np.ndarray[Any, Any]:
    found = np.asarray(rows)
    if found.size and (found.ndim != 1 or found.dtype.kind not in "iu"):
        raise InputError(
            f"a set of held-out rows is an array of {found.dtype} with {found.ndim} axes, expected row numbers; turn a "
            "mask into numbers with np.flatnonzero(mask)"
        )
    return found.astype(np.int64).reshape(-1)
