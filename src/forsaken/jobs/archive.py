"""A plain copy of an exported program's archive: what torch reads in place of the user's own file.

torch trusts these archives: some entries are unpickled, sizes are evaluated as Python, names are pasted into source
code that is run, and operations are looked up by name. So nothing of an archive is passed on unless it is known to be
plain: members by their names, JSON by its keys and strings, tensors by loading them with ``weights_only=True``, sizes
by a small grammar, operations by what they resolve to. Everything else is refused, and torch gets a new archive made
of the members that were checked, so that two readers of one file cannot see two different things.
"""

from __future__ import annotations

import io
import json
import keyword
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import torch

from forsaken._untrusted import UnreadableError, check_expansion, check_zip, library_reading, parse_json
from forsaken.errors import ModelError

_ROOT = re.compile(r"[A-Za-z0-9_.-]+")
_MEMBER = re.compile(
    r"archive_format|archive_version|byteorder|\.data/(version|serialization_id)|models/model\.json"
    r"|data/(weights/model_weights|constants/model_constants)_config\.json|data/(weights/weight|constants/tensor)_\d+"
    r"|data/sample_inputs/model\.pt"
)
_PROGRAM, _EXAMPLES = "models/model.json", "data/sample_inputs/model.pt"
_CONFIGS = {
    "data/weights/model_weights_config.json": re.compile(r"weight_\d+"),
    "data/constants/model_constants_config.json": re.compile(r"tensor_\d+"),
}
_LARGEST_JSON = 2**28
_PLAIN = re.compile(r"[A-Za-z0-9_.]*")
# what operations take as text ("bilinear", "bij,bjk->bik"), and a version such as 2.13.0+cpu
_OTHERS = {"as_string": re.compile(r"[A-Za-z0-9_ ,.>-]*"), "torch_version": re.compile(r"[A-Za-z0-9.+]*")}
_SIZE = re.compile(
    r"(Symbol\('[su]\d{1,9}'(, (positive|integer|nonnegative|negative)=(True|False))*\)|Integer\(-?\d{1,18}\)"
    r"|[su]\d{1,9}|\d{1,18}|Mul|Add|Mod|PythonMod|FloorDiv|CeilDiv|CleanDiv|Max|Min|int_oo|[-+ (),])*+"
)
_OPERATION = re.compile(r"torch\.ops\.aten\.([a-z0-9_]+)\.([A-Za-z0-9_]+)")
_PYTHON = re.compile(
    r"_operator\.(getitem|add|sub|mul|floordiv|truediv|mod|neg|eq|ne|lt|le|gt|ge)|math\.(ceil|floor|trunc)"
    r"|torch\.sym_(int|float|max|min|not)"
)
# All that zipfile, json and the walk below raise over a file that is not what its name says.
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
_CONTAINERS = ("builtins.tuple", "builtins.list", "builtins.dict", None)
_REFUSED = ("as_operator", "as_graph", "as_custom_obj", "as_complex", "source_fn_stack", "from_node")


def checked_archive(content: bytes, path: Path) -> bytes:
    """Return a copy of the archive in which everything is plain, or raise a `ModelError` that says what is not."""
    try:
        return _copied(content)
    except _NotPlainError as error:
        raise ModelError(
            f"{path} was not opened, since opening it could run code: {error}; export a plain module with "
            "torch.export, or give a factory and safetensors"
        ) from None
    except _DAMAGED as error:
        reason = f" ({error})" if isinstance(error, UnreadableError) else ""
        raise ModelError(
            f"{path} cannot be read as an exported program{reason}; expected a file that torch.export.save wrote with "
            f"torch {torch.__version__} or a little older: is it complete?"
        ) from error


class _NotPlainError(Exception):
    """Something in an archive that is not known to be plain; the text says what."""


def _copied(content: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [member for member in archive.infolist() if not member.is_dir()]
        root = members[0].filename.partition("/")[0] if members else ""
        names = [member.filename.removeprefix(f"{root}/") for member in members]
        if _PROGRAM not in names:
            raise ValueError("no program")
        for member, name in zip(members, names, strict=True):
            if not _ROOT.fullmatch(root) or not member.filename.startswith(f"{root}/") or not _MEMBER.fullmatch(name):
                raise _NotPlainError(f"it holds {member.filename[:80]!r}")
            if name.endswith(".json") and member.file_size > _LARGEST_JSON:
                raise _NotPlainError(f"{name} is too large")
        if len(set(names)) != len(names):
            raise _NotPlainError("two of its members have the same name")
        check_expansion(sum(member.file_size for member in members))
        parts = {name: archive.read(member) for member, name in zip(members, names, strict=True)}
    for name, config in _CONFIGS.items():
        if name in parts:
            _check_config(parse_json(parts[name]), config, name)
    if _EXAMPLES in parts:
        _check_tensors(parts[_EXAMPLES])
    parts[_PROGRAM] = json.dumps(_plain_program(parse_json(parts[_PROGRAM]))).encode()
    copy = io.BytesIO()
    with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as new:
        for name, part in parts.items():
            new.writestr(f"{root}/{name}", part)
    return copy.getvalue()


def _check_config(config: Any, allowed: re.Pattern[str], name: str) -> None:
    for entry in config["config"].values():
        if entry["use_pickle"] is not False or not allowed.fullmatch(entry["path_name"]):
            raise _NotPlainError(f"{name} names an object that would be unpickled")
    _check_strings(config, "")


def _check_tensors(content: bytes) -> None:
    if not content:
        return
    check_zip(io.BytesIO(content))
    try:
        with library_reading():
            torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except UnreadableError:
        raise _NotPlainError("its example inputs hold more than tensors") from None


def _plain_program(program: Any) -> Any:
    """Return a program without its exporter's notes, after every string that is left was checked."""
    plain = _without_notes(program)
    plain["guards_code"] = []
    if "treespec_namedtuple_fields" in plain.get("graph_module", {}):
        plain["graph_module"]["treespec_namedtuple_fields"] = {}
    if not plain.get("verifiers") or not set(plain["verifiers"]) <= {"TRAINING", "ATEN"}:
        raise _NotPlainError("it asks torch not to check it")
    _check_strings(plain, "")
    return plain


def _without_notes(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: {} if key == "metadata" else _without_notes(part) for key, part in value.items()}
    return [_without_notes(part) for part in value] if isinstance(value, list) else value


def _check_strings(value: Any, key: str) -> None:
    if isinstance(value, dict):
        for name, part in value.items():
            if not _PLAIN.fullmatch(name) or (name in _REFUSED and part):
                raise _NotPlainError(f"it has an entry {name[:60]!r}")
            _check_strings(part, name)
    elif isinstance(value, list):
        for part in value:
            _check_strings(part, key)
    elif isinstance(value, str):
        _check_string(value, key)


def _check_string(text: str, key: str) -> None:
    if key == "expr_str":
        fits = _SIZE.fullmatch(text) is not None
    elif key == "target":
        fits = _is_operation(text)
    elif key in ("in_spec", "out_spec"):
        fits = text == "" or _is_plain_structure(parse_json(text))
    elif key in ("forward_arg_names", "name", "as_name"):
        fits = text == "" or (_PLAIN.fullmatch(text) is not None and "." not in text and not keyword.iskeyword(text))
    else:
        fits = _OTHERS.get(key, _PLAIN).fullmatch(text) is not None
    if not fits:
        raise _NotPlainError(f"its entry {key!r} is not plain: {text[:60]!r}")


def _is_operation(text: str) -> bool:
    """Return whether a target is an operation of ATen, simple arithmetic, or just the name of a weight."""
    if found := _OPERATION.fullmatch(text):
        operation = getattr(getattr(torch.ops.aten, found[1], None), found[2], None)
        if not isinstance(operation, torch._ops.OpOverload):
            return False
        return not any("file" in argument.name for argument in operation._schema.arguments)
    looked_up = text.startswith(("torch", "_operator", "math", "#"))
    return _PYTHON.fullmatch(text) is not None or (not looked_up and _PLAIN.fullmatch(text) is not None)


def _is_plain_structure(spec: Any) -> bool:
    """Return whether a description of nested inputs or outputs is of tuples, lists and dictionaries alone."""
    if isinstance(spec, list) and len(spec) == 2 and isinstance(spec[0], int):
        spec = spec[1]
    if not isinstance(spec, dict) or spec.get("type") not in _CONTAINERS:
        return False
    context = spec.get("context")
    keys = parse_json(context) if isinstance(context, str) else []
    named = [] if keys is None else keys
    if not isinstance(named, list) or not all(isinstance(key, str) and key.isidentifier() for key in named):
        return False
    return all(_is_plain_structure(part) for part in spec.get("children_spec", []))
