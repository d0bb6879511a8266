"""`forsaken env`: what a bug report needs to say about the machine."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from rich.table import Table

from forsaken.cli.console import AsJson, emit, print_table

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


def env(as_json: AsJson = False) -> None:
    """Show versions and hardware, for a bug report. No path, host or user name is among them.

    Example: forsaken env --json
    """
    from forsaken.provenance import provenance

    facts = provenance()
    del facts["time"]
    facts["versions"] = {name: found for name in _PACKAGES if (found := _version(name))}
    if as_json:
        emit(facts)
        return
    shown = Table(show_header=False)
    for name, value in facts.items():
        if name != "versions":
            shown.add_row(name, "none" if value is None else str(value))
    for name, found in facts["versions"].items():
        shown.add_row(name, found)
    print_table(shown)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
