"""The full audit of Forsaken on a scenario: U-LiRA, KLoM and the NeurIPS-2023 score beside their floors.

    FORSAKEN_DATA=... python benchmarks/audit.py --task reuters-35-11 --models 16
    FORSAKEN_DATA=... python benchmarks/audit.py --task reuters-35-11 --models 64 --device cuda

N originals, each unlearned, and 2 N retrained models. The seconds of the ensemble are the wall time of trainings and
unlearnings of this run; `cost.models_of_an_earlier_run` says how many models were read from --folder instead, where the
margins of every model are kept. With --references the target and every original get references of their own. Writes
results/audit-TASK-METHOD-PROFILE-N-DEVICE.json.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from common import RESULTS

from forsaken._files import write_atomically
from forsaken.auditing.held_out import HeldOut
from forsaken.bench.audit import audit_scenario
from forsaken.progress import bars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="digits", help="a scenario")
    parser.add_argument("--profile", default="full", choices=("standard", "full"))
    parser.add_argument("--models", type=int, default=16, help="originals (full) or references (standard)")
    parser.add_argument("--method", default="forsaken")
    parser.add_argument("--references", default="none", choices=("none", "all", "forgotten", "row"), help="of Forsaken")
    parser.add_argument("--folds", type=int, default=4, help="of the references, by row or with D as one group")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--folder", type=Path, default=Path("runs/audit"), help="where margins of models are kept")
    options = parser.parse_args()
    references = None if options.references == "none" else HeldOut(options.folds, options.references)
    start = time.perf_counter()
    with bars() as progress:
        found = audit_scenario(
            options.task,
            options.method,
            profile=options.profile,
            models=options.models,
            seed=options.seed,
            device=options.device,
            folder=options.folder,
            references=references,
            progress=progress,
        )
    seconds = time.perf_counter() - start
    method = options.method if references is None else f"{options.method}-{options.references}-{options.folds}"
    name = f"audit-{options.task}-{method}-{options.profile}-{options.models}-{options.device}.json"
    if options.seed:
        name = name.replace(".json", f"-seed-{options.seed}.json")
    told = {name: value for name, value in vars(options).items() if name != "folder"} | {"wall_seconds": seconds}
    content = {"command": "python benchmarks/audit.py", "options": told, "audit": found.to_dict()}
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_atomically(RESULTS / name, json.dumps(content, indent=1).encode() + b"\n")
    print(f"{found.claim.shown}\nNot shown: {found.claim.not_shown}")
    for number in found.numbers:
        print(
            f"{number.name:26s} {number.value}  {number.interval}  before {number.before}  retrained {number.retrained}"
        )
    for alarm in found.alarms:
        print(alarm.name, alarm.raised, alarm.told)
    print(found.cost, *found.warnings, f"{seconds:.0f} s in all; wrote {name}", sep="\n")


if __name__ == "__main__":
    main()
