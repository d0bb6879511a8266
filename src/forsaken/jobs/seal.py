"""The seal of what an audit writes after the certificate: the audits, and what it keeps of the models that it trained.

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
from forsaken.jobs.certificate import Certificate, canonical_json, file_hash

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


def there(certificate: Certificate, folder: Path) -> list[str]:
    """Return the names of the files that a certificate states besides the weights and that lie in `folder`."""
    # A name is whatever somebody wrote there; one with a path in it would lead elsewhere.
    return [name for name in certificate.files if name == Path(name).name and (folder / name).is_file()]


def changed_files(certificate: Certificate, folder: Path) -> list[str]:
    """Return which of the files that a certificate states are in `folder` and are not what it says they were."""
    return [name for name in there(certificate, folder) if file_hash(folder / name) != certificate.files[name]]
