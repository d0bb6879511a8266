"""What one request costs beside retraining, and what the table of references adds to it.

usage: FORSAKEN_DATA=<folder> python benchmarks/request_costs.py --task reuters-35-11 [--seeds 0-1] [--device cuda]

In one process: a training on everything (which a reference takes too: it has as many steps), a training without the
samples to forget, one pass for the curvature, its factorisation (what the first request computes and the next ones
reuse), and requests without views and with three (the median of --repeats each; the retrained model says where to go).
`moments_seconds`, the pass that takes the samples' share out of the curvature afterwards, is part of a request.
out_of_fold_tables.py makes from it what each of several requests costs, the trainings of the table included. On a GPU
`rows_per_second_N` is what training passes in batches of N: a larger batch may retrain faster than the recipe does. Run
it with nothing beside it. Writes results/request-costs-TASK-DEVICE.json, with the epochs in its name where they are not
the scenario's own.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from common import RESULTS, add_seeds, summary, write_result

from forsaken import Curvature, Forsaken, References
from forsaken.bench.networks import build, fit
from forsaken.bench.scenarios.scenario import Scenario
from forsaken.bench.scenarios.table import load_scenario
from forsaken.bench.store import clocked
from forsaken.data.nest import leaves
from forsaken.data.samples import Samples
from forsaken.models.logits import predict_logits
from forsaken.models.train import train
from forsaken.progress import bars
from forsaken.recipe import Recipe
from forsaken.references.fitting import Costs, Origin, Views, asked_views
from forsaken.references.rows import ReferenceRows, row_hashes
from forsaken.references.table import spread_of
from forsaken.types import Progress

FOLDS, VIEWS = 4, 3
SIZES = (128, 256, 512, 1024, 2048)  # of batches


def throughput(scenario: Scenario, device: str) -> dict[str, float]:
    """Return the rows a second that a training passes, by batch size."""
    found = {}
    for size in SIZES:
        recipe = replace(scenario.recipe, batch_size=size)
        for steps in (5, 100):  # the first steps take longer

            def some(recipe: Recipe = recipe, steps: int = steps) -> Any:
                make = partial(build, scenario.network, scenario.given)
                return train(make, scenario.train, recipe, seed=0, device=device, steps=steps)

            found[f"rows_per_second_{size}"] = steps * size / clocked(some).seconds
    return found


def table_of(scenario: Scenario, target: Any, retrained: Any, views: int) -> References:
    """Return a table of what the retrained model says of the samples to forget and of their views."""
    forget, key = Samples(scenario.forget.inputs), bytes(32)
    pictures = leaves(forget.inputs)[0].dim() == 4
    plan = Views.of(views, "mirror-shift" if pictures else "word-dropout", 0)
    said = None if plan is None else asked_views(retrained, forget, plan, None)
    entries = ReferenceRows(
        row_hashes(forget, key),
        None,
        np.zeros(len(forget), dtype=np.int64),
        predict_logits(retrained, forget).float(),
        said,
    )
    unseen = Samples(scenario.sets(nonmembers=True).need("reference").inputs)
    spread = spread_of(predict_logits(target, unseen), [predict_logits(retrained, unseen)])
    return References(entries, key, Origin(FOLDS, "group", None, 0, Costs(0.0, 0)), views=plan, spread=spread)


def measured(scenario: Scenario, seed: int, device: str, repeats: int, progress: Progress) -> dict[str, Any]:
    """Return the seconds of everything, and their ratios."""
    few = replace(scenario, recipe=replace(scenario.recipe, epochs=1))
    on: dict[str, Any] = {"device": device, "progress": progress}
    warm = fit(few, scenario.train, seed=seed, stage="warm up", **on)  # the first pass takes longer
    Curvature.fit(warm, Samples(scenario.train.inputs), rows=256)
    trained = clocked(partial(fit, scenario, scenario.train, seed=seed * 10 + 1, stage="train the target", **on))
    again = clocked(partial(fit, scenario, scenario.kept, seed=seed * 10 + 3, stage="retrain", **on))
    target, retrained, retrain = trained.model, again.model, again.seconds
    fitted = clocked(lambda: Curvature.fit(target, Samples(scenario.train.inputs)))
    curvature = fitted.model
    forget, method = Samples(scenario.forget.inputs), Forsaken.out_of_fold()
    # what a job draws; large networks make no use of it
    retain = Samples(scenario.kept.rows(range(min(1000, len(scenario.kept) // 10))).inputs)
    told: dict[str, Any] = {}
    for views in (0, VIEWS):
        table = table_of(scenario, target, retrained, views)
        table.curvature = curvature
        first, *found = [method(target, forget, references=table, retain=retain, seed=seed) for _ in range(repeats + 1)]
        name = "" if views == 0 else "_with_views"
        told[f"unlearn_seconds{name}"] = float(np.median([one.seconds for one in found]))
        told[f"sample_passes{name}"] = found[0].details.facts["sample_passes"]
        told[f"rounds{name}"] = found[0].iterations
        told["held"] = found[0].details.facts["held"]
        if views == 0:
            told["first_unlearn_seconds"] = first.seconds
            without = partial(curvature.without, target, found[0].model, forget)
            _, *spent = [clocked(without).seconds for _ in range(repeats + 1)]
            told["moments_seconds"] = float(np.median(spent))
            told["density"] = found[0].density
    moments = told["moments_seconds"] or 0.0
    for name in ("", "_with_views"):
        seconds = (told[f"unlearn_seconds{name}"] or 0.0) + moments
        told |= {f"request_seconds{name}": seconds, f"share_of_retraining{name}": seconds / retrain}
    passes = scenario.recipe.epochs * len(scenario.train)
    told |= {
        "retrain_seconds": retrain,
        "train_seconds": trained.seconds,
        "retrain_passes": scenario.recipe.epochs * len(scenario.kept),
        "curvature_seconds": fitted.seconds,
        "curvature_share_of_passes": curvature.rows / passes,
        "curvature_mebibytes": curvature.bytes / 2**20,
    }
    if device != "cpu":
        told |= throughput(scenario, device)
    return told


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
