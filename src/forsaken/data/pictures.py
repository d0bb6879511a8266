"""Pictures: from encoded bytes to pixels.

Pictures may come from strangers. Only Pillow's readers of common formats are used, a picture that claims more pixels
than memory should hold is refused before it is decoded, and whatever a reader raises becomes a `DataError` that names
the picture. Threads decode in parallel: Pillow releases the interpreter's lock while it works on pixels.
"""

from __future__ import annotations

import io
import os
import struct
import threading
import warnings
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from forsaken.errors import DataError, EmptyError, SettingsError
from forsaken.types import Progress, Tick, silent

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # the fewer readers, the fewer holes
_MOST_PIXELS = 2**26  # a small file can claim many more
_LARGE_PIXELS = 2**22  # above it pictures are decoded one at a time: eight at once would take eight times the memory
_ONE_AT_A_TIME = threading.Lock()
_CHUNK = 256  # pictures between two calls of `progress`
# What Pillow's readers raise over bytes that are no picture.
_UNREADABLE = (
    *(UnidentifiedImageError, OSError, ValueError, SyntaxError, TypeError, EOFError),
    *(struct.error, zlib.error, RuntimeError, LookupError, ArithmeticError, MemoryError, AttributeError),
)


def decode_pictures(
    encoded: Sequence[bytes],
    *,
    names: Sequence[str],
    size: tuple[int, int] | None = None,
    progress: Progress = silent,
    stage: str = "decode pictures",
) -> Pixels:
    """Decode pictures on several cores.

    Parameters
    ----------
    encoded : sequence of bytes
        JPEG, PNG, WebP, BMP, GIF, PPM or TIFF.
    names : sequence of str
        What error messages call each of them.
    size : pair, optional
        Height and width that all are resized to; without it all must have the first one's size.
    progress, stage
        What is called after every 256 pictures, and the name of the work for it.

    Returns
    -------
    uint8 array
        n x height x width x 3.
    """
    count = len(encoded)
    if count == 0:
        raise EmptyError("there are no pictures to decode", remedy="give at least one")
    if size is not None and not (len(size) == 2 and all(isinstance(side, int) and side > 0 for side in size)):
        raise SettingsError(field="size", value=size, expected="height and width of at least 1, such as (32, 32)")
    with warnings.catch_warnings(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        warnings.simplefilter("ignore")  # Pillow's, over oddities that it can read all the same
        height, width, _ = _decoded(encoded[0], names[0], size).shape
        try:
            pixels = np.empty((count, height, width, 3), dtype=np.uint8)
        except MemoryError as error:
            raise DataError(
                f"{count:,} pictures of {height} x {width} pixels do not fit into memory",
                remedy="give size=(height, width)",
            ) from error

        def fill(at: int) -> None:
            picture = _decoded(encoded[at], names[at], size)
            if picture.shape != pixels.shape[1:]:
                raise DataError(
                    f"{names[at]} has {picture.shape[0]} x {picture.shape[1]} pixels, {names[0]} {height} x {width}",
                    remedy="give size=(height, width) to resize all of them",
                )
            pixels[at] = picture

        for start in range(0, count, _CHUNK):
            end = min(start + _CHUNK, count)
            for _ in pool.map(fill, range(start, end)):
                pass  # raises what `fill` raised
            progress(Tick(stage, end, count))
    return pixels


def _decoded(encoded: bytes, name: str, size: tuple[int, int] | None) -> Pixels:
    """Return the RGB pixels of one picture, resized to `size` (height, width)."""
    try:
        with Image.open(io.BytesIO(encoded), formats=_FORMATS) as opened:
            pixels = opened.width * opened.height
            large, deep = pixels > _MOST_PIXELS, opened.mode[0] in "IF"
            with _ONE_AT_A_TIME if pixels > _LARGE_PIXELS else nullcontext():
                picture = None if large or deep else _resized(opened.convert("RGB"), size)
    except Image.DecompressionBombError:
        picture, large = None, True
    except _UNREADABLE as error:
        raise DataError(f"{name} cannot be read as a picture", remedy="replace or remove it") from error
    if picture is None and large:
        raise DataError(f"{name} has more than {_MOST_PIXELS:,} pixels", remedy="make it smaller first")
    if picture is None:  # a conversion would clip the pixels to white
        raise DataError(f"{name} has more than 8 bits a channel", remedy="scale it to 8 bits first")
    return np.asarray(picture)


def _resized(picture: Image.Image, size: tuple[int, int] | None) -> Image.Image:
    if size is None or picture.size == (size[1], size[0]):
        return picture
    return picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
