"""Pictures as tables: a column `image` of encoded bytes, and labels."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
from PIL import Image

from forsaken.types import Array, Progress, Tick

_BATCH = 2_000  # pictures from one sign of life to the next


def png(pixels: Array) -> bytes:
    """Encode (H, W) grey or (H, W, 3) RGB bytes as PNG, without loss."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, format="PNG")
    return buffer.getvalue()


def pixel_table(pixels: Array, labels: Array, stage: str, progress: Progress) -> pa.Table:
    """Return the table of n pictures that are raw pixels, shape (n, H, W) or (n, H, W, 3), encoded as PNG."""
    encoded: list[bytes] = []
    # Pillow compresses without holding the interpreter's lock.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for start in range(0, len(pixels), _BATCH):
            encoded.extend(pool.map(png, pixels[start : start + _BATCH]))
            progress(Tick(stage, len(encoded), len(pixels)))
    return picture_table(encoded, [None] * len(encoded), labels)


def picture_table(
    encoded: Sequence[bytes],
    paths: Sequence[str | None],
    labels: Sequence[int] | Array,
    more: Mapping[str, Sequence[str]] | None = None,
) -> pa.Table:
    """Return the table of encoded pictures, with further columns of text."""
    parts = [pa.array(encoded, pa.binary()), pa.array(paths, pa.string())]
    columns = {
        "image": pa.StructArray.from_arrays(parts, names=["bytes", "path"]),
        "label": pa.array(labels, pa.int64()),
    }
    columns |= {name: pa.array(values, pa.string()) for name, values in (more or {}).items()}
    return pa.table(columns)
