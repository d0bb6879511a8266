"""The settings of a method: each says what it is and which values it takes, and is checked by what it says."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import Field, field, fields
from typing import Any

from forsaken._checks import Problems


def number(default: float | None, about: str, *, least: float = 0.0, most: float = math.inf) -> Any:
    """Return a field for a finite number from `least` to `most`; a default of None means that it may be left out."""
    return field(default=default, metadata={"about": about, "least": least, "most": most, "kind": "number"})


def whole(default: int | None, about: str, *, least: int = 0, most: int | None = None) -> Any:
    """Return a field for a whole number from `least` to `most`; a default of None means that it may be left out."""
    return field(default=default, metadata={"about": about, "least": least, "most": most, "kind": "whole"})


def choice(default: str, about: str, known: Iterable[str]) -> Any:
    """Return a field for one of some names."""
    return field(default=default, metadata={"about": about, "known": tuple(sorted(known)), "kind": "choice"})


def switch(default: bool, about: str) -> Any:
    """Return a field for true or false."""
    return field(default=default, metadata={"about": about, "kind": "switch"})


def other(default: Any, about: str, values: str) -> Any:
    """Return a field that the method checks itself; `values` says what it takes."""
    return field(default=default, metadata={"about": about, "values": values, "kind": "other"})


def check(method: Any, found: Problems) -> None:
    """Note every setting of a method that is not what its field says."""
    for each in fields(method):
        value, told = getattr(method, each.name), each.metadata
        kind = told.get("kind")
        if value is None and each.default is None:
            continue
        if kind == "number":
            found.number(each.name, value, least=told["least"], most=told["most"])
        elif kind == "whole":
            found.whole(each.name, value, least=told["least"], most=told["most"])
        elif kind == "choice":
            found.choice(each.name, value, told["known"])
        elif kind == "switch" and not isinstance(value, bool):
            found.add(f"{each.name} is {value!r}, expected True or False")


def describe(method: type[Any]) -> list[dict[str, Any]]:
    """Return name, default, values and meaning of each setting of a method, JSON-ready."""
    return [
        {
            "name": each.name,
            "default": each.default,
            "values": _values(each),
            "about": each.metadata.get("about", ""),
        }
        for each in fields(method)
    ]


def _values(each: Field[Any]) -> str:
    told = each.metadata
    kind = told.get("kind")
    if kind == "choice":
        return ", ".join(told["known"])
    if kind == "switch":
        return "true or false"
    if kind not in ("number", "whole"):
        return str(told.get("values", ""))
    name = "a number" if kind == "number" else "a whole number"
    bounded = told["most"] is not None and math.isfinite(told["most"])
    within = f"from {told['least']:g} to {told['most']:g}" if bounded else f">= {told['least']:g}"
    return f"{name} {within}" + (", or nothing" if each.default is None else "")
