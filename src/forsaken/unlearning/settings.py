"""The settings of a method: each says what it is and which values it takes, and is checked by what it says."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, field, fields, replace
from typing import Any

from forsaken._checks import Problems
from forsaken.errors import SettingsError, UnknownNameError


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


def group(default: Any, about: str) -> Any:
    """Return a field for settings that belong together: a frozen dataclass whose fields are made by these functions."""
    return field(default=default, metadata={"about": about, "kind": "group"})


def grouped(
    owner: type[Any], settings: Mapping[str, Any], flat: Mapping[str, tuple[str, str]], found: Problems
) -> dict[str, Any]:
    """Return a value for each field of `owner`.

    Parameters
    ----------
    owner : type
        A dataclass with fields made by these functions.
    settings : dict
        Values by field. A group may be given as a mapping; entries that the mapping leaves out have their defaults.
        Entries may also be given one by one under their flat names, and then come before those of a group that was
        given as a value; an entry that stands in a mapping too is an error.
    flat : dict of str to (str, str)
        The group and the entry that each flat name stands for.
    found : Problems
        Collects entries that no group has, and entries that are given twice.
    """
    values = {each.name: settings.get(each.name, each.default) for each in fields(owner)}
    changes: dict[str, dict[str, Any]] = {}
    for each in fields(owner):
        if each.metadata.get("kind") == "group" and isinstance(values[each.name], Mapping):
            changes[each.name], values[each.name] = dict(values[each.name]), each.default
    for name, (where, entry) in flat.items():
        if name in settings:
            if entry in changes.get(where, {}):
                problem = f"{name} is given twice, alone and in {where}"
                found.found.append(SettingsError(problem, field=name, remedy="give it once"))
            changes.setdefault(where, {})[entry] = settings[name]
    for where, entries in changes.items():
        default = getattr(owner, where)
        known = [each.name for each in fields(default)]
        strange = [UnknownNameError(f"setting of {where}", name, known) for name in entries if name not in known]
        found.found += strange
        if isinstance(values[where], type(default)):
            values[where] = replace(values[where], **{name: entries[name] for name in entries if name in known})
    return values


def listed(owner: Any) -> Iterator[tuple[str, Field[Any], Any]]:
    """Yield name, field and value of each setting of a method; of a class, the defaults.

    The entries of a group go by their flat names (`Unlearner.flat`): so files, messages and lists name them.
    """
    for each in fields(owner):
        default: Any = each.default
        value = getattr(owner, each.name, default)
        if each.metadata.get("kind") == "group" and isinstance(value, type(default)):
            names = {entry: name for name, (where, entry) in owner.flat.items() if where == each.name}
            yield from ((names[entry.name], entry, getattr(value, entry.name)) for entry in fields(value))
        else:
            yield each.name, each, value


def check(method: Any, found: Problems) -> None:
    """Note every setting of a method that is not what its field says."""
    for name, each, value in listed(method):
        told = each.metadata
        kind = told.get("kind")
        if value is None and each.default is None:
            continue
        if kind == "number":
            found.number(name, value, least=told["least"], most=told["most"])
        elif kind == "whole":
            found.whole(name, value, least=told["least"], most=told["most"])
        elif kind == "choice":
            found.choice(name, value, told["known"])
        elif kind == "switch" and not isinstance(value, bool):
            found.add(f"{name} is {value!r}, expected True or False")
        elif kind == "group":
            expected = f"a table of its settings, or {type(each.default).__name__}(...)"
            found.add(f"{name} is {value!r}, expected {expected}", field=name)


def describe(method: type[Any]) -> list[dict[str, Any]]:
    """Return name, default, values and meaning of each setting of a method, JSON-ready."""
    return [
        {"name": name, "default": each.default, "values": _values(each), "about": each.metadata.get("about", "")}
        for name, each, _ in listed(method)
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
