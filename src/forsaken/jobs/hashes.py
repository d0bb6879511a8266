"""Fingerprints of files and of settings."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from forsaken.errors import DataError, DataNotFoundError, SettingsError

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
