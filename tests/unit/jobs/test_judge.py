"""The numbers of a run, each against a computation of its own on the models as they lie on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from job_folders import build, run, table, world, write_job, write_world
from sklearn.metrics import roc_auc_score

from forsaken.errors import OracleError, SettingsError
from forsaken.jobs.judge import Views, numbers
from forsaken.jobs.sets import JobSets
from forsaken.oracles.shadow import ShadowOracle

SHADOW = {"weights": "shadow.safetensors", "members": "members.parquet", "nonmembers": "nonmembers.parquet"}
SETS = world().sets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_world(tmp_path / "job")


def answers(path: Path, inputs: Any) -> Any:
    """Posteriors of the weights in a file, computed without the package."""
    model = build().double()
    model.load_state_dict(safetensors.torch.load_file(path))
    with torch.no_grad():
        values = model(torch.from_numpy(inputs).double()).numpy()
    powers = np.exp(values - values.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def seen_by(folder: Path, seed: int = 0) -> ShadowOracle:
    inside, outside = (answers(folder / "shadow.safetensors", SETS[name][0]) for name in ("members", "nonmembers"))
    return ShadowOracle.fit_posteriors(inside, outside, seed=seed)


def files(folder: Path) -> dict[str, Path]:
    return {
        "before": folder / "model.safetensors",
        "after": folder / "forgotten" / "model.safetensors",
        "retrained": folder / "retrained.safetensors",
    }


def test_every_number_is_what_the_models_on_the_disk_say(folder: Path) -> None:
    found = run(write_job(folder, oracle=SHADOW | {"retrained": "retrained.safetensors"}, data={"retain": None}))
    oracle = seen_by(folder)
    rows = {name: answers(path, SETS["forget"][0]) for name, path in files(folder).items()}
    others = {name: answers(path, SETS["reference"][0]) for name, path in files(folder).items()}
    tests = {name: answers(path, SETS["test"][0]) for name, path in files(folder).items()}
    truth = SETS["test"][1]
    member = {name: oracle.score_posteriors(part) > 0.5 for name, part in rows.items()}

    for name in files(folder):
        assert found["forget_confidence"][name] == pytest.approx(rows[name].max(1).mean(), abs=1e-5)
        scores = np.concatenate([rows[name].max(1), others[name].max(1)])
        area = roc_auc_score(np.repeat([1, 0], [len(rows[name]), len(others[name])]), scores)
        assert found["separation"][name] == pytest.approx(area, abs=1e-3)
    assert (found["separation"]["against"], found["separation"]["n"]) == ("reference", 60)

    known = member["before"].sum()
    assert found["counts"]["memorised_before"] == known > 0
    for name, told in (("after", found["fr"]), ("retrained", found["retrain"]["fr"])):
        assert told == pytest.approx((known - member[name].sum()) / known)
    right = {name: float(np.mean(part.argmax(1) == truth)) for name, part in tests.items()}
    assert found["accuracy_before"] == right["before"]
    assert found["accuracy_after"] == right["after"]
    assert found["retrain"]["accuracy"] == right["retrained"]
    assert found["by_class"]["support"] == np.bincount(truth, minlength=4).tolist()
    for number in range(4):
        here = truth == number
        for name in ("before", "after"):
            share = float(np.mean(tests[name][here].argmax(1) == number))
            assert found["by_class"][name][number] == pytest.approx(share)

    samples = found["samples"]
    assert samples["score"] == "oracle"
    assert samples["class_after"] == rows["after"].argmax(1).tolist()
    assert samples["confidence_before"] == pytest.approx(rows["before"].max(1).tolist(), abs=1e-5)
    assert [score > 0.5 for score in samples["score_after"]] == member["after"].tolist()


def test_the_posteriors_behind_the_pictures(folder: Path) -> None:
    run(write_job(folder, oracle={"retrained": "retrained.safetensors"}))
    with np.load(folder / "forgotten" / "posteriors.npz") as arrays:
        names = {f"{when}_{part}" for when in files(folder) for part in ("forget", "kept", "test", "reference")}
        assert set(arrays.files) == names
        for when, path in files(folder).items():
            largest = -np.sort(-answers(path, SETS["test"][0]), axis=1)[:, :3]
            np.testing.assert_allclose(arrays[f"{when}_test"], largest, atol=1e-5)


def test_what_should_be_kept_is_judged_on_what_was_neither_forgotten_nor_retained(folder: Path) -> None:
    found = run(write_job(folder, oracle=SHADOW, data={"retain": {"of": "train", "ids": list(range(30))}}))
    oracle = seen_by(folder)
    kept = SETS["train"][0][30:120]
    was, now = (oracle.score_posteriors(answers(files(folder)[name], kept)) > 0.5 for name in ("before", "after"))
    assert found["counts"]["kept_judged"] == 90
    assert found["cfr"] == pytest.approx((was.sum() - now.sum()) / was.sum())


def test_how_far_the_oracle_can_be_trusted(folder: Path) -> None:
    found = run(write_job(folder, oracle=SHADOW, data={"retain": {"of": "train", "ids": list(range(30))}}))
    oracle, path = seen_by(folder), files(folder)["before"]
    inside = oracle.score_posteriors(answers(path, SETS["train"][0][30:120])) > 0.5
    outside = oracle.score_posteriors(answers(path, SETS["test"][0])) > 0.5
    told = found["oracle"]
    assert (told["members"], told["nonmembers"]) == (90, 80)
    assert told["recall"] == pytest.approx(inside.mean())
    assert told["balanced_accuracy"] == pytest.approx((inside.mean() + (~outside).mean()) / 2)


def test_an_oracle_from_a_file_says_what_its_shadow_said(folder: Path) -> None:
    first = run(write_job(folder, oracle=SHADOW), out=folder / "first")
    seen_by(folder).save(folder / "oracle.json")
    second = run(write_job(folder, oracle={"file": "oracle.json"}), out=folder / "second")
    for name in ("fr", "cfr", "oracle"):
        assert first[name] == second[name]
    assert first["samples"]["score_after"] == pytest.approx(second["samples"]["score_after"])


def test_without_an_oracle_there_are_no_rates(folder: Path) -> None:
    found = run(write_job(folder))
    assert (found["fr"], found["cfr"], found["oracle"], found["retrain"]) == (None, None, None, None)
    assert found["counts"]["memorised_before"] is None
    assert found["samples"]["score"] == "confidence"
    assert found["samples"]["score_before"] == found["samples"]["confidence_before"]


def test_without_references_and_test_there_is_nothing_to_compare_with(folder: Path) -> None:
    data = {"reference": None, "test": None, "train": None}
    found = run(write_job(folder, data=data, method={"target": "uniform", "iterations": 5}))
    for name in ("separation", "accuracy_before", "accuracy_after", "by_class"):
        assert found[name] is None
    known = {"forget": 12, "reference": 0, "retain": 0, "test": 0, "kept_judged": 0}
    assert found["counts"] == dict.fromkeys(found["counts"]) | known


def test_without_references_the_test_stands_in(folder: Path) -> None:
    found = run(write_job(folder, data={"reference": None}, method={"target": "uniform", "iterations": 5}))
    assert (found["separation"]["against"], found["separation"]["n"]) == ("test", 80)


def test_a_test_without_labels_has_no_accuracy(folder: Path) -> None:
    pq.write_table(table(SETS["test"][0]), folder / "test.parquet")
    found = run(write_job(folder))
    assert found["accuracy_before"] is None
    assert found["by_class"] is None
    assert found["counts"]["test"] == 80


def test_an_oracle_of_other_classes(folder: Path) -> None:
    draw = np.random.default_rng(0)
    parts = [draw.dirichlet(np.ones(7), size=30) for _ in range(2)]
    ShadowOracle.fit_posteriors(*parts).save(folder / "oracle.json")
    with pytest.raises(SettingsError, match="shadow model had 7 classes, the model has 4"):
        run(write_job(folder, oracle={"file": "oracle.json"}))
    assert not (folder / "forgotten").exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"format": "forsaken.shadow-oracle"}', b"\xff"])
def test_an_oracle_that_is_none(folder: Path, content: bytes) -> None:
    (folder / "oracle.json").write_bytes(content)
    with pytest.raises(OracleError, match=r"oracle\.json"):
        run(write_job(folder, oracle={"file": "oracle.json"}))


def test_a_rate_of_nothing_is_no_rate() -> None:
    """No forget sample was a member before: no number rather than a wrong one."""
    sure, unsure = np.tile([0.97, 0.01, 0.01, 0.01], (40, 1)), np.tile([0.25, 0.25, 0.25, 0.25], (40, 1))
    oracle = ShadowOracle.fit_posteriors(sure, unsure)
    views = Views({"forget": unsure, "kept": sure}, {"forget": unsure, "kept": unsure}, None)
    sets = JobSets(forget=_samples(40), rows={}, classes=("a", "b", "c", "d"))
    found = numbers(views, oracle, sets)
    assert found["fr"] is None
    assert found["cfr"] == 1.0
    assert found["memorised_before"] == 0


def _samples(count: int) -> Any:
    from forsaken.data.samples import Samples

    return Samples(torch.zeros(count, 2))
