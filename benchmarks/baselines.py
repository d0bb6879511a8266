"""Every method beside retraining: FR, CFR, accuracy loss, seconds, and the ratio to retraining.

usage: FORSAKEN_DATA=<folder> python benchmarks/baselines.py --task reuters-35-11 [--seeds 0-4] [--tune 100-101]

A seed is a split, three trainings (target, shadow, retrained) and an oracle. Learning rates and the like are chosen
first, on the seeds of --tune, by how near a method comes to the retrained model: |FR - FR'| + |CFR - CFR'| + the loss
of accuracy beside it. Peers are run twice: with the retain samples that Forsaken gets (1 % of the training data on
Reuters), and with all of the kept data ("all kept"), on which their CFR is no honest number: they were trained on them.
SISA and SMU train models of their own; their "before" is that model. Writes benchmarks/results/baselines-TASK.json.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, add_seeds, seeds_of, summary, write_result

from forsaken.bench.trial import Stage, View, prepare
from forsaken.data.samples import Samples
from forsaken.engine import fan_out
from forsaken.errors import ForsakenError, ModelError
from forsaken.models.fit import training_of
from forsaken.unlearning.table import METHODS, build
from forsaken.unlearning.upfront import UpfrontUnlearner

RATES = {"learning_rate": (1e-4, 1e-3, 1e-2, 1e-1)}
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "fine-tune": RATES,
    "gradient-ascent": {"learning_rate": (1e-5, 1e-4, 1e-3, 1e-2)},
    "neggrad-plus": RATES | {"alpha": (0.8, 0.95)},
    "l1-sparse": RATES | {"gamma": (1e-5, 1e-4, 1e-3)},
    "salun": RATES,
    "scrub": RATES,
    "ssd": {"alpha": (1.0, 3.0, 10.0, 30.0), "lam": (0.1, 0.5, 1.0)},
    "bad-teacher": RATES,
    "msg": RATES,
    "ct": RATES,
    "smu": {"learning_rate": (1e-4, 1e-3, 1e-2)},
}
PEERS = ("fine-tune", "neggrad-plus", "l1-sparse", "salun", "scrub", "ssd", "bad-teacher", "msg", "ct")
ALONE = ("do-nothing", "forsaken", "gradient-ascent")
WHOLE = ("retrain", "smu", "sisa", "sisa-dp", "sisa-dp-sgd")
OWN: dict[str, dict[str, Any]] = {"sisa": {}, "sisa-dp": {}, "sisa-dp-sgd": {}}
KEPT = "all kept"


def judged(stage: Stage, model: Any, before: View | None = None) -> dict[str, Any]:
    """Return what the oracle and the test set say of a model, beside the model that it came from."""
    view = View.of(model, stage.scenario)
    start = stage.before if before is None else before
    own = Stage(
        stage.scenario, stage.target, stage.retrained, stage.oracle, stage.train_seconds, stage.retrain_seconds, start
    )
    found = own.judge(view)
    was = own.judge(start)
    return {
        "fr": found.fr,
        "cfr": found.cfr,
        "accuracy": found.accuracy,
        "accuracy_loss": was.accuracy - found.accuracy,
        "accuracy_loss_beside_plain_training": stage.judge(stage.before).accuracy - found.accuracy,
        "confidence": found.confidence,
        "memorised_before": own.memorised,
    }


def run(stage: Stage, name: str, settings: dict[str, Any], whole: bool, seed: int) -> dict[str, Any]:
    """Run one method and judge it."""
    scenario, device = stage.scenario, next(stage.target.parameters()).device
    method, training = build(name, settings), training_of(scenario, device)
    retain = scenario.kept if whole or name in WHOLE else scenario.retain
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
            model, scenario.forget, scenario.reference, retain, training=training, seed=seed * 10 + 3
        )
        seconds = time.perf_counter() - start
        numbers = judged(stage, found.model, before)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return numbers | cost | {
        "seconds": found.seconds,
        "wall_seconds": seconds,
        "ratio_to_retraining": found.seconds / stage.retrain_seconds,
        "density": found.density,
    }


def distance(found: dict[str, Any], yardstick: dict[str, Any]) -> float:
    """Return how far a model is from the retrained one; what is undefined counts as the worst."""
    if found["fr"] is None or found["cfr"] is None:
        return 3.0
    worse = max(0.0, yardstick["accuracy"] - found["accuracy"])
    return abs(found["fr"] - yardstick["fr"]) + abs(found["cfr"] - yardstick["cfr"]) + worse


def choices(name: str) -> Iterator[dict[str, Any]]:
    """Return every setting of a method's grid."""
    grid = GRIDS.get(name, {})
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def rows() -> Iterator[tuple[str, str, bool]]:
    """Return the rows of the table: their name, the method, and whether it gets all of the kept data."""
    for name in (*ALONE, *WHOLE, *PEERS):
        if name in METHODS:
            yield name, name, False
    for name in PEERS:
        if name in METHODS:
            yield f"{name}, {KEPT}", name, True


def tuned(task: str, seeds: list[int], device: str) -> dict[str, dict[str, Any]]:
    """Return the best settings of each row on seeds that are not reported."""
    totals: dict[str, dict[tuple[tuple[str, Any], ...], float]] = {}
    for seed in seeds:
        stage = prepare(task, seed, device=device)
        yardstick = judged(stage, stage.retrained)
        for row, name, whole in rows():
            for settings in choices(name):
                try:
                    found = run(stage, name, OWN.get(name, {}) | settings, whole, seed)
                    far = distance(found, yardstick)
                except ForsakenError as error:
                    found, far = {"error": str(error)[:80]}, 3.0
                key = tuple(sorted(settings.items()))
                totals.setdefault(row, {}).setdefault(key, 0.0)
                totals[row][key] += far / len(seeds)
                short = {k: round(v, 3) for k, v in found.items() if k in ("fr", "cfr", "accuracy")}
                print(f"tune {seed} {row} {settings}: {far:.3f} {short or found}", flush=True)
    return {row: dict(min(found, key=found.__getitem__)) for row, found in totals.items()}


def reported(task: str, seed: int, best: dict[str, dict[str, Any]], device: str) -> dict[str, dict[str, Any]]:
    """Return every row of one seed."""
    stage = prepare(task, seed, device=device)
    found = {"retrained (the yardstick)": judged(stage, stage.retrained) | {"seconds": stage.retrain_seconds}}
    for row, name, whole in rows():
        try:
            found[row] = run(stage, name, OWN.get(name, {}) | best.get(row, {}), whole, seed)
        except ModelError as error:
            found[row] = {"not_applicable": str(error)}
        print(f"seed {seed} {row}: {found[row]}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="digits", help="a scenario")
    parser.add_argument("--tune", default="100-101", help="seeds that settings are chosen on")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--engine", default="local", help="local, ray or ray://host:port")
    add_seeds(parser, "0-4")
    options = parser.parse_args()
    best = tuned(options.task, seeds_of(options.tune), options.device)
    for row, settings in best.items():
        print(row, settings)
    seeds = options.seeds
    all_rows = fan_out(lambda seed: reported(options.task, seed, best, options.device), seeds, engine=options.engine)
    table: dict[str, list[dict[str, float]]] = {}
    for found in all_rows:
        for row, numbers in found.items():
            if "not_applicable" not in numbers:
                table.setdefault(row, []).append(numbers)
    absent = {row: numbers["not_applicable"] for row, numbers in all_rows[0].items() if "not_applicable" in numbers}
    print(summary(table))
    write_result(
        RESULTS / f"baselines-{options.task}.json",
        seeds,
        table,
        tuned=best,
        tuned_on=options.tune,
        not_applicable=absent,
    )


if __name__ == "__main__":
    main()
