"""The sets of a job as a model takes them: who is given what, and whose label is which class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skops.io
import torch
from job_folders import CLASSES, WIDTH, run, table, world, write_job, write_world
from PIL import Image
from sklearn.linear_model import LogisticRegression

from forsaken.errors import ForsakenError, InputError, SettingsError
from forsaken.jobs.code import user_code
from forsaken.jobs.configuration import read_job
from forsaken.jobs.formats import load_model
from forsaken.jobs.rows import Reader
from forsaken.jobs.sets import JobSets, read_sets

NAMES = np.array(["ant", "bee", "cow", "dog"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_world(tmp_path / "job")


def read(folder: Path, **changes: Any) -> JobSets:
    job = read_job(write_job(folder, **changes))
    with user_code(folder):
        return read_sets(job, load_model(job), Reader(job))


def labels(folder: Path, part: str, given: Any, rows: Any = slice(None)) -> None:
    """Write a set with labels of another kind."""
    inputs, _ = world().sets[part]
    pq.write_table(table(inputs[rows], given), folder / f"{part}.parquet")


def test_everything_that_a_job_names(folder: Path) -> None:
    found = read(folder, data={"retain": {"of": "train", "count": 7}})
    assert len(found.forget) == 12
    assert found.reference is not None
    assert len(found.reference) == 60
    assert found.retain is not None
    assert len(found.retain) == 7
    assert found.kept is not None
    assert len(found.kept) == 132 - 12 - 7
    assert found.test is not None
    assert len(found.test) == 80
    assert (found.shadow_members, found.nonmembers, found.notes) == (None, None, [])
    assert torch.equal(found.forget.inputs, torch.from_numpy(world().sets["forget"][0]))  # type: ignore[arg-type]
    assert found.classes == ("0", "1", "2", "3")


def test_retain_samples_are_drawn_where_none_are_named(folder: Path) -> None:
    found = read(folder)
    assert found.retain is not None
    assert len(found.retain) == 50
    assert found.notes == ["no retain samples were named: 50 were drawn from the training data"]
    rows = {name: set(found.rows[name].index.tolist()) for name in ("retain", "kept")}
    assert not rows["retain"] & rows["kept"]
    assert rows["retain"] | rows["kept"] == set(range(120))  # the last 12 are to be forgotten


def test_a_small_training_set_keeps_half_to_judge_by(folder: Path) -> None:
    inputs, numbers = world().sets["kept"]
    pq.write_table(table(inputs[:10], numbers[:10]), folder / "train.parquet")
    found = read(folder, output={"allow": ["unknown-records"]})
    assert found.retain is not None
    assert found.kept is not None
    assert (len(found.retain), len(found.kept)) == (5, 5)


def test_training_data_of_forgotten_records_alone(folder: Path) -> None:
    found = read(folder, data={"train": "forget.parquet"})
    assert found.retain is None
    assert found.kept is None


def test_without_training_data_nothing_is_drawn(folder: Path) -> None:
    found = read(folder, data={"train": None, "test": None})
    assert (found.retain, found.kept, found.test, found.notes) == (None, None, None, [])


def test_test_rows_that_serve_as_references_are_no_test(folder: Path) -> None:
    found = read(folder, data={"reference": {"of": "test", "count": 30}})
    assert found.test is not None
    assert found.reference is not None
    assert (len(found.test), len(found.reference)) == (50, 30)
    assert "30 of 80 test samples are also given to the method" in found.notes[-1]
    used, left = (set(map(tuple, part.inputs.tolist())) for part in (found.reference, found.test))  # type: ignore[union-attr]
    assert not used & left


def test_forgotten_records_in_the_test_are_no_test(folder: Path) -> None:
    both = [np.concatenate(pair) for pair in zip(world().sets["test"], world().sets["forget"], strict=True)]
    pq.write_table(table(*both), folder / "test.parquet")
    found = read(folder)
    assert found.test is not None
    assert len(found.test) == 80
    assert "12 of 92 test samples are also given to the method" in found.notes[-1]


@pytest.mark.parametrize("part", ["test", "reference"])
def test_what_the_model_was_trained_on_is_no_stranger(folder: Path, part: str) -> None:
    both = [np.concatenate(pair) for pair in zip(world().sets[part], world().sets["kept"], strict=True)]
    pq.write_table(table(*both), folder / f"{part}.parquet")
    found = read(folder)
    assert len(getattr(found, part)) == len(world().sets[part][0])
    assert any(f"120 of {len(both[0])} {part} samples are in the training data" in note for note in found.notes)
    with pytest.raises(InputError, match=f"every {part} sample is in the training data"):
        read(folder, data={part: "kept.parquet"})


@pytest.mark.parametrize("part", ["forget", "train"])
def test_rows_to_forget_are_found_whatever_the_order_of_columns(folder: Path, part: str) -> None:
    shuffled = pq.read_table(folder / f"{part}.parquet")
    pq.write_table(shuffled.select(sorted(shuffled.column_names, reverse=True)), folder / f"{part}.parquet")
    found = read(folder)  # an overlap of retain or kept samples with forgotten ones would be an error, or unnoticed
    forgotten = {tuple(row) for row in np.sort(found.forget.inputs.numpy()).tolist()}
    for other in (found.retain, found.kept):
        assert other is not None
        assert not forgotten & {tuple(row) for row in np.sort(other.inputs.numpy()).tolist()}


def test_features_are_known_by_name_and_not_by_place(folder: Path) -> None:
    usual = read(folder)
    shuffled = pq.read_table(folder / "test.parquet")
    pq.write_table(shuffled.select(sorted(shuffled.column_names, reverse=True)), folder / "test.parquet")
    found = read(folder)
    assert found.test is not None
    assert usual.test is not None
    assert torch.equal(found.test.inputs, usual.test.inputs)  # type: ignore[arg-type]
    pq.write_table(shuffled.rename_columns(["other", *shuffled.column_names[1:]]), folder / "test.parquet")
    with pytest.raises(InputError, match="test lacks 'f0' and has 'other' besides"):
        read(folder)


def test_a_test_of_nothing_else_is_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="every test sample is also given to the method"):
        read(folder, data={"test": "reference.parquet"})


@pytest.mark.parametrize("part", ["retain", "reference"])
def test_what_is_forgotten_cannot_be_kept_as_well(folder: Path, part: str) -> None:
    inputs, numbers = world().sets["forget"]
    others, theirs = world().sets["test"]
    mixed = table(np.concatenate([others[:5], inputs[2:4]]), np.concatenate([theirs[:5], numbers[2:4]]))
    pq.write_table(mixed, folder / "mixed.parquet")
    with pytest.raises(InputError, match=f"2 of 7 {part} samples are also in forget.*; leave those records out"):
        run(write_job(folder, data={part: "mixed.parquet"}))
    assert not (folder / "forgotten").exists()


# --- labels ----------------------------------------------------------------------------------------------------------


def test_names_are_numbered_alike_in_files_with_some_of_the_classes(folder: Path) -> None:
    for part in ("train", "test"):
        labels(folder, part, NAMES[world().sets[part][1]])
    _, numbers = world().sets["forget"]
    some = np.flatnonzero(numbers >= 2)  # of the last two classes alone
    labels(folder, "forget", NAMES[numbers[some]], some)
    found = read(folder)
    assert found.classes == tuple(NAMES)
    assert found.forget.labels is not None
    assert found.forget.labels.tolist() == numbers[some].tolist()
    assert found.test is not None
    assert found.test.labels is not None
    assert found.test.labels.tolist() == world().sets["test"][1].tolist()


def test_accuracy_by_names_is_accuracy_by_numbers(folder: Path) -> None:
    by_number = run(write_job(folder), out=folder / "one")
    for part in ("train", "test", "forget"):
        labels(folder, part, NAMES[world().sets[part][1]])
    by_name = run(write_job(folder), out=folder / "two")
    assert by_name["accuracy_before"] == by_number["accuracy_before"] > 0.9
    assert by_name["by_class"] == by_number["by_class"]
    assert by_name["classes"] == list(NAMES)


def test_names_of_some_classes_only_are_refused(folder: Path) -> None:
    numbers = world().sets["test"][1]
    some = np.flatnonzero(numbers != 1)
    labels(folder, "test", NAMES[numbers[some]], some)
    with pytest.raises(InputError, match=r"59 of 59 labels of test are none of .*use class numbers"):
        read(folder, data={"train": None})


@pytest.mark.parametrize("given", [np.array(["other"] * 60), np.full(60, 77)], ids=["names", "numbers"])
def test_references_may_have_classes_of_their_own(folder: Path, given: Any) -> None:
    labels(folder, "reference", given)
    for part in ("train", "test", "forget"):
        labels(folder, part, NAMES[world().sets[part][1]])
    found = read(folder)
    assert found.reference is not None
    assert found.reference.labels is None
    assert found.classes == tuple(NAMES)


@pytest.mark.parametrize("part", ["test", "retain"])
def test_labels_out_of_range(folder: Path, part: str) -> None:
    inputs, numbers = world().sets["test"]
    pq.write_table(table(inputs, numbers + 1), folder / "wrong.parquet")
    words = f"20 of 80 labels of {part} are none of the model's 4 classes, expected 0 to 3"
    with pytest.raises(InputError, match=words):
        read(folder, data={"test": None, "train": None, part: "wrong.parquet"})


def test_whole_numbers_that_a_classifier_knows_by_other_numbers(folder: Path) -> None:
    own = np.array([3, 7, 20, 100])
    for part in ("train", "test", "forget"):
        labels(folder, part, own[world().sets[part][1]])
    inputs, numbers = world().sets["train"]
    model = LogisticRegression(max_iter=2000).fit(inputs, own[numbers])
    skops.io.dump(model, folder / "model.skops")
    found = run(write_job(folder, model={"weights": "model.skops", "factory": None}))
    test, truth = world().sets["test"]
    assert found["accuracy_before"] == model.score(test, own[truth])
    assert found["classes"] == ["3", "7", "20", "100"]
    labels(folder, "test", world().sets["test"][1])
    with pytest.raises(InputError, match="60 of 80 labels of test are none of the model's 4 classes"):
        read(folder, model={"weights": "model.skops", "factory": None})


def test_names_that_a_classifier_knows_itself(folder: Path) -> None:
    inputs, numbers = world().sets["train"]
    model = LogisticRegression(max_iter=2000).fit(inputs, NAMES[numbers])
    skops.io.dump(model, folder / "model.skops")
    test, truth = world().sets["test"]
    some = np.flatnonzero(truth != 0)  # no ant: the file alone would number them otherwise
    labels(folder, "test", NAMES[truth[some]], some)
    given = {"weights": "model.skops", "factory": None}
    found = run(write_job(folder, model=given, data={"train": None}))
    assert found["accuracy_before"] == model.score(test[some], NAMES[truth[some]])


# --- preparing -------------------------------------------------------------------------------------------------------

OWN = """
import numpy as np
import torch

def embed(records):
    return torch.tensor([[float(len(text) % 5)] * 12 for text in records.content])

def with_labels(records):
    return embed(records), torch.full((len(records),), 2)

def too_few(records): return torch.ones(len(records) - 1, 12)
def nothing(records): return None
def holes(records): return torch.full((len(records), 12), float("nan"))
def narrow(records): return torch.ones(len(records), 3)

def quoting(records):
    if records.content[0].startswith("reference"):
        raise ValueError(f"cannot embed {records.content[0]}")
    return embed(records)
"""


def texts(folder: Path) -> dict[str, Any]:
    (folder / "own.py").write_text(OWN)
    for part in ("forget", "reference"):
        words = [f"{part} number {at}" for at in range(8)]
        pq.write_table(pa.table({"text": words}), folder / f"{part}-texts.parquet")
    return {"forget": "forget-texts.parquet", "reference": "reference-texts.parquet", "train": None, "test": None}


def test_texts_need_a_function(folder: Path) -> None:
    with pytest.raises(InputError, match=r"the records are text.*prepare = "):
        read(folder, data=texts(folder))


def test_a_function_prepares_records(folder: Path) -> None:
    found = read(folder, data=texts(folder) | {"prepare": "own:embed"})
    assert found.forget.inputs.shape == (8, WIDTH)  # type: ignore[union-attr]
    assert float(found.forget.inputs[0, 0]) == len("forget number 0") % 5  # type: ignore[index]
    assert found.forget.labels is None


def test_a_function_may_bring_labels(folder: Path) -> None:
    found = read(folder, data=texts(folder) | {"prepare": "own:with_labels"})
    assert found.forget.labels is not None
    assert found.forget.labels.tolist() == [2] * 8


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("too_few", "8 records became 7 samples"),
        ("nothing", "own:nothing"),
        ("holes", "own:holes"),
        ("narrow", "shape"),
        ("missing", "no function 'missing'"),
    ],
)
def test_functions_that_prepare_badly(folder: Path, name: str, words: str) -> None:
    with pytest.raises(ForsakenError) as found:
        read(folder, data=texts(folder) | {"prepare": f"own:{name}"})
    assert words in str(found.value)


def test_an_error_of_the_function_over_any_set_is_not_quoted(folder: Path) -> None:
    with pytest.raises(SettingsError, match=r"own:quoting' on reference failed with ValueError at own\.py") as found:
        read(folder, data=texts(folder) | {"prepare": "own:quoting"})
    assert "number 0" not in str(found.value)


def test_pictures_become_numbers_between_0_and_1(folder: Path) -> None:
    (folder / "model.py").write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(12, 32), nn.ReLU(), "
        "nn.Linear(32, 4))"
    )
    state = {f"{int(name[0]) + 1}{name[1:]}": tensor for name, tensor in world().states["model"].items()}
    torch.save(state, folder / "model.pt")
    draw = np.random.default_rng(0)
    for part in ("forget", "others"):
        for at in range(6):
            path = folder / part / "any" / f"{at}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(256, size=(5, 7, 3), dtype=np.uint8)).save(path)
    data = {"forget": "forget", "reference": "others", "size": [2, 2], "train": None, "test": None}
    found = read(folder, data=data, model={"weights": "model.pt"})
    assert found.forget.inputs.shape == (6, 3, 2, 2)  # type: ignore[union-attr]
    assert 0 <= float(found.forget.inputs.min()) < float(found.forget.inputs.max()) <= 1  # type: ignore[union-attr]
    assert len(found.classes) == CLASSES


def test_samples_of_another_width_are_refused_in_words(folder: Path) -> None:
    np.savez(folder / "narrow.npz", inputs=np.ones((4, 3), dtype=np.float32))
    with pytest.raises(ForsakenError, match="shape"):
        read(folder, data={"forget": "narrow.npz", "train": None})


def test_a_device_that_is_not_there(folder: Path) -> None:
    with pytest.raises(SettingsError, match="device is 'cuda:99', which is not usable here"):
        read(folder, model={"device": "cuda:99"})
