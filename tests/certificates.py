"""Certificates made up for the tests, honest ones and those that an attacker would write."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from forsaken.jobs.certificate import BothWeights, Certificate, ReadAs, Weights, extend, make_certificate
from forsaken.result import (
    BeforeAfter,
    ChainRequest,
    Counts,
    OracleQuality,
    Result,
    SampleTable,
    Separation,
    TargetClaim,
    Verdict,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
TIME = "2025-06-01T12:00:00+00:00"
RESULT: dict[str, Any] = {
    "fr": 1.0,
    "cfr": None,
    "accuracy_before": 0.9,
    "accuracy_after": 0.88,
    "forget_confidence": {"before": 0.99, "after": 0.4, "retrained": None},
    "separation": {
        "against": "test", "n": 20, "before": 0.9, "after": 0.5, "spread": {"before": 0.1, "after": 0.2},
        "spread_of_others": 0.2,
    },
    "retrain": None,
    "oracle": {"balanced_accuracy": 0.7},
    "counts": {
        "forget": 2, "memorised_before": 2, "reference": 5, "retain": 6, "train": None, "test": 20, "kept_judged": 0,
        "kept_members_before": None,
    },
    "settings": {"name": "forsaken", "iterations": 60, "penalty": 0.5},
    "job": {"method": {"name": "forsaken"}},
    "target": {"target": "class-mean", "shown": "Something.", "not_shown": "Something else."},
    "seconds": 1.5,
    "stopped": "converged",
    "verdict": {"word": "forgotten", "line": "As a retrained model would be.", "yardstick": "a retrained model"},
}  # fmt: skip


def digest(content: str | bytes) -> str:
    """The SHA-256 of a text or of bytes, in hexadecimal digits."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def request(number: int = 1, **changes: Any) -> ChainRequest:
    """A request of a chain."""
    facts = {"time": TIME, "forgotten": 2, "drift": 0.02, "accuracy_before": 0.9, "accuracy_after": 0.88}
    return ChainRequest(**{"number": number, "certificate": None, **facts, **changes})


def weights(content: str | bytes) -> Weights:
    """The description of a file of weights with this content."""
    return Weights(sha256=digest(content), format="safetensors", name="model.safetensors")


def make(
    previous: Certificate | None = None,
    *,
    old: str | bytes = "old",
    new: str | bytes = "new",
    hashes: list[str] | None = None,
    result: dict[str, Any] | None = None,
    **changes: Any,
) -> Certificate:
    """The certificate of a run from the weights `old` to the weights `new`, unsigned."""
    given: dict[str, Any] = {
        "chain": extend(previous, request()),
        "read_as": ReadAs(label="label", id=None, size=(32, 32)),
        "total_seconds": 3.0,
        "mask_kept": False,
    }
    both = BothWeights(old=weights(old), new=weights(new))
    known = hashes or [digest("a"), digest("b")]
    return make_certificate(_typed(RESULT | (result or {})), both, known, **(given | changes))


def _typed(content: dict[str, Any]) -> Result:
    """The part of a result that a certificate is made of."""
    parts = {"counts": Counts, "forget_confidence": BeforeAfter, "oracle": OracleQuality, "separation": Separation}
    parts |= {"verdict": Verdict}
    typed = {name: kind.model_validate(content[name]) for name, kind in {**parts, "target": TargetClaim}.items()}
    return Result.model_construct(**content | typed | {"samples": SampleTable.model_construct(score="oracle")})


def statement(certificate: Certificate) -> dict[str, Any]:
    """What a certificate states, as its payload holds it."""
    return dict(json.loads(certificate.payload))


def envelope(content: Any, like: Certificate) -> bytes:
    """A file with the signature of the certificate `like` around another statement, or other bytes of a payload."""
    outer = json.loads(like.to_bytes())
    plain = content if isinstance(content, bytes) else canonical(content)
    return laid_out(outer | {"payload": base64.b64encode(plain).decode()})


def canonical(content: Any) -> bytes:
    """The canonical JSON of plain values."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def laid_out(outer: Any) -> bytes:
    """An envelope as certificate.json holds it."""
    return json.dumps(outer, indent=1).encode() + b"\n"


def changed(content: Any, trail: tuple[Any, ...], value: Any) -> Any:
    """A copy of plain values with another value at the end of `trail`."""
    whole = copy.deepcopy(content)
    place = whole
    for step in trail[:-1]:
        place = place[step]
    place[trail[-1]] = value
    return whole
