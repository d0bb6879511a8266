"""A run as it lies in its folder: the result, the arrays behind the pictures, the certificate and the audit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from forsaken._keys import read_record_key
from forsaken._untrusted import UnreadableError, read_npz
from forsaken.auditing.result import EARLIER, PROFILES, Audit
from forsaken.errors import OutputError
from forsaken.jobs.certificate import Certificate
from forsaken.jobs.output import ARRAYS, AUDITS, CERTIFICATE, RECORD_KEY, REPORT, RESULT
from forsaken.jobs.seal import changed_files, is_sealed, seal_key
from forsaken.result import Result, Verdict
from forsaken.types import Array
from forsaken.verdict import LEAST_RECORDS, strictest

__all__ = ["ARRAYS", "AUDITS", "CERTIFICATE", "REPORT", "RESULT", "Run", "read_run", "verdict_of"]

_PARTS = ("forget", "kept", "test", "reference")


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What a run left behind, checked: drawing a page from it needs no further check.

    Attributes
    ----------
    name : str
        The folder's own name.
    result : Result
        The content of result.json.
    arrays : dict of str to array, shape (n, 1 to 3)
        The largest posteriors by the names of posteriors.npz, such as "before_forget"; of each sample only where the
        result has `samples`.
    certificate, audit : Certificate or None, Audit or None
        The content of certificate.json and of the strongest audit, where they are there.
    audits : tuple of Audit
        All audits, the strongest last.
    mismatches : tuple of str
        What was changed, or put there by somebody else, as sentences: then the page must not be relied on.
    unchecked : tuple of str
        What could not be checked, as sentences.
    """

    name: str
    result: Result
    arrays: Mapping[str, Array]
    certificate: Certificate | None = None
    audit: Audit | None = None
    audits: tuple[Audit, ...] = ()
    mismatches: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()


def read_run(folder: Path, *, keys: Sequence[Ed25519PublicKey] = (), record_key: bytes | None = None) -> Run:
    """Read and check the run in `folder`; whatever is wrong with it is an `OutputError` that says what to do.

    Files that can be read and are not those of the run are named in `Run.mismatches`. The certificate must be signed by
    one of `keys`, where some are given; `record_key` is the key of the audit's seal, by default the one in the folder.
    """
    if not folder.is_dir():
        raise OutputError(f"{folder} is not a folder", remedy=f"give the output folder of a run, which holds {RESULT}")
    if not (folder / RESULT).is_file():
        raise OutputError(
            f"there is no {RESULT} in {folder}",
            remedy="give the output folder of a run, or make one with: forsaken demo",
        )
    result = Result.read(folder / RESULT)
    arrays = _read_arrays(folder / ARRAYS, result.counts.forget, per_record=result.samples is not None)
    certificate = Certificate.read(folder / CERTIFICATE) if (folder / CERTIFICATE).exists() else None
    audits: dict[str, Audit] = {}
    for name in (EARLIER, *AUDITS.values()):
        if (folder / name).exists():
            audits[name] = Audit.read(folder / name)
            _check_ties(folder / name, audits[name], result, certificate)
    if record_key is None and (folder / RECORD_KEY).is_file():
        record_key = read_record_key(folder / RECORD_KEY)
    found = list(_seals(folder, certificate, audits, keys, record_key, of_job=result.job is not None))
    ordered = sorted(audits.values(), key=lambda audit: PROFILES.index(audit.profile))
    return Run(
        folder.resolve().name,
        result,
        arrays,
        certificate,
        audit=ordered[-1] if ordered else None,
        audits=tuple(ordered),
        mismatches=tuple(told for told, passed in found if passed is False),
        unchecked=tuple(told for told, passed in found if passed is None),
    )


def verdict_of(run: Run) -> Verdict:
    """Return the verdict on a run: one failure is enough, and so is one proof, of the run's own or of its audits'."""
    return strictest([run.result.verdict, *(audit.verdict for audit in run.audits)])


def _seals(
    folder: Path,
    certificate: Certificate | None,
    audits: Mapping[str, Audit],
    keys: Sequence[Ed25519PublicKey],
    record_key: bytes | None,
    *,
    of_job: bool,
) -> Iterator[tuple[str, bool | None]]:
    """Yield a sentence for each file that is not as it was written (False), or of which that is not known (None).

    A run of a job always has a certificate; a demonstration has none.
    """
    if certificate is None:
        if keys or of_job:
            yield f"There is no {CERTIFICATE}, so that nothing shows whether the results were changed.", False
        return
    for name in sorted({RESULT, ARRAYS} & {*changed_files(certificate, folder)}):
        yield f"{name} is not the file of this run: it was changed after the certificate was written.", False
    if keys and certificate.signer(keys) is None:
        yield f"{CERTIFICATE} is not signed by the given key, or was changed since.", False
    elif not keys:
        yield (
            f"Who wrote {CERTIFICATE} was not checked: whoever can write to the folder could have changed it together "
            "with the results. Give the signer's key: forsaken report --public-key.",
            None,
        )
    for name, audit in audits.items():
        if record_key is None:
            yield f"Who wrote {name} was not checked: give the record key: forsaken report --record-key.", None
        elif not is_sealed(audit, seal_key(record_key, certificate)):
            yield f"{name} was not written by an audit of this run, or was changed since.", False


def _check_ties(path: Path, audit: Audit, result: Result, certificate: Certificate | None) -> None:
    """Refuse an audit of other records, weights or runs; it stops mix-ups, not somebody who writes both files."""

    def stranger(why: str) -> OutputError:
        return OutputError(f"{path} does not belong to this run: {why}", remedy=audit.remedy)

    forgotten = result.counts.forget
    beyond = [spread.row for spread in audit.margins if spread.row >= forgotten]
    if beyond:
        raise stranger(f"it shows the record at place {beyond[0]} of the forget set, which holds {forgotten}")
    if certificate is not None:
        ties = {"weights_sha256": certificate.weights.new.sha256, "certificate_sha256": certificate.sha256}
        for name, known in ties.items():
            if audit.settings.get(name) != known:
                raise stranger(f"its {name} is not that of {CERTIFICATE} beside it ({known})")


def _read_arrays(path: Path, forgotten: int, *, per_record: bool) -> dict[str, Array]:
    def damaged(why: str) -> OutputError:
        return OutputError(f"{path} is damaged: {why}", remedy=Result.remedy)

    if not path.is_file():
        raise OutputError(f"there is no {ARRAYS} in {path.parent}, which the pictures need", remedy=Result.remedy)
    wanted = [f"{model}_{part}" for model in ("before", "after", "retrained") for part in _PARTS]
    try:
        _, arrays = read_npz(path, wanted)
    except (OSError, UnreadableError) as error:
        raise damaged(str(error)) from error
    for name in ("before_forget", "after_forget") if per_record or forgotten >= LEAST_RECORDS else ():
        if name not in arrays:
            raise damaged(f"it has no array {name}")
    sizes = {"forget": forgotten}
    width = next((array.shape[-1:] for array in arrays.values()), (1,))
    for name, array in arrays.items():
        if array.ndim != 2 or array.dtype.kind != "f" or array.shape[1:] != width or array.shape[1] not in (1, 2, 3):
            raise damaged(
                f"{name} has shape {array.shape} and dtype {array.dtype}, expected the one to three largest posteriors "
                "of each sample"
            )
        if not np.all((array >= 0) & (array <= 1 + 1e-6)):
            raise damaged(f"{name} holds values outside 0 to 1")
        size = sizes.setdefault(name.rsplit("_", 1)[1], len(array))
        if len(array) != size:
            raise damaged(f"{name} has {len(array)} rows, expected {size} as elsewhere")
    return arrays
