"""The [audit] table, and what an audit takes from a job: the same samples, all of the data, the right weights."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from job_folders import (
    RECIPE,
    SHADOW,
    digests,
    finished,
    program,
    result_of,
    run,
    tables,
    toml,
    world,
    write_bert,
    write_job,
    write_world,
)
from sklearn.linear_model import LogisticRegression

from forsaken.auditing.result import Audit
from forsaken.data.samples import Samples
from forsaken.errors import DataNotFoundError, InputError, OutputError, SettingsError, UnknownNameError
from forsaken.jobs.audit import JobAudit, audit_cost, audit_job, plan_audit, read_inputs
from forsaken.jobs.certificate import Certificate, file_hash
from forsaken.jobs.code import user_code
from forsaken.jobs.configuration import Job, read_job
from forsaken.jobs.formats import load_model
from forsaken.jobs.output import inputs_of, output, outputs_of
from forsaken.jobs.references import Refit
from forsaken.jobs.rows import Reader
from forsaken.jobs.sets import read_sets
from forsaken.recipe import Recipe


def planned(job: Path, **settings: Any) -> Any:
    read = read_job(job)
    return plan_audit(read, read.resolve(read.output.folder), **settings)


def audited(job: Path, **settings: Any) -> Audit:
    plan = planned(job, **settings)
    with user_code(plan.job.folder):
        return audit_job(plan)


def evidence(job: Path, profile: str = "standard") -> JobAudit:
    plan = planned(job, profile=profile)
    with user_code(plan.job.folder):
        return read_inputs(plan)


# --- the table -------------------------------------------------------------------------------------------------------


def problems(folder: Path, audit: Any, **changes: Any) -> list[str]:
    (folder / "forsaken.toml").write_text(toml(tables(audit=audit, **changes)), encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        read_job(folder / "forsaken.toml")
    return [line.partition(": ")[2] for line in str(caught.value).split("\n  - ")[1:]]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"profile": "fast"}, "[audit] profile is 'fast', expected \"quick\", \"standard\" or \"full\""),
    ({"models": 3}, "[audit] models is 3, expected a whole number from 4 to 4096, such as 16"),
    ({"models": True}, "[audit] models is true, expected a whole number"),
    ({"recipe": 3}, "[audit] recipe is 3, expected a table such as { epochs = 20, batch_size = 64, learning_rate"),
    ({"recipe": {"batch_size": 64, "learning_rate": 1e-3}}, "[audit] recipe.epochs is missing, expected a whole"),
    ({"recipe": RECIPE | {"epochs": 0}}, "[audit] recipe.epochs is 0, expected a whole number >= 1"),
    ({"recipe": RECIPE | {"learning_rate": 0}}, "[audit] recipe.learning_rate is 0, expected a number > 0"),
    ({"recipe": RECIPE | {"optimiser": "lion"}}, '[audit] recipe.optimiser is \'lion\', expected "adam" or "sgd"'),
    ({"recipe": RECIPE | {"epoch": 3}}, "[audit] recipe.epoch is unknown, expected one of "),
    ({"nonmembers": {"of": "train", "count": 5}}, "[audit] nonmembers.of is 'train', but the model was trained on "
     "those, expected samples new to the model"),
    ({"nonmembers": {"of": "forget"}}, "[audit] nonmembers.of is 'forget', expected samples that the model was never"),
    ({"nonmembers": [901, 902]}, "[audit] nonmembers is a list, expected a path such as \"samples.parquet\" or a t"),
    ({"profil": "quick"}, "[audit] profil is unknown, expected one of models, neighbours, nonmembers, profile, "
     "recipe; did "),
]  # fmt: skip


@pytest.mark.parametrize(("audit", "expected"), WRONG)
def test_a_wrong_setting_is_told_in_words(tmp_path: Path, audit: dict[str, Any], expected: str) -> None:
    found = problems(tmp_path, audit)
    assert len(found) == 1, found
    assert found[0].startswith(expected)
    assert "901" not in found[0]


def test_all_of_them_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, {"profile": "x", "models": 1, "recipe": {"epochs": 0}}, method={"penalty": -1})
    told = " ".join(found)
    for words in ("profile is", "models is", "epochs is 0", "batch_size is missing", "learning_rate is missing"):
        assert words in told
    assert len(found) == 6


@pytest.mark.parametrize(
    "audit",
    [
        {},
        {"recipe": RECIPE},
        {"profile": "quick", "recipe": RECIPE, "models": 5},
        {"profile": "full", "models": 4, "recipe": RECIPE | {"clip": 1, "optimiser": "sgd", "schedule": "one-cycle"}},
        {"nonmembers": {"of": "test", "count": 5}},
        {"nonmembers": "strangers.csv"},
    ],
)
def test_right_settings_decide_nothing_of_a_run(tmp_path: Path, audit: dict[str, Any]) -> None:
    bare = read_job(write_job(tmp_path, "bare.toml"))
    full = read_job(write_job(tmp_path, audit=audit))
    assert full.to_dict() == bare.to_dict()
    assert outputs_of(full) == outputs_of(bare)


def test_the_recipe_is_the_library_s(tmp_path: Path) -> None:
    job = read_job(write_job(tmp_path, audit={"recipe": RECIPE}))
    assert job.audit.recipe is not None
    assert Recipe(**job.audit.recipe.model_dump()) == Recipe(3, 32, 1e-2)
    assert set(type(job.audit.recipe).model_fields) == set(Recipe(1, 1, 1.0).to_dict())


VALUES = st.recursive(
    st.one_of(st.booleans(), st.integers(-3, 20), st.floats(allow_nan=False, allow_infinity=False),
              st.sampled_from(["quick", "full", "standard", "sgd", "train", "test", "", "a:b", "x.parquet"])),
    lambda inner: st.lists(inner, max_size=2)
    | st.dictionaries(st.sampled_from([*RECIPE, "clip", "optimiser", "of", "ids", "count", "path"]), inner, max_size=4),
    max_leaves=5,
)  # fmt: skip


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(st.dictionaries(st.sampled_from(["profile", "models", "recipe", "nonmembers", "x"]), VALUES))
def test_anything_gives_a_job_or_problems_in_words(tmp_path: Path, audit: dict[str, Any]) -> None:
    (tmp_path / "forsaken.toml").write_text(toml(tables() | {"audit": audit}), encoding="utf-8")
    try:
        job = read_job(tmp_path / "forsaken.toml")
    except SettingsError as error:
        told = str(error)
        assert "is not TOML" not in told
        assert "pydantic" not in told
        assert all("[audit]" in line for line in told.split("\n  - ")[1:])
    else:
        list(inputs_of(job))
        assert job.audit.models is None or job.audit.models >= 4


# --- what must be there ----------------------------------------------------------------------------------------------


def test_what_a_job_lacks_is_told_at_once(tmp_path: Path) -> None:
    job = finished(tmp_path / "job", data={"train": None, "test": None}, method={"target": "corrected"})
    with pytest.raises(SettingsError) as caught:
        planned(job, profile="full", models=3)
    told = str(caught.value)
    assert 'the profile "full" cannot be run as the job stands' in told
    for words in (
        "models is 3, expected a whole number from 4 to 4096",
        "[audit] recipe is missing, expected how the model was trained, such as recipe = { epochs",
        "[data] train is missing",
        "[data] test is missing",
        '[method] target is "corrected"',
    ):
        assert words in told
    assert told.count("\n  - ") == 5


def test_profiles_models_and_what_wins(tmp_path: Path) -> None:
    job = finished(tmp_path / "job", audit={"profile": "standard", "models": 6, "recipe": RECIPE})
    assert [(plan.profile, plan.models, plan.trainings, plan.unlearnings) for plan in (
        planned(job), planned(job, models=4), planned(job, profile="full"), planned(job, profile="quick"),
    )] == [("standard", 6, 6, 0), ("standard", 4, 4, 0), ("full", 6, 18, 6), ("quick", 0, 0, 0)]  # fmt: skip
    with pytest.raises(UnknownNameError, match="unknown profile 'ful'; did you mean 'full'"):
        planned(job, profile="ful")
    with pytest.raises(SettingsError, match="models is 5, expected an even number"):
        planned(job, models=5)
    with pytest.raises(SettingsError, match="models is 1000000, expected a whole number from 4 to 4096"):
        planned(job, profile="full", models=1_000_000)
    assert planned(job, profile="full", models=5).trainings == 15, "what is wrong for one profile is right for another"
    job = write_job(job.parent, oracle=SHADOW, audit={"recipe": RECIPE})
    assert [planned(job, profile=name).models for name in ("quick", "standard", "full")] == [0, 8, 16]
    (tmp_path / "outside").mkdir()
    (job.parent / "forgotten" / "audit-models").symlink_to(tmp_path / "outside")
    with pytest.raises(OutputError, match=r"audit-models is a link, expected a folder.*remove the link"):
        planned(job, profile="full")
    assert planned(job, profile="quick").models == 0


@pytest.mark.parametrize("kind", ["bert", "program.pt2"])
def test_models_that_do_not_say_how_to_begin(tmp_path: Path, kind: str) -> None:
    folder = write_world(tmp_path / "job")
    if kind == "bert":
        job = write_bert(tmp_path / "bert-job")
    else:
        (folder / kind).write_bytes(program())
        job = write_job(folder, model={"weights": kind, "factory": None})
    with pytest.raises(
        SettingsError,
        match=r'says (how to train another from the start|what it was trained from).*profile = "quick" works',
    ):
        planned(job, profile="standard")


def test_runs_that_are_not_there_or_of_another_method(tmp_path: Path) -> None:
    job = write_job(write_world(tmp_path / "new"))
    with pytest.raises(
        OutputError, match=r"no finished run in .*forgotten; run forsaken unlearn .*forsaken\.toml first"
    ):
        planned(job)
    with pytest.raises(SettingsError, match=r"\[method\] of .* is not what the run"):
        planned(finished(tmp_path / "job", method={"iterations": 13}))
    (tmp_path / "job" / "forgotten" / "model.safetensors").unlink()
    with pytest.raises(DataNotFoundError, match=r"no file or folder .*model\.safetensors"):
        planned(tmp_path / "job" / "forsaken.toml")


@pytest.mark.parametrize(("name", "when"), [("forgotten/model.safetensors", "after"), ("model.safetensors", "before")])
def test_weights_that_are_not_the_certificate_s(tmp_path: Path, name: str, when: str) -> None:
    job = finished(tmp_path / "job")
    path = job.parent / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(OutputError, match=f"calls the weights {when} forgetting: its SHA-256 is {file_hash(path)}"):
        planned(job)


def test_another_seed_is_a_warning(tmp_path: Path) -> None:
    job = finished(tmp_path / "job", method={"seed": 5})
    assert any("the job file has changed since the run" in each for each in audited(job).warnings)
    assert not any("has changed" in each for each in audited(write_job(job.parent, oracle=SHADOW)).warnings)


def test_other_records_than_the_certificate_s(tmp_path: Path) -> None:
    job = finished(tmp_path / "job")
    path = job.parent / "forget.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)
    with pytest.raises(InputError, match="the 11 records to forget are not the 12 of the run's certificate"):
        audited(job)
    changed = table.set_column(1, "f1", pa.array(np.zeros(len(table), dtype=np.float32)))
    pq.write_table(changed, path)
    with pytest.raises(InputError, match="the 12 records to forget are not the 12"):
        audited(job)


def test_without_the_key_the_old_model_s_answers_are_compared(tmp_path: Path) -> None:
    job = finished(tmp_path / "job")
    assert not any("record key" in each for each in audited(job).warnings)
    (job.parent / "forgotten" / "records.key").unlink()
    told = [each for each in audited(job).warnings if "record key" in each]
    assert len(told) == 1
    assert "only the number of the records and the old model's answers to them were compared" in told[0]
    assert "put the key back" in told[0]
    path = job.parent / "forget.parquet"
    table = pq.read_table(path)
    pq.write_table(table.take(list(range(len(table)))[::-1]), path)
    assert audited(job).warnings, "the same records in another order"
    others = pq.read_table(job.parent / "strangers.parquet").slice(0, 12)
    pq.write_table(others, path)
    with pytest.raises(InputError, match="the 12 records to forget are not the 12 of the run's certificate"):
        audited(job)


def test_labels_that_were_not_learnt_are_a_warning(tmp_path: Path) -> None:
    job = finished(tmp_path / "job")
    assert not any("the model before gives only" in each for each in audited(job).warnings)
    path = job.parent / "forget.parquet"
    table = pq.read_table(path)
    wrong = pa.array((table["label"].to_numpy() + 1) % 4)
    pq.write_table(table.set_column(table.column_names.index("label"), "label", wrong), path)
    told = [each for each in audited(job).warnings if "the model before gives only" in each]
    assert len(told) == 1
    assert told[0].startswith("the model before gives only 0 of the 12 records to forget the labels")


def test_remedies_are_in_the_words_of_the_job(tmp_path: Path) -> None:
    job = finished(tmp_path / "job")
    found = audited(write_job(job.parent))
    told = " ".join(found.warnings)
    assert "name an [oracle]" in told
    assert "[oracle] retrained" in told
    assert not re.search(r"\w=", told), told
    assert json.loads((job.parent / "forgotten" / "audit-quick.json").read_bytes())["warnings"] == list(found.warnings)


def test_errors_of_the_audit_are_in_the_words_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Audit:
        raise InputError("none is left", field="nonmembers", remedy="give nonmembers=(inputs, labels)")

    monkeypatch.setattr("forsaken.jobs.audit.audit", fails)
    with pytest.raises(
        InputError, match=r"^none is left; give \[audit\] nonmembers with labels, or more \[data\] test"
    ):
        audited(finished(tmp_path / "job"))


def test_paths_that_lead_nowhere_are_all_told(tmp_path: Path) -> None:
    job = finished(tmp_path / "job", audit={"nonmembers": "none.parquet"})
    (job.parent / "test.parquet").unlink()
    with pytest.raises(DataNotFoundError) as caught:
        audited(job)
    assert "none.parquet" in str(caught.value)
    assert "test.parquet" in str(caught.value)


def test_labels_that_are_missing_are_all_told(tmp_path: Path) -> None:
    job = finished(tmp_path / "job", audit={"recipe": RECIPE, "nonmembers": "strangers.parquet"})
    for name in ("forget", "train", "strangers"):
        path = job.parent / f"{name}.parquet"
        pq.write_table(pq.read_table(path).drop_columns("label"), path)
    (job.parent / "forgotten" / "records.key").unlink()  # the hashes are of the records with their labels
    with pytest.raises(InputError) as caught:
        evidence(job)
    for name in ("forget", "train", "[audit] nonmembers"):
        assert f"\n  - {name} has no labels" in str(caught.value)
    assert "- test" not in str(caught.value)


# --- the samples -----------------------------------------------------------------------------------------------------


def sets_of(job: Job, *, audit: bool) -> Any:
    with user_code(job.folder):
        return read_sets(job, load_model(job), Reader(job), audit=audit)


def test_the_method_was_given_the_same_and_all_the_rest_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forsaken.jobs.sets._JUDGED", 20)
    job = read_job(write_job(write_world(tmp_path / "job"), method={"seed": 3}))
    plain, whole = sets_of(job, audit=False), sets_of(job, audit=True)
    for name in ("forget", "reference", "retain"):
        assert torch.equal(getattr(plain, name).inputs, getattr(whole, name).inputs)
    assert (len(plain.kept), len(whole.kept)) == (20, 70)
    everything = torch.cat([whole.kept.inputs, whole.retain.inputs, whole.forget.inputs])
    train = torch.from_numpy(world().sets["train"][0])
    assert torch.equal(everything.sum(1).sort().values, train.sum(1).sort().values)


def test_strangers_are_for_the_audit_alone(tmp_path: Path) -> None:
    audit = {"nonmembers": "strangers.parquet"}
    job = read_job(write_job(write_world(tmp_path / "job"), oracle=SHADOW, audit=audit))
    assert sets_of(job, audit=False).nonmembers is None
    found = sets_of(job, audit=True)
    assert np.array_equal(found.nonmembers.inputs.numpy(), world().sets["strangers"][0])
    assert np.array_equal(found.nonmembers.labels.numpy(), world().sets["strangers"][1])
    assert len(found.shadow_nonmembers) == 120, "the oracle has nonmembers of its own"


def test_strangers_are_neither_trained_on_nor_used_nor_test(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    parts = [pq.read_table(folder / f"{name}.parquet") for name in ("strangers", "kept", "reference")]
    pq.write_table(pa.concat_tables([parts[0], parts[1].slice(0, 7), parts[2].slice(0, 4)]), folder / "mixed.parquet")
    found = sets_of(read_job(write_job(folder, audit={"nonmembers": "mixed.parquet"})), audit=True)
    assert len(found.nonmembers) == 40
    assert any("7 of 51 [audit] nonmembers samples are in the training data" in note for note in found.notes)
    assert any("[audit] nonmembers samples are also given to the method" in note for note in found.notes)
    found = sets_of(read_job(write_job(folder, audit={"nonmembers": {"of": "test", "count": 30}})), audit=True)
    assert (len(found.nonmembers), len(found.test)) == (30, 50)
    assert any("30 of 80 test samples are also among [audit] nonmembers" in note for note in found.notes)
    with pytest.raises(InputError, match=r"every test sample is also among \[audit\] nonmembers"):
        sets_of(read_job(write_job(folder, audit={"nonmembers": {"of": "test"}})), audit=True)
    with pytest.raises(
        InputError, match=r"every \[audit\] nonmembers sample is also .* split the reference set: one part"
    ):
        sets_of(read_job(write_job(folder, audit={"nonmembers": "reference.parquet"})), audit=True)


# --- the result ------------------------------------------------------------------------------------------------------


def test_quick_says_what_the_run_said_and_more(tmp_path: Path) -> None:
    job = finished(tmp_path / "job")
    out = job.parent / "forgotten"
    before = digests(job.parent)
    found = audited(job)
    run_said = result_of(out)
    assert found["fr"].value == pytest.approx(run_said["fr"])
    assert found["cfr"].value == pytest.approx(run_said["cfr"])
    assert found["accuracy"].value == pytest.approx(run_said["accuracy_after"])
    assert found["forget_confidence"].before == pytest.approx(run_said["forget_confidence"]["before"])
    assert found["fr"].interval is not None
    after = digests(job.parent)
    assert after.pop("forgotten/audit-quick.json")
    assert after == before, "nothing else was touched"
    saved = json.loads((out / "audit-quick.json").read_bytes())
    assert saved == found.to_dict()
    assert found.settings["weights_sha256"] == file_hash(out / "model.safetensors")
    assert found.settings["certificate_sha256"] == Certificate.read(out / "certificate.json").sha256
    assert any("50 were drawn" in note for note in found.settings["notes"])


@pytest.mark.parametrize("was", [None, "elsewhere"])
def test_workers_find_the_modules_beside_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: str | None
) -> None:
    import forsaken.jobs.audit as place

    if was is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", was)
    seen: list[str] = []
    real = place.audit

    def told(*given: Any, **named: Any) -> Audit:
        seen.extend(os.environ["PYTHONPATH"].split(os.pathsep))
        return real(*given, **named)

    monkeypatch.setattr(place, "audit", told)
    job = finished(tmp_path / "job")
    audited(job)
    assert seen == [str(job.parent.resolve()), *([was] if was else [])]
    assert os.environ.get("PYTHONPATH") == was


def test_labels_of_a_correction_are_not_taken_for_what_was_learnt(tmp_path: Path) -> None:
    job = write_job(write_world(tmp_path / "job"), method={"target": "corrected"})
    run(job)
    names = {number.name for number in audited(job).numbers}
    assert "forget_confidence" in names
    assert "forget_accuracy" not in names


def test_the_cost_is_counted_and_nothing_written(tmp_path: Path) -> None:
    job = finished(tmp_path / "job", audit={"recipe": RECIPE})
    before = digests(job.parent)
    plan = planned(job, profile="full", models=4)
    with user_code(job.parent):
        cost = audit_cost(plan)
        free = audit_cost(planned(job, profile="quick"))
    assert (cost["trainings"], cost["unlearnings"]) == (12, 4)
    assert cost["unlearning_seconds"] == pytest.approx(4 * plan.certificate.seconds.unlearning)
    assert cost["training_seconds"] > 0
    assert cost["seconds"] == pytest.approx(cost["training_seconds"] + cost["unlearning_seconds"])
    assert cost["counts"]["kept"] == 70
    assert set(cost["counts"]) == {"forget", "kept", "retain", "test", "reference", "nonmembers"}
    assert cost["not_counted"] == "reading, the measuring of each model, the attacks and the page"
    assert (free["trainings"], free["seconds"]) == (0, 0)
    assert digests(job.parent) == before


@pytest.mark.parametrize(("clock", "seconds_a_step"), [([0, 3, 10, 10.1, 20, 20.3], 0.01), ([0, 50], 10)])
def test_slow_first_steps_are_not_multiplied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float], seconds_a_step: float
) -> None:
    """After a warm-up 5 and 25 steps are timed: set-up counts once. Where the warm-up took long it is all there is."""
    job = finished(tmp_path / "job", audit={"recipe": RECIPE | {"epochs": 100}})
    times = iter(clock)
    monkeypatch.setattr("forsaken.jobs.references.time.perf_counter", lambda: next(times))
    with user_code(job.parent):
        cost = audit_cost(planned(job, profile="standard", models=4))
    steps = 100 * 5  # 132 training records in batches of 32
    set_up = 0.05 if len(clock) > 2 else 0.0  # what 5 steps took beyond 5 times a step
    assert cost["training_seconds"] == pytest.approx(4 * (set_up + steps * seconds_a_step))


def test_a_new_run_removes_the_audit_of_the_old_one_unless_it_fails(tmp_path: Path) -> None:
    job = finished(tmp_path / "job")
    out = job.parent / "forgotten"
    audited(job)
    with pytest.raises(InputError), output(out, force=True):
        raise InputError("no")
    assert (out / "audit-quick.json").is_file()
    (out / "audit-models" / "x").mkdir(parents=True)
    (out / "mine.txt").write_text("mine")
    run(job, force=True)
    names = {path.name for path in out.iterdir()}
    assert "mine.txt" in names
    assert not names & {"audit-quick.json", "audit-models"}


@pytest.mark.parametrize("name", ["audit-quick.json", "audit-models"])
def test_weights_may_not_be_called_like_an_audit(tmp_path: Path, name: str) -> None:
    job = read_job(write_job(tmp_path))
    odd = job.model_copy(update={"model": job.model.model_copy(update={"weights": name})})
    with pytest.raises(OutputError, match=f"the weights are called {name}"):
        outputs_of(odd)


# --- estimators ------------------------------------------------------------------------------------------------------


def test_estimators_are_fitted_like_the_one_that_is_there() -> None:
    inputs, labels = world().sets["kept"]
    names = np.array(["ash", "birch", "cedar", "fir"])[labels]
    own = LogisticRegression(C=0.3, max_iter=500, random_state=1).fit(inputs, names)
    samples = Samples(torch.from_numpy(inputs), torch.from_numpy(labels))
    again = Refit(own)(samples, 7)
    assert again is not own
    assert again.random_state == 7
    assert again.C == 0.3
    assert np.allclose(again.coef_, own.coef_, atol=1e-3)
    assert (again.predict(inputs) == own.predict(inputs)).all()
    assert own.random_state == 1


def test_a_class_that_only_the_forgotten_samples_have() -> None:
    inputs, labels = world().sets["kept"]
    own = LogisticRegression(max_iter=500).fit(inputs, labels)
    few = Samples(torch.from_numpy(inputs), torch.from_numpy(labels)).rows(np.flatnonzero(labels != 2))
    with pytest.raises(InputError, match="would learn 3 of the 4 classes"):
        Refit(own)(few, 0)


def test_evidence_of_a_network_trains_by_the_recipe_and_the_factory(tmp_path: Path) -> None:
    job = finished(tmp_path / "job", audit={"recipe": RECIPE})
    training = evidence(job).training
    assert training.recipe == Recipe(**RECIPE)  # type: ignore[union-attr]
    shapes = [tuple(weight.shape) for weight in training.build().parameters()]  # type: ignore[union-attr]
    assert shapes == [tuple(tensor.shape) for tensor in world().states["model"].values()]
    assert evidence(job, "quick").training is None
    assert replace(training, device="cpu") == training  # type: ignore[type-var]
