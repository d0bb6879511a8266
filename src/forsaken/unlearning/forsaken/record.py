"""From μ to the changed model and its mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from forsaken.models.weights import fingerprint, same_bits
from forsaken.unlearning.forsaken.mask import Entries, Mask
from forsaken.unlearning.forsaken.space import ParameterSpace

_SMALL = 2**31  # positions below it fit into 32 bits


def mask_of(
    space: ParameterSpace, mu: Tensor, student: nn.Module, settings: Mapping[str, Any], base: str | None = None
) -> Mask:
    """Apply θ = θ_0 − μ to `student`, and return the mask of what changed, bit for bit.

    `base` is the fingerprint of the weights as they are, where it is known: to hash them takes longer than some passes.
    """
    space.restore_buffers()
    base = fingerprint(student) if base is None else base
    named = dict(student.named_parameters())
    entries: dict[str, Entries] = {}
    with torch.no_grad():
        for name, near, step in space.changes(mu):
            weights = named[name]
            old = weights.detach().reshape(-1)
            before = old[near]
            after = (before.to(space.dtype) - step).to(old.dtype)
            moved = ~same_bits(before, after)
            if not bool(moved.any()):
                continue
            index = near[moved]
            flat = old.clone()
            flat[index] = after[moved]
            weights.copy_(flat.view_as(weights))
            kind = torch.int32 if old.numel() < _SMALL else torch.int64
            entries[name] = Entries(index.to(kind).cpu(), step[moved].cpu(), before[moved].cpu())
    return Mask(entries, space.trainable, base, fingerprint(student) if entries else base, settings)
