"""Black box and white box: what both oracles say of one forgetting, beside the retrained model.

usage: FORSAKEN_DATA=<folder> python benchmarks/oracles.py --scenario reuters-35-11 [--seeds 0-2] [--device cpu]

A seed is a split, three trainings (target, shadow, retrained), one unlearning by Forsaken's defaults and the oracles.
The black box learnt from the shadow. The white box learns from the target itself, of which half of the members are
known: half of the kept samples and half of the forget set, beside half of the test set and half of as many strangers
that were never trained on, under random labels as the forgotten ones were. The other halves are judged; then the two
change places, so that every sample is judged by an oracle that was not trained on it. As many kept samples are known
as test samples, or a stranger would seem a non-member for being a stranger. The white box stands twice: with the labels
that samples were trained under, and under the model's own predictions, as the black box sees them.

Every seed leaves its numbers in --folder and is not run again, so that machines can share the work (--phase run or
table). Writes results/oracles-SCENARIO.json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from common import RESULTS, add_seeds, origin, summary, write_result

from forsaken import Forsaken, Scenario, WhiteBoxOracle
from forsaken._files import write_atomically
from forsaken._random import generator
from forsaken.bench.scenarios.table import SCENARIOS
from forsaken.bench.trial import prepare
from forsaken.data.samples import Samples, join
from forsaken.errors import UndefinedMetricError
from forsaken.metrics import catastrophic_forgetting_rate, forgetting_rate, separation
from forsaken.oracles import signals, white_box
from forsaken.oracles.base import OracleReport

# FR by the black-box and the white-box oracle in the paper (Table white_box)
PAPER = {
    "c10-s": (0.9762, 0.9702),
    "c10-t": (0.9829, 0.9829),
    "c100-t": (0.9573, 0.9658),
    "i-c": (0.9846, 0.9744),
    "reuters-35-11": (0.9635, 0.9688),
    "news-15-5": (0.9753, 0.9629),
}
BLACK, WHITE, PREDICTED = "black box", "white box", "white box, predicted labels"
MODELS = ("before", "after", "retrained")
LAYERS = 1

Array = np.ndarray[Any, Any]
Scores = Mapping[str, Array]  # by set: forget, kept, test, strangers


def sets_of(scenario: Scenario) -> dict[str, Samples]:
    """Return what is judged, with labels: as many strangers as are forgotten, which the method is not given."""
    strangers = scenario.sets(nonmembers=True).nonmembers
    if strangers is None:
        raise SystemExit(f"{scenario.name} forgets samples of the task itself; this table is about strangers")
    return {
        "forget": scenario.forget,
        "kept": scenario.unseen_kept,
        "test": scenario.test,
        "strangers": strangers,
    }


def folds_of(sets: Mapping[str, Samples], seed: int) -> dict[str, Array]:
    """Return, for each sample of each set, which half it is in."""
    return {
        name: generator(seed, 8, at).permutation(np.arange(len(part)) % 2)
        for at, (name, part) in enumerate(sets.items())
    }


def crossed(
    sets: Mapping[str, Samples],
    folds: Mapping[str, Array],
    target: Any,
    models: Mapping[str, Any],
    **settings: Any,
) -> dict[str, Scores]:
    """Return the scores of every set under every model, each half by an oracle that was fitted on the other."""
    found = {model: {name: np.empty(len(part)) for name, part in sets.items()} for model in models}
    for known in (0, 1):
        half = {name: part.rows(np.flatnonzero(folds[name] == known)) for name, part in sets.items()}
        alike = {name: half[name].rows(np.arange(min(len(half[name]), len(half[other])))) for name, other in PAIRS}
        oracle = WhiteBoxOracle.fit(
            target,
            members=join([alike["kept"], alike["forget"]]),
            nonmembers=join([alike["test"], alike["strangers"]]),
            layers=LAYERS,
            **settings,
        )
        for model, scores in found.items():
            for name, part in sets.items():
                rows = np.flatnonzero(folds[name] != known)
                scores[name][rows] = oracle.score(models[model], part.rows(rows))
    return found


PAIRS = (("kept", "test"), ("test", "kept"), ("forget", "strangers"), ("strangers", "forget"))


def judged(scores: Mapping[str, Scores], folds: Mapping[str, Array], threshold: float) -> dict[str, float | None]:
    """Return what the scores of one oracle say of the models."""

    def verdicts(model: str, *names: str) -> Array:
        return np.concatenate([scores[model][name] for name in names]) > threshold

    def rate(of: Callable[[Array, Array], float], model: str, name: str) -> float | None:
        try:
            return of(verdicts("before", name), verdicts(model, name))
        except UndefinedMetricError:
            return None

    def auc(model: str, members: str, others: str) -> float:
        # fold by fold: two oracles' scores have no scale in common
        halves = [[scores[model][name][folds[name] == fold] for name in (members, others)] for fold in (0, 1)]
        return float(np.mean([separation(*half) for half in halves]))

    report = OracleReport.of(verdicts("before", "kept", "forget"), verdicts("before", "test", "strangers"))
    found: dict[str, float | None] = {
        "memorised": int(verdicts("before", "forget").sum()),
        "balanced_accuracy": report.balanced_accuracy,
        "auc_task": auc("before", "kept", "test"),
    }
    for model in MODELS[1:]:
        found[f"fr_{model}"] = rate(forgetting_rate, model, "forget")
        found[f"cfr_{model}"] = rate(catastrophic_forgetting_rate, model, "kept")
    return found | {f"auc_forget_{model}": auc(model, "forget", "strangers") for model in MODELS}


def measured(name: str, seed: int, device: str) -> dict[str, dict[str, float | None]]:
    """Train, forget, and ask all oracles."""
    stage = prepare(name, seed, device=device)
    scenario = stage.scenario
    method = Forsaken()
    reference = scenario.sets(nonmembers=True).need("reference")
    after = method(stage.target, scenario.forget, reference, scenario.retain, seed=seed).model
    models = dict(zip(MODELS, (stage.target, after, stage.retrained), strict=True))
    sets = sets_of(scenario)
    folds = folds_of(sets, seed)
    black = {
        model: {name: stage.oracle.score(net, part) for name, part in sets.items()} for model, net in models.items()
    }
    found = {BLACK: judged(black, folds, stage.oracle.threshold)}
    for row, labels in ((WHITE, "given"), (PREDICTED, "predicted")):
        start = time.perf_counter()
        scores = crossed(sets, folds, stage.target, models, labels=labels, seed=seed, device=device)
        found[row] = judged(scores, folds, WhiteBoxOracle.threshold) | {"seconds": time.perf_counter() - start}
        print(f"seed {seed} {row}: {found[row]}", flush=True)
    return found


def identity(name: str) -> str:
    """Return a hash of all that decides a seed's numbers: what was saved under another one is not taken for it.

    The device is no part of it, since machines share the seeds; the result says which seed was measured where.
    """
    plan = SCENARIOS[name]
    code = [Path(str(module.__file__)).read_text() for module in (signals, white_box)]
    told = [plan.network, plan.recipe, plan.sizes, Forsaken().settings, LAYERS, version("forsaken"), code]
    return sha256(json.dumps([name, *told], default=str).encode()).hexdigest()


def saved(folder: Path, name: str, seed: int, device: str) -> dict[str, Any]:
    """Return the numbers of a seed, from its file or measured now."""
    path, known = folder / f"{name}-{seed}.json", identity(name)
    if path.exists():
        content: dict[str, Any] = json.loads(path.read_bytes())
        if content["identity"] != known:
            raise SystemExit(f"{path} was made with other settings; delete it to run it again")
        return content
    content = {"identity": known, "device": device, "rows": measured(name, seed, device), "provenance": origin()}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=1).encode())
    return content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", default="digits", help="its name")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--phase", choices=("run", "table"), default="table", help="how far to go")
    parser.add_argument("--folder", type=Path, default=Path("runs/oracles"), help="where numbers of seeds are kept")
    add_seeds(parser, "0-2")
    options = parser.parse_args()
    name = options.scenario
    found = [saved(options.folder, name, seed, options.device) for seed in options.seeds]
    if options.phase == "run":
        return
    rows = {row: [one["rows"][row] for one in found] for row in (BLACK, WHITE, PREDICTED)}
    print(summary(rows))
    paper = dict(zip((BLACK, WHITE), PAPER[name], strict=True)) if name in PAPER else None
    write_result(
        RESULTS / f"oracles-{name}.json",
        options.seeds,
        rows,
        devices=[one["device"] for one in found],
        layers=LAYERS,
        paper_fr=paper,
        measured_on=found[0]["provenance"],
    )


if __name__ == "__main__":
    main()
