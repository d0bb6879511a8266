"""Cleaning: what stays is as it was, to the byte; what goes is gone from every corner of the file."""

from __future__ import annotations

import csv
import datetime as dt
import io
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from forsaken.data.readers import read_records
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import DataError, DataNotFoundError, InputError, OutputError, SettingsError
from forsaken.jobs import cleaning
from forsaken.jobs.cleaning import picture_files, rows_of, write_cleaned

SECRET = "SECRET-OF-A-PERSON"


def csv_file(folder: Path, content: bytes) -> Path:
    path = folder / "train.csv"
    path.write_bytes(content)
    return path


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_rows_of_a_forget_set_are_those_with_equal_content() -> None:
    texts = Records(np.array(["a", "b", "a", "c", "A"], dtype=object), np.array([0, 1, 2, 3, 4]))
    assert rows_of(texts.rows(np.array([0, 3])), texts).tolist() == [0, 2, 3]
    numbers = torch.tensor([[0.0, 1.0], [-0.0, 1.0], [2.0, 2.0]])
    assert rows_of(Samples(numbers[:1]), Samples(numbers)).tolist() == [0, 1]
    none = rows_of(Samples(numbers[:1] + 9), Samples(numbers))
    assert (none.tolist(), none.dtype) == ([], np.int64)


def test_a_csv_file_keeps_every_other_byte(tmp_path: Path) -> None:
    kept = [b'"one, two\r\nthree ""four""",1\r\n', b"\r\n", "プラム,2\r\n".encode(), b'  "odd" , 3 \r\n', b"last,5"]
    gone = [f'"{SECRET}\r\n""x""",4\r\n'.encode(), b"plain,9\r\n"]
    head = b'\xef\xbb\xbf"text",label\r\n'
    source = csv_file(tmp_path, head + kept[0] + gone[0] + kept[1] + kept[2] + gone[1] + kept[3] + kept[4])
    goal = write_cleaned(source, [3, 1], tmp_path)
    assert goal == tmp_path / "cleaned.csv"
    assert goal.read_bytes() == head + b"".join(kept)
    assert files(tmp_path) == ["cleaned.csv", "train.csv"]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_row_numbers_are_the_reader_s(tmp_path: Path, end: bytes) -> None:
    lines = [b"", b"text,label", b"a,0", b"", b'"b\n\n",1', b"c,0", b"", b"", b'd"e,1', b""]
    source = csv_file(tmp_path, end.join(lines))
    before = read_records(source)
    assert len(before) == 4
    after = read_records(write_cleaned(source, [1], tmp_path))
    assert after.content.tolist() == before.content[[0, 2, 3]].tolist() == ["a", "c", 'd"e']
    assert after.labels is not None
    assert after.labels.tolist() == [0, 0, 1]


def test_all_rows_of_a_csv_file_may_go(tmp_path: Path) -> None:
    source = csv_file(tmp_path, b"text,label\na,0\nb,1")
    assert write_cleaned(source, [0, 1], tmp_path).read_bytes() == b"text,label\n"
    assert write_cleaned(source, [], tmp_path).read_bytes() == source.read_bytes()


def test_a_quote_that_is_never_closed_falls_back_to_a_list(tmp_path: Path) -> None:
    source, notes = csv_file(tmp_path, b'text,label\na,0\n"b,1\n'), []
    goal = write_cleaned(source, [0], tmp_path, note=notes.append)
    assert (goal.name, goal.read_text()) == ("rows-to-delete.csv", "row,id\n0,0\n")
    assert files(tmp_path) == ["rows-to-delete.csv", "train.csv"]
    assert re.search(r"lists the rows to delete: train.csv .*a quote is opened and never closed", notes[0])


@settings(max_examples=150, deadline=None)
@example(cells=[["x", ""], ["", ""], ["\r", '"']], quoting=csv.QUOTE_MINIMAL, end="\r\n", gone={0})
@given(
    cells=st.integers(1, 3).flatmap(
        lambda wide: st.lists(
            st.lists(st.text(st.sampled_from("ab\",\r\n é漢\t;'0"), max_size=6), min_size=wide, max_size=wide),
            max_size=6,
        )
    ),
    quoting=st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    gone=st.sets(st.integers(0, 5)),
)
def test_what_python_wrote_is_read_back_without_the_rows(
    cells: list[list[str]], quoting: Any, end: str, gone: set[int]
) -> None:
    header = [f"column {at}" for at in range(len(cells[0]) if cells else 1)]
    rows = sorted(row for row in gone if row < len(cells))

    def written(some: list[list[str]]) -> bytes:
        text = io.StringIO(newline="")
        writer = csv.writer(text, quoting=quoting, lineterminator=end)
        # Python quotes only what its own lines end with; elsewhere a bare carriage return or newline would end a line.
        writer.writerows([re.sub("[\r\n]", end[0], cell) if len(end) == 1 else cell for cell in row] for row in some)
        return text.getvalue().encode()

    with tempfile.TemporaryDirectory() as folder:
        source = csv_file(Path(folder), written([header, *cells]))
        goal = write_cleaned(source, rows, Path(folder))
        kept = [row for at, row in enumerate(cells) if at not in rows]
        assert goal.name == "cleaned.csv"
        assert goal.read_bytes() == written([header, *kept])


def parquet_file(folder: Path) -> tuple[Path, pa.Table]:
    """Write a file with all that a table may hold; rows 1 and 6 carry the secret."""
    texts = [SECRET if at in (1, 6) else f"text {at}" for at in range(9)]
    schema = pa.schema(
        [
            pa.field("text", pa.dictionary(pa.int8(), pa.string())),
            pa.field("tags", pa.list_(pa.dictionary(pa.int32(), pa.string()))),
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


def test_a_parquet_file_keeps_its_schema_and_its_compression(tmp_path: Path) -> None:
    source, table = parquet_file(tmp_path)
    goal = write_cleaned(source, np.array([6, 1, 8, 6]), tmp_path)
    kept = [0, 2, 3, 4, 5, 7]
    with pq.ParquetFile(source) as before, pq.ParquetFile(goal) as after:
        assert after.schema_arrow.equals(before.schema_arrow, check_metadata=True)
        assert after.schema.equals(before.schema)
        assert str(after.read().to_pylist()) == str(table.take(kept).to_pylist())
        assert [after.metadata.row_group(at).num_rows for at in range(after.num_row_groups)] == [3, 3]
        for at in range(before.metadata.num_columns):
            old, new = before.metadata.row_group(0).column(at), after.metadata.row_group(0).column(at)
            assert (new.path_in_schema, new.compression) == (old.path_in_schema, old.compression)
            assert ("RLE_DICTIONARY" in new.encodings) == ("RLE_DICTIONARY" in old.encodings)
        assert after.metadata.metadata[b"made"] == b"by hand"
        assert after.metadata.format_version == before.metadata.format_version


def test_no_dictionary_keeps_what_was_removed(tmp_path: Path) -> None:
    source, table = parquet_file(tmp_path)
    pq.write_table(table, source, compression="none")
    assert SECRET.encode() in source.read_bytes()
    goal = write_cleaned(source, [1, 6], tmp_path)
    assert SECRET.encode() not in goal.read_bytes()
    assert SECRET not in str(pq.read_table(goal)["text"].combine_chunks().dictionary.to_pylist())


def test_all_rows_of_a_parquet_file_may_go(tmp_path: Path) -> None:
    source, _ = parquet_file(tmp_path)
    found = pq.read_table(write_cleaned(source, range(9), tmp_path))
    assert found.num_rows == 0
    assert found.schema.equals(pq.read_schema(source), check_metadata=True)


def test_timestamps_of_old_writers_stay_as_they_are(tmp_path: Path) -> None:
    source = tmp_path / "train.parquet"
    table = pa.table({"t": pa.array([1, 2, 3], pa.timestamp("ns")), "text": ["a", "b", "c"]})
    pq.write_table(table, source, use_deprecated_int96_timestamps=True, store_schema=False, version="1.0")
    goal = write_cleaned(source, [0], tmp_path)
    with pq.ParquetFile(goal) as after:
        assert after.metadata.row_group(0).column(0).physical_type == "INT96"
        assert after.read().equals(table.slice(1))


def test_a_parquet_file_is_read_a_row_group_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, _ = parquet_file(tmp_path)
    monkeypatch.setattr(pq.ParquetFile, "read", None)
    assert pq.read_metadata(write_cleaned(source, [0], tmp_path)).num_rows == 8


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
    goal = write_cleaned(tmp_path / "train.npz", [5, 0], tmp_path)
    with np.load(goal, allow_pickle=False) as found:
        assert found.files == list(arrays)
        for name, array in arrays.items():
            expected = array[1:5] if name in ("x", "y", "ids") else array
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], expected)
    with zipfile.ZipFile(goal) as new, zipfile.ZipFile(tmp_path / "train.npz") as old:
        assert [one.compress_type for one in new.infolist()] == [one.compress_type for one in old.infolist()]
    with np.load(write_cleaned(tmp_path / "train.npz", range(6), tmp_path), allow_pickle=False) as found:
        assert found["x"].shape == (0, 2, 2)


def test_an_npz_file_with_objects_falls_back_to_a_list(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x=np.zeros((2, 3)), more=np.array([{}, None], dtype=object))
    notes: list[str] = []
    goal = write_cleaned(tmp_path / "train.npz", [1], tmp_path, note=notes.append)
    assert goal.name == "rows-to-delete.csv"
    assert "'more' holds objects, which are not loaded" in notes[0]
    assert files(tmp_path) == ["rows-to-delete.csv", "train.npz"]


def test_a_list_of_rows_has_their_ids(tmp_path: Path) -> None:
    source = csv_file(tmp_path, b"text,name\na,p\nb,q\nc,r\n")
    ids = ["p", 'q, "2"', "r"]
    goal = write_cleaned(source, [2, 1], tmp_path, mode="rows", ids=ids)
    assert goal.read_text() == 'row,id\n1,"q, ""2"""\n2,r\n'
    goal = write_cleaned(None, [2], tmp_path, mode="rows", ids=np.array([10, 11, 12]))
    assert goal.read_text() == "row,id\n2,12\n"


def test_pictures_are_listed_by_their_files_in_the_reader_s_order(tmp_path: Path) -> None:
    place, notes = tmp_path / "pictures", []
    for at, name in enumerate(["b/2.png", "b/10.png", "a/z.PNG", "a/.hidden.png", ".c/1.png", "a/notes.txt"]):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(b"")
        if name.lower().endswith("png"):
            Image.new("RGB", (4, 4), (at, 0, 0)).save(place / name, "PNG")
    assert read_records(place).content[:, 0, 0, 0].tolist() == [2, 1, 0]
    goal = write_cleaned(place, [0, 2], tmp_path, note=notes.append)
    assert goal.read_text() == "row,file\n0,a/z.PNG\n2,b/2.png\n"
    assert [path.name for path in picture_files(place)] == ["z.PNG", "10.png", "2.png"]
    assert "a folder of pictures, pictures, and not written anew" in notes[0]
    with pytest.raises(InputError, match="row 3 is not in pictures, expected 0 to 2"):
        write_cleaned(place, [3], tmp_path)


@pytest.mark.parametrize("rows", [[0, 9], [-1]])
@pytest.mark.parametrize("suffix", [".csv", ".npz", ".parquet"])
def test_rows_out_of_range_are_refused_and_nothing_is_left(tmp_path: Path, suffix: str, rows: list[int]) -> None:
    source = tmp_path / f"train{suffix}"
    csv_file(tmp_path, b"text\na\nb\n")
    np.savez(tmp_path / "train.npz", x=np.zeros((2, 3)))
    pq.write_table(pa.table({"text": ["a", "b"]}), tmp_path / "train.parquet")
    before = files(tmp_path)
    with pytest.raises(InputError, match=rf"row {rows[-1]} is not in train{suffix}, expected 0 to 1 \(1 rows in all"):
        write_cleaned(source, rows, tmp_path)
    assert files(tmp_path) == before


def test_what_cannot_be_done_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = csv_file(tmp_path, b"text,label\nsecret,1\nb,2,3\n")
    with pytest.raises(DataError, match=r"train.csv cannot be read \(ArrowInvalid\); get or export") as caught:
        write_cleaned(source, [0], tmp_path)
    assert "secret" not in str(caught.value)
    with pytest.raises(DataNotFoundError, match=r"no file or folder .*missing.csv"):
        write_cleaned(tmp_path / "missing.csv", [0], tmp_path)
    with pytest.raises(SettingsError, match="did you mean 'dataset'"):
        write_cleaned(source, [0], tmp_path, mode="datasets")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="rows are of type float64 and shape"):
        write_cleaned(source, [0.5], tmp_path)  # type: ignore[list-item]
    for suffix in (".npz", ".parquet"):
        broken = tmp_path / f"broken{suffix}"
        broken.write_bytes(b"no such thing")
        with pytest.raises(DataError, match=rf"broken{suffix} cannot be read"):
            write_cleaned(broken, [0], tmp_path)
        broken.unlink()
    own = source.rename(tmp_path / "cleaned.csv")
    with pytest.raises(OutputError, match="would be overwritten; give another output folder"):
        write_cleaned(own, [0], tmp_path)
    assert files(tmp_path) == ["cleaned.csv"]
    with pytest.raises(OutputError, match="cannot write"):
        write_cleaned(csv_file(tmp_path, b"text\na\n"), [0], tmp_path / "nowhere")


def _one_less(out: Any, array: Any, write: Any = np.lib.format.write_array, **_: Any) -> None:
    write(out, array[1:])


@pytest.mark.parametrize(
    ("suffix", "broken", "by"),
    [
        (".csv", "forsaken.jobs.cleaning._lines", lambda *_: iter([b"text\n", b"a\n", b"b\n", b"d\n"])),
        (".npz", "numpy.lib.format.write_array", _one_less),
        (".parquet", "pyarrow.parquet.ParquetWriter.write_table", lambda *_, **__: None),
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
    with pytest.raises(OutputError, match=rf"cannot write .*cleaned{suffix}: .*(less|not the source's)"):
        write_cleaned(tmp_path / f"train{suffix}", [0], tmp_path)
    assert files(tmp_path) == before


def test_the_suffix_decides_in_any_case(tmp_path: Path) -> None:
    source = csv_file(tmp_path, b"text\na\nb\n").rename(tmp_path / "TRAIN.CSV")
    assert write_cleaned(source, [0], tmp_path).read_bytes() == b"text\nb\n"
    assert cleaning.ROWS_FILE == "rows-to-delete.csv"
