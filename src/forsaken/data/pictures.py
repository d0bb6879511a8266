"""Pictures: from encoded bytes to pixels, on all cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from forsaken.data import decoder
from forsaken.errors import DataError, EmptyError, SettingsError
from forsaken.types import Progress, Tick, silent

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

_CHUNK = 256  # pictures a worker takes at a time
_PORTION = 8 * 2**20  # bytes of encoded pictures a worker is sent at a time
_FEW = 2000  # pictures up to which workers are not worth their start


def decode_pictures(
    encoded: Sequence[bytes],
    *,
    names: Sequence[str],
    size: tuple[int, int] | None = None,
    progress: Progress = silent,
    stage: str = "decode pictures",
) -> Pixels:
    """Decode pictures on all cores.

    Parameters
    ----------
    encoded : sequence of bytes
        JPEG, PNG, WebP, BMP, GIF, PPM or TIFF.
    names : sequence of str
        What error messages call each of them.
    size : pair, optional
        Height and width that all are resized to; without it all must have the first one's size.
    progress, stage
        Who is told, and under which name.

    Returns
    -------
    uint8 array
        n x height x width x 3.
    """
    if len(encoded) == 0:
        raise EmptyError("there are no pictures to decode; give at least one")
    if size is not None and not (len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)):
        raise SettingsError(f"size is {size!r}, expected height and width of at least 1, such as (32, 32)")
    height, width, _ = decoder.decode(encoded[0], size)
    _refuse(names[0], height, width)
    try:
        pixels = np.empty((len(encoded), height, width, 3), dtype=np.uint8)
    except MemoryError as error:
        raise DataError(
            f"{len(encoded):,} pictures of {height} x {width} pixels do not fit into memory; give size=(height, width)"
        ) from error

    def keep(at: int, found: tuple[int, int, bytes]) -> None:
        _refuse(names[at], found[0], found[1])
        if found[:2] != (height, width):
            raise DataError(
                f"{names[at]} has {found[0]} x {found[1]} pixels, {names[0]} {height} x {width}; give "
                "size=(height, width) to resize all of them"
            )
        pixels[at] = np.frombuffer(found[2], dtype=np.uint8).reshape(height, width, 3)

    starts = range(0, len(encoded), _CHUNK)
    if len(encoded) <= _FEW:
        for start in starts:
            for at in range(start, min(start + _CHUNK, len(encoded))):
                keep(at, decoder.decode(encoded[at], size))
            progress(Tick(stage, min(start + _CHUNK, len(encoded)), len(encoded)))
        return pixels

    with _workers(min(os.cpu_count() or 1, len(starts)), size) as idle, ThreadPoolExecutor(idle.qsize()) as pool:

        def work(start: int) -> int:
            worker = idle.get()
            rows = range(start, min(start + _CHUNK, len(encoded)))
            try:
                for part in _portions(encoded, rows):
                    decoder.send(worker.stdin, list(part.values()))  # type: ignore[arg-type]
                    for at in part:
                        keep(at, decoder.receive(worker.stdout))  # type: ignore[arg-type]
            except BaseException as error:
                worker.kill()  # it may be in the middle of an answer; whoever asks it next gets an error, not a wait
                if isinstance(error, EOFError | BrokenPipeError):
                    raise DataError("a worker that decodes pictures has died; is there enough memory?") from error
                raise
            finally:
                idle.put(worker)
            return len(rows)

        done = 0
        try:
            for count in pool.map(work, starts):
                done += count
                progress(Tick(stage, done, len(encoded)))
        finally:
            pool.shutdown(cancel_futures=True)
    return pixels


def _portions(encoded: Sequence[bytes], rows: range) -> Iterator[dict[int, bytes]]:
    """Return the encoded pictures of `rows` in portions that are small in memory, however large the pictures are."""
    part: dict[int, bytes] = {}
    for at in rows:
        part[at] = encoded[at]
        if sum(map(len, part.values())) > _PORTION:
            yield part
            part = {}
    if part:
        yield part


def _refuse(name: str, height: int, width: int) -> None:
    if height == 0:
        problem = {
            decoder.NO_PICTURE: "cannot be read as a picture; replace or remove it",
            decoder.TOO_DEEP: "has more than 8 bits a channel; scale it to 8 bits first",
            decoder.TOO_LARGE: f"has more than {decoder.LARGEST:,} pixels; make it smaller first",
        }
        raise DataError(f"{name} {problem[width]}")


@contextmanager
def _workers(count: int, size: tuple[int, int] | None) -> Iterator[SimpleQueue[subprocess.Popen[bytes]]]:
    """Start workers; those that wait for work are in the queue. All end with the block."""
    command = [sys.executable, "-P", str(Path(decoder.__file__)), *map(str, size or ())]
    started: list[subprocess.Popen[bytes]] = []
    idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
    try:
        for _ in range(count):
            started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))  # noqa: S603
            idle.put(started[-1])
        yield idle
    finally:
        for worker in started:
            worker.kill()
            worker.communicate()
