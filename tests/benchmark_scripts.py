"""The scripts of benchmarks/ as modules, for tests of what they compute."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


@contextmanager
def script(name: str) -> Iterator[ModuleType]:
    """Import a script of benchmarks/; afterwards neither it nor what it imports from there is known any more."""
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    known = {each: sys.modules.pop(each) for each in names & set(sys.modules)}
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))
        for each in names:
            sys.modules.pop(each, None)
        sys.modules.update(known)
