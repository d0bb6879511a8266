"""Reading files that a stranger may have written: one place for every bound on bytes, nesting and expansion.

Whatever is wrong with such a file is an `UnreadableError` with a reason in plain words; the caller adds which file it
is and what to do. No reason quotes the content of a row.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors
from numpy.lib import format as npy

from forsaken.errors import ForsakenError
from forsaken.types import Array

try:
    import resource
except ImportError:  # Windows knows no such limits
    resource = None  # type: ignore[assignment]

_DEEPEST = 64  # tables within tables; no file of ours comes near
_SHARE = 2  # one file may expand to one part in so many of the memory
_UNKNOWN_MEMORY = 2**34
# The types of tensors that torch can compute with everywhere; it cannot even compare the numbers of some others.
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL")
# What NumPy and zipfile raise over a file that is not what its name says.
_NOT_NPZ = (
    *(ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, MemoryError, SyntaxError, TypeError),
    *(AttributeError, LookupError, OverflowError, tokenize.TokenError),
)


class UnreadableError(ValueError):
    """A file that is damaged, hostile or too large; the text is the reason."""


def memory_bound() -> int:
    """Return how many bytes one file may expand to: half of the memory that this process may use."""
    known = [_UNKNOWN_MEMORY]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        known = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError):  # where a container has no limit of its own
        known.append(int(Path("/sys/fs/cgroup/memory.max").read_bytes()))
    if resource is not None and (most := resource.getrlimit(resource.RLIMIT_AS)[0]) >= 0:
        known.append(most)
    return min(known) // _SHARE


def check_expansion(size: int) -> None:
    """Refuse what would take more than `memory_bound` bytes."""
    if size > memory_bound():
        raise UnreadableError(
            f"it expands to {size:,} bytes, more than half of this machine's memory ({memory_bound():,})"
        )


def read_at_most(path: str | os.PathLike[str], most: int) -> bytes:
    """Return the content of a plain file of at most so many bytes; one that cannot be opened is an `OSError`."""
    if Path(path).exists() and not Path(path).is_file():
        raise OSError(errno.EINVAL, "it is no plain file")  # opening a pipe would wait for ever
    with Path(path).open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UnreadableError(f"it has more than {most:,} bytes")
    return content


def parse_json(text: str | bytes, constant: Callable[[str], Any] | None = None) -> Any:
    """Return what a JSON text holds, nested at most 64 deep; `constant` is called for NaN and infinity.

    >>> parse_json(b'{"a": [1]}')
    {'a': [1]}
    >>> parse_json("[" * 65 + "]" * 65)
    Traceback (most recent call last):
    ...
    forsaken._untrusted.UnreadableError: it is nested too deeply
    """
    try:
        found = json.loads(text, parse_constant=constant)
    except RecursionError as error:
        raise UnreadableError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise UnreadableError("it is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise UnreadableError(f"it is not JSON ({error})") from error
    except ValueError as error:  # a number of too many digits, or one that `constant` refused
        raise UnreadableError(f"it holds a number that is not allowed ({error})") from error
    level = [found]
    for _ in range(_DEEPEST):
        level = [part for each in level for part in _parts(each) if isinstance(part, dict | list)]
        if not level:
            return found
    raise UnreadableError("it is nested too deeply")


def _parts(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def check_zip(file: str | os.PathLike[str] | io.BytesIO) -> None:
    """Refuse an archive that would expand to too much; what is no zip archive is left to its own reader."""
    try:
        with zipfile.ZipFile(file) as archive:
            check_expansion(sum(member.file_size for member in archive.infolist()))
    except (zipfile.BadZipFile, NotImplementedError):
        return
    except (EOFError, LookupError, RuntimeError, OverflowError) as error:
        raise UnreadableError("its archive is damaged") from error
    finally:
        if isinstance(file, io.BytesIO):
            file.seek(0)


def read_npz(path: Path, wanted: Collection[str] | None = None) -> tuple[list[str], dict[str, Array]]:
    """Return the names of the arrays in an NPZ file, and those `wanted` of them (by default all), without objects.

    Neither a member that expands too much nor an array that claims more numbers than its member holds is read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            chosen = [name for name in members if wanted is None or name in wanted]
            check_expansion(sum(members[name].file_size for name in chosen))
            return list(members), {name: _array(archive, members[name]) for name in chosen}
    except (UnreadableError, OSError):
        raise
    except MemoryError as error:
        raise UnreadableError("there is not enough memory for its arrays") from error
    except _NOT_NPZ as error:
        raise UnreadableError("its arrays cannot be read; objects are refused, since they may carry code") from error


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    with archive.open(member) as file:
        version = npy.read_magic(file)
        header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        shape, _, dtype = header[version](file)
        if dtype.hasobject or math.prod(shape) * dtype.itemsize > member.file_size:
            raise ValueError(member.filename)
    with archive.open(member) as file:
        return npy.read_array(file, allow_pickle=False)


def read_safetensors(
    path: str | os.PathLike[str], wanted: Collection[str] | None = None
) -> tuple[Mapping[str, str], dict[str, Any]]:
    """Return the metadata and the tensors (by default all) of a safetensors file; only plain types of numbers are read.

    A file that cannot be opened is an `OSError`. The tensors are never larger than the file.
    """
    try:
        with safetensors.safe_open(os.fspath(path), framework="pt") as file:
            names = [name for name in file.keys() if wanted is None or name in wanted]  # noqa: SIM118 (not a dict)
            odd = sorted({kind for name in names if (kind := file.get_slice(name).get_dtype()) not in _DTYPES})
            if odd:
                raise UnreadableError(f"it holds tensors of type {', '.join(odd)}, expected {', '.join(_DTYPES)}")
            return file.metadata() or {}, {name: file.get_tensor(name) for name in names}
    except safetensors.SafetensorError as error:
        raise UnreadableError(f"it is no complete safetensors file ({error})") from error
    except (ValueError, TypeError, RuntimeError, MemoryError, OverflowError) as error:
        if isinstance(error, UnreadableError):
            raise
        raise UnreadableError("its tensors cannot be read") from error


@contextmanager
def library_reading() -> Iterator[None]:
    """Refuse a file over which torch, skops or transformers raises anything at all.

    This is the package's only blind `except`: these libraries document no errors of their readers, a hostile file makes
    them raise nearly every type that there is, and whatever they raise has one meaning, that the file cannot be used.
    """
    try:
        yield
    except (ForsakenError, UnreadableError):
        raise
    except MemoryError as error:
        raise UnreadableError("there is not enough memory for it") from error
    except Exception as error:
        raise UnreadableError(type(error).__name__) from error
