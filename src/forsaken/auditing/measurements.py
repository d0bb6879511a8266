"""What is measured of the models of an ensemble: matrices of margins, and a cache on disk with a file for each model.

Every file of the cache lies under a hash of everything that decides its content, so that a file which was written under
other settings, other data or other code is never read.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

import forsaken.models
from forsaken._files import make_folder, write_atomically
from forsaken._random import torch_seed
from forsaken._untrusted import UnreadableError, read_npz
from forsaken.data.nest import leaves
from forsaken.data.samples import Samples
from forsaken.errors import InputError
from forsaken.models.logits import Forward, predict_logits
from forsaken.models.train import Training, usable_device
from forsaken.models.weights import fingerprint
from forsaken.provenance import provenance
from forsaken.types import Array
from forsaken.unlearning.base import Unlearner
from forsaken.unlearning.settings import listed

BEFORE, RETRAINED = "before", "retrained"
PARTS: tuple[Literal["forget", "retain", "test"], ...] = ("forget", "retain", "test")
_PROBED = 16  # samples whose logits under a new network are part of its identity
# Rooms and files whose code decides what is measured of a model.
_SOURCES = (
    *("data", "metrics", "models", "references", "unlearning", "_random.py", "recipe.py", "sets.py"),
    *("bench/networks.py", "oracles/shadow.py"),
    *(f"auditing/{name}.py" for name in ("ensembles", "held_out", "inputs", "measurements")),
)

Record: TypeAlias = Mapping[str, Array]
"""The measurements of one model: margins by set, and numbers such as "test.accuracy" and "seconds"."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """The measurements of an ensemble.

    The outer key of each mapping is a group of models: "before" (the originals), "retrained", or the name of a method
    that made the originals forget.

    Attributes
    ----------
    margins : mapping
        By group and by set ("forget", "retain", "test"): a matrix of models x samples, float64. Row i of a method's
        matrix is original i, unlearned.
    accuracy : mapping
        By group and by set ("retain", "test"): the accuracy of each model.
    seconds : mapping
        By group: how long each model took to train or to unlearn.
    facts : mapping
        By group: further measurements of each model. "density": the share of changed weights; "forget.top" and
        "retain.top": the largest posteriors, for oracles (models x samples x 3); "targets": the margins of the method's
        targets; "passes": how many samples the method evaluated.
    """

    margins: Mapping[str, Mapping[str, Array]]
    accuracy: Mapping[str, Mapping[str, Array]]
    seconds: Mapping[str, Array]
    facts: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part in PARTS:
            counts = {group: sets[part].shape[1] for group, sets in self.margins.items() if part in sets}
            if len(set(counts.values())) > 1:
                raise InputError(f"the matrices of {part} disagree on the number of samples: {counts}; measure anew")
        for group, sets in self.margins.items():
            models = {part: len(matrix) for part, matrix in sets.items()}
            if len(set(models.values())) > 1:
                raise InputError(f"the matrices of {group} disagree on the number of models: {models}; measure anew")

    @classmethod
    def of(cls, records: Mapping[str, Sequence[Record]]) -> Matrices:
        """Stack the records of single models, by group."""
        rates = {f"{part}.accuracy": part for part in PARTS}
        found: tuple[dict[str, Any], ...] = ({}, {}, {}, {})
        margins, accuracy, seconds, facts = found
        for group, models in records.items():
            columns = {name: np.stack([record[name] for record in models]) for name in models[0]}
            margins[group] = {part: columns.pop(part) for part in PARTS if part in columns}
            accuracy[group] = {part: columns.pop(name) for name, part in rates.items() if name in columns}
            seconds[group] = columns.pop("seconds")
            facts[group] = columns
        return cls(*found)


@dataclass(frozen=True, slots=True)
class MeasurementCache:
    """A folder of records, each under a hash of everything that decides it.

    A model is known by the group that it was trained for ("before" or "retrained") and by its seed. An original has a
    record of its own, and one for each method that made it forget.

    Attributes
    ----------
    folder : Path or None
        Where the files lie; None: nothing is kept.
    keys : mapping
        By the group that a model was trained for, and by the group of the record: the hash. None for records that
        cannot be recognised in a later run, which are never kept.
    shapes : mapping
        By group of the record: the shape of each array; arrays whose name ends in ".top" may have any.
    secret : bytes or None
        With it every file begins with a MAC (HMAC-SHA256) of its place and content under this key, and a file without
        the right one is refused: whoever does not have the key cannot put a record there.
    """

    folder: Path | None
    keys: Mapping[str, Mapping[str, str | None]]
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]]
    secret: bytes | None = None

    def complete(self, trained_for: str, seed: int) -> bool:
        """Return whether every record of a model is there."""
        return all(path is not None and path.exists() for path in self._paths(trained_for, seed).values())

    def groups(self, trained_for: str, seeds: Sequence[int]) -> set[str]:
        """Return the groups whose records are there for all of these models."""
        paths = [self._paths(trained_for, seed) for seed in seeds]
        return {
            group for group in self.keys[trained_for] if all((path := own[group]) and path.exists() for own in paths)
        }

    def read(self, trained_for: str, seed: int) -> dict[str, Record]:
        """Return the records of a model that are there, by group."""
        paths = self._paths(trained_for, seed)
        return {group: self._read(group, path) for group, path in paths.items() if path is not None and path.exists()}

    def write(self, trained_for: str, seed: int, records: Mapping[str, Record]) -> None:
        """Keep the records of a model; those that are there already stay as they are."""
        for group, path in self._paths(trained_for, seed).items():
            if path is not None and not path.exists():
                make_folder(path.parent)
                buffer = io.BytesIO()
                np.savez_compressed(buffer, **records[group])  # type: ignore[arg-type]
                content = buffer.getvalue()
                write_atomically(path, self._mac(path, content) + content)

    def check(self, models: Iterable[tuple[str, int]]) -> None:
        """Raise an error that names every file of these models which nobody with the secret wrote."""
        paths = {path for model in models for path in self._paths(*model).values() if path is not None}
        strange = [path for path in sorted(paths) if path.exists() and self._content(path) is None]
        if strange:
            listed = "".join(f"\n  - {path}" for path in strange)
            raise InputError(
                f"{len(strange)} files of measurements were changed, or put there by somebody else than an audit of "
                f"this run; delete them, and they are made anew:{listed}"
            )

    def _mac(self, path: Path, content: bytes) -> bytes:
        if self.secret is None:
            return b""
        place = f"{path.parent.name}/{path.name}\0".encode()  # or a record could be passed off as another model's
        return hmac.digest(self.secret, place + content, "sha256")

    def _content(self, path: Path) -> bytes | None:
        """Return what a file holds besides its MAC; None where that is not the right one."""
        raw = path.read_bytes()
        size = 0 if self.secret is None else hashlib.sha256().digest_size
        return raw[size:] if hmac.compare_digest(raw[:size], self._mac(path, raw[size:])) else None

    def _paths(self, trained_for: str, seed: int) -> dict[str, Path | None]:
        place = self.folder
        return {
            group: None if place is None or key is None else place / key[:32] / f"{seed}.npz"
            for group, key in self.keys[trained_for].items()
        }

    def _read(self, group: str, path: Path) -> Record:
        content = self._content(path)
        if content is None:
            raise InputError(f"{path} was not written by an audit of this run; delete it, and it is made anew")
        try:
            _, record = read_npz(io.BytesIO(content))
        except (OSError, UnreadableError) as error:
            raise InputError(f"{path} cannot be read ({error}); delete it, and it is made anew") from error
        shapes = {name: value.shape for name, value in record.items() if not name.endswith(".top")}
        numbers = all(value.dtype.kind in "fiub" and np.isfinite(value).all() for value in record.values())
        if shapes != self.shapes[group] or not numbers:
            raise InputError(f"{path} is damaged: its arrays are not those of a record; delete it, and it is made anew")
        return record


def training_identity(
    training: Training,
    data: Samples,
    views: Mapping[str, Samples],
    *,
    device: str | torch.device,
    forward: Forward | None,
) -> str:
    """Return the hash of a training and of the sets that its models are measured on. A model's seed is apart."""
    with torch_seed(0):
        network = training.build()
    few = data.rows(range(min(_PROBED, len(data))))
    # The logits too: neither the network's text nor its weights say which functions its forward pass calls.
    answers = digest(Samples(predict_logits(network, few, forward=forward)))
    return _hash(
        {
            "versions": provenance()["versions"],
            "sources": _sources(),
            "device": usable_device(device).type,
            "recipe": training.recipe.to_dict(),
            "network": [str(network), fingerprint(network), answers],
            "forward": None if forward is None else function_name(forward),
            "data": digest(data),
            "views": {name: digest(part) for name, part in views.items()},
        }
    )


def method_identity(
    base: str, name: str, method: Unlearner, given: Mapping[str, Samples | None], held_out: Mapping[str, Any] | None
) -> str | None:
    """Return the hash of a method that is run on originals with the identity `base`, given some sets and references.

    None where the hash could not tell that the method changed: for a method of another package, or one with a function
    among its settings.
    """
    if not _recognisable(method):
        return None
    sets = {part: None if samples is None else digest(samples) for part, samples in given.items()}
    kind = type(method)
    return _hash([base, name, kind.__module__, kind.__qualname__, method.settings, sets, held_out])


def function_name(function: object) -> str:
    """Return a function's module and name."""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"


def digest(samples: Samples) -> str:
    """Return a hash of the content, shapes and types of samples."""
    parts = [*leaves(samples.inputs), *([] if samples.labels is None else [samples.labels])]
    found = hashlib.blake2b(digest_size=16)
    for leaf in parts:
        found.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
        found.update(leaf.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _recognisable(method: Unlearner) -> bool:
    values = [value for _, _, value in listed(method)]
    return type(method).__module__.startswith("forsaken.") and all(
        _recognisable(value) if isinstance(value, Unlearner) else not callable(value) for value in values
    )


@cache
def _sources() -> str:
    """Return the hash of the code that trains and unlearns, which may change without a new version of the package."""
    root = Path(forsaken.models.__file__).parents[1]
    found = hashlib.blake2b(digest_size=16)
    for place in _SOURCES:
        for path in [root / place] if place.endswith(".py") else sorted((root / place).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
