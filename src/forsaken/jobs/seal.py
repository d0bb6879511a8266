"""The seal of what an audit writes after the certificate: audit.json, and what it keeps of the models that it trained.

A certificate states the SHA-256 of the results that were there when it was written. An audit comes later, so its files
carry a MAC (HMAC-SHA256) instead, under a key that is derived from the record key and from the certificate. It shows
what somebody changed or put there who can write to the folder and does not have the record key; it shows nothing to
somebody who has neither key nor trust in its holder.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from forsaken.auditing.result import Audit
from forsaken.jobs.certificate import Certificate, canonical_json

_PURPOSE = b"forsaken audit"


def seal_key(record_key: bytes, certificate: Certificate) -> bytes:
    """Return the key of the seals of a run's audits. The record key cannot be found from it."""
    return hmac.digest(record_key, _PURPOSE + bytes.fromhex(certificate.sha256), "sha256")


def sealed(audit: Audit, key: bytes) -> Audit:
    """Return an audit with its seal."""
    return audit.model_copy(update={"mac": _mac(audit, key)})


def is_sealed(audit: Audit, key: bytes) -> bool:
    """Return whether an audit is as it was when it was sealed with this key."""
    return audit.mac is not None and hmac.compare_digest(audit.mac, _mac(audit, key))


def _mac(audit: Audit, key: bytes) -> str:
    content = canonical_json({**audit.to_dict(), "mac": None})
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def changed_files(certificate: Certificate, folder: Path) -> list[str]:
    """Return which of the results that a certificate names are in `folder` and are not what it says they were."""
    there = {name: folder / name for name in certificate.files if (folder / name).is_file()}
    return [
        name for name, path in there.items() if hashlib.sha256(path.read_bytes()).hexdigest() != certificate.files[name]
    ]
