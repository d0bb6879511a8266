"""Nests: a tensor, or dicts and tuples of nests, as the inputs of a model come.

The first axis of every tensor in a nest counts the samples. Dictionaries are walked in the order of their keys, so that
nests of one shape line up however they were written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

_ROWS = 1024  # whose keys are computed together

Nest: TypeAlias = "Tensor | dict[str, Nest] | tuple[Nest, ...]"


def map_nest(act: Callable[[Tensor], Tensor], nest: Nest) -> Nest:
    """Apply `act` to every tensor of a nest.

    >>> map_nest(lambda t: t + 1, {"a": torch.zeros(2), "b": (torch.ones(1),)})
    {'a': tensor([1., 1.]), 'b': (tensor([2.]),)}
    """
    if isinstance(nest, dict):
        return {key: map_nest(act, nest[key]) for key in sorted(nest)}
    if isinstance(nest, tuple):
        return tuple(map_nest(act, part) for part in nest)
    return act(nest)


def leaves(nest: Nest) -> list[Tensor]:
    """Return the tensors of a nest, from left to right."""
    if isinstance(nest, dict):
        return [leaf for key in sorted(nest) for leaf in leaves(nest[key])]
    if isinstance(nest, tuple):
        return [leaf for part in nest for leaf in leaves(part)]
    return [nest]


def length(nest: Nest) -> int:
    """Return the number of samples of a nest whose tensors agree on it."""
    return leaves(nest)[0].shape[0]


def shape_of(nest: Nest) -> object:
    """Describe the shape of one sample of a nest, for comparison and for messages.

    >>> shape_of((torch.zeros(5, 3), {"mask": torch.zeros(5)}))
    ((3,), {'mask': ()})
    """
    if isinstance(nest, dict):
        return {key: shape_of(part) for key, part in nest.items()}
    if isinstance(nest, tuple):
        return tuple(shape_of(part) for part in nest)
    return tuple(nest.shape[1:])


def concatenate(nests: Sequence[Nest]) -> Nest:
    """Join nests of one shape along the sample axis."""
    columns = zip(*(leaves(nest) for nest in nests), strict=True)
    joined = iter([torch.cat(column) for column in columns])
    return map_nest(lambda _: next(joined), nests[0])


def as_kinds(nest: Nest, kinds: Sequence[torch.dtype]) -> Nest:
    """Return a nest with each of its tensors, from left to right, in the dtype named for it."""
    left = iter(kinds)
    return map_nest(lambda leaf: leaf.to(next(left)), nest)


def common_kind(one: torch.dtype, two: torch.dtype) -> torch.dtype:
    """Return the dtype that equal samples are equal in: the coarser of two floats, the wider of two integers."""
    if one.is_floating_point and two.is_floating_point:
        return max(one, two, key=lambda kind: torch.finfo(kind).eps)
    return torch.promote_types(one, two)


def row_keys(nest: Nest) -> list[bytes]:
    """Return one digest of 16 bytes a sample, equal where the samples are equal."""
    parts, found = [leaf.detach() for leaf in leaves(nest)], []
    for start in range(0, len(parts[0]), _ROWS):  # what is computed for a key is not held for all rows at once
        found += _keys([part[start : start + _ROWS].cpu().contiguous() for part in parts])
    return found


def _keys(parts: Sequence[Tensor]) -> list[bytes]:
    # Adding zero turns -0.0 into 0.0: equal numbers must give equal keys.
    arrays = [(part + 0 if part.is_floating_point() else part).view(len(part), -1) for part in parts]
    matrices = [a.float().numpy() if a.dtype == torch.bfloat16 else a.numpy() for a in arrays]
    return [_digest([matrix[at] for matrix in matrices]) for at in range(len(parts[0]))]


def _digest(rows: Sequence[np.ndarray[Any, Any]]) -> bytes:
    digest = blake2b(digest_size=16)
    for row in rows:
        digest.update(row.tobytes())
    return digest.digest()
