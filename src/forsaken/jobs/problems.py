"""Problems of a job file in house words: where, which key, its value, and what was expected."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, time
from typing import Any

from pydantic import ValidationError

from forsaken.jobs.lines import Where
from forsaken.jobs.settings import SOURCES, TABLES, Job, RecipeSettings, Settings, Source
from forsaken.unlearning.methods import METHODS

_LONGEST = 60


@dataclass(frozen=True)
class Problem:
    """Something wrong at a place of the file."""

    at: Where
    text: str

    def line(self, lines: Mapping[Where, int]) -> int | None:
        """Return the line of the key, or of the table that lacks it; None where even that is not there."""
        return next((lines[self.at[:end]] for end in range(len(self.at), 0, -1) if self.at[:end] in lines), None)

    def told(self, lines: Mapping[Where, int]) -> str:
        """Return the problem with its line."""
        line = self.line(lines)
        return self.text if line is None else f"line {line}: {self.text}"


def label(at: Where) -> str:
    """Return how a key is called in messages.

    >>> label(("data", "forget", "count"))
    '[data] forget.count'
    """
    return f"[{at[0]}] {'.'.join(at[1:])}".rstrip()


def shown(value: object) -> str:
    """Return a value as a message shows it, of at most 60 characters."""
    if isinstance(value, bool):
        return str(value).lower()
    text = value.isoformat() if isinstance(value, date | time) else repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def short(name: str) -> str:
    """Return a name without quotes, of at most 60 characters on one line."""
    return shown(name)[1:-1]


def wrong(at: Where, value: object, expected: str) -> Problem:
    """Return the problem of a value that is not as expected."""
    return Problem(at, f"{label(at)} is {shown(value)}, expected {expected}")


def missing(at: Where, expected: str) -> Problem:
    """Return the problem of a key or table that is needed and not there."""
    return Problem(at, f"{label(at)} is missing, expected {expected}")


def unknown(at: Where, known: Iterable[str]) -> Problem:
    """Return the problem of a key that nobody knows, with the table it belongs to or the nearest that is known."""
    name, choices = at[-1], sorted(known)
    close = difflib.get_close_matches(name, choices, n=1)
    hint = ""
    if homes := homes_of(name):
        hint = f"; it belongs to {' or '.join(homes)}"
    elif close:
        hint = f"; did you mean {close[0]!r}?"
    inside = label(at[:-1]) + (":" if len(at) > 2 else "")
    return Problem(at, f"{inside} unknown key {shown(name)}{hint} (known: {', '.join(choices)})")


def keys_of(table: str) -> set[str]:
    """Return the keys that a table may have; of [method], those of any method."""
    keys = set(TABLES[table].model_fields)
    if table == "method":
        keys.remove("settings")
        keys.update(*(settings_of(name) for name in METHODS))
    return keys


def settings_of(method: str) -> set[str]:
    """Return the names of a method's own settings."""
    return {field.name for field in dataclasses.fields(METHODS[method])}  # type: ignore[arg-type]


def homes_of(key: str) -> list[str]:
    """Return the tables that may have a key, as messages name them."""
    return [f"[{table}]" for table in TABLES if key in keys_of(table)]


def strangers(raw: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of tables that nobody knows, and of keys that stand in no table."""
    found = []
    for name in raw:
        if name in TABLES:
            continue
        if isinstance(raw[name], dict):
            close = difflib.get_close_matches(name, TABLES, n=1)
            hint = f"; did you mean [{close[0]}]?" if close else ""
            known = ", ".join(f"[{table}]" for table in TABLES)
            found.append(Problem((name,), f"unknown table [{short(name)}]{hint} (known: {known})"))
        else:
            homes = homes_of(name)
            remedy = f"put it below {' or '.join(homes)}" if homes else "expected tables such as [model]"
            found.append(Problem((name,), f"key {shown(name)} stands in no table; {remedy}"))
    return found


def translate(error: ValidationError, raw: Mapping[str, Any]) -> list[Problem]:
    """Return what pydantic found, in house words; what it says itself is never shown."""
    found = []
    for one in error.errors(include_url=False):
        loc = tuple(str(part) for part in one["loc"])
        at, value = _walk(raw, loc)
        if one["type"] == "missing" and isinstance(value, Mapping):  # of a pair, a side may be missing too
            found.append(missing(loc, _expected(loc)))
            continue
        if one["type"] == "extra_forbidden":
            found.append(unknown(at, _inside(at).model_fields if len(at) > 2 else keys_of(at[0])))
        elif one["type"] == "house":
            found.append(Problem(at, f"{label(at)} {one['ctx']['problem']}"))
        elif at[-1] == "ids" or (isinstance(value, dict | list) and (len(at) != 2 or at in SOURCES)):
            # Such a value may be ids or hold them, and ids may name people.
            found.append(Problem(at, f"{label(at)} is {_kind(value)}, expected {_expected(at)}"))
        else:
            found.append(wrong(at, value, _expected(at)))
    return found


def _walk(raw: Any, loc: Where) -> tuple[Where, Any]:
    """Return as much of a place as the file itself has, and what stands there."""
    at: Where = ()
    for part in loc:
        if not isinstance(raw, Mapping) or part not in raw or len(at) == 3:
            break
        raw, at = raw[part], (*at, part)
    return at, raw


def _kind(value: object) -> str:
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return f"a value of type {type(value).__name__}"


def _expected(at: Where) -> str:
    fields = (Job, TABLES[at[0]], _inside(at))[len(at) - 1].model_fields
    return fields[at[-1]].description or "another value"


def _inside(at: Where) -> type[Settings]:
    """Return what a table within a table is: a set, but for the recipe."""
    return RecipeSettings if at[:2] == ("audit", "recipe") else Source
