"""Cleaning: values that stay are as they were, and what goes is gone from every corner of the file."""

from __future__ import annotations

import csv
import datetime as dt
import io
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from job_folders import digests, run, table, world, write_job, write_world
from PIL import Image

from forsaken.data.readers import picture_files, read_records
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import DataError, InputError, OutputError
from forsaken.jobs.certificate import Certificate
from forsaken.jobs.cleaning import rows_of, write_cleaned

SECRET = "SECRET-OF-A-PERSON"


def csv_file(folder: Path, content: bytes) -> Path:
    path = folder / "train.csv"
    path.write_bytes(content)
    return path


def cells(path: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="")))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def cleaned(source: Path | None, rows: Any, folder: Path, **more: Any) -> Path:
    path, why = write_cleaned(source, rows, folder, **more)
    assert why == ""
    return path


def test_rows_of_a_forget_set_are_those_with_equal_content() -> None:
    texts = Records(np.array(["a", "b", "a", "c", "A"], dtype=object), np.array([0, 1, 2, 3, 4]))
    assert rows_of(texts.rows(np.array([0, 3])), texts).tolist() == [0, 2, 3]
    numbers = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [2.0, 2.0]])
    assert rows_of(Samples(numbers[:1]), Samples(numbers)).tolist() == [0, 1]
    none = rows_of(Samples(numbers[:1] + 9), Samples(numbers))
    assert (none.tolist(), none.dtype) == ([], np.int64)


# --- files -----------------------------------------------------------------------------------------------------------


def test_values_of_a_csv_file_stay_as_they_were_written(tmp_path: Path) -> None:
    lines = [
        b'\xef\xbb\xbf"text",label,code', b'"one, two\r\nthree ""four""",1.50,007',
        b'"' + SECRET.encode() + b'\r\n""x""",4,',
        b"", "プラム,NaN,NULL".encode(), b"plain,9,1e5", b'  "odd" , 3 ,2020-01-01', b"last,5,true",
    ]  # fmt: skip
    source = csv_file(tmp_path, b"\r\n".join(lines))
    goal = cleaned(source, [3, 1], tmp_path)
    assert goal == tmp_path / "cleaned.csv"
    kept = [row for row in cells(source) if row]
    assert cells(goal) == [row for at, row in enumerate(kept) if at not in (2, 4)]
    assert SECRET.encode() not in goal.read_bytes()
    assert files(tmp_path) == ["cleaned.csv", "train.csv"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_row_numbers_are_the_reader_s(tmp_path: Path, end: bytes) -> None:
    lines = [b"", b"text,label", b"a,0", b"", b'"b\n\n",1', b"c,0", b"", b"", b'd"e,1', b""]
    source = csv_file(tmp_path, end.join(lines))
    before = read_records(source)
    assert len(before) == 4
    after = read_records(cleaned(source, [1], tmp_path))
    assert after.content.tolist() == before.content[[0, 2, 3]].tolist() == ["a", "c", 'd"e']
    assert after.labels is not None
    assert after.labels.tolist() == [0, 0, 1]


@settings(max_examples=150, deadline=None)
@example(rows=[["x", ""], ["", ""], ["\r", '"']], gone={0})
@given(
    rows=st.integers(1, 3).flatmap(
        lambda wide: st.lists(
            st.lists(st.text(st.sampled_from("ab\",\r\n é漢\t;'0"), max_size=6), min_size=wide, max_size=wide),
            min_size=1,
            max_size=6,
        )
    ),
    gone=st.sets(st.integers(0, 5)),
)
def test_what_python_wrote_is_read_back_without_the_rows(rows: list[list[str]], gone: set[int]) -> None:
    header = [f"column {at}" for at in range(len(rows[0]))]
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([header, *rows])
    with tempfile.TemporaryDirectory() as folder:
        source = csv_file(Path(folder), text.getvalue().encode())
        goal = cleaned(source, [row for row in gone if row < len(rows)], Path(folder))
        assert cells(goal) == [header, *(row for at, row in enumerate(rows) if at not in gone)]


def parquet_file(folder: Path) -> tuple[Path, pa.Table]:
    """Write a file with all that a table may hold; rows 1 and 6 carry the secret."""
    texts = [SECRET if at in (1, 6) else f"text {at}" for at in range(9)]
    schema = pa.schema(
        [
            pa.field("text", pa.dictionary(pa.int8(), pa.string())),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("who", pa.struct([("name", pa.large_string()), ("age", pa.int16())]), metadata={"unit": "year"}),
            pa.field("pairs", pa.map_(pa.string(), pa.float32())),
            pa.field("price", pa.decimal128(9, 2)),
            pa.field("time", pa.timestamp("us", tz="Europe/Berlin")),
            pa.field("wide", pa.list_(pa.float64(), 2)),
            pa.field("label", pa.uint8(), nullable=False),
        ],
        metadata={"huggingface": "features", "made": "by hand"},
    )
    day = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    table = pa.table(
        {
            "text": texts,
            "tags": [[text, "x"] if at % 3 else None for at, text in enumerate(texts)],
            "who": [{"name": text, "age": at} for at, text in enumerate(texts)],
            "pairs": [[(text, at / 2)] for at, text in enumerate(texts)],
            "price": [None] * 4 + [pa.scalar("1.25").cast(pa.decimal128(9, 2)).as_py()] * 5,
            "time": [day + dt.timedelta(hours=at) for at in range(9)],
            "wide": [[float(at), float("nan")] for at in range(9)],
            "label": list(range(9)),
        },
        schema=schema,
    )
    path = folder / "train.parquet"
    packed = {"text": "zstd", "label": "none", "time": "gzip"}
    pq.write_table(table, path, row_group_size=4, compression=packed, use_dictionary=["text", "price"])
    return path, table


def test_a_parquet_file_keeps_its_schema_and_values(tmp_path: Path) -> None:
    source, whole = parquet_file(tmp_path)
    goal = cleaned(source, np.array([6, 1, 8, 6]), tmp_path)
    with pq.ParquetFile(goal) as after:
        assert after.schema_arrow.equals(pq.read_schema(source), check_metadata=True)
        assert str(after.read().to_pylist()) == str(whole.take([0, 2, 3, 4, 5, 7]).to_pylist())


def test_no_dictionary_keeps_what_was_removed(tmp_path: Path) -> None:
    source, whole = parquet_file(tmp_path)
    pq.write_table(whole, source, compression="none")
    assert SECRET.encode() in source.read_bytes()
    goal = cleaned(source, [1, 6], tmp_path)
    assert SECRET not in str(pq.read_table(goal)["text"].combine_chunks().dictionary.to_pylist())
    pq.write_table(pq.read_table(goal), tmp_path / "plain.parquet", compression="none")
    assert SECRET.encode() not in (tmp_path / "plain.parquet").read_bytes()


def test_dictionaries_within_a_column_fall_back_to_a_list(tmp_path: Path) -> None:
    kind = pa.list_(pa.dictionary(pa.int32(), pa.string()))
    pq.write_table(pa.table({"text": ["a", "b"], "tags": pa.array([["x"], [SECRET]], kind)}), tmp_path / "t.parquet")
    path, why = write_cleaned(tmp_path / "t.parquet", [1], tmp_path)
    assert path.read_text() == "row,id\n1,1\n"
    assert "t.parquet cannot be written anew safely (its column 'tags' holds dictionaries" in why
    assert files(tmp_path) == ["rows-to-delete.csv", "t.parquet"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_file_loses_the_rows_of_every_array_that_has_them(tmp_path: Path, save: Any) -> None:
    arrays = {
        "x": np.arange(24.0, dtype=np.float32).reshape(6, 2, 2),
        "y": np.arange(6),
        "ids": np.array([f"id {at}" for at in range(6)]),
        "mean": np.array([[np.nan, 2.0]]),
        "classes": np.array(["pear", "fig"]),
        "count": np.array(6),
    }
    save(tmp_path / "train.npz", **arrays)
    goal = cleaned(tmp_path / "train.npz", [5, 0], tmp_path)
    with np.load(goal, allow_pickle=False) as found:
        assert found.files == list(arrays)
        for name, array in arrays.items():
            expected = array[1:5] if name in ("x", "y", "ids") else array
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], expected)


@pytest.mark.parametrize(("more", "words"), [("more", "objects are refused"), ("file", "array called 'f")])
def test_an_npz_file_that_cannot_be_written_anew_falls_back_to_a_list(tmp_path: Path, more: str, words: str) -> None:
    odd = np.array([{}, None], dtype=object) if more == "more" else np.zeros(2)
    with (tmp_path / "odd.npy").open("wb") as out:
        np.save(out, odd)
    np.savez(tmp_path / "train.npz", x=np.zeros((2, 3)))
    with zipfile.ZipFile(tmp_path / "train.npz", "a") as archive:
        archive.write(tmp_path / "odd.npy", f"{more}.npy")
    path, why = write_cleaned(tmp_path / "train.npz", [1], tmp_path)
    assert path.name == "rows-to-delete.csv"
    assert words in why


@pytest.mark.parametrize("suffix", [".CSV", ".npz", ".parquet"])
def test_all_rows_may_go(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "train.CSV").write_bytes(b"text,label\na,0\nb,1")
    np.savez(tmp_path / "train.npz", x=np.zeros((2, 3)))
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "train.parquet")
    goal = cleaned(tmp_path / f"train{suffix}", [0, 1], tmp_path)
    assert goal.name == f"cleaned{suffix.lower()}"
    if suffix == ".CSV":
        assert cells(goal) == [["text", "label"]]
    elif suffix == ".npz":
        assert np.load(goal)["x"].shape == (0, 3)
    else:
        assert pq.read_metadata(goal).num_rows == 0


@pytest.mark.parametrize("rows", [[0, 9], [-1]])
@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
def test_rows_out_of_range_are_refused_and_nothing_is_left(tmp_path: Path, suffix: str, rows: list[int]) -> None:
    csv_file(tmp_path, b"text\na\nb\n")
    np.savez(tmp_path / "train.npz", x=np.zeros((2, 3)))
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "train.parquet")
    before = files(tmp_path)
    with pytest.raises(InputError, match=rf"row {rows[-1]} is not in train{suffix} \(1 rows in all"):
        write_cleaned(tmp_path / f"train{suffix}", rows, tmp_path)
    assert files(tmp_path) == before


def test_what_cannot_be_done_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = csv_file(tmp_path, b"text,label\nsecret,1\nb,2,3\n")
    with pytest.raises(DataError, match=r"train.csv cannot be read \(ArrowInvalid\); get or export") as caught:
        write_cleaned(source, [0], tmp_path)
    assert "secret" not in str(caught.value)
    for suffix in (".npz", ".parquet"):
        broken = tmp_path / f"broken{suffix}"
        broken.write_bytes(b"no such thing")
        with pytest.raises(DataError, match=rf"broken{suffix} cannot be read"):
            write_cleaned(broken, [0], tmp_path)
        broken.unlink()
    own = source.rename(tmp_path / "cleaned.csv")
    with pytest.raises(OutputError, match="would be overwritten; give another output folder"):
        write_cleaned(own, [0], tmp_path)
    source = csv_file(tmp_path, b"text\na\nb\n")
    own.unlink()
    with pytest.raises(OutputError, match="cannot write"):
        write_cleaned(source, [0], tmp_path / "nowhere")
    monkeypatch.setattr(pa.csv, "write_csv", lambda kept, out: out.write(b"text\na\n"))
    with pytest.raises(OutputError, match=r"are not those of train\.csv less the forgotten ones"):
        write_cleaned(source, [0], tmp_path)
    assert files(tmp_path) == ["train.csv"]


def test_a_list_of_rows_has_their_ids(tmp_path: Path) -> None:
    source = csv_file(tmp_path, b"text,name\na,p\nb,q\nc,r\n")
    goal = cleaned(source, [2, 1], tmp_path, mode="rows", ids=["p", 'q, "2"', "r"])
    assert goal.read_text() == 'row,id\n1,"q, ""2"""\n2,r\n'
    goal = cleaned(None, [2], tmp_path, mode="rows", ids=np.array([10, 11, 12]))
    assert goal.read_text() == "row,id\n2,12\n"


def test_pictures_are_listed_by_their_files_in_the_reader_s_order(tmp_path: Path) -> None:
    place = tmp_path / "pictures"
    for at, name in enumerate(["b/2.png", "b/10.png", "a/z.PNG", "a/.hidden.png", ".c/1.png", "a/notes.txt"]):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"")
        if name.lower().endswith("png"):
            Image.new("RGB", (4, 4), (at, 0, 0)).save(place / name, "PNG")
    assert read_records(place).content[:, 0, 0, 0].tolist() == [2, 1, 0]
    goal, why = write_cleaned(place, [0, 2], tmp_path)
    assert goal.read_text() == "row,file\n0,a/z.PNG\n2,b/2.png\n"
    assert [path.name for path in picture_files(place)] == ["z.PNG", "10.png", "2.png"]
    assert "the folder of pictures pictures cannot be rewritten here" in why
    with pytest.raises(InputError, match="row 3 is not in pictures"):
        write_cleaned(place, [3], tmp_path)


# --- jobs ------------------------------------------------------------------------------------------------------------

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
        cleaned, train = (pa.csv.read_csv(folder / name) for name in ("forgotten/cleaned.csv", "train.csv"))
        assert cleaned.equals(train.slice(0, 120))


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
    found = run(write_job(folder, output={"allow": ["unknown-records"]}))
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


def test_a_file_that_is_not_utf8_throughout_gets_a_list(tmp_path: Path) -> None:
    source = csv_file(tmp_path, "text,label\na,caf\u00e9\nb,th\u00e9\n".encode("latin-1"))
    path, why = write_cleaned(source, [0], tmp_path)
    assert path.name == "rows-to-delete.csv"
    assert "not UTF-8 throughout" in why


def test_a_byte_order_mark_stays(tmp_path: Path) -> None:
    path, _ = write_cleaned(csv_file(tmp_path, b"\xef\xbb\xbftext\na\nb\n"), [0], tmp_path)
    assert path.read_bytes() == b'\xef\xbb\xbf"text"\n"b"\n'


@pytest.mark.parametrize("rows", [[False, True], [0.0, 1.7]])
def test_rows_that_are_no_row_numbers_are_refused(tmp_path: Path, rows: list[Any]) -> None:
    with pytest.raises(InputError, match=r"rows are of dtype (bool|float64), expected row numbers"):
        write_cleaned(csv_file(tmp_path, b"text\na\nb\n"), rows, tmp_path)


def _one_less(out: Any, **arrays: Any) -> None:
    np.savez_compressed(out, **{name: array[1:] for name, array in arrays.items()})


@pytest.mark.parametrize(
    ("suffix", "broken", "by"),
    [
        (".csv", "pyarrow.csv.write_csv", lambda kept, out: out.write(b'"text"\n"b"\n')),
        (".npz", "numpy.savez", _one_less),
        (".parquet", "pyarrow.parquet.write_table", lambda kept, goal, write=pq.write_table: write(kept[1:], goal)),
    ],
)
def test_a_file_that_came_out_wrong_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, broken: str, by: Any
) -> None:
    csv_file(tmp_path, b"text\na\nb\nc\n")
    np.savez(tmp_path / "train.npz", x=np.arange(6.0).reshape(3, 2))
    pq.write_table(pa.table({"text": ["a", "b", "c"]}), tmp_path / "train.parquet")
    before = files(tmp_path)
    monkeypatch.setattr(broken, by)
    with pytest.raises(OutputError, match="less the forgotten"):
        write_cleaned(tmp_path / f"train{suffix}", [0], tmp_path)
    assert files(tmp_path) == before
