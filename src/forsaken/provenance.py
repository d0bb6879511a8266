"""Where a result comes from: versions, source, hardware, time."""

from __future__ import annotations

import hashlib
import os
import platform
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGE = Path(__file__).parent  # the folder of all source files
_PACKAGES = ("forsaken", "torch", "numpy", "scikit-learn", "xgboost-cpu", "xgboost")


def provenance() -> dict[str, Any]:
    """Return versions, a hash of the source, hardware and the time, for a saved result. No host name and no path."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "source_sha256": source_hash(PACKAGE),
    }


@cache
def source_hash(folder: Path) -> str:
    """Return the hash of all Python files under a folder, with their places in it."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        found.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return found.hexdigest()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123 (no Path for a kernel file)
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor()
