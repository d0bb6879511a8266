"""Writing files so that nothing is ever half-written."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forsaken.errors import OutputError


def write_atomically(path: str | os.PathLike[str], content: bytes, *, private: bool = False) -> Path:
    """Write `content` to a file beside `path` and move it there in one step; `private` files are the owner's alone."""
    goal = Path(path)
    draft = goal.parent / f".{goal.name}.{secrets.token_hex(6)}"
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
    except OSError as error:
        raise OutputError(f"cannot write {goal}: {error.strerror}; does its folder exist?") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # or a power cut could leave an empty file under the final name
        draft.replace(goal)
    except OSError as error:
        raise OutputError(f"cannot write {goal}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
    return goal


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Return a path beside `path` to write to; it is moved there after the block, or removed if the block fails."""
    draft = path.parent / f".{path.name}.{secrets.token_hex(6)}"
    try:
        yield draft
        with draft.open("r+b") as file:
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
