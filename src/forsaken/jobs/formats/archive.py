"""The search of an exported program's archive for anything that could run code when torch reads it.

torch reads these archives in ways that trust them: some entries are unpickled, sizes are evaluated as expressions, and
operations are looked up by name. So an archive is refused unless everything in it is known to be plain: JSON, raw
tensors, tensors that load with ``weights_only=True``, sizes that are simple arithmetic, and operations of ATen.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from forsaken.errors import ModelError

_LARGEST_JSON = 2**28
_TEXTS = re.compile(r"(version|byteorder|archive_format|archive_version|serialization_id|\.data/\w+|\w*version\w*)$")
_RAW = re.compile(r"(^|/)(weights|constants)/(weight|tensor)_\d+$")
_OPERATION = re.compile(
    r"torch\.ops\.aten\.(?!from_file|_from_file)[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?"
    r"|_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|neg|pow|eq|ne|lt|le|gt|ge|and_|or_|not_)"
    r"|math\.(ceil|floor|sqrt|trunc)|torch\.sym_(int|float|max|min|not|ite|sqrt)"
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_SIZE = re.compile(r"([su]\d+|\d+|Max|Min|Mod|FloorDiv|CeilDiv|PythonMod|int_oo|-|\+|\*|/|\(|\)|,|\s|<|>|=|Eq|Ne|Not)*")


def check_archive(content: bytes, path: Path) -> None:
    """Raise a `ModelError` unless everything in the archive is plain."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.infolist():
                if not member.is_dir():
                    _check_member(archive, member, path)
    except (zipfile.BadZipFile, ValueError, RecursionError, NotImplementedError, EOFError, OSError) as error:
        raise ModelError(
            f"{path} cannot be read as an exported program; expected a file that torch.export.save wrote: is it "
            "complete?"
        ) from error


def _check_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> None:
    name = member.filename
    if name.endswith(".json"):
        if member.file_size > _LARGEST_JSON:
            raise _refusal(path, f"{name} is too large")
        _check_json(json.loads(archive.read(member)), name, path)
    elif name.endswith(".pt"):
        _check_tensors(archive.read(member), name, path)
    elif not _TEXTS.search(name) and not _RAW.search(name):
        raise _refusal(path, f"{name} is not known to be plain")


def _check_tensors(content: bytes, name: str, path: Path) -> None:
    if not content:
        return
    try:
        torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception:  # noqa: BLE001 (whatever a hostile file makes the reader raise, it is refused)
        raise _refusal(path, f"{name} holds more than tensors") from None


def _check_json(content: Any, name: str, path: Path) -> None:
    for key, value in _entries(content):
        if key == "use_pickle" and value is not False:
            raise _refusal(path, f"{name} names pickled objects")
        if key in ("as_custom_obj", "class_fqn", "source_fn_stack", "from_node") and value:
            raise _refusal(path, f"{name} names objects that would be looked up")
        if not isinstance(value, str):
            continue
        if key == "target" and not (_OPERATION.fullmatch(value) or _is_target_of_weight(name, value)):
            raise _refusal(path, f"{name} names the operation {value[:60]!r}")
        if key == "expr_str" and not _SIZE.fullmatch(value):
            raise _refusal(path, f"{name} has a size that is not simple arithmetic")
        if key == "name" and value and not _NAME.fullmatch(value):
            raise _refusal(path, f"{name} has a name that is not one")


def _is_target_of_weight(name: str, value: str) -> bool:
    # Input specifications call a weight's own name its target; nothing is looked up by it.
    return (
        _NAME.fullmatch(value) is not None and not value.startswith(("torch", "_operator", "math", "#")) and bool(name)
    )


def _entries(content: Any) -> Iterator[tuple[str, Any]]:
    waiting: list[Any] = [content]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from value.items()
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _refusal(path: Path, what: str) -> ModelError:
    return ModelError(
        f"{path} was not opened, since opening it could run code: {what}; export a plain module with torch.export, or "
        "give a factory and safetensors"
    )
