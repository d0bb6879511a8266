"""Comparing the weights of models: a fingerprint, how far they moved, and how many changed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


def fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 of a model's state: names, dtypes, shapes and bytes of parameters and buffers.

    It depends neither on the device nor on the order in which modules were created.

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


def same_state(one: nn.Module, other: nn.Module) -> bool:
    """Return whether two models of one class hold the same bits, as equal fingerprints would tell, without hashing.

    >>> a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> same_state(a, a), same_state(a, b)
    (True, False)
    """
    ours: Mapping[str, object] = one.state_dict()
    theirs: Mapping[str, object] = other.state_dict()
    return ours.keys() == theirs.keys() and all(_alike(ours[name], theirs[name]) for name in ours)


def _alike(one: object, other: object) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return isinstance(one, Tensor) == isinstance(other, Tensor)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    flat = [each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, other.to(one.device))]
    return one.numel() == 0 or torch.equal(*flat)


def drift(old: nn.Module, new: nn.Module) -> float:
    """Return how far the parameters moved: the norm of the change divided by the norm of the old parameters.

    >>> a, b = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    >>> _ = a.weight.data.fill_(2.0), b.weight.data.fill_(2.5)
    >>> drift(a, b)
    0.25
    """
    now = dict(new.named_parameters())
    moved = size = 0.0
    for name, weights in old.named_parameters():  # one at a time: all of them in float64 are four times the model
        was = weights.detach().double()
        size += float(was.square().sum())
        moved += float((now[name].detach().to(was) - was).square().sum())
    return math.sqrt(moved / size) if size else 0.0


def changes(old: nn.Module, new: nn.Module) -> dict[str, tuple[int, int]]:
    """Return, for each trainable parameter, how many entries differ bit for bit, and how many there are."""
    was = dict(old.named_parameters())
    found = {}
    for name, after in new.named_parameters():
        if after.requires_grad:
            same = same_bits(was[name].detach().cpu().contiguous(), after.detach().cpu().contiguous())
            found[name] = int((~same).sum()), after.numel()
    return found


def changed_share(old: nn.Module, new: nn.Module) -> float:
    """Return the share of the trainable parameters that differ bit for bit."""
    counts = changes(old, new).values()
    return sum(changed for changed, _ in counts) / max(1, sum(total for _, total in counts))


def same_bits(a: Tensor, b: Tensor) -> Tensor:
    """Return where two tensors of one dtype hold the same bits (so -0.0 differs from 0.0, and NaN equals itself)."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    kind = kinds[a.element_size()]
    return a.view(kind) == b.view(kind)


def _bytes(value: Tensor) -> Any:
    flat = value.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else b""
