"""Results that somebody edited, and files that somebody planted: the report, verify and the audit say so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from job_folders import RECIPE, finished, forsaken, run, write_job, write_world

from forsaken._keys import write_record_key, write_signing_keys
from forsaken.jobs.certificate import Certificate
from forsaken.jobs.seal import seal_key

AUDIT = {"models": 4, "recipe": RECIPE}


def edited(path: Path, *trail: Any, value: Any) -> None:
    table = json.loads(path.read_bytes())
    place = table
    for step in trail[:-1]:
        place = place[step]
    place[trail[-1]] = value
    path.write_text(json.dumps(table, indent=1), encoding="utf-8")


def told(out: Path, *words: object) -> tuple[int, list[str], str]:
    """The exit code of forsaken report, the mismatches that it tells, and the page."""
    ended = forsaken("report", out, "--json", *words)
    return ended.code, ended.json["mismatches"], (out / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = finished(tmp_path_factory.mktemp("audited") / "job")
    assert forsaken("audit", job).code in (0, 4)
    return job.parent


@pytest.fixture
def out(audited: Path, tmp_path: Path) -> Path:
    shutil.copytree(audited, tmp_path / "job")
    return tmp_path / "job" / "forgotten"


def test_whole_results_are_told_so(out: Path) -> None:
    code, mismatches, page = told(out)
    assert (code, mismatches) == (0, [])
    assert "Do not rely on this page" not in page
    assert "Who wrote certificate.json was not checked" in page
    assert "Who wrote audit-quick.json" not in page


def test_an_edited_result_is_named(out: Path) -> None:
    edited(out / "result.json", "fr", value=1.0)
    code, mismatches, page = told(out)
    assert code == 3
    assert mismatches == [
        "forgotten: result.json is not the file of this run: it was changed after the certificate was written."
    ]
    assert "Do not rely on this page" in page
    assert mismatches[0].removeprefix("forgotten: ") in page
    people = forsaken("report", out)
    assert people.code == 3
    assert "result.json is not the file of this run" in people.out
    other = finished(out.parent / "other").parent / "forgotten"
    forsaken("report", out, other, "--out", out.parent / "both.html")
    assert "Do not rely on this page" in (out.parent / "both.html").read_text(encoding="utf-8")


def test_verify_looks_at_the_results_beside_the_certificate(out: Path) -> None:
    words = ("verify", out / "certificate.json", "--weights", out / "model.safetensors", "--any-signer")
    ended = forsaken(*words, "--json")
    assert ended.code == 5  # not shown, and whole
    checks = {check["name"]: check for check in ended.json["checks"]}
    assert checks["results"]["passed"] is True
    assert checks["results"]["words"].endswith("posteriors.npz, result.json beside it: as the run wrote them")
    edited(out / "result.json", "accuracy_after", value=0.99)
    ended = forsaken(*words, "--json")
    assert ended.code == 3
    assert {check["name"]: check["passed"] for check in ended.json["checks"]}["results"] is False


def test_edited_posteriors_are_named(out: Path) -> None:
    with np.load(out / "posteriors.npz") as file:
        arrays = {name: file[name] for name in file.files}
    np.savez(out / "posteriors.npz", **(arrays | {"after_forget": arrays["after_test"][: len(arrays["after_forget"])]}))
    assert told(out)[:2] == (
        3,
        ["forgotten: posteriors.npz is not the file of this run: it was changed after the certificate was written."],
    )


def test_an_edited_audit_is_named(out: Path) -> None:
    whole = (out / "audit-quick.json").read_bytes()
    edited(out / "audit-quick.json", "alarms", 0, "raised", value=False)
    edited(out / "audit-quick.json", "numbers", 0, "value", value=0.5)
    code, mismatches, page = told(out)
    assert code == 3
    assert mismatches == ["forgotten: audit-quick.json was not written by an audit of this run, or was changed since."]
    assert "Do not rely on this page" in page
    edited(out / "audit-quick.json", "mac", value=None)  # nor does it help to take the seal off
    assert told(out)[0] == 3
    (out / "audit-quick.json").write_bytes(whole)
    assert told(out)[0] == 0
    # Without the key nobody can tell, and the page says that; with another key it does not fit.
    shutil.move(out / "records.key", out.parent / "mine.key")
    code, mismatches, page = told(out)
    assert (code, mismatches) == (0, [])
    assert "Who wrote audit-quick.json was not checked" in page
    assert told(out, "--record-key", out.parent / "mine.key")[0] == 0
    write_record_key(out.parent / "other.key", bytes(32))
    assert told(out, "--record-key", out.parent / "other.key")[0] == 3


def test_results_and_certificate_changed_together_need_the_signer_s_key(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    for name in ("signing.pem", "forger.pem"):
        write_signing_keys(folder / name, Ed25519PrivateKey.generate())
    run(write_job(folder, output={"signing_key": "signing.pem"}))
    run(write_job(folder, output={"folder": "forged", "signing_key": "forger.pem"}))
    key = ("--public-key", folder / "signing.pem.pub")
    assert told(folder / "forgotten", *key)[:2] == (0, [])
    code, mismatches, _ = told(folder / "forged", *key)
    assert code == 3
    assert mismatches == ["forged: certificate.json is not signed by the given key, or was changed since."]


def test_a_certificate_that_was_taken_away_is_missed(out: Path, tmp_path: Path) -> None:
    (out / "certificate.json").unlink()
    (out / "audit-quick.json").unlink()
    edited(out / "result.json", "fr", value=1.0)
    code, mismatches, page = told(out)
    missing = "forgotten: There is no certificate.json, so that nothing shows whether the results were changed."
    assert (code, mismatches) == (3, [missing])
    assert "Do not rely on this page" in page
    edited(out / "result.json", "job", value=None)  # as if no job had been run
    _, public = write_signing_keys(tmp_path / "signing.pem", Ed25519PrivateKey.generate())
    assert told(out, "--public-key", public)[:2] == (3, [missing])


def test_a_seal_is_of_one_run_even_where_runs_share_their_record_key(out: Path) -> None:
    certificate = Certificate.read(out / "certificate.json")
    other = certificate.model_copy(update={"time": "2020-01-01T00:00:00+00:00"})
    assert seal_key(bytes(32), certificate) != seal_key(bytes(32), other)
    assert seal_key(bytes(32), certificate) != seal_key(b"\1" * 32, certificate)


def test_planted_measurements_are_refused_and_named(tmp_path: Path) -> None:
    job = finished(tmp_path / "job", audit=AUDIT)
    words = ("audit", job, "--profile", "full", "--json")
    first = forsaken(*words)
    assert first.code in (0, 4), first.err
    models = job.parent / "forgotten" / "audit-models"
    files = sorted(models.rglob("*.npz"))
    whole = {path: path.read_bytes() for path in files}
    honest = [path.read_bytes() for path in files]
    # Records that anybody can write, one with the content of another model, and one with a single flipped bit.
    np.savez(files[0], forget=np.zeros(12), seconds=np.array(1.0))
    files[1].write_bytes(honest[2])
    files[3].write_bytes(honest[3][:-1] + bytes([honest[3][-1] ^ 1]))
    files[4].write_bytes(b"")
    ended = forsaken(*words)
    assert ended.code == 2
    for at in (0, 1, 3, 4):
        assert str(files[at]) in ended.json["error"]
    assert str(files[2]) not in ended.json["error"]
    assert "4 files of measurements were changed" in ended.json["error"]
    for path, content in whole.items():
        path.write_bytes(content)
    again = forsaken(*words)
    assert again.json["numbers"] == first.json["numbers"]


def test_a_certificate_states_the_hashes_of_the_results(out: Path) -> None:
    assert {"result.json", "posteriors.npz", "cleaned.parquet"} <= set(Certificate.read(out / "certificate.json").files)
