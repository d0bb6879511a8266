"""The margins of many models on the same samples: every attack on an ensemble is a function of these."""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from forsaken._files import write_atomically
from forsaken.errors import InputError
from forsaken.types import Array

BEFORE, RETRAINED = "before", "retrained"
PARTS = ("forget", "retain", "test")
_BETWEEN = "|"


@dataclass(frozen=True, slots=True)
class Matrices:
    """What was measured of an ensemble.

    Attributes
    ----------
    margins : mapping
        By who ("before": the originals, "retrained", or the name of a method that made the originals forget) and by
        set ("forget", "retain", "test"): a matrix of models x samples, float64. Row i of a method's matrix is
        original i, unlearned.
    accuracy : mapping
        By who and by set ("retain", "test"): the accuracy of each model.
    seconds : mapping
        By who: what each model took, to train or to unlearn.
    facts : mapping
        By who: further numbers of each model: "density", what changed; "forget.top" and "retain.top", the largest
        posteriors, which oracles go by (models x samples x 3); "targets", the margins of the method's targets.
    """

    margins: Mapping[str, Mapping[str, Array]]
    accuracy: Mapping[str, Mapping[str, Array]]
    seconds: Mapping[str, Array]
    facts: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part in PARTS:
            counts = {who: sets[part].shape[1] for who, sets in self.margins.items() if part in sets}
            if len(set(counts.values())) > 1:
                raise InputError(f"the matrices of {part} disagree on the number of samples: {counts}; measure anew")
        for who, sets in self.margins.items():
            models = {part: len(matrix) for part, matrix in sets.items()}
            if len(set(models.values())) > 1:
                raise InputError(f"the matrices of {who} disagree on the number of models: {models}; measure anew")

    @classmethod
    def of(cls, records: Mapping[str, Sequence[Mapping[str, Array]]]) -> Matrices:
        """Join what was noted of single models (`noted`), by who."""
        margins: dict[str, dict[str, Array]] = {}
        accuracy: dict[str, dict[str, Array]] = {}
        seconds: dict[str, Array] = {}
        facts: dict[str, dict[str, Array]] = {}
        for who, each in records.items():
            columns = {name: np.stack([record[name] for record in each]) for name in each[0]}
            margins[who] = {part: columns[part] for part in PARTS if part in columns}
            accuracy[who] = {part: columns[f"{part}.accuracy"] for part in PARTS if f"{part}.accuracy" in columns}
            seconds[who] = columns["seconds"]
            told = {*PARTS, "seconds", *(f"{part}.accuracy" for part in PARTS)}
            facts[who] = {name: value for name, value in columns.items() if name not in told}
        return cls(margins, accuracy, seconds, facts)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write all matrices to an NPZ file."""
        tables = {"margins": self.margins, "accuracy": self.accuracy, "facts": self.facts}
        flat = {
            _BETWEEN.join((kind, who, part)): one
            for kind, table in tables.items()
            for who, sets in table.items()
            for part, one in sets.items()
        }
        flat |= {_BETWEEN.join(("seconds", who, "")): one for who, one in self.seconds.items()}
        return write_atomically(path, packed(flat))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Matrices:
        """Read what `save` wrote. Nothing is unpickled."""
        found: dict[str, dict[str, dict[str, Array]]] = {"margins": {}, "accuracy": {}, "seconds": {}, "facts": {}}
        for name, value in unpacked(Path(path)).items():
            kind, _, rest = name.partition(_BETWEEN)
            who, between, part = rest.rpartition(_BETWEEN)
            if kind not in found or not between:
                raise InputError(f"{path} holds {name!r}, which is no matrix of an audit; measure anew")
            found[kind].setdefault(who, {})[part] = value
        seconds = {who: parts[""] for who, parts in found["seconds"].items()}
        return cls(found["margins"], found["accuracy"], seconds, found["facts"])


def packed(arrays: Mapping[str, Array]) -> bytes:
    """Return arrays as the bytes of an NPZ file."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def unpacked(path: Path) -> dict[str, Array]:
    """Read an NPZ file; a damaged one is an error that says so."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({type(error).__name__}); delete it, and it is made anew") from error
