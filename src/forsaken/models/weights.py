"""The weights of a model as bytes: their fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 of a model's state: names, dtypes, shapes and bytes of parameters and buffers.

    The device plays no role, and neither does the order in which modules were made.

    >>> a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> b.load_state_dict(a.state_dict()) and fingerprint(a) == fingerprint(b)
    True
    """
    digest = hashlib.sha256()
    state: Mapping[str, object] = model.state_dict()
    for name in sorted(state):
        value = state[name]
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(_bytes(value))
    return digest.hexdigest()


def same_bits(a: Tensor, b: Tensor) -> Tensor:
    """Return where two tensors of one dtype hold the same bits (so -0.0 differs from 0.0, and NaN equals itself)."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    kind = kinds[a.element_size()]
    return a.view(kind) == b.view(kind)


def _bytes(value: Tensor) -> Any:
    flat = value.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else b""
