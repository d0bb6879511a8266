"""Trained models on disk, shared between benchmarks: each under a hash of everything that decides its weights."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import nn

from forsaken._files import make_folder, write_atomically
from forsaken._untrusted import UnreadableError, read_safetensors
from forsaken.data.nest import leaves
from forsaken.data.samples import Samples

_FACTS = "facts"


@dataclass(frozen=True, slots=True)
class Trained:
    """A model, the seconds that it took, and the seconds of processor time, which other programs do not lengthen."""

    model: Any
    seconds: float
    processor_seconds: float


def identity(facts: Mapping[str, Any]) -> str:
    """Return the hash of facts: two that differ in any value have different hashes.

    >>> identity({"seed": 1}) == identity({"seed": 1}), identity({"seed": 1}) == identity({"seed": 2})
    (True, False)
    """
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def content_hash(samples: Samples) -> str:
    """Return the hash of the inputs and labels of samples, in their order."""
    found = hashlib.sha256()
    for leaf in [*leaves(samples.inputs), *([] if samples.labels is None else [samples.labels])]:
        found.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
        found.update(leaf.contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def clocked(act: Callable[[], Any]) -> Trained:
    """Return what a function returns, with its seconds; a GPU is waited for at both ends."""

    def now() -> tuple[float, float]:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a GPU goes on after the call that asked it to work has returned
        return time.perf_counter(), time.process_time()

    (wall, used), found = now(), act()
    end, used_then = now()
    return Trained(found, end - wall, used_then - used)


@dataclass(frozen=True, slots=True)
class Store:
    """A folder of networks. A file that is damaged or of another network counts as missing, and is made again.

    Attributes
    ----------
    folder : Path
        Holds one safetensors file a network; it is made when the first one is kept.
    """

    folder: Path

    def get(self, facts: Mapping[str, Any], build: Callable[[], nn.Module]) -> Trained | None:
        """Return the network that was kept under these facts, loaded into a new one; None where there is none."""
        path = self._path(facts)
        if not path.is_file():
            return None
        try:
            told, weights = read_safetensors(path)
            network = build()
            network.load_state_dict(weights)
            times = json.loads(told[_FACTS])
        except (UnreadableError, RuntimeError, KeyError, ValueError):
            return None
        return Trained(network.eval(), times["seconds"], times["processor_seconds"])

    def keep(self, facts: Mapping[str, Any], found: Trained) -> None:
        """Keep a network under these facts, in one step."""
        make_folder(self.folder)
        weights = {name: value.detach().cpu().clone() for name, value in found.model.state_dict().items()}
        times = {"seconds": found.seconds, "processor_seconds": found.processor_seconds}
        write_atomically(self._path(facts), safetensors.torch.save(weights, {_FACTS: json.dumps(times)}))

    def trained(
        self,
        facts: Mapping[str, Any],
        build: Callable[[], nn.Module],
        make: Callable[[], Any],
        device: str | torch.device = "cpu",
    ) -> Trained:
        """Return the network that was kept under these facts, or make it and keep it."""
        known = self.get(facts, build)
        if known is not None:
            return Trained(known.model.to(device), known.seconds, known.processor_seconds)
        found = clocked(make)
        self.keep(facts, found)
        return found

    def _path(self, facts: Mapping[str, Any]) -> Path:
        return self.folder / f"{identity(facts)}.safetensors"
