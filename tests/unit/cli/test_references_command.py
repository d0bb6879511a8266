"""`forsaken references`, as people type it: words, JSON and exit codes; and what other commands say of a table."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import safetensors
import safetensors.torch
from job_folders import RECIPE, Nursery, digests, forsaken, table, tabled, world, write_job, write_world

TABLE, SECRET = "references.safetensors", "references.safetensors.key"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the page, which takes a second."""
    monkeypatch.setattr(
        "forsaken.report.page.write_report", lambda place, *_: (place / "report.html").write_text("page")
    )


def test_fit_for_people(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    (folder / "forget.parquet").unlink()
    job = write_job(folder, references={"folds": 2}, audit={"recipe": RECIPE})
    ended = forsaken("references", "fit", job)
    assert ended.code == 0, ended.err
    lines = {line.strip("│ ").replace("│", "|") for line in ended.out.splitlines()}
    rows = {parts[0].strip(): parts[1].strip() for line in lines if len(parts := line.split("|")) == 2}
    assert rows["file"] == str(folder / TABLE)
    assert rows["key"] == str(folder / SECRET)
    assert (rows["rows"], rows["classes"], rows["folds"]) == ("132", "4", "2 by row")
    assert rows["steps of each training"] == "15"
    assert rows["training"].endswith(" s for 2 models")
    assert (
        "training: from request 3 on where it takes 10% of it, and from request 5 on where it takes 50% of it. "
        "forsaken unlearn tells where yours stands.\n" in ended.out
    )
    assert "Keep the table as safe as the training data" in ended.out
    assert "train models without a fold each" in ended.err, "there are bars"


def test_json_is_all_that_is_printed(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")
    text = (folder / "model.py").read_text()
    (folder / "model.py").write_text(text.replace("    return", "    print('building')\n    return"))
    job = write_job(folder, references={"folds": 2}, audit={"recipe": RECIPE})
    ended = forsaken("references", "fit", job, "--json")
    assert ended.code == 0, ended.err
    assert "building" in ended.err
    found = ended.json
    assert (found["rows"], found["folds"], found["break_even"], found["notes"]) == (132, 2, {"0.1": 3, "0.5": 5}, [])
    shown = forsaken("references", "show", job, "--json").json
    assert shown == forsaken("references", "show", folder / TABLE, "--json").json
    assert {name: found[name] for name in shown} == shown


def test_show_needs_no_key(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job", keep_models=True)
    (job.parent / SECRET).unlink()
    before = digests(job.parent)
    for place in (job, job.parent / TABLE):
        ended = forsaken("references", "show", place)
        assert ended.code == 0, ended.err
        assert "over 100" in ended.out
        assert "from request 3 on" in ended.out
        assert "The models kept in it remember rows" in ended.out
    assert digests(job.parent) == before


def test_extend_says_what_it_cost(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    inputs, labels = world().sets["train"]
    more, named = world().sets["strangers"]
    import numpy as np

    whole = table(np.concatenate([inputs, more[:6]]), np.concatenate([labels, named[:6]]))
    pq.write_table(whole, job.parent / "train.parquet")
    ended = forsaken("references", "extend", job)
    assert ended.code == 0, ended.err
    assert "6 (one training, " in ended.out
    assert "train a model without the new rows" in ended.err
    ended = forsaken("references", "extend", job, "--json")
    assert (ended.json["added"], ended.json["added_trainings"], ended.json["rows"]) == (0, 0, 138)
    assert "0 (no training, 0.0 s)" in forsaken("references", "extend", job).out


@pytest.mark.parametrize(
    ("words", "expected", "kind"),
    [
        (("fit", "bare.toml"), "has no table [references]; add one", "SettingsError"),
        (("fit", "job.toml"), "is there already and is not overwritten", "OutputError"),
        (("fit", "job.toml", "--engine", "rya"), "unknown engine 'rya'; did you mean 'ray'?", "UnknownNameError"),
        (("fit", "nowhere.toml"), "no job file", "DataNotFoundError"),
        (("show", "bare.toml"), "has no table [references]", "SettingsError"),
        (("show", "nowhere.safetensors"), "there is no table of references", "DataNotFoundError"),
        (("show", "model.safetensors"), "is a safetensors file but no table of references", "DataError"),
        (("show", "train.parquet"), "cannot be read as a table of references", "DataError"),
        (("extend", "bare.toml"), "has no table [references]", "SettingsError"),
    ],
)
def test_errors_are_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], expected: str, kind: str
) -> None:
    folder = tabled(tmp_path / "job").parent
    (folder / "forsaken.toml").rename(folder / "job.toml")
    write_job(folder, "bare.toml")
    monkeypatch.chdir(folder)
    before = digests(folder)
    ended = forsaken("references", *words, "--json")
    assert ended.code == 2
    assert ended.json["kind"] == kind
    assert expected in ended.json["error"]
    assert "Traceback" not in ended.err
    assert digests(folder) == before


def test_a_run_and_its_proof(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job", data={"reference": None})
    ended = forsaken("unlearn", job, "--dry-run")
    assert ended.code == 0, ended.err
    assert "12 of 12 (of its 132 rows)" in ended.out
    assert "forgetting needs the table of references alone" in ended.out
    assert "without reference samples the forgotten ones are compared with test samples" in ended.out
    ended = forsaken("unlearn", job, "--json")
    assert ended.code == 0, ended.err
    assert {TABLE, SECRET, "records.key"} <= set(ended.json["files"])
    out = job.parent / "forgotten"
    checked = forsaken("verify", out / "certificate.json", "--weights", out / "model.safetensors", "--any-signer")
    assert checked.code == 0
    assert "a table of 132 rows (2 folds by row)" in checked.out
    ended = forsaken("unlearn", job, "--out", tmp_path / "second")
    assert "delete the old table" in ended.out


def test_one_key_in_two_files_and_an_audit_that_counts_references_apart(tmp_path: Path) -> None:
    job = tabled(tmp_path / "job")
    ended, out = forsaken("unlearn", job), job.parent / "forgotten"
    assert f"{out / 'records.key'}, and the same in {out / SECRET} (keep it, and apart from" in ended.out
    assert (out / SECRET).read_bytes() == (out / "records.key").read_bytes()
    words = ("audit", job, "--profile", "full", "--models", "4", "--dry-run")
    ended = forsaken(*words)
    assert ended.code == 0, ended.err
    told = "trains 4 originals, each unlearned, at most 8 references for these, and 8 retrained models"
    assert " ".join(told.split()) in " ".join(ended.out.replace("│", " ").split())
    assert "at most 20 " in ended.out
    found = forsaken(*words, "--json").json
    assert (found["told"], found["trainings"], found["references"]) == (told, 20, 8)
    quick = forsaken("audit", job, "--dry-run", "--json").json
    assert (quick["trainings"], quick["references"]) == (0, 0)


@pytest.mark.parametrize("words", [("extend",), ("show",)])
def test_a_table_made_by_hand_is_no_traceback(tmp_path: Path, words: tuple[str, ...]) -> None:
    job = tabled(tmp_path / "job")
    path = job.parent / TABLE
    with safetensors.safe_open(path, framework="pt") as file:
        told = json.loads(file.metadata()["about"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    told["origin"]["costs"]["trainings"] = 10**400
    path.write_bytes(
        safetensors.torch.save(tensors, metadata={"format": "forsaken.references", "about": json.dumps(told)})
    )
    ended = forsaken("references", *words, job)
    assert ended.code == 2
    assert "is damaged (header: origin.costs.trainings is too large" in ended.err


def test_a_debt_is_told_by_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from forsaken.errors import NothingForgottenError

    def failing(*_: object, **__: object) -> None:
        raise NothingForgottenError("nothing moved")

    job = tabled(tmp_path / "job", keep_models=True)
    monkeypatch.setattr("forsaken.jobs.references.method_of", lambda _: failing)
    ended = forsaken("unlearn", job)
    assert ended.code == 0, ended.err
    assert "note: the models kept in the table of references still remember 12 forgotten records" in ended.out
    out = job.parent / "forgotten"
    words = ("verify", out / "certificate.json", "--weights", out / "model.safetensors", "--any-signer")
    ended = forsaken(*words)
    assert ended.code == 0
    assert "But models that were kept beside its references still remember 12 forgotten records." in ended.out
    assert forsaken(*words, "--json").json["models_owe"] == 12
    assert "forgotten rows that these remember │ 12" in forsaken("references", "show", out / TABLE).out


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    found = Nursery(tmp_path_factory.mktemp("references") / "job")
    yield found
    found.close()


STOP = """
import os, signal
import forsaken.references.fitting as place
real, seen = place._write, []
def told(path, result):
    real(path, result)
    seen.append(path)
    if len(seen) == 2:
        os.kill(os.getpid(), {number})
place._write = told
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_fit_that_is_killed_leaves_no_table_and_goes_on(nursery: Nursery, number: signal.Signals) -> None:
    folder = nursery.folder
    shutil.rmtree(folder)
    write_world(folder)
    job = write_job(folder, references={"folds": 5}, audit={"recipe": RECIPE})
    ended = nursery.run("references", "fit", job, first=STOP.format(number=int(number)))
    assert ended.code == (-9 if number == signal.SIGKILL else 128 + number)
    assert not (folder / TABLE).exists()
    assert not (folder / SECRET).exists()
    left = folder / f".{TABLE}.unfinished"
    kept = {path.name: path.stat().st_mtime_ns for path in left.glob("fold-*")}
    assert len(kept) == 2
    ended = nursery.run(
        "references", "fit", job, "--json", first=STOP.format(number=int(number)).replace("== 2", "== 9")
    )
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["folds"] == 5
    assert not left.exists()
    assert (folder / TABLE).exists()
