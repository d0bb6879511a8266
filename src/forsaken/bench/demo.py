"""The demonstration: forget 40 samples of a digits classifier, beside retraining."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from forsaken.bench.trial import Stage, View, prepare
from forsaken.jobs.output import KIND, SCHEMA
from forsaken.jobs.summary import by_class, layers, sample_table
from forsaken.metrics import separation
from forsaken.models.logits import posteriors
from forsaken.oracles.shadow import top_posteriors
from forsaken.provenance import provenance
from forsaken.types import Array, Progress, silent
from forsaken.unlearning.base import Unlearned
from forsaken.unlearning.forsaken.claims import CLAIMS
from forsaken.unlearning.forsaken.method import Forsaken

TASK = "digits"
METHOD = Forsaken()


@dataclass(frozen=True, slots=True)
class Demo:
    """What the demonstration found: JSON-ready numbers, and the arrays behind its pictures."""

    result: dict[str, Any]
    arrays: dict[str, Array]


def run_demo(seed: int = 0, progress: Progress = silent) -> Demo:
    """Train a target with 40 strangers mixed in, make it forget them, and compare with retraining."""
    stage = prepare(TASK, seed, progress)
    scenario = stage.scenario
    unlearned = METHOD(stage.target, scenario.forget, scenario.reference, scenario.retain, seed=seed, progress=progress)
    after, retrained = View.of(unlearned.model, scenario), View.of(stage.retrained, scenario)
    views = {"before": stage.before, "after": after, "retrained": retrained}
    models = {"before": stage.target, "after": unlearned.model, "retrained": stage.retrained}
    references = {name: posteriors(model, scenario.reference) for name, model in models.items()}
    arrays = {f"{name}_reference": top_posteriors(part) for name, part in references.items()}
    arrays |= {
        f"{name}_{part}": top_posteriors(getattr(view, part))
        for name, view in views.items()
        for part in ("forget", "kept", "test")
    }
    numbers = _numbers(stage, unlearned, after, retrained) | {"separation": _separation(arrays)}
    return Demo(numbers | _details(stage, unlearned, after), arrays)


def _numbers(stage: Stage, unlearned: Unlearned[Any], after: View, retrained: View) -> dict[str, Any]:
    scenario = stage.scenario
    was, now, yardstick = stage.judge(stage.before), stage.judge(after), stage.judge(retrained)
    return {
        "schema": SCHEMA,
        "kind": KIND,
        "task": TASK,
        "seed": scenario.seed,
        "fr": now.fr,
        "cfr": now.cfr,
        "accuracy_before": was.accuracy,
        "accuracy_after": now.accuracy,
        "seconds": unlearned.seconds,
        "speedup": stage.retrain_seconds / unlearned.seconds,
        "mask_density": unlearned.density,
        "iterations": unlearned.iterations,
        "evaluations": unlearned.evaluations,
        "stopped": unlearned.stopped,
        "forget_confidence": {"before": was.confidence, "after": now.confidence, "retrained": yardstick.confidence},
        "forget_accuracy": None,
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
            "kept_members_before": int(
                (stage.oracle.score_posteriors(stage.before.kept) > stage.oracle.threshold).sum()
            ),
        },
    }


def _details(stage: Stage, unlearned: Unlearned[Any], after: View) -> dict[str, Any]:
    scenario, before, score = stage.scenario, stage.before, stage.oracle.score_posteriors
    labels = scenario.test.labels
    truth = np.empty(0) if labels is None else labels.numpy()
    return {
        "classes": list(scenario.names) or [str(number) for number in range(scenario.classes)],
        "by_class": by_class(truth, before.test, after.test, scenario.classes),
        "layers": layers(stage.target, unlearned.model),
        "samples": sample_table(before.forget, after.forget, "oracle", score(before.forget), score(after.forget)),
        "oracle": stage.oracle_report().to_dict(),
        "target": CLAIMS[unlearned.details.facts["target"]].to_dict(),
        "chain": None,
        "cleaning": None,
        "facts": dict(unlearned.details.facts),
        "notes": list(unlearned.notes),
        "warnings": [],
        "settings": {"name": "forsaken", **METHOD.settings},
        "job": None,
        "history": [asdict(step) for step in unlearned.history],
        "provenance": provenance(),
    }


def _separation(arrays: dict[str, Array]) -> dict[str, Any]:
    # The references are strangers like the forgotten ones; the test digits are not, and would be told apart anyway.
    apart = {
        name: separation(arrays[f"{name}_forget"][:, 0], arrays[f"{name}_reference"][:, 0])
        for name in ("before", "after", "retrained")
    }
    spread = {name: float(arrays[f"{name}_forget"][:, 0].std()) for name in apart}
    others = float(arrays["after_reference"][:, 0].std())
    n = len(arrays["before_reference"])
    return {"against": "reference", "n": n, **apart, "spread": spread, "spread_of_others": others}
