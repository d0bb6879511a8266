"""[references] of a job file: the table that is made, what a run does with it, and what is said of it afterwards."""

from __future__ import annotations

import re
import shutil
import stat
from dataclasses import replace
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
from torch import nn

from forsaken import Curvature
from forsaken._keys import new_record_key, read_record_key, write_record_key
from forsaken.auditing.held_out import HeldOut
from forsaken.errors import (
    DataError,
    DataNotFoundError,
    ForsakenError,
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
from forsaken.jobs.references import extend_table, fit_table, show_table, when_it_pays
from forsaken.jobs.verify import verify_certificate
from forsaken.models.logits import predict_logits
from forsaken.models.weights import fingerprint
from forsaken.references.fitting import Costs
from forsaken.references.rows import as_keys
from forsaken.references.store import write_table
from forsaken.references.table import References, spread_of
from forsaken.references.worth import Worth
from forsaken.types import Tick
from forsaken.unlearning.forsaken.method import Forsaken
from forsaken.unlearning.forsaken.optimisers import Schedule

TABLE, SECRET = "references.safetensors", "references.safetensors.key"
AUDIT = {"recipe": RECIPE}


def within(act: Any, job: Path, **given: Any) -> Any:
    read = read_job(job)
    with user_code(read.folder):
        return act(read, **given)


def fit(job: Path, **given: Any) -> dict[str, Any]:
    return within(fit_table, job, **given)  # type: ignore[no-any-return]


def extend(job: Path) -> dict[str, Any]:
    return within(extend_table, job)  # type: ignore[no-any-return]


def dry(job: Path) -> dict[str, Any]:
    return within(dry_run, job)  # type: ignore[no-any-return]


def part(folder: Path, rows: slice, **columns: Any) -> None:
    """Write these rows of the training data, with further columns."""
    inputs, labels = (each[rows] for each in world().sets["train"])
    whole = table(inputs, labels, first=1000 + (rows.start or 0))
    for name, values in columns.items():
        whole = whole.append_column(name, pa.array(values[rows]))
    pq.write_table(whole, folder / "train.parquet")


def fitted(folder: Path, rows: slice = slice(0, 132), people: Any = None, **settings: Any) -> Path:
    """A new job folder with a table of these training rows, by person where `people` says whose each row is."""
    write_world(folder)
    part(folder, rows, **({} if people is None else {"person": people}))
    own = {"folds": 2} | ({} if people is None else {"group": "person"}) | settings
    job = write_job(folder, references=own, audit=AUDIT)
    fit(job)
    return job


def later(folder: Path, **changes: Any) -> Path:
    """A second request on the weights, the data and the table that the first one left."""
    return write_job(
        folder,
        "later.toml",
        model={"weights": "forgotten/model.safetensors"},
        data={"train": "forgotten/cleaned.parquet", "forget": {"of": "train", "ids": [0, 1]}} | changes,
        references={"file": f"forgotten/{TABLE}"},
        output={"folder": "later"},
    )


def x(name: str = "train") -> torch.Tensor:
    return torch.from_numpy(world().sets[name][0])


def network(folder: Path, weights: str = "model.safetensors") -> nn.Module:
    model = build()
    model.load_state_dict(safetensors.torch.load_file(folder / weights))
    return model


def stated(out: Path) -> ReferenceTable:
    found = Certificate.read(out / "certificate.json").references
    assert found is not None
    return found


def curvature(place: Path) -> Curvature:
    found = References.load(place / TABLE, build=build).curvature
    assert found is not None
    return found


def private(path: Path) -> bool:
    return stat.S_IMODE(path.stat().st_mode) == 0o600


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


# --- the table of the job file ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"folds": 1}, '[references] folds is 1, expected "auto", or a whole number from 2 to 512, such as 4'),
        ({"folds": True}, '[references] folds is true, expected "auto", or a whole number'),
        ({"folds": "many"}, "[references] folds is 'many', expected \"auto\""),
        ({"budget": 2}, "[references] budget is 2, expected how many trainings in all, from 3 to 512"),
        ({"file": ""}, "[references] file is '', expected a path such as \"references.safetensors\""),
        ({"group": ""}, "[references] group is '', expected the name of a column of train, such as"),
        ({"keep_models": 1}, "[references] keep_models is 1, expected true or false"),
        ({"views": 65}, "[references] views is 65, expected a whole number from 0 to 64"),
        ({"view": "mirror"}, '[references] view is \'mirror\', expected "mirror-shift" or "word-dropout"'),
        ({"views": 3}, '[references] view is missing, expected what the views are, such as "mirror-shift"'),
        ({"seed": -1}, "[references] seed is -1, expected a whole number from 0 to"),
        ({"fold": 3}, "[references] fold is unknown, expected one of budget, file, folds, group, keep_models"),
        ({"data": {"train": None}, "group": "person"}, "[references] group names a column of train, which [data] does"),
        (
            {"references": None, "method": {"target": "out-of-fold"}},
            "[method] target is 'out-of-fold', which goes by a table of references that the job does not name; add a",
        ),
    ],
    ids=str,
)
def test_a_wrong_setting_is_told_in_words(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    own = {name: value for name, value in changes.items() if name not in ("data", "method", "references")}
    others = {name: value for name, value in changes.items() if name not in own and value is not None}
    job = tables(**others, **({} if "references" in changes else {"references": own}))
    (tmp_path / "forsaken.toml").write_text(toml(job), encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        read_job(tmp_path / "forsaken.toml")
    (found,) = (line.partition(": ")[2] for line in str(caught.value).split("\n  - ")[1:])
    assert found.startswith(expected)


def test_the_table_decides_the_target_and_the_files(tmp_path: Path) -> None:
    bare = read_job(write_job(tmp_path))
    assert method_of(bare).settings["target"] == "class-mean"
    assert "references" not in bare.to_dict(), "the hash of a job without references stays what it was"
    job = read_job(write_job(tmp_path, references={}))
    assert method_of(job).settings == Forsaken.out_of_fold(schedule=Schedule(iterations=12)).settings
    assert method_of(job, iterations=3).settings["iterations"] == 3
    assert by_references(job)
    assert job.to_dict()["references"]["folds"] == "auto"
    assert not by_references(read_job(write_job(tmp_path, references={}, method={"target": "uniform"})))
    assert {tmp_path / TABLE, tmp_path / SECRET} <= set(inputs_of(job))
    assert {TABLE, SECRET, "records.key"} <= set(outputs_of(job))
    keyed = read_job(write_job(tmp_path, references={}, output={"record_key": "mine.key"}))
    assert tmp_path / SECRET not in set(inputs_of(keyed))
    assert SECRET not in outputs_of(keyed)
    odd = read_job(write_job(tmp_path, references={"file": "t"}, model={"weights": TABLE}))
    with pytest.raises(OutputError, match=r"the weights are called references\.safetensors"):
        outputs_of(odd)


# --- making it -------------------------------------------------------------------------------------------------------


def test_a_run_says_whether_the_table_pays() -> None:
    table = References.claimed(torch.eye(3), torch.eye(3) - 0.5)
    assert when_it_pays(table, 1.0) == [], "nothing was trained"
    table.origin = replace(table.origin, costs=Costs(38.4, 4))
    (told,) = when_it_pays(table, 5.8)
    assert "with the 38.4 s of the table counted, it is cheaper from request 11 on" in told
    assert told.endswith("if it serves so many before it must be fitted anew")
    (told,) = when_it_pays(table, 9.7)
    assert (
        told == "forgetting took 9.7 s, and retraining takes about 9.6 s: for requests like this one, retrain instead"
    )


def test_a_table_of_all_training_data(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    (folder / "forget.parquet").unlink()
    job = write_job(folder, references={"folds": 3, "keep_models": True}, audit=AUDIT)
    found = fit(job)
    wanted = {"rows": 132, "classes": 4, "folds": 3, "by": "row", "steps": 15, "seed": 0, "trainings": 3}
    assert {name: found[name] for name in wanted} == wanted
    # three trainings, of which each request makes up for 0.9 or 0.5
    assert found["break_even"] == {"0.1": 4, "0.5": 7}
    assert found["seconds_a_request"]["10"] == pytest.approx(found["training_seconds"] / 10)
    assert private(folder / TABLE)
    assert private(folder / SECRET)
    assert left_over(folder) == []
    read = References.load(folder / TABLE, build=build)
    assert len(read.logits(x("forget"))) == 12
    with pytest.raises(NotHeldOutError):
        read.logits(x("test"))
    for at, model in enumerate(read.models):  # each row's logits are those of the model that never saw it
        rows = np.flatnonzero(read.entries.fold == at)
        assert torch.allclose(predict_logits(model, x()[rows]), read.entries.logits[rows], atol=1e-5)
    expected = Curvature.fit(network(folder), x())
    assert (curvature(folder).weights, curvature(folder).rows) == (fingerprint(network(folder)), 132)
    for name, own in expected.factors.items():
        torch.testing.assert_close(curvature(folder).factors[name].inputs.matrix, own.inputs.matrix)
    with torch.no_grad():
        said = [model(x("reference")) for model in (network(folder), *read.models)]
    assert read.spread == pytest.approx(spread_of(said[0], said[1:]), rel=1e-4)
    shown = show_table(job)
    assert shown == show_table(folder / TABLE)
    assert (shown["curvature_rows"], shown["spread"], shown["views"]) == (132, read.spread, 0)


def test_auto_chooses_by_the_reference_samples_and_says_so(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    job = write_job(folder, references={"budget": 6}, audit=AUDIT)
    found = fit(job)
    worth = found["worth"]
    assert found["budget"] == 6 >= found["trainings"]
    assert worth["samples"] == len(x("reference"))
    assert 0.5 <= worth["low"] <= worth["auc"] <= worth["high"] <= 1
    said = [note for note in found["notes"] if "an AUC of about" in note]
    assert bool(said) == (worth["auc"] >= 0.55)
    assert show_table(job)["worth"] == worth
    result = run(job)
    told = stated(folder / "forgotten").worth
    assert told is not None
    assert told.model_dump() == {name: value for name, value in worth.items() if name != "folds_needed"}
    assert result["facts"]["references"]["worth"] == worth
    fit(write_job(folder, references={}, audit=AUDIT, data={"reference": None}), force=True)
    assert show_table(job)["folds"] == 4


def test_references_that_fall_short_are_named_before_and_after(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    path = job.parent / TABLE
    table = References.load(path)
    table.worth = Worth(0.71, 0.68, 0.74, 0.3, 0.6, 0.0, 0.1, 2, 40, 1)
    write_table(table, path)
    (said,) = show_table(job)["notes"]
    assert said.startswith("an attack that compares sample by sample would tell these reference models")
    assert "an AUC of about 0.71 (0.68 to 0.74; 0.5 is chance), since 2 folds are few; about" in said
    assert said in dry(job)["notes"]
    assert said in run(job)["warnings"]


def test_a_table_that_is_used_up_is_named_before_and_after_and_certified(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    path = job.parent / TABLE
    table = References.load(path)
    table.worth, table.forgotten = Worth(0.71, 0.68, 0.74, 0.3, 0.6, 0.0, 0.1, 8, 40, 1), 40
    table.origin = replace(table.origin, folds=8)
    assert table.refit_due
    write_table(table, path)
    said, few = show_table(job)["notes"]
    assert "since 8 folds are few" in few
    assert said.startswith("40 rows were forgotten since the table of references was fitted")
    assert f"of about {table.worth_now:.2f}, in place of 0.71 at first; fit the table anew" in said
    assert said in dry(job)["notes"]
    (after,) = [one for one in run(job)["warnings"] if "fit the table anew" in one]
    assert not after.startswith("40 "), "those of this request count as well"
    facts = stated(job.parent / "forgotten")
    assert facts.refit_due
    assert facts.worth_now > round(table.worth_now, 3)


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
        ({"data": {"train": None}, "audit": AUDIT}, ["[data] train is missing, expected all of the training data"]),
        (
            {"data": {"train": {"path": "train.parquet", "count": 20}}},
            ["[audit] recipe is missing, expected how", "[data] train.count takes a part of the training data"],
        ),
        (
            {"model": {"weights": "model.pt2", "factory": None}, "data": {"train": None}},
            ["[model] weights is a .pt2 program, and nothing in it says how to train another", "[data] train is"],
        ),
    ],
)
def test_what_cannot_be_trained_is_told_at_once(tmp_path: Path, changes: dict[str, Any], expected: list[str]) -> None:
    (tmp_path / "model.pt2").write_bytes(b"")
    with pytest.raises(SettingsError) as caught:
        fit(write_job(tmp_path, references={}, **changes))
    found = str(caught.value).split("\n  - ")[1:]
    assert len(found) == len(expected)
    assert all(one.startswith(words) for one, words in zip(found, expected, strict=True)), found
    with pytest.raises(SettingsError, match="the folder of a Hugging Face model"):
        fit(write_bert(tmp_path / "bert", references={}, audit=AUDIT))


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
    place = folder / f".{TABLE}.unfinished"
    place.symlink_to(folder / "place")
    refused("is a link, expected a folder")
    assert not list((folder / "place").iterdir())
    place.unlink()
    place.mkdir()
    with FileLock(place / ".forsaken.lock"):
        refused(rf"another run is writing to {re.escape(str(folder / TABLE))}; wait for it, or give another name")
    assert {name: value for name, value in digests(folder).items() if name in before} == before
    assert not (folder / TABLE).exists()


def test_data_and_models_that_cannot_be_learnt(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    job = write_job(folder, references={"folds": 2}, audit=AUDIT)
    inputs, labels = world().sets["train"]
    for content, words in (
        (table(inputs), "the training data have no labels"),
        (table(inputs, labels + 1), "labels of train are none of the model's 4 classes, expected 0 to 3"),
    ):
        pq.write_table(content, folder / "train.parquet")
        with pytest.raises(InputError, match=words):
            fit(job)
    (folder / "train.parquet").unlink()
    with pytest.raises(DataNotFoundError, match=r"train\.parquet"):
        fit(job)
    assert not (folder / TABLE).exists()
    assert left_over(folder) == []
    part(folder, slice(0, 132))
    (folder / "model.py").write_text(
        "from torch import nn\n\n\nclass Net(nn.Sequential):\n    def forward(self, inputs):\n"
        "        if self.training:\n            raise RuntimeError('secret of a row')\n"
        "        return super().forward(inputs)\n\n\n"
        "def net():\n    return Net(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))\n"
    )
    with pytest.raises(ModelError) as caught:
        fit(job)
    assert "secret" not in str(caught.value)
    assert not (folder / TABLE).exists()


class Stop(BaseException):
    """Stops a fit as a signal does."""


def test_a_killed_fit_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import forsaken.references.fitting as place

    folder = write_world(tmp_path / "job")
    # 132 rows in five folds: two of 27, three of 26, and only models of equally many rows are trained together. One
    # more model is trained on all rows.
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
    assert len(trained) == 4, "two of six were there"
    assert left_over(folder) == []
    assert len(References.load(folder / TABLE).logits(x())) == 132


def test_a_fit_whose_table_cannot_be_written_goes_on_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = write_job(write_world(tmp_path / "job"), references={"folds": 3}, audit=AUDIT)
    folder = job.parent

    def full(*given: Any) -> None:
        raise OutputError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("forsaken.references.store.write_table", full)
        with pytest.raises(OutputError, match="No space left"):
            fit(job)
    assert len(list((folder / f".{TABLE}.unfinished").glob("fold-*"))) == 3
    assert len(read_record_key(folder / SECRET)) == 32

    def trains(*given: Any, rows: list[Any], **named: Any) -> Any:
        assert rows == [], "every fold was finished"
        return iter(())

    monkeypatch.setattr("forsaken.references.fitting.train_many", trains)
    # The key beside the table is there now, and was the unfinished fit's: the folds are found under it.
    assert fit(job)["folds"] == 3
    assert left_over(folder) == []


@pytest.mark.parametrize("content", [b"", bytes(65)])
def test_a_key_without_content_does_not_stop_a_fit(tmp_path: Path, content: bytes) -> None:
    job = write_job(write_world(tmp_path / "job"), references={"folds": 2}, audit=AUDIT)
    left = job.parent / f".{TABLE}.unfinished"
    left.mkdir()
    for key in (left / "references.key", job.parent / SECRET):
        key.write_bytes(content)
    assert fit(job)["folds"] == 2
    assert len(References.load(job.parent / TABLE)) == 132
    (job.parent / SECRET).write_bytes(b"abcdef")
    with pytest.raises(SettingsError, match="was cut off"):
        fit(job, force=True)


def test_a_table_beside_a_stopped_fit_is_refused_with_its_leftovers_named(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    (job.parent / f".{TABLE}.unfinished").mkdir()
    with pytest.raises(OutputError, match=r"unfinished is left from a fit that was stopped: delete it"):
        fit(job)


def test_references_that_were_trained_on_or_drawn_tell_no_spread(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    (folder / "forget.parquet").unlink()
    sets = world().sets
    inputs, labels = (np.concatenate(pair) for pair in zip(sets["train"], sets["reference"], strict=True))
    shuffled = table(inputs, labels).select(["label", *(f"f{at}" for at in reversed(range(12)))])
    pq.write_table(shuffled, folder / "both.parquet")

    def spread(**data: Any) -> Any:
        return fit(write_job(folder, audit=AUDIT, references={"folds": 2}, data=data), force=True)["spread"]

    assert spread(reference="both.parquet") == spread() is not None
    assert spread(reference={"path": "train.parquet"}) is None
    assert spread(reference=None) is None
    assert spread(reference={"of": "test", "count": 30}) == spread(reference={"of": "test"})
    drawn = {"test": {"path": "test.parquet", "count": 50}, "reference": {"of": "test"}}
    assert spread(**drawn) is None, "it goes by what is forgotten"


@pytest.mark.parametrize("kind", ["names", "numbers"])
def test_rows_of_one_person_share_a_fold(tmp_path: Path, kind: str) -> None:
    people = [at // 4 if kind == "numbers" else f"person {at // 4}" for at in range(132)]
    job = fitted(tmp_path / "job", people=people, folds=3)
    folder = job.parent
    read = References.load(folder / TABLE)
    folds = read.entries.fold.reshape(33, 4)
    assert (folds == folds[:, :1]).all()
    assert len(set(folds[:, 0])) == 3
    # The forget set is another file, without that column; nobody takes the column for a feature.
    assert run(job)["facts"]["references"]["by"] == "group"
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
    part(folder, slice(0, 132), person=["one"] * 132)
    with pytest.raises(InputError, match="there are 1 groups that share no row, too few for 2 folds"):
        fit(job)
    assert not (folder / TABLE).exists()


def estimator(folder: Path, **changes: Any) -> Path:
    inputs, labels = world().sets["train"]
    model = LogisticRegression(C=100.0, max_iter=300).fit(inputs, labels)
    skops.io.dump(model, folder / "model.skops")
    return write_job(folder, model={"weights": "model.skops", "factory": None}, **changes)


@pytest.mark.parametrize("keep", [False, True])
def test_an_estimator_from_its_table_to_the_next_one(tmp_path: Path, keep: bool) -> None:
    folder = write_world(tmp_path / "job")
    part(folder, slice(20, 132))
    allow = {"allow": ["accuracy-loss"]}  # a linear model of 12 features has little room
    job = estimator(folder, references={"folds": 3, "keep_models": keep}, output=allow)
    found = fit(job)
    assert (found["rows"], found["models_kept"], found["steps"]) == (112, 3 * keep, None)
    part(folder, slice(0, 132))
    found = extend(job)
    assert (found["added"], found["added_trainings"]) == (20, 0 if keep else 1)
    result = run(job)
    assert result["facts"]["target"] == "out-of-fold"
    assert any("models kept in the table of references had learnt" in note for note in result["notes"]) is keep
    assert show_table(folder / "forgotten" / TABLE)["rows"] == 120
    part(folder, slice(0, 132), kind=world().sets["train"][1])
    with pytest.raises(InputError, match=r"one model would learn [23] of the 4 classes"):
        fit(estimator(folder, references={"folds": 2, "group": "kind"}), force=True)


# --- a run -----------------------------------------------------------------------------------------------------------


def test_a_run_goes_by_the_table(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job", data={"reference": None})
    folder, before = job.parent, digests(job.parent)
    (folder / f".{TABLE}.unfinished").mkdir()
    result = run(job)
    assert [result[name]["target"] for name in ("facts", "target", "settings")] == ["out-of-fold"] * 3
    assert result["facts"]["references"]["rows"] == 132
    told = " ".join(result["notes"])
    assert "--after uses it for the next request; delete the old table" in told
    assert ".unfinished holds what models of a fit that was stopped" in told
    after = {name: value for name, value in digests(folder).items() if not name.startswith("forgotten/")}
    assert after == before, "the old table is as it was"
    out = folder / "forgotten"
    assert private(out / TABLE)
    left = References.load(out / TABLE)
    assert (len(left), left.forgotten) == (120, 12)
    with pytest.raises(NotHeldOutError, match="12 of 12"):
        left.logits(x("forget"))
    assert torch.equal(left.logits(x("kept")), References.load(folder / TABLE).logits(x("kept")))
    key = read_record_key(folder / SECRET)
    assert read_record_key(out / "records.key") == read_record_key(out / SECRET) == key
    plain = {"folds": 2, "by": "row", "steps": 15, "claimed": 0, "forgotten": 0, "models_kept": 0, "models_owe": 0}
    assert stated(out) == ReferenceTable(sha256=file_hash(folder / TABLE), rows=132, **plain)
    run(write_job(folder), force=True)
    assert not {TABLE, SECRET} & {path.name for path in out.iterdir()}, "a table does not outlive its run"
    assert Certificate.read(out / "certificate.json").references is None


def test_one_request_after_another(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job", data={"forget": {"of": "train", "ids": [120, 121, 122]}})
    folder = job.parent
    first = run(job)
    assert (first["facts"]["optimiser"], first["stopped"]) == ("gauss-newton", "tolerance")
    handed, expected = (
        curvature(folder / "forgotten"),
        Curvature.fit(network(folder), x()[[*range(120), *range(123, 132)]]),
    )
    assert handed.weights == fingerprint(network(folder, "forgotten/model.safetensors")) != fingerprint(network(folder))
    assert handed.rows == expected.rows == 129
    for name, own in expected.factors.items():
        for side in ("inputs", "outputs"):
            mine, wanted = getattr(handed.factors[name], side).matrix, getattr(own, side).matrix
            torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
    second = later(folder)
    assert dry(second)["memorised"]
    result = run(second)
    assert (result["facts"]["optimiser"], result["stopped"]) == ("gauss-newton", "tolerance")
    (warning,) = result["warnings"]
    assert "nobody checked who signed the certificate of the request before" in warning
    assert not any("curvature" in note for note in result["notes"])
    last = curvature(folder / "later")
    assert (last.weights, last.rows) == (fingerprint(network(folder, "later/model.safetensors")), 127)
    certificate = Certificate.read(folder / "later" / "certificate.json")
    assert (stated(folder / "later").rows, stated(folder / "later").forgotten) == (129, 3)
    assert len(certificate.chain.links) == 2
    assert len(References.load(folder / "later" / TABLE)) == 127
    with pytest.raises(OutputError, match="is read by this job and would be overwritten"):
        run(write_job(folder, "third.toml", references={"file": f"forgotten/{TABLE}"}), force=True)
    with pytest.raises(InputError, match="3 of the 132 rows of train are records that request 1"):
        run(later(folder, train="train.parquet"), force=True)
    (folder / "forgotten" / "records.key").unlink()  # without it nobody can look for them
    *_, warning = run(later(folder, train="train.parquet"), force=True)["warnings"]
    assert warning.startswith("3 of 130 training samples that were to be kept are not in the table of references: wh")
    with pytest.raises(NotHeldOutError, match=r"3 rows were forgotten earlier and left it: if these are the same"):
        run(later(folder, train="train.parquet", forget={"of": "train", "ids": [120]}), force=True)


def test_other_methods_and_targets_keep_the_table_up_to_date(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job", method={"target": "class-mean"})
    folder, out = job.parent, job.parent / "forgotten"
    result = run(job)
    assert result["facts"]["target"] == "class-mean"
    assert "the references were not used: the target is class-mean" in result["notes"]
    assert len(References.load(out / TABLE)) == 120
    checked = verify_certificate(Certificate.read(out / "certificate.json"), out / "model.safetensors").checks[-1]
    assert checked.words.endswith(", which the method did not use")
    strange = write_job(
        folder, "strange.toml", references={}, method={"name": "gradient-ascent", "iterations": None},
        data={"forget": {"path": "test.parquet", "ids": [0, 1]}, "test": None},
        output={"folder": "strange", "allow": ["unknown-records", "accuracy-loss"]},
    )  # fmt: skip
    notes = run(strange)["notes"]
    assert "the references were not used: the method gradient-ascent has no use for them" in notes
    assert "2 of 2 forgotten records were not in the table of references" in notes
    assert len(References.load(folder / "strange" / TABLE)) == 132
    for place, rows in (("forgotten", 120), ("strange", 132)):
        handed = curvature(folder / place)
        assert (handed.weights, handed.rows) == (fingerprint(network(folder, f"{place}/model.safetensors")), rows)


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
        with pytest.raises(DataNotFoundError, match=r"mine\.key.*\s.*put it back, or|no key .*mine\.key"):
            act(job)
    assert not (job.parent / "forgotten").exists()


def test_records_that_are_not_in_the_table(tmp_path: Path) -> None:
    job = fitted(tmp_path / "job", slice(0, 125))
    folder = job.parent
    part(folder, slice(0, 132))
    with pytest.raises(NotHeldOutError) as caught:
        run(job)
    told = str(caught.value)
    assert "7 of 12 records to forget are not in the table of references" in told
    assert f"forsaken references extend {job}" in told
    assert "is the key" not in told
    assert caught.value.rows == tuple(range(5, 12))
    found = dry(job)
    assert found["references"] == {"rows": 125, "in_table": 5, "not_in_table": 7}
    assert (found["memorised"], found["seconds"]) == (None, None)
    assert any("a run would be refused: 7 of 12" in note for note in found["notes"])
    found = extend(job)
    assert (found["added"], found["added_trainings"], found["rows"], found["trainings"]) == (7, 1, 132, 3)
    assert found["curvature_rows"] == 132
    assert left_over(folder) == []
    assert private(folder / TABLE)
    assert dry(job)["references"] == {"rows": 132, "in_table": 12, "not_in_table": 0}
    assert not (folder / "forgotten").exists()
    assert run(job)["facts"]["optimiser"] == "gauss-newton"


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
        for act in (lambda: run(job), lambda: show_table(folder / TABLE)):
            with pytest.raises(DataError, match=r"references\.safetensors"):
                act()
    (folder / TABLE).unlink()
    References.claimed(x(), torch.zeros(132, 3), key=read_record_key(folder / SECRET)).save(folder / TABLE)
    for act in (run, extend, dry):  # type: ignore[assignment]
        with pytest.raises(InputError, match="tells 3 classes apart, the model 4: it was made for another model"):
            act(job)  # type: ignore[call-arg]
    (folder / SECRET).write_text("no key")
    with pytest.raises(SettingsError, match="is no record key"):
        run(job)
    assert not (folder / "forgotten").exists()
    assert left_over(folder) == []


def test_handed_in_references_are_called_so(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    folder, out = job.parent, job.parent / "forgotten"
    (folder / TABLE).unlink()
    References.claimed(x(), torch.zeros(132, 4), key=read_record_key(folder / SECRET)).save(folder / TABLE)
    result = run(job)
    assert result["target"]["target"] == "out-of-fold, claimed"
    assert "optimiser" not in result["facts"]
    assert any("the table of references has no curvature" in note for note in result["notes"])
    assert References.load(out / TABLE).curvature is None
    assert (stated(out).by, stated(out).claimed, stated(out).folds) == ("claim", 132, 0)
    certificate = Certificate.read(out / "certificate.json")
    checked = verify_certificate(certificate, out / "model.safetensors").checks[-1]
    assert ", 132 of them handed in by somebody and not measured here" in checked.words
    assert "did not use" not in checked.words
    with pytest.raises(SettingsError, match=r'were handed in.*profile = "standard" works'):
        held_out_of(read_job(job), certificate, None)  # type: ignore[arg-type]


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


# --- kept models -----------------------------------------------------------------------------------------------------


def test_kept_models_forget_too_unless_they_never_saw_the_records(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job", keep_models=True)
    folder, out = job.parent, job.parent / "forgotten"
    result = run(job)
    told = "2 of the 2 models kept in the table of references had learnt some of the records, and were made to forget"
    assert any(note.startswith(told) for note in result["notes"])
    assert result["warnings"] == []
    before, after = (safetensors.torch.load_file(each / TABLE) for each in (folder, out))
    for at in range(2):
        name = f"model.{at}/0.weight"
        assert not torch.equal(before[name], after[name]), "each fold's model learnt some of the twelve"
    assert (stated(out).models_kept, stated(out).models_owe) == (2, 0)
    assert (show_table(out / TABLE)["models_kept"], left_over(folder)) == (2, [])
    alone = fitted(tmp_path / "alone", people=[min(at, 120) for at in range(132)], keep_models=True)
    assert any(note.startswith("1 of the 2 models kept") for note in run(alone)["notes"]), "one person has all twelve"


@pytest.mark.parametrize("error", [RuntimeError("record 7.654321"), MemoryError(), NothingForgottenError("unmoved")])
def test_what_kept_models_owe_is_seen_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    job = tabled(tmp_path / "job", keep_models=True)
    out = job.parent / "forgotten"

    def failing(*_: Any, **__: Any) -> Any:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr("forsaken.jobs.references.method_of", lambda _: failing)
        result = run(job)
    told = " ".join(result["warnings"])
    assert "could not be made to forget: " in told
    assert "the models kept in the table of references still remember 12 forgotten records" in told
    assert "7.654321" not in told
    assert result_of(out)["warnings"] == result["warnings"]
    assert (curvature(out).weights, curvature(out).rows) == (fingerprint(network(out)), 120)
    assert stated(out).models_owe == 12
    checked = verify_certificate(Certificate.read(out / "certificate.json"), out / "model.safetensors")
    assert checked.passed
    assert checked.owed == 12
    assert checked.verdict.endswith(
        "But models that were kept beside its references still remember 12 forgotten records."
    )
    (note,) = show_table(out / TABLE)["notes"]
    assert "still remember 12 forgotten records" in note
    # The debt goes along with the table.
    assert any("still remember 12 forgotten" in note for note in dry(later(job.parent))["notes"])
    run(later(job.parent))
    assert stated(job.parent / "later").models_owe == 12


# --- extending -------------------------------------------------------------------------------------------------------


def test_new_rows_cost_no_training_with_kept_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    people = [f"person {at % 20}" for at in range(132)]
    folder = fitted(tmp_path / "job", slice(12, 132), people, keep_models=True).parent
    part(folder, slice(0, 132), person=people)
    monkeypatch.setattr("forsaken.references.fitting.train_many", None)
    job = write_job(folder, references={"folds": 2, "group": "person"})  # not even a recipe is needed
    found = extend(job)
    assert (found["added"], found["added_trainings"], found["models_kept"], found["curvature_rows"]) == (12, 0, 2, 132)
    again = extend(job)
    assert (again["added"], again["added_seconds"], again["rows"]) == (0, 0.0, 132)
    read = References.load(folder / TABLE)
    assert read.entries.groups is not None
    folds: dict[bytes, set[int]] = {}
    for name, fold in zip(as_keys(read.entries.groups), read.entries.fold.tolist(), strict=True):
        folds.setdefault(name, set()).add(fold)
    assert all(len(each) == 1 for each in folds.values()), "groups stay together"


def test_an_extension_that_does_not_fit(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    folder = job.parent
    before = (folder / TABLE).read_bytes()
    part(folder, slice(0, 132), person=[f"p{at}" for at in range(132)])

    def refused(kind: type[ForsakenError], words: str, **changes: Any) -> None:
        with pytest.raises(kind, match=words):
            extend(write_job(folder, "other.toml", **changes))

    refused(SettingsError, r"group is 'person', but the folds of .* were drawn by row; say what was",
            references={"group": "person"}, audit=AUDIT)  # fmt: skip
    pq.write_table(table(*world().sets["members"]), folder / "train.parquet")
    refused(InputError, r"none of the 120 rows of \[data\] train is in", references={}, audit=AUDIT)
    inputs, labels = (np.concatenate(pair) for pair in zip(world().sets["train"], world().sets["test"], strict=True))
    pq.write_table(table(inputs, labels), folder / "train.parquet")
    refused(SettingsError, r"\[audit\] recipe is missing", references={})
    refused(InputError, r"\[data\] names no train", references={}, data={"train": None})
    refused(SettingsError, r"has no table \[references\]; add one")
    assert (folder / TABLE).read_bytes() == before
    assert extend(job)["added"] == 80


def test_forgotten_rows_that_are_still_in_the_data_are_warned_of(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    run(job)
    shutil.copy(job.parent / "forgotten" / TABLE, job.parent / TABLE)
    found = extend(job)
    assert found["added"] == 12
    assert found["notes"][0].startswith("12 rows were forgotten and left this table: where [data] train still holds")


# --- audits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["row", "group"])
def test_a_full_audit_makes_references_like_those_of_the_table(tmp_path: Path, by: str) -> None:
    one_has_twelve = [f"person {min(at, 120)}" for at in range(132)]
    job = tabled(tmp_path / "job") if by == "row" else fitted(tmp_path / "job", people=one_has_twelve)
    run(job)
    (job.parent / TABLE).unlink()  # as the run advised
    (job.parent / SECRET).unlink()
    read, out = read_job(job), job.parent / "forgotten"
    plan = plan_audit(read, out, profile="full", models=4)
    assert (plan.trainings, plan.references) == (4 * (3 + 2), 8)
    with user_code(read.folder):
        cost = audit_cost(plan)
        found = audit_job(plan)
        assert audit_job(plan_audit(read, out)).profile == "quick"
    told = "trains 4 originals, each unlearned, {} references for these, and 8 retrained models"
    assert (cost["told"], cost["trainings"], cost["references"]) == (told.format("at most 8"), 20, 8)
    assert found.cost["references"] == (8 if by == "row" else 4), "the forgotten records are one person's"
    assert found.cost["told"] == told.format(found.cost["references"])
    assert found["u_lira_auc"].value is not None
    assert plan_audit(read, out, profile="standard").models == 8
    with pytest.raises(SettingsError, match=r"\[method\] of .* is not what the run in"):
        plan_audit(read_job(write_job(job.parent, "other.toml", audit=AUDIT)), out)


@pytest.mark.parametrize("train", ["whole", "cleaned"])
def test_an_audit_draws_folds_by_the_groups_of_the_table(tmp_path: Path, train: str) -> None:
    folder = write_world(tmp_path / "job")
    part(folder, slice(0, 132), person=[min(at, 120) for at in range(132)])
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


@pytest.mark.parametrize("own", [True, False])
def test_views_are_asked_about_forgotten_and_made_again(tmp_path: Path, own: bool) -> None:
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
    out = folder / "forgotten"
    assert References.load(out / TABLE).entries.views.shape == (120, 2, 4)
    assert (stated(out).views, stated(out).view) == (2, "word-dropout")
    ready = read_job(job)
    with user_code(folder):
        plan = plan_audit(ready, out, profile="full", models=4)
        again = held_out_of(ready, plan.certificate, read_inputs(plan).sets)
        assert again == HeldOut(2, "row", views=2, view="word-dropout")
        if own:
            assert audit_job(plan)["u_lira_auc"].value is not None
    custom = stated(out).model_copy(update={"view": "custom"})
    with pytest.raises(SettingsError, match=r'were made by a function.*profile = "standard" works'):
        held_out_of(ready, plan.certificate.model_copy(update={"references": custom}), None)  # type: ignore[arg-type]
