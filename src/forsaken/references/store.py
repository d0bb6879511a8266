"""A table of references as a file: safetensors, readable by its owner alone, its key in a file of its own."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from forsaken._files import write_atomically
from forsaken._keys import key_file, read_record_key, write_record_key
from forsaken._random import torch_seed
from forsaken.errors import DataError, DataNotFoundError, ModelError, SettingsError
from forsaken.models.augment import AUGMENTATIONS, View
from forsaken.models.logits import Forward, as_module
from forsaken.references.curvature import Curvature
from forsaken.references.fitting import Costs, Origin, Taught, Views, Weights
from forsaken.references.rows import CLAIMED, LEAST, WIDTH, Entries, checked_key
from forsaken.types import Array

if TYPE_CHECKING:
    from forsaken.references.table import References


FORMAT, SCHEMA = "forsaken.references", 2
_READ = (1, 2)  # schema 1 has no views, no curvature and no spread
_LARGEST = 2**63 - 1  # of the numbers in a file
_MODEL, _TAUGHT, _CURVATURE = "model", "taught.", "curvature/"
_NAME = re.compile(rf"{_MODEL}\.(0|[1-9][0-9]{{0,8}})/.+", re.DOTALL)


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
    view: View | None,
) -> References:
    """Read a table; nothing is unpickled."""
    told, tensors = read_table(path)
    secret = read_record_key(key_file(path)) if key is None else checked_key(key)
    origin = Origin(**{**told["origin"], "costs": Costs(**told["origin"]["costs"])})
    models = tuple(_model(build, at, tensors, path) for at in range(told["models"]))
    entries = Entries(*_rows("", tensors), tensors["logits"], tensors.get("views"))
    taught = Taught(*_rows(_TAUGHT, tensors)) if models else None
    return kind(
        entries,
        secret,
        origin,
        models,
        told["forgotten"],
        told["owed"],
        forward,
        taught,
        _views(told.get("views"), view),
        None if told.get("curvature") is None else _curvature(told, tensors),
        told.get("spread"),
    )


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
    except (LookupError, TypeError, ValueError, RecursionError) as error:
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
    if table.models and table.taught is not None:
        tensors[f"{_TAUGHT}content"] = torch.from_numpy(table.taught.content.copy())
        tensors[f"{_TAUGHT}fold"] = torch.from_numpy(table.taught.fold.astype(np.int32))
        if table.taught.groups is not None:
            tensors[f"{_TAUGHT}groups"] = torch.from_numpy(table.taught.groups.copy())
    for at, model in enumerate(table.models):
        for name, value in _state(model).items():
            tensors[f"{_MODEL}.{at}/{name}"] = value.detach().cpu().contiguous().clone()
    if entries.views is not None:
        tensors["views"] = entries.views.contiguous()
    curvature = None
    if table.curvature is not None:
        parts, curvature = table.curvature.to_tensors()
        tensors |= {f"{_CURVATURE}{name}": part for name, part in parts.items()}
    views = table.views
    costs = {"seconds": origin.costs.seconds, "trainings": origin.costs.trainings}
    told = {
        "schema": SCHEMA,
        "origin": {"folds": origin.folds, "by": origin.by, "steps": origin.steps, "seed": origin.seed, "costs": costs},
        "forgotten": table.forgotten,
        "owed": table.owed,
        "models": len(table.models),
        "views": None if views is None else {"count": views.count, "seed": views.seed, "name": views.name},
        "curvature": curvature,
        "spread": table.spread,
    }
    return safetensors.torch.save(tensors, metadata={"format": FORMAT, "about": json.dumps(told)})


def _check_told(told: Mapping[str, Any]) -> None:
    if told["schema"] not in _READ:
        raise ValueError(f"schema {str(told['schema'])[:20]!r}, this package reads {SCHEMA}")
    spread = told.get("spread")
    if spread is not None and (type(spread) is not float or not 0 <= spread <= _LARGEST):
        raise ValueError("spread is no positive number")
    origin = told["origin"]
    if set(origin) != {"folds", "by", "steps", "seed", "costs"} or set(origin["costs"]) != {"seconds", "trainings"}:
        raise ValueError("its origin is not told")
    numbers = {name: told[name] for name in ("forgotten", "owed", "models")}
    numbers |= {"folds": origin["folds"], "seed": origin["seed"], "trainings": origin["costs"]["trainings"]}
    numbers |= {} if origin["steps"] is None else {"steps": origin["steps"]}
    for name, value in numbers.items():
        if type(value) is not int or not 0 <= value <= _LARGEST:
            raise ValueError(f"{name} is no number from 0 to {_LARGEST}")
    seconds = origin["costs"]["seconds"]
    if type(seconds) not in (int, float) or not 0 <= seconds <= _LARGEST:
        raise ValueError(f"seconds is no number from 0 to {_LARGEST}")
    if origin["by"] not in ("row", "group", "claim"):
        raise ValueError("what the folds were drawn by is not known")
    if (origin["folds"] != 0) if origin["by"] == "claim" else (origin["folds"] < LEAST):
        raise ValueError(f"{origin['folds']} folds, drawn by {origin['by']}")
    if told["owed"] > (told["forgotten"] if told["models"] else 0):
        raise ValueError("its models owe more than was forgotten")


def _check(told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    _check_told(told)
    by, models = told["origin"]["by"], told["models"]
    grouped, claimed = by == "group", by == "claim"
    count = _check_rows("", tensors, grouped=grouped, folds=models or None, claims=claimed)
    logits = tensors["logits"]
    if logits.dim() != 2 or len(logits) != count or logits.shape[1] < 2 or logits.dtype != torch.float32:
        raise ValueError(f"logits has shape {tuple(logits.shape)} of {logits.dtype}")
    if not bool(torch.isfinite(logits).all()):
        raise ValueError("logits that are not finite")
    known = {"logits", *_names("", grouped=grouped)}
    known |= {name for name in tensors if name.startswith(_CURVATURE)}
    if told.get("curvature") is not None:
        _curvature(told, tensors)
    elif any(name.startswith(_CURVATURE) for name in tensors):
        raise ValueError("it holds a curvature that it does not tell of")
    views = _views(told.get("views"), None)
    if views is not None:
        known.add("views")
        said = tensors["views"]
        if tuple(said.shape) != (count, views.count, logits.shape[1]) or said.dtype != torch.float32:
            raise ValueError(f"views has shape {tuple(said.shape)} of {said.dtype}")
        if not bool(torch.isfinite(said).all()):
            raise ValueError("logits of views that are not finite")
    if models:
        _check_rows(_TAUGHT, tensors, grouped=grouped, folds=models, claims=False)
        known |= _names(_TAUGHT, grouped=grouped)
    parts = [_NAME.fullmatch(name) for name in tensors if name not in known]
    if None in parts:
        raise ValueError("it holds a tensor that is not known")
    there = {int(part[1]) for part in parts if part is not None}
    if len(there) != models or max(there, default=-1) >= models:
        raise ValueError(f"it holds {len(there)} models, but tells of {models}")


def _curvature(told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Curvature:
    own = {name.removeprefix(_CURVATURE): part for name, part in tensors.items() if name.startswith(_CURVATURE)}
    return Curvature.from_tensors(own, told["curvature"])


def _views(told: Mapping[str, Any] | None, view: View | None) -> Views | None:
    if told is None:
        return None
    count, seed, name = told["count"], told["seed"], told["name"]
    if any(type(number) is not int or not 0 <= number <= _LARGEST for number in (count, seed)) or not count:
        raise ValueError("what is told of its views is no number")
    return Views(count, seed, str(name), AUGMENTATIONS.get(name, view))


def _check_rows(start: str, tensors: Mapping[str, Tensor], *, grouped: bool, folds: int | None, claims: bool) -> int:
    fold = tensors[f"{start}fold"]
    if fold.dim() != 1 or fold.dtype != torch.int32:
        raise ValueError(f"{start}fold has shape {tuple(fold.shape)} of {fold.dtype}")
    for name in _names(start, grouped=grouped) - {f"{start}fold"}:
        part = tensors[name]
        if tuple(part.shape) != (len(fold), WIDTH) or part.dtype != torch.uint8:
            raise ValueError(f"{name} has shape {tuple(part.shape)} of {part.dtype}")
    low = CLAIMED if claims and folds is None else 0
    if len(fold) and (int(fold.min()) < low or (folds is not None and int(fold.max()) >= folds)):
        raise ValueError(f"{start}fold has numbers of no fold")
    return len(fold)


def _names(start: str, *, grouped: bool) -> set[str]:
    return {f"{start}{name}" for name in ("content", "fold", *(("groups",) if grouped else ()))}


def _rows(start: str, tensors: Mapping[str, Tensor]) -> tuple[Array, Array | None, Array]:
    groups = tensors.get(f"{start}groups")
    fold = tensors[f"{start}fold"].numpy().astype(np.int64)
    return tensors[f"{start}content"].numpy(), None if groups is None else groups.numpy(), fold


def _state(model: object) -> Mapping[str, Tensor]:
    return model.state if isinstance(model, Weights) else as_module(model).state_dict()


def _model(
    build: Callable[[], nn.Module] | None, at: int, tensors: Mapping[str, Tensor], path: Path
) -> nn.Module | Weights:
    start = f"{_MODEL}.{at}/"
    state = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
    if build is None:
        return Weights(state)
    with torch_seed(0):
        network = as_module(build())
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise ModelError(
            f"the kept model {at} of {path} does not fit the network that build returns: {error}"
        ) from error
    return network.eval()
