"""The certificate of an unlearning run: what was done to which weights, for which records, with what outcome."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, ClassVar, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import ValidationError

from forsaken._files import write_atomically
from forsaken.errors import OutputError, SettingsError
from forsaken.jobs.hashes import canonical_json, settings_hash
from forsaken.jobs.keys import key_id, parse_public_key, public_key_text
from forsaken.jobs.statements import (
    Audit,
    BothWeights,
    Forgotten,
    History,
    LaterStatement,
    MaskFate,
    ReferenceTable,
    Seconds,
    Settings,
    Signature,
    Target,
    Time,
    Weights,
    Words,
)

KIND = "forsaken.certificate"
SCHEMA = 1
FILE = "certificate.json"
_LARGEST = 2**28  # bytes; a million records take a quarter of it
_AGAIN = "get the file again from whoever issued it"

Verdict = Literal["valid", "invalid", "unsigned", "other key"]


class Certificate(LaterStatement):
    """What a run did, in a form that can be hashed, signed and checked by others. It holds no record and no path."""

    later: ClassVar[tuple[str, ...]] = ("references",)

    time: Time
    version: Words
    weights: BothWeights
    settings: Settings
    records: Forgotten
    method: Words
    target: Target | None
    audit: Audit
    seconds: Seconds
    stopped: Words
    chain: History
    mask: MaskFate
    signature: Signature | None
    references: ReferenceTable | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, ready for JSON."""
        return {"kind": KIND, "schema": SCHEMA, **self.model_dump(mode="json")}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], where: str = "the certificate") -> Certificate:
        """Return the certificate that plain values describe; `where` is what an error calls it."""
        if not isinstance(content, Mapping) or content.get("kind") != KIND:
            raise OutputError(f"{where} is no certificate of Forsaken (its kind is not {KIND!r}); check the path")
        schema = content.get("schema")
        if type(schema) is not int or schema < 1:
            raise OutputError(f"{where} does not say its schema, expected {SCHEMA}; {_AGAIN}")
        if schema > SCHEMA:
            raise OutputError(
                f"{where} has schema {str(schema)[:20]}, expected {SCHEMA} at most; install a newer Forsaken"
            )
        fields = {name: value for name, value in content.items() if name not in ("kind", "schema")}
        try:
            # By way of JSON, since only there do strict types let a list be a tuple; NaN is refused on the way.
            return cls.model_validate_json(canonical_json(fields))
        except ValidationError as error:
            raise OutputError(f"{where} is not sound: {_problems(error)}; {_AGAIN}") from error
        except (TypeError, ValueError, RecursionError) as error:
            raise OutputError(f"{where} holds a value that JSON cannot carry, such as NaN; {_AGAIN}") from error

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Certificate:
        """Read a certificate file."""
        try:
            with Path(path).open("rb") as file:
                raw = file.read(_LARGEST + 1)
        except FileNotFoundError as error:
            raise OutputError(f"no certificate {path}; check the path") from error
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or "no file can be called so"
            raise OutputError(f"the certificate {path} cannot be read ({reason}); check the path") from error
        if len(raw) > _LARGEST:
            raise OutputError(f"{path} has more than {_LARGEST} bytes, too many for a certificate; check the path")
        try:
            content = json.loads(raw, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise OutputError(f"the certificate {path} is damaged: it is no JSON; {_AGAIN}") from error
        return cls.from_dict(content, f"the certificate {path}")

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the certificate as JSON that people can read."""
        return write_atomically(path, json.dumps(self.to_dict(), indent=1, ensure_ascii=False).encode() + b"\n")

    @property
    def sha256(self) -> str:
        """The SHA-256 (hex) of the canonical JSON, signature included; how the file is laid out does not matter."""
        return hashlib.sha256(canonical_json(self.to_dict())).hexdigest()

    def sign(self, key: Ed25519PrivateKey) -> Certificate:
        """Return the certificate with the signature of `key` over everything else."""
        public = key.public_key()
        value = base64.b64encode(key.sign(self._signed_bytes())).decode()
        signature = Signature(
            algorithm="Ed25519", public_key=public_key_text(public), key_id=key_id(public), value=value
        )
        return self.model_copy(update={"signature": signature})

    def check_signature(self, public: Ed25519PublicKey | str | bytes | None = None) -> Verdict:
        """Return whether the signature fits the content and, where `public` (PEM) is given, is by that key.

        Without `public` a valid signature says only that nothing was changed since somebody signed.
        """
        if self.signature is None:
            return "unsigned"
        try:
            own = parse_public_key(self.signature.public_key)
            value = base64.b64decode(self.signature.value, validate=True)
            own.verify(value, self._signed_bytes())
        except (InvalidSignature, SettingsError, binascii.Error, ValueError):
            return "invalid"
        # These stand outside of what is signed, so there must be one way only to write them.
        spelt = (public_key_text(own), key_id(own), base64.b64encode(value).decode())
        if spelt != (self.signature.public_key, self.signature.key_id, self.signature.value):
            return "invalid"
        known = parse_public_key(public) if isinstance(public, str | bytes) else public
        return "valid" if known is None or known == own else "other key"

    def _signed_bytes(self) -> bytes:
        return canonical_json({name: value for name, value in self.to_dict().items() if name != "signature"})


def make_certificate(
    *,
    old: Weights,
    new: Weights,
    method: str,
    settings: Mapping[str, Any],
    hashes: Sequence[str],
    read_as: Mapping[str, Any] | None,
    target: Mapping[str, str] | None,
    numbers: Mapping[str, Any],
    unlearning_seconds: float,
    total_seconds: float,
    stopped: str,
    chain: Mapping[str, Any],
    mask_kept: bool,
    job: Mapping[str, Any] | None = None,
    profile: str = "quick",
    references: ReferenceTable | None = None,
    time: str | None = None,
) -> Certificate:
    """Build the certificate of a run.

    Parameters
    ----------
    old, new : Weights
        Described by ``Weights.of(path, format)``.
    method, settings : str, mapping
        The method and its settings, of which the hash is kept.
    hashes : sequence of str
        The keyed hashes of the forgotten records, from `record_hashes`.
    read_as : mapping or None
        How the file of the records was read ("label", "id", "size"); None if they did not come from a file.
    target : mapping or None
        ``Claim.to_dict()`` of the target.
    numbers : mapping
        What the audit of kind `profile` found; ready for JSON.
    unlearning_seconds, total_seconds, stopped : float, float, str
        How long it took, and why it ended.
    chain : mapping
        ``Chain.to_dict()``.
    mask_kept : bool
        Whether the mask was written to a file.
    job : mapping, optional
        The settings of the whole job, of which the hash is kept.
    references : ReferenceTable, optional
        The table of references that the run read.
    time : str, optional
        UTC in ISO 8601; now by default.
    """
    content = {
        "kind": KIND,
        "schema": SCHEMA,
        "time": time or datetime.now(UTC).isoformat(timespec="seconds"),
        "version": version_of("forsaken"),
        "weights": {"old": old.model_dump(), "new": new.model_dump()},
        "settings": {"sha256": settings_hash(settings), "job_sha256": None if job is None else settings_hash(job)},
        "records": {"count": len(hashes), "hmac_sha256": list(hashes), "read_as": _plain(read_as)},
        "method": method,
        "target": _plain(target),
        "audit": {"profile": profile, "numbers": dict(numbers)},
        "seconds": {"unlearning": unlearning_seconds, "total": total_seconds},
        "stopped": stopped,
        "chain": {name: chain[name] for name in ("links", "drift", "accuracy_loss")},
        "mask": {"kept": mask_kept},
        "signature": None,
    }
    if references is not None:
        content["references"] = references.model_dump()
    return Certificate.from_dict(content, "the new certificate")


def _plain(table: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if table is None else dict(table)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        # Readers differ on which of the two counts, so a signature would cover one meaning and people see another.
        raise ValueError("a key stands there twice")
    return content


def _problems(error: ValidationError) -> str:
    words = {"missing": "is missing", "extra_forbidden": "is not known"}
    found = []
    for problem in error.errors(include_url=False, include_input=False):
        where = ".".join(str(step) for step in problem["loc"])[:80]
        own = problem.get("ctx", {}).get("error") if problem["type"] == "value_error" else None
        found.append(f"{where} {words.get(problem['type'], f'does not agree ({own})' if own else 'has a wrong value')}")
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    return ", ".join(found[:3]) + more
