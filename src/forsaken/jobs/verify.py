"""Checking a certificate: against the weights, the signature, records, and the certificates before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from forsaken._keys import key_id
from forsaken.auditing.result import FILES as AUDITS
from forsaken.auditing.result import Audit
from forsaken.errors import DataError, OutputError
from forsaken.jobs.certificate import FILE, Certificate, ReadAs, file_hash
from forsaken.jobs.seal import changed_files, there
from forsaken.result import NO_VERDICT, ChainRequest, Verdict
from forsaken.verdict import strictest

if TYPE_CHECKING:
    from forsaken.data.records import Records

Signer = Literal["known", "unknown", "nobody"]

_VERDICTS: dict[Signer, str] = {
    "known": "Verified: the holder of the given key signed this certificate, and no check failed.",
    "unknown": "No check failed. Who signed was not checked (--any-signer), so this does not show who wrote it.",
    "nobody": "No check failed, but the certificate is not signed: anyone could have written it.",
}
_ROWS_NAMED = 10


@dataclass(frozen=True, slots=True)
class Check:
    """One question put to a certificate: passed or not, None where it was not asked; and why, in words."""

    name: str
    passed: bool | None
    words: str


@dataclass(frozen=True, slots=True)
class Verification:
    """All checks of a certificate, and what they come to.

    Attributes
    ----------
    checks : tuple of Check
        Weights, signature, records, chain; results, where they lie beside the certificate; and references, where the
        run had a table of them.
    signer : str
        "known" if one of the keys that were given signed, "unknown" if somebody else did or no key was given, "nobody"
        if it is not signed.
    owed : int
        How many forgotten records the models kept beside the run's references still remember, by its own word.
    stated : Verdict
        What the certificate says about the forgetting itself.
    audits : dict of str to Verdict
        What audits beside the certificate, which were made after it, say, by their files.
    """

    checks: tuple[Check, ...]
    signer: Signer
    owed: int = 0
    stated: Verdict = NO_VERDICT
    audits: dict[str, Verdict] = field(default_factory=dict)

    @property
    def forgetting(self) -> Verdict:
        """The certificate's verdict, or that of an audit that failed since. Audits are not signed: none improves it."""
        failed = [verdict for verdict in self.audits.values() if verdict.word == "failed"]
        return strictest([self.stated, *failed])

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return all(check.passed is not False for check in self.checks)

    @property
    def verified(self) -> bool:
        """Whether no check failed, and the holder of a key that was given signed."""
        return self.passed and self.signer == "known"

    @property
    def verdict(self) -> str:
        """One sentence."""
        failed = [check.name for check in self.checks if check.passed is False]
        if failed:
            return f"NOT verified: {len(failed)} of {len(self.checks)} checks failed ({', '.join(failed)})."
        rest = f" But {_owed(self.owed)}." if self.owed else ""
        return f"{_VERDICTS[self.signer]}{rest}"


def verify_certificate(
    certificate: Certificate,
    weights: Path,
    *,
    keys: Sequence[Ed25519PublicKey] = (),
    records: Path | None = None,
    record_key: bytes | None = None,
    previous: Sequence[Certificate] = (),
    folder: Path | None = None,
    chain: bool = False,
) -> Verification:
    """Put every question to a certificate for which there is something to compare with.

    Parameters
    ----------
    certificate : Certificate
        What is to be checked.
    weights : Path
        The weights that are said to have forgotten.
    keys : public keys
        One of them must have signed this certificate, and one of them each of `previous`. Without keys no signature is
        checked, and nothing is verified, whatever else is found.
    records, record_key : Path and bytes, optional
        A file of records that must be among the forgotten ones, and the key of their hashes.
    previous : sequence of Certificate
        The certificates of earlier requests, in any order.
    folder : Path, optional
        Where the certificate lies: the results that lie there too are compared with it, and its audits are read.
    chain : bool
        Whether records may be among those of an earlier request, whose certificates are `previous` and those in the
        folders beside `folder`.
    """
    if chain:
        previous = [*previous, *(one for _, one in earlier(certificate, previous, folder))]
    checks = (
        check_weights(certificate, file_hash(weights)),
        check_signature(certificate, keys),
        check_records(certificate, records, record_key, previous if chain else ()),
        check_chain(certificate, previous, keys),
        *check_results(certificate, folder),
        *check_references(certificate),
    )
    signer: Signer = "nobody" if certificate.signature is None else "known" if certificate.signer(keys) else "unknown"
    owed = 0 if certificate.references is None else certificate.references.models_owe
    return Verification(checks, signer, owed, certificate.verdict or NO_VERDICT, dict(_audits(certificate, folder)))


def earlier(
    certificate: Certificate, known: Iterable[Certificate], folder: Path | None
) -> Iterator[tuple[Path, Certificate]]:
    """Yield the certificates of earlier requests, besides the `known` ones, in the folders beside `folder`.

    Each comes with the folder that it lies in.
    """
    wanted = {link.certificate for link in certificate.chain.links[:-1]} - {one.sha256 for one in known}
    for path in [] if folder is None or not wanted else sorted(folder.resolve().parent.glob(f"*/{FILE}")):
        with suppress(OutputError):  # what cannot be read is none of the chain
            one = Certificate.read(path)
            if one.sha256 in wanted:
                wanted.discard(one.sha256)
                yield path.parent, one


def _audits(certificate: Certificate, folder: Path | None) -> Iterator[tuple[str, Verdict]]:
    """Yield the verdicts of the audits of this certificate's run that lie beside it, by the names of their files."""
    for path in [] if folder is None else [folder / name for name in AUDITS.values()]:
        if path.is_file():
            audit = Audit.read(path)
            if audit.settings.get("certificate_sha256") == certificate.sha256:
                yield path.name, audit.verdict


def check_weights(certificate: Certificate, found: str) -> Check:
    """Check that weights with the SHA-256 `found` are those that the certificate calls new."""
    stated = certificate.weights
    if found == stated.new.sha256:
        same = " (they are those from before: nothing was changed)" if found == stated.old.sha256 else ""
        return Check("weights", True, f"these are the weights after forgetting{same} (SHA-256 {found})")
    if found == stated.old.sha256:
        return Check("weights", False, "these are the weights before forgetting; the new ones are others")
    return Check("weights", False, f"the SHA-256 is {found}, the certificate says {stated.new.sha256}")


def check_signature(certificate: Certificate, keys: Sequence[Ed25519PublicKey]) -> Check:
    """Check that the holder of one of these keys signed; without a key nothing can be checked."""
    if certificate.signature is None:
        return Check("signature", False if keys else None, "not signed: anyone could have written it")
    name = certificate.signature.keyid
    if not keys:
        return Check("signature", None, f"said to be signed by the key {name}; give that key with --public-key")
    if certificate.signer(keys):
        return Check("signature", True, f"signed by the key {name}, the one given, and unchanged since")
    given = [key_id(key) for key in keys]
    if name not in given:
        return Check("signature", False, f"signed by the key {name}, not by {' or '.join(given)}, the one given")
    return Check("signature", False, "it does not fit: the certificate was changed after signing, or damaged")


def check_records(
    certificate: Certificate, records: Path | None, key: bytes | None, previous: Sequence[Certificate] = ()
) -> Check:
    """Check that every record of a file is among the forgotten ones, of this request or of one of the `previous`."""
    stated = certificate.records
    if records is None or key is None:
        return Check("records", None, f"{stated.count} forgotten; give --records and --record-key to look for some")
    if stated.read_as is None:
        return Check("records", None, "the forgotten ones were not read from a file, so a file cannot be compared")
    # Imported where it is used: the other checks need neither data nor torch, and are quick without them.
    from forsaken.data.record_hashes import record_hashes  # noqa: PLC0415

    requests = {len(one.chain.links): one.records for one in (certificate, *previous)}
    known = {found: number for number, each in requests.items() for found in each.hmac_sha256}
    hashes = record_hashes(_read_as(records, stated.read_as), key)
    missing = [row for row, found in enumerate(hashes) if found not in known]
    among = f"among the {sum(each.count for each in requests.values())} forgotten"
    if len(requests) > 1:
        numbers = [known[found] for found in hashes if found in known]
        each = ", ".join(f"request {number}: {numbers.count(number)}" for number in sorted(set(numbers)))
        among += f" by {len(requests)} requests{f' ({each})' if each else ''}"
    absent = len(certificate.chain.links) - len(requests) if previous else 0
    lost = "1 certificate of the chain was" if absent == 1 else f"{absent} certificates of the chain were"
    unseen = f"; {lost} not found" if absent else ""
    if not missing:
        return Check("records", True, f"all {len(hashes)} are {among}")
    if len(missing) == len(hashes):
        doubt = "if they should be: is this the key of that run, and the file as it was?"
        return Check("records", False, f"none of the {len(hashes)} is {among}{unseen}; {doubt}")
    rows = ", ".join(str(row) for row in missing[:_ROWS_NAMED]) + (", ..." if len(missing) > _ROWS_NAMED else "")
    words = f"{len(hashes) - len(missing)} of {len(hashes)} are {among}, {len(missing)} not"
    return Check("records", False, f"{words} (rows {rows}, counted from 0){unseen}")


def _read_as(path: Path, way: ReadAs) -> Records:
    """Read a file as the forgotten records were read; people may bring records without labels or ids."""
    from forsaken.data import readers  # noqa: PLC0415 (a certificate is checked without reading data first)

    if path.suffix.lower() not in readers.TABLES or not path.is_file():
        return readers.read_records(path, size=way.size if path.is_dir() else None)
    beside = [name for name in dict.fromkeys((way.id, way.group)) if name]
    table = readers.read_table(path, [name for name in beside if name != way.label])
    label = way.label if way.label in table.column_names else readers.LABEL
    if label != way.label and label in table.column_names:
        raise DataError(f"{path} has no column {way.label!r}, the labels of the forgotten records; rename its column")
    columns = [name for name in beside if name in table.column_names]
    if way.features is not None and set(way.features) <= set(table.column_names):
        others = [name for name in table.column_names if name not in way.features]
        table = table.select([*others, *way.features])  # records of the same columns are the same in any order
    return readers.from_table(table, str(path), label=label, size=way.size, columns=columns)


def check_chain(
    certificate: Certificate, previous: Sequence[Certificate], keys: Sequence[Ed25519PublicKey] = ()
) -> Check:
    """Check that the certificates of earlier requests are those that this one names, and that their weights join up.

    Where keys are given, one of them must have signed each of the earlier certificates too.
    """
    links = certificate.chain.links
    earlier = {link.certificate: link for link in links[:-1]}
    strangers = [other.sha256 for other in previous if other.sha256 not in earlier]
    if strangers:
        words = f"{len(strangers)} of the certificates given are not named in this one (first: SHA-256 {strangers[0]})"
        return Check("chain", False, words)
    if len(links) == 1:
        return Check("chain", True, "the certificate says that this is the first request on the model")
    known = {earlier[other.sha256].number: other for other in previous}
    problem = next(_breaks({**known, len(links): certificate}, links), None)
    if problem:
        return Check("chain", False, problem)
    for number, one in sorted(known.items()) if keys else ():
        signature = check_signature(one, keys)
        if not signature.passed:
            return Check("chain", False, f"the certificate of request {number}: {signature.words}")
    absent = [str(link.number) for link in links[:-1] if link.number not in known]
    if absent:
        words = f"request {links[-1].number} of its chain; give the certificates of {', '.join(absent)} with --previous"
        unsigned = [str(link.number) for link in links[:-1] if link.signer is None]
        if unsigned:
            words += f"; it says that nobody checked who had signed those of {', '.join(unsigned)}"
        return Check("chain", None, words)
    return Check("chain", True, f"all {len(links)} requests join up, each starting from the weights of the one before")


def _breaks(known: dict[int, Certificate], links: tuple[ChainRequest, ...]) -> Iterator[str]:
    for number, one in sorted(known.items()):
        own = one.chain.links
        # Only later certificates know the hash of a request's own certificate. By which key each was checked
        # may differ: a run that took the certificate before it unchecked knows of no key.
        told = (*own[:-1], own[-1].model_copy(update={"certificate": links[number - 1].certificate}))
        if _unsigned(told) != _unsigned(links[:number]):
            yield f"the certificate of request {number} tells its chain differently"
        following = known.get(number + 1)
        if following and following.weights.old.sha256 != one.weights.new.sha256:
            yield f"request {number + 1} did not start from the weights that request {number} ended with"


def _unsigned(links: Iterable[ChainRequest]) -> list[ChainRequest]:
    return [link.model_copy(update={"signer": None}) for link in links]


def check_results(certificate: Certificate, folder: Path | None) -> Iterator[Check]:
    """Check that the files of the run which lie beside a certificate are as it says."""
    found = [] if folder is None else there(certificate, folder)
    if folder is None or not found:
        return
    changed = changed_files(certificate, folder)
    told = "not as the run wrote" if changed else "as the run wrote"
    words = f"{', '.join(changed or found)} beside it: {told} {'it' if len(changed or found) == 1 else 'them'}"
    yield Check("results", not changed, words)


def check_references(certificate: Certificate) -> Iterator[Check]:
    """Tell what a certificate says about the run's references, where it had some: there is nothing to compare with."""
    stated = certificate.references
    if stated is None:
        return
    how = "handed in" if stated.by == "claim" else f"{stated.folds} folds by {stated.by}"
    words = f"the certificate states a table of {stated.rows} rows ({how}) with SHA-256 {stated.sha256}"
    if stated.claimed:
        words += f", {stated.claimed} of them handed in by somebody and not measured here"
    if certificate.target is not None and not certificate.target.target.startswith("out-of-fold"):
        words += ", which the method did not use"
    yield Check("references", None, f"{words}; {_owed(stated.models_owe)}" if stated.models_owe else words)


def _owed(count: int) -> str:
    records = "1 forgotten record" if count == 1 else f"{count} forgotten records"
    return f"models that were kept beside its references still remember {records}"
