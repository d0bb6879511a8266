"""Fingerprints: of files, of settings, and of records under a secret key.

A plain hash of a record would let anyone who guesses the record check the guess; a keyed one lets only the holder of
the key do so.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forsaken.data.nest import leaves
from forsaken.data.records import Array, Records
from forsaken.data.samples import Samples
from forsaken.errors import DataError, DataNotFoundError, SettingsError

KEY_BYTES = 32
_BLOCK = 2**20


def canonical_json(value: object) -> bytes:
    """Return the one form of JSON that is hashed and signed: sorted keys, no spaces, UTF-8, no NaN.

    >>> canonical_json({"b": 1.0, "a": "é"}).decode()
    '{"a":"é","b":1.0}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def settings_hash(settings: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of the canonical JSON of settings."""
    try:
        return hashlib.sha256(canonical_json(settings)).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingsError(
            f"the settings hold a value that JSON cannot carry ({type(error).__name__}), expected finite numbers, "
            "texts, lists and tables; convert it"
        ) from error


def file_hash(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 (hex) of a file, or of everything that is in a folder.

    A file's is what ``sha256sum`` prints. A folder's is the SHA-256 of one line a file, ended by a zero byte, as
    ``sha256sum -z`` prints it for all files sorted by the bytes of their names. Hidden files and folders are left out,
    since no reader of weights looks at them; links to files count as the files, as in a cache of downloaded models;
    links to folders are refused, since they may lead anywhere.
    """
    place = Path(path)
    try:
        if not place.is_dir():
            return _digest_of_file(place)
        digest = hashlib.sha256()
        inside = sorted((os.fsencode(file.relative_to(place).as_posix()), file) for file in _files(place))
        for name, file in inside:
            digest.update(_digest_of_file(file).encode() + b"  " + name + b"\0")
    except DataError:
        raise
    except FileNotFoundError as error:
        raise DataNotFoundError(f"no file or folder {place}; check the path") from error
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        raise DataError(f"{place} cannot be read ({reason}); check the path and its permissions") from error
    if not inside:
        raise DataError(f"the folder {place} holds no files, expected a model's; check the path")
    return digest.hexdigest()


def record_hashes(content: Records | Samples, key: bytes) -> list[str]:
    """Return the HMAC-SHA-256 (hex) of each record, whatever its label.

    Parameters
    ----------
    content : Records or Samples
        Records as they were read from a file, or the inputs of a model.
    key : bytes
        The 32 bytes of a record key; see `forsaken.jobs.keys`.
    """
    if len(key) != KEY_BYTES:
        raise SettingsError(f"a record key of {len(key)} bytes, expected {KEY_BYTES}; make one with new_record_key()")
    messages = _of_samples(content) if isinstance(content, Samples) else _of_records(content)
    return [hmac.digest(key, message, "sha256").hex() for message in messages]


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            if path.is_symlink():
                raise DataError(f"{path} is a link to a folder, which may lead anywhere; put a copy in its place")
            yield from _files(path)
        else:
            yield path


def _digest_of_file(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is no plain file; give or put one in its place")  # a pipe would keep us waiting
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


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
