"""The forgotten records leave the training data, and copies of them that stay are told of."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from job_folders import digests, run, table, world, write_job, write_world
from PIL import Image

from forsaken.jobs.certificate import Certificate

SETS = world().sets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_world(tmp_path / "job")


def rows_to_delete(folder: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO((folder / "forgotten" / "rows-to-delete.csv").read_text())))


def test_a_dataset_without_the_forgotten_rows(folder: Path) -> None:
    found = run(write_job(folder))
    assert found["cleaning"] == {"rows": 12, "not_found": 0, "exact": 0, "near": 0, "file": "cleaned.parquet"}
    cleaned, train = (pq.read_table(folder / name) for name in ("forgotten/cleaned.parquet", "train.parquet"))
    assert cleaned.equals(train.slice(0, 120))
    assert cleaned.schema.equals(train.schema)


def test_rows_by_their_numbers_where_forget_is_taken_of_the_training_data(folder: Path) -> None:
    found = run(write_job(folder, data={"forget": {"of": "train", "ids": [1100, 1003]}, "id": "id"}))
    assert found["cleaning"]["rows"] == 2
    left = pq.read_table(folder / "forgotten" / "cleaned.parquet")["id"].to_pylist()
    assert left == [1000 + at for at in range(132) if at not in (3, 100)]


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_the_format_stays(folder: Path, suffix: str) -> None:
    inputs, labels = SETS["train"]
    if suffix == ".csv":
        pa.csv.write_csv(table(inputs, labels), folder / "train.csv")
    else:
        np.savez(folder / "train.npz", inputs=inputs, labels=labels)
    before = digests(folder)
    found = run(write_job(folder, data={"train": f"train{suffix}"}))
    assert found["cleaning"]["file"] == f"cleaned{suffix}"
    assert digests(folder, "forgotten")[f"train{suffix}"] == before[f"train{suffix}"]
    if suffix == ".npz":
        with np.load(folder / "forgotten" / "cleaned.npz") as arrays:
            np.testing.assert_array_equal(arrays["inputs"], inputs[:120])
            np.testing.assert_array_equal(arrays["labels"], labels[:120])
    else:
        lines = (folder / "forgotten" / "cleaned.csv").read_text().splitlines()
        assert lines == (folder / "train.csv").read_text().splitlines()[:121]


def test_rows_alone(folder: Path) -> None:
    found = run(write_job(folder, data={"id": "id"}, output={"cleaned": "rows"}))
    assert found["cleaning"]["file"] == "rows-to-delete.csv"
    assert rows_to_delete(folder) == [["row", "id"], *([str(at), str(1000 + at)] for at in range(120, 132))]


def test_none(folder: Path) -> None:
    found = run(write_job(folder, output={"cleaned": "none"}))
    assert found["cleaning"] == {"rows": 12, "not_found": 0, "exact": 0, "near": 0, "file": None}
    assert not list((folder / "forgotten").glob("cleaned*"))


def test_a_part_of_a_file_is_told_by_its_rows(folder: Path) -> None:
    """The rest of the file was not read, so it cannot be written anew."""
    train = {"path": "train.parquet", "ids": [*range(60), *range(120, 132)]}
    found = run(write_job(folder, data={"train": train}))
    assert found["cleaning"]["file"] == "rows-to-delete.csv"
    assert [row[0] for row in rows_to_delete(folder)[1:]] == [str(at) for at in range(120, 132)]
    assert any("rows-to-delete.csv" in warning for warning in found["warnings"])


def test_training_data_of_a_function(folder: Path) -> None:
    (folder / "own.py").write_text(
        "import numpy as np\nimport pyarrow.parquet as pq\nfrom pathlib import Path\n"
        "def load():\n    t = pq.read_table(Path(__file__).parent / 'train.parquet')\n"
        "    return np.stack([t[f'f{n}'].to_numpy() for n in range(12)], 1), t['label'].to_numpy()\n"
    )
    data = {"train": {"python": "own:load"}, "forget": {"of": "train", "ids": [130, 131]}}
    found = run(write_job(folder, data=data))
    assert found["cleaning"]["file"] == "rows-to-delete.csv"
    assert [row[0] for row in rows_to_delete(folder)[1:]] == ["130", "131"]


def test_pictures_are_told_by_their_files(tmp_path: Path) -> None:
    import torch

    draw = np.random.default_rng(0)
    for at in range(12):
        path = tmp_path / "pictures" / ("cat" if at % 2 else "dog") / f"{at:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(256, size=(8, 8, 3), dtype=np.uint8)).save(path)
    (tmp_path / "model.py").write_text(
        "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(192, 2))"
    )
    torch.manual_seed(0)
    weights = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2)).state_dict()
    torch.save(weights, tmp_path / "model.pt")
    data = {"forget": {"of": "train", "ids": ["cat/03.png", "dog/04.png"]}, "train": "pictures", "test": None}
    job = write_job(
        tmp_path,
        model={"weights": "model.pt"},
        data=data | {"reference": None},
        method={"target": "uniform", "iterations": 3},
    )
    found = run(job)
    assert found["cleaning"]["rows"] == 2
    files = [row[1] for row in rows_to_delete(tmp_path)[1:]]
    assert files == ["cat/03.png", "dog/04.png"]
    assert found["classes"] == ["cat", "dog"]


def test_copies_that_stay_are_counted_and_named_by_their_rows(folder: Path) -> None:
    inputs, labels = SETS["train"]
    near = inputs[130] * (1 + 1e-6)
    pq.write_table(
        table(np.concatenate([inputs, [inputs[120], near]]), np.append(labels, [0, 0])), folder / "train.parquet"
    )
    found = run(write_job(folder, data={"forget": {"of": "train", "ids": list(range(120, 132))}}))
    assert found["cleaning"]["rows"] == 12
    assert found["cleaning"]["exact"] == 1
    assert found["cleaning"]["near"] == 1
    told = [warning for warning in found["warnings"] if "copies" in warning]
    assert len(told) == 1
    assert "1 exact, 1 near; listed in copies-that-stay.csv" in told[0]
    listed = list(csv.reader(io.StringIO((folder / "forgotten" / "copies-that-stay.csv").read_text())))
    assert listed[0] == ["row", "id", "forget_row", "similarity"]
    assert [row[:3] for row in listed[1:]] == [["132", "132", "0"], ["133", "133", "10"]]
    assert float(listed[1][3]) == 1.0


def test_a_list_of_copies_does_not_outlive_its_run(folder: Path) -> None:
    inputs, labels = SETS["train"]
    pq.write_table(table(np.concatenate([inputs, inputs[[120]]]), np.append(labels, 0)), folder / "train.parquet")
    forget = {"forget": {"of": "train", "ids": list(range(120, 132))}}
    run(write_job(folder, data=forget))
    assert (folder / "forgotten" / "copies-that-stay.csv").is_file()
    run(write_job(folder), force=True)
    assert not (folder / "forgotten" / "copies-that-stay.csv").exists()


def test_records_of_another_file_are_found_by_content_each_time(folder: Path) -> None:
    inputs, labels = SETS["train"]
    twice = np.concatenate([inputs, inputs[120:122]])
    pq.write_table(table(twice, np.append(labels, labels[120:122])), folder / "train.parquet")
    found = run(write_job(folder))
    assert found["cleaning"]["rows"] == 14
    assert pq.read_table(folder / "forgotten" / "cleaned.parquet").num_rows == 120


def test_records_that_are_not_in_the_training_data(folder: Path) -> None:
    inputs, labels = SETS["kept"]
    pq.write_table(table(inputs, labels), folder / "train.parquet")
    found = run(write_job(folder))
    assert found["cleaning"] == {"rows": 0, "not_found": 12, "exact": 0, "near": 0, "file": None}
    assert any("12 of 12 forget records were not found" in text for text in found["warnings"])


def test_without_training_data_the_last_step_is_asked_of_the_user(folder: Path) -> None:
    found = run(write_job(folder, data={"train": None}))
    assert found["cleaning"] is None
    assert any("must leave the training data" in text for text in found["warnings"])


def test_records_and_training_data_of_different_kinds(folder: Path) -> None:
    (folder / "own.py").write_text(
        "import numpy as np\nimport pyarrow.parquet as pq\nfrom pathlib import Path\n"
        "def load():\n    t = pq.read_table(Path(__file__).parent / 'forget.parquet')\n"
        "    return np.stack([t[f'f{n}'].to_numpy() for n in range(12)], 1)\n"
    )
    found = run(write_job(folder, data={"forget": {"python": "own:load"}, "retain": {"of": "train", "ids": [1, 2]}}))
    assert found["cleaning"] is None
    assert any("of different kinds" in text for text in found["warnings"])


def test_the_certificate_of_a_cleaned_set_says_nothing_of_its_rows(folder: Path) -> None:
    run(write_job(folder, data={"id": "id"}))
    told = Certificate.read(folder / "forgotten" / "certificate.json").records
    assert "1120" not in told.model_copy(update={"hmac_sha256": ()}).model_dump_json()
