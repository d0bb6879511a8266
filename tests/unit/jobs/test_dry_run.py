"""A dry run: what it says, that it says so before anything is missing, and that it writes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from job_folders import RECIPE, SHADOW, WIDTH, build, digests, forsaken, run, world, write_job, write_world
from PIL import Image

from forsaken.jobs.code import user_code
from forsaken.jobs.configuration import read_job
from forsaken.jobs.dry_run import ADVICE, dry_run
from forsaken.types import Tick

KEYS = {
    "memorised",
    "seconds",
    "memory_bytes",
    "parameters",
    "counts",
    "memorised_by_oracle",
    "forget_confidence",
    "separation",
    "references",
    "offer",
    "missing",
    "notes",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_world(tmp_path / "job")


def told(folder: Path, **changes: Any) -> dict[str, Any]:
    """What the dry run says, as JSON; it must leave every file as it was and make none."""
    job = write_job(folder, **changes)
    before = digests(folder.parent)
    ended = forsaken("unlearn", job, "--dry-run", "--json")
    assert ended.code == 0, ended.err
    assert digests(folder.parent) == before
    assert not (folder / "forgotten").exists()
    return json.loads(ended.out)  # type: ignore[no-any-return]


def test_a_job_that_is_ready(folder: Path) -> None:
    found = told(folder)
    assert set(found) == KEYS
    assert found["memorised"] is True
    assert found["missing"] == []
    assert found["counts"] == {"forget": 12, "reference": 60, "retain": 50, "kept": 70, "test": 80}
    assert found["parameters"] == sum(weight.numel() for weight in build().parameters())
    assert found["memorised_by_oracle"] is None
    assert 0 < found["seconds"] < 60
    assert found["memory_bytes"] > 2**28
    real = run(write_job(folder))
    assert found["forget_confidence"] == pytest.approx(real["forget_confidence"]["before"])
    assert found["separation"] == pytest.approx(real["separation"]["before"])


def test_an_oracle_counts_the_members(folder: Path) -> None:
    found = told(folder, oracle=SHADOW)
    assert found["memorised_by_oracle"] == run(write_job(folder, oracle=SHADOW))["counts"]["memorised_before"]


def test_nothing_memorised(folder: Path) -> None:
    inputs, _ = world().sets["reference"]
    model = build()
    model.load_state_dict(world().states["model"])
    order = np.argsort(model(torch.from_numpy(inputs)).softmax(1).max(1).values.detach().numpy())
    for name, rows in (("forget", order[:20]), ("reference", order[20:])):
        np.savez(folder / f"{name}.npz", inputs=inputs[rows])
    found = told(folder, data={"forget": "forget.npz", "reference": "reference.npz", "train": None})
    assert found["memorised"] is False


@pytest.mark.parametrize("target", ["class-mean", "uniform"])
def test_missing_references_are_explained_for_tables(folder: Path, target: str) -> None:
    found = told(folder, data={"reference": None}, method={"target": target})
    missing = {each["set"]: each for each in found["missing"]}
    assert set(missing) == {"reference"}
    assert missing["reference"]["needed"] is (target == "class-mean")
    assert found["memorised"] is (None if target == "class-mean" else True)
    assert "rows that arrived after the training" in missing["reference"]["what_can_serve"]
    assert 'of = "test"' in missing["reference"]["example"]
    assert 'target = "uniform"' in missing["reference"]["otherwise"]


@pytest.mark.parametrize(
    ("kind", "prepare", "serves", "example"),
    [
        (
            "texts",
            "import torch\ndef prepare(records): return torch.tensor([[float(len(t))] * 12 for t in records.content])",
            "texts of the same kind",
            'column "text"',
        ),
        (
            "pictures",
            "def prepare(records): return records.samples().inputs.float().mean((2, 3)).repeat(1, 4)",
            "pictures of the same kind",
            "size = ",
        ),
    ],
)
def test_missing_references_are_explained_for_other_kinds(
    folder: Path, kind: str, prepare: str, serves: str, example: str
) -> None:
    (folder / "own.py").write_text(prepare)
    pq.write_table(pa.table({"text": ["a", "bb", "ccc"]}), folder / "texts.parquet")
    pictures = np.random.default_rng(0).integers(256, size=(3, 4, 4, 3), dtype=np.uint8)
    (folder / "pictures" / "any").mkdir(parents=True)
    for at, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / "pictures" / "any" / f"{at}.png")
    forget = "texts.parquet" if kind == "texts" else "pictures"
    data = {"forget": forget, "reference": None, "train": None, "test": None, "prepare": "own:prepare"}
    found = told(folder, data=data)
    assert [each["set"] for each in found["missing"]] == ["reference", "retain", "test"]
    assert [each["needed"] for each in found["missing"]] == [True, False, False]
    assert serves in found["missing"][0]["what_can_serve"]
    assert example in found["missing"][0]["example"]


def test_every_example_of_the_advice_is_a_line_that_a_job_takes(folder: Path) -> None:
    """Advice must work when it is followed."""
    for _, example in ADVICE.values():
        job = write_job(folder, data={"reference": None})
        job.write_text(job.read_text().replace("[data]\n", f"[data]\n{example}\n"))
        assert read_job(job).data.reference is not None
    found = told(folder, data={"reference": {"of": "test", "count": 40}})
    assert found["missing"] == []
    assert (found["counts"]["reference"], found["counts"]["test"]) == (40, 40)


def test_for_people(folder: Path) -> None:
    ended = forsaken("unlearn", write_job(folder, data={"reference": None, "test": None}), "--dry-run")
    assert ended.code == 0
    for words in (
        "dry run: nothing was written",
        "not known yet: see below",
        "reference is needed and not named",
        "What can serve: rows that arrived after the training",
        "test is not named",
        "samples: forget",
    ):
        assert words in ended.out
    ended = forsaken("unlearn", write_job(folder), "--dry-run")
    assert "are the samples memorised?" in ended.out
    assert "yes" in ended.out


def test_mistakes_are_errors_as_in_a_run_and_no_output_is_looked_at(folder: Path) -> None:
    (folder / "forgotten").mkdir()
    (folder / "forgotten" / "certificate.json").write_text("earlier")
    ended = forsaken("unlearn", write_job(folder, data={"forget": "none.parquet"}), "--dry-run", "--json")
    assert ended.code == 2
    assert "none.parquet" in ended.json["error"]
    assert forsaken("unlearn", write_job(folder), "--dry-run", "--json").code == 0
    assert [path.name for path in (folder / "forgotten").iterdir()] == ["certificate.json"]


def test_what_user_code_prints_is_not_in_the_answer(folder: Path) -> None:
    (folder / "model.py").write_text(
        "print('importing')\nfrom torch import nn\n"
        "class Loud(nn.Sequential):\n    def forward(self, x):\n        print('calling')\n"
        "        return super().forward(x)\n"
        f"def net():\n    print('building')\n    return Loud(nn.Linear({WIDTH}, 32), nn.ReLU(), nn.Linear(32, 4))\n"
    )
    found = told(folder)
    assert set(found) == KEYS


def test_no_bar_stops_short(folder: Path) -> None:
    last: dict[str, Tick] = {}
    job = read_job(write_job(folder, oracle=SHADOW))
    with user_code(folder):
        dry_run(job, lambda tick: last.update({tick.stage: tick}))
    assert (last["judge"].done, last["judge"].total) == (12, 12)


def test_references_are_offered_with_their_cost_where_they_can_be_made(tmp_path: Path) -> None:
    folder = write_world(tmp_path / "job")

    def tried(**changes: Any) -> dict[str, Any]:
        with user_code(folder):
            return dry_run(read_job(write_job(folder, **changes)))

    found = tried(audit={"recipe": RECIPE})
    assert found["offer"]["trainings"] == 8
    assert found["offer"]["seconds"] > 0
    assert found["offer"]["break_even"] is None or found["offer"]["break_even"] >= 9
    assert any("forsaken references fit" in text for text in found["notes"])
    for changes in ({}, {"data": {"train": None}}, {"method": {"target": "uniform"}}):
        assert tried(**changes)["offer"] is None
    told = tried()["notes"]
    assert any("on average" in text and "a recipe in [audit]" in text for text in told)
    ended = forsaken("unlearn", write_job(folder, audit={"recipe": RECIPE}), "--dry-run")
    assert "A table of references takes at most 8 trainings" in ended.out
