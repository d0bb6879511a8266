"""Decoding: Pillow's own pixels however many there are, and no hang, no orphan and no riddle when it fails."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from forsaken.data import decoder, pictures
from forsaken.data.pictures import decode_pictures
from forsaken.data.readers import read_records
from forsaken.errors import DataError, ForsakenError
from forsaken.types import Tick

MANY = 2300
NAMES = [f"picture {at}" for at in range(MANY)]


def encoded(pixels: np.ndarray, mode: str = "RGB", form: str = "PNG", **settings: Any) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(content, form, **settings)
    return content.getvalue()


def noise(seed: int, height: int = 5, width: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


DISTINCT = [encoded(noise(at), form=("PNG", "JPEG", "WEBP", "BMP")[at % 4]) for at in range(97)]
CROWD = [DISTINCT[at % len(DISTINCT)] for at in range(MANY)]


def by_pillow(content: bytes, size: tuple[int, int] | None = None) -> np.ndarray:
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    return np.asarray(picture if size is None else picture.resize((size[1], size[0]), Image.Resampling.BILINEAR))


def crowd_with(**others: Any) -> list[bytes]:
    mixed = list(CROWD)
    for at, content in others.items():
        mixed[int(at.removeprefix("at"))] = content
    return mixed


def promptly(work: Callable[[], object], seconds: float = 20) -> BaseException:
    """Return what the work raises; a hang is a failure."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 (handed on)
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    assert raised, "it succeeds"
    return raised[0]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    workers: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **settings: Any) -> None:
            super().__init__(*arguments, **settings)
            workers.append(self)

    monkeypatch.setattr(pictures.subprocess, "Popen", Noted)
    monkeypatch.setattr(pictures.os, "cpu_count", lambda: 2)
    return workers


def all_ended(workers: list[subprocess.Popen[bytes]]) -> bool:
    return len(workers) == 2 and all(worker.returncode is not None for worker in workers)


@pytest.mark.parametrize("size", [None, (3, 9)])
def test_few_pictures_are_decoded_here_as_by_pillow(started: list[Any], size: tuple[int, int] | None) -> None:
    found = decode_pictures(DISTINCT, names=NAMES, size=size)
    assert (found.dtype, found.shape) == (np.uint8, (97, *(size or (5, 7)), 3))
    assert all(np.array_equal(one, by_pillow(content, size)) for one, content in zip(found, DISTINCT, strict=True))
    assert started == []


@pytest.mark.parametrize("size", [None, (3, 9)])
def test_many_pictures_are_decoded_by_workers_as_by_pillow(started: list[Any], size: tuple[int, int] | None) -> None:
    expected = np.stack([by_pillow(content, size) for content in DISTINCT])
    found = decode_pictures(CROWD, names=NAMES, size=size)
    assert np.array_equal(found, expected[np.arange(MANY) % len(DISTINCT)])
    assert all_ended(started)


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA", "LA"])
def test_grey_palette_and_transparent_pictures_become_rgb(mode: str) -> None:
    content = encoded(noise(1), mode)
    found = decode_pictures([content], names=["it"])
    assert found.shape == (1, 5, 7, 3)
    assert np.array_equal(found[0], by_pillow(content))
    if mode in ("L", "LA"):
        assert np.array_equal(found[..., 0], found[..., 2])


def test_size_is_height_and_width() -> None:
    assert decode_pictures([encoded(noise(1, 8, 20))], names=["it"], size=(4, 10)).shape == (1, 4, 10, 3)
    assert decode_pictures([encoded(noise(1, 8, 20))], names=["it"]).shape == (1, 8, 20, 3)


@pytest.mark.parametrize("count", [1, 97, 600, MANY])
def test_progress_never_goes_back_and_ends_at_the_total(count: int) -> None:
    ticks: list[Tick] = []
    decode_pictures(CROWD[:count], names=NAMES, progress=ticks.append, stage="see")
    done = [tick.done for tick in ticks]
    assert done == sorted(done)
    assert len(set(done)) == len(done) == -(-count // 256)
    assert done[-1] == count
    assert {(tick.stage, tick.total) for tick in ticks} == {("see", count)}


@pytest.mark.parametrize("at", [0, 300, MANY - 1])
@pytest.mark.parametrize("content", [b"", b"no picture", DISTINCT[0][:50]], ids=["empty", "text", "cut"])
def test_a_broken_picture_among_many_is_named(started: list[Any], at: int, content: bytes) -> None:
    error = promptly(lambda: decode_pictures(crowd_with(**{f"at{at}": content}), names=NAMES))
    assert isinstance(error, DataError)
    assert str(error) == f"picture {at} cannot be read as a picture; replace or remove it"
    assert all_ended(started) if at else started == []


def test_a_broken_picture_before_large_ones_is_no_hang(started: list[Any]) -> None:
    large = [encoded(noise(0, 40, 40))] * MANY
    large[256] = b"no picture"
    error = promptly(lambda: decode_pictures(large, names=NAMES))
    assert str(error).startswith("picture 256 cannot be read")
    assert all_ended(started)


@pytest.mark.parametrize("count", [5, MANY])
def test_where_all_are_broken_the_first_is_named(count: int) -> None:
    error = promptly(lambda: decode_pictures([b"no picture"] * count, names=NAMES))
    assert isinstance(error, DataError)
    assert str(error).startswith("picture 0 cannot be read")


@pytest.mark.parametrize("count", [1500, MANY])
def test_another_size_is_named_with_the_remedy(count: int) -> None:
    mixed = crowd_with(at1200=encoded(noise(1, 7, 5)))[:count]
    error = promptly(lambda: decode_pictures(mixed, names=NAMES))
    assert isinstance(error, DataError)
    assert str(error).startswith("picture 1200 has 7 x 5 pixels, picture 0 5 x 7; give size=(height, width)")
    assert decode_pictures(mixed, names=NAMES, size=(5, 7)).shape == (count, 5, 7, 3)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
def test_progress_cancels_and_leaves_no_worker(started: list[Any], kind: type[BaseException]) -> None:
    ticks: list[Tick] = []

    def cancel(tick: Tick) -> None:
        ticks.append(tick)
        raise kind("enough")

    error = promptly(lambda: decode_pictures(CROWD, names=NAMES, progress=cancel))
    assert type(error) is kind
    assert len(ticks) == 1
    assert all_ended(started)


def test_a_worker_killed_in_the_middle_is_an_error_and_no_hang(started: list[Any]) -> None:
    class Trap(list):  # type: ignore[type-arg]
        def __getitem__(self, at: Any) -> Any:
            if at == 1500:
                for worker in started:
                    worker.kill()
            return super().__getitem__(at)

    error = promptly(lambda: decode_pictures(Trap(CROWD), names=NAMES))
    assert isinstance(error, DataError)
    assert "worker that decodes pictures has died" in str(error)
    assert "memory" in str(error)
    assert all_ended(started)


@pytest.mark.parametrize(
    "script",
    ["", "import sys; sys.stdin.buffer.read(100)", "import sys; sys.stdout.buffer.write(bytes([5, 0, 0, 0, 7, 0]))"],
    ids=["at once", "while it is asked", "while it answers"],
)
def test_workers_that_die_by_themselves_are_an_error_and_no_hang(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    (tmp_path / "worker.py").write_text(script)
    monkeypatch.setattr(decoder, "__file__", str(tmp_path / "worker.py"))
    error = promptly(lambda: decode_pictures(CROWD, names=NAMES))
    assert isinstance(error, DataError)
    assert "has died" in str(error)
    assert all_ended(started)


def test_a_worker_needs_neither_torch_nor_numpy() -> None:
    code = f"import runpy, sys; runpy.run_path({decoder.__file__!r}); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "PIL.Image" in loaded
    assert not {"torch", "numpy", "pyarrow", "forsaken"} & set(loaded)


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


def test_a_folder_under_the_name_of_a_picture_is_left_out(tmp_path: Path) -> None:
    path = classes(tmp_path, a=DISTINCT[:1])
    (path / "a" / "other.png").mkdir()
    assert len(read_records(path)) == 1


UNKNOWN_TO_PILLOW = b"DDS " + (124).to_bytes(4, "little") + bytes(120)


@pytest.mark.parametrize("count", [5, MANY])
def test_a_picture_of_a_kind_that_pillow_lacks_is_named(count: int) -> None:
    error = promptly(lambda: decode_pictures(crowd_with(at3=UNKNOWN_TO_PILLOW)[:count], names=NAMES))
    assert isinstance(error, DataError)
    assert str(error).startswith("picture 3 cannot be read")


@pytest.mark.parametrize("size", [(0, 4), (-1, 4), (4,), (2.5, 4)])
def test_a_size_that_cannot_be_is_named(size: Any) -> None:
    error = promptly(lambda: decode_pictures(DISTINCT, names=NAMES, size=size))
    assert isinstance(error, ForsakenError)
    assert "size" in str(error)


@pytest.mark.parametrize("kind", [BrokenPipeError, EOFError])
def test_what_progress_raises_is_not_taken_for_a_dead_worker(kind: type[Exception]) -> None:
    def cancel(tick: Tick) -> None:
        raise kind("standard error is closed")

    assert type(promptly(lambda: decode_pictures(CROWD, names=NAMES, progress=cancel))) is kind
