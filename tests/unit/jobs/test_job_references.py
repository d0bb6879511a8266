"""[references] of a job file: the table that is made, what a run does with it, and what is said of it afterwards."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import skops.io
import torch
from filelock import FileLock
from job_folders import (
    RECIPE,
    build,
    digests,
    result_of,
    run,
    table,
    tabled,
    tables,
    toml,
    world,
    write_bert,
    write_job,
    write_world,
)
from sklearn.linear_model import LogisticRegression
from test_certificate import KEY, make
from torch import nn

from forsaken import Curvature
from forsaken._keys import new_record_key, read_record_key, write_record_key
from forsaken.auditing.held_out import HeldOut
from forsaken.errors import (
    DataError,
    DataNotFoundError,
    InputError,
    ModelError,
    NotHeldOutError,
    NothingForgottenError,
    OutputError,
    SettingsError,
)
from forsaken.jobs.audit import audit_cost, audit_job, held_out_of, plan_audit, read_inputs
from forsaken.jobs.certificate import Certificate, ReferenceTable, file_hash
from forsaken.jobs.code import user_code
from forsaken.jobs.configuration import by_references, method_of, read_job
from forsaken.jobs.dry_run import dry_run
from forsaken.jobs.output import inputs_of, outputs_of
from forsaken.jobs.references import extend_table, fit_table, show_table
from forsaken.jobs.verify import verify_certificate
from forsaken.models.weights import fingerprint
from forsaken.references.rows import as_keys
from forsaken.references.table import References, spread_of
from forsaken.types import Tick
from forsaken.unlearning.forsaken.method import Forsaken

TABLE, SECRET = "references.safetensors", "references.safetensors.key"
AUDIT = {"recipe": RECIPE}


def fit(job: Path, **given: Any) -> dict[str, Any]:
    read = read_job(job)
    with user_code(read.folder):
        return fit_table(read, **given)


def extend(job: Path, **given: Any) -> dict[str, Any]:
    read = read_job(job)
    with user_code(read.folder):
        return extend_table(read, **given)


def dry(job: Path) -> dict[str, Any]:
    read = read_job(job)
    with user_code(read.folder):
        return dry_run(read)


def part(folder: Path, rows: slice, **columns: Any) -> None:
    """Write these rows of the training data, with further columns."""
    inputs, labels = (each[rows] for each in world().sets["train"])
    whole = table(inputs, labels, first=1000 + (rows.start or 0))
    for name, values in columns.items():
        whole = whole.append_column(name, pa.array(values[rows]))
    pq.write_table(whole, folder / "train.parquet")


def x(name: str = "train") -> torch.Tensor:
    return torch.from_numpy(world().sets[name][0])


def private(path: Path) -> bool:
    return stat.S_IMODE(path.stat().st_mode) == 0o600


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


# --- the table of the job file ---------------------------------------------------------------------------------------


def problems(folder: Path, **changes: Any) -> list[str]:
    (folder / "forsaken.toml").write_text(toml(tables(**changes)), encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        read_job(folder / "forsaken.toml")
    return [line.partition(": ")[2] for line in str(caught.value).split("\n  - ")[1:]]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"folds": 1}, "[references] folds is 1, expected a whole number from 2 to 64, such as 4"),
        ({"folds": 65}, "[references] folds is 65, expected a whole number from 2 to 64"),
        ({"folds": True}, "[references] folds is true, expected a whole number"),
        ({"file": ""}, "[references] file is '', expected a path such as \"references.safetensors\""),
        ({"group": ""}, "[references] group is '', expected the name of a column of train, such as"),
        ({"keep_models": 1}, "[references] keep_models is 1, expected true or false"),
        ({"views": -1}, "[references] views is -1, expected a whole number from 0 to 64, such as 3"),
        ({"views": 65}, "[references] views is 65, expected a whole number from 0 to 64"),
        ({"views": 1.5}, "[references] views is 1.5, expected a whole number"),
        ({"view": "mirror"}, '[references] view is \'mirror\', expected "mirror-shift" or "word-dropout"'),
        ({"views": 3}, '[references] view is missing, expected what the views are, such as "mirror-shift"'),
        ({"seed": -1}, "[references] seed is -1, expected a whole number from 0 to"),
        ({"fold": 3}, "[references] unknown key 'fold'; did you mean 'folds'? (known: file, folds, group, keep_models"),
    ],
)
def test_a_wrong_setting_is_told_in_words(tmp_path: Path, settings: dict[str, Any], expected: str) -> None:
    (found,) = problems(tmp_path, references=settings)
    assert found.startswith(expected)


def test_the_target_needs_the_table(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, method={"target": "out-of-fold"})
    assert found == (
        "[method] target is 'out-of-fold', which goes by a table of references that the job does not name; add a table "
        "[references], and make its file with: forsaken references fit"
    )
    (found,) = problems(tmp_path, data={"train": None}, references={"group": "person"})
    assert found.startswith("[references] group names a column of train, which [data] does not give")
    (found,) = problems(tmp_path, method={"stop": "calibrated"}, references={})
    assert 'stop="calibrated" needs reference samples' in found


@pytest.mark.parametrize("name", ["mirror-shift", "word-dropout"])
def test_views_go_by_a_name_or_by_the_recipe(tmp_path: Path, name: str) -> None:
    named = read_job(write_job(tmp_path, references={"views": 3, "view": name}))
    assert named.references is not None
    assert (named.references.views, named.references.view) == (3, name)
    recipe = read_job(write_job(tmp_path, references={"views": 3}, audit={"recipe": RECIPE | {"augmentation": name}}))
    assert recipe.audit.recipe is not None
    assert recipe.audit.recipe.augmentation == name
    (found,) = problems(tmp_path, audit={"recipe": RECIPE | {"augmentation": "mirror"}})
    assert found.startswith('[audit] recipe.augmentation is \'mirror\', expected "mirror-shift" or "word-dropout"')


def test_the_table_decides_the_target(tmp_path: Path) -> None:
    bare = read_job(write_job(tmp_path))
    assert method_of(bare).settings["target"] == "class-mean"
    assert "references" not in bare.to_dict(), "the hash of a job without references stays what it was"
    job = read_job(write_job(tmp_path, references={}))
    assert method_of(job).settings == Forsaken.out_of_fold(iterations=12).settings
    assert method_of(job).settings["target"] == "out-of-fold"
    assert method_of(job, iterations=3).settings["iterations"] == 3
    assert by_references(job)
    assert job.to_dict()["references"]["folds"] == 4
    named = read_job(write_job(tmp_path, references={}, method={"target": "uniform"}))
    assert not by_references(named)
    other = read_job(write_job(tmp_path, references={}, method={"name": "fine-tune", "iterations": None}))
    assert not by_references(other)


def test_files_that_a_run_reads_and_writes(tmp_path: Path) -> None:
    job = read_job(write_job(tmp_path, references={}))
    assert {tmp_path / TABLE, tmp_path / SECRET} <= set(inputs_of(job))
    assert {TABLE, SECRET, "records.key"} <= set(outputs_of(job))
    keyed = read_job(write_job(tmp_path, references={}, output={"record_key": "mine.key"}))
    assert tmp_path / SECRET not in set(inputs_of(keyed))
    assert TABLE in outputs_of(keyed)
    assert SECRET not in outputs_of(keyed)
    odd = read_job(write_job(tmp_path, references={"file": "t"}, model={"weights": TABLE}))
    with pytest.raises(OutputError, match=r"the weights are called references\.safetensors"):
        outputs_of(odd)


# --- making it -------------------------------------------------------------------------------------------------------


def test_a_table_of_all_training_data(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    (folder / "forget.parquet").unlink()
    job = write_job(folder, references={"folds": 3}, audit=AUDIT)
    found = fit(job)
    wanted = {"rows": 132, "classes": 4, "folds": 3, "by": "row", "steps": 15, "seed": 0, "trainings": 3}
    assert {name: found[name] for name in wanted} == wanted
    assert found["break_even"] == 4, "three trainings are made up for by the fourth request"
    assert found["seconds_a_request"]["10"] == pytest.approx(found["training_seconds"] / 10)
    assert private(folder / TABLE)
    assert private(folder / SECRET)
    assert left_over(folder) == []
    read = References.load(folder / TABLE)
    said = read.logits(x())
    own = safetensors.torch.load_file(folder / "model.safetensors")
    assert not torch.allclose(said, x() @ own["0.weight"].T @ own["2.weight"].T)
    assert len(read.logits(x("forget"))) == 12
    with pytest.raises(NotHeldOutError):
        read.logits(x("test"))


def test_a_fold_s_model_is_asked_about_what_it_never_saw(tmp_path: Path) -> None:
    from forsaken.models.logits import predict_logits

    job = tabled(tmp_path / "job", keep_models=True)
    read = read_job(job)
    with user_code(read.folder):
        import model  # type: ignore[import-not-found]

        kept = References.load(job.parent / TABLE, build=model.net)
    for at, network in enumerate(kept.models):
        rows = np.flatnonzero(kept.entries.fold == at)
        assert torch.allclose(predict_logits(network, x()[rows]), kept.entries.logits[rows], atol=1e-5)


def test_a_table_is_never_overwritten_by_itself(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    before = digests(job.parent)
    with pytest.raises(OutputError, match=r"references\.safetensors is there already and is not overwritten; add new"):
        fit(job)
    assert digests(job.parent) == before
    write_job(job.parent, references={"folds": 3}, audit=AUDIT)
    assert fit(job, force=True)["folds"] == 3
    after = digests(job.parent)
    assert after[SECRET] == before[SECRET], "the key stays"
    assert after[TABLE] != before[TABLE]


def test_the_key_that_the_job_names(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    write_record_key(folder / "mine.key", new_record_key())
    job = write_job(folder, references={"folds": 2}, audit=AUDIT, output={"record_key": "mine.key"})
    assert fit(job)["key"] == str(folder / "mine.key")
    assert not (folder / SECRET).exists()
    run(job)
    assert not (folder / "forgotten" / SECRET).exists()
    assert not (folder / "forgotten" / "records.key").exists()
    write_record_key(folder / SECRET, new_record_key())
    with pytest.raises(SettingsError, match=r"references\.safetensors\.key holds another key than .*mine\.key"):
        fit(job, force=True)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["[audit] recipe is missing, expected how the model was trained, such as recipe = {"]),
        (
            {"data": {"train": None}, "audit": AUDIT},
            ["[data] train is missing, expected all of the training data"],
        ),
        (
            {"data": {"train": {"path": "train.parquet", "count": 20}}},
            ["[audit] recipe is missing", "[data] train.count takes a part of the training data, expected all"],
        ),
        (
            {"model": {"weights": "model.pt2", "factory": None}, "data": {"train": None}},
            ["[model] weights is a .pt2 program, and nothing in it says how to train another", "[data] train is"],
        ),
    ],
)
def test_what_cannot_be_trained_is_told_at_once(tmp_path: Path, changes: dict[str, Any], expected: list[str]) -> None:
    (tmp_path / "model.pt2").write_bytes(b"")
    job = write_job(tmp_path, references={}, **changes)
    with pytest.raises(SettingsError) as caught:
        fit(job)
    found = str(caught.value).split("\n  - ")[1:]
    assert len(found) == len(expected)
    assert all(one.startswith(words) for one, words in zip(found, expected, strict=True)), found


def test_a_hugging_face_folder_is_refused(tmp_path: Path) -> None:
    job = write_bert(tmp_path / "job", references={}, audit=AUDIT)
    with pytest.raises(SettingsError, match=r"the folder of a Hugging Face model.*how to train another"):
        fit(job)


def test_places_that_are_taken(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    before = digests(folder)

    def refused(words: str, **settings: Any) -> None:
        with pytest.raises(OutputError, match=words):
            fit(write_job(folder, references=settings, audit=AUDIT), force=True)

    refused("which the job reads for something else", file="model.safetensors")
    refused("which the job reads for something else", file="train.parquet")
    refused("there is no folder", file="nowhere/table.safetensors")
    (folder / "place").mkdir()
    refused("is a folder, expected the name of a file", file="place")
    (folder / f".{TABLE}.unfinished").symlink_to(folder / "place")
    refused("is a link, expected a folder")
    assert {name: value for name, value in digests(folder).items() if name in before} == before
    assert not list((folder / "place").iterdir())


def test_only_one_fit_at_a_time(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    place = folder / f".{TABLE}.unfinished"
    place.mkdir()
    with FileLock(place / ".forsaken.lock"), pytest.raises(OutputError, match="another run is writing"):
        fit(write_job(folder, references={}, audit=AUDIT))
    assert not (folder / TABLE).exists()


def test_data_that_cannot_be_learnt(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    job = write_job(folder, references={"folds": 2}, audit=AUDIT)
    whole = pq.read_table(folder / "train.parquet")
    pq.write_table(whole.drop_columns(["label"]), folder / "train.parquet")
    with pytest.raises(InputError, match="the training data have no labels"):
        fit(job)
    inputs, labels = world().sets["train"]
    pq.write_table(table(inputs, labels + 1), folder / "train.parquet")
    with pytest.raises(InputError, match="labels of train run from 1 to 4, but the model's 4 classes are 0 to 3"):
        fit(job)
    (folder / "train.parquet").unlink()
    with pytest.raises(DataNotFoundError, match=r"train\.parquet"):
        fit(job)
    assert not (folder / TABLE).exists()
    assert left_over(folder) == []


def test_a_model_that_fails_in_training(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    (folder / "model.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Sequential):\n    def forward(self, inputs):\n"
        "        if self.training:\n            raise RuntimeError('secret of a row')\n"
        "        return super().forward(inputs)\n\n\n"
        "def net():\n    return Net(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))\n"
    )
    with pytest.raises(ModelError) as caught:
        fit(write_job(folder, references={"folds": 2}, audit=AUDIT))
    assert "secret" not in str(caught.value)
    assert not (folder / TABLE).exists()


class Stop(BaseException):
    """Stops a fit as a signal does."""


def test_a_killed_fit_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import forsaken.references.fitting as place

    folder = write_world(tmp_path / "job")
    # 132 rows in five folds: two of 27, three of 26, and only models of equally many rows are trained together.
    job = write_job(folder, references={"folds": 5}, audit=AUDIT)

    def stop(tick: Tick) -> None:
        if tick.stage == place.STAGE and tick.text.startswith("networks 3 to"):
            raise Stop

    with pytest.raises(Stop):
        fit(job, progress=stop)
    assert not (folder / TABLE).exists()
    assert not (folder / SECRET).exists()
    left = folder / f".{TABLE}.unfinished"
    assert stat.S_IMODE(left.stat().st_mode) == 0o700
    assert len(list(left.glob("fold-*"))) == 2
    trained: list[int] = []
    real = place.train_many

    def counted(*given: Any, seeds: list[int], **named: Any) -> Any:
        trained.extend(seeds)
        return real(*given, seeds=seeds, **named)

    monkeypatch.setattr(place, "train_many", counted)
    assert fit(job)["folds"] == 5
    assert len(trained) == 3, "two of five were there"
    assert left_over(folder) == []
    assert len(References.load(folder / TABLE).logits(x())) == 132


# --- what a request needs beside the logits ---------------------------------------------------------------------------


def network(folder: Path, weights: str = "model.safetensors") -> nn.Module:
    model = build()
    model.load_state_dict(safetensors.torch.load_file(folder / weights))
    return model


def test_a_table_has_the_curvature_of_the_model_and_the_spread_on_references(tmp_path: Path) -> None:
    folder = tabled(tmp_path / "job", keep_models=True).parent
    read = References.load(folder / TABLE, build=build)
    expected = Curvature.fit(network(folder), x())
    assert read.curvature is not None
    assert (read.curvature.weights, read.curvature.rows) == (fingerprint(network(folder)), 132)
    for name, own in expected.factors.items():
        torch.testing.assert_close(read.curvature.factors[name].inputs.matrix, own.inputs.matrix)
    with torch.no_grad():
        said = [model(x("reference")) for model in (network(folder), *read.models)]
    assert read.spread == pytest.approx(spread_of(said[0], said[1:]), rel=1e-4)
    shown = show_table(folder / TABLE)
    assert (shown["curvature_rows"], shown["spread"], shown["views"]) == (132, read.spread, 0)


def test_references_that_were_trained_on_tell_no_spread(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    inputs, labels = (
        np.concatenate(pair) for pair in zip(world().sets["train"], world().sets["reference"], strict=True)
    )
    shuffled = table(inputs, labels).select(["label", *(f"f{at}" for at in reversed(range(12)))])
    pq.write_table(shuffled, folder / "both.parquet")
    settings = {"audit": AUDIT, "references": {"folds": 2}}
    plain = fit(write_job(folder, **settings))
    assert (
        fit(write_job(folder, **settings, data={"reference": "both.parquet"}), force=True)["spread"] == plain["spread"]
    )
    train = {"path": "train.parquet"}
    assert fit(write_job(folder, **settings, data={"reference": train}), force=True)["spread"] is None
    assert fit(write_job(folder, **settings, data={"reference": None}), force=True)["spread"] is None


def test_references_by_count_need_no_samples_to_forget(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    (folder / "forget.parquet").unlink()
    settings = {"audit": AUDIT, "references": {"folds": 2}}
    of_test = fit(write_job(folder, **settings, data={"reference": {"of": "test", "count": 30}}))
    whole = fit(write_job(folder, **settings, data={"reference": {"of": "test"}}), force=True)
    assert of_test["spread"] == whole["spread"]
    drawn = {"test": {"path": "test.parquet", "count": 50}, "reference": {"of": "test"}}
    assert fit(write_job(folder, **settings, data=drawn), force=True)["spread"] is None, "it goes by what is forgotten"


@pytest.mark.parametrize("own", [True, False])
def test_views_are_asked_about_and_forgotten_too(tmp_path: Path, own: bool) -> None:
    folder = write_world(tmp_path / "job")
    recipe = RECIPE if own else RECIPE | {"augmentation": "word-dropout"}
    views = {"views": 2, "view": "word-dropout"} if own else {"views": 2}
    job = write_job(folder, references={"folds": 2, **views}, audit={"recipe": recipe})
    assert fit(job)["views"] == 2
    read = References.load(folder / TABLE)
    assert read.views is not None
    assert (read.views.count, read.views.name, read.entries.views.shape) == (2, "word-dropout", (132, 2, 4))
    result = run(job)
    assert (result["facts"]["views"], result["facts"]["optimiser"]) == (2, "gauss-newton")
    assert References.load(folder / "forgotten" / TABLE).entries.views.shape == (120, 2, 4)
    certificate = Certificate.read(folder / "forgotten" / "certificate.json")
    assert certificate.references is not None
    assert (certificate.references.views, certificate.references.view) == (2, "word-dropout")
    ready = read_job(job)
    with user_code(folder):
        plan = plan_audit(ready, folder / "forgotten", profile="full", models=4)
        again = held_out_of(ready, certificate, read_inputs(plan).sets)
        assert again == HeldOut(2, "row", views=2, view="word-dropout")
        if own:
            assert audit_job(plan)["u_lira_auc"].value is not None


def test_views_of_a_function_cannot_be_made_again(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    run(job)
    plan = plan_audit(read_job(job), job.parent / "forgotten", profile="full", models=4)
    stated = plan.certificate.references.model_copy(update={"views": 2, "view": "custom"})
    with pytest.raises(SettingsError, match=r'were made by a function.*profile = "standard" works'):
        held_out_of(read_job(job), plan.certificate.model_copy(update={"references": stated}), None)


def test_the_curvature_is_handed_on_for_the_new_weights(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job", data={"forget": {"of": "train", "ids": [120, 121, 122]}})
    folder = job.parent
    first = run(job)
    assert (first["facts"]["optimiser"], first["stopped"]) == ("gauss-newton", "tolerance")
    new = network(folder, "forgotten/model.safetensors")
    handed = References.load(folder / "forgotten" / TABLE).curvature
    assert handed is not None
    assert handed.weights == fingerprint(new) != fingerprint(network(folder))
    left = np.delete(np.arange(132), [120, 121, 122])
    expected = Curvature.fit(network(folder), x()[left])
    assert handed.rows == expected.rows == 129
    for name, own in expected.factors.items():
        for side in ("inputs", "outputs"):
            mine, wanted = getattr(handed.factors[name], side).matrix, getattr(own, side).matrix
            torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
    second = write_job(
        folder,
        "second.toml",
        model={"weights": "forgotten/model.safetensors"},
        data={"train": "forgotten/cleaned.parquet", "forget": {"of": "train", "ids": [120, 121]}},
        references={"file": f"forgotten/{TABLE}"},
        output={"folder": "again"},
    )
    assert dry(second)["memorised"]
    result = run(second)
    assert (result["facts"]["optimiser"], result["stopped"]) == ("gauss-newton", "tolerance")
    assert not any("curvature" in note for note in result["notes"])
    last = References.load(folder / "again" / TABLE).curvature
    assert last is not None
    assert (last.weights, last.rows) == (fingerprint(network(folder, "again/model.safetensors")), 127)


@pytest.mark.parametrize("fails", [False, True])
def test_kept_models_do_not_keep_the_curvature_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    job = tabled(tmp_path / "job", keep_models=True)

    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError

    if fails:
        monkeypatch.setattr("forsaken.jobs.references.method_of", lambda _: failing)
    assert bool(run(job)["warnings"]) is fails
    handed = References.load(job.parent / "forgotten" / TABLE).curvature
    assert handed is not None
    assert (handed.weights, handed.rows) == (fingerprint(network(job.parent, "forgotten/model.safetensors")), 120)


def test_other_methods_hand_the_curvature_on_too(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job", method={"name": "gradient-ascent", "iterations": None})
    run(job)
    handed = References.load(job.parent / "forgotten" / TABLE).curvature
    assert handed is not None
    assert (handed.weights, handed.rows) == (fingerprint(network(job.parent, "forgotten/model.safetensors")), 120)
    strange = {"forget": {"path": "test.parquet", "ids": [0, 1]}, "test": None}
    run(
        write_job(
            job.parent, "strange.toml", references={}, data=strange, output={"folder": "strange"},
            method={"name": "gradient-ascent", "iterations": None},
        )
    )  # fmt: skip
    handed = References.load(job.parent / "strange" / TABLE).curvature
    assert handed is not None
    assert (handed.weights, handed.rows) == (fingerprint(network(job.parent, "strange/model.safetensors")), 132)


def test_a_table_of_other_weights(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job", model={"weights": "retrained.safetensors"})
    folder = job.parent
    for act in (run, dry):
        with pytest.raises(InputError) as caught:
            act(job)
        told = str(caught.value)
        assert told.startswith("the curvature was measured for other weights")
        assert told.endswith(
            "; name the table of references that lies beside these weights, or measure the curvature anew with: "
            f"forsaken references extend {job}"
        )
    assert not (folder / "forgotten").exists()
    plain = run(write_job(folder, "plain.toml", model={"weights": "retrained.safetensors"}, references={},
                          method={"optimiser": "owlqn"}, output={"folder": "plain"}))  # fmt: skip
    assert any("was measured for other weights, and was left out of the new table" in note for note in plain["notes"])
    assert References.load(folder / "plain" / TABLE).curvature is None
    found = extend(job)
    assert (found["added"], found["added_seconds"], found["curvature_rows"]) == (0, 0.0, 132)
    assert "the curvature was measured for the model as it is now" in found["notes"]
    assert run(job)["facts"]["optimiser"] == "gauss-newton"
    before = (folder / TABLE).read_bytes()
    assert extend(job)["notes"] == []
    assert (folder / TABLE).read_bytes() == before


@pytest.mark.parametrize("keep", [False, True])
def test_new_rows_are_in_the_curvature(tmp_path: Path, keep: bool) -> None:
    folder = write_world(tmp_path / "job")
    part(folder, slice(10, 132))
    job = write_job(folder, references={"folds": 2, "keep_models": keep}, audit=AUDIT)
    assert fit(job)["curvature_rows"] == 122
    part(folder, slice(0, 132))
    assert extend(job)["curvature_rows"] == 132
    assert run(job)["facts"]["optimiser"] == "gauss-newton"


def test_a_table_without_a_curvature_works_as_before(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    read = References.load(job.parent / TABLE)
    read.curvature = None
    read.save(job.parent / TABLE)
    result = run(job)
    assert "optimiser" not in result["facts"]
    assert any("the table of references has no curvature" in note for note in result["notes"])
    assert References.load(job.parent / "forgotten" / TABLE).curvature is None
    assert dry(job)["memorised"]


# --- groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["names", "numbers"])
def test_rows_of_one_person_share_a_fold(tmp_path: Path, kind: str) -> None:
    folder = write_world(tmp_path / "job")
    people = [at // 4 if kind == "numbers" else f"person {at // 4}" for at in range(132)]
    part(folder, slice(0, 132), person=people)
    job = write_job(folder, references={"folds": 3, "group": "person"}, audit=AUDIT)
    found = fit(job)
    assert (found["by"], found["group"]) == ("group", "person")
    read = References.load(folder / TABLE)
    folds = read.entries.fold.reshape(33, 4)
    assert (folds == folds[:, :1]).all()
    assert len(set(folds[:, 0])) == 3
    # The forget set is another file, without that column; nobody takes the column for a feature.
    result = run(job)
    assert result["facts"]["references"]["by"] == "group"
    certificate = Certificate.read(folder / "forgotten" / "certificate.json")
    assert certificate.records.read_as is not None
    assert certificate.records.read_as.group == "person"
    pq.write_table(pq.read_table(folder / "train.parquet").slice(120), folder / "mine.parquet")
    checked = verify_certificate(
        certificate,
        folder / "forgotten" / "model.safetensors",
        records=folder / "mine.parquet",
        record_key=read_record_key(folder / "forgotten" / "records.key"),
    )
    assert checked.passed
    assert checked.checks[2].passed


def test_groups_that_are_not_there(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    job = write_job(folder, references={"folds": 2, "group": "person"}, audit=AUDIT)
    with pytest.raises(InputError, match=r"group is 'person', which is no column of \[data\] train; name one that"):
        fit(job)
    inputs, labels = world().sets["train"]
    np.savez(folder / "train.npz", inputs=inputs, labels=labels)
    with pytest.raises(InputError, match="group is 'person', which is no column"):
        fit(write_job(folder, "npz.toml", references={"group": "person"}, audit=AUDIT, data={"train": "train.npz"}))
    part(folder, slice(0, 132), person=["one"] * 132)
    with pytest.raises(InputError, match="there are 1 groups that share no row, too few for 2 folds"):
        fit(job)
    assert not (folder / TABLE).exists()


# --- estimators ------------------------------------------------------------------------------------------------------


def estimator(folder: Path, **changes: Any) -> Path:
    inputs, labels = world().sets["train"]
    model = LogisticRegression(C=100.0, max_iter=300).fit(inputs, labels)
    skops.io.dump(model, folder / "model.skops")
    return write_job(folder, model={"weights": "model.skops", "factory": None}, **changes)


@pytest.mark.parametrize("keep", [False, True])
def test_an_estimator_from_its_table_to_the_next_one(tmp_path: Path, keep: bool) -> None:
    folder = write_world(tmp_path / "job")
    part(folder, slice(20, 132))
    job = estimator(folder, references={"folds": 3, "keep_models": keep})
    found = fit(job)
    assert (found["rows"], found["models_kept"], found["steps"]) == (112, 3 * keep, None)
    part(folder, slice(0, 132))
    found = extend(job)
    assert (found["added"], found["added_trainings"]) == (20, 0 if keep else 1)
    result = run(job)
    assert result["facts"]["target"] == "out-of-fold"
    assert any("models kept in the table of references had learnt" in note for note in result["notes"]) is keep
    assert show_table(folder / "forgotten" / TABLE)["rows"] == 120


def test_a_class_that_is_in_one_fold_alone(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    part(folder, slice(0, 132), kind=world().sets["train"][1])
    with pytest.raises(InputError, match=r"one model would learn [23] of the 4 classes"):
        fit(estimator(folder, references={"folds": 2, "group": "kind"}))


# --- a run -----------------------------------------------------------------------------------------------------------


def test_a_run_goes_by_the_table(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job", data={"reference": None})
    folder, before = job.parent, digests(job.parent)
    result = run(job)
    assert result["facts"]["target"] == "out-of-fold"
    assert result["target"]["target"] == "out-of-fold"
    assert result["settings"]["target"] == "out-of-fold"
    assert result["facts"]["references"]["rows"] == 132
    assert any("name it in [references] file from now on, and delete the old one" in note for note in result["notes"])
    after = {name: value for name, value in digests(folder).items() if not name.startswith("forgotten/")}
    assert after == before, "the old table is as it was"
    out = folder / "forgotten"
    assert private(out / TABLE)
    left = References.load(out / TABLE)
    assert (len(left), left.forgotten) == (120, 12)
    with pytest.raises(NotHeldOutError, match="12 of 12"):
        left.logits(x("forget"))
    old = References.load(folder / TABLE)
    kept = x("kept")
    assert torch.equal(left.logits(kept), old.logits(kept))
    key = read_record_key(folder / SECRET)
    assert read_record_key(out / "records.key") == read_record_key(out / SECRET) == key
    stated = Certificate.read(out / "certificate.json").references
    assert stated == ReferenceTable(
        sha256=file_hash(folder / TABLE),
        rows=132,
        folds=2,
        by="row",
        steps=15,
        claimed=0,
        forgotten=0,
        models_kept=0,
        models_owe=0,
    )


def test_one_request_after_another(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job", data={"forget": {"of": "train", "ids": [120, 121, 122]}})
    run(job)
    second = write_job(
        job.parent,
        "second.toml",
        model={"weights": "forgotten/model.safetensors"},
        data={"train": "forgotten/cleaned.parquet", "forget": {"of": "train", "ids": [120, 121]}},
        references={"file": f"forgotten/{TABLE}"},
        output={"folder": "again"},
    )
    run(second)
    certificate = Certificate.read(job.parent / "again" / "certificate.json")
    assert certificate.references is not None
    assert (certificate.references.rows, certificate.references.forgotten) == (129, 3)
    assert len(certificate.chain.links) == 2
    assert len(References.load(job.parent / "again" / TABLE)) == 127
    again = write_job(job.parent, "third.toml", references={"file": f"forgotten/{TABLE}"})
    with pytest.raises(OutputError, match="is read by this job and would be overwritten"):
        run(again, force=True)


def test_without_its_table_a_run_says_how_to_make_it(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    (job.parent / TABLE).unlink()
    with pytest.raises(DataNotFoundError) as caught:
        run(job)
    assert str(job.parent / TABLE) in str(caught.value)
    assert f"is made by: forsaken references fit {job}" in str(caught.value)
    with pytest.raises(DataNotFoundError, match=r"there is no table of references .*forsaken references fit"):
        extend(job)
    job = tabled(tmp_path / "keyless")
    (job.parent / SECRET).unlink()
    with pytest.raises(DataNotFoundError, match="the key of the table of references, without which no row is found"):
        run(job)
    with pytest.raises(DataNotFoundError, match=r"there is no key .*put it back, or make a new table with: forsaken"):
        extend(job)  # and not: make a new key
    write_job(job.parent, references={"folds": 2}, audit=AUDIT, output={"record_key": "mine.key"})
    for act in (run, dry, extend):
        with pytest.raises(DataNotFoundError, match=r"mine\.key.*\s.*put it back, or"):
            act(job)
    assert not (job.parent / "forgotten").exists()


def test_records_that_were_forgotten_before(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    assert run(job)["warnings"] == []
    new = {"weights": "forgotten/model.safetensors"}
    later = {"model": new, "references": {"file": f"forgotten/{TABLE}"}, "output": {"folder": "later"}}
    again = write_job(job.parent, "again.toml", **later)
    with pytest.raises(
        NotHeldOutError, match=r"12 rows were forgotten and left it: where these records are among them"
    ):
        run(again)
    other = write_job(job.parent, "other.toml", **later, data={"forget": {"of": "train", "ids": [0, 1]}})
    (warning,) = run(other)["warnings"]
    assert warning.startswith("12 of 130 training samples that were to be kept are not in the table of references: wh")
    clean = write_job(
        job.parent, "clean.toml", model=new, references=later["references"], output={"folder": "clean"},
        data={"train": "forgotten/cleaned.parquet", "forget": {"of": "train", "ids": [0, 1]}},
    )  # fmt: skip
    assert run(clean)["warnings"] == []


def test_what_a_stopped_fit_left_is_told(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    assert not any("unfinished" in note for note in run(job)["notes"])
    (job.parent / f".{TABLE}.unfinished").mkdir()
    assert any(".unfinished holds what models of a fit that was stopped" in n for n in run(job, force=True)["notes"])


def test_records_that_are_not_in_the_table(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    part(folder, slice(0, 125))
    job = write_job(folder, references={"folds": 2}, audit=AUDIT)
    fit(job)
    part(folder, slice(0, 132))
    with pytest.raises(NotHeldOutError) as caught:
        run(job)
    told = str(caught.value)
    assert "7 of 12 records to forget are not in the table of references" in told
    assert f"forsaken references extend {job}" in told
    assert "is the key" not in told
    assert caught.value.rows == tuple(range(5, 12))
    assert not (folder / "forgotten").exists()
    found = dry(job)
    assert found["references"] == {"rows": 125, "in_table": 5, "not_in_table": 7}
    assert (found["memorised"], found["seconds"]) == (None, None)
    assert any("a run would be refused: 7 of 12" in note for note in found["notes"])
    found = extend(job)
    assert (found["added"], found["added_trainings"], found["rows"], found["trainings"]) == (7, 1, 132, 3)
    assert left_over(folder) == []
    assert private(folder / TABLE)
    assert dry(job)["references"] == {"rows": 132, "in_table": 12, "not_in_table": 0}
    assert not (folder / "forgotten").exists()
    run(job)


def test_tables_that_do_not_fit(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    folder = job.parent
    good = (folder / TABLE).read_bytes()
    (folder / SECRET).write_text(new_record_key().hex())
    with pytest.raises(NotHeldOutError, match=r"12 of 12 .*none is: is .*references\.safetensors\.key the key of this"):
        run(job)
    with pytest.raises(InputError, match=r"none of the 132 rows of \[data\] train is in .* is not the key"):
        extend(job)
    for content in (b"", b"rubbish", good[:500], (folder / "model.safetensors").read_bytes()):
        (folder / TABLE).write_bytes(content)
        with pytest.raises(DataError, match=r"references\.safetensors"):
            run(job)
        with pytest.raises(DataError, match=r"references\.safetensors"):
            show_table(folder / TABLE)
    (folder / TABLE).unlink()
    References.claimed(x(), torch.zeros(132, 3), key=read_record_key(folder / SECRET)).save(folder / TABLE)
    for act in (run, extend, dry):
        with pytest.raises(InputError, match="tells 3 classes apart, the model 4: it was made for another model"):
            act(job)
    (folder / SECRET).write_text("no key")
    with pytest.raises(SettingsError, match="is no record key"):
        run(job)
    assert not (folder / "forgotten").exists()
    assert left_over(folder) == []


def test_handed_in_references_are_called_so(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    folder = job.parent
    (folder / TABLE).unlink()
    References.claimed(x(), torch.zeros(132, 4), key=read_record_key(folder / SECRET)).save(folder / TABLE)
    result = run(job)
    assert result["target"]["target"] == "out-of-fold, claimed"
    stated = Certificate.read(folder / "forgotten" / "certificate.json").references
    assert stated is not None
    assert (stated.by, stated.claimed, stated.folds) == ("claim", 132, 0)
    out = folder / "forgotten"
    checked = verify_certificate(Certificate.read(out / "certificate.json"), out / "model.safetensors").checks[-1]
    assert ", 132 of them the word of whoever handed them in" in checked.words
    assert "did not go by" not in checked.words


def test_another_target_keeps_the_table_up_to_date(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job", method={"target": "class-mean"})
    result = run(job)
    assert result["facts"]["target"] == "class-mean"
    assert "the references were not used: the target is class-mean" in result["notes"]
    out = job.parent / "forgotten"
    assert len(References.load(out / TABLE)) == 120
    checked = verify_certificate(Certificate.read(out / "certificate.json"), out / "model.safetensors").checks[-1]
    assert checked.words.endswith(", which the method did not go by")
    strange = write_job(
        job.parent, "strange.toml", references={}, method={"name": "gradient-ascent", "iterations": None},
        data={"forget": {"path": "test.parquet", "ids": [0, 1]}, "test": None}, output={"folder": "strange"},
    )  # fmt: skip
    notes = run(strange)["notes"]
    assert "the references were not used: gradient-ascent does not go by them" in notes
    assert "2 of 2 forgotten records were not in the table of references" in notes
    assert len(References.load(job.parent / "strange" / TABLE)) == 132


def test_a_table_does_not_outlive_its_run(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    run(job)
    out = job.parent / "forgotten"
    assert (out / TABLE).exists()
    run(write_job(job.parent), force=True)
    assert not (out / TABLE).exists()
    assert not (out / SECRET).exists()
    assert "references" not in json.loads((out / "certificate.json").read_bytes())


# --- kept models -----------------------------------------------------------------------------------------------------


def test_kept_models_forget_too(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job", keep_models=True)
    folder = job.parent
    result = run(job)
    told = "2 of the 2 models kept in the table of references had learnt some of the records, and were made to forget"
    assert any(note.startswith(told) for note in result["notes"])
    assert result["warnings"] == []
    before, after = (safetensors.torch.load_file(each / TABLE) for each in (folder, folder / "forgotten"))
    for at in range(2):
        name = f"model.{at}/0.weight"
        assert not torch.equal(before[name], after[name]), "each fold's model learnt some of the twelve"
    stated = Certificate.read(folder / "forgotten" / "certificate.json").references
    assert stated is not None
    assert (stated.models_kept, stated.models_owe) == (2, 0)
    assert (show_table(folder / "forgotten" / TABLE)["models_kept"], left_over(folder)) == (2, [])


def test_a_kept_model_that_never_saw_the_records_is_left_alone(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    part(folder, slice(0, 132), person=[min(at, 120) for at in range(132)])  # one person has the last twelve rows
    job = write_job(folder, references={"folds": 2, "group": "person", "keep_models": True}, audit=AUDIT)
    fit(job)
    assert any(note.startswith("1 of the 2 models kept") for note in run(job)["notes"])


@pytest.mark.parametrize("error", [RuntimeError, MemoryError])
def test_a_kept_model_that_fails_spoils_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    job = tabled(tmp_path / "job", keep_models=True)

    def failing(*_: Any, **__: Any) -> Any:
        raise error("record 7.654321")

    monkeypatch.setattr("forsaken.jobs.references.method_of", lambda _: failing)
    told = " ".join(run(job)["warnings"])
    assert "could not be made to forget: " in told
    assert "7.654321" not in told
    assert show_table(job.parent / "forgotten" / TABLE)["models_owe"] == 12


def test_new_rows_cost_no_training_with_kept_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_world(tmp_path / "job")
    part(folder, slice(10, 132))
    fit(write_job(folder, references={"folds": 2, "keep_models": True}, audit=AUDIT))
    part(folder, slice(0, 132))
    monkeypatch.setattr("forsaken.references.table.trained_on", None)
    job = write_job(folder, references={"folds": 2, "keep_models": True})  # not even a recipe is needed
    found = extend(job)
    assert (found["added"], found["added_trainings"], found["models_kept"]) == (10, 0, 2)
    again = extend(job)
    assert (again["added"], again["added_seconds"], again["rows"]) == (0, 0.0, 132)


def test_what_kept_models_owe_is_seen_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tabled(tmp_path / "job", keep_models=True)
    out = job.parent / "forgotten"

    def failing(*_: Any, **__: Any) -> Any:
        raise NothingForgottenError("it left every weight as it was")

    with monkeypatch.context() as patched:
        patched.setattr("forsaken.jobs.references.method_of", lambda _: failing)
        result = run(job)
    told = " ".join(result["warnings"])
    assert "could not be made to forget: it left every weight as it was" in told
    assert "the models kept in the table of references still remember 12 forgotten records" in told
    assert result_of(out)["warnings"] == result["warnings"]
    certificate = Certificate.read(out / "certificate.json")
    assert certificate.references is not None
    assert certificate.references.models_owe == 12
    checked = verify_certificate(certificate, out / "model.safetensors")
    assert checked.passed
    assert checked.owed == 12
    assert checked.verdict.endswith(
        "But models that were kept beside its references still remember 12 forgotten records."
    )
    assert "still remember 12 forgotten records" in checked.checks[-1].words
    (note,) = show_table(out / TABLE)["notes"]
    assert "still remember 12 forgotten records" in note
    # The debt goes along with the table.
    later = write_job(
        job.parent, "later.toml", model={"weights": "forgotten/model.safetensors"},
        data={"forget": {"of": "train", "ids": [3]}},
        references={"file": f"forgotten/{TABLE}"}, output={"folder": "later"},
    )  # fmt: skip
    assert any("still remember 12 forgotten" in note for note in dry(later)["notes"])
    run(later)
    stated = Certificate.read(job.parent / "later" / "certificate.json").references
    assert stated is not None
    assert stated.models_owe == 12


# --- extending -------------------------------------------------------------------------------------------------------


def test_an_extension_that_does_not_fit(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    folder = job.parent
    before = (folder / TABLE).read_bytes()
    part(folder, slice(0, 132), person=[f"p{at}" for at in range(132)])
    with pytest.raises(SettingsError, match=r"group is 'person', but the folds of .* were drawn by row; say what was"):
        extend(write_job(folder, "other.toml", references={"group": "person"}, audit=AUDIT))
    pq.write_table(table(*world().sets["members"]), folder / "train.parquet")
    with pytest.raises(InputError, match=r"none of the 120 rows of \[data\] train is in"):
        extend(job)
    inputs, labels = (np.concatenate(pair) for pair in zip(world().sets["train"], world().sets["test"], strict=True))
    pq.write_table(table(inputs, labels), folder / "train.parquet")
    with pytest.raises(SettingsError, match=r"\[audit\] recipe is missing"):
        extend(write_job(folder, "bare.toml", references={}))
    with pytest.raises(SettingsError, match=r"\[data\] train is missing"):
        extend(write_job(folder, "none.toml", references={}, data={"train": None}))
    with pytest.raises(SettingsError, match=r"has no table \[references\]; add one"):
        extend(write_job(folder, "no.toml"))
    assert (folder / TABLE).read_bytes() == before
    assert extend(job)["added"] == 80


def test_forgotten_rows_that_are_still_in_the_data_are_warned_of(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    run(job)
    shutil.copy(job.parent / "forgotten" / TABLE, job.parent / TABLE)
    found = extend(job)
    assert found["added"] == 12
    assert found["notes"][0].startswith("12 rows were forgotten and left this table: where [data] train still holds")


def test_groups_stay_together_when_rows_come_later(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    people = [f"person {at % 20}" for at in range(132)]
    part(folder, slice(12, 132), person=people)
    job = write_job(folder, references={"folds": 2, "group": "person", "keep_models": True}, audit=AUDIT)
    fit(job)
    part(folder, slice(0, 132), person=people)
    assert extend(job)["added"] == 12
    read = References.load(folder / TABLE)
    assert read.entries.groups is not None
    folds: dict[bytes, set[int]] = {}
    for name, fold in zip(as_keys(read.entries.groups), read.entries.fold.tolist(), strict=True):
        folds.setdefault(name, set()).add(fold)
    assert all(len(each) == 1 for each in folds.values())


# --- certificates ----------------------------------------------------------------------------------------------------

STATED = {
    "sha256": "0" * 64, "rows": 9, "folds": 4, "by": "row", "steps": None, "claimed": 0, "forgotten": 1,
    "models_kept": 4, "models_owe": 0,
}  # fmt: skip
# Made by the version before there were references.
OLD_SHA256 = "07fc0a17fa8faa5fa6e388fbc12f40257c21f16b3e20e36409cf7b6123af9185"
OLD_SIGNATURE = "K7274y/UJTGh4tCZjmbiYy3dknDlOIc3sdMxTD8/w4n2j4AcBAexCPN955O4k7NOdPZQBNNuE+epAf3JYBZjDA=="


def test_older_certificates_stay_as_they_are() -> None:
    certificate = make(make(), old="new", new="newer").sign(KEY)
    assert certificate.sha256 == OLD_SHA256
    assert certificate.signature is not None
    assert certificate.signature.value == OLD_SIGNATURE
    assert "references" not in certificate.to_dict()
    assert "group" not in certificate.to_dict()["records"]["read_as"]
    assert Certificate.from_dict(certificate.to_dict()).check_signature(KEY.public_key()) == "valid"


def test_newer_certificates_are_signed_with_their_references() -> None:
    certificate = make(references=ReferenceTable(**STATED)).sign(KEY)
    content = certificate.to_dict()
    assert content["references"] == STATED
    assert Certificate.from_dict(content) == certificate
    assert Certificate.from_dict(content).check_signature(KEY.public_key()) == "valid"
    owing = content | {"references": STATED | {"models_owe": 3}}
    assert Certificate.from_dict(owing).check_signature(KEY.public_key()) == "invalid"
    without = {name: value for name, value in content.items() if name != "references"}
    assert Certificate.from_dict(without).check_signature(KEY.public_key()) == "invalid"


@pytest.mark.parametrize(
    "stated",
    [
        None,
        3,
        {},
        STATED | {"rows": -1},
        STATED | {"by": "chance"},
        STATED | {"more": 1},
        STATED | {"rows": 1.5},
        STATED | {"views": 0},
        STATED | {"views": None},
        STATED | {"view": ""},
    ],
)
def test_references_that_are_not_sound(stated: Any) -> None:
    with pytest.raises(OutputError, match="is not sound"):
        Certificate.from_dict(make().to_dict() | {"references": stated})


def test_there_is_one_way_to_say_nothing() -> None:
    content = make().to_dict()
    content["records"]["read_as"]["group"] = None
    with pytest.raises(OutputError, match="is not sound"):
        Certificate.from_dict(content)


# --- audits ----------------------------------------------------------------------------------------------------------


def test_an_audit_of_such_a_run(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    run(job)
    (job.parent / TABLE).unlink()  # as the run advised
    (job.parent / SECRET).unlink()
    read = read_job(job)
    out = job.parent / "forgotten"
    with user_code(read.folder):
        found = audit_job(plan_audit(read, out))
    assert found.profile == "quick"
    assert plan_audit(read, out, profile="standard").models == 8
    other = read_job(write_job(job.parent, "other.toml", audit=AUDIT))
    with pytest.raises(SettingsError, match=r"\[method\] of .* is not what the run in"):
        plan_audit(other, out)


@pytest.mark.parametrize("by", ["row", "group"])
def test_a_full_audit_makes_references_like_those_of_the_table(tmp_path: Path, by: str) -> None:
    if by == "row":
        job = tabled(tmp_path / "job")
    else:
        folder = write_world(tmp_path / "job")
        part(folder, slice(0, 132), person=[f"person {min(at, 120)}" for at in range(132)])  # one has the last twelve
        job = write_job(folder, references={"folds": 2, "group": "person"}, audit=AUDIT)
        fit(job)
    run(job)
    (job.parent / TABLE).unlink()  # as the run advised
    read = read_job(job)
    plan = plan_audit(read, job.parent / "forgotten", profile="full", models=4)
    assert (plan.trainings, plan.references) == (4 * (3 + 2), 8)
    with user_code(read.folder):
        cost = audit_cost(plan)
        found = audit_job(plan)
    told = "trains 4 originals, each unlearned, {} references for these, and 8 retrained models"
    assert (cost["told"], cost["trainings"], cost["references"]) == (told.format("at most 8"), 20, 8)
    assert found.cost["references"] == (8 if by == "row" else 4), "the forgotten records are one person's"
    assert found.cost["told"] == told.format(found.cost["references"])
    assert found["u_lira_auc"].value is not None


@pytest.mark.parametrize("train", ["whole", "cleaned"])
def test_an_audit_draws_folds_by_the_groups_of_the_table(tmp_path: Path, train: str) -> None:
    folder = write_world(tmp_path / "job")
    person = [min(at, 120) for at in range(132)]
    part(folder, slice(0, 132), person=person)
    whole = pq.read_table(folder / "train.parquet")
    pq.write_table(whole.slice(120), folder / "forget.parquet")
    copy = whole.slice(0, 1).set_column(whole.column_names.index("person"), "person", pa.array([1]))
    pq.write_table(pa.concat_tables([whole, copy]), folder / "train.parquet")  # the second person has the first's row
    job = write_job(folder, references={"folds": 2, "group": "person"}, audit=AUDIT)
    fit(job)
    run(job)
    if train == "cleaned":
        shutil.copy(folder / "forgotten" / "cleaned.parquet", folder / "train.parquet")
    read = read_job(job)
    with user_code(read.folder):
        plan = plan_audit(read, folder / "forgotten", profile="full", models=4)
        found = held_out_of(read, plan.certificate, read_inputs(plan).sets)
    assert found is not None
    assert found.groups is not None
    assert len(set(found.groups[-12:])) == 1, "one person's, whether the rows are still in the data or not"
    assert len(set(found.groups)) == 120, "and two people who share a row are one"


def test_samples_of_a_function(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    (folder / "source.py").write_text(
        "import pyarrow.parquet as pq\nimport numpy as np\n\n\ndef load(name):\n"
        "    table = pq.read_table(f'{name}.parquet')\n"
        "    inputs = np.stack([table[f'f{at}'].to_numpy() for at in range(12)], axis=1)\n"
        "    return inputs.astype(np.float32), table['label'].to_numpy()\n".replace("f'{name}", f"f'{folder}/{{name}}")
    )
    sets = {name: {"python": "source:load", "arguments": {"name": name}} for name in ("train", "forget")}
    job = write_job(folder, references={"folds": 2}, audit=AUDIT, data=sets)
    assert fit(job)["rows"] == 132
    assert run(job)["facts"]["target"] == "out-of-fold"
