"""What the benchmarks share: seeds from the command line, a table for people, a result file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from forsaken._files import write_atomically
from forsaken.bench.running import commit_of
from forsaken.provenance import provenance, source_hash

RESULTS = Path(__file__).parent / "results"
MOVED = 0.25  # the mean density below which a peer left most models as they were (salun changes half of the weights)


def origin() -> dict[str, Any]:
    """Return where a result comes from: the commit, hashes of library and scripts, hardware, versions and time.

    The commit has a "+" where files of the repository differ from it.
    """
    return provenance() | {"commit": commit_of(RESULTS.parents[1]), "scripts_sha256": source_hash(RESULTS.parent)}


def seeds(text: str) -> list[int]:
    """Read "0-4" or "0,3,7"."""
    if "-" in text:
        first, last = text.split("-")
        return list(range(int(first), int(last) + 1))
    return [int(part) for part in text.split(",")]


def add_seeds(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--seeds", type=seeds, default=seeds(default), help=f"default: {default}")


def defined(values: list[dict[str, float]], key: str) -> list[float]:
    """Return the values of all seeds where there is one: a rate is undefined where nothing was memorised."""
    return [value[key] for value in values if value[key] is not None]


def summary(rows: dict[str, list[dict[str, float]]]) -> str:
    """Return the means (and standard deviations) of every number, a line a variant."""
    lines = []
    for name, values in rows.items():
        cells = []
        for key in values[0]:
            column = defined(values, key)
            spread = f" ± {np.std(column, ddof=1):.3g}" if len(column) > 1 else ""
            cells.append(f"{key} {np.mean(column):.4g}{spread}" if column else f"{key} n/a")
        lines.append(f"{name:40s} " + "  ".join(cells))
    return "\n".join(lines)


def write_result(path: Path, used: list[int], rows: dict[str, list[dict[str, float]]], **more: object) -> None:
    """Write the values of every seed with the command and where they come from."""
    means = {
        name: {key: float(np.mean(column)) for key in values[0] if (column := defined(values, key))}
        for name, values in rows.items()
    }
    content = {
        "command": "python benchmarks/" + " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "seeds": used,
        "provenance": origin(),
        **more,
        "mean": means,
        "runs": rows,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")
    print(f"wrote {path.name}")


def markdown(lines: list[tuple[str, ...]]) -> str:
    """Return a table, of which the first line is the head."""
    head, *body = lines
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ("---",) * len(head), *body))
