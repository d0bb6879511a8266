"""Faults of the disk: a wrapper around the few functions by which files are written; it fails or kills at one of them.

A process arms itself with `arm`. From then on every opening for writing, write, flush, rename, link, new folder and
removal below one folder is counted and logged, and at the one whose number is `at` the fault happens:

- "error": that one fails with "no space left on device", after half of the bytes where it is a write;
- "full": that one fails so, and from then on everything that needs space does;
- "kill": the process is killed (SIGKILL) before it, or in the middle of it where it is a write;
- "power": as "kill", and every file that was written and not flushed is empty afterwards, as after a power cut.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from pathlib import Path
from typing import Any

FAULTS = ("error", "full", "kill", "power")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NEEDS_SPACE = {"open", "write", "flush", "mkdir", "link"}


def _path_of(handle: int) -> str:
    return os.fsdecode(Path(f"/proc/self/fd/{handle}").readlink())


class _Counted:
    """A file whose writes are counted."""

    def __init__(self, file: Any, faults: Faults) -> None:
        self._file, self._faults = file, faults

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B") if not isinstance(content, str) else content
        half = len(view) // 2

        def torn() -> None:
            self._file.write(view[:half])
            self._file.flush()

        self._faults.point("write", self._file.name, torn)
        return int(self._file.write(content))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Counted:
        self._file.__enter__()
        return self

    def __exit__(self, *told: Any) -> Any:
        return self._file.__exit__(*told)

    def __iter__(self) -> Any:
        return iter(self._file)


class Faults:
    """The count of the operations below `root`, and the fault that happens at one of them."""

    def __init__(self, root: Path, log: Path, at: int, fault: str) -> None:
        self.root, self.at, self.fault, self.count, self.broken = str(root), at, fault, 0, False
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self.dirty: dict[tuple[int, int], int] = {}  # by device and inode: a handle of a file that is not flushed
        self.open, self.fsync = os.open, os.fsync

    def below(self, path: Any, dir_fd: int | None = None) -> bool:
        if isinstance(path, int):
            place = _path_of(path)
        elif dir_fd is not None:
            place = f"{_path_of(dir_fd)}/{os.fsdecode(path)}"
        else:
            place = os.fsdecode(Path(path).absolute())
        return place.startswith(self.root + "/") and "__pycache__" not in place

    def point(self, kind: str, path: Any, torn: Any = None) -> None:
        """Count an operation; fail or die at the chosen one."""
        self.count += 1
        shown = _path_of(path) if isinstance(path, int) else os.fsdecode(path)
        os.write(self.log, f"{kind} {shown.removeprefix(self.root)}\n".encode())
        if self.count == self.at:
            if torn is not None:
                torn()
            if self.fault in ("kill", "power"):
                if self.fault == "power":
                    for handle in self.dirty.values():
                        os.ftruncate(handle, 0)
                os.kill(os.getpid(), signal.SIGKILL)
            self.broken = self.fault == "full"
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), shown)
        if self.broken and kind in _NEEDS_SPACE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), shown)

    def opened(self, handle: int) -> None:
        """Remember that a file is about to be written."""
        found = os.fstat(handle)
        self.dirty.setdefault((found.st_dev, found.st_ino), self.open(f"/proc/self/fd/{handle}", os.O_WRONLY))

    def flushed(self, handle: int) -> None:
        """Remember that a file is on the disk."""
        found = os.fstat(handle)
        kept = self.dirty.pop((found.st_dev, found.st_ino), None)
        if kept is not None:
            os.close(kept)


def arm(root: Path, log: Path, at: int = 0, fault: str = "error") -> Faults:
    """Wrap the functions that change files, for good: the process is one of its own."""
    faults = Faults(Path(root).resolve(), log, at, fault)
    real = {name: getattr(os, name) for name in ("open", "fsync", "fdopen")}
    opens = builtins.open

    def open_(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if not flags & _WRITES or not faults.below(path, named.get("dir_fd")):
            return int(real["open"](path, flags, *more, **named))
        faults.point("open", path)
        handle = int(real["open"](path, flags, *more, **named))
        faults.opened(handle)
        return handle

    def plain_open(file: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
        if isinstance(file, int) or not set(mode) & set("wax+") or not faults.below(file):
            return opens(file, mode, *more, **named)
        faults.point("open", file)
        made = opens(file, mode, *more, **named)
        faults.opened(made.fileno())
        return _Counted(made, faults)

    def fdopen(handle: int, mode: str = "r", *more: Any, **named: Any) -> Any:
        made = real["fdopen"](handle, mode, *more, **named)
        if not set(mode) & set("wax+") or not faults.below(handle):
            return made
        return _Counted(_Named(made, handle), faults)

    def fsync(handle: int) -> None:
        if faults.below(handle) or _path_of(handle) == faults.root:
            faults.point("flush", handle)
            faults.flushed(handle)
        real["fsync"](handle)

    os.open, os.fdopen, os.fsync = open_, fdopen, fsync  # type: ignore[assignment]
    builtins.open = io.open = plain_open  # type: ignore[assignment]
    for name, kind in {
        "replace": "rename",
        "rename": "rename",
        "link": "link",
        "mkdir": "mkdir",
        "unlink": "remove",
        "remove": "remove",
        "rmdir": "remove",
    }.items():
        setattr(os, name, _counted(getattr(os, name), kind, faults))
    return faults


def _counted(function: Any, kind: str, faults: Faults) -> Any:
    def call(path: Any, *more: Any, **named: Any) -> Any:
        if faults.below(path, named.get("dir_fd")):
            faults.point(kind, path)
        return function(path, *more, **named)

    return call


class _Named:
    """A file of a handle, with the path in place of the number as its name."""

    def __init__(self, file: Any, handle: int) -> None:
        self._file, self.name = file, _path_of(handle)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Any:
        return self._file.__enter__()

    def __exit__(self, *told: Any) -> Any:
        return self._file.__exit__(*told)
