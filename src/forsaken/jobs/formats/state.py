"""A factory and a file of tensors: safetensors, or torch's own state dict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from forsaken.errors import ModelError
from forsaken.jobs.code import call
from forsaken.jobs.formats.base import Checkpoint, Format

SAFETENSORS, STATE_DICT = (".safetensors",), (".pt", ".pth")
_FEW = 4  # names that an error message lists


class TensorFile(Format):
    """A network that a factory builds, with weights from a file of named tensors."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        path = checkpoint.weights
        self.name = "safetensors" if path.suffix.lower() in SAFETENSORS else "torch state dict"
        self._about: dict[str, str] | None = None
        tensors = self._read(path)
        model = call(checkpoint.factory, "[model] factory", **checkpoint.arguments)
        if not isinstance(model, nn.Module):
            raise ModelError(
                f"[model] factory returned {type(model).__name__}, expected a torch.nn.Module; return the network"
            )
        if any(weight.is_meta or isinstance(weight, UninitializedParameter) for weight in model.parameters()):
            raise ModelError(
                "[model] factory returned a network whose weights are not there yet (lazy, or on the meta device); "
                "build it on the CPU and, where it is lazy, call it once"
            )
        _load(model, tensors, path)
        self._names = tuple(tensors)
        self.model = model

    def write(self, model: Any, goal: Path) -> None:
        """Write the tensors under the names that the original file has."""
        state = model.state_dict()
        tensors = {name: state[name].detach().cpu().contiguous() for name in self._names}
        if self.name == "safetensors":
            # Shared tensors are stored once; where the original kept copies of them, so does this file.
            separate = {name: tensor.clone() for name, tensor in tensors.items()}
            goal.write_bytes(safetensors.torch.save(separate, metadata=self._about))
        else:
            torch.save(tensors, goal)

    def _read(self, path: Path) -> dict[str, Tensor]:
        if self.name == "safetensors":
            return self._read_safetensors(path)
        return read_state_dict(path)

    def _read_safetensors(self, path: Path) -> dict[str, Tensor]:
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                self._about = file.metadata()
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except (safetensors.SafetensorError, OSError, ValueError, RuntimeError) as error:
            raise ModelError(
                f"{path} cannot be read as safetensors ({_first_line(error)}); expected a file that "
                "safetensors.torch.save_file wrote: is it complete?"
            ) from error


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Read a state dict without unpickling anything but tensors."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a hostile or damaged file may raise anything
        if "weights_only" in str(error) or "Weights only" in str(error):
            raise ModelError(
                f"{path} holds more than tensors, so opening it could run code, and it was not opened; where you trust "
                "its source, save the weights alone with safetensors.torch.save_file(model.state_dict(), path)"
            ) from None
        raise ModelError(
            f"{path} cannot be read as a state dict ({type(error).__name__}); expected a file that "
            "torch.save(model.state_dict(), path) wrote: is it complete?"
        ) from error
    if not isinstance(found, Mapping) or not found or not all(isinstance(each, Tensor) for each in found.values()):
        keys = ", ".join(repr(key) for key in list(found)[:_FEW]) if isinstance(found, Mapping) else ""
        raise ModelError(
            f"{path} holds a {type(found).__name__}{f' with {keys}' if keys else ''}, expected named tensors alone; "
            "save the state dict by itself: torch.save(model.state_dict(), path)"
        )
    return {str(name): tensor for name, tensor in found.items()}


def _load(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    own = model.state_dict()
    shapes = [name for name in tensors if name in own and own[name].shape != tensors[name].shape]
    if shapes:
        first = shapes[0]
        raise ModelError(
            f"{path}: {first} has shape {tuple(tensors[first].shape)}, but the factory's model has "
            f"{tuple(own[first].shape)} ({len(shapes)} tensors differ); build the model that was trained"
        )
    strange = [name for name in tensors if name not in own]
    # Tied weights may be stored once: a missing name is fine where it shares the storage of one that is there.
    there = {own[name].data_ptr() for name in tensors if name in own}
    missing = [name for name in own if name not in tensors and own[name].data_ptr() not in there]
    if strange or missing:
        raise ModelError(
            f"{path} and the factory's model do not fit: {_some('missing in the file', missing)}"
            f"{'; ' if strange and missing else ''}{_some('unknown to the model', strange)}; build the model that was "
            "trained"
        )
    if any(own[name].dtype != tensors[name].dtype for name in tensors):
        model.to(_common_dtype(tensors, path))
    model.load_state_dict(dict(tensors), strict=False)


def _common_dtype(tensors: Mapping[str, Tensor], path: Path) -> torch.dtype:
    kinds = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(kinds) != 1:
        raise ModelError(
            f"{path} holds {' and '.join(sorted(map(str, kinds)))}, but the factory's model has other types; build it "
            "with the types of the file"
        )
    return kinds.pop()


def _some(what: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return f"{what}: {', '.join(names[:_FEW])}{more}"


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__
