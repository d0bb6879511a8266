"""Decoding: Pillow's own pixels however many there are, and a clear word where there are none."""

from __future__ import annotations

import io
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from forsaken.data.pictures import decode_pictures
from forsaken.data.readers import read_records
from forsaken.errors import DataError, EmptyError, SettingsError
from forsaken.types import Tick

MANY = 600
NAMES = [f"picture {at}" for at in range(MANY)]


def encoded(pixels: np.ndarray, mode: str = "RGB", form: str = "PNG") -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(content, form)
    return content.getvalue()


def noise(seed: int, height: int = 5, width: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


DISTINCT = [encoded(noise(at), form=("PNG", "JPEG", "WEBP", "BMP")[at % 4]) for at in range(97)]
CROWD = [DISTINCT[at % len(DISTINCT)] for at in range(MANY)]


def by_pillow(content: bytes, size: tuple[int, int] | None = None) -> np.ndarray:
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    return np.asarray(picture if size is None else picture.resize((size[1], size[0]), Image.Resampling.BILINEAR))


def crowd_with(at: int, content: bytes) -> list[bytes]:
    return [*CROWD[:at], content, *CROWD[at + 1 :]]


@pytest.mark.parametrize("size", [None, (3, 9)])
def test_pictures_are_decoded_as_by_pillow_and_in_their_order(size: tuple[int, int] | None) -> None:
    found = decode_pictures(CROWD, names=NAMES, size=size)
    expected = np.stack([by_pillow(content, size) for content in DISTINCT])
    assert (found.dtype, found.shape) == (np.uint8, (MANY, *(size or (5, 7)), 3))
    assert np.array_equal(found, expected[np.arange(MANY) % len(DISTINCT)])


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA", "LA"])
def test_grey_palette_and_transparent_pictures_become_rgb(mode: str) -> None:
    content = encoded(noise(1), mode)
    found = decode_pictures([content], names=["it"])
    assert np.array_equal(found[0], by_pillow(content))


@pytest.mark.parametrize("count", [1, 97, MANY])
def test_progress_never_goes_back_and_ends_at_the_total(count: int) -> None:
    ticks: list[Tick] = []
    decode_pictures(CROWD[:count], names=NAMES, progress=ticks.append, stage="see")
    assert [tick.done for tick in ticks] == [*range(256, count, 256), count]
    assert {(tick.stage, tick.total) for tick in ticks} == {("see", count)}


UNKNOWN_TO_PILLOW = b"DDS " + (124).to_bytes(4, "little") + bytes(120)
BROKEN = {"empty": b"", "text": b"no picture", "cut": DISTINCT[0][:50], "another kind": UNKNOWN_TO_PILLOW}


@pytest.mark.parametrize("at", [0, 300, MANY - 1])
@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_picture_among_many_is_named(at: int, content: bytes) -> None:
    with pytest.raises(DataError) as caught:
        decode_pictures(crowd_with(at, content), names=NAMES)
    assert str(caught.value) == f"picture {at} cannot be read as a picture; replace or remove it"


def test_of_several_broken_pictures_the_first_is_named() -> None:
    with pytest.raises(DataError, match=r"^picture 300 cannot be read"):
        decode_pictures([*CROWD[:300], *[b"no picture"] * 300], names=NAMES)


def test_another_size_is_named_with_the_remedy() -> None:
    mixed = crowd_with(520, encoded(noise(1, 7, 5)))
    with pytest.raises(DataError, match=r"^picture 520 has 7 x 5 pixels, picture 0 5 x 7; give size=\(height, width\)"):
        decode_pictures(mixed, names=NAMES)
    assert decode_pictures(mixed, names=NAMES, size=(5, 7)).shape == (MANY, 5, 7, 3)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError, EOFError])
def test_progress_cancels_by_raising(kind: type[BaseException]) -> None:
    ticks: list[Tick] = []

    def cancel(tick: Tick) -> None:
        ticks.append(tick)
        raise kind("enough")

    with pytest.raises(kind, match="enough"):
        decode_pictures(CROWD, names=NAMES, progress=cancel)
    assert len(ticks) == 1


def blank(mode: str, size: tuple[int, int] = (4, 4)) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, format="PNG")
    return buffer.getvalue()


def test_sixteen_bits_a_channel_are_refused_rather_than_clipped() -> None:
    with pytest.raises(DataError, match="it has more than 8 bits a channel; scale it"):
        decode_pictures([blank("I;16")], names=["it"])


@pytest.mark.parametrize("side", [9_000, 14_000], ids=["Pillow takes it", "Pillow refuses it"])
def test_a_picture_that_claims_too_many_pixels_is_refused_without_a_warning(side: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError, match="it has more than 67,108,864 pixels"):
            decode_pictures([blank("1", (side, side))], names=["it"])


def test_large_pictures_are_decoded_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # 2,048 x 2,049 pixels: small files that claim much memory each
    inside, most, real = [], [], Image.Image.convert

    def convert(self: Image.Image, mode: str) -> Image.Image:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()
        return real(self, mode)

    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr(Image.Image, "convert", convert)
    decode_pictures([blank("1", (2048, 2049))] * 5, names=["it"] * 5, size=(4, 4))
    assert max(most) == 1


@pytest.mark.parametrize("size", [(0, 4), (-1, 4), (4,), (2.5, 4)])
def test_a_size_that_cannot_be_is_named(size: Any) -> None:
    with pytest.raises(SettingsError, match="size is"):
        decode_pictures(DISTINCT, names=NAMES, size=size)


def test_nothing_to_decode_is_an_error() -> None:
    with pytest.raises(EmptyError, match="no pictures"):
        decode_pictures([], names=[])


def classes(folder: Path, **contents: list[bytes]) -> Path:
    for name, inside in contents.items():
        (folder / name).mkdir(parents=True)
        for at, content in enumerate(inside):
            (folder / name / f"{at}.png").write_bytes(content)
    return folder


def test_a_folder_of_pictures_by_class(tmp_path: Path) -> None:
    path = classes(tmp_path, pear=DISTINCT[:1], apple=DISTINCT[1:3])
    (path / ".hidden").mkdir()
    (path / "pear" / "notes.txt").write_text("")
    (path / "pear" / "._0.png").write_bytes(b"left by a file manager")
    (path / "pear" / "folder.png").mkdir()
    found = read_records(path)
    assert (found.names, found.labels.tolist()) == (("apple", "pear"), [0, 0, 1])
    assert all(np.array_equal(found.content[row], by_pillow(DISTINCT[at])) for row, at in enumerate((1, 2, 0)))


def test_pictures_that_lie_in_no_class_have_no_labels(tmp_path: Path) -> None:
    for at, content in enumerate(DISTINCT[:2]):
        (tmp_path / f"{1 - at}.png").write_bytes(content)
    found = read_records(tmp_path)
    assert (found.labels, found.names) == (None, ())
    assert all(np.array_equal(found.content[row], by_pillow(DISTINCT[at])) for row, at in enumerate((1, 0)))


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({}, r"folder holds no pictures .*\.jpg.* and no folders of them, expected one folder for each class"),
        ({"a": DISTINCT[:1], "b": []}, r"class folder .*folder/b is empty, .*\.jpg.*; fill it"),
        ({"a": [DISTINCT[0], b"x"]}, r"folder/a/1\.png cannot be read as a picture; replace or remove it"),
        (
            {"a": DISTINCT[:1], "b": [encoded(noise(0, 9, 2))]},
            r"b/0\.png has 9 x 2 pixels, .*a/0\.png 5 x 7; give size=",
        ),
    ],
    ids=["no class", "empty class", "broken", "sizes"],
)
def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, contents: dict[str, list[bytes]], message: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=message):
        read_records(classes(tmp_path / "folder", **contents))


def test_a_folder_of_different_sizes_is_resized(tmp_path: Path) -> None:
    found = read_records(classes(tmp_path, a=[DISTINCT[0], encoded(noise(0, 9, 2))]), size=(6, 3))
    assert np.array_equal(found.content[1], by_pillow(encoded(noise(0, 9, 2)), (6, 3)))
