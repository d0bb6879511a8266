"""Every method beside retraining: FR, CFR, accuracy loss, seconds, and the ratio to retraining.

usage: FORSAKEN_DATA=<folder> python benchmarks/baselines.py --task reuters-35-11 [--seeds 0-4] [--tune 100]

A seed is a split, three trainings (target, shadow, retrained) and an oracle. Learning rates and the like are chosen
first, on the seeds of --tune, by how near a method comes to the retrained model: |FR - FR'| + |CFR - CFR'| + the loss
of accuracy beside it. Peers are run twice: with the retain samples that Forsaken gets (1 % of the training data on
Reuters), and with all of the kept data ("all kept"), on which their CFR is no honest number: they were trained on
them. SISA and SMU train models of their own; their "before" is that model, and "from plain training" compares with
the target. Every seed leaves its numbers in --folder and is not run again, so that machines can share the work
(--phase tune, run or table). Writes results/baselines-TASK.json, and results/baselines-tuning-TASK.json with every
setting that was tried; tables.py makes the tables of the documents from them.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, add_seeds, origin, seeds, summary, write_result

from forsaken._files import write_atomically
from forsaken.bench.networks import training_of
from forsaken.bench.scenarios.table import SCENARIOS
from forsaken.bench.trial import Stage, View, prepare
from forsaken.engine import fan_out
from forsaken.errors import ForsakenError, ModelError
from forsaken.unlearning.base import UpfrontUnlearner
from forsaken.unlearning.methods import build

RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0)
WORST = 3.0
EPOCHS = (5, 50)  # with few retain samples an epoch is a step or two
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "fine-tune": {"learning_rate": RATES},
    "gradient-ascent": {"learning_rate": (1e-4, 1e-3, 3e-3, 1e-2, 2e-2, 3e-2, 1e-1, 3e-1), "epochs": EPOCHS},
    "neggrad-plus": {"learning_rate": RATES, "alpha": (0.8, 0.95)},
    "l1-sparse": {"learning_rate": RATES[2:], "gamma": (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)},
    "salun": {"learning_rate": (1e-4, *RATES)},
    "scrub": {"learning_rate": RATES},
    # of the largest ratio that any weight can have, 1 / (D's share of the training data)
    "ssd": {"alpha": (0.3, 0.5, 0.8, 0.9, 0.95, 0.98), "damping": (0.5, 1.0, 2.0, 5.0)},
    "bad-teacher": {"learning_rate": (1e-4, *RATES)},
    "msg": {"learning_rate": RATES},
    "ct": {"learning_rate": RATES},
    "smu": {"learning_rate": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)},
    # times the recipe's rate: noise of this size may want smaller or larger steps than plain training
    "sisa-dp-sgd": {"rate": (0.1, 0.3, 1.0, 3.0)},
}
PEERS = ("fine-tune", "neggrad-plus", "l1-sparse", "salun", "scrub", "ssd", "bad-teacher", "msg", "ct")
ALONE = ("do-nothing", "forsaken", "gradient-ascent")
WHOLE = ("retrain", "smu", "sisa", "sisa-dp", "sisa-dp-sgd")
FEW_SLICES = {"slices": 10}  # digits have 54 samples a shard: too few for 100 slices
YARDSTICK = "retrained (the yardstick)"
KEPT = "all kept"
BARE = "sisa, no checkpoints"  # what its time is without writing and hashing any
BY_ACCURACY = ("sisa-dp-sgd",)  # it memorises nothing, so that no rate tells one setting from another


def judged(stage: Stage, model: Any, before: View | None = None) -> dict[str, Any]:
    """Return what the oracle and the test set say of a model, beside the model that it came from."""
    view = View.of(model, stage.scenario)
    start = stage.before if before is None else before
    own = Stage(
        stage.scenario, stage.target, stage.retrained, stage.oracle, stage.train_seconds, stage.retrain_seconds, start
    )
    found, beside = own.judge(view), stage.judge(view)
    was = own.judge(start)
    return {
        "fr": found.fr,
        "cfr": found.cfr,
        "accuracy": found.accuracy,
        "accuracy_loss": was.accuracy - found.accuracy,
        "accuracy_loss_beside_plain_training": stage.judge(stage.before).accuracy - found.accuracy,
        "fr_from_plain_training": beside.fr,
        "cfr_from_plain_training": beside.cfr,
        "confidence": found.confidence,
        "memorised_before": own.memorised,
    }


def run(stage: Stage, name: str, settings: dict[str, Any], whole: bool, seed: int) -> dict[str, Any]:
    """Run one method and judge it."""
    scenario, device = stage.scenario, next(stage.target.parameters()).device
    retain = scenario.kept if whole or name in WHOLE else scenario.retain
    if name == "ssd":
        largest = len(scenario.train) / len(scenario.forget)
        more = {"alpha": settings["alpha"] * largest} if "alpha" in settings else {}
        settings = settings | more | {"training_samples": len(scenario.train)}
    training = training_of(scenario, device)
    if "rate" in settings:
        recipe = dataclasses.replace(training.recipe, learning_rate=training.recipe.learning_rate * settings["rate"])
        training = dataclasses.replace(training, recipe=recipe)
        settings = {key: value for key, value in settings.items() if key != "rate"}
    method = build(name, settings)
    model, before, cost = stage.target, None, {}
    folder = Path(tempfile.mkdtemp())
    try:
        if isinstance(method, UpfrontUnlearner):
            watched = torch.arange(len(scenario.kept), len(scenario.train))
            ready = method.prepare(training, scenario.train, seed=seed * 10 + 1, folder=folder, watched=watched)
            model, cost = ready.model, {f"upfront_{key}": value for key, value in ready.cost.to_dict().items()}
            before = View.of(model, scenario)
        start = time.perf_counter()
        found = method(
            model,
            scenario.forget,
            scenario.reference,
            retain,
            training=training,
            seed=seed * 10 + (4 if name == "retrain" else 3),
        )
        seconds = time.perf_counter() - start
        numbers = judged(stage, found.model, before)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return (
        numbers
        | cost
        | {
            "seconds": found.seconds,
            "wall_seconds": seconds,
            "ratio_to_retraining": found.seconds / stage.retrain_seconds,
            "density": found.density,
        }
    )


def distance(name: str, found: dict[str, Any], yardstick: dict[str, Any]) -> float:
    """Return how far a model is from the retrained one; what is undefined counts as the worst."""
    worse = max(0.0, yardstick["accuracy"] - found["accuracy"])
    if name in BY_ACCURACY:
        return worse
    if found["fr"] is None or found["cfr"] is None:
        return WORST
    return abs(found["fr"] - yardstick["fr"]) + abs(found["cfr"] - yardstick["cfr"]) + worse


def grid_of(name: str, whole: bool) -> dict[str, tuple[Any, ...]]:
    """Return the values that are tried for each setting; with few retain samples more epochs are tried too."""
    grid = GRIDS.get(name, {})
    return grid | {"epochs": EPOCHS} if name in PEERS and name != "ssd" and not whole else grid


def choices(name: str, whole: bool) -> Iterator[dict[str, Any]]:
    """Return every setting of a method's grid."""
    grid = grid_of(name, whole)
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def rows() -> Iterator[tuple[str, str, bool]]:
    """Return the rows of the table: their name, the method, and whether it gets all of the kept data."""
    for name in (*ALONE, *WHOLE, *PEERS):
        yield name, name, False
        if name == "sisa":
            yield BARE, name, False
    for name in PEERS:
        yield f"{name}, {KEPT}", name, True


def own(task: str, name: str) -> dict[str, Any]:
    """Return what a task, and not the tuning, says about a method's settings."""
    few = FEW_SLICES if name.startswith("sisa") and task.startswith("digits") else {}
    return few | {"space": 0} if name == BARE else few


def identity(task: str, device: str) -> str:
    """Return a hash of all that decides a tuning: what was saved under another one is not taken for it."""
    told = [GRIDS, EPOCHS, own(task, "sisa"), device, version("forsaken"), str(SCENARIOS[task].recipe)]
    return sha256(json.dumps(told, default=str).encode()).hexdigest()


def edges(best: dict[str, dict[str, Any]]) -> list[str]:
    """Return the rows of which a chosen value lies at the end of its grid: a better one may lie beyond."""
    found = []
    for row, name, whole in rows():
        grid = grid_of(name, whole)
        found += [f"{row}: {key} {value}" for key, value in best.get(row, {}).items() if value in _ends(grid[key])]
    return found


def _ends(values: tuple[Any, ...]) -> tuple[Any, Any]:
    return values[0], values[-1]


def machines(folder: Path, task: str, used: list[int]) -> list[dict[str, Any]]:
    """Return where the rows were measured: each machine once, and the rows of each seed that are its own."""
    found: dict[str, dict[str, Any]] = {}
    for seed in used:
        for path in sorted((folder / f"run-{task}-{seed}").glob("*.json")):
            where = json.loads(path.read_bytes())["provenance"]
            when = where.pop("time")
            known = found.setdefault(json.dumps(where), where | {"from": when, "to": when, "rows": {}})
            known["from"], known["to"] = min(known["from"], when), max(known["to"], when)
            known["rows"].setdefault(str(seed), []).append(path.stem)
    largest_first = sorted(found.values(), key=lambda one: -sum(map(len, one["rows"].values())))
    return [one | {"rows": "all others" if one is largest_first[0] else one["rows"]} for one in largest_first]


def tuning_table(found: list[dict[str, list[dict[str, Any]]]], best: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return every setting that was tried, the values of the seeds beside each other, and which one was taken."""
    table: dict[str, Any] = {}
    for row, first in found[0].items():
        table[row] = []
        for at, tried in enumerate(first):
            same = [one[row][at] for one in found]
            line = {"settings": tried["settings"], "distance": [round(one["distance"], 4) for one in same]}
            for key in ("fr", "cfr", "accuracy", "error"):
                values = [one["numbers"].get(key) for one in same]
                if any(value is not None for value in values):
                    line[key] = [round(value, 4) if isinstance(value, float) else value for value in values]
            table[row].append(line | ({"chosen": True} if tried["settings"] == best.get(row) else {}))
    return table


def tuned(folder: Path, task: str, seed: int, device: str, only: set[str]) -> dict[str, list[dict[str, Any]]]:
    """Return how far from the retrained model each setting of each row is, on a seed that is not reported."""
    known, found = identity(task, device), {}
    stage = _Once(lambda: prepare(task, seed, device=device))
    for row, name, whole in rows():
        if name not in GRIDS or row == BARE or (only and name not in only):
            continue
        path = folder / f"tune-{task}-{seed}" / f"{row}.json"
        if path.exists():
            saved = json.loads(path.read_bytes())
            if saved["identity"] != known:
                raise SystemExit(f"{path} was made with other grids or on another device; delete it to tune anew")
            found[row] = saved["tried"]
            continue
        yardstick = judged(stage.value, stage.value.retrained)
        found[row] = []
        for settings in choices(name, whole):
            try:
                numbers = run(stage.value, name, own(task, name) | settings, whole, seed)
                far = distance(name, numbers, yardstick)
            except ForsakenError as error:
                numbers, far = {"error": str(error)[:120]}, WORST
            found[row].append({"settings": settings, "distance": far, "numbers": numbers})
            short = {key: numbers[key] for key in ("fr", "cfr", "accuracy", "error") if key in numbers}
            print(f"tune {seed} {row} {settings}: {far:.3f} {short}", flush=True)
        _save(path, {"identity": known, "provenance": origin(), "tried": found[row]})
    return found


class _Once:
    """A value that is made when it is first asked for."""

    def __init__(self, make: Callable[[], Stage]) -> None:
        self._make = make

    @cached_property
    def value(self) -> Stage:
        return self._make()


def _save(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=1).encode())


def chosen(found: list[dict[str, list[dict[str, Any]]]]) -> dict[str, dict[str, Any]]:
    """Return the settings of each row that are nearest to retraining, over all the seeds of the tuning."""
    best = {}
    for row, first in found[0].items():
        far = [sum(one[row][at]["distance"] for one in found) for at in range(len(first))]
        best[row] = first[far.index(min(far))]["settings"]
    return best


def reported(
    folder: Path, task: str, seed: int, best: dict[str, dict[str, Any]], device: str, only: set[str]
) -> dict[str, Any]:
    """Return every row of one seed."""
    known, found = identity(task, device), {}
    stage = _Once(lambda: prepare(task, seed, device=device))

    def yardstick() -> dict[str, Any]:
        quality = {"oracle_balanced_accuracy": stage.value.oracle_report().balanced_accuracy}
        return judged(stage.value, stage.value.retrained) | quality | {"seconds": stage.value.retrain_seconds}

    def row_of(row: str, name: str, whole: bool) -> dict[str, Any]:
        try:
            return run(stage.value, name, own(task, row) | best.get(row, {}), whole, seed)
        except ModelError as error:
            if name not in ("ct", "msg"):  # which need convolutions; any other refusal is a mistake
                raise
            return {"not_applicable": str(error)}

    table = {row: (name, partial(row_of, row, name, whole)) for row, name, whole in rows()}
    for row, (name, make) in ({YARDSTICK: ("yardstick", yardstick)} | table).items():
        if only and name not in only:
            continue
        path = folder / f"run-{task}-{seed}" / f"{row}.json"
        told = {"identity": known, "best": best.get(row)}
        if path.exists():
            saved = json.loads(path.read_bytes())
            if {key: saved[key] for key in told} != told:
                raise SystemExit(f"{path} was run with other settings or on another device; delete it to run it again")
            found[row] = saved["numbers"]
            continue
        found[row] = make()
        print(f"seed {seed} {row}: {found[row]}", flush=True)
        _save(path, told | {"provenance": origin(), "numbers": found[row]})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="digits", help="a scenario")
    parser.add_argument("--tune", type=seeds, default=[100], help="seeds that settings are chosen on; default: 100")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--engine", default="local", help="local, ray or ray://host:port")
    parser.add_argument("--phase", choices=("tune", "run", "table"), default="table", help="how far to go")
    parser.add_argument("--folder", type=Path, default=Path("runs/baselines"), help="where numbers of seeds are kept")
    parser.add_argument("--only", default="", help="methods to tune or run now, with commas between them")
    add_seeds(parser, "0-4")
    options = parser.parse_args()
    task, device, folder = options.task, options.device, options.folder
    only = set(filter(None, options.only.split(",")))
    if only and options.phase == "table":
        parser.error("--only is for --phase tune and run: a table has every row")
    found = fan_out(lambda seed: tuned(folder, task, seed, device, only), options.tune, engine=options.engine)
    if options.phase == "tune":
        return
    best = chosen(found)
    tables = fan_out(
        lambda seed: reported(folder, task, seed, best, device, only), options.seeds, engine=options.engine
    )
    if options.phase == "run":
        return
    absent = {row: told["not_applicable"] for one in tables for row, told in one.items() if "not_applicable" in told}
    best = {row: settings for row, settings in best.items() if row not in absent}
    by_row = {row: [one[row] for one in tables] for row in tables[0] if row not in absent}
    print(summary(by_row))
    write_result(
        RESULTS / f"baselines-{task}.json",
        options.seeds,
        by_row,
        settings=best,
        tuned_on=options.tune,
        at_the_edge_of_their_grid=edges(best),
        device=device,
        engine=options.engine,
        sisa=own(task, "sisa"),
        measured_on=machines(folder, task, options.seeds),
        not_applicable=absent,
    )
    tuning = {"tuned_on": options.tune, "grids": GRIDS, "tried": tuning_table(found, best)}
    _save(RESULTS / f"baselines-tuning-{task}.json", tuning)


if __name__ == "__main__":
    main()
