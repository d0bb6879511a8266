"""The user's own functions, named in a job file as `package.module:function`: found, called, and their errors told."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from forsaken.errors import ForsakenError, ModelError, SettingsError
from forsaken.models.logits import told


@contextlib.contextmanager
def user_code(folder: Path) -> Iterator[None]:
    """Let modules beside the job file be imported inside the block; they are put away after it."""
    home = str(folder.resolve())
    before = set(sys.modules)
    sys.path.insert(0, home)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(home)
        # Another job may have a module of the same name in its own folder.
        for name in set(sys.modules) - before:
            if _lies_in(sys.modules[name], home):
                del sys.modules[name]


@contextlib.contextmanager
def inherited(folder: Path) -> Iterator[None]:
    """Let processes that are started inside the block import the modules beside the job file, as this one does."""
    was = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder.resolve()), *([was] if was else [])])
    try:
        yield
    finally:
        if was is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = was


@dataclass(frozen=True, slots=True)
class UserModel:
    """A block in which a model of the user's runs: whatever the model raises becomes a `ModelError`.

    The text of the model's own error is left out, since it may quote a sample.

    Attributes
    ----------
    doing : str
        What the model was used for, as in "the model failed while it was trained".
    memory : str
        What to do when there is not enough memory.
    """

    doing: str
    memory: str

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, MemoryError | torch.OutOfMemoryError):
            raise ModelError(f"there is not enough memory while {self.doing}", remedy=self.memory) from error
        if isinstance(error, Exception) and not isinstance(error, ForsakenError):
            raise ModelError(f"the model failed while {self.doing}: {told(error)}") from error


@dataclass(frozen=True, slots=True)
class _UserCode:
    """A block that runs code of the user's, whose error becomes a `SettingsError`.

    Attributes
    ----------
    what : str
        What fails, such as "[data] prepare = 'own:embed'".
    secret : bool
        Whether the text of the error is left out, since it may quote a record.
    hidden : tuple of str
        Arguments that the text of the error must not quote, since each may be a password.
    checked : bool
        Whether the block only checks what the user's code returned: a complaint of ours, without the words of a
        library in it, quotes no record.
    """

    what: str
    secret: bool = False
    hidden: tuple[str, ...] = ()
    checked: bool = False

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception | SystemExit) or (isinstance(error, ForsakenError) and not self.secret):
            return
        if self.checked and isinstance(error, ForsakenError) and error.__cause__ is None:
            raise SettingsError(f"{self.what} returned what cannot be used: {error}") from None
        told = _told(error, self.secret)
        for text in self.hidden:
            told = told.replace(text, "(an argument)")
        # "from None" where a record may be quoted: not even a log of the chain may have it
        raise SettingsError(f"{self.what} failed with {told}") from (None if self.secret or self.hidden else error)


def find(reference: str, key: str) -> Callable[..., Any]:
    """Return the function that a job file names under `key`."""
    module, _, name = reference.partition(":")
    named = f"{key} = {reference!r}"
    try:
        with contextlib.redirect_stdout(sys.stderr), _UserCode(f"{named}: importing {module}"):
            found = importlib.import_module(module)
    except SettingsError as error:
        cause = error.__cause__
        if not isinstance(cause, ModuleNotFoundError):
            raise
        if cause.name is None or not f"{module}.".startswith(f"{cause.name}."):
            problem = f"{named}: {module} needs the module {cause.name!r}, which is not installed"
            raise SettingsError(problem, field=key, remedy="install it") from cause
        remedy = f"put {module.replace('.', '/')}.py beside the job file, or install it"
        raise SettingsError(f"{named}: there is no module {module!r}", field=key, remedy=remedy) from cause
    function = getattr(found, name, None)
    if not callable(function):
        near = ", ".join(sorted(each for each in vars(found) if callable(getattr(found, each)) and each[0] != "_")[:8])
        problem = f"{named}: {module} has no function {name!r} (found: {near or 'none'})"
        raise SettingsError(problem, field=key, remedy="check the name")
    return function  # type: ignore[no-any-return]


def call(function: Callable[..., Any], key: str, *given: Any, secret: bool = False, **arguments: Any) -> Any:
    """Call a function of the user's, named by `key` in messages; what it prints goes to standard error.

    Its error becomes a `SettingsError`, with `secret` without the error's text, which may quote a record.
    """
    texts = tuple(value for value in arguments.values() if isinstance(value, str) and value)
    checked = str(getattr(function, "__module__", "")).startswith("forsaken.")
    with contextlib.redirect_stdout(sys.stderr), _UserCode(key, secret, texts, checked):
        return function(*given, **arguments)


def _told(error: BaseException, secret: bool = False) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__]
    where = f" at {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""
    if secret:
        return f"{type(error).__name__}{where} (its text is not shown: it may quote a record); call it yourself to see"
    text = str(error).strip().splitlines()
    said = f": {text[0][:300]}" if text else ""
    return f"{type(error).__name__}{where}{said}"


def _lies_in(module: object, folder: str) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and Path(file).resolve().is_relative_to(folder)
