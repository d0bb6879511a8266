"""The mask gradient μ as a value of its own: save it, apply it, undo it.

Whoever holds a mask and the new weights can restore the memory: a mask is as sensitive as what was forgotten. Delete
it once it is no longer needed (the paper's last step), or save it without the part that undoes it.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from forsaken._files import write_atomically
from forsaken.errors import MaskError
from forsaken.models.logits import as_given, as_module
from forsaken.models.weights import fingerprint

_FORMAT = "forsaken.mask"
_VERSION = "2"
_READ = ("1", "2")  # version 1 writes the positions of weights that changed as a whole, too


@dataclass(frozen=True, slots=True)
class Entries:
    """The changed entries of one parameter: where (flat positions), by how much, and what stood there."""

    index: Tensor
    mu: Tensor
    original: Tensor | None


@dataclass(frozen=True, slots=True)
class Mask:
    """μ where the new weights differ from the old ones, bit for bit. θ_new = θ_0 − μ.

    Attributes
    ----------
    entries : dict of str to Entries
        By parameter name; parameters that did not change are left out.
    trainable : int
        The number of trainable parameters of the model, the denominator of `density`.
    base, new : str
        Fingerprints of the weights before and after.
    settings : dict
        The settings of the method that made it.
    """

    entries: Mapping[str, Entries]
    trainable: int
    base: str
    new: str
    settings: Mapping[str, Any]

    def __len__(self) -> int:
        return sum(part.index.numel() for part in self.entries.values())

    def __repr__(self) -> str:
        undo = "revertible" if self.revertible else "not revertible"
        return f"Mask({len(self)} of {self.trainable} entries, density {self.density:.4f}, {undo})"

    @property
    def density(self) -> float:
        """The share of all trainable parameters that changed."""
        return len(self) / self.trainable

    @property
    def bytes(self) -> int:
        """How much of a file the entries take that `save` writes, with what undoes it."""
        parts = [
            part
            for each in self.entries.values()
            for part in ((each.mu, each.original) if _all(each.index) else (each.index, each.mu, each.original))
        ]
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def revertible(self) -> bool:
        """Whether the original values are still here."""
        return all(part.original is not None for part in self.entries.values())

    def apply(self, model: Any) -> Any:
        """Return a new model with the mask applied; the model must have exactly the base weights."""
        module = as_module(model)
        self._expect(module, self.base, "the mask was made for other weights")

        def moved(weights: Tensor, part: Entries) -> Tensor:
            work = weights.to(part.mu.dtype) - part.mu.to(weights.device)
            return work.to(weights.dtype)

        return self._changed(module, moved, self.new)

    def revert(self, model: Any) -> Any:
        """Return a new model with the exact original weights; the model must have exactly the new weights."""
        if not self.revertible:
            raise MaskError(
                "this mask was saved without the original values (revertible=False), so it cannot be undone; "
                "use the original checkpoint"
            )
        module = as_module(model)
        self._expect(module, self.new, "these are not the weights that the mask produced")
        return self._changed(module, lambda weights, part: part.original.to(weights), self.base)

    def _expect(self, module: nn.Module, wanted: str, problem: str) -> None:
        found = fingerprint(module)
        if found != wanted:
            raise MaskError(
                f"{problem}: the model's fingerprint is {found[:12]}..., expected {wanted[:12]}...; nothing was changed"
            )

    def _changed(self, module: nn.Module, act: Any, wanted: str) -> Any:
        twin = copy.deepcopy(module)
        named = dict(twin.named_parameters())
        with torch.no_grad():
            for name, part in self.entries.items():
                if not _fits(part.index, named.get(name)):
                    raise MaskError(f"the mask is damaged: its entries of {name} do not fit; nothing was changed")
                flat = named[name].detach().reshape(-1).clone()
                index = part.index.to(device=flat.device, dtype=torch.long)
                flat[index] = act(flat[index], part)
                named[name].copy_(flat.view_as(named[name]))
        if fingerprint(twin) != wanted:
            raise MaskError("the mask is damaged: applying it does not give the weights it names; nothing was changed")
        return as_given(twin)

    def save(self, path: str | os.PathLike[str], *, revertible: bool = True) -> Path:
        """Write the mask as safetensors.

        Parameters
        ----------
        path : path
            The file to write, in one step, readable by its owner alone.
        revertible : bool
            Whether to keep the original values of the changed entries. With them the file alone restores the memory
            bit for bit; without them it still restores it to rounding, since it holds μ.
        """
        tensors: dict[str, Tensor] = {}
        for name, part in self.entries.items():
            tensors[f"index/{name}"] = part.index[:0].cpu() if _all(part.index) else part.index.cpu()
            tensors[f"mu/{name}"] = part.mu.cpu()
            if revertible and part.original is not None:
                tensors[f"original/{name}"] = part.original.cpu()
        about = {
            "format": _FORMAT,
            "version": _VERSION,
            "base": self.base,
            "new": self.new,
            "trainable": str(self.trainable),
            "settings": json.dumps(dict(self.settings)),
        }
        return write_atomically(path, safetensors.torch.save(tensors, metadata=about), private=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Mask:
        """Read a mask that `save` wrote. Nothing is unpickled."""
        try:
            with safetensors.safe_open(os.fspath(path), framework="pt") as file:
                about = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
        except FileNotFoundError as error:
            raise MaskError(f"there is no mask file {path}") from error
        except (safetensors.SafetensorError, OSError) as error:
            raise MaskError(f"{path} is not a mask: it is not a readable safetensors file ({error})") from error
        if about.get("format") != _FORMAT:
            raise MaskError(f"{path} is a safetensors file but not a mask; expected one that Mask.save wrote")
        if about.get("version") not in _READ:
            raise MaskError(f"{path} has version {about.get('version')!r}, this package reads {_VERSION!r}")
        try:
            return _from_file(about, tensors)
        except (KeyError, ValueError) as error:
            raise MaskError(f"{path} is damaged: {error}") from error


def _from_file(about: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Mask:
    entries = {}
    for key, found in tensors.items():
        kind, _, name = key.partition("/")
        if kind == "index":
            steps = tensors[f"mu/{name}"]
            whole = found.numel() == 0 and about["version"] != "1"
            index = torch.arange(steps.numel(), dtype=found.dtype) if whole else found
            part = Entries(index, steps, tensors.get(f"original/{name}"))
            others = [part.mu] if part.original is None else [part.mu, part.original]
            if any(index.shape != other.shape or index.dim() != 1 for other in others):
                raise ValueError(f"the entries of {name} disagree in number")
            if index.is_floating_point() or not part.mu.is_floating_point():
                raise ValueError(f"the entries of {name} have dtypes {index.dtype} and {part.mu.dtype}")
            entries[name] = part
        elif f"index/{name}" not in tensors:
            raise ValueError(f"{key} has no positions")
    trainable, settings = int(about["trainable"]), json.loads(about["settings"])
    if trainable < 1 or not isinstance(settings, dict):
        raise ValueError(f"trainable is {trainable}, or the settings are not a table")
    return Mask(entries, trainable, about["base"], about["new"], settings)


def _all(index: Tensor) -> bool:
    """Return whether positions are 0, 1, 2, ...: those of a weight that changed from its first entry on."""
    return len(index) > 0 and int(index[0]) == 0 and bool((index[1:] - index[:-1] == 1).all())


def _fits(index: Tensor, weights: Tensor | None) -> bool:
    if weights is None or not len(index):
        return weights is not None
    return int(index.min()) >= 0 and int(index.max()) < weights.numel()
