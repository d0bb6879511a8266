"""What one request costs beside retraining, and what a table of references adds to it.

usage: FORSAKEN_DATA=<folder> python benchmarks/request_costs.py --task reuters-35-11 [--seeds 0-2] [--device cuda]

In one process: a training on everything (which a reference takes too: it has as many steps), a training without the
samples to forget, and requests with the settings for references, targets and importance included (the median of
three, or as many as --repeats says; the retrained model says where to go). `amortised_N` is the share of retraining
that each of N requests costs when the K = 4 trainings of the table are divided among them; `break_even` is the request
from which on the table is cheaper. Run it with nothing beside it. Writes results/request-costs-TASK-DEVICE.json, with
the epochs in its name where they are not the scenario's own.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from common import RESULTS, add_seeds, summary, write_result

from forsaken import Forsaken
from forsaken.bench.audit import held_out
from forsaken.data.samples import Samples
from forsaken.data.scenario import Scenario
from forsaken.data.scenarios.table import load_scenario
from forsaken.models.fit import fit
from forsaken.models.logits import predict_logits
from forsaken.progress import bars
from forsaken.types import Progress

FOLDS = 4


def timed(
    scenario: Scenario, data: Samples, seed: int, device: str, progress: Progress, stage: str
) -> tuple[Any, float]:
    """Train a model, and return it with its seconds."""
    start = time.perf_counter()
    model = fit(scenario, data, seed=seed, device=device, progress=progress, stage=stage)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return model, time.perf_counter() - start


def measured(scenario: Scenario, seed: int, device: str, repeats: int, progress: Progress) -> dict[str, float | None]:
    """Return the seconds of everything, and their ratios."""
    few = replace(scenario, recipe=replace(scenario.recipe, epochs=1))
    timed(few, scenario.train, seed, device, progress, "warm up")  # the first pass on a device takes longer
    target, train = timed(scenario, scenario.train, seed * 10 + 1, device, progress, "train the target")
    retrained, retrain = timed(scenario, scenario.kept, seed * 10 + 3, device, progress, "retrain")
    targets = predict_logits(retrained, Samples(scenario.forget.inputs)).float()
    reference, _ = held_out(scenario)
    method = Forsaken.out_of_fold()
    found = [
        method(target, scenario.forget, Samples(reference.inputs), scenario.retain, targets=targets, seed=seed)
        for _ in range(repeats)
    ]
    request = float(np.median([one.seconds for one in found]))
    table = FOLDS * train
    told = {
        "request_seconds": request,
        "retrain_seconds": retrain,
        "train_seconds": train,
        "share_of_retraining": request / retrain,
        "evaluations": found[0].evaluations,
        "density": found[0].density,
        "break_even": math.floor(table / (retrain - request)) + 1 if request < retrain else None,
    }
    return told | {f"amortised_{count}": (table / count + request) / retrain for count in (1, 10, 100)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_seeds(parser, "0-2")
    parser.add_argument("--task", default="reuters-35-11", help="a scenario")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--repeats", type=int, default=3, help="requests, of whose seconds the median counts")
    parser.add_argument("--epochs", type=int, help="in place of the scenario's own")
    options = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {"request": []}
    for seed in options.seeds:
        with bars() as progress:
            scenario = load_scenario(options.task, seed=seed, progress=progress)
            if options.epochs is not None:
                scenario = replace(scenario, recipe=replace(scenario.recipe, epochs=options.epochs))
            rows["request"].append(measured(scenario, seed, options.device, options.repeats, progress))
        print(f"seed {seed}", rows["request"][-1], flush=True)
    print(summary(rows))
    epochs = "" if options.epochs is None else f"-{options.epochs}-epochs"
    place = RESULTS / f"request-costs-{options.task}{epochs}-{options.device}.json"
    write_result(
        place,
        options.seeds,
        rows,
        task=options.task,
        epochs=options.epochs,
        repeats=options.repeats,
        threads=torch.get_num_threads(),
    )


if __name__ == "__main__":
    main()
