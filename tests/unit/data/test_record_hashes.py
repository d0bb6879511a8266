"""Keyed hashes of records against hashes that are computed by hand."""

from __future__ import annotations

import hashlib
import hmac
import struct

import numpy as np
import pytest
import torch

from forsaken.data.record_hashes import record_hashes
from forsaken.data.records import Records
from forsaken.data.samples import Samples
from forsaken.errors import SettingsError

KEY = bytes(range(32))


def keyed(message: bytes) -> str:
    return hmac.new(KEY, message, hashlib.sha256).hexdigest()


def texts(*lines: str) -> Records:
    return Records(np.array(lines, dtype=object))


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
