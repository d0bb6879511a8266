"""How rows and groups are known: by keyed hashes, so that who has a table cannot try out guesses without its key."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forsaken.data.nest import map_nest
from forsaken.data.record_hashes import record_hashes
from forsaken.data.samples import Samples
from forsaken.errors import InputError

Array = np.ndarray[Any, Any]

WIDTH = 32  # bytes of a hash


def row_hashes(samples: Samples, key: bytes) -> Array:
    """Return the keyed hash of each sample's inputs, as a matrix of bytes; equal numbers of any dtype hash alike."""
    plain = Samples(map_nest(_plain, samples.inputs))
    return _matrix([bytes.fromhex(text) for text in record_hashes(plain, key)])


def group_hashes(groups: Iterable[Any], key: bytes) -> Array:
    """Return the keyed hash of each row's group: a name, or a whole number."""
    found = []
    for at, group in enumerate(groups):
        value = group.item() if isinstance(group, np.generic | Tensor) else group
        if not isinstance(value, str | int | bytes) or isinstance(value, bool):
            raise InputError(f"the group of row {at} is of type {type(value).__name__}, expected a name or a number")
        kind = b"bytes" if isinstance(value, bytes) else type(value).__name__.encode()
        text = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        found.append(hmac.digest(key, b"group\0" + kind + b"\0" + text, "sha256"))
    return _matrix(found)


def as_keys(hashes: Array) -> list[bytes]:
    """Return the rows of a matrix of bytes, each as one value."""
    return [row.tobytes() for row in hashes]


def _plain(leaf: Tensor) -> Tensor:
    if leaf.is_floating_point():
        return leaf.detach().cpu().to(torch.float32)
    return leaf.detach().cpu().to(torch.int64)


def _matrix(digests: list[bytes]) -> Array:
    return np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(len(digests), WIDTH).copy()
