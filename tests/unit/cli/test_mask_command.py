"""`forsaken mask`: show, apply and revert, bit for bit, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import skops.io
import torch
from job_folders import digests, forsaken, program, run, world, write_bert, write_job, write_world
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

UNIFORM = {"target": "uniform", "iterations": 6}


def made(folder: Path, weights: str = "model.safetensors") -> tuple[Path, Path]:
    """Write a world, its weights in the format of a name, and run a job with a mask; return job and mask."""
    write_world(folder)
    model = {"weights": weights}
    if weights.endswith(".pt"):
        torch.save(world().states["model"], folder / weights)
    elif weights.endswith(".pt2"):
        (folder / weights).write_bytes(program())
    elif weights.endswith(".skops"):
        pipeline = make_pipeline(StandardScaler(), LogisticRegression(C=100, max_iter=3000))
        skops.io.dump(pipeline.fit(*world().sets["train"]), folder / weights)
    if not weights.endswith((".safetensors", ".pt")):
        model["factory"] = None  # type: ignore[assignment]
    job = write_job(folder, model=model, method=UNIFORM, output={"mask": True})
    run(job)
    return job, folder / "forgotten" / "mask.safetensors"


def state(path: Path) -> dict[str, torch.Tensor]:
    if path.suffix == ".safetensors":
        return safetensors.torch.load_file(path)  # type: ignore[no-any-return]
    if path.suffix == ".pt":
        return torch.load(path, weights_only=True)  # type: ignore[no-any-return]
    if path.suffix == ".pt2":
        return dict(torch.export.load(path).state_dict)
    last = skops.io.load(path, trusted=[])[-1]
    return {"coef": torch.tensor(last.coef_), "intercept": torch.tensor(last.intercept_)}


def same(one: Path, two: Path) -> bool:
    first, second = state(one), state(two)
    return set(first) == set(second) and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("weights", ["model.safetensors", "model.pt", "model.pt2", "model.skops"])
def test_there_and_back_bit_for_bit(tmp_path: Path, weights: str) -> None:
    folder = tmp_path / "job"
    job, mask = made(folder, weights)
    new = folder / "forgotten" / weights
    before = digests(folder)
    applied, restored = folder / f"applied{new.suffix}", folder / f"restored{new.suffix}"
    told = forsaken("mask", "apply", mask, job, "--out", applied, "--json")
    assert told.code == 0, told.err
    assert told.json == {"weights": str(applied), "changed": told.json["changed"]}
    assert same(applied, new)
    assert not same(applied, folder / weights)
    assert forsaken("mask", "revert", mask, job, "--weights", new, "--out", restored).code == 0
    assert same(restored, folder / weights)
    if weights == "model.safetensors":
        assert restored.read_bytes() == (folder / weights).read_bytes()
        assert applied.read_bytes() == new.read_bytes()
    after = digests(folder)
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {applied.name, restored.name}


def test_a_hugging_face_folder_there_and_back(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    job = write_bert(folder, method=UNIFORM, output={"mask": True})
    run(job)
    mask, new = folder / "forgotten" / "mask.safetensors", folder / "forgotten" / "bert"
    assert forsaken("mask", "apply", mask, job, "--out", folder / "applied").code == 0
    assert same(folder / "applied" / "model.safetensors", new / "model.safetensors")
    assert forsaken("mask", "revert", mask, job, "--weights", new, "--out", folder / "restored").code == 0
    assert same(folder / "restored" / "model.safetensors", folder / "bert" / "model.safetensors")
    told = forsaken("mask", "apply", mask, job, "--out", folder / "applied", "--force", "--json")
    assert told.code == 2
    assert "is a folder" in told.json["error"]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return made(tmp_path_factory.mktemp("masks") / "job")


def test_show(ready: tuple[Path, Path]) -> None:
    job, mask = ready
    old, new = (state(job.parent / name) for name in ("model.safetensors", "forgotten/model.safetensors"))
    changed = {name: int((old[name] != new[name]).sum()) for name in old if not torch.equal(old[name], new[name])}
    told = forsaken("mask", "show", mask, "--json")
    assert told.code == 0
    assert {part["name"]: part["changed"] for part in told.json["parameters"]} == changed
    assert told.json["changed"] == sum(changed.values())
    assert told.json["revertible"] is True
    people = forsaken("mask", "show", mask)
    assert f"{sum(changed.values()):,} of {sum(t.numel() for t in old.values()):,} weights" in " ".join(
        people.out.split()
    )
    assert "can be undone" in " ".join(people.out.split())


@pytest.mark.parametrize("verb", ["apply", "revert"])
def test_other_weights_are_refused(ready: tuple[Path, Path], verb: str) -> None:
    job, mask = ready
    weights = job.parent / "shadow.safetensors"
    told = forsaken("mask", verb, mask, job, "--weights", weights, "--out", job.parent / "no.safetensors", "--json")
    assert told.code == 2
    assert told.json["kind"] == "MaskError"
    assert "nothing was changed" in told.json["error"]
    assert not (job.parent / "no.safetensors").exists()


def test_nothing_is_overwritten_without_force(ready: tuple[Path, Path]) -> None:
    job, mask = ready
    goal = job.parent / "taken.safetensors"
    goal.write_text("mine")
    told = forsaken("mask", "apply", mask, job, "--out", goal, "--json")
    assert told.code == 2
    assert "--force" in told.json["error"]
    assert goal.read_text() == "mine"
    assert forsaken("mask", "apply", mask, job, "--out", goal, "--force").code == 0
    assert same(goal, job.parent / "forgotten" / "model.safetensors")


@pytest.mark.parametrize("name", ["model.safetensors", "forgotten/mask.safetensors", "forsaken.toml"])
def test_what_is_read_is_never_overwritten(ready: tuple[Path, Path], name: str) -> None:
    job, mask = ready
    before = digests(job.parent)
    for goal in (job.parent / name, job.parent / "forgotten" / ".." / name):
        told = forsaken("mask", "apply", mask, job, "--out", goal, "--force", "--json")
        assert told.code == 2
        assert "is read here" in told.json["error"]
    assert digests(job.parent) == before


def test_a_folder_is_never_replaced(ready: tuple[Path, Path]) -> None:
    job, mask = ready
    before = digests(job.parent.parent)
    for goal in (job.parent, job.parent / "forgotten"):
        told = forsaken("mask", "apply", mask, job, "--out", goal, "--force", "--json")
        assert told.code == 2
        assert "is a folder" in told.json["error"]
    assert digests(job.parent.parent) == before


@pytest.mark.parametrize("weights", ["model.safetensors", "model.pt", "model.pt2", "model.skops"])
def test_a_folder_that_is_not_there(tmp_path: Path, weights: str) -> None:
    job, mask = made(tmp_path / "job", weights)
    told = forsaken("mask", "apply", mask, job, "--out", tmp_path / "no" / "folder" / weights, "--json")
    assert told.code == 2
    assert told.json["kind"] == "OutputError"
    assert "folder" in told.json["error"]


@pytest.mark.parametrize("content", [b"", b"no mask", b"\x08\0\0\0\0\0\0\0{}      "])
def test_files_that_are_no_masks(ready: tuple[Path, Path], tmp_path: Path, content: bytes) -> None:
    job, _ = ready
    path = tmp_path / "mask.safetensors"
    path.write_bytes(content)
    for words in (["show", path], ["apply", path, job, "--out", tmp_path / "x.safetensors"]):
        told = forsaken("mask", *words, "--json")
        assert told.code == 2
        assert "mask.safetensors" in told.json["error"]


def test_a_mask_that_is_not_there(ready: tuple[Path, Path], tmp_path: Path) -> None:
    told = forsaken("mask", "show", tmp_path / "none.safetensors", "--json")
    assert told.code == 2
    assert "none.safetensors" in told.json["error"]
