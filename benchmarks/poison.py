"""Labels 5 -> 3 put right: test accuracy and recall of class 5 before and after, and who was found by the references.

usage: FORSAKEN_DATA=<folder> python benchmarks/poison.py --scenario poison-10 [--network small] [--share 0.4]
           [--seeds 0-2] [--device cuda]

`restored` is the share of the recall that the poison cost, beside a model retrained without the poisoned rows, that a
method brought back; it is empty where the poison cost 3 points or less. Peers get all of the kept data, and settings
that were chosen on the seed of --tune by the sum of accuracy and recall; Forsaken has its defaults. SISA and SMU train
models of their own: they are compared with those, whose numbers are `before_recall` and `before_accuracy`. Two tables
of references, of four folds each: one drawn by row, which finds suspects, and one in which all poisoned rows share a
fold. --network small is a small network on 8,000 training pictures, 4,000 of which the target learns. Precision is that
of as many suspects as there are poisoned rows. Writes benchmarks/results/poison-NAME.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, add_seeds, summary, write_result

from forsaken import Forsaken, References
from forsaken.bench.networks import fit, training_of
from forsaken.bench.scenarios.scenario import Plan, Scenario
from forsaken.bench.scenarios.table import plan_named
from forsaken.data.samples import join
from forsaken.errors import ForsakenError
from forsaken.models.logits import posteriors
from forsaken.models.train import Training
from forsaken.recipe import Network, Recipe
from forsaken.references.suspects import rank_suspects
from forsaken.types import silent
from forsaken.unlearning.base import UpfrontUnlearner
from forsaken.unlearning.methods import build

FOLDS = 4
COST = 0.03  # of recall, that a poison must cost before a share of it means anything
PICTURES = 8_000
SMALL = Network("small-colour-convolutions", {"classes": 10})
SMALL_RECIPE = Recipe(epochs=10, batch_size=64, learning_rate=1e-3)
UPFRONT = ("smu", "sisa", "sisa-dp")
PEERS = ("fine-tune", "neggrad-plus", "ssd", "scrub")
RATES = ({"learning_rate": 0.003}, {"learning_rate": 0.01}, {"learning_rate": 0.03}, {"learning_rate": 0.1})
GRIDS: dict[str, tuple[dict[str, float], ...]] = {
    "smu": ({"learning_rate": 1e-4}, {"learning_rate": 1e-3}, {"learning_rate": 1e-2}),
    "fine-tune": (*RATES, {"learning_rate": 0.3}),
    "neggrad-plus": RATES,
    "scrub": (*RATES, {"learning_rate": 0.3}),
    # of the largest ratio that any weight can have, 1 / (the poisoned rows' share of the training data)
    "ssd": ({"alpha": 0.1}, {"alpha": 0.3}, {"alpha": 0.6}, {"alpha": 0.9}),
}
SLICES = {"slices": 10}

Numbers = dict[str, Any]


def planned(name: str, network: str, share: float | None) -> Plan:
    """Return the plan of a run, and leave a name that says how it departs from the scenario."""
    plan = plan_named(name)
    if network == "small":
        options = {**plan.options, "pictures": PICTURES}
        sizes = dataclasses.replace(plan.sizes, retain_share=0.1)
        plan = dataclasses.replace(
            plan, name=f"{name}-small", network=SMALL, recipe=SMALL_RECIPE, options=options, sizes=sizes
        )
    if share is not None:
        options = {**plan.options, "share": share}
        plan = dataclasses.replace(plan, name=f"{plan.name}-share-{share:g}", options=options)
    return plan


def judged(model: Any, scenario: Scenario) -> Numbers:
    """Return accuracy, recall of the poisoned class, and how many poisoned rows get their true label."""
    labels, source = scenario.test.labels.numpy(), int(scenario.truth[0])  # type: ignore[union-attr, index]
    said = posteriors(model, scenario.test).argmax(1)
    right = posteriors(model, scenario.forget).argmax(1) == source
    own = labels == source
    return {
        "accuracy": float((said == labels).mean()),
        "recall": float((said[own] == source).mean()),
        "poisoned_put_right": float(right.mean()),
    }


def precision(rows: Any, scenario: Scenario) -> float:
    """Return the share of poisoned rows among as many of the first suspects: they are the last rows of `train`."""
    count = len(scenario.forget)
    return float((np.asarray(rows)[:count] >= len(scenario.kept)).mean())


def found_by(table: References, scenario: Scenario) -> dict[str, Numbers]:
    """Return the precision of the suspects by the own score and by those of cleanlab, where it is installed."""
    start = time.perf_counter()
    own = rank_suspects(table, scenario.train)
    found: dict[str, Numbers] = {
        "suspects": {"precision": precision(own.rows, scenario), "seconds": time.perf_counter() - start}
    }
    plain = own.rows[np.argsort(own.posteriors, kind="stable")]  # the log odds against the label rank alike
    found["suspects, log odds"] = {"precision": precision(plain, scenario)}
    try:
        from cleanlab.filter import find_label_issues  # noqa: PLC0415 (it may not be installed)
        from cleanlab.rank import get_label_quality_scores  # noqa: PLC0415
    except ImportError:
        return found
    labels = scenario.train.labels.numpy()  # type: ignore[union-attr]
    said = table.logits(scenario.train).double().softmax(1).numpy()
    for adjusted in (False, True):
        start = time.perf_counter()
        quality = get_label_quality_scores(labels, said, method="normalized_margin", adjust_pred_probs=adjusted)
        name = "suspects, cleanlab margin" + (", adjusted" if adjusted else "")
        rows = np.argsort(quality, kind="stable")
        found[name] = {"precision": precision(rows, scenario), "seconds": time.perf_counter() - start}
    start = time.perf_counter()
    issues = find_label_issues(labels, said, return_indices_ranked_by="normalized_margin", n_jobs=1)
    rest = np.setdiff1d(rows, issues)
    ranked = np.concatenate([issues, rest])
    found["suspects, cleanlab confident learning"] = {
        "precision": precision(ranked, scenario),
        "seconds": time.perf_counter() - start,
    }
    return found


def measured(plan: Plan, seed: int, device: str, best: dict[str, Numbers]) -> dict[str, Numbers]:
    """Return every row of one seed."""
    scenario = plan.build(plan, seed, silent)
    kept, forget, retain = scenario.kept, scenario.forget, scenario.retain
    rows: dict[str, Numbers] = {}

    def timed(make: Callable[[], Any]) -> tuple[Any, float]:
        start = time.perf_counter()
        return make(), time.perf_counter() - start

    def add(name: str, model: Any, seconds: float, own: Numbers | None = None) -> None:
        found = judged(model, scenario)
        start, goal = own or rows.get("before", found), rows.get("retrained", found)
        cost = goal["recall"] - start["recall"]
        found["accuracy_lost"] = start["accuracy"] - found["accuracy"]
        found["restored"] = (found["recall"] - start["recall"]) / cost if cost > COST else None
        found["seconds"] = seconds
        if own is not None:
            found |= {"before_recall": own["recall"], "before_accuracy": own["accuracy"]}
        rows[name] = found
        print(f"seed {seed}  {name:34s} {found}", flush=True)

    def trained(data: Any, purpose: int) -> tuple[Any, float]:
        return timed(lambda: fit(scenario, data, seed=seed * 10 + purpose, device=device))

    target, seconds = trained(scenario.train, 1)
    model, again = trained(kept, 3)
    # The retrained model comes first: what the poison cost is known by it.
    rows["retrained"] = judged(model, scenario)
    before = judged(target, scenario)
    rows["before"] = before
    add("retrained", model, again)
    add("before", target, seconds)
    add("retrained, true labels", *trained(join([kept, scenario.corrected]), 4))

    training = training_of(scenario, device)
    rest, count = len(kept), len(forget)
    by_row = References.fit(training, scenario.train, FOLDS, seed=seed * 10 + 5, model=target)
    in_one = References.fit(
        training, scenario.train, FOLDS, groups=[*range(rest), *[-1] * count], seed=seed * 10 + 6, model=target
    )

    def ours(name: str, method: Forsaken, samples: Any, held: Any = retain, **more: Any) -> None:
        result = method(target, samples, scenario.reference, held, seed=seed, **more)
        add(name, result.model, result.seconds)

    corrected, own = Forsaken(target="corrected"), Forsaken.out_of_fold()
    ours("forsaken corrected", corrected, scenario.corrected, curvature=in_one.curvature)
    ours("forsaken corrected, no curvature", corrected, scenario.corrected)
    ours("forsaken out-of-fold, grouped", own, forget, references=in_one)
    ours("forsaken out-of-fold, by row", own, forget, references=by_row)
    rows |= found_by(by_row, scenario)
    first = rank_suspects(by_row, scenario.train).rows[:count]
    free = scenario.retain_rows[~np.isin(scenario.retain_rows, first)]
    ours("forsaken out-of-fold, the suspects", own, scenario.train.rows(first), kept.rows(free), references=by_row)

    for name in (*UPFRONT, *PEERS):
        add(name, *run_peer(name, best.get(name, {}), target, scenario, training, seed))
    return rows


def run_peer(
    name: str, settings: Numbers, target: Any, scenario: Scenario, training: Training, seed: int
) -> tuple[Any, float, Numbers | None]:
    """Return the model of another method, its seconds and, where it trains a model of its own, that one's numbers."""
    rest, count, total = len(scenario.kept), len(scenario.forget), len(scenario.train)
    if name == "ssd":
        settings = settings | {"alpha": settings["alpha"] * total / count, "training_samples": total}
    method, model, own = build(name, settings | (SLICES if name.startswith("sisa") else {})), target, None
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(method, UpfrontUnlearner):
            watched = torch.arange(rest, total)
            ready = method.prepare(training, scenario.train, seed=seed * 10 + 1, folder=Path(folder), watched=watched)
            model, own = ready.model, judged(ready.model, scenario)
        found = method(model, scenario.forget, scenario.reference, scenario.kept, training=training, seed=seed * 10 + 3)
    return found.model, found.seconds, own


def tuned(plan: Plan, seed: int, device: str) -> dict[str, Numbers]:
    """Return the settings of each peer with the largest sum of accuracy and recall on a seed that is not reported."""
    scenario = plan.build(plan, seed, silent)
    target, training = fit(scenario, scenario.train, seed=seed * 10 + 1, device=device), training_of(scenario, device)
    best: dict[str, Numbers] = {}
    for name, grid in GRIDS.items():
        reached = []
        for settings in grid:
            try:
                found = judged(run_peer(name, settings, target, scenario, training, seed)[0], scenario)
                reached.append(found["accuracy"] + found["recall"])
            except ForsakenError:  # it diverged
                reached.append(-1.0)
            print(f"tune {seed} {name} {settings}: {reached[-1]:.3f}", flush=True)
        best[name] = grid[int(np.argmax(reached))]
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", default="poison-digits", help="poison-digits, poison-2, poison-4 or poison-10")
    parser.add_argument("--network", choices=("own", "small"), default="own", help="small: for CIFAR-10 on a CPU")
    parser.add_argument("--share", type=float, help="of the class's training rows; the scenario's by default")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--tune", type=int, default=100, help="the seed that settings of peers are chosen on")
    add_seeds(parser, "0-2")
    options = parser.parse_args()
    if not options.scenario.startswith("poison-"):
        parser.error(f"--scenario is {options.scenario!r}, expected one that poisons: poison-digits, poison-10, ...")
    if options.network == "small" and options.scenario == "poison-digits":
        parser.error("--network small is for pictures of CIFAR-10; leave it out for poison-digits")
    if options.share is not None and not 0 < options.share < 1:
        parser.error(f"--share is {options.share}, expected more than 0 and less than 1")
    plan = planned(options.scenario, options.network, options.share)
    best = tuned(plan, options.tune, options.device)
    runs = [measured(plan, seed, options.device, best) for seed in options.seeds]
    rows = {name: [one[name] for one in runs] for name in runs[0]}
    print(summary(rows))
    facts = {"scenario": plan.name, "network": str(plan.network), "recipe": str(plan.recipe), "folds": FOLDS}
    write_result(
        RESULTS / f"poison-{plan.name.removeprefix('poison-')}.json",
        options.seeds,
        rows,
        **facts,
        options=dict(plan.options),
        device=options.device,
        tuned_on=options.tune,
        settings=best,
    )


if __name__ == "__main__":
    main()
