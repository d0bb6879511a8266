"""What was noted of the models of an ensemble, on disk: a file for each model, and one for each method's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forsaken._files import write_atomically
from forsaken.auditing.matrices import packed, unpacked
from forsaken.errors import InputError
from forsaken.types import Array

Record = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Notebook:
    """A folder of records, each under a hash of all that decides it.

    Attributes
    ----------
    folder : Path or None
        Nothing is kept without one.
    keys : mapping
        By role and by who: the hash, or None of what cannot be known again and is never kept.
    shapes : mapping
        By who: the arrays of a record, with their shapes; those that end in ".top" may have any.
    """

    folder: Path | None
    keys: Mapping[str, Mapping[str, str | None]]
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]]

    def whole(self, role: str, seed: int) -> bool:
        """Return whether all that is wanted of a model is there."""
        return all(path is not None and path.exists() for path in self._paths(role, seed).values())

    def read(self, role: str, seed: int) -> dict[str, Record]:
        """Return all that is there of a model, by who."""
        paths = self._paths(role, seed)
        return {who: self._read(who, path) for who, path in paths.items() if path is not None and path.exists()}

    def complete(self, role: str, seeds: Sequence[int]) -> set[str]:
        """Return whose records are there for all of these models."""
        paths = [self._paths(role, seed) for seed in seeds]
        return {who for who in self.keys[role] if all((path := own[who]) and path.exists() for own in paths)}

    def write(self, found: Mapping[tuple[str, int], Mapping[str, Record]]) -> None:
        """Keep what was noted; what is there already stays."""
        for (role, seed), noted in found.items():
            for who, path in self._paths(role, seed).items():
                if path is not None and not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_atomically(path, packed(noted[who]))

    def _paths(self, role: str, seed: int) -> dict[str, Path | None]:
        place = self.folder
        return {
            who: None if place is None or key is None else place / key[:32] / f"{seed}.npz"
            for who, key in self.keys[role].items()
        }

    def _read(self, who: str, path: Path) -> Record:
        record = unpacked(path)
        found = {name: value.shape for name, value in record.items() if not name.endswith(".top")}
        if found != self.shapes[who] or not all(np.isfinite(value).all() for value in record.values()):
            raise InputError(f"{path} is damaged: it holds other arrays than noted; delete it, and it is made anew")
        return record
