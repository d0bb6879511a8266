"""Fingerprints of records under a secret key.

A plain hash of a record would let anyone who guesses the record check the guess; a keyed one lets only the holder of
the key do so.
"""

from __future__ import annotations

import hmac
import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from forsaken._keys import KEY_BYTES
from forsaken.data.nest import leaves
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import SettingsError
from forsaken.types import Array


def record_hashes(content: Records | Samples, key: bytes) -> list[str]:
    """Return the HMAC-SHA-256 (hex) of each record, whatever its label.

    Parameters
    ----------
    content : Records or Samples
        Records as they were read from a file, or the inputs of a model.
    key : bytes
        The 32 bytes of a record key; ``forsaken keys new-record`` makes one.
    """
    if len(key) != KEY_BYTES:
        raise SettingsError(f"a record key of {len(key)} bytes, expected {KEY_BYTES}; take random ones")
    messages = _of_samples(content) if isinstance(content, Samples) else _of_records(content)
    return [hmac.digest(key, message, "sha256").hex() for message in messages]


def _of_records(records: Records) -> Iterator[bytes]:
    if records.kind == "text":
        for text in records.content:
            # A text may hold half a character pair, which plain UTF-8 refuses.
            yield b"text\0" + text.encode("utf-8", "surrogatepass")
        return
    content = records.content if records.kind == "image" else records.content.astype(np.float32)
    head = records.kind.encode() + b"\0" + _shape(content.shape[1:])
    for row in _rows_of_bytes(content):
        yield head + row


def _of_samples(samples: Samples) -> Iterator[bytes]:
    parts = leaves(samples.inputs)
    heads = [f"{leaf.dtype}".removeprefix("torch.").encode() + b"\0" + _shape(leaf.shape[1:]) for leaf in parts]
    for rows in zip(*(_rows_of_bytes(_array(leaf)) for leaf in parts), strict=True):
        yield b"samples\0" + b"".join(head + row for head, row in zip(heads, rows, strict=True))


def _shape(shape: tuple[int, ...]) -> bytes:
    """Return the number of axes and their lengths, so that no two shapes share their bytes."""
    return np.array([len(shape), *shape], dtype="<u8").tobytes()


def _array(leaf: Tensor) -> Array:
    plain = leaf.detach().cpu()
    if plain.dtype != torch.bfloat16:
        return plain.numpy()
    return (plain + 0).contiguous().view(torch.int16).numpy()  # NumPy has no such numbers; their bits will do


def _rows_of_bytes(content: Array) -> Iterator[bytes]:
    matrix = content.reshape(len(content), math.prod(content.shape[1:]))
    little = matrix.dtype.newbyteorder("<")
    for row in matrix:
        # Adding zero turns -0.0 into 0.0: equal numbers must give equal hashes.
        yield (row + row.dtype.type(0) if row.dtype.kind == "f" else row).astype(little).tobytes()
