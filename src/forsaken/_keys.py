"""Files of keys: the secret behind the hashes of records, and the pair that signs certificates. Never overwritten."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from forsaken._files import remove, write_atomically
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
    if re.fullmatch(rb"[0-9a-fA-F\0]{0,63}|\0+", text):
        raise SettingsError(
            f"{path} is a record key that was cut off, expected 64 hexadecimal digits: an earlier version was killed, "
            "or the power failed, while it wrote them; bring the whole key back from a copy, or delete the file and "
            f"{_NEW_RECORD}"
        )
    if not re.fullmatch(rb"[0-9a-fA-F]{64}", text):
        # Never the text itself: it may be another secret.
        raise SettingsError(
            f"{path} is no record key, expected a text file of 64 hexadecimal digits and nothing else; {_NEW_RECORD}"
        )
    return bytes.fromhex(text.decode())


def key_file(path: Path) -> Path:
    """Return where the key of a table of references lies unless it is named: beside the table."""
    return path.with_name(path.name + ".key")


def remove_empty_key(path: Path) -> None:
    """Remove a key file without content, so that a new key can be written: nothing was ever hashed with that one.

    Earlier versions left such a file when they were killed at the wrong moment.
    """
    plain = path.is_file() and not path.is_symlink() and path.stat().st_size <= _LARGEST
    if plain and not path.read_bytes().strip(b"\0"):
        remove(path)


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
    """Write a file that is not there yet, whole or not at all; one that is there is never replaced."""
    if os.path.lexists(path):
        raise taken(path)
    try:
        return write_atomically(path, content, private=private, replace=False)
    except OutputError as error:
        if isinstance(error.__cause__, FileExistsError):  # it came in the meantime
            raise taken(path) from error
        raise


def taken(path: Path) -> OutputError:
    """Return the error that a file is there already."""
    return OutputError(f"{path} is there already, and a key is never overwritten; give another name, or move it away")


PASSPHRASE = "FORSAKEN_PASSPHRASE"  # noqa: S105 (the name of the variable, not its value)
_NEW_SIGNING = "make one with: forsaken keys new-signing FILE"


def new_signing_key() -> Ed25519PrivateKey:
    """Return a new private key for signatures."""
    return Ed25519PrivateKey.generate()


def read_signing_key(path: str | os.PathLike[str], passphrase: bytes | None = None) -> Ed25519PrivateKey:
    """Read an Ed25519 private key in PEM, as ``openssl genpkey -algorithm ed25519`` writes it.

    Parameters
    ----------
    path : path
        The file.
    passphrase : bytes, optional
        Opens an encrypted key; by default the environment variable FORSAKEN_PASSPHRASE.
    """
    pem = content_of(Path(path), _NEW_SIGNING)
    if b"-----BEGIN PUBLIC KEY-----" in pem:
        raise SettingsError(f"{path} holds a public key, expected the private one that signs; give that file")
    locked = b"-----BEGIN ENCRYPTED PRIVATE KEY-----" in pem
    opener = (passphrase if passphrase is not None else _passphrase()) if locked else None
    if locked and not opener:
        raise SettingsError(f"the key {path} is encrypted; set its passphrase in the environment variable {PASSPHRASE}")
    try:
        key = serialization.load_pem_private_key(pem, opener)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        remedy = f"is the passphrase in {PASSPHRASE} right?" if locked else f"get it again, or {_NEW_SIGNING}"
        raise SettingsError(f"{path} cannot be read as a private key in PEM; {remedy}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SettingsError(f"{path} holds a key of another kind ({_kind(key)}), expected Ed25519; {_NEW_SIGNING}")
    return key


def read_public_key(path: str | os.PathLike[str]) -> Ed25519PublicKey:
    """Read an Ed25519 public key in PEM, as ``openssl pkey -pubout`` writes it."""
    pem = content_of(Path(path), "ask whoever signs for it")
    if b"PRIVATE KEY-----" in pem:
        raise SettingsError(
            f"{path} holds a private key, expected the public one; write it with: openssl pkey -in {path} -pubout"
        )
    return parse_public_key(pem, str(path))


def parse_public_key(pem: str | bytes, where: str = "the public key") -> Ed25519PublicKey:
    """Return the Ed25519 public key that a PEM text holds; `where` is what an error calls it."""
    try:
        key = serialization.load_pem_public_key(pem.encode() if isinstance(pem, str) else pem)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SettingsError(f"{where} cannot be read as a public key in PEM; get it again from its owner") from error
    if not isinstance(key, Ed25519PublicKey):
        raise SettingsError(f"{where} is a key of another kind ({_kind(key)}), expected Ed25519; ask for that one")
    return key


def write_signing_keys(path: str | os.PathLike[str], key: Ed25519PrivateKey) -> tuple[Path, Path]:
    """Write a private key, which only its owner may read, and its public key beside it (.pub); never overwrite.

    Where the environment variable FORSAKEN_PASSPHRASE is set, the private key is encrypted with it.
    """
    private = Path(path)
    public = private.with_name(private.name + ".pub")
    for goal in (private, public):
        if os.path.lexists(goal):
            raise taken(goal)
    opener = _passphrase()
    lock = serialization.BestAvailableEncryption(opener) if opener else serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
    write_new(private, pem, private=True)
    try:
        write_new(public, public_key_text(key).encode(), private=False)
    except OutputError:
        remove(private)  # half a pair would stand in the way of the next try
        raise
    return private, public


def public_key_text(key: Ed25519PrivateKey | Ed25519PublicKey) -> str:
    """Return the public key of a pair as PEM text."""
    public = key.public_key() if isinstance(key, Ed25519PrivateKey) else key
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return pem.decode()


def key_id(public: Ed25519PublicKey) -> str:
    """Return the name of a public key: the first 16 hexadecimal digits of the SHA-256 of its 32 bytes."""
    return hashlib.sha256(public.public_bytes_raw()).hexdigest()[:16]


def _passphrase() -> bytes | None:
    text = os.environ.get(PASSPHRASE)
    return os.fsencode(text) if text else None


def _kind(key: object) -> str:
    return type(key).__name__.lstrip("_").removesuffix("PrivateKey").removesuffix("PublicKey")
