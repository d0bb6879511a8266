"""The certificate of an unlearning run: what was done to which weights, for which records, with what outcome."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidationError,
    model_serializer,
    model_validator,
)

from forsaken._files import write_atomically
from forsaken._keys import key_id, parse_public_key, public_key_text
from forsaken.errors import DataError, DataNotFoundError, OutputError, SettingsError

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


Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Time = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(\+00:00|Z)$")]
Words = Annotated[str, StringConstraints(min_length=1)]
Amount = Annotated[float, Field(ge=0)]
Whole = Annotated[int, Field(ge=0)]


class Statement(BaseModel):
    """A part of a certificate: its types are exact, and it has no other fields."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class LaterStatement(Statement):
    """A part with fields that older versions do not have: these are left out where they say nothing.

    So an older certificate stays the same to the last bit, and so do its hash and its signature. There is one way only
    to say nothing: a null in such a place is refused.
    """

    later: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        if any(name in self.model_fields_set and getattr(self, name) is None for name in self.later):
            raise ValueError("a part that says nothing must be left out")
        return self

    @model_serializer(mode="wrap")
    def _without_gaps(self, plainly: SerializerFunctionWrapHandler) -> dict[str, Any]:
        content: dict[str, Any] = plainly(self)
        return {name: value for name, value in content.items() if name not in self.later or value is not None}


class Weights(Statement):
    """A file or folder of weights: its SHA-256, format and name without a path."""

    sha256: Digest
    format: Words
    name: Words

    @classmethod
    def of(cls, path: Path, kind: str) -> Weights:
        """Describe the weights at `path`, whose format is called `kind`."""
        name = path.name if path.name not in ("", "..") else path.resolve().name
        spelt = name.encode("utf-8", "replace").decode()  # a file system may allow names that are no text
        return cls(sha256=file_hash(path), format=kind, name=spelt or "/")


class BothWeights(Statement):
    """The weights before and after."""

    old: Weights
    new: Weights


class Settings(Statement):
    """Hashes of the method's settings and, where there was one, of the whole job."""

    sha256: Digest
    job_sha256: Digest | None


class ReadAs(LaterStatement):
    """How the file of the records was read: the columns of labels and ids, and the size of pictures.

    `group` is the column that said whose each row is, where the run had one.
    """

    later: ClassVar[tuple[str, ...]] = ("group",)

    label: Words
    id: Words | None
    size: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] | None
    group: Words | None = None


class Forgotten(Statement):
    """The forgotten records as keyed hashes; `read_as` is None where they did not come from a file."""

    count: Annotated[int, Field(ge=1)]
    hmac_sha256: tuple[Digest, ...]
    read_as: ReadAs | None

    @model_validator(mode="after")
    def _counted(self) -> Self:
        if self.count != len(self.hmac_sha256):
            raise ValueError(f"{self.count} records but {len(self.hmac_sha256)} hashes")
        return self


class Target(Statement):
    """What the target of the method shows when the numbers are good, and what it does not show."""

    target: Words
    shown: str
    not_shown: str


class Audit(Statement):
    """How well it went, and how thoroughly that was looked into."""

    profile: Words
    numbers: dict[str, JsonValue]


class Seconds(Statement):
    """How long it took."""

    unlearning: Amount
    total: Amount


class Link(Statement):
    """One request of a chain of requests; `certificate` is the SHA-256 of its certificate, None for the last."""

    number: Annotated[int, Field(ge=1)]
    time: Time
    forgotten: Annotated[int, Field(ge=1)]
    drift: Amount
    accuracy_before: float | None
    accuracy_after: float | None
    certificate: Digest | None


def lost(links: tuple[Link, ...]) -> float | None:
    """Return the sum of the accuracy that each request lost; None where one is unknown."""
    losses = [
        link.accuracy_before - link.accuracy_after
        for link in links
        if link.accuracy_before is not None and link.accuracy_after is not None
    ]
    return math.fsum(losses) if len(losses) == len(links) else None


class History(Statement):
    """Every request so far, with the sum of the drifts and the loss of accuracy over all of them."""

    links: Annotated[tuple[Link, ...], Field(min_length=1)]
    drift: Amount
    accuracy_loss: float | None

    @model_validator(mode="after")
    def _joined(self) -> Self:
        if [link.number for link in self.links] != list(range(1, len(self.links) + 1)):
            raise ValueError("the numbers of the links do not count from 1")
        if [link.certificate is None for link in self.links] != [False] * (len(self.links) - 1) + [True]:
            raise ValueError("every link but the last must name its certificate")
        if not math.isclose(self.drift, math.fsum(link.drift for link in self.links), rel_tol=1e-9, abs_tol=1e-12):
            raise ValueError("the drift is not the sum of the links' drifts")
        loss = lost(self.links)
        known = loss is not None and self.accuracy_loss is not None
        if (loss is None) != (self.accuracy_loss is None) or (known and abs(loss - self.accuracy_loss) > 1e-9):  # type: ignore[operator]
            raise ValueError("the loss of accuracy is not the sum of the links' losses")
        return self


class MaskFate(Statement):
    """Whether the mask, which can restore the memory, was kept."""

    kept: bool


class ReferenceTable(LaterStatement):
    """The table of references that the run read: its SHA-256, and how it came about.

    `forgotten` rows had been taken out of it before this run; `models_owe` is how many forgotten records the models
    kept in it still remember after this run. `views` is how many augmented copies of each row its models were asked
    about too, and `view` what made them, where there were some.
    """

    later: ClassVar[tuple[str, ...]] = ("views", "view")

    sha256: Digest
    rows: Whole
    folds: Whole
    by: Literal["row", "group", "claim"]
    steps: Whole | None
    claimed: Whole
    forgotten: Whole
    models_kept: Whole
    models_owe: Whole
    views: Annotated[int, Field(ge=1)] | None = None
    view: Words | None = None


class Signature(Statement):
    """An Ed25519 signature of everything else, with the public key that fits it."""

    algorithm: Literal["Ed25519"]
    public_key: Words
    key_id: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
    value: Words


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


_NEARLY = 0.8  # of a bound: time to plan for retraining


@dataclass(frozen=True, slots=True)
class Chain:
    """Every request so far, and the bounds past which retraining is advised.

    >>> accuracy = {"accuracy_before": 0.9, "accuracy_after": 0.88}
    >>> first = Link(number=1, time="2025-01-01T00:00:00+00:00", forgotten=40, drift=0.02, certificate=None, **accuracy)
    >>> Chain((first,), max_drift=0.01).advice
    ('The cumulative drift is 0.02, above the bound of 0.01: retrain the model without the forgotten records.',)
    """

    links: tuple[Link, ...]
    max_drift: float | None = None
    max_accuracy_loss: float | None = None

    @property
    def drift(self) -> float:
        """Sum of the links' drifts, each relative to the weights that its request started from.

        By the triangle inequality the distance from the first weights, relative to them, is at most the product of
        all (1 + drift) minus 1, which for small drifts is hardly more than this sum (0.105 for a sum of 0.1).
        """
        return math.fsum(link.drift for link in self.links)

    @property
    def accuracy_loss(self) -> float | None:
        """Sum of what each request lost on its own test set; None where one is unknown."""
        return lost(self.links)

    @property
    def advice(self) -> tuple[str, ...]:
        """Sentences that advise retraining where a bound is passed, or planning for it where it is near."""
        return (
            *_advice("drift", self.drift, self.max_drift),
            *_advice("loss of accuracy", self.accuracy_loss, self.max_accuracy_loss),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the chain as a result file holds it."""
        return {
            "links": [link.model_dump(mode="json") for link in self.links],
            "drift": self.drift,
            "accuracy_loss": self.accuracy_loss,
            "max_drift": self.max_drift,
            "max_accuracy_loss": self.max_accuracy_loss,
            "advice": list(self.advice),
        }


def extend(
    previous: Certificate | None,
    link: Link,
    *,
    max_drift: float | None = None,
    max_accuracy_loss: float | None = None,
) -> Chain:
    """Return the chain of `previous` with one more link; its number follows from the place, whatever `link` says."""
    links: tuple[Link, ...] = ()
    if previous is not None:
        *before, last = previous.chain.links
        links = (*before, last.model_copy(update={"certificate": previous.sha256}))
    own = link.model_copy(update={"number": len(links) + 1, "certificate": None})
    return Chain((*links, own), max_drift, max_accuracy_loss)


def find_previous(weights: Path, named: Path | None = None) -> Certificate | None:
    """Return the certificate of the request that made these weights, if there was one.

    Parameters
    ----------
    weights : Path
        The weights that are about to forget.
    named : Path, optional
        The certificate, if the user names it: then it must fit. Without it, one that lies beside the weights is taken
        if it fits, and passed over if it speaks of other weights.
    """
    if named is not None:
        certificate = _unchanged(named)
        found, stated = file_hash(weights), certificate.weights
        if found != stated.new.sha256:
            early = " (they are the weights before that request)" if found == stated.old.sha256 else ""
            raise SettingsError(
                f"the certificate {named} speaks of weights with the SHA-256 {stated.new.sha256}, but {weights} has "
                f"{found}{early}; name the certificate that was made with these weights, or leave it out"
            )
        return certificate
    for path in _beside(weights):
        certificate = _unchanged(path)
        if certificate.weights.new.sha256 == file_hash(weights):
            return certificate
    return None


def _beside(weights: Path) -> Iterator[Path]:
    for folder in dict.fromkeys((weights.absolute().parent, weights.resolve().parent)):
        path = folder / FILE
        try:
            ours = path.is_file() and KIND.encode() in path.read_bytes()
        except OSError as error:
            raise OutputError(f"{path} cannot be read ({error.strerror}); is it the certificate before?") from error
        if ours:  # other software has certificates too
            yield path


def _unchanged(path: Path) -> Certificate:
    certificate = Certificate.read(path)
    if certificate.check_signature() == "invalid":
        raise OutputError(
            f"the certificate {path} was changed after it was signed; get it again from whoever issued it"
        )
    return certificate


def _advice(what: str, value: float | None, bound: float | None) -> tuple[str, ...]:
    if value is None or bound is None or value <= _NEARLY * bound:
        return ()
    if value > bound:
        more = "retrain the model without the forgotten records"
        return (f"The cumulative {what} is {value:.4g}, above the bound of {bound:.4g}: {more}.",)
    more = "plan to retrain the model without the forgotten records"
    return (f"The cumulative {what} is {value:.4g}, {value / bound:.0%} of the bound of {bound:.4g}: {more}.",)
