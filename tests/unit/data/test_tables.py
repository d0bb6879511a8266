"""Tables that are nearly right: nothing is guessed, and no row is quoted."""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from forsaken.data.pictures import decode_pictures
from forsaken.data.readers import read_records
from forsaken.errors import DataError, DataNotFoundError, EmptyError, SettingsError


def parquet(tmp_path: Path, **columns: object) -> Path:
    path = tmp_path / "own.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def csv(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "own.csv"
    path.write_text(content, encoding="utf-8")
    return path


def test_a_class_number_beyond_reason_is_refused_at_once(tmp_path) -> None:
    path = parquet(tmp_path, text=["a", "b"], label=[0, 10**12], label_name=["x", "y"])
    start = time.monotonic()
    with pytest.raises(DataError, match=r"row 1 is out of range, .* is 'label' the right column"):
        read_records(path)
    assert time.monotonic() - start < 5


def test_a_mistyped_label_column_is_no_missing_one(tmp_path) -> None:
    path = csv(tmp_path, "text,topic\na,x\nb,y\n")
    assert read_records(path).labels is None
    with pytest.raises(DataError, match="did you mean 'topic'"):
        read_records(path, label="topics")
    assert read_records(path, label="topic").names == ("x", "y")


def test_labels_and_kept_columns_are_no_features(tmp_path) -> None:
    path = csv(tmp_path, "a,b,label,topic,weight\n1,2,0,x,9\n3,4,1,y,8\n")
    found = read_records(path, label="topic", columns=["weight"])
    assert found.content.tolist() == [[1, 2], [3, 4]]
    assert found.columns["weight"].tolist() == [9, 8]


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_features_must_be_finite(tmp_path, value: str) -> None:
    with pytest.raises(DataError, match=r"column 'b' (is NaN or infinite|has no value) in row 1"):
        read_records(csv(tmp_path, f"a,b\n1,2\n3,{value}\n"))
    np.savez(tmp_path / "own.npz", x=np.array([[0.0], [float(value)]]))
    with pytest.raises(DataError, match="inputs of row 1 are NaN or infinite"):
        read_records(tmp_path / "own.npz")


def test_a_text_that_looks_like_a_number_stays_a_text(tmp_path) -> None:
    assert read_records(csv(tmp_path, "text,label\n007,0\ntrue,1\n")).content.tolist() == ["007", "true"]


def test_a_long_text_is_read_whole(tmp_path) -> None:
    long = "word " * 600_000
    assert read_records(csv(tmp_path, f'text,label\n"{long}",0\nb,1\n')).content[0] == long


def test_a_ragged_row_is_told_and_never_quoted(tmp_path) -> None:
    with pytest.raises(DataError, match="Expected 2 columns, got 3") as caught:
        read_records(csv(tmp_path, "text,label\na,0\nsecret,1,9\n"))
    assert "secret" not in str(caught.value)


def test_an_empty_class_name_is_refused(tmp_path) -> None:
    with pytest.raises(DataError, match="column 'label' is empty in row 1"):
        read_records(parquet(tmp_path, text=["a", "b"], label=["x", ""]))


def test_unsigned_labels_do_not_turn_negative(tmp_path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((2, 1)), y=np.array([0, 2**63], dtype=np.uint64))
    with pytest.raises(DataError, match=r"row 1 is out of range"):
        read_records(tmp_path / "own.npz")


def test_settings_that_mean_nothing_are_refused(tmp_path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((2, 1)))
    with pytest.raises(SettingsError, match="size= means nothing for an NPZ file"):
        read_records(tmp_path / "own.npz", size=(4, 4))
    with pytest.raises(SettingsError, match="columns= means nothing for a folder"):
        read_records(tmp_path, columns=["a"])


def test_nothing_to_read_is_an_error(tmp_path) -> None:
    with pytest.raises(EmptyError, match="no rows"):
        read_records(csv(tmp_path, ""))
    with pytest.raises(EmptyError, match="no pictures"):
        decode_pictures([], names=[])
    with pytest.raises(DataNotFoundError):
        read_records(tmp_path / ("x" * 300))


def encoded(mode: str, size: tuple[int, int] = (4, 4)) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, format="PNG")
    return buffer.getvalue()


def test_sixteen_bits_a_channel_are_refused_rather_than_clipped() -> None:
    with pytest.raises(DataError, match="it has more than 8 bits a channel; scale it"):
        decode_pictures([encoded("I;16")], names=["it"])


def test_a_picture_that_claims_too_many_pixels_is_refused() -> None:
    with pytest.raises(DataError, match="it has more than 67,108,864 pixels"):
        decode_pictures([encoded("1", (9000, 9000))], names=["it"])


def test_files_that_a_file_manager_leaves_are_no_pictures(tmp_path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(encoded("RGB"))
    (tmp_path / "a" / "._x.png").write_bytes(b"no picture")
    assert len(read_records(tmp_path)) == 1


def test_a_label_column_in_capitals_is_no_feature(tmp_path) -> None:
    path = csv(tmp_path, "a,Label\n1,0\n2,1\n")
    with pytest.raises(DataError, match="column 'Label', expected 'label'"):
        read_records(path)
    assert read_records(path, label="Label").labels.tolist() == [0, 1]
