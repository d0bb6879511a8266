"""Checkpoints on disk: safetensors files that are written once, checked when read, and never overwritten."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from forsaken._files import write_atomically
from forsaken.errors import OutputError

State = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint's file, its size and the SHA-256 that it must have."""

    path: Path
    bytes: int
    sha256: str

    @classmethod
    def write(cls, path: Path, state: State) -> Checkpoint:
        """Write a network's state in one step."""
        content = packed(state)
        write_atomically(path, content, private=True)  # weights remember samples
        return cls(path, len(content), hashlib.sha256(content).hexdigest())

    def read(self) -> dict[str, Tensor]:
        """Return the state, or raise an `OutputError` if the file is not what was written."""
        remedy = "bring it back from a backup, or prepare the model anew"
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise OutputError(f"checkpoint {self.path} cannot be read ({error.strerror}); {remedy}") from error
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise OutputError(f"checkpoint {self.path} is damaged: its SHA-256 is not {self.sha256[:12]}…; {remedy}")
        try:
            state: dict[str, Tensor] = load(content)
        except SafetensorError as error:  # pragma: no cover (only a writer's mistake passes the digest)
            raise OutputError(f"checkpoint {self.path} is no safetensors file ({error}); {remedy}") from error
        return state


def packed(state: State) -> bytes:
    """Return a state as the bytes of a safetensors file."""
    # copies: tensors that share memory (tied weights) cannot be written otherwise
    content: bytes = save({name: value.detach().cpu().contiguous().clone() for name, value in state.items()})
    return content


class Store:
    """A folder of checkpoints; each training or request puts its files into a generation of its own.

    Without a folder of the user's it is a temporary one, which goes when the last ensemble that uses it goes.
    """

    def __init__(self, folder: Path | None) -> None:
        self.temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="forsaken-sisa-")) if folder is None else Path(folder).absolute()
        if self.temporary:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def generation(self) -> Path:
        """Make and return a new folder; no two calls get the same, in this process or another."""
        number = 0
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            while True:
                new = self.folder / f"generation-{number:03d}"
                try:
                    new.mkdir(mode=0o700)
                except FileExistsError:
                    number += 1
                else:
                    return new
        except OSError as error:
            raise OutputError(f"cannot make {self.folder} for checkpoints: {error.strerror}") from error


def kept_stages(slices: int, a_checkpoint: int, room: float) -> tuple[int, ...]:
    """Return after which slices of a shard a checkpoint is kept: all, or every k-th with the least k that fits.

    Parameters
    ----------
    slices : int
        How many slices the shard has.
    a_checkpoint : int
        The bytes of one checkpoint.
    room : float
        The bytes that the shard's checkpoints may use.

    >>> kept_stages(10, 100, 1000), kept_stages(10, 100, 350), kept_stages(10, 100, 99)
    ((1, 2, 3, 4, 5, 6, 7, 8, 9, 10), (3, 6, 9), ())
    """
    count = int(room // a_checkpoint)
    if count >= slices:
        return tuple(range(1, slices + 1))
    # no request goes back to the last stage, so it is the first to be left out
    every = next(k for k in range(1, slices + 1) if (slices - 1) // k <= count)
    return tuple(range(every, slices, every))


def clear_drafts(folder: Path) -> None:
    """Remove what killed writers left beside the checkpoints; it may remember samples."""
    for draft in folder.glob(".*"):
        draft.unlink(missing_ok=True)
