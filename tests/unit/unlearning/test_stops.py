"""Hard stops: each ends a request before anything is written, names its override, and lets what is right pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from job_folders import digests, forsaken, table, world, write_job, write_world
from torch import nn

import forsaken as package
from forsaken.cli.exits import Exit
from forsaken.data.samples import Samples
from forsaken.errors import InputError, StoppedError, UnknownNameError
from forsaken.unlearning.stops import stop_accuracy_loss, stop_strange_inputs, stop_unknown_answers


def flags(right: int, count: int) -> Any:
    return np.arange(count) < right


@pytest.mark.parametrize(
    ("before", "after", "count", "stops"),
    [
        (1000, 980, 1000, False),  # 2 points are allowed
        (1000, 970, 1000, True),
        (864, 833, 1000, True),  # what the default lost on mislabelled rows
        (900, 950, 1000, False),
        (50, 48, 50, False),  # two of 50 samples are chance
        (50, 44, 50, True),
        (10, 9, 10, False),
    ],
)
def test_accuracy_may_fall_by_two_points(before: int, after: int, count: int, stops: bool) -> None:
    given = flags(before, count), flags(after, count), "test samples"
    if not stops:
        stop_accuracy_loss(*given)
        return
    with pytest.raises(StoppedError, match=r"--allow, \[output\] allow, or allow= in Python"):
        stop_accuracy_loss(*given)
    stop_accuracy_loss(*given, allow=("accuracy-loss",))


def pictures(count: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return scale * torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_inputs_of_another_scale_or_layout() -> None:
    trained = {"kept": Samples(pictures(20, 1))}
    stop_strange_inputs(Samples(pictures(5, 2)), trained)
    stop_strange_inputs(Samples(pictures(5, 2, 3.0)), trained)
    with pytest.raises(InputError, match="255 times as large as those of the kept samples"):
        stop_strange_inputs(Samples(pictures(5, 1, 255.0)), trained | {"kept": Samples(pictures(5, 1))})
    with pytest.raises(InputError, match="times as small"):
        stop_strange_inputs(Samples(pictures(5, 2)), {"kept": Samples(pictures(20, 1, 255.0))})
    with pytest.raises(InputError, match=r"the same sides in another order.*channels first"):
        stop_strange_inputs(Samples(pictures(5, 2).permute(0, 2, 3, 1)), trained)
    stop_strange_inputs(Samples(pictures(5, 2, 255.0)), trained, ("other-inputs",))
    stop_strange_inputs(Samples(torch.ones(5, 4, dtype=torch.int64)), {"kept": Samples(torch.ones(5, 4).long() * 999)})


def test_a_model_that_does_not_know_its_training_data() -> None:
    labels = np.arange(100) % 4
    stop_unknown_answers(flags(30, 100), labels, "training samples")
    with pytest.raises(InputError, match=r"25% of 100 training samples .*channels first or last"):
        stop_unknown_answers(flags(25, 100), labels, "training samples")
    stop_unknown_answers(flags(25, 100), labels, "training samples", ("other-inputs",))
    stop_unknown_answers(flags(5, 5), np.zeros(5, dtype=int), "training samples")


class TestLibrary:
    """`forsaken.unlearn` stops where it has the data to know."""

    def test_accuracy_on_retain_samples(self) -> None:
        # one weight decides every answer, so that forgetting some changes all
        draw = torch.Generator().manual_seed(0)
        x = torch.randn(200, 1, generator=draw)
        model = nn.Linear(1, 2)
        model.weight.data, model.bias.data = torch.tensor([[-4.0], [4.0]]), torch.zeros(2)
        y = (x[:, 0] > 0).long()
        targets = torch.stack([20.0 * x[:5, 0], -20.0 * x[:5, 0]], 1)  # the opposite of what it answers
        given: dict[str, Any] = {"retain": (x[100:], y[100:]), "targets": targets, "penalty": 0.0, "anchor": 0.0}
        kept = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(StoppedError, match="retain samples would fall by"):
            package.unlearn(model, (x[:5], y[:5]), **given)
        result = package.unlearn(model, (x[:5], y[:5]), **given, allow=["accuracy-loss"])
        assert float((result.model(x).argmax(1) == y).float().mean()) < 0.9
        assert all(torch.equal(value, kept[name]) for name, value in model.state_dict().items())

    def test_inputs_and_names(self) -> None:
        model, x = nn.Linear(4, 3), torch.eye(4)
        with pytest.raises(InputError, match="255 times as large as those of the retain samples"):
            package.unlearn(model, 255 * x[:1], retain=x[2:], target="uniform")
        package.unlearn(model, 255 * x[:1], retain=x[2:], target="uniform", allow=["other-inputs"])
        with pytest.raises(UnknownNameError, match="did you mean 'other-inputs'"):
            package.unlearn(model, x[:1], retain=x[2:], target="uniform", allow=["other-input"])


class TestJobs:
    """A job is stopped before a file is written, in a run and, where it can be known, in a dry run."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return write_world(tmp_path / "job")

    def refused(self, job: Path, *words: str, stop: str, dry: bool = True, code: Exit = Exit.BAD_INPUT) -> None:
        before = digests(job.parent)
        for more in (["--dry-run"], []) if dry else ([],):
            ended = forsaken("unlearn", job, *more)
            assert ended.code == code, ended.err
            assert f'allow "{stop}"' in ended.err
            for word in words:
                assert word in ended.err
        assert digests(job.parent) == before
        ended = forsaken("unlearn", job, "--allow", stop, "--allow", "accuracy-loss")
        assert ended.code in (Exit.DONE, Exit.FAILED), ended.err
        write_job(job.parent, output={"allow": [stop, "accuracy-loss"]})
        assert forsaken("unlearn", job, "--force").code in (Exit.DONE, Exit.FAILED)

    def test_records_that_are_not_in_the_training_data(self, folder: Path) -> None:
        inputs, numbers = world().sets["kept"]
        pq.write_table(table(inputs, numbers), folder / "train.parquet")
        self.refused(write_job(folder), "12 of 12 records to forget are not in [data] train", stop="unknown-records")

    def test_labels_that_are_no_class(self, folder: Path) -> None:
        inputs, numbers = world().sets["forget"]
        pq.write_table(table(inputs, numbers + 7), folder / "forget.parquet")
        self.refused(write_job(folder), "labels of forget are none of the model's 4 classes", stop="unknown-labels")

    def test_records_of_another_scale(self, folder: Path) -> None:
        inputs, numbers = world().sets["forget"]
        pq.write_table(table(255 * inputs, numbers), folder / "forget.parquet")
        job = write_job(folder, data={"train": None, "retain": "kept.parquet"})
        words = "times as large as those of the retain samples", "not from 0 to 255"
        before = digests(folder)
        for more in (["--dry-run"], []):
            ended = forsaken("unlearn", job, *more)
            assert ended.code == Exit.BAD_INPUT
            assert all(word in ended.err for word in words), ended.err
        assert digests(folder) == before

    def test_a_fall_of_the_accuracy(self, folder: Path) -> None:
        # gradient ascent without an end ruins the model
        method = {"name": "gradient-ascent", "epochs": 50, "learning_rate": 0.05, "iterations": None}
        job = write_job(folder, method=method)
        before = digests(folder)
        ended = forsaken("unlearn", job)
        assert ended.code == Exit.STOPPED, ended.err
        assert "so nothing was written" in ended.err
        assert "expected at most 2 points" in ended.err
        assert digests(folder) == before
        ended = forsaken("unlearn", job, "--allow", "accuracy-loss", "--require", "accuracy-loss=2")
        assert ended.code == Exit.UNMET, ended.err
        assert "Required was accuracy-loss=2" in ended.out
        assert (folder / "forgotten" / "certificate.json").is_file()

    def test_an_unknown_stop(self, folder: Path) -> None:
        ended = forsaken("unlearn", write_job(folder), "--allow", "acuracy-loss")
        assert ended.code == Exit.BAD_INPUT
        assert "did you mean 'accuracy-loss'" in ended.err
        ended = forsaken("unlearn", write_job(folder, output={"allow": ["acuracy-loss"]}))
        assert ended.code == Exit.BAD_INPUT
        assert "accuracy-loss, unknown-records" in ended.err

    def test_requirements(self, folder: Path) -> None:
        job = write_job(folder)
        assert forsaken("unlearn", job, "--require", "everything").code == Exit.BAD_INPUT
        assert not (folder / "forgotten").exists()
        ended = forsaken("unlearn", job, "--require", "not-failed", "--require", "forgotten", "--json")
        assert ended.code == Exit.UNMET
        assert ended.json["unmet"] == ["Required was forgotten, and the verdict is not shown."]
