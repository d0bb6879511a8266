"""Out of fold: what references bring, beside the paper's target, today's peers and retraining.

    FORSAKEN_DATA=... python benchmarks/out_of_fold.py --task digits --rows confirm
    FORSAKEN_DATA=... python benchmarks/out_of_fold.py --task reuters-35-11 --rows confirm --device cuda

N originals, each with references of its own, are made to forget by every row; 2 N retrained models judge them (they are
never references). Settings are chosen on seeds from 100 on (--rows tune), and reported on seed 0. Margins, largest
posteriors and targets of every model stay in --folder, so that rows can be added and attacks made anew without
training again; a run that was stopped goes on where it was. On a GPU, start NVIDIA's MPS daemon first and train in
processes side by side (--engine processes). Writes results/out-of-fold-TASK-ROWS-SEED.json, and the margins of every
model (float16) to results/margins/, from which benchmarks/out_of_fold_attacks.py makes attacks without any training.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, origin
from out_of_fold_rows import PRESETS, TEN, Row, in_groups, near, neighbours

from forsaken._files import write_atomically
from forsaken._random import generator
from forsaken.auditing.ensembles import WATCHED, Ensembles
from forsaken.auditing.full import Full
from forsaken.auditing.inputs import AuditInputs
from forsaken.auditing.measurements import BEFORE, RETRAINED, Matrices
from forsaken.bench.audit import inputs_of
from forsaken.bench.networks import training_of
from forsaken.bench.scenarios.scenario import Scenario
from forsaken.bench.scenarios.table import load_scenario
from forsaken.bench.trial import Stage, staged
from forsaken.data.nest import row_keys
from forsaken.data.samples import Samples
from forsaken.metrics import at_floor, catastrophic_forgetting_rate, forgetting_rate, request_u_lira, u_lira
from forsaken.progress import bars

HOW = ("engine", "folder", "results", "workers")  # options that no number depends on
NUMBERS = {
    "u_lira_auc": "auc",
    "u_lira_request_auc": "request",
    "u_lira_worst": "worst",
    "u_lira_tpr_1": "tpr_1",
    "u_lira_auc_retain": "auc_retain",
    "u_lira_auc_test": "auc_test",
    "klom_forget_mean": "klom_forget",
    "klom_forget_p95": "klom_forget_p95",
    "klom_retain_mean": "klom_retain",
    "klom_test_mean": "klom_test",
    "neurips_score": "neurips",
    "ensemble_accuracy_test": "accuracy",
}


def retains_of(rows: dict[str, Row], case: AuditInputs, watched: Samples) -> dict[str, Samples]:
    """Return the retain samples of rows that get others than 1 % of the data; none of them is watched."""
    taken, kept = set(row_keys(watched.inputs)), case.sets.need("kept")
    free = kept.rows(np.flatnonzero([key not in taken for key in row_keys(kept.inputs)]))
    few = case.sets.need("retain")
    found = {}
    for name, row in rows.items():
        if row.retain == "all":
            found[name] = case.sets.remaining
        elif row.retain == "tenth":
            count = round(0.1 * len(case.sets.remaining))
            found[name] = free.rows(generator(case.seed, 91).permutation(len(free))[:count])
        elif row.retain == "near":
            found[name] = free.rows(near(case.sets.forget, free, len(few)))
    return found


def rates(matrices: Matrices, who: str, stage: Stage) -> dict[str, float | None]:
    """Return FR and CFR of each model beside its original, as means; the retrained models beside all originals."""

    def verdicts(name: str, part: str) -> list[Any]:
        return [stage.oracle.score_top(top) > stage.oracle.threshold for top in matrices.facts[name][f"{part}.top"]]

    found = {}
    for name, part, rate in (("fr", "forget", forgetting_rate), ("cfr", "retain", catastrophic_forgetting_rate)):
        before, after = verdicts(BEFORE, part), verdicts(who, part)
        values = [rate(one, other) for one, other in zip(before, after[: len(before)], strict=True)]
        found[name] = float(np.mean(values))
    return found


def measured(full: Full, stage: Stage, row: Row) -> dict[str, Any]:
    """Return every number of one row, with the interval of its AUC."""
    matrices, who = full.matrices, full.method
    found: dict[str, Any] = {}
    for number in full.numbers():
        if number.name in NUMBERS:
            found[NUMBERS[number.name]] = number.value
        if number.name in ("u_lira_auc", "u_lira_request_auc"):
            found[f"{NUMBERS[number.name]}_interval"] = number.interval
    found["at_floor"] = at_floor(found["auc"], full.floor)
    found["request_at_floor"] = at_floor(found["request"], full.floors.request["forget"])
    found |= rates(matrices, who, stage)
    found["seconds"] = float(np.median(matrices.seconds[who]))
    facts = matrices.facts[who]
    found["density"] = float(facts["density"].mean()) if "density" in facts else None
    judges = slice(None, full.count)
    if "targets" in facts:
        found["references_auc"] = u_lira(facts["targets"], matrices.margins[RETRAINED]["forget"][judges]).auc
    if "passes" in facts:
        found["passes"] = float(np.median(facts["passes"]))
    for name in nearby(matrices):
        found[f"auc_{name}"] = u_lira(facts[name], matrices.facts[RETRAINED][name][judges]).auc
        found[f"request_{name}"] = request_u_lira(facts[name], matrices.facts[RETRAINED][name][judges])
    return found | row.told()


def nearby(matrices: Matrices) -> list[str]:
    """Return the names of the sets of near neighbours."""
    return [name for name in ("near", "mirrored", "shifted") if name in matrices.facts[RETRAINED]]


def yardsticks(full: Full, stage: Stage) -> dict[str, Any]:
    """Return what a retrained model and doing nothing score in the same run."""
    matrices = full.matrices
    numbers = {NUMBERS[number.name]: number for number in full.numbers() if number.name in NUMBERS}
    floor = full.floor
    retrained = {name: number.retrained for name, number in numbers.items()}
    retrained |= {"floor": [floor.low, floor.high], "seconds": float(matrices.seconds[RETRAINED].mean())}
    retrained |= {"request_floor": list(full.floors.request["forget"][:2]), "smallest_shift": list(full.floors.shifts)}
    retrained |= rates(matrices, RETRAINED, stage)
    nothing = {name: number.before for name, number in numbers.items()}
    for name in nearby(matrices):
        judges = matrices.facts[RETRAINED][name]
        first, second = judges[: full.count], judges[full.count : 2 * full.count]
        nothing[f"auc_{name}"] = u_lira(matrices.facts[BEFORE][name], first).auc
        retrained[f"auc_{name}"] = u_lira(second, first).auc
        nothing[f"request_{name}"] = request_u_lira(matrices.facts[BEFORE][name], first)
        retrained[f"request_{name}"] = request_u_lira(second, first)
    return {"retrained": retrained, "do-nothing": nothing | {"fr": 0.0, "cfr": 0.0, "density": 0.0}}


def save_margins(path: Path, matrices: Matrices, about: dict[str, Any]) -> None:
    """Write the margins of every group of models (float16, compressed), and where they come from."""
    arrays: dict[str, Any] = {"about": np.array(json.dumps(about))}
    for group, parts in matrices.margins.items():
        facts = matrices.facts[group]
        near = {name: facts[name] for name in (*nearby(matrices), "targets") if name in facts}
        for part, values in {**parts, **near}.items():
            arrays[f"{group}|{part}"] = values.astype(np.float16)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())


def ensembles_of(rows: dict[str, Row], scenario: Scenario, options: argparse.Namespace) -> Ensembles:
    """Return the models to train, and what is done with them."""
    nobody = training_of(scenario, options.device).build()  # the ensembles' originals stand in for a target
    case = inputs_of(scenario, nobody, options.device)
    watched = min(WATCHED, len(case.sets.need("kept")) // 2)  # the rest is there to be retained
    plain = Ensembles(case, {}, options.models, 2 * options.models, watched)
    ten = in_groups(len(case.sets.remaining), len(case.sets.forget))
    plans = {name: row.references for name, row in rows.items() if row.references is not None}
    plans = {name: replace(plan, groups=ten) if plan == TEN else plan for name, plan in plans.items()}
    return Ensembles(
        case,
        {name: row.method for name, row in rows.items()},
        options.models,
        2 * options.models,
        watched,
        references=plans,
        besides=neighbours(case.sets.forget, options.seed),
        retains=retains_of(rows, case, plain.views["retain"]),
        folder=options.folder,
        device=options.device,
    )


def lesser(path: Path, options: argparse.Namespace) -> str:
    """Return why a run would replace a result by less than it holds; empty where it would not."""
    if not path.exists():
        return ""
    models = json.loads(path.read_bytes())["options"]["models"]
    if options.only:
        return "holds every row, and --only measures some"
    return f"was measured with {models} models, and this run has {options.models}" if options.models < models else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="digits", help="a scenario")
    parser.add_argument("--rows", default="confirm", choices=sorted(PRESETS), help="which rows")
    parser.add_argument("--only", default="", help="names of rows, with commas between them")
    parser.add_argument("--models", type=int, default=16, help="originals; twice as many are retrained")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--epochs", type=int, help="in place of the scenario's own")
    parser.add_argument("--engine", default="local", help="processes trains models side by side: see forsaken.engine")
    parser.add_argument("--workers", type=int, help="how many processes, with --engine processes")
    parser.add_argument("--folder", type=Path, default=Path("runs/out-of-fold"), help="where margins are kept")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    path = options.results / f"out-of-fold-{options.task}-{options.rows}-{options.seed}.json"
    if why := lesser(path, options):
        parser.error(f"{path.name} {why}; name another folder with --results")
    only = set(filter(None, options.only.split(",")))
    rows = {name: row for name, row in PRESETS[options.rows](options.task).items() if not only or name in only}
    start = time.perf_counter()
    with bars() as progress:
        scenario = load_scenario(options.task, seed=options.seed, progress=progress)
        if options.epochs is not None:
            scenario = replace(scenario, recipe=replace(scenario.recipe, epochs=options.epochs))
        ensembles = ensembles_of(rows, scenario, options)
        matrices = ensembles.measure(engine=options.engine, workers=options.workers, progress=progress)
        stage = staged(scenario, progress, device=options.device)
    first = Full(matrices, next(iter(rows)), seed=options.seed)
    table = yardsticks(first, stage)
    for name, row in rows.items():
        table[name] = measured(Full(matrices, name, seed=options.seed, floors=first.floors), stage, row)
    content = {
        "command": "python benchmarks/out_of_fold.py",
        "options": {name: value for name, value in vars(options).items() if name not in HOW},
        "provenance": origin(),
        "wall_seconds": time.perf_counter() - start,
        "sizes": stage.scenario.sizes(),
        "oracle_balanced_accuracy": stage.oracle_report().balanced_accuracy,
        "target_seconds": {"train": stage.train_seconds, "retrain": stage.retrain_seconds},
        "rows": table,
    }
    options.results.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")
    about = {name: content[name] for name in ("command", "options", "provenance", "wall_seconds", "sizes")}
    save_margins(options.results / "margins" / f"{path.stem}.npz", matrices, about)
    for name, told in table.items():
        cells = [f"{key} {value:.3f}" for key, value in told.items() if isinstance(value, float)]
        print(f"{name:34s} " + "  ".join(cells))
    print(f"{content['wall_seconds']:.0f} s; wrote {path.name}")


if __name__ == "__main__":
    main()
