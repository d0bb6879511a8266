"""Attacks on the whole request, made from saved margins: no training, seconds a file.

    python benchmarks/out_of_fold_attacks.py

Reads every file of results/margins/, which benchmarks/out_of_fold.py wrote. For each row: U-LiRA by sample and by the
request as a whole, on the forgotten samples and on their neighbours, and what the models before and after give away
together. Beside them stand the floors, the value of retrained models, and the smallest shift that so many models would
have shown. Margins are float16: an AUC moves by about 0.001. Writes results/attacks-TASK-ROWS-SEED.json.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, origin

from forsaken._files import write_atomically
from forsaken.auditing.before_after import ensemble_before_after
from forsaken.auditing.measurements import BEFORE, RETRAINED, Matrices
from forsaken.metrics import (
    at_floor,
    request_floor,
    request_interval,
    request_u_lira,
    smallest_shift,
    u_lira,
    u_lira_floor,
    u_lira_intervals,
)

NEIGHBOURS = ("near", "mirrored", "shifted")
OWN = "forget"


def read(path: Path) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the margins by group and set, and where they come from."""
    groups: dict[str, dict[str, Any]] = {}
    with np.load(path, allow_pickle=False) as file:
        about = json.loads(str(file["about"]))
        for name in file.files:
            if name != "about":
                group, part = name.split("|")
                groups.setdefault(group, {})[part] = file[name].astype(np.float64)
    return groups, about


def attacked(mine: Any, judges: Any, floors: tuple[Any, Any]) -> dict[str, Any]:
    """Return what U-LiRA tells of some models, sample by sample and by the whole request."""
    found = {"auc": u_lira(mine, judges).auc, "auc_interval": u_lira_intervals(mine, judges).auc}
    found |= {"request": request_u_lira(mine, judges), "request_interval": request_interval(mine, judges)}
    return found | {
        "at_floor": at_floor(found["auc"], floors[0]),
        "request_at_floor": at_floor(found["request"], floors[1]),
    }


def attacks(groups: dict[str, dict[str, Any]], seed: int) -> dict[str, Any]:
    """Return every row of one file; the retrained models come first, and doing nothing second."""
    retrained, before = groups[RETRAINED], groups[BEFORE]
    count = len(before[OWN])
    parts = [part for part in (OWN, *NEIGHBOURS) if part in retrained]
    floors = {
        part: (u_lira_floor(retrained[part], seed=seed), request_floor(retrained[part], seed=seed)) for part in parts
    }
    matrices = Matrices(groups, {}, {}, {})
    rows: dict[str, Any] = {
        "retrained": {
            part: {
                "auc": sample.mean,
                "floor": [sample.low, sample.high],
                "request": request.mean,
                "request_floor": [request.low, request.high],
            }
            for part, (sample, request) in floors.items()
        }
    }
    rows["retrained"]["smallest_shift"] = {
        "sample": smallest_shift(retrained[OWN], floors[OWN][0], seed=seed),
        "request": smallest_shift(retrained[OWN], floors[OWN][1], request_u_lira, seed=seed),
    }
    for group, sets in groups.items():
        if group == RETRAINED:
            continue
        row: dict[str, Any] = {part: attacked(sets[part], retrained[part][:count], floors[part]) for part in parts}
        if "targets" in sets:
            row["references"] = attacked(sets["targets"], retrained[OWN][:count], floors[OWN])
        if group != BEFORE:
            for number in ensemble_before_after(matrices, group, seed):
                name = number.name.removeprefix("ensemble_")
                row[name] = {"auc": number.value, "interval": number.interval, "retrained": number.retrained}
        rows["do-nothing" if group == BEFORE else group] = row
    return rows


def main() -> None:
    for path in sorted((RESULTS / "margins").glob("*.npz")):
        start = time.perf_counter()
        groups, about = read(path)
        rows = attacks(groups, about["options"]["seed"])
        content = {
            "command": "python benchmarks/out_of_fold_attacks.py",
            "margins": f"margins/{path.name}",
            "models": {group: len(sets[OWN]) for group, sets in groups.items()},
            "samples": len(groups[RETRAINED][OWN][0]),
            "options": about["options"],
            "provenance": origin(),
            "wall_seconds": time.perf_counter() - start,
            "of_the_margins": about,
            "rows": rows,
        }
        goal = RESULTS / f"attacks-{path.stem.removeprefix('out-of-fold-')}.json"
        write_atomically(goal, json.dumps(content, indent=1).encode() + b"\n")
        print(f"{goal.name}: {content['wall_seconds']:.0f} s")
        for name, row in rows.items():
            cells = (
                f"{part} {one['auc']:.3f} request {one['request']:.3f}"
                for part, one in row.items()
                if "request" in one and "auc" in one
            )
            print(f"  {name:20s} " + "  ".join(cells))


if __name__ == "__main__":
    main()
