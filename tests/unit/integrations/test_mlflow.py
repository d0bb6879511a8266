"""Runs in a local MLflow: a new version with its papers and no secrets, and which versions saw a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from report_runs import make_audit

from forsaken.errors import OutputError
from forsaken.jobs.certificate import Certificate
from forsaken.jobs.configuration import read_job
from forsaken.references.table import References
from forsaken.result import Result
from tests.job_folders import run, tabled, world

mlflow = pytest.importorskip("mlflow", reason="the extra forsaken[mlflow] is not installed")

from forsaken.integrations.mlflow import Version, find_versions, log_run, log_training  # noqa: E402


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # without a database
    mlflow.set_tracking_uri(f"file://{tmp_path / 'mlruns'}")
    mlflow.set_registry_uri(f"file://{tmp_path / 'mlruns'}")
    return mlflow.MlflowClient()


def test_versions_and_who_saw_a_record(server: Any, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    job = tabled(folder)
    table = References.load(folder / "references.safetensors")
    assert log_training("clouds", folder / "model.safetensors", table) == "1"
    run(job)
    forgotten = folder / "forgotten"
    left = References.load(forgotten / "references.safetensors")
    assert log_run("clouds", forgotten, left) == "2"
    gone, kept = (torch.from_numpy(world().sets[name][0]) for name in ("forget", "kept"))
    assert find_versions("clouds", gone, table.key) == [Version("1", len(gone)), Version("2", 0)]
    assert find_versions("clouds", kept[:5], table.key) == [Version("1", 5), Version("2", 5)]
    assert find_versions("clouds", gone, bytes(32)) == [Version("1", 0), Version("2", 0)]  # not without the key
    version = server.get_model_version("clouds", "2")
    certificate = Certificate.read(forgotten / "certificate.json")
    assert version.tags["forsaken.certificate_sha256"] == certificate.sha256
    assert version.tags["forsaken.forgotten"] == str(len(gone))
    assert version.tags["forsaken.verdict"] == Result.read(forgotten / "result.json").verdict.word == "forgotten"
    audit = make_audit() | {"verdict": {"word": "failed", "line": "An attack found them."}}
    (forgotten / "audit-full.json").write_text(json.dumps(audit))
    assert log_run("clouds", forgotten) == "3"
    assert server.get_model_version("clouds", "3").tags["forsaken.verdict"] == "failed"
    place = Path(mlflow.artifacts.download_artifacts(version.source, dst_path=str(tmp_path / "got")))
    names = {path.name for path in place.rglob("*") if path.is_file()}
    assert names >= {"model.safetensors", "certificate.json", "result.json", "rows.txt"}
    assert not names & {"references.safetensors", "references.key", "records.key", "mask.safetensors", "posteriors.npz"}
    assert (place / "model.safetensors").read_bytes() == (forgotten / "model.safetensors").read_bytes()
    assert table.key.hex() not in (place / "rows.txt").read_text()


def test_other_weights_than_the_certificates_are_not_logged(server: Any, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    run(tabled(folder))
    weights = folder / "forgotten" / "model.safetensors"
    weights.write_bytes((folder / read_job(folder / "forsaken.toml").model.weights).read_bytes())
    with pytest.raises(OutputError, match="is not what the certificate beside it names"):
        log_run("clouds", folder / "forgotten")
    assert not server.search_registered_models()
