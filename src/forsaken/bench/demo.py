"""The demonstration: forget 40 samples of a digits classifier, beside retraining."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from forsaken.bench.provenance import provenance
from forsaken.bench.trial import Stage, View, prepare
from forsaken.oracles.shadow import top_posteriors
from forsaken.types import Progress, silent
from forsaken.unlearning.base import Unlearned
from forsaken.unlearning.forsaken.method import Forsaken

SCHEMA = 1
TASK = "digits"
METHOD = Forsaken()


@dataclass(frozen=True, slots=True)
class Demo:
    """What the demonstration found: JSON-ready numbers, and the arrays behind its pictures."""

    result: dict[str, Any]
    arrays: dict[str, np.ndarray[Any, Any]]


def run_demo(seed: int = 0, progress: Progress = silent) -> Demo:
    """Train a target with 40 strangers mixed in, make it forget them, and compare with retraining."""
    stage = prepare(TASK, seed, progress)
    scenario = stage.scenario
    unlearned = METHOD(stage.target, scenario.forget, scenario.reference, scenario.retain, seed=seed, progress=progress)
    after, retrained = View.of(unlearned.model, scenario), View.of(stage.retrained, scenario)
    views = {"before": stage.before, "after": after, "retrained": retrained}
    arrays = {
        f"{name}_{part}": top_posteriors(getattr(view, part))
        for name, view in views.items()
        for part in ("forget", "kept", "test")
    }
    return Demo(_result(stage, unlearned, after, retrained, seed), arrays)


def _result(stage: Stage, unlearned: Unlearned[Any], after: View, retrained: View, seed: int) -> dict[str, Any]:
    scenario = stage.scenario
    was, now, yardstick = stage.judge(stage.before), stage.judge(after), stage.judge(retrained)
    return {
        "schema": SCHEMA,
        "task": TASK,
        "seed": seed,
        "fr": now.fr,
        "cfr": now.cfr,
        "accuracy_before": was.accuracy,
        "accuracy_after": now.accuracy,
        "seconds": unlearned.seconds,
        "speedup": stage.retrain_seconds / unlearned.seconds,
        "mask_density": unlearned.mask.density,
        "iterations": unlearned.iterations,
        "evaluations": unlearned.evaluations,
        "stopped": unlearned.stopped,
        "forget_confidence": {
            "before": was.confidence,
            "after": now.confidence,
            "retrained": yardstick.confidence,
        },
        "retrain": {
            "fr": yardstick.fr,
            "cfr": yardstick.cfr,
            "accuracy": yardstick.accuracy,
            "seconds": stage.retrain_seconds,
        },
        "counts": {
            "forget": len(scenario.forget),
            "memorised_before": stage.memorised,
            "train": len(scenario.train),
            "test": len(scenario.test),
            "reference": len(scenario.reference),
            "retain": len(scenario.retain_rows),
            "kept_judged": len(scenario.kept) - len(scenario.retain_rows),
        },
        "oracle": stage.oracle_report().to_dict(),
        "facts": dict(unlearned.details.facts),
        "notes": list(unlearned.notes),
        "settings": METHOD.settings,
        "history": [asdict(step) for step in unlearned.history],
        "provenance": provenance(),
    }
