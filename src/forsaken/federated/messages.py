"""Records of Flower's messages: weights, terms and moments, written and read."""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from forsaken.errors import InputError
from forsaken.federated.scaling import Terms, Vector
from forsaken.references.curvature import Curvature

_NUMBERS = ("divisor", "rate", "momentum", "bound", "cover")


def read_vector(record: ArrayRecord) -> Vector:
    """Return the tensors of a record."""
    found: dict[str, Any] = record.to_torch_state_dict()
    return {name: part.to(torch.float32) for name, part in found.items()}


def terms_record(terms: Terms) -> ConfigRecord:
    """Return terms as a record."""
    told: dict[str, Any] = {name: float(getattr(terms, name)) for name in _NUMBERS}
    told |= {"step": terms.step, "rule": terms.rule, "horizon": terms.horizon, "counted": list(terms.counted)}
    return ConfigRecord(told)


def read_terms(content: RecordDict) -> Terms:
    """Return the terms that a message announces."""
    try:
        told: dict[str, Any] = dict(content.config_records["terms"])
        return Terms(**told | {"counted": tuple(told.get("counted", ())), "bound": float(told.get("bound", math.inf))})
    except (KeyError, TypeError) as error:
        raise InputError(
            "the message announces no terms", field="terms", remedy="run forsaken.federated's strategy on the server"
        ) from error


def curvature_record(curvature: Curvature) -> dict[str, ArrayRecord | ConfigRecord]:
    """Return a curvature as two records."""
    tensors, told = curvature.to_tensors()
    return {"moments": ArrayRecord(dict(tensors)), "moments-about": ConfigRecord({"told": json.dumps(told)})}


def read_curvature(content: RecordDict) -> Curvature | None:
    """Return the curvature that a message holds; a `ValueError` or a `LookupError` means that it is damaged."""
    if "moments" not in content.array_records:
        return None
    told = json.loads(str(content.config_records["moments-about"]["told"]))
    return Curvature.from_tensors(content.array_records["moments"].to_torch_state_dict(), told)
