"""Logits and models that somebody hands in: that they never saw the rows is that person's word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError
from forsaken.models.logits import Forward, predict_logits


def as_given(logits: object, count: int) -> Tensor:
    """Return logits that were handed in for `count` samples, checked; one column z is the classes (-z/2, z/2)."""
    try:
        found = torch.as_tensor(logits).detach().cpu().float()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"logits is of type {type(logits).__name__}, expected an array (rows, classes)") from error
    if found.dim() == 1:
        found = found.unsqueeze(1)
    if found.dim() == 2 and found.shape[1] == 1:
        found = torch.cat([-found / 2, found / 2], dim=1)
    if found.dim() != 2 or len(found) != count:
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
        at = np.asarray(rows, dtype=np.int64)
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
