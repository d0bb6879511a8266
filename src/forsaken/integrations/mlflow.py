"""Runs in MLflow: the model that forgot as a new version with its papers, and which versions saw a record.

Only what may be shown is logged: the weights, the certificate, the report and the results. Keys, masks, posteriors,
tables of references and cleaned data stay in the run's folder. What a version was trained on is logged as the keyed
hashes of its rows: whoever has the key can ask whether a version saw a record, and others learn the number of rows.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forsaken.auditing.result import Audit
from forsaken.data.samples import Samples
from forsaken.errors import ForsakenError, OutputError
from forsaken.jobs.certificate import FILE, Certificate, file_hash
from forsaken.jobs.output import AUDITS, REPORT, RESULT
from forsaken.references.rows import as_keys, row_hashes
from forsaken.references.table import References
from forsaken.result import Result
from forsaken.verdict import strictest

_SHOWN = (FILE, REPORT, RESULT, *AUDITS.values())
_ROWS = "rows.txt"


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a registered model: its number as MLflow writes it, and how many of the asked records it saw."""

    version: str
    seen: int


def log_training(name: str, weights: Path, table: References) -> str:
    """Register trained weights as a new version of the model `name`, with the keyed hashes of its training rows.

    Returns the version. `table` is that of the training data (`forsaken.References.fit`).
    """
    tags = {"forsaken.rows": str(len(table)), "forsaken.weights_sha256": file_hash(weights)}
    return _register(name, weights, [], tags, table)


def log_run(name: str, folder: Path, table: References | None = None) -> str:
    """Register what `forsaken unlearn` wrote to `folder` as a new version of the model `name`; return the version.

    Parameters
    ----------
    name : str
        The registered model; it is made where it is not there.
    folder : Path
        The output folder of a run. Its weights must be those that its certificate names.
    table : References, optional
        The table that the run handed on, without the forgotten rows: what this version still knows.
    """
    certificate, result = Certificate.read(folder / FILE), Result.read(folder / RESULT)
    weights = folder / certificate.weights.new.name
    if file_hash(weights) != certificate.weights.new.sha256:
        raise OutputError(f"{weights} is not what the certificate beside it names; restore it, or run the job again")
    tags = {
        "forsaken.certificate_sha256": certificate.sha256,
        "forsaken.weights_sha256": certificate.weights.new.sha256,
        "forsaken.weights_before_sha256": certificate.weights.old.sha256,
        "forsaken.forgotten": str(certificate.records.count),
        "forsaken.method": certificate.method,
        "forsaken.stopped": certificate.stopped,
        "forsaken.signed": "yes" if certificate.signature is not None else "no",
        "forsaken.certificate": FILE,
        "forsaken.report": REPORT,
    }
    audits = [Audit.read(path).verdict for name in AUDITS.values() if (path := folder / name).is_file()]
    tags["forsaken.verdict"] = strictest([result.verdict, *audits]).word
    papers = [path for shown in _SHOWN if (path := folder / shown).is_file()]
    return _register(name, weights, papers, tags, table)


def find_versions(name: str, records: object, key: bytes) -> list[Version]:
    """Return every version of a model that says what it was trained on, and how many of these records it saw.

    Parameters
    ----------
    name : str
        The registered model.
    records : inputs, or pair (inputs, labels)
        As they were given to `forsaken.References.fit`.
    key : bytes
        The key of the tables.
    """
    mlflow = _library()
    asked = {each.hex() for each in as_keys(row_hashes(Samples.read(records, "the records"), key))}
    client, found = mlflow.MlflowClient(), []
    for version in client.search_model_versions(f"name='{name}'"):
        if "forsaken.rows" not in version.tags:
            continue
        with tempfile.TemporaryDirectory() as place:
            path = mlflow.artifacts.download_artifacts(f"{version.source}/{_ROWS}", dst_path=place)
            known = set(Path(path).read_text(encoding="ascii").split())
        found.append(Version(str(version.version), len(asked & known)))
    return sorted(found, key=lambda each: int(each.version))


def _register(name: str, weights: Path, papers: list[Path], tags: dict[str, str], table: References | None) -> str:
    mlflow = _library()
    client = mlflow.MlflowClient()
    with mlflow.start_run(run_name=f"forsaken {name}") as run:
        if weights.is_dir():
            mlflow.log_artifacts(str(weights), f"model/{weights.name}")
        for path in [*papers, *([] if weights.is_dir() else [weights])]:
            mlflow.log_artifact(str(path), "model")
        if table is not None:
            tags |= {"forsaken.rows": str(len(table))}
            mlflow.log_text("\n".join(sorted(each.hex() for each in table.entries.places)), f"model/{_ROWS}")
        mlflow.set_tags(tags)
    try:
        client.get_registered_model(name)
    except mlflow.exceptions.MlflowException:
        client.create_registered_model(name)
    source = f"{run.info.artifact_uri}/model"
    return str(client.create_model_version(name, source, run.info.run_id, tags=tags).version)


def _library() -> Any:
    try:
        import mlflow  # noqa: PLC0415 (optional, and slow to import)
    except ImportError as error:
        raise ForsakenError("MLflow is not installed", remedy="pip install 'forsaken[mlflow]'") from error
    return mlflow
