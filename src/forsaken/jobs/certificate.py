"""The certificate of an unlearning run: what was done to which weights, for which records, with what outcome.

certificate.json is an envelope of a known form. The envelope is DSSE (Dead Simple Signing Envelope, v1), the payload an
in-toto Statement v1: its subject is the file of new weights, its predicate the facts of the run, the fields of
`Certificate`. Both forms are small enough to be written here, see docs/decisions/0018-certificates-in-a-known-form.md.

There is one way only to write a certificate, and a file that is written in any other way is refused: one spelling of
base64, canonical JSON in the payload, no further keys. So no two readers of a file can see two different things, any
changed byte shows, and the SHA-256 of a certificate is what ``sha256sum certificate.json`` prints.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from pydantic import Field, StringConstraints, ValidationError, model_validator

from forsaken._files import write_atomically
from forsaken._keys import key_id
from forsaken.errors import CertificateError, DataError, DataNotFoundError, OutputError, SettingsError
from forsaken.result import (
    Amount,
    AtLeastOne,
    BeforeAfter,
    ChainRequest,
    ChainSummary,
    Count,
    Counts,
    Digest,
    KeyId,
    OracleQuality,
    Part,
    Rate,
    RequestFacts,
    Result,
    Retrained,
    Separation,
    Share,
    TargetClaim,
    Time,
    problems_of,
)
from forsaken.result import (
    Verdict as StatedVerdict,
)

FILE = "certificate.json"
PAYLOAD: Literal["application/vnd.in-toto+json"] = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://forsaken.example/certificate/v1"
_EARLIER = b'"forsaken.certificate"'  # the kind that the certificates of earlier versions state
_MAX_BYTES = 2**28  # a million records take a third of it
_NEARLY = 0.8  # of a bound: time to plan for retraining
_AGAIN = "get the file again from whoever issued it"

Verdict = Literal["valid", "invalid", "unsigned", "not checked", "other key"]

Words = Annotated[str, StringConstraints(min_length=1)]


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
            f"the settings hold a value that JSON cannot carry ({type(error).__name__})",
            expected="finite numbers, texts, lists and tables",
            remedy="convert it",
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
    except FileNotFoundError as error:
        raise DataNotFoundError(f"no file or folder {place}; check the path") from error
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{place} cannot be read ({_reason(error)}); check the path and its permissions") from error
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
        raise DataError(f"{path} is no plain file; give or put one in its place")  # reading a pipe would never end
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


class Weights(Part):
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


class BothWeights(Part):
    """The weights before and after."""

    old: Weights
    new: Weights


class SettingsHashes(Part):
    """Hashes of the method's settings and, where there was one, of the whole job."""

    sha256: Digest
    job_sha256: Digest | None


class ReadAs(Part):
    """How the file of the records was read: the columns of labels and ids, and the size of pictures.

    `group` is the column that said whose each row is, where the run had one; `features` are the columns of numbers that
    a record is made of, in their order, where it is made of columns.
    """

    label: Words
    id: Words | None
    size: tuple[AtLeastOne, AtLeastOne] | None
    group: Words | None = None
    features: tuple[str, ...] | None = None


class Forgotten(Part):
    """The forgotten records as keyed hashes; `read_as` is None where they did not come from a file."""

    hmac_sha256: Annotated[tuple[Digest, ...], Field(min_length=1)]
    read_as: ReadAs | None

    @property
    def count(self) -> int:
        """How many records were forgotten."""
        return len(self.hmac_sha256)


class Measured(Part):
    """What was measured on the model after forgetting, and on the one before: the numbers of result.json.

    `by` says whether an oracle judged who is remembered, or the largest posterior alone. What was not measured is None.
    """

    by: Literal["oracle", "confidence"]
    fr: Rate | None
    cfr: Rate | None
    accuracy_before: Share | None
    accuracy_after: Share | None
    forget_confidence: BeforeAfter | None
    separation: Separation | None
    retrain: Retrained | None
    oracle: OracleQuality | None
    counts: Counts


class Duration(Part):
    """How many seconds it took."""

    unlearning: Amount
    total: Amount


class MaskFate(Part):
    """Whether the mask, which can restore the memory, was kept."""

    kept: bool


class ReferenceWorth(Part):
    """How well an attack on single samples would tell the references from retrained models: an estimate.

    `auc` with its interval from `low` to `high` follows from what models said about `samples` that none of them learnt:
    `sigma` is the standard deviation between trainings that differ by their seeds (the target and `pairs` others),
    `data` what the rows that a fold's model lacks add to it, and `shift` how far models of all rows are from the folds'
    models beyond chance.
    """

    auc: Share
    low: Share
    high: Share
    sigma: Amount
    data: Amount
    group: Amount = 0.0
    shift: Amount
    folds: Count
    samples: Count
    pairs: Count


class ReferenceTable(Part):
    """The table of references that the run read: its SHA-256, and how it came about.

    `forgotten` rows had been taken out of it before this run; `models_owe` is how many forgotten records the models
    kept in it still remember after this run. `views` is how many augmented copies of each row its models were asked
    about too, and `view` what made them, where there were some. `worth` is how well an attack would tell the references
    from retrained models, where it was estimated. `worth_now` is that for the next request, after all that was
    forgotten, and `refit_due` says whether a new table would be clearly better.
    """

    sha256: Digest
    rows: Count
    folds: Count
    by: Literal["row", "group", "claim"]
    steps: Count | None
    claimed: Count
    forgotten: Count
    models_kept: Count
    models_owe: Count
    views: AtLeastOne | None = None
    view: Words | None = None
    worth: ReferenceWorth | None = None
    worth_now: Share | None = None
    refit_due: bool | None = None


class Chain(Part):
    """Every request so far on the same model; for a run also the bounds past which retraining is advised.

    >>> known = {"accuracy_before": 0.9, "accuracy_after": 0.88, "time": "2025-01-01T00:00:00Z"}
    >>> first = ChainRequest(number=1, forgotten=40, drift=0.02, certificate=None, **known)
    >>> Chain(links=(first,), max_drift=0.01).advice
    ('The cumulative drift is 0.02, above the bound of 0.01: retrain the model without the forgotten records.',)
    """

    links: Annotated[tuple[ChainRequest, ...], Field(min_length=1, max_length=100_000)]
    max_drift: float | None = Field(default=None, exclude=True)
    max_accuracy_loss: float | None = Field(default=None, exclude=True)

    @model_validator(mode="after")
    def _joined(self) -> Self:
        if [link.number for link in self.links] != list(range(1, len(self.links) + 1)):
            raise ValueError("the numbers of the links do not count from 1")
        if [link.certificate is None for link in self.links] != [False] * (len(self.links) - 1) + [True]:
            raise ValueError("every link but the last must name its certificate")
        return self

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
        pairs = [(link.accuracy_before, link.accuracy_after) for link in self.links]
        known = [(before - after) for before, after in pairs if before is not None and after is not None]
        return math.fsum(known) if len(known) == len(pairs) else None

    @property
    def advice(self) -> tuple[str, ...]:
        """Sentences that advise retraining where a bound is passed, or planning for it where it is near."""
        return (
            *_advice("drift", self.drift, self.max_drift),
            *_advice("loss of accuracy", self.accuracy_loss, self.max_accuracy_loss),
        )

    def summary(self) -> ChainSummary:
        """Return the chain as a result holds it: with its sums, bounds and advice."""
        return ChainSummary(
            links=list(self.links),
            drift=self.drift,
            accuracy_loss=self.accuracy_loss,
            max_drift=self.max_drift,
            max_accuracy_loss=self.max_accuracy_loss,
            advice=list(self.advice),
        )


def _advice(what: str, value: float | None, bound: float | None) -> tuple[str, ...]:
    if value is None or bound is None or value <= _NEARLY * bound:
        return ()
    if value > bound:
        more = "retrain the model without the forgotten records"
        return (f"The cumulative {what} is {value:.4g}, above the bound of {bound:.4g}: {more}.",)
    more = "plan to retrain the model without the forgotten records"
    return (f"The cumulative {what} is {value:.4g}, {value / bound:.0%} of the bound of {bound:.4g}: {more}.",)


class Signature(Part):
    """An Ed25519 signature (base64), and a hint at the key that made it: `forsaken._keys.key_id`."""

    keyid: KeyId
    sig: Words


class Envelope(Part):
    """A DSSE envelope. DSSE allows for more signatures; a certificate has one signer, or none."""

    payload: str
    payloadType: Literal["application/vnd.in-toto+json"]  # noqa: N815 (the name in the file)
    signatures: tuple[()] | tuple[Signature]

    def to_bytes(self) -> bytes:
        """Return the file."""
        return json.dumps(self.model_dump(mode="json"), indent=1).encode() + b"\n"


class Certificate(Part):
    """What a run did, in a form that can be hashed, signed and checked by others. It holds no record and no path.

    `files` has the SHA-256 of what the run wrote beside the new weights, by name; keys and the mask are left out.
    `stays` says what saw the records and is as it was: vocabularies, fitted steps, running statistics.
    """

    time: Time
    version: Words
    weights: BothWeights
    settings: SettingsHashes
    records: Forgotten
    method: Words
    target: TargetClaim | None
    measured: Measured
    seconds: Duration
    stopped: Words
    chain: Chain
    mask: MaskFate
    references: ReferenceTable | None = None
    verdict: StatedVerdict | None = None
    not_measured: tuple[Words, ...] = ()
    request: RequestFacts | None = None
    files: dict[Words, Digest] = Field(default={})
    stays: tuple[Words, ...] = ()
    signature: Signature | None = Field(default=None, exclude=True)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Certificate:
        """Read a certificate file that anybody may have written; whatever is wrong with it is an `OutputError`.

        A file that was read and is no certificate as Forsaken writes it is a `CertificateError`.
        """
        where = f"the certificate {path}"
        try:
            if Path(path).exists() and not Path(path).is_file():
                raise OutputError(f"{where} cannot be read (no plain file); check the path")
            with Path(path).open("rb") as file:
                raw = file.read(_MAX_BYTES + 1)
        except FileNotFoundError as error:
            raise OutputError(f"no certificate {path}; check the path") from error
        except (OSError, ValueError) as error:
            if isinstance(error, OutputError):
                raise
            raise OutputError(f"{where} cannot be read ({_reason(error)}); check the path") from error
        if len(raw) > _MAX_BYTES:
            raise OutputError(f"{path} has more than {_MAX_BYTES:,} bytes, too many for a certificate; check the path")
        try:
            envelope = Envelope.model_validate_json(raw)
            found = _Statement.model_validate_json(base64.b64decode(envelope.payload)).predicate
            found = found.model_copy(update={"signature": next(iter(envelope.signatures), None)})
            if found.to_bytes() == raw:
                return found
            problem = "it is not written as Forsaken writes what it states"
        except ValidationError as error:
            problem = problems_of(error)
        except (ValueError, RecursionError):  # what is no base64, or no JSON
            problem = "its payload cannot be read"
        if _EARLIER in raw:
            raise OutputError(
                f"{where} was written by an earlier version of Forsaken, in a form of its own that this version does "
                "not read; check it with the version that wrote it, or move it away: the next request then begins a "
                "new chain"
            )
        raise CertificateError(f"{where} is damaged, or none of Forsaken's: {problem}; {_AGAIN}")

    @property
    def payload(self) -> bytes:
        """The bytes that are signed: an in-toto statement about the new weights, in canonical JSON."""
        new = self.weights.new
        statement = {
            "_type": STATEMENT,
            "subject": [{"name": new.name, "digest": {"sha256": new.sha256}}],
            "predicateType": PREDICATE,
            "predicate": self.model_dump(mode="json", exclude_unset=True),
        }
        return canonical_json(statement)

    def to_bytes(self) -> bytes:
        """Return the file: the envelope of the payload, with the signature where there is one."""
        signatures = () if self.signature is None else (self.signature,)
        text = base64.b64encode(self.payload).decode()
        return Envelope(payload=text, payloadType=PAYLOAD, signatures=signatures).to_bytes()

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the certificate."""
        return write_atomically(path, self.to_bytes())

    @property
    def sha256(self) -> str:
        """The SHA-256 (hex) of the file, signature included."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def sign(self, key: Ed25519PrivateKey) -> Certificate:
        """Return the certificate with the signature of `key`."""
        sig = base64.b64encode(key.sign(pae(PAYLOAD, self.payload))).decode()
        return self.model_copy(update={"signature": Signature(keyid=key_id(key.public_key()), sig=sig)})

    def check_signature(self, public: Ed25519PublicKey | None = None) -> Verdict:
        """Return whether the holder of the key `public` signed this certificate as it is.

        Without `public` there is nothing to check a signature against: who signed must be known from elsewhere.
        """
        if self.signature is None:
            return "unsigned"
        if public is None:
            return "not checked"
        if self.signature.keyid != key_id(public):
            return "other key"
        try:
            sig = base64.b64decode(self.signature.sig, validate=True)
            public.verify(sig, pae(PAYLOAD, self.payload))
        except (InvalidSignature, ValueError):
            return "invalid"
        # The signature itself is not signed, so there must be one way only to write it.
        return "valid" if base64.b64encode(sig).decode() == self.signature.sig else "invalid"

    def signer(self, keys: Iterable[Ed25519PublicKey]) -> str | None:
        """Return the id of the one of these keys that signed this certificate as it is; None if none did."""
        return next((key_id(key) for key in keys if self.check_signature(key) == "valid"), None)


class _Statement(Part):
    """The parts of an in-toto statement that are read; the rest is compared with what would be written."""

    predicateType: Literal["https://forsaken.example/certificate/v1"]  # noqa: N815 (the name in the file)
    predicate: Certificate


def pae(kind: str, body: bytes) -> bytes:
    """Return the bytes that a DSSE signature is over (pre-authentication encoding), from the payload's type and bytes.

    >>> pae("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    name = kind.encode()
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(body), body)


def make_certificate(
    result: Result,
    weights: BothWeights,
    hashes: Sequence[str],
    chain: Chain,
    *,
    read_as: ReadAs | None,
    total_seconds: float,
    mask_kept: bool,
    references: ReferenceTable | None = None,
    files: Mapping[str, str] | None = None,
) -> Certificate:
    """Build the certificate of a run, unsigned.

    Parameters
    ----------
    result : Result
        Its numbers are kept as they are (`forsaken.jobs.disclosure` says which there may be). Of the settings of the
        method and of the job only hashes are kept.
    weights : BothWeights
        Each described by ``Weights.of(path, format)``.
    hashes : sequence of str
        The keyed hashes of the forgotten records, from `record_hashes`.
    chain : Chain
        From `extend`; its last request is this one.
    read_as : ReadAs or None
        How the file of the records was read; None if they did not come from a file.
    total_seconds : float
        How long the whole run took.
    mask_kept : bool
        Whether the mask was written to a file.
    references : ReferenceTable, optional
        The table of references that the run read.
    files : mapping of str to str, optional
        The SHA-256 by name of what the run wrote beside the new weights.
    """
    return Certificate(
        time=chain.links[-1].time,
        version=version_of("forsaken"),
        weights=weights,
        settings=SettingsHashes(
            sha256=settings_hash(result.settings),
            job_sha256=None if result.job is None else settings_hash(result.job),
        ),
        records=Forgotten(hmac_sha256=tuple(hashes), read_as=read_as),
        method=result.settings["name"],
        # Where nothing was memorised, the method and its target had nothing to do with the outcome.
        target=None if result.stopped == "not-memorised" else result.target,
        measured=Measured(
            by="confidence" if result.counts.memorised_before is None else "oracle",
            **{name: getattr(result, name) for name in Measured.model_fields if name != "by"},
        ),
        seconds=Duration(unlearning=result.seconds, total=total_seconds),
        stopped=result.stopped,
        chain=Chain(links=chain.links),
        mask=MaskFate(kept=mask_kept),
        references=references,
        # Of the numbers behind it the line has those that may be told; a mean over few records would tell about them.
        verdict=StatedVerdict(word=result.verdict.word, line=result.verdict.line, yardstick=result.verdict.yardstick),
        not_measured=tuple(_not_measured(result)),
        request=result.request,
        files=dict(files or {}),
        stays=tuple(result.stays),
    )


def _not_measured(result: Result) -> Iterator[str]:
    """Yield what the run did not measure, in words."""
    if result.verdict.yardstick is None:
        yield "how a model that never saw the records answers them (no retrained model, no table of references)"
    if result.counts.memorised_before is None:
        yield "the forgetting rate (no oracle)"
    if result.accuracy_after is None:
        yield "the accuracy (no test samples)"
    if result.cfr is None:
        yield "what else was forgotten"
    yield "whether attacks can tell the records (forsaken audit measures that)"


def extend(
    previous: Certificate | None,
    link: ChainRequest,
    *,
    signer: str | None = None,
    max_drift: float | None = None,
    max_accuracy_loss: float | None = None,
) -> Chain:
    """Return the chain of `previous` with one more link; its number follows from the place, whatever `link` says.

    `signer` is the id of the key that is known to have signed `previous`. Where none is, nothing is known either about
    who signed the certificates before it: `previous` may say what it likes.
    """
    links: tuple[ChainRequest, ...] = ()
    if previous is not None:
        *before, last = previous.chain.links
        if signer is None:
            before = [each.model_copy(update={"signer": None}) for each in before]
        links = (*before, last.model_copy(update={"certificate": previous.sha256, "signer": signer}))
    own = link.model_copy(update={"number": len(links) + 1, "certificate": None})
    return Chain(links=(*links, own), max_drift=max_drift, max_accuracy_loss=max_accuracy_loss)


def find_previous(
    weights: Path, named: Path | None = None, keys: Sequence[Ed25519PublicKey] = (), *, anyone: bool = False
) -> Certificate | None:
    """Return the certificate of the request that made these weights, if there was one.

    Parameters
    ----------
    weights : Path
        The weights that are about to forget.
    named : Path, optional
        The certificate, if the user names it: then it must fit. Without it, one that lies beside the weights is taken
        if it fits, and passed over if it speaks of other weights.
    keys : public keys
        One of them must have signed a certificate that fits. Without keys none is asked for: then the certificate that
        follows is not signed either.
    anyone : bool
        Take a certificate that none of the keys signed.
    """
    for path in _beside(weights) if named is None else (named,):
        certificate = Certificate.read(path)
        if any(certificate.check_signature(key) == "invalid" for key in keys):
            raise CertificateError(f"the certificate {path} was changed after it was signed; {_AGAIN}")
        found, stated = file_hash(weights), certificate.weights
        if found == stated.new.sha256:
            if keys and not anyone and certificate.signer(keys) is None:
                raise _unknown_signer(path, certificate)
            return certificate
        if named is not None:
            early = " (they are the weights before that request)" if found == stated.old.sha256 else ""
            raise SettingsError(
                f"the certificate {named} speaks of weights with the SHA-256 {stated.new.sha256}, but {weights} has "
                f"{found}{early}; name the certificate that was made with these weights, or leave it out"
            )
    return None


def _unknown_signer(path: Path, certificate: Certificate) -> CertificateError:
    """Return the error that a certificate cannot be added to a chain that is signed: anybody may have put it there."""
    whose = "is not signed" if certificate.signature is None else f"is signed by the key {certificate.signature.keyid}"
    return CertificateError(
        f"the certificate {path} of the request before {whose}",
        expected="the signature of this run's own key, since this run signs what it takes from there",
        remedy="name the public key of whoever signed it in [chain] signers, take it unchecked with signers = "
        '"anyone" (the new certificate then says so), or move it away to begin a new chain',
    )


def _beside(weights: Path) -> Iterator[Path]:
    for folder in dict.fromkeys((weights.absolute().parent, weights.resolve().parent)):
        path = folder / FILE
        try:
            content = path.read_bytes() if path.is_file() else b""
        except OSError as error:
            raise OutputError(f"{path} cannot be read ({error.strerror}); is it the certificate before?") from error
        if PAYLOAD.encode() in content or _EARLIER in content:  # other software has certificates too
            yield path
