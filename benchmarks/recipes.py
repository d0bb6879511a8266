"""What the scenarios' recipes reach: accuracy, memorisation and the oracle, beside the paper's numbers.

usage: FORSAKEN_DATA=<folder> python benchmarks/recipes.py [--scenarios NAME ...] [--seeds 0-2] [--device auto]

A seed is a split, a target, a shadow and an oracle. Each training leaves its posteriors in runs/recipes, so that a
machine with a GPU and without XGBoost can train (--train) and another can judge; what lies there is not trained again.
Recipes were settled on seed 100. Writes benchmarks/results/recipes.json.
"""

from __future__ import annotations

import argparse
import json
import time
from hashlib import sha256
from pathlib import Path

import numpy as np
from common import RESULTS, add_seeds, origin, summary, write_result

from forsaken._files import draft_of
from forsaken.bench.networks import fit
from forsaken.bench.scenarios.scenario import Scenario
from forsaken.bench.scenarios.table import SCENARIOS, load_scenario
from forsaken.data.nest import row_keys
from forsaken.models.logits import posteriors
from forsaken.models.train import usable_device
from forsaken.oracles.shadow import ShadowOracle

DEFAULT = ("reuters-35-11-keras", "news-15-5", "i-c", "c10-t", "reuters-35-11", "reuters-id", "cifar10-id")


def fingerprint(scenario: Scenario) -> str:
    """Return a hash of all that decides a training: every set, the network and the recipe."""
    digest = sha256(f"{scenario.network} {scenario.recipe}".encode())
    shadow = scenario.shadow_members, scenario.shadow_nonmembers
    for part in (scenario.kept, scenario.forget, scenario.test, scenario.reference, *shadow):
        digest.update(b"".join(row_keys(part.inputs)))
        digest.update(b"" if part.labels is None else part.labels.numpy().tobytes())
    for name, tensor in scenario.given.items():  # made of the texts above; its last digits differ between machines
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
    return digest.hexdigest()


def saved(folder: Path, name: str, seed: int, device: str) -> Path:
    """Train the target and the shadow of a seed unless that was done, and return the file of their posteriors."""
    path = folder / f"{name}-{seed}.npz"
    start = time.perf_counter()
    scenario = load_scenario(name, seed=seed)
    identity = fingerprint(scenario)
    if path.exists():
        if read(path)[0].get("fingerprint") != identity:
            raise SystemExit(f"{path} was trained on other data or by another recipe; delete it to train anew")
        return path
    loaded = time.perf_counter()
    target = fit(scenario, scenario.train, seed=seed * 10 + 1, device=device)
    trained = time.perf_counter()
    shadow = fit(scenario, scenario.shadow_members, seed=seed * 10 + 2, device=device)
    facts = {
        "load_seconds": loaded - start,
        "train_seconds": trained - loaded,
        "device": str(usable_device(device)),
        "fingerprint": identity,
        "sizes": scenario.sizes(),
        "recipe": scenario.recipe.to_dict(),
        "network": str(scenario.network),
        "provenance": origin(),
    }
    arrays = {
        "train": posteriors(target, scenario.train),
        "nonmembers": posteriors(target, scenario.nonmembers),
        "shadow_members": posteriors(shadow, scenario.shadow_members),
        "shadow_nonmembers": posteriors(shadow, scenario.shadow_nonmembers),
    }
    arrays = {key: value.astype(np.float32) for key, value in arrays.items()}  # the trees read no more digits
    labels = {"train_labels": scenario.train.labels.numpy(), "test_labels": scenario.test.labels.numpy()}
    folder.mkdir(parents=True, exist_ok=True)
    with draft_of(path) as draft, draft.open("wb") as file:
        np.savez_compressed(file, facts=json.dumps(facts), forget=len(scenario.forget), **labels, **arrays)
    print(
        f"{name} seed {seed}: loaded in {facts['load_seconds']:.0f} s, trained in {facts['train_seconds']:.0f} s",
        flush=True,
    )
    return path


def read(path: Path) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """Return how a saved training was made, and its arrays."""
    with np.load(path, allow_pickle=False) as file:
        data = {key: file[key] for key in file.files}
    return json.loads(str(data.pop("facts"))), data


def judged(path: Path, seed: int) -> tuple[dict[str, float], dict[str, object]]:
    """Return what a saved training reached, and how it was made."""
    facts, data = read(path)
    forget = int(data["forget"])
    train, labels, tested = data["train"], data["train_labels"], data["test_labels"]
    oracle = ShadowOracle.fit_posteriors(data["shadow_members"], data["shadow_nonmembers"], seed=seed)
    report = oracle.evaluate_posteriors(train, data["nonmembers"])
    memorised = oracle.score_posteriors(train[-forget:]) > oracle.threshold
    right = train.argmax(1) == labels
    numbers = {
        "train_accuracy": float(right.mean()),
        "test_accuracy": float((data["nonmembers"][: len(tested)].argmax(1) == tested).mean()),
        "forget_accuracy": float(right[-forget:].mean()),
        "memorised_share": float(memorised.mean()),
        "oracle_accuracy": report.accuracy,
        "oracle_precision": report.precision,
        "oracle_recall": report.recall,
        "oracle_balanced": report.balanced_accuracy,
        "load_seconds": facts["load_seconds"],
        "train_seconds": facts["train_seconds"],
    }
    return numbers, facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenarios", nargs="+", default=DEFAULT, choices=sorted(SCENARIOS), metavar="NAME")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--folder", type=Path, default=Path("runs/recipes"), help="where posteriors are kept")
    parser.add_argument("--train", action="store_true", help="train only; judge elsewhere")
    parser.add_argument("--result", default="recipes.json", help="the name of the result file")
    add_seeds(parser, "0-2")
    options = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {}
    made: dict[str, list[object]] = {}
    for name in options.scenarios:
        for seed in options.seeds:
            path = saved(options.folder, name, seed, options.device)
            if not options.train:
                found, facts = judged(path, seed)
                rows.setdefault(name, []).append(found)
                made.setdefault(name, []).append(facts)
    if options.train:
        return
    print(summary(rows))
    paper = {name: plan.paper.to_dict() for name in rows if (plan := SCENARIOS[name]).paper}
    write_result(RESULTS / options.result, options.seeds, rows, paper=paper, made=made)


if __name__ == "__main__":
    main()
