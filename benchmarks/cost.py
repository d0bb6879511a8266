"""What unlearning costs, as a ratio: its seconds over those of the passes that it cannot do without.

usage: FORSAKEN_DATA=<folder> python benchmarks/cost.py [--seeds 0-2]

ratio = result.seconds / (evaluations x the median of 20 forward and backward passes in one batch), all in one process
on the trained Reuters network; seconds include targets and importance. "D and D_0" unlearns with these alone, over
passes on them: the bar of at most 3.0 is read here. "default" anchors 300 references as well: once over passes on all
of these samples, once (`ratio_small`) over passes on D and D_0 only. Writes benchmarks/results/cost.json.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from common import RESULTS, add_seeds, summary, write_result
from torch import Tensor, nn

from forsaken import Forsaken
from forsaken.bench.networks import fit
from forsaken.bench.scenarios.table import load_scenario

PASSES = 20


def median_pass(model: nn.Module, inputs: Tensor) -> float:
    """Return the median seconds of a forward and backward pass over `inputs`."""
    weights = list(model.parameters())
    seconds = []
    for _ in range(PASSES):
        start = time.perf_counter()
        torch.autograd.grad(model(inputs).square().mean(), weights)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_seeds(parser, "0-2")
    options = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {}
    for seed in options.seeds:
        scenario = load_scenario("reuters-35-11", seed=seed)
        target = fit(scenario, scenario.train, seed=seed)
        forget, retain = scenario.forget.inputs, scenario.retain.inputs
        for name, method in {"D and D_0": Forsaken(anchor_references=0), "default": Forsaken()}.items():
            anchors = scenario.reference.inputs[: method.anchor_references]
            one = median_pass(target, torch.cat([forget, retain, anchors]))
            small = median_pass(target, torch.cat([forget, retain]))
            result = method(target, scenario.forget, scenario.reference, scenario.retain, seed=seed)
            floor = result.evaluations * one
            rows.setdefault(name, []).append(
                {
                    "ratio": result.seconds / floor,
                    "ratio_small": result.seconds / (result.evaluations * small),
                    "seconds": result.seconds,
                    "evaluations": result.evaluations,
                    "pass_ms": 1000 * one,
                }
            )
            print(f"seed {seed}", name, rows[name][-1], flush=True)
    print(summary(rows))
    write_result(RESULTS / "cost.json", options.seeds, rows)


if __name__ == "__main__":
    main()
