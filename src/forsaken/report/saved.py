"""A run as it lies in its folder: the result, the arrays behind the pictures, the certificate and the audit."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forsaken.auditing.result import FILE as AUDIT
from forsaken.auditing.result import Audit
from forsaken.errors import OutputError
from forsaken.jobs.certificate import Certificate
from forsaken.jobs.output import ARRAYS, CERTIFICATE, REPORT, RESULT
from forsaken.result import Result
from forsaken.types import Array

__all__ = ["ARRAYS", "AUDIT", "CERTIFICATE", "REPORT", "RESULT", "Run", "read_run"]

MODELS = ("before", "after", "retrained")
PARTS = ("forget", "kept", "test", "reference")
_REMEDY = "run the request again into a new folder, or restore the file"


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What a run left behind, checked: drawing a page from it needs no further check.

    Attributes
    ----------
    name : str
        The folder's own name.
    result : dict
        The content of result.json.
    arrays : dict of str to array
        The largest posteriors by the names of posteriors.npz, such as "before_forget".
    certificate : Certificate or None
        What certificate.json states, where there is one.
    audit : dict or None
        The content of audit.json, where there is one.
    """

    name: str
    result: Mapping[str, Any]
    arrays: Mapping[str, Array]
    certificate: Certificate | None = None
    audit: Mapping[str, Any] | None = None


def read_run(folder: Path) -> Run:
    """Read and check the run in `folder`; whatever is wrong with it is an `OutputError` that says what to do."""
    if not folder.is_dir():
        raise OutputError(f"{folder} is not a folder; give the output folder of a run, which holds {RESULT}")
    if not (folder / RESULT).is_file():
        raise OutputError(
            f"there is no {RESULT} in {folder}; give the output folder of a run, or make one with: forsaken demo"
        )
    result = Result.read(folder / RESULT).model_dump()
    certificate = Certificate.read(folder / CERTIFICATE) if (folder / CERTIFICATE).exists() else None
    forgotten = result["counts"]["forget"]
    arrays = _arrays(folder / ARRAYS, forgotten)
    audit = _audit(folder / AUDIT, forgotten) if (folder / AUDIT).exists() else None
    if audit is not None and certificate is not None:
        _check_ties(folder / AUDIT, audit, certificate)
    return Run(folder.resolve().name, result, arrays, certificate, audit)


def _audit(path: Path, forgotten: int) -> dict[str, Any]:
    audit = Audit.read(path).model_dump(mode="json")
    beyond = [spread["row"] for spread in audit["margins"] if spread["row"] >= forgotten]
    if beyond:
        raise OutputError(
            f"{path} does not belong to this run: it shows the record at place {beyond[0]} of the forget set, which "
            f"holds {forgotten}; {Audit.remedy}"
        )
    return audit


def _check_ties(path: Path, audit: Mapping[str, Any], certificate: Certificate) -> None:
    """Refuse an audit of other weights, or of another run; it stops mix-ups, not somebody who writes both files."""
    ties = {"weights_sha256": certificate.weights.new.sha256, "certificate_sha256": certificate.sha256}
    for name, known in ties.items():
        if audit["settings"].get(name) != known:
            raise OutputError(
                f"{path} does not belong to this run: its {name} is not that of {CERTIFICATE} beside it ({known}); "
                f"{Audit.remedy}"
            )


def _arrays(path: Path, forgotten: int) -> dict[str, Array]:
    if not path.is_file():
        raise OutputError(f"there is no {ARRAYS} in {path.parent}, which the pictures are made of; {_REMEDY}")
    try:
        with np.load(path, allow_pickle=False) as file:
            wanted = [f"{model}_{part}" for model in MODELS for part in PARTS]
            arrays = {name: np.asarray(file[name]) for name in wanted if name in file.files}
    except (OSError, ValueError, TypeError, KeyError, EOFError, AttributeError, SyntaxError, MemoryError) as error:
        raise OutputError(f"{path} is damaged: its arrays cannot be read ({error}); {_REMEDY}") from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, OverflowError) as error:
        raise OutputError(f"{path} is damaged: it is not a readable archive ({error}); {_REMEDY}") from error
    for name in ("before_forget", "after_forget"):
        if name not in arrays:
            raise OutputError(f"{path} is damaged: it has no array {name}; {_REMEDY}")
    _check_arrays(path, arrays, forgotten)
    return arrays


def _check_arrays(path: Path, arrays: Mapping[str, Array], forgotten: int) -> None:
    sizes = {"forget": forgotten}
    width = arrays["before_forget"].shape[-1:]
    for name, array in arrays.items():
        if array.ndim != 2 or array.dtype.kind != "f" or array.shape[1:] != width or array.shape[1] not in (1, 2, 3):
            raise OutputError(
                f"{path} is damaged: {name} has shape {array.shape} and dtype {array.dtype}, expected the one to "
                f"three largest posteriors of each sample; {_REMEDY}"
            )
        if not np.all((array >= 0) & (array <= 1 + 1e-6)):
            raise OutputError(f"{path} is damaged: {name} holds values outside 0 to 1; {_REMEDY}")
        part = name.rsplit("_", 1)[1]
        if sizes.setdefault(part, len(array)) != len(array):
            raise OutputError(
                f"{path} is damaged: {name} has {len(array)} rows, expected {sizes[part]} as elsewhere; {_REMEDY}"
            )
