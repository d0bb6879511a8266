"""CIFAR-10 and CIFAR-100, the binary versions: label bytes, then 3,072 bytes of red, green and blue planes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from forsaken.bench.datasets.originals.archives import chosen_members, damaged, given
from forsaken.bench.datasets.originals.pictures import pixel_table
from forsaken.types import Progress

CIFAR10 = "cifar-10-binary.tar.gz"
CIFAR100 = "cifar-100-binary.tar.gz"
_PIXELS = 3 * 32 * 32


def cifar10(files: Mapping[str, Path], progress: Progress) -> dict[str, pa.Table]:
    """Read CIFAR-10: the five training batches in their order, and the test batch."""
    train = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
    path = given(files, CIFAR10)
    return _read(path, {"cifar10_train": train, "cifar10_test": ("test_batch.bin",)}, 1, 10, progress)


def cifar100(files: Mapping[str, Path], progress: Progress) -> dict[str, pa.Table]:
    """Read CIFAR-100 with its fine labels; the coarse one, the first of the two label bytes, is left out."""
    path = given(files, CIFAR100)
    return _read(path, {"cifar100_train": ("train.bin",), "cifar100_test": ("test.bin",)}, 2, 100, progress)


def _read(
    path: Path, stems: Mapping[str, tuple[str, ...]], label_bytes: int, classes: int, progress: Progress
) -> dict[str, pa.Table]:
    members = chosen_members(path, tuple(name for names in stems.values() for name in names), progress)
    record = label_bytes + _PIXELS
    tables = {}
    for stem, names in stems.items():
        for name in names:
            if not members[name] or len(members[name]) % record:
                raise damaged(path, f"{name} has {len(members[name])} bytes, expected a multiple of {record}")
        rows = np.concatenate([np.frombuffer(members[name], np.uint8) for name in names]).reshape(-1, record)
        labels = rows[:, label_bytes - 1].astype(np.int64)
        if labels.max() >= classes:
            raise damaged(path, f"{stem} has a label {labels.max()}, expected labels below {classes}")
        pixels = rows[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        tables[stem] = pixel_table(pixels, labels, f"encode {stem}", progress)
    return tables
