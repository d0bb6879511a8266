"""STL-10, the binary version: pictures of 3 x 96 x 96 bytes, each plane column by column; labels from 1 to 10."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from forsaken.bench.datasets.originals.archives import chosen_members, damaged, given
from forsaken.bench.datasets.originals.pictures import pixel_table
from forsaken.types import Progress

STL10 = "stl10_binary.tar.gz"
_SIDE = 96
_CLASSES = 10


def stl10(files: Mapping[str, Path], progress: Progress) -> dict[str, pa.Table]:
    """Read the labelled parts of STL-10, with labels from 0 to 9; the 100,000 unlabelled pictures are skipped."""
    path = given(files, STL10)
    members = chosen_members(path, ("train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin"), progress)
    tables = {}
    for split in ("train", "test"):
        labels = np.frombuffer(members[f"{split}_y.bin"], np.uint8).astype(np.int64)
        size, expected = len(members[f"{split}_X.bin"]), len(labels) * 3 * _SIDE * _SIDE
        if not size or size != expected:
            raise damaged(path, f"{split}_X.bin has {size} bytes, expected {expected} for {len(labels)} labels")
        if labels.min() < 1 or labels.max() > _CLASSES:
            raise damaged(path, f"{split}_y.bin has labels {labels.min()} to {labels.max()}, expected 1 to {_CLASSES}")
        planes = np.frombuffer(members[f"{split}_X.bin"], np.uint8).reshape(-1, 3, _SIDE, _SIDE)
        stem = f"stl10_{split}"
        tables[stem] = pixel_table(planes.transpose(0, 3, 2, 1), labels - 1, f"encode {stem}", progress)
    return tables
