"""How rows and groups are known: by keyed hashes, so that who has a table cannot try out guesses without its key."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forsaken._keys import KEY_BYTES, new_record_key
from forsaken.data.nest import map_nest
from forsaken.data.record_hashes import record_hashes
from forsaken.data.samples import Samples
from forsaken.errors import InputError, SettingsError
from forsaken.types import Array

WIDTH = 32  # bytes of a hash


def checked_key(key: object) -> bytes:
    """Return the key, or a new one for None."""
    if key is None:
        return new_record_key()
    if not isinstance(key, bytes) or len(key) != KEY_BYTES:
        found = f"{len(key)} bytes" if isinstance(key, bytes) else f"of type {type(key).__name__}"
        raise SettingsError(f"key is {found}, expected {KEY_BYTES} random bytes; None makes new ones")
    return key


def row_hashes(samples: Samples, key: bytes) -> Array:
    """Return the keyed hash of each sample's inputs, as a matrix of bytes.

    Floats of any width hash alike where they are equal in float32, and so do whole numbers of any width; a float and a
    whole number never do.
    """
    plain = Samples(map_nest(_plain, samples.inputs))
    return _matrix([bytes.fromhex(text) for text in record_hashes(plain, key)])


def group_hashes(groups: Iterable[Any], key: bytes) -> Array:
    """Return the keyed hash of each row's group: a name, or a whole number."""
    if not isinstance(groups, Iterable) or isinstance(groups, str | bytes):
        raise InputError(f"groups is of type {type(groups).__name__}, expected a list with the group of each row")
    found = []
    for at, group in enumerate(groups):
        single = isinstance(group, np.generic) or (isinstance(group, Tensor) and group.dim() == 0)
        value = group.item() if single else group
        if not isinstance(value, str | int | bytes) or isinstance(value, bool):
            # The type alone: a group is a person's name.
            raise InputError(
                f"the group of row {at} is of type {type(value).__name__}, expected a name or a whole number"
            )
        # The number 1 and the text "1" are one group: a column may be read as either, and nobody would notice.
        text = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        found.append(hmac.digest(key, b"group\0" + text, "sha256"))
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
