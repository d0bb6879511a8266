"""Which settings should be the defaults? One change at a time, on seeds that no other benchmark reports.

usage: python benchmarks/defaults.py [--task digits] [--seeds 100-104]

Writes benchmarks/results/defaults-<task>.json: the mean and the values of every seed for each variant, beside the
retrained model's.
"""

from __future__ import annotations

import argparse
import time

from common import RESULTS, add_seeds, summary, write_result

from forsaken import Forsaken
from forsaken.bench.trial import View, prepare

VARIANTS: dict[str, Forsaken] = {
    "default": Forsaken(),
    "stop=none": Forsaken(stop="none"),
    "stop=calibrated": Forsaken(stop="calibrated"),
    "iterations=30": Forsaken(iterations=30),
    "iterations=120": Forsaken(iterations=120),
    "penalty=0": Forsaken(penalty=0.0),
    "penalty=1e-4": Forsaken(penalty=1e-4),
    "penalty=3e-4": Forsaken(penalty=3e-4),
    "penalty=2e-3": Forsaken(penalty=2e-3),
    "penalty=4e-3": Forsaken(penalty=4e-3),
    "penalty_share=0.001": Forsaken(penalty_share=0.001),
    "penalty_share=0.002": Forsaken(penalty_share=0.002),
    "penalty_share=0.005": Forsaken(penalty_share=0.005),
    "penalty_share=0.01": Forsaken(penalty_share=0.01),
    "power=0": Forsaken(power=0.0),
    "power=1/2": Forsaken(power=0.5),
    "power=1": Forsaken(power=1.0),
    "anchor=0.3": Forsaken(anchor=0.3),
    "anchor=3": Forsaken(anchor=3.0),
    "anchor=10": Forsaken(anchor=10.0),
    "anchor_references=0": Forsaken(anchor_references=0),
    "anchor_references=1000": Forsaken(anchor_references=1000),
    "importance=loss": Forsaken(importance="loss"),
    "history=5": Forsaken(history=5),
    "history=20": Forsaken(history=20),
    "distance=kl, penalty=1e-4, anchor=0.1": Forsaken(distance="kl", penalty=1e-4, anchor=0.1),
    "weights=importance, power=0": Forsaken(weights="importance", power=0.0),
    "target=uniform": Forsaken(target="uniform"),
    "paper": Forsaken.paper(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=("digits", "reuters-35-11"), default="digits")
    add_seeds(parser, "100-104")
    options = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {}
    for seed in options.seeds:
        stage = prepare(options.task, seed)
        scenario = stage.scenario
        retrained = stage.judge(View.of(stage.retrained, scenario))
        rows.setdefault("retrained", []).append(retrained.to_dict() | {"seconds": stage.retrain_seconds})
        rows.setdefault("before", []).append(stage.judge(stage.before).to_dict() | {"memorised": stage.memorised})
        cases = {name: (method, scenario.retain) for name, method in VARIANTS.items()}
        cases["default, no retain samples"] = (Forsaken(), None)
        for name, (method, retain) in cases.items():
            start = time.perf_counter()
            result = method(stage.target, scenario.forget, scenario.reference, retain, seed=seed)
            found = stage.judge(View.of(result.model, scenario)).to_dict()
            found |= {
                "density": result.density,
                "seconds": result.seconds,
                "iterations": result.iterations,
                "objective": result.history[-1].objective if result.history else float("nan"),
                "penalty_share": result.details.facts.get("penalty_share") or 0.0,
            }
            rows.setdefault(name, []).append(found)
            print(
                f"seed {seed}  {name:38s}",
                " ".join(f"{k} {v}" for k, v in found.items()),
                result.stopped,
                f"[{time.perf_counter() - start:.1f} s]",
                flush=True,
            )
    print(summary(rows))
    write_result(RESULTS / f"defaults-{options.task}.json", options.seeds, rows)


if __name__ == "__main__":
    main()
