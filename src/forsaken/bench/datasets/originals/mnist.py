"""MNIST: four gzip files in the IDX format, big-endian headers and raw bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from forsaken.bench.datasets.originals.archives import damaged, given, unzipped
from forsaken.bench.datasets.originals.pictures import pixel_table
from forsaken.types import Progress

PREFIXES = {"train": "mnist-train", "test": "mnist-t10k"}
_MAGIC = 0x0800  # unsigned bytes; the last byte of the magic number is the number of axes


def mnist(files: Mapping[str, Path], progress: Progress) -> dict[str, pa.Table]:
    """Read MNIST, as grey PNG pictures; one of its two halves is enough."""
    tables = {}
    for split, prefix in PREFIXES.items():
        if files and not any(name.startswith(prefix) for name in files):
            continue  # whoever has one half may read it
        path = given(files, f"{prefix}-images-idx3-ubyte.gz")
        pixels = _idx(path, 3)
        labels = _idx(given(files, f"{prefix}-labels-idx1-ubyte.gz"), 1).astype(np.int64)
        if len(labels) != len(pixels):
            raise damaged(path, f"it holds {len(pixels)} pictures for {len(labels)} labels")
        tables[f"mnist_{split}"] = pixel_table(pixels, labels, f"encode mnist_{split}", progress)
    return tables


def _idx(path: Path, axes: int) -> np.ndarray[Any, Any]:
    content = unzipped(path)
    header = 4 * (1 + axes)
    if len(content) < header:
        raise damaged(path, f"it has {len(content)} bytes, expected a header of {header}")
    magic, *shape = struct.unpack(f">{1 + axes}I", content[:header])
    if magic != _MAGIC + axes:
        raise damaged(path, f"its magic number is {magic}, expected {_MAGIC + axes}")
    if len(content) - header != np.prod(shape, dtype=np.int64):
        raise damaged(path, f"it has {len(content) - header} bytes of data, expected {' x '.join(map(str, shape))}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)
