"""Where datasets lie on disk."""

from __future__ import annotations

import os
from pathlib import Path

from forsaken.errors import DataNotFoundError

VARIABLE = "FORSAKEN_DATA"


def data_folder() -> Path:
    """Return the folder that the variable FORSAKEN_DATA names, or else the platform's cache folder for Forsaken."""
    named = os.environ.get(VARIABLE)
    if named:
        try:
            return Path(named).expanduser()
        except RuntimeError as error:
            raise DataNotFoundError(f"{VARIABLE} is {named!r}, whose home folder is not known; give a path") from error
    # Imported where it is used: who names a folder needs no library to find one.
    try:
        import pooch  # noqa: PLC0415
    except ImportError as error:
        raise DataNotFoundError(f"{VARIABLE} is not set; set it to the folder that holds the datasets") from error
    return Path(pooch.os_cache("forsaken"))
