"""The secret behind the hashes of records, and files of keys, which are never overwritten."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from forsaken._files import write_atomically
from forsaken.errors import OutputError, SettingsError

KEY_BYTES = 32
_LARGEST = 2**16  # bytes; a key is a few hundred
_NEW_RECORD = "make one with: forsaken keys new-record FILE"


def new_record_key() -> bytes:
    """Return 32 random bytes, the key of the keyed hashes of records."""
    return secrets.token_bytes(KEY_BYTES)


def read_record_key(path: str | os.PathLike[str]) -> bytes:
    """Read a record key: a text file of 64 hexadecimal digits."""
    text = content_of(Path(path), _NEW_RECORD).strip()
    if not re.fullmatch(rb"[0-9a-fA-F]{64}", text):
        # Never the text itself: it may be another secret.
        raise SettingsError(
            f"{path} is no record key, expected a text file of 64 hexadecimal digits and nothing else; {_NEW_RECORD}"
        )
    return bytes.fromhex(text.decode())


def key_file(path: Path) -> Path:
    """Return where the key of a table of references lies unless it is named: beside the table."""
    return path.with_name(path.name + ".key")


def write_record_key(path: str | os.PathLike[str], key: bytes) -> Path:
    """Write a record key that only its owner may read; a file that is there is never overwritten."""
    return write_new(Path(path), key.hex().encode() + b"\n", private=True)


def key_warning(path: str | os.PathLike[str]) -> str | None:
    """Return a sentence of warning if others than the owner may read the secret key in a file."""
    try:
        mode = Path(path).stat().st_mode
    except OSError:
        return None
    if os.name != "posix" or not mode & 0o077:
        return None
    return f"The key {path} can be read by others than its owner; run: chmod 600 {path}"


def content_of(path: Path, remedy: str) -> bytes:
    """Return what a file of a key holds; `remedy` is what an error advises besides checking the path."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except FileNotFoundError as error:
        raise SettingsError(f"no key file {path}; check the path, or {remedy}") from error
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "no file can be called so"
        raise SettingsError(f"the key file {path} cannot be read ({reason}); check the path") from error
    if len(content) > _LARGEST:
        raise SettingsError(f"{path} is larger than any key; check the path, or {remedy}")
    return content


def write_new(path: Path, content: bytes, *, private: bool) -> Path:
    """Write a file that is not there yet; one that is there is never replaced."""
    try:
        # Taking the name first makes sure that a file of somebody else is never replaced.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666))
    except FileExistsError as error:
        raise taken(path) from error
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "no file can be called so"
        raise OutputError(f"cannot write {path}: {reason}; does its folder exist?") from error
    try:
        return write_atomically(path, content, private=private)
    except OutputError:
        path.unlink(missing_ok=True)
        raise


def taken(path: Path) -> OutputError:
    """Return the error that a file is there already."""
    return OutputError(f"{path} is there already, and a key is never overwritten; give another name, or move it away")
