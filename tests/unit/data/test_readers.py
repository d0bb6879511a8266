"""Datasets of one's own: what is read is what was written; what cannot be read says which, where and what now."""

from __future__ import annotations

import io
import os
import random
import re
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from forsaken.data.readers import read_records, read_table
from forsaken.data.records import Records
from forsaken.errors import DataError, DataNotFoundError, EmptyError, ForsakenError, InputError, SettingsError

RED, BLUE = (250, 10, 20), (0, 30, 240)
NUMBERS = np.arange(12, dtype=np.float64).reshape(6, 2)


def picture(colour: tuple[int, int, int], size: tuple[int, int] = (4, 6)) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (size[1], size[0]), colour).save(content, "PNG")
    return content.getvalue()


def parquet(folder: Path, **columns: Any) -> Path:
    path = folder / "own.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def csv(folder: Path, content: str | bytes) -> Path:
    path = folder / "own.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def npz(folder: Path, **arrays: Any) -> Path:
    path = folder / "own.npz"
    np.savez(path, **arrays)
    return path


def refusal(path: Path, kind: type[ForsakenError], **settings: Any) -> str:
    with pytest.raises(kind) as caught:
        read_records(path, **settings)
    return str(caught.value)


def test_texts_and_names_of_a_parquet_file(tmp_path: Path) -> None:
    found = read_records(parquet(tmp_path, text=["x", "ü", "z"], label=["pear", "apple", "pear"]))
    assert found.kind == "text"
    assert found.content.tolist() == ["x", "ü", "z"]
    assert (found.labels.tolist(), found.labels.dtype, found.names) == ([1, 0, 1], np.int64, ("apple", "pear"))


def test_texts_of_a_parquet_file_that_are_not_utf_8_are_refused_and_not_shown(tmp_path: Path) -> None:
    damaged = pa.StringArray.from_buffers(2, *pa.array([b"one", b"tw\xff"]).buffers()[1:])
    with pytest.raises(DataError, match=r"own\.parquet cannot be read as Parquet") as caught:
        read_records(parquet(tmp_path, text=damaged, label=[0, 1]))
    assert "one" not in str(caught.value)


@pytest.mark.parametrize("wrap", [lambda content: {"bytes": content, "path": "p"}, bytes], ids=["struct", "binary"])
def test_pictures_of_a_parquet_file(tmp_path: Path, wrap: Callable[[bytes], object]) -> None:
    found = read_records(parquet(tmp_path, image=[wrap(picture(RED)), wrap(picture(BLUE))], label=[1, 0]))
    assert found.kind == "image"
    assert found.content.shape == (2, 4, 6, 3)
    assert found.content[:, 3, 5].tolist() == [list(RED), list(BLUE)]


def test_features_are_the_columns_of_numbers_in_their_order(tmp_path: Path) -> None:
    path = parquet(tmp_path, b=[1, 2], word=["x", "y"], a=[0.5, 1.5], label=[0, 1], id=[7, 8], split=[1, 2])
    with pytest.raises(DataError, match=r"column 'word' is of type string, .*columns=\['word'\]"):
        read_records(path)
    found = read_records(path, columns=["word"])
    assert (found.kind, found.content.dtype) == ("features", np.float32)
    assert found.content.tolist() == [[1, 0.5], [2, 1.5]]


def test_names_beside_numbers_are_kept_by_number(tmp_path: Path) -> None:
    found = read_records(parquet(tmp_path, text=["x", "y"], label=[2, 0], label_name=["pear", "fig"]))
    assert found.names == ("fig", "1", "pear")


def test_another_column_may_hold_the_labels_or_none(tmp_path: Path) -> None:
    path = parquet(tmp_path, text=["x", "y"], topic=[3, 1])
    assert read_records(path, label="topic").labels.tolist() == [3, 1]
    assert read_records(path).labels is None


def test_further_columns_are_kept_and_a_missing_one_is_named(tmp_path: Path) -> None:
    path = parquet(tmp_path, text=["x", "y"], year=[1990, 1991], who=["b", "a"])
    found = read_records(path, columns=["who", "year"])
    assert {name: column.tolist() for name, column in found.columns.items()} == {
        "who": ["b", "a"],
        "year": [1990, 1991],
    }
    assert re.search(r"own\.parquet has no column 'yaer' .*year", refusal(path, DataError, columns=["yaer"]))


def test_csv_with_quotes_newlines_commas_and_other_alphabets(tmp_path: Path) -> None:
    path = csv(tmp_path, 'text,label,n\n"one, two\nthree ""four""",яблоко,1\nプラム,ähre,2\n')
    found = read_records(path, columns=["n"])
    assert found.content.tolist() == ['one, two\nthree "four"', "プラム"]
    assert found.names == ("ähre", "яблоко")
    assert (found.labels.tolist(), found.columns["n"].tolist()) == ([1, 0], [1, 2])
    assert read_records(csv(tmp_path, "a,b,label\n1,2.5,0\n3,4,1\n")).content.tolist() == [[1, 2.5], [3, 4]]


def test_a_long_csv_file_of_texts_with_newlines(tmp_path: Path) -> None:
    text = "a\nlong, text\n" * 100
    path = csv(tmp_path, "text,label\n" + "".join(f'"{text}{at}",{at % 2}\n' for at in range(2500)))
    assert path.stat().st_size > 3 * 2**20
    assert read_records(path).content.tolist() == [f"{text}{at}" for at in range(2500)]


@pytest.mark.parametrize(("inputs", "labels"), [("inputs", "labels"), ("x", "y")])
def test_npz_under_either_pair_of_names(tmp_path: Path, inputs: str, labels: str) -> None:
    found = read_records(npz(tmp_path, **{inputs: NUMBERS, labels: np.arange(6, dtype=np.uint8)}))
    assert (found.content.dtype, found.labels.dtype) == (np.float32, np.int64)
    assert found.content.tolist() == NUMBERS.tolist()
    assert found.labels.tolist() == list(range(6))


def test_npz_of_bytes_in_four_axes_holds_pictures(tmp_path: Path) -> None:
    pixels = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    found = read_records(npz(tmp_path, images=pixels))
    assert (found.kind, found.labels) == ("image", None)
    assert np.array_equal(found.content, pixels)


def test_a_broken_picture_and_one_of_another_size_are_named_with_their_row(tmp_path: Path) -> None:
    message = refusal(parquet(tmp_path, image=[picture(RED), picture(RED)[:40]]), DataError)
    assert re.search(r"own\.parquet: the picture of row 1 .*replace or remove it", message)
    message = refusal(parquet(tmp_path, image=[picture(RED), picture(BLUE, (9, 2))]), DataError)
    assert re.search(r"own\.parquet: the picture of row 1 has 9 x 2 pixels, .*; give size=\(height, width\)", message)
    assert read_records(tmp_path / "own.parquet", size=(5, 3)).content.shape == (2, 5, 3, 3)


def test_a_missing_path_and_an_unknown_suffix_are_named(tmp_path: Path) -> None:
    assert re.search(r"no file or folder .*absent\.csv; check", refusal(tmp_path / "absent.csv", DataNotFoundError))
    (tmp_path / "set.xlsx").write_bytes(b"")
    assert re.search(r"set\.xlsx ends in '\.xlsx', expected \.parquet", refusal(tmp_path / "set.xlsx", DataError))


@pytest.mark.parametrize("make", [parquet, npz], ids=["parquet", "npz"])
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_cut_file_is_named(tmp_path: Path, make: Callable[..., Path], share: float) -> None:
    path = make(tmp_path, inputs=np.arange(500.0))
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    message = refusal(path, DataError)
    assert str(path) in message
    assert re.search("get or export it again|expected arrays of numbers", message)


@pytest.mark.parametrize(
    "content",
    [b"\n", b"text,label\na,0\nb\n", b'text,label\n"a,0\n', "text,label\na,0\n".encode("utf-16")],
    ids=["blank", "ragged", "open quote", "utf-16"],
)
def test_a_damaged_csv_file_is_named(tmp_path: Path, content: bytes) -> None:
    message = refusal(csv(tmp_path, content), DataError)
    assert re.search(r"own\.csv cannot be read as CSV .*header line, commas, quoted texts, and UTF-8", message)


class Mine:
    """What runs code where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("key", ["inputs", "labels"])
def test_a_pickle_in_an_npz_file_is_refused_and_never_run(tmp_path: Path, key: str) -> None:
    mine = np.array([Mine(tmp_path / "written")] * 6, dtype=object)
    path = npz(tmp_path, **({"inputs": NUMBERS} | {key: mine}))
    assert re.search(r"own\.npz .*objects are refused, since they may carry code", refusal(path, DataError))
    assert not (tmp_path / "written").exists()
    with np.load(path, allow_pickle=True) as arrays:
        _ = arrays[key]
    assert (tmp_path / "written").exists(), "the pickle was not malicious after all"


def test_no_rows_are_an_error_of_their_own(tmp_path: Path) -> None:
    empty = (
        parquet(tmp_path, text=pa.array([], pa.string())),
        csv(tmp_path, "text,label\n"),
        npz(tmp_path, x=np.zeros((0, 3))),
    )
    for path in empty:
        assert refusal(path, EmptyError) == f"{path} holds no rows; give at least one"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a", None]}, r"column 'text' has no value in row 1; fill it in or drop the row"),
        ({"text": ["a", "b"], "label": [None, 1]}, r"column 'label' has no value in row 0; fill it in"),
        ({"image": [picture(RED), None]}, r"column 'image' has no value in row 1; fill it in"),
        ({"a": [1.5, None]}, r"column 'a' has no value in row 1; fill it in"),
        (
            {"text": ["a", "b"], "label": [0, -3]},
            r"label of row 1 is out of range, expected a class number of 0 or more",
        ),
        ({"text": ["a", "b"], "label": [0.0, 1.0]}, r"column 'label' is of type double, expected class numbers"),
        ({"text": [1, 2]}, r"column 'text' is of type int64, expected strings"),
        (
            {"word": ["a", "b"], "label": [0, 1]},
            r"no column 'text', 'image' or of numbers \(found: word, label\); rename",
        ),
    ],
)
def test_values_that_cannot_be_used_are_named(tmp_path: Path, columns: dict[str, list[Any]], message: str) -> None:
    assert re.search(rf"own\.parquet.* {message}", refusal(parquet(tmp_path, **columns), DataError))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"inputs": NUMBERS, "labels": np.arange(5)}, r"6 rows of inputs but labels of shape \(5,\)"),
        ({"inputs": NUMBERS, "labels": np.zeros((6, 2), int)}, r"6 rows of inputs but labels of shape \(6, 2\)"),
        ({"inputs": NUMBERS, "labels": np.arange(6.0)}, r"labels of type float64, expected class numbers"),
        (
            {"inputs": NUMBERS, "labels": -np.arange(6)},
            r"the label of row 1 is out of range, expected a class number of 0 or more",
        ),
        ({"inputs": NUMBERS * 1j}, r"inputs of type complex128, expected numbers"),
        ({"z": NUMBERS}, r"has no array 'inputs' or 'x' \(found: z\); name one of them so"),
    ],
)
def test_arrays_that_cannot_be_used_are_named(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    assert re.search(rf"own\.npz.* {message}", refusal(npz(tmp_path, **arrays), DataError))


@pytest.mark.parametrize("start", [".parquet PAR1", ".csv text,label\n", ".npz PK\x03\x04"])
def test_random_bytes_are_a_foreseen_error_or_none(tmp_path: Path, start: str) -> None:
    draw = random.Random(0)
    suffix, _, head = start.partition(" ")
    path = tmp_path / f"own{suffix}"
    told = []
    for _ in range(100):
        path.write_bytes(head.encode() + draw.randbytes(draw.randrange(60)))
        try:
            read_records(path)
        except ForsakenError as error:
            told.append(str(error))
    assert len(told) >= 80
    assert all(str(path) in message for message in told)


def saved(save: Callable[..., None], *arrays: Any, **named: Any) -> bytes:
    content = io.BytesIO()
    save(content, *arrays, **named)
    return content.getvalue()


def pack(file: io.BytesIO, member: bytes) -> None:
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("inputs.npy", member)


COMPRESSED = saved(np.savez_compressed, inputs=np.arange(4000.0))
TWICE = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
ODD = {
    "an array under the name of npz": ("own.npz", saved(np.save, NUMBERS)),
    "npz member that is no array": ("own.npz", saved(pack, b"hello")),
    "npz member with half a header": ("own.npz", saved(pack, b"\x93NUMPY\x01\x00\x0a\x00{'descr':\n")),
    "npz member of damaged content": ("own.npz", COMPRESSED[:80] + bytes(220) + COMPRESSED[300:]),
    "csv column twice": ("own.csv", b"text,text,label\na,b,0\n"),
    "csv header not in utf-8": ("own.csv", b"t\xe4xt,label\na,0\n"),
    "parquet column twice": ("own.parquet", saved(lambda file: pq.write_table(TWICE, file))),
}


@pytest.mark.parametrize(("name", "content"), ODD.values(), ids=ODD)
def test_odd_content_is_named_too(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert name in refusal(tmp_path / name, DataError)


@pytest.mark.parametrize(
    "columns",
    [{"image": [{"path": "a.png"}]}, {"text": ["a", "b"], "label": [[1], [1, 2]]}],
    ids=["no bytes", "lists as labels"],
)
def test_odd_columns_are_named_too(tmp_path: Path, columns: dict[str, Any]) -> None:
    assert "own.parquet" in refusal(parquet(tmp_path, **columns), DataError)


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=["large", "category"])
def test_names_are_labels_however_arrow_keeps_them(tmp_path: Path, kind: pa.DataType) -> None:
    found = read_records(parquet(tmp_path, text=["x", "y"], label=pa.array(["pear", "apple"]).cast(kind)))
    assert found.names == ("apple", "pear")


def test_records_know_their_kind_and_give_rows_in_the_order_asked_for() -> None:
    texts = Records(np.array(["a", "b", "c"], dtype=object), np.array([0, 1, 2]), ("x", "y", "z"), {"n": np.arange(3)})
    some = texts.rows(np.array([2, 0]))
    assert (texts.kind, len(texts), len(some)) == ("text", 3, 2)
    assert (some.content.tolist(), some.labels.tolist(), some.names) == (["c", "a"], [2, 0], ("x", "y", "z"))
    assert some.columns["n"].tolist() == [2, 0]
    with pytest.raises(InputError, match="tokeniser"):
        texts.samples()


def test_pictures_whose_names_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pictures" / "cat").mkdir(parents=True)
    (tmp_path / "pictures" / "cat" / "1.png").write_bytes(picture(RED))
    try:
        Path(os.fsdecode(bytes(tmp_path / "pictures" / "cat") + b"/M\xfcller.png")).write_bytes(picture(RED))
    except OSError:
        pytest.skip("this file system takes names in UTF-8 alone")
    told = refusal(tmp_path / "pictures", DataError)
    assert r"the name of the picture cat/M\udcfcller.png in" in told
    assert "is not UTF-8; rename it" in told


def test_pictures_become_samples_with_channels_first() -> None:
    pixels = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    samples = Records(pixels, np.array([1, 0])).samples()
    assert (samples.inputs.shape, samples.inputs.dtype) == ((2, 3, 3, 4), torch.uint8)
    assert samples.inputs[1, 2, 0, 3] == pixels[1, 0, 3, 2]
    assert samples.labels.tolist() == [1, 0]
    assert Records(NUMBERS.astype(np.float32)).samples().inputs.tolist() == NUMBERS.tolist()


def test_a_class_number_beyond_reason_is_refused_at_once(tmp_path: Path) -> None:
    path = parquet(tmp_path, text=["a", "b"], label=[0, 10**12], label_name=["x", "y"])
    start = time.monotonic()
    with pytest.raises(DataError, match=r"row 1 is out of range, .* is 'label' the right column"):
        read_records(path)
    assert time.monotonic() - start < 5


def test_a_mistyped_label_column_is_no_missing_one(tmp_path: Path) -> None:
    path = csv(tmp_path, "text,topic\na,x\nb,y\n")
    assert read_records(path).labels is None
    with pytest.raises(DataError, match="did you mean 'topic'"):
        read_records(path, label="topics")
    assert read_records(path, label="topic").names == ("x", "y")


def test_labels_and_kept_columns_are_no_features(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,b,label,topic,weight\n1,2,0,x,9\n3,4,1,y,8\n")
    found = read_records(path, label="topic", columns=["weight"])
    assert found.content.tolist() == [[1, 2], [3, 4]]
    assert found.columns["weight"].tolist() == [9, 8]


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_features_must_be_finite(tmp_path: Path, value: str) -> None:
    with pytest.raises(DataError, match=r"column 'b' (is NaN or infinite|has no value) in row 1"):
        read_records(csv(tmp_path, f"a,b\n1,2\n3,{value}\n"))
    np.savez(tmp_path / "own.npz", x=np.array([[0.0], [float(value)]]))
    with pytest.raises(DataError, match="inputs of row 1 are NaN or infinite"):
        read_records(tmp_path / "own.npz")


def test_a_text_that_looks_like_a_number_stays_a_text(tmp_path: Path) -> None:
    assert read_records(csv(tmp_path, "text,label\n007,0\ntrue,1\n")).content.tolist() == ["007", "true"]


def test_a_long_text_is_read_whole(tmp_path: Path) -> None:
    long = "word " * 600_000
    assert read_records(csv(tmp_path, f'text,label\n"{long}",0\nb,1\n')).content[0] == long


def test_a_ragged_row_is_told_and_never_quoted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Expected 2 columns, got 3") as caught:
        read_records(csv(tmp_path, "text,label\na,0\nsecret,1,9\n"))
    assert "secret" not in str(caught.value)


def test_an_empty_class_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column 'label' is empty in row 1"):
        read_records(parquet(tmp_path, text=["a", "b"], label=["x", ""]))


def test_unsigned_labels_do_not_turn_negative(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((2, 1)), y=np.array([0, 2**63], dtype=np.uint64))
    with pytest.raises(DataError, match=r"row 1 is out of range"):
        read_records(tmp_path / "own.npz")


def test_settings_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((2, 1)))
    with pytest.raises(SettingsError, match="size= means nothing for an NPZ file"):
        read_records(tmp_path / "own.npz", size=(4, 4))
    with pytest.raises(SettingsError, match="columns= means nothing for a folder"):
        read_records(tmp_path, columns=["a"])


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EmptyError, match="no rows"):
        read_records(csv(tmp_path, ""))
    with pytest.raises(DataNotFoundError):
        read_records(tmp_path / ("x" * 300))


def test_a_label_column_in_capitals_is_no_feature(tmp_path: Path) -> None:
    path = csv(tmp_path, "a,Label\n1,0\n2,1\n")
    with pytest.raises(DataError, match="column 'Label', expected 'label'"):
        read_records(path)
    assert read_records(path, label="Label").labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("name", "reader"), [("rows.csv", "pyarrow.csv.read_csv"), ("rows.parquet", "pyarrow.parquet.ParquetFile")]
)
def test_a_file_that_may_not_be_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reader: str
) -> None:
    path = tmp_path / name
    path.write_text("a,label\n1,0\n", encoding="utf-8")

    def closed(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(reader, closed)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\); check who may read it"):
        read_table(path)
