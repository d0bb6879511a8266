"""The demonstration: forget 40 samples of a digits classifier, beside retraining."""

from __future__ import annotations

from dataclasses import dataclass

from forsaken.auditing.judgement import judge
from forsaken.bench.trial import prepare
from forsaken.jobs.run import build_result
from forsaken.models.logits import posteriors
from forsaken.result import Counts, OracleQuality, Result
from forsaken.types import Array, Progress, silent
from forsaken.unlearning.forsaken.method import Forsaken

TASK = "digits"
METHOD = Forsaken()


@dataclass(frozen=True, slots=True)
class Demo:
    """What the demonstration found: the result, and the posteriors behind its pictures by model and set."""

    result: Result
    answers: dict[str, dict[str, Array]]


def run_demo(seed: int = 0, progress: Progress = silent) -> Demo:
    """Train a target with 40 strangers mixed in, make it forget them, and compare with retraining."""
    stage = prepare(TASK, seed, progress)
    scenario = stage.scenario
    unlearned = METHOD(stage.target, scenario.forget, scenario.reference, scenario.retain, seed=seed, progress=progress)
    models = {"before": stage.target, "after": unlearned.model, "retrained": stage.retrained}
    parts = {
        "forget": scenario.forget,
        "kept": scenario.unseen_kept,
        "test": scenario.test,
        "reference": scenario.reference,
    }
    answers = {
        name: {role: posteriors(model, samples) for role, samples in parts.items()} for name, model in models.items()
    }
    found = judge(
        answers["before"],
        answers["after"],
        answers["retrained"],
        oracle=stage.oracle,
        test_labels=scenario.test.labels.numpy(),  # type: ignore[union-attr]
        retrain_seconds=stage.retrain_seconds,
    )
    result = build_result(
        stage.target,
        unlearned,
        found,
        answers,
        stage.oracle,
        method={"name": "forsaken", **METHOD.settings},
        learnt=scenario.forget,
        test_labels=scenario.test.labels.numpy(),  # type: ignore[union-attr]
        task=TASK,
        seed=seed,
        speedup=stage.retrain_seconds / unlearned.seconds,
        counts=Counts(
            forget=len(scenario.forget),
            memorised_before=found.memorised_before,
            reference=len(scenario.reference),
            retain=len(scenario.retain_rows),
            train=len(scenario.train),
            test=len(scenario.test),
            kept_judged=len(scenario.kept) - len(scenario.retain_rows),
            kept_members_before=found.kept_members_before,
        ),
        classes=list(scenario.names) or [str(number) for number in range(scenario.classes)],
        oracle=OracleQuality.model_validate(stage.oracle_report().to_dict()),
        chain=None,
        cleaning=None,
        facts=dict(unlearned.details.facts),
        notes=list(unlearned.notes),
        warnings=[],
        job=None,
    )
    return Demo(result, answers)
