"""What benchmarks/public_benchmark.py trains and judges, on a network and data that a CPU is done with in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import benchmark_scripts
import numpy as np
import pytest
import torch
from torch import nn

from forsaken import Forsaken, Recipe, Training
from forsaken.data.samples import Samples
from forsaken.errors import OutputError
from forsaken.unlearning.methods import build

MODELS = 4


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    with benchmark_scripts.script("public_benchmark") as found:
        ascent = build("gradient-ascent", {"learning_rate": 1e-3, "epochs": 1})
        methods = {found.OURS: Forsaken.out_of_fold(), "gradient ascent": ascent}
        monkeypatch.setattr(found, "METHODS", methods)
        monkeypatch.setattr(found, "ROWS", ("retrain", "do nothing", *methods))
        yield found


@pytest.fixture
def task(script: ModuleType, tmp_path: Path) -> Any:
    """Return two clear classes of 160 samples, of which 20 have the other label; these are forgotten."""
    draw = np.random.default_rng(0)
    labels = draw.integers(2, size=400)
    inputs = draw.normal(size=(400, 60)) + 1.5 * labels[:, None] * (np.arange(60) < 6)
    told = labels.copy()
    told[:20] = 1 - told[:20]

    def samples(rows: slice) -> Samples:
        return Samples(torch.tensor(inputs[rows], dtype=torch.float32), torch.tensor(told[rows]))

    training = Training(lambda: nn.Sequential(nn.Linear(60, 64), nn.ReLU(), nn.Linear(64, 2)), Recipe(60, 16, 3e-3))
    sets = {"random": np.arange(20)}
    return script.Task(samples(slice(160)), samples(slice(160, 400)), sets, training, "cpu", 0, tmp_path, 40)


def record(script: ModuleType, task: Any, item: tuple[str, int]) -> None:
    script.record(task, (item, task.path(*item)))


def test_ours_is_nearer_to_retraining_than_doing_nothing(script: ModuleType, task: Any) -> None:
    for item in [("original", at) for at in range(MODELS)] + [("random", at) for at in range(2 * MODELS)]:
        record(script, task, item)
    rows = script.judged(task, MODELS)["random"]
    assert list(rows) == ["retrain", "do nothing", script.OURS, "gradient ascent"]
    assert rows[script.OURS]["klom_forget"] < 0.8 * rows["do nothing"]["klom_forget"]
    assert rows["retrain"]["klom_forget"] < rows["do nothing"]["klom_forget"]
    assert rows["retrain"]["passes"] == 60 * 140
    assert rows[script.OURS]["passes"] > 0
    assert rows["do nothing"]["passes"] is None
    assert rows["gradient ascent"]["passes"] is None  # not reported, and no number that JSON does not know
    assert rows["gradient ascent"]["seconds"] > 0
    low, high = rows["retrain"]["floor_p95"]
    assert 0 <= low <= high
    low, high = rows["retrain"]["u_lira_floor"]
    assert low < rows["retrain"]["u_lira"] < rows["do nothing"]["u_lira"]
    assert rows[script.OURS]["u_lira"] < rows["do nothing"]["u_lira"]


def test_a_method_that_diverges_is_shown_without_numbers(
    script: ModuleType, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rising = build("gradient-ascent", {"learning_rate": 1e30, "epochs": 3})
    monkeypatch.setitem(script.METHODS, "gradient ascent", rising)
    for item in [("original", 0), ("original", 1), *(("random", at) for at in range(4))]:
        record(script, task, item)
    rows = script.judged(task, 2)["random"]
    assert rows["gradient ascent"] == {"diverged": 2}
    assert "klom_forget" in rows[script.OURS]


def test_a_model_that_is_measured_is_not_trained_again(
    script: ModuleType, task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(script, task, ("random", 0))
    (path,) = task.folder.iterdir()
    content = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(Training, "run", lambda *_, **__: pytest.fail("trained again"))
        record(script, task, ("random", 0))
    path.write_bytes(content[:50])  # cut off by a full disk
    record(script, task, ("random", 0))
    assert script.saved(path).keys() == script.saved(task.path("random", 0)).keys()
    assert path.read_bytes() != content[:50]


class _Scaled(nn.Sequential):
    """A network whose text says nothing of what it does to its inputs."""

    def __init__(self, network: nn.Sequential) -> None:
        super().__init__(*network)

    def forward(self, inputs: Any) -> Any:
        return super().forward(2 * inputs)

    def __repr__(self) -> str:
        return repr(nn.Sequential(*self))


def test_what_decides_a_record_is_in_its_name(script: ModuleType, task: Any) -> None:
    others = [
        replace(task, seed=1),
        replace(task, watched=41),
        replace(task, training=Training(task.training.build, Recipe(61, 16, 3e-3))),
        replace(task, training=Training(lambda: nn.Linear(60, 2), task.training.recipe)),
        replace(task, training=Training(lambda: _Scaled(task.training.build()), task.training.recipe)),
        replace(task, validation=task.validation.rows(np.arange(239))),
        replace(task, sets={"random": np.arange(1, 21)}),
    ]
    names = {one.path("original", 0).name for one in [task, *others]}
    assert len(names) == 8
    assert task.path("original", 0) != task.path("original", 1)
    task.folder.mkdir(exist_ok=True)
    with pytest.raises(OutputError, match="run the script again"):
        script.judged(task, 2)
    assert task.path("random", 0) != replace(task, sets={"random": np.arange(1, 21)}).path("random", 0)


def test_kept_and_validation_samples_that_are_measured_are_no_others(script: ModuleType, task: Any) -> None:
    asked = task.asked("random")
    assert torch.equal(asked["forget"].inputs, task.train.inputs[:20])
    kept = {tuple(row.tolist()) for row in asked["retain"].inputs}
    assert len(kept) == 40
    assert not kept & {tuple(row.tolist()) for row in task.train.inputs[:20]}
    unseen = {tuple(row.tolist()) for row in task.unseen.inputs}
    assert not unseen & {tuple(row.tolist()) for row in asked["validation"].inputs}


def test_the_networks_answers_are_logits_of_ten_classes(script: ModuleType) -> None:
    network = script.resnet9()
    assert network(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 10)
    assert sum(weight.numel() for weight in network.parameters()) == 2_274_880
