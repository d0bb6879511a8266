"""Jobs audited by the profiles that train: networks and estimators, stopped and gone on with."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skops.io
from job_folders import RECIPE, SHADOW, finished, forsaken, run, tables, toml, world, write_job, write_world
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from forsaken.auditing.result import Audit
from forsaken.errors import InputError
from forsaken.jobs.audit import audit_job, plan_audit
from forsaken.jobs.code import user_code
from forsaken.jobs.configuration import read_job
from forsaken.types import Tick

AUDIT = {"recipe": RECIPE, "models": 4, "nonmembers": "strangers.parquet"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the white-box oracle and the page, which take longer than all the rest and have tests of their own."""
    monkeypatch.setattr("forsaken.auditing.audit.white_box", lambda *_: [])
    monkeypatch.setattr(
        "forsaken.report.page.write_report", lambda place, *_: (place / "report.html").write_text("page")
    )


def audited(job: Path, profile: str, progress: Any = lambda _: None) -> Audit:
    read = read_job(job)
    with user_code(read.folder):
        return audit_job(plan_audit(read, read.resolve(read.output.folder), profile=profile), progress)


def test_standard_on_a_network(tmp_path: Path) -> None:
    job = finished(tmp_path / "job", audit=AUDIT)
    ended = forsaken("audit", job, "--profile", "standard", "--json")
    assert ended.code in (0, 4), ended.err
    names = {number["name"] for number in ended.json["numbers"]}
    assert {"rmia_auc", "lira_auc", "relearn_steps", "fr", "cfr", "accuracy"} <= names
    assert ended.json["settings"]["references"] == 4
    counts = ended.json["settings"]["counts"]
    wanted = {"forget": 12, "kept": 70, "retain": 50, "test": 80, "reference": 60, "nonmembers": 40}
    assert {name: counts[name] for name in wanted} == wanted
    assert ended.json["settings"]["recipe"]["epochs"] == RECIPE["epochs"]
    assert json.loads((job.parent / "forgotten" / "audit-standard.json").read_bytes()).items() <= ended.json.items()


def test_full_on_a_network(tmp_path: Path) -> None:
    job = finished(tmp_path / "job", audit=AUDIT)
    ended = forsaken("audit", job, "--profile", "full", "--json")
    assert ended.code in (0, 4), ended.err
    names = {number["name"] for number in ended.json["numbers"]}
    assert {"u_lira_auc", "fr", "cfr"} <= names
    assert ended.json["settings"]["originals"] == 4
    assert ended.json["settings"]["retrained"] == 8
    assert any("4 originals" in warning for warning in ended.json["warnings"])
    assert list((job.parent / "forgotten" / "audit-models").rglob("*.npz"))


class Stop(BaseException):
    """Stops an audit as a signal does."""


def records(job: Path) -> dict[Path, tuple[int, bytes]]:
    """What is kept of each model: when it was written, and what."""
    found = sorted((job.parent / "forgotten" / "audit-models").rglob("*.npz"))
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in found}


def test_an_audit_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forsaken.auditing.ensembles.at_once_for", lambda *_, **__: 2)
    job = finished(tmp_path / "job", audit=AUDIT)

    def stop(tick: Tick) -> None:
        if tick.stage == "train 12 models" and tick.done >= 600:
            raise Stop

    with pytest.raises(Stop):
        audited(job, "full", stop)
    first = records(job)
    assert 0 < len(first) < 16, "four originals, as many unlearned, and eight retrained models"
    assert not (job.parent / "forgotten" / "audit-full.json").exists()
    trained: list[int] = []
    import forsaken.auditing.inputs as place

    real = place.train_many

    def counted(*given: Any, seeds: list[int], **named: Any) -> Any:
        trained.extend(seeds)
        return real(*given, seeds=seeds, **named)

    monkeypatch.setattr(place, "train_many", counted)
    whole = audited(job, "full")
    after = records(job)
    assert len(after) == 16
    assert {path: after[path] for path in first} == first, "what was there is not made again"
    before = {int(path.stem) for path in first}
    assert len(trained) == 12 - len(before)
    assert not before & set(trained)
    trained.clear()
    again = audited(job, "full")
    assert trained == []
    assert again.numbers == whole.numbers


def estimator(
    folder: Path, *, steps: bool, name: str = "model.skops", part: str = "train", solver: str = "lbfgs"
) -> None:
    inputs, labels = world().sets[part]
    last = LogisticRegression(C=100.0, max_iter=300 if solver == "lbfgs" else 20, solver=solver)
    model = make_pipeline(StandardScaler(), last) if steps else last
    skops.io.dump(model.fit(inputs, np.array([3, 5, 7, 9])[labels]), folder / name)


def estimator_job(folder: Path, **changes: Any) -> Path:
    job = tables(
        model={"weights": "model.skops", "factory": None},
        audit={"models": 4, "nonmembers": "strangers.parquet"},
        **changes,
    )
    path = folder / "forsaken.toml"
    path.write_text(toml(job), encoding="utf-8")
    return path


def relabelled(folder: Path) -> Path:
    """The world with the labels 3, 5, 7 and 9, which are not their own places."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in folder.glob("*.parquet"):
        table = pq.read_table(path)
        at = table.column_names.index("label")
        odd = np.array([3, 5, 7, 9])[table["label"].to_numpy()]
        pq.write_table(table.set_column(at, "label", pa.array(odd)), path)
    return folder


@pytest.mark.parametrize(("profile", "attack"), [("standard", "rmia_auc"), ("full", "u_lira_auc")])
@pytest.mark.parametrize("steps", [True, False], ids=["pipeline", "estimator"])
def test_estimators_need_no_recipe(tmp_path: Path, profile: str, attack: str, steps: bool) -> None:
    folder = relabelled(write_world(tmp_path / "job"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 20 passes are too few for it, and leave room for chance
        estimator(folder, steps=steps, solver="lbfgs" if profile == "standard" else "saga")
    job = estimator_job(folder)
    run(job)
    found = audited(job, profile)
    assert 0 <= (found[attack].value or 0) <= 1
    told = [warning for warning in found.warnings if "only the classifier is fitted anew" in warning]
    assert bool(told) is steps
    if profile == "full":
        # What is retrained must know the task: labels that went astray would show here.
        assert found["accuracy"].value == pytest.approx(1, abs=0.1)
        ensemble = {number.name: number for number in found.numbers if "accuracy" in number.name}
        assert all(number.retrained is None or number.retrained > 0.9 for number in ensemble.values())


def test_estimators_without_chance_make_no_ensemble(tmp_path: Path) -> None:
    folder = relabelled(write_world(tmp_path / "job"))
    estimator(folder, steps=False)
    job = estimator_job(folder)
    run(job)
    with pytest.raises(
        InputError, match=r"no randomness, so an ensemble of it tells nothing; use the profile standard$"
    ):
        audited(job, "full")
    assert not (folder / "forgotten" / "audit-full.json").exists()


def test_a_retrained_pipeline_of_its_own_cannot_stand_beside(tmp_path: Path) -> None:
    folder = relabelled(write_world(tmp_path / "job"))
    estimator(folder, steps=True)
    estimator(folder, steps=True, name="retrained.skops", part="kept")
    job = estimator_job(folder, oracle={"retrained": "retrained.skops"})
    run(job)
    found = audited(job, "quick")
    assert any("prepares the records by steps of its own" in each for each in found.warnings)
    assert all(number.retrained is None for number in found.numbers)


def test_a_retrained_network_stands_beside(tmp_path: Path) -> None:
    job = finished(tmp_path / "job")
    write_job(job.parent, oracle=SHADOW | {"retrained": "retrained.safetensors"}, audit=AUDIT)
    found = audited(job, "standard")
    assert found["rmia_auc"].retrained is not None
    assert found["accuracy"].retrained is not None
