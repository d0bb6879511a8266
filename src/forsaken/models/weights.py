"""Comparing the weights of models: a fingerprint, how far they moved, and how many changed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

_LARGE = 1 << 22  # bytes from which on tensors are hashed side by side


def fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 of a model's state: a line for each parameter and buffer with the SHA-256 of its bytes.

    It depends neither on the device nor on the order in which modules were created. The tensors of a large model are
    hashed on all cores.

    >>> a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> b.load_state_dict(a.state_dict()) and fingerprint(a) == fingerprint(b)
    True
    """
    state: Mapping[str, object] = model.state_dict()
    tensors = {name: value for name, value in sorted(state.items()) if isinstance(value, Tensor)}
    if sum(value.nbytes for value in tensors.values()) < _LARGE:
        hashes = [_hash(value) for value in tensors.values()]
    else:
        if any(value.is_cuda for value in tensors.values()):
            torch.cuda.synchronize()  # other threads do not wait for the streams of this one
        with ThreadPoolExecutor() as pool:
            hashes = list(pool.map(_hash, tensors.values()))
    told = (f"{name} {value.dtype} {tuple(value.shape)}" for name, value in tensors.items())
    return hashlib.sha256("".join(map("{} {}\n".format, told, hashes)).encode()).hexdigest()


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


def _hash(value: Tensor) -> str:
    flat = value.detach().cpu().contiguous().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data if flat.numel() else b"").hexdigest()
