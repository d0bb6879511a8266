"""A table of references as a safetensors file, readable by its owner alone; its key lies in a file of its own.

The tensors are ``content``, ``groups``, ``fold``, ``logits`` and ``views`` of `ReferenceRows`; ``taught.content``,
``taught.groups`` and ``taught.fold``, the rows that kept fold models learnt; ``model.K/...``, the weights of fold model
K; and ``curvature/...``. Everything else is JSON in the metadata (`_Header`). A file may come from anywhere, so all of
it is checked before it is used, and no message repeats its content.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from forsaken._files import write_atomically
from forsaken._keys import key_file, read_record_key, write_record_key
from forsaken._random import torch_seed
from forsaken._untrusted import UnreadableError, read_safetensors
from forsaken.errors import DataError, DataNotFoundError, ModelError, SettingsError
from forsaken.models.augment import AUGMENTATIONS, View
from forsaken.models.logits import Forward, as_module
from forsaken.references.curvature import Curvature
from forsaken.references.fitting import Costs, FoldModels, Origin, UnbuiltModel, Views
from forsaken.references.rows import CLAIMED, LEAST, WIDTH, ReferenceRows, checked_key
from forsaken.references.worth import Worth
from forsaken.result import problems_of
from forsaken.types import Array

if TYPE_CHECKING:
    from forsaken.references.table import References

FORMAT, SCHEMA = "forsaken.references", 4
_HALF_COUNTED = 3  # the last schema whose shifts did not count whole
_MODEL, _LEARNT, _CURVATURE = "model", "taught.", "curvature/"
_MODEL_TENSOR = re.compile(rf"{_MODEL}\.(0|[1-9][0-9]{{0,8}})/.+", re.DOTALL)

_Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Positive = Annotated[int, Field(ge=1, le=2**63 - 1)]
_Number = Annotated[float, Field(ge=0, le=2**63 - 1)]
_Share = Annotated[float, Field(ge=0, le=1)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Costs(_Part):
    seconds: _Number
    trainings: _Count


class _Origin(_Part):
    folds: _Count
    by: Literal["row", "group", "claim"]
    steps: _Count | None
    seed: _Count
    costs: _Costs
    budget: _Count | None = None


class _Worth(_Part):
    auc: _Share
    low: _Share
    high: _Share
    sigma: _Number
    data: _Number
    group: _Number = 0.0
    shift: _Number
    folds: Annotated[int, Field(ge=LEAST, le=2**31)]
    samples: _Count
    pairs: _Count


class _Views(_Part):
    count: _Positive
    seed: _Count
    name: str


class _Header(_Part):
    """The metadata of a table.

    Schema 1 has no views, no curvature and no spread, schema 2 no worth and no budget. In schema 3 the square of a
    shift counted beyond half of the variance of the references, and now all of it does.
    """

    version: Literal[1, 2, 3, 4] = Field(alias="schema")
    origin: _Origin
    forgotten: _Count
    owed: _Count
    models: _Count
    views: _Views | None = None
    curvature: dict[str, Any] | None = None
    spread: _Number | None = None
    worth: _Worth | None = None


def save(table: References, path: Path) -> Path:
    """Write a table, and its key beside it unless a file with that key is there."""
    beside = key_file(path)
    if os.path.lexists(beside):
        if read_record_key(beside) != table.key:
            raise SettingsError(f"{beside} holds another key than the table's; give another name, or move it away")
    else:
        write_record_key(beside, table.key)
    return write_table(table, path)


def write_table(table: References, path: Path) -> Path:
    """Write a table without its key."""
    entries, kept, views = table.entries, table.fold_models, table.views
    tensors = {"logits": entries.logits.contiguous(), **_row_tensors("", entries)}
    if entries.views is not None:
        tensors["views"] = entries.views.contiguous()
    if kept is not None:
        tensors |= _row_tensors(_LEARNT, kept)
        for at, model in enumerate(kept.models):
            state = model.state if isinstance(model, UnbuiltModel) else as_module(model).state_dict()
            for name, value in state.items():
                tensors[f"{_MODEL}.{at}/{name}"] = value.detach().cpu().contiguous().clone()
    curvature = None
    if table.curvature is not None:
        parts, curvature = table.curvature.to_tensors()
        tensors |= {f"{_CURVATURE}{name}": part for name, part in parts.items()}
    header = {
        "schema": SCHEMA,
        "origin": asdict(table.origin),
        "forgotten": table.forgotten,
        "owed": table.owed,
        "models": len(table.models),
        "views": None if views is None else {"count": views.count, "seed": views.seed, "name": views.name},
        "curvature": curvature,
        "spread": table.spread,
        "worth": None if table.worth is None else asdict(table.worth),
    }
    content = safetensors.torch.save(tensors, metadata={"format": FORMAT, "about": json.dumps(header)})
    return write_atomically(path, content, private=True)


def load(
    kind: type[References],
    path: Path,
    key: bytes | None,
    build: Callable[[], nn.Module] | None,
    forward: Forward | None,
    view: View | None,
) -> References:
    """Read a table; see `References.load`."""
    header, tensors = _read(path)
    secret = read_record_key(key_file(path)) if key is None else checked_key(key)
    told = header.origin
    models = tuple(_model(build, at, tensors, path) for at in range(header.models))
    views = None
    if header.views is not None:
        name = header.views.name
        views = Views(header.views.count, header.views.seed, name, AUGMENTATIONS.get(name, view))
    return kind(
        ReferenceRows(*_row_arrays("", tensors), tensors["logits"], tensors.get("views")),
        secret,
        Origin(
            told.folds, told.by, told.steps, told.seed, Costs(told.costs.seconds, told.costs.trainings), told.budget
        ),
        FoldModels(models, *_row_arrays(_LEARNT, tensors)) if models else None,
        header.forgotten,
        header.owed,
        forward,
        views,
        _curvature(header, tensors),
        header.spread,
        _worth(header),
    )


def _worth(header: _Header) -> Worth | None:
    if header.worth is None:
        return None
    worth = Worth(**header.worth.model_dump())
    if header.version > _HALF_COUNTED:
        return worth
    counted = max(0.0, worth.shift**2 - (worth.data**2 + worth.sigma**2) / 2)
    return replace(worth, shift=math.sqrt(counted))


def _read(path: Path) -> tuple[_Header, dict[str, Tensor]]:
    """Return the header and the tensors of a file, checked."""
    try:
        about, tensors = read_safetensors(path)
    except FileNotFoundError as error:
        raise DataNotFoundError(
            f"there is no table of references {path}; make one with: forsaken references fit"
        ) from error
    except (UnreadableError, OSError) as error:
        raise DataError(f"{path} cannot be read as a table of references ({error}); restore it, or fit anew") from error
    if about.get("format") != FORMAT:
        raise DataError(f"{path} is a safetensors file but no table of references; check the path")
    try:
        header = _Header.model_validate_json(about["about"])
        _check(header, tensors)
    except ValidationError as error:
        raise DataError(f"{path} is damaged (header: {problems_of(error)}); restore it, or fit anew") from None
    except (LookupError, ValueError) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}: {error}); restore it, or fit anew") from error
    return header, tensors


def _check(header: _Header, tensors: Mapping[str, Tensor]) -> None:
    """Raise a `ValueError` or a `LookupError` unless header and tensors belong together."""
    origin, models, views = header.origin, header.models, header.views
    if (origin.folds != 0) if origin.by == "claim" else (origin.folds < LEAST):
        raise ValueError(f"{origin.folds} folds, drawn by {origin.by}")
    if header.owed > (header.forgotten if models else 0):
        raise ValueError("its models owe more than was forgotten")
    grouped = origin.by == "group"
    known = {"logits", *_check_rows("", tensors, grouped, models or None, claims=origin.by == "claim")}
    logits, count = tensors["logits"], len(tensors["fold"])
    _check_logits("logits", logits, (count, max(2, logits.shape[-1] if logits.dim() else 0)))
    if views is not None:
        known.add("views")
        _check_logits("views", tensors["views"], (count, views.count, logits.shape[1]))
    if models:
        known |= _check_rows(_LEARNT, tensors, grouped, models, claims=False)
    if header.curvature is None and any(name.startswith(_CURVATURE) for name in tensors):
        raise ValueError("it holds a curvature that its header lacks")
    _curvature(header, tensors)
    others = [name for name in tensors if name not in known and not name.startswith(_CURVATURE)]
    numbers = {int(match[1]) for name in others if (match := _MODEL_TENSOR.fullmatch(name))}
    if not all(_MODEL_TENSOR.fullmatch(name) for name in others):
        raise ValueError("it holds a tensor that is not known")
    if len(numbers) != models or max(numbers, default=-1) >= models:
        raise ValueError(f"it holds {len(numbers)} models, but its header names {models}")


def _check_rows(
    prefix: str, tensors: Mapping[str, Tensor], grouped: bool, folds: int | None, *, claims: bool
) -> set[str]:
    """Check the hashes and folds of rows, and return the names of their tensors."""
    fold = tensors[f"{prefix}fold"]
    if fold.dim() != 1 or fold.dtype != torch.int32:
        raise ValueError(f"{prefix}fold has shape {tuple(fold.shape)} of {fold.dtype}")
    hashes = {f"{prefix}content", f"{prefix}groups"} if grouped else {f"{prefix}content"}
    for name in hashes:
        if tuple(tensors[name].shape) != (len(fold), WIDTH) or tensors[name].dtype != torch.uint8:
            raise ValueError(f"{name} has shape {tuple(tensors[name].shape)} of {tensors[name].dtype}")
    low = CLAIMED if claims and folds is None else 0
    if len(fold) and (int(fold.min()) < low or (folds is not None and int(fold.max()) >= folds)):
        raise ValueError(f"{prefix}fold has numbers of no fold")
    return {f"{prefix}fold", *hashes}


def _check_logits(name: str, logits: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(logits.shape) != shape or logits.dtype != torch.float32:
        raise ValueError(f"{name} has shape {tuple(logits.shape)} of {logits.dtype}")
    if not bool(torch.isfinite(logits).all()):
        raise ValueError(f"{name} are not finite")


def _row_tensors(prefix: str, rows: ReferenceRows | FoldModels) -> dict[str, Tensor]:
    parts = {"content": rows.content, "fold": rows.fold.astype(np.int32), "groups": rows.groups}
    return {f"{prefix}{name}": torch.from_numpy(part.copy()) for name, part in parts.items() if part is not None}


def _row_arrays(prefix: str, tensors: Mapping[str, Tensor]) -> tuple[Array, Array | None, Array]:
    groups = tensors.get(f"{prefix}groups")
    fold = tensors[f"{prefix}fold"].numpy().astype(np.int64)
    return tensors[f"{prefix}content"].numpy(), None if groups is None else groups.numpy(), fold


def _curvature(header: _Header, tensors: Mapping[str, Tensor]) -> Curvature | None:
    if header.curvature is None:
        return None
    own = {name.removeprefix(_CURVATURE): part for name, part in tensors.items() if name.startswith(_CURVATURE)}
    return Curvature.from_tensors(own, header.curvature)


def _model(
    build: Callable[[], nn.Module] | None, at: int, tensors: Mapping[str, Tensor], path: Path
) -> nn.Module | UnbuiltModel:
    start = f"{_MODEL}.{at}/"
    state = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
    if build is None:
        return UnbuiltModel(state)
    with torch_seed(0):
        network = as_module(build())
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise ModelError(
            f"the kept model {at} of {path} does not fit the network that build returns: {error}"
        ) from error
    return network.eval()
