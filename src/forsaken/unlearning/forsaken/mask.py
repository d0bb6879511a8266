"""The mask gradient μ as a value of its own: record it, save it, apply it, undo it.

A mask together with the new weights restores the model's memory of the forgotten samples, so a mask is as sensitive as
those samples. Delete it once it is no longer needed (the paper's last step), or save it without the original values.
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
from forsaken._untrusted import UnreadableError, parse_json, read_safetensors
from forsaken.errors import MaskError
from forsaken.models.logits import as_given, as_module
from forsaken.models.weights import fingerprint, same_bits
from forsaken.unlearning.forsaken.parameters import ParameterSpace

_FORMAT = "forsaken.mask"
_VERSION = "2"
_READ = ("1", "2")  # version 1 also wrote the positions of parameters of which every entry changed
_SMALL = 2**31  # positions below it fit into 32 bits


@dataclass(frozen=True, slots=True)
class Entries:
    """The changed entries of one parameter: their flat positions, μ, and the original values (None if not kept)."""

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
        """The size of the entries in a file that `save` writes, with the original values."""
        parts = [
            part
            for each in self.entries.values()
            for part in ((each.mu, each.original) if _all(each.index) else (each.index, each.mu, each.original))
        ]
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def revertible(self) -> bool:
        """Whether the mask holds the original values."""
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
            Whether to keep the original values of the changed entries. With them the file and the new weights give the
            old weights bit for bit; without them still to rounding, since the file holds μ.
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
            about, tensors = read_safetensors(path)
        except FileNotFoundError as error:
            raise MaskError(f"there is no mask file {path}") from error
        except (UnreadableError, OSError) as error:
            raise MaskError(f"{path} is not a mask, or damaged: {error}") from error
        if about.get("format") != _FORMAT:
            raise MaskError(f"{path} is a safetensors file but not a mask; expected one that Mask.save wrote")
        if about.get("version") not in _READ:
            raise MaskError(f"{path} has version {about.get('version')!r}, this package reads {_VERSION!r}")
        try:
            return _from_file(about, tensors)
        except (KeyError, ValueError) as error:
            raise MaskError(f"{path} is damaged: {error}") from error


def record(
    space: ParameterSpace, mu: Tensor, student: nn.Module, settings: Mapping[str, Any], base: str | None = None
) -> Mask:
    """Apply θ = θ_0 − μ to `student`, and return the mask of the entries that changed, bit for bit.

    Parameters
    ----------
    space : ParameterSpace
        The parameters.
    mu : Tensor, shape (d,)
        μ.
    student : Module
        The model, at θ_0; changed in place.
    settings : dict
        The settings of the method, for `Mask.settings`.
    base : str, optional
        The fingerprint of the weights at θ_0, where it is known: hashing them takes longer than some passes.
    """
    base = fingerprint(student) if base is None else base
    named = dict(student.named_parameters())
    entries: dict[str, Entries] = {}
    with torch.no_grad():
        for name, positions, step in space.changes(mu):
            weights = named[name]
            old = weights.detach().reshape(-1)
            before = old[positions]
            after = (before.to(space.dtype) - step).to(old.dtype)
            moved = ~same_bits(before, after)
            if not bool(moved.any()):
                continue
            index = positions[moved]
            flat = old.clone()
            flat[index] = after[moved]
            weights.copy_(flat.view_as(weights))
            kind = torch.int32 if old.numel() < _SMALL else torch.int64
            entries[name] = Entries(index.to(kind).cpu(), step[moved].cpu(), before[moved].cpu())
    return Mask(entries, space.trainable, base, fingerprint(student) if entries else base, settings)


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
    trainable, settings = int(about["trainable"]), parse_json(about["settings"])
    if trainable < 1 or not isinstance(settings, dict):
        raise ValueError(f"trainable is {trainable}, or the settings are not a table")
    return Mask(entries, trainable, about["base"], about["new"], settings)


def _all(index: Tensor) -> bool:
    """Return whether positions are 0, 1, 2, ...; such positions are not written."""
    return len(index) > 0 and int(index[0]) == 0 and bool((index[1:] - index[:-1] == 1).all())


def _fits(index: Tensor, weights: Tensor | None) -> bool:
    if weights is None or not len(index):
        return weights is not None
    return int(index.min()) >= 0 and int(index.max()) < weights.numel()
