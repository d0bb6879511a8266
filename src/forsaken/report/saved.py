"""A run as it lies in its folder: the result, the arrays behind the pictures, the certificate and the audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forsaken._untrusted import UnreadableError, read_npz
from forsaken.auditing.result import Audit
from forsaken.errors import OutputError
from forsaken.jobs.certificate import Certificate
from forsaken.jobs.disclosure import LEAST_RECORDS
from forsaken.jobs.output import ARRAYS, AUDIT, CERTIFICATE, REPORT, RESULT
from forsaken.result import Result
from forsaken.types import Array

__all__ = ["ARRAYS", "AUDIT", "CERTIFICATE", "REPORT", "RESULT", "Run", "read_run"]

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
        The content of certificate.json and audit.json, where they are there.
    """

    name: str
    result: Result
    arrays: Mapping[str, Array]
    certificate: Certificate | None = None
    audit: Audit | None = None


def read_run(folder: Path) -> Run:
    """Read and check the run in `folder`; whatever is wrong with it is an `OutputError` that says what to do."""
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
    audit = None
    if (folder / AUDIT).exists():
        audit = Audit.read(folder / AUDIT)
        _check_ties(folder / AUDIT, audit, result, certificate)
    return Run(folder.resolve().name, result, arrays, certificate, audit)


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
