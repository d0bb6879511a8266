"""Writing files so that nothing is ever half-written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from forsaken.errors import OutputError


def write_atomically(path: str | os.PathLike[str], content: bytes, *, private: bool = False) -> Path:
    """Write `content` to a file beside `path` and move it there in one step; `private` files are the owner's alone."""
    goal = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=goal.parent, prefix=f".{goal.name}.")
    except OSError as error:
        raise OutputError(f"cannot write {goal}: {error.strerror}; does its folder exist?") from error
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        if not private:  # mkstemp makes private files
            umask = os.umask(0)
            os.umask(umask)
            draft.chmod(0o666 & ~umask)
        draft.replace(goal)
    except OSError as error:
        raise OutputError(f"cannot write {goal}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    return goal
