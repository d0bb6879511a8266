"""A hash of all that decides what is measured of a model: what was saved under another one is never taken for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

import forsaken.models
from forsaken._random import torch_seed
from forsaken.data.nest import leaves
from forsaken.data.samples import Samples
from forsaken.models.logits import Forward, predict_logits
from forsaken.models.train import Training, usable_device
from forsaken.models.weights import fingerprint
from forsaken.provenance import provenance
from forsaken.unlearning.base import Unlearner
from forsaken.unlearning.settings import listed

_PROBED = 16  # samples that a new network is asked about


def training_identity(
    training: Training,
    data: Samples,
    views: Mapping[str, Samples],
    *,
    device: str | torch.device,
    forward: Forward | None,
) -> str:
    """Return the hash of a training and of what its models are looked at on; the seed of a model is apart."""
    with torch_seed(0):
        network = training.build()
    few = data.rows(range(min(_PROBED, len(data))))
    told = {
        "versions": provenance()["versions"],
        "sources": _sources(),
        "device": usable_device(device).type,
        "recipe": training.recipe.to_dict(),
        # what it answers, too: neither its text nor its weights tell which functions it calls
        "network": [
            str(network),
            fingerprint(network),
            _digest(Samples(predict_logits(network, few, forward=forward))),
        ],
        "forward": _name(forward),
        "data": _digest(data),
        "views": {name: _digest(part) for name, part in views.items()},
    }
    return _hash(told)


def method_identity(
    base: str, name: str, method: Unlearner, given: Mapping[str, Samples | None], held_out: Mapping[str, Any] | None
) -> str:
    """Return the hash of a method run on originals with the identity `base`, given some sets and references."""
    sets = {part: None if samples is None else _digest(samples) for part, samples in given.items()}
    kind = type(method)
    return _hash([base, name, kind.__module__, kind.__qualname__, method.settings, sets, held_out])


def cachable(method: Unlearner) -> bool:
    """Return whether a method can be known again: one of this package, without functions among its settings."""

    def known(value: Any) -> bool:
        return cachable(value) if isinstance(value, Unlearner) else not callable(value)

    own = type(method).__module__.startswith("forsaken.")
    return own and all(known(value) for _, _, value in listed(method))


@cache
def _sources() -> str:
    """Return the hash of the code that trains and unlearns: a version alone does not tell that it was changed."""
    root = Path(forsaken.models.__file__).parents[1]
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(
        path
        for room in ("models", "unlearning", "metrics", "references", "bench")
        for path in (root / room).rglob("*.py")
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _digest(samples: Samples) -> str:
    parts = [*leaves(samples.inputs), *([] if samples.labels is None else [samples.labels])]
    digest = hashlib.blake2b(digest_size=16)
    for leaf in parts:
        digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
        digest.update(leaf.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _name(function: Any) -> str | None:
    return (
        None if function is None else f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    )


def _hash(told: Any) -> str:
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()
