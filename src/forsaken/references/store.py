"""A table of references as a file: safetensors, readable by its owner alone, its key in a file of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from forsaken._files import write_atomically
from forsaken._keys import read_record_key, write_record_key
from forsaken.errors import DataError, DataNotFoundError, ModelError, SettingsError
from forsaken.models.logits import Forward, as_module
from forsaken.references.entries import Entries
from forsaken.references.keys import WIDTH
from forsaken.references.origin import Costs, Origin

if TYPE_CHECKING:
    from forsaken.references.table import References

FORMAT, SCHEMA = "forsaken.references", 1
_MODEL = "model"
_PARTS = {"content", "groups", "fold", "logits"}


def key_file(path: Path) -> Path:
    """Return where the key of a table lies unless it is named: beside it."""
    return path.with_name(path.name + ".key")


def save(table: References, path: Path) -> Path:
    """Write a table, and its key where no file of that key is beside it yet."""
    beside = key_file(path)
    if os.path.lexists(beside):
        if read_record_key(beside) != table.key:
            raise SettingsError(f"{beside} holds another key than the table's; give another name, or move it away")
    else:
        write_record_key(beside, table.key)
    return write_table(table, path)


def write_table(table: References, path: Path) -> Path:
    """Write a table without its key."""
    return write_atomically(path, _content(table), private=True)


def load(
    kind: type[References],
    path: Path,
    key: bytes | None,
    build: Callable[[], nn.Module] | None,
    forward: Forward | None,
) -> References:
    """Read a table; nothing is unpickled."""
    told, tensors = read_table(path)
    secret = read_record_key(key_file(path)) if key is None else key
    origin = Origin(**{**told["origin"], "costs": Costs(**told["origin"]["costs"])})
    models: tuple[nn.Module, ...] = ()
    if told["models"] and build is not None:
        models = tuple(_model(build(), at, tensors, path) for at in range(told["models"]))
    groups = tensors.get("groups")
    entries = Entries(
        tensors["content"].numpy(),
        None if groups is None else groups.numpy(),
        tensors["fold"].numpy().astype(np.int64),
        tensors["logits"],
    )
    return kind(entries, secret, origin, models, told["forgotten"], told["owed"], forward)


def read_table(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what a file says about its table, and its tensors, checked."""
    try:
        with safetensors.safe_open(os.fspath(path), framework="pt") as file:
            about = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError as error:
        raise DataNotFoundError(
            f"there is no table of references {path}; make one with: forsaken references fit"
        ) from error
    except (safetensors.SafetensorError, OSError) as error:
        raise DataError(f"{path} cannot be read as a table of references ({error}); restore it, or fit anew") from error
    if about.get("format") != FORMAT:
        raise DataError(f"{path} is a safetensors file but no table of references; check the path")
    try:
        told = json.loads(about["about"])
        _check(told, tensors)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}: {error}); restore it, or fit anew") from error
    return told, tensors


def _content(table: References) -> bytes:
    entries, origin = table.entries, table.origin
    tensors = {
        "content": torch.from_numpy(entries.content),
        "fold": torch.from_numpy(entries.fold.astype(np.int32)),
        "logits": entries.logits.contiguous(),
    }
    if entries.groups is not None:
        tensors["groups"] = torch.from_numpy(entries.groups)
    for at, model in enumerate(table.models):
        for name, value in as_module(model).state_dict().items():
            tensors[f"{_MODEL}.{at}/{name}"] = value.detach().cpu().contiguous().clone()
    costs = {"seconds": origin.costs.seconds, "trainings": origin.costs.trainings}
    told = {
        "schema": SCHEMA,
        "origin": {"folds": origin.folds, "by": origin.by, "steps": origin.steps, "seed": origin.seed, "costs": costs},
        "forgotten": table.forgotten,
        "owed": table.owed,
        "models": len(table.models),
    }
    return safetensors.torch.save(tensors, metadata={"format": FORMAT, "about": json.dumps(told)})


def _check(told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    if told["schema"] != SCHEMA:
        raise ValueError(f"schema {told['schema']!r}, this package reads {SCHEMA}")
    rows = len(tensors["fold"])
    wanted: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
        "content": ((rows, WIDTH), torch.uint8),
        "fold": ((rows,), torch.int32),
        "logits": ((rows, tensors["logits"].shape[-1]), torch.float32),
    }
    if "groups" in tensors:
        wanted["groups"] = ((rows, WIDTH), torch.uint8)
    for name, (shape, kind) in wanted.items():
        if tuple(tensors[name].shape) != shape or tensors[name].dtype != kind:
            raise ValueError(f"{name} has shape {tuple(tensors[name].shape)} of {tensors[name].dtype}")
    strange = [name for name in tensors if name not in _PARTS and not name.startswith(f"{_MODEL}.")]
    if strange:
        raise ValueError(f"{strange[0]} is not known")
    if not bool(torch.isfinite(tensors["logits"]).all()):
        raise ValueError("logits that are not finite")
    for name, kinds in {"forgotten": int, "owed": int, "models": int, "origin": dict}.items():
        if not isinstance(told[name], kinds):
            raise TypeError(f"{name} is {type(told[name]).__name__}")
    origin = told["origin"]
    if set(origin) != {"folds", "by", "steps", "seed", "costs"} or set(origin["costs"]) != {"seconds", "trainings"}:
        raise ValueError("its origin is not told")


def _model(network: nn.Module, at: int, tensors: Mapping[str, Tensor], path: Path) -> nn.Module:
    start = f"{_MODEL}.{at}/"
    state = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise ModelError(
            f"the kept model {at} of {path} does not fit the network that build returns: {error}"
        ) from error
    return network.eval()
