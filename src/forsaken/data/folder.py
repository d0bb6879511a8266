"""Where datasets lie on disk."""

from __future__ import annotations

import os
from pathlib import Path

from forsaken.errors import DataNotFoundError

VARIABLE = "FORSAKEN_DATA"


def dataset_file(name: str) -> Path:
    """Return the path of a dataset's file in the folder that the variable FORSAKEN_DATA names."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        raise DataNotFoundError(f"{VARIABLE} is not set; set it to the folder that holds {name}")
    path = Path(folder) / name
    if not path.is_file():
        raise DataNotFoundError(f"no file {name} in {folder} ({VARIABLE}); put it there or name another folder")
    return path
