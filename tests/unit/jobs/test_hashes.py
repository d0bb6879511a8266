"""Fingerprints against hashes that are computed by hand."""

from __future__ import annotations

import hashlib
import hmac
import os
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from forsaken.data.record_hashes import record_hashes
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import DataError, DataNotFoundError, SettingsError
from forsaken.jobs.certificate import canonical_json, file_hash, settings_hash

KEY = bytes(range(32))


def keyed(message: bytes) -> str:
    return hmac.new(KEY, message, hashlib.sha256).hexdigest()


def texts(*lines: str) -> Records:
    return Records(np.array(lines, dtype=object))


def test_a_file_s_hash_is_sha256(tmp_path: Path) -> None:
    content = os.urandom(3 * 2**20 + 17)  # more than one block, and not a whole number of them
    (tmp_path / "w").write_bytes(content)
    assert file_hash(tmp_path / "w") == hashlib.sha256(content).hexdigest()
    (tmp_path / "empty").write_bytes(b"")
    assert file_hash(str(tmp_path / "empty")) == hashlib.sha256(b"").hexdigest()


def make_folder(folder: Path) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "b.json").write_bytes(b"{}")
    (folder / "a b").write_bytes(b"1")
    (folder / "sub" / "ä.bin").write_bytes(b"2")
    (folder / ".hidden").write_bytes(b"3")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_bytes(b"4")
    return folder


def test_a_folder_s_hash_covers_names_and_content(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    lines = [("a b", b"1"), ("b.json", b"{}"), ("sub/ä.bin", b"2")]
    by_hand = b"".join(hashlib.sha256(c).hexdigest().encode() + b"  " + n.encode() + b"\0" for n, c in lines)
    first = file_hash(folder)
    assert first == hashlib.sha256(by_hand).hexdigest()
    (folder / ".hidden").write_bytes(b"other")
    assert file_hash(folder) == first
    (folder / "b.json").write_bytes(b"{ }")
    second = file_hash(folder)
    (folder / "b.json").rename(folder / "c.json")
    assert len({first, second, file_hash(folder)}) == 3


def test_the_order_of_a_folder_s_files_does_not_matter(tmp_path: Path) -> None:
    names = [f"{number:02d}" for number in range(40)]
    for folder, order in (("up", names), ("down", names[::-1])):
        (tmp_path / folder).mkdir()
        for name in order:
            (tmp_path / folder / name).write_text(name)
    by_hand = b"".join(f"{hashlib.sha256(name.encode()).hexdigest()}  {name}\0".encode() for name in names)
    expected = hashlib.sha256(by_hand).hexdigest()
    assert file_hash(tmp_path / "up") == file_hash(tmp_path / "down") == expected


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="needs sha256sum")
def test_a_folder_s_hash_is_what_the_shell_says(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    command = (
        "find -L . -type f -not -path '*/.*' -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 sha256sum -z | sha256sum"
    )
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == file_hash(folder)


def test_links_to_files_count_as_files_and_links_to_folders_are_refused(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "model")
    plain = file_hash(folder)
    (tmp_path / "blob").write_bytes(b"{}")
    (folder / "b.json").unlink()
    (folder / "b.json").symlink_to(tmp_path / "blob")
    assert file_hash(folder) == plain
    (folder / "loop").symlink_to(folder)
    with pytest.raises(DataError, match="loop is a link to a folder"):
        file_hash(folder)


def test_what_cannot_be_hashed_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataNotFoundError, match=r"no file or folder .*nothing; check the path"):
        file_hash(tmp_path / "nothing")
    with pytest.raises(DataError, match="holds no files"):
        file_hash(tmp_path)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataNotFoundError):
        file_hash(tmp_path)
    (tmp_path / "gone").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe is no plain file"):
        file_hash(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        file_hash(tmp_path / "pipe" / "inside")
    with pytest.raises(DataError, match="pipe is no plain file"):
        file_hash(tmp_path / "pipe")


def test_settings_hash_is_that_of_canonical_json() -> None:
    plain = b'{"a":[1,2.5,null,true],"b":{"x":"\xc3\xa9"}}'
    assert settings_hash({"b": {"x": "é"}, "a": [1, 2.5, None, True]}) == hashlib.sha256(plain).hexdigest()
    assert settings_hash({"a": (1,)}) == settings_hash({"a": [1]})
    assert canonical_json({"b": 1, "a": 2}) == b'{"a":2,"b":1}'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1}, b"x", "\ud800", Path()])
def test_settings_that_json_cannot_carry_are_refused(value: object) -> None:
    with pytest.raises(SettingsError, match="JSON cannot carry"):
        settings_hash({"a": value})


def test_texts() -> None:
    found = record_hashes(texts("naïve", "", "a\0b"), KEY)
    assert found == [keyed(b"text\0" + "naïve".encode()), keyed(b"text\0"), keyed(b"text\0a\0b")]


def test_half_a_character_pair_is_hashed() -> None:
    one, other = record_hashes(texts("\ud800", "\udc00"), KEY)
    assert one == keyed(b"text\0\xed\xa0\x80")
    assert one != other


def test_pictures_by_hand_and_their_shape_counts() -> None:
    pixels = np.arange(2 * 2 * 3 * 3, dtype=np.uint8).reshape(2, 2, 3, 3)
    head = b"image\0" + struct.pack("<4Q", 3, 2, 3, 3)
    assert record_hashes(Records(pixels), KEY) == [keyed(head + pixels[at].tobytes()) for at in range(2)]
    turned = pixels.reshape(2, 3, 2, 3)
    assert not set(record_hashes(Records(pixels), KEY)) & set(record_hashes(Records(turned), KEY))


def test_pictures_whose_memory_is_not_in_order() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    view = np.asfortranarray(pixels)
    assert record_hashes(Records(view), KEY) == record_hashes(Records(pixels), KEY)


def test_features_by_hand_and_minus_zero_is_zero() -> None:
    rows = np.array([[1.5, -0.0], [-2.0, 3.0]], dtype=np.float32)
    head = b"features\0" + struct.pack("<2Q", 1, 2)
    expected = [keyed(head + struct.pack("<2f", 1.5, 0.0)), keyed(head + struct.pack("<2f", -2.0, 3.0))]
    assert record_hashes(Records(rows), KEY) == expected
    assert record_hashes(Records(rows.astype(np.float64)), KEY) == expected
    assert record_hashes(Records(rows.astype(">f4")), KEY) == expected


def test_labels_do_not_count() -> None:
    rows = np.eye(3, dtype=np.float32)
    assert record_hashes(Records(rows, np.array([0, 1, 2])), KEY) == record_hashes(Records(rows), KEY)


def test_samples_by_hand() -> None:
    inputs = {"ids": torch.tensor([[1, 2], [3, 4]]), "mask": torch.tensor([True, False])}
    samples = Samples(inputs, torch.tensor([0, 1]))
    ids = b"int64\0" + struct.pack("<2Q", 1, 2)
    mask = b"bool\0" + struct.pack("<Q", 0)
    expected = [
        keyed(b"samples\0" + ids + struct.pack("<2q", 1, 2) + mask + b"\1"),
        keyed(b"samples\0" + ids + struct.pack("<2q", 3, 4) + mask + b"\0"),
    ]
    assert record_hashes(samples, KEY) == expected
    assert record_hashes(Samples({"mask": inputs["mask"], "ids": inputs["ids"]}), KEY) == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_minus_zero_is_zero_in_samples_of_every_type(dtype: torch.dtype) -> None:
    plus, minus = torch.tensor([[0.0, 1.0]], dtype=dtype), torch.tensor([[-0.0, 1.0]], dtype=dtype)
    assert record_hashes(Samples(plus), KEY) == record_hashes(Samples(minus), KEY)
    other = torch.tensor([[0.0, 2.0]], dtype=dtype)
    assert record_hashes(Samples(plus), KEY) != record_hashes(Samples(other), KEY)


def test_bfloat16_by_hand() -> None:
    head = b"samples\0bfloat16\0" + struct.pack("<2Q", 1, 1)
    assert record_hashes(Samples(torch.tensor([[1.0]], dtype=torch.bfloat16)), KEY) == [keyed(head + b"\x80\x3f")]


def test_types_and_shapes_of_samples_count() -> None:
    zeros = [
        Samples(torch.zeros(1, 4)),
        Samples(torch.zeros(1, 2, 2)),
        Samples(torch.zeros(1, 2, dtype=torch.float64)),
        Samples(torch.zeros(1, 4, dtype=torch.int32)),
        Samples((torch.zeros(1, 2), torch.zeros(1, 2))),
        Samples(torch.zeros(1, 0)),
    ]
    found = [record_hashes(samples, KEY)[0] for samples in zeros]
    assert len(set(found)) == len(found)


def test_samples_that_need_gradients_or_are_views() -> None:
    base = torch.arange(6.0).reshape(3, 2)
    turned = base.T.contiguous().T.requires_grad_()
    assert record_hashes(Samples(turned), KEY) == record_hashes(Samples(base), KEY)


def test_the_key_decides_and_must_have_its_length() -> None:
    assert record_hashes(texts("a"), KEY) != record_hashes(texts("a"), bytes(32))
    with pytest.raises(SettingsError, match="a record key of 3 bytes, expected 32"):
        record_hashes(texts("a"), b"abc")
