"""Writing files so that a reader never finds a half-written one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forsaken.errors import OutputError


def write_atomically(path: str | os.PathLike[str], content: bytes, *, private: bool = False) -> Path:
    """Write `content` to a file beside `path` and rename that to `path`; only the owner may read a `private` file."""
    goal = Path(path)
    with draft_of(goal) as draft:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    return goal


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Return a new path beside `path` to write to; it is renamed to `path` after the block, or removed on failure.

    Every `OSError`, of the block too, becomes an `OutputError`.
    """
    draft = path.parent / f".{path.name}.{secrets.token_hex(6)}"
    try:
        yield draft
        with draft.open("r+b") as file:
            os.fsync(file.fileno())  # or a power cut could leave an empty file under the final name
        draft.replace(path)
    except OSError as error:
        hint = "; does its folder exist?" if not path.parent.is_dir() else ""
        raise OutputError(f"cannot write {path}: {error.strerror or error}{hint}") from error
    finally:
        if path.parent.is_dir():
            draft.unlink(missing_ok=True)
