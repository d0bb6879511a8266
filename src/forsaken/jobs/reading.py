"""Reading a job file: every wrong table, key and value is told at once, with its line."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from forsaken.errors import DataNotFoundError, SettingsError
from forsaken.jobs.lines import Where, locate
from forsaken.jobs.problems import Problem, short, strangers, translate
from forsaken.jobs.rules import Given, broken_rules
from forsaken.jobs.settings import NAME, TABLES, Job

MOST_BYTES = 2**20
_LARGEST = 2**63  # TOML has no larger whole numbers
_DEEPEST = 32
_DEEP = "is nested too deeply"
_MODEL_FILE = "expected a file such as forsaken init writes"


def read_job(path: str | os.PathLike[str]) -> Job:
    """Read and check a job file.

    Raises
    ------
    DataNotFoundError
        There is no such file.
    SettingsError
        It cannot be read, is not TOML, or some of what it says is wrong; the message lists every problem.
    """
    place = Path(path)
    text = _read(place)
    raw = _parse(text, place)
    problems = strangers(raw)
    tables = {name: raw[name] for name in TABLES if name in raw}
    if isinstance(method := tables.get("method"), dict):
        own = {key: value for key, value in method.items() if key not in ("name", "seed")}
        tables["method"] = {key: value for key, value in method.items() if key not in own} | {"settings": own}
    job = None
    try:
        job = Job.model_validate({"path": place, **tables})
    except ValidationError as error:
        problems += translate(error, raw)
    problems += broken_rules(Given(raw, {problem.at for problem in problems}))
    if problems or job is None:
        raise SettingsError(_listed(place, problems, locate(text)))
    return job


def _read(place: Path) -> str:
    try:
        if place.is_dir():
            raise SettingsError(f"{place} is a folder, expected a job file such as {place / NAME}")
        if not place.exists():
            raise DataNotFoundError(f"no job file {place}; check the path, or write one with: forsaken init")
        if not place.is_file():
            raise SettingsError(f"{place} is not a regular file, expected a job file such as {NAME}")
        with place.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        if isinstance(error, DataNotFoundError):
            raise
        raise SettingsError(f"cannot read the job file {place}: {error.strerror}; check the path") from error
    if len(content) > MOST_BYTES:
        raise SettingsError(
            f"{place} is larger than 1 MiB, expected a job file of some lines; put long lists of ids into a file "
            'and name it, as in ids = "ids.txt"'
        )
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{place}: line {line} is not UTF-8; save the file as UTF-8 text") from error


def _parse(text: str, place: Path) -> dict[str, Any]:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(
            f'{place} is not TOML: {error}; expected lines such as weights = "model.safetensors"'
        ) from error
    except (ValueError, RecursionError) as error:  # tomllib leaks both: numbers of many digits, deep nesting
        what = _DEEP if isinstance(error, RecursionError) else "holds a number of too many digits"
        raise SettingsError(f"{place} {what}; {_MODEL_FILE}") from error
    leaves = list(_leaves(raw))
    if any(len(at) > _DEEPEST for at, _ in leaves):
        raise SettingsError(f"{place} {_DEEP}; {_MODEL_FILE}")
    large = [at for at, value in leaves if isinstance(value, int) and not -_LARGEST <= value < _LARGEST]
    if large:
        words = "is a whole number of more than 64 bits, expected a smaller one"
        problems = [Problem(at, f"{short('.'.join(at))} {words}") for at in large]
        raise SettingsError(_listed(place, problems, locate(text)))
    return raw


def _leaves(raw: dict[str, Any]) -> Iterator[tuple[Where, Any]]:
    """Yield every value with its place, those of lists too; what is nested too deeply is not entered."""
    waiting: list[tuple[Where, Any]] = [((), raw)]
    while waiting:
        at, value = waiting.pop()
        if isinstance(value, dict) and len(at) <= _DEEPEST:
            waiting += [((*at, key), one) for key, one in value.items()]
        elif isinstance(value, list):
            waiting += [(at, one) for one in value]
        else:
            yield at, value


def _listed(place: Path, problems: list[Problem], lines: dict[Where, int]) -> str:
    # What has no line is missing, and comes last.
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.line(lines) or math.inf)
    count = "1 problem" if len(ordered) == 1 else f"{len(ordered)} problems"
    return f"{place}: {count}" + "".join(f"\n  - {problem.told(lines)}" for problem in ordered)
