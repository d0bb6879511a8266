"""The pair of keys that signs certificates. The secret behind the hashes of records is in `forsaken._keys`."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from forsaken._keys import content_of, taken, write_new
from forsaken.errors import OutputError, SettingsError

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
        private.unlink(missing_ok=True)  # half a pair would stand in the way of the next try
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
