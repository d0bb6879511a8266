"""One picture from encoded bytes to pixels; run as a script, a worker that decodes what it reads from standard input.

A worker imports Pillow alone: it starts in a tenth of a second, and several of them are several cores, where threads
would wait for one another (most of the work on a small picture is Python's). Pictures go to it in chunks: a count,
then for each the length and the bytes, all as 4-byte numbers. Back come for each: height, width and RGB pixels; height
zero where there are none.
"""

from __future__ import annotations

import io
import signal
import struct
import sys
import warnings
import zlib
from typing import IO

from PIL import Image, UnidentifiedImageError

# What Pillow's readers raise over bytes that are no picture.
_BAD = (
    *(UnidentifiedImageError, OSError, ValueError, SyntaxError, TypeError, EOFError),
    *(struct.error, zlib.error, RuntimeError, LookupError, ArithmeticError, MemoryError, AttributeError),
)
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # the fewer readers, the fewer holes
NO_PICTURE, TOO_DEEP, TOO_LARGE = 0, 1, 2
LARGEST = 2**26  # pixels; a small file can claim many more
_PAIR = struct.Struct("<II")
_ONE = struct.Struct("<I")


def decode(encoded: bytes, size: tuple[int, int] | None) -> tuple[int, int, bytes]:
    """Return height, width and RGB bytes, resized to `size` (height, width).

    Height 0 means that there are none: width 0 where it is no picture, 1 where it has more than 8 bits a channel
    (which a conversion would clip to white), 2 where it is too large.
    """
    try:
        with warnings.catch_warnings(), Image.open(io.BytesIO(encoded), formats=_FORMATS) as opened:
            warnings.simplefilter("ignore")
            if opened.width * opened.height > LARGEST:
                return 0, TOO_LARGE, b""
            if opened.mode[0] in "IF":
                return 0, TOO_DEEP, b""
            picture = opened.convert("RGB")
    except Image.DecompressionBombError:
        return 0, TOO_LARGE, b""
    except _BAD:
        return 0, NO_PICTURE, b""
    if size is not None and picture.size != (size[1], size[0]):
        picture = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return picture.height, picture.width, picture.tobytes()


def send(stream: IO[bytes], chunk: list[bytes]) -> None:
    """Write a chunk of encoded pictures for a worker."""
    stream.write(b"".join([_ONE.pack(len(chunk)), *(part for one in chunk for part in (_ONE.pack(len(one)), one))]))
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[int, int, bytes]:
    """Read one decoded picture from a worker."""
    height, width = _PAIR.unpack(_exactly(stream, _PAIR.size))
    return height, width, _exactly(stream, 3 * height * width)


def _exactly(stream: IO[bytes], count: int) -> bytes:
    content = stream.read(count)
    if len(content) != count:
        raise EOFError
    return content


def _work(size: tuple[int, int] | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's; it ends its workers
    given, back = sys.stdin.buffer, sys.stdout.buffer
    while head := given.read(_ONE.size):
        # The whole chunk is read before anything is written, or both sides could wait for each other.
        chunk = [_exactly(given, _ONE.unpack(_exactly(given, _ONE.size))[0]) for _ in range(_ONE.unpack(head)[0])]
        for one in chunk:
            height, width, pixels = decode(one, size)
            back.write(_PAIR.pack(height, width) + pixels)
        back.flush()


if __name__ == "__main__":
    _work((int(sys.argv[1]), int(sys.argv[2])) if len(sys.argv) > 2 else None)
