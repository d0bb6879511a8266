"""`forsaken env`: what a bug report needs to say about the machine."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

_PACKAGES = (
    "forsaken",
    "torch",
    "numpy",
    "scipy",
    "scikit-learn",
    "safetensors",
    "skops",
    "pyarrow",
    "pillow",
    "pydantic",
    "cryptography",
    "xgboost-cpu",
    "xgboost",
    "transformers",
    "typer",
    "rich",
)


def env(as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False) -> None:
    """Show versions and hardware, for a bug report. No path, host or user name is among them.

    Example: forsaken env --json
    """
    from forsaken.provenance import provenance

    facts = provenance()
    del facts["time"]
    facts["versions"] = {name: found for name in _PACKAGES if (found := _version(name))}
    if as_json:
        typer.echo(json.dumps(facts))
        return
    shown = Table(show_header=False)
    for name, value in facts.items():
        if name != "versions":
            shown.add_row(name, "none" if value is None else str(value))
    for name, found in facts["versions"].items():
        shown.add_row(name, found)
    Console().print(shown)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
