"""What the curvature brings beside anchors to users who have no references, and to linear estimators.

usage: python benchmarks/without_references.py [--task digits] [--model logistic-regression] [--seeds 0-4]

Each seed trains a target, a retrained model and an oracle. Writes results/without-references-TASK[-MODEL].json.
"""

from __future__ import annotations

import argparse
from typing import Any

from common import RESULTS, add_seeds, summary, write_result

from forsaken import Curvature, Forsaken
from forsaken.bench.scenarios.table import load_scenario
from forsaken.bench.trial import Stage, View, staged
from forsaken.data.samples import Samples
from forsaken.errors import ForsakenError
from forsaken.models.logits import predict_logits

METHODS = {
    "class-mean, anchors": (Forsaken(), False),
    "class-mean, curvature": (Forsaken(), True),
    "class-mean, curvature, damping 1": (Forsaken(damping=1.0), True),
    "uniform, anchors": (Forsaken(target="uniform"), False),
    "uniform, curvature": (Forsaken(target="uniform"), True),
    "the retrained model's answers, anchors": (Forsaken(target="out-of-fold"), False),
    "the retrained model's answers, curvature": (Forsaken(target="out-of-fold"), True),
}


def judged(stage: Stage) -> dict[str, dict[str, Any]]:
    """Return the numbers of every method on one stage, beside those of the retrained model and of doing nothing."""
    scenario = stage.scenario
    found = {
        "retrained": stage.judge(View.of(stage.retrained, scenario)).to_dict(),
        "before": stage.judge(stage.before).to_dict(),
    }
    answers = predict_logits(stage.retrained, Samples(scenario.forget.inputs))
    curvature = Curvature.fit(stage.target, Samples(scenario.train.inputs))
    for name, (method, by_curvature) in METHODS.items():
        try:
            result = method(
                stage.target,
                scenario.forget,
                scenario.reference,
                scenario.retain,
                targets=answers if method.target == "out-of-fold" else None,
                curvature=curvature if by_curvature else None,
                seed=scenario.seed,
            )
        except ForsakenError as error:
            raise ForsakenError(f"{name}: {error}") from error
        verdict = stage.judge(View.of(result.model, scenario)).to_dict()
        found[name] = verdict | {"seconds": result.seconds, "density": result.density}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_seeds(parser, "0-4")
    parser.add_argument("--task", default="digits", help="a scenario")
    parser.add_argument("--model", help="logistic-regression or svm, in place of the scenario's network")
    options = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {}
    for seed in options.seeds:
        stage = staged(load_scenario(options.task, seed=seed, model=options.model))
        for name, numbers in judged(stage).items():
            rows.setdefault(name, []).append(numbers)
    print(summary(rows))
    name = options.task if options.model is None else f"{options.task}-{options.model}"
    place = RESULTS / f"without-references-{name}.json"
    write_result(place, options.seeds, rows, task=options.task, model=options.model)


if __name__ == "__main__":
    main()
