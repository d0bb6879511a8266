"""Does it pay to prune the working set of OWL-QN? With pruning, and with a set that only grows.

usage: FORSAKEN_DATA=<folder> python benchmarks/pruning.py [--seeds 100-101]

Writes benchmarks/results/pruning.json: the objective after 60 iterations (lower is better) and the seconds.
"""

from __future__ import annotations

import argparse

from common import RESULTS, add_seeds, summary, write_result

from forsaken import Forsaken
from forsaken.bench.networks import fit
from forsaken.bench.scenarios.table import load_scenario
from forsaken.unlearning.forsaken import optimisers

CASES = {"D and D_0": Forsaken(anchor_references=0), "default": Forsaken()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_seeds(parser, "100-101")
    options = parser.parse_args()
    share = optimisers.PRUNE
    rows: dict[str, list[dict[str, float]]] = {}
    for seed in options.seeds:
        scenario = load_scenario("reuters-35-11", seed=seed)
        target = fit(scenario, scenario.train, seed=seed)
        for name, method in CASES.items():
            for how, prune in (("pruned", share), ("growing", 0.0)):
                optimisers.PRUNE = prune
                result = method(target, scenario.forget, scenario.reference, scenario.retain, seed=seed)
                found = {"objective": result.history[-1].objective, "seconds": result.seconds}
                rows.setdefault(f"{name}, {how}", []).append(found)
                print(seed, name, how, found, flush=True)
    print(summary(rows))
    write_result(RESULTS / "pruning.json", options.seeds, rows)


if __name__ == "__main__":
    main()
