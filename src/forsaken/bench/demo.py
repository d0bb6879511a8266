"""The demonstration: forget 40 samples of a digits classifier, by default and by references, beside retraining."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from forsaken.auditing.alarms import as_check
from forsaken.auditing.ensembles import Ensembles
from forsaken.auditing.full import Floors, Full
from forsaken.auditing.held_out import HeldOut
from forsaken.auditing.inputs import labels_of
from forsaken.auditing.judgement import correct, judge, rates
from forsaken.bench.audit import inputs_of, table_of
from forsaken.bench.trial import Stage, prepare
from forsaken.jobs.run import build_result, evidence_of
from forsaken.metrics import separation
from forsaken.models.logits import posteriors
from forsaken.result import Counts, OracleQuality, Result, Verdict
from forsaken.types import Array, Progress, silent
from forsaken.unlearning.base import Unlearned
from forsaken.unlearning.forsaken.method import Forsaken
from forsaken.verdict import decide

TASK = "digits"
DEFAULT, REFERENCES = Forsaken(), Forsaken.out_of_fold()
ORIGINALS = 6  # of the ensemble that U-LiRA compares; an audit takes 16
# The 40 samples come from one contributor, so that they share a fold. Of the eight models of such a table the
# demonstration trains the one that it asks: the one without that fold.
TABLE = HeldOut(8, "forgotten")


@dataclass(frozen=True, slots=True)
class Demo:
    """What the demonstration found: the result, and the posteriors behind its pictures by model and set."""

    result: Result
    answers: dict[str, dict[str, Array]]


def run_demo(seed: int = 0, progress: Progress = silent) -> Demo:
    """Train a target with 40 strangers mixed in, make it forget them in two ways, and compare with retraining.

    The result is that of the references; `facts["side_by_side"]` holds the numbers of all four models.
    """
    stage = prepare(TASK, seed, progress)
    scenario, table = stage.scenario, table_of(stage, TABLE, "cpu")
    given = scenario.forget, scenario.reference, scenario.retain
    default = DEFAULT(stage.target, *given, seed=seed, progress=progress)
    unlearned = REFERENCES(stage.target, *given, references=table, seed=seed, progress=progress)
    parts = {
        "forget": scenario.forget,
        "kept": scenario.unseen_kept,
        "test": scenario.test,
        "reference": scenario.reference,
    }
    models = {"before": stage.target, "default": default.model, "after": unlearned.model, "retrained": stage.retrained}
    answers = {
        name: {role: posteriors(model, samples) for role, samples in parts.items()} for name, model in models.items()
    }
    attack = _attacks(stage, progress)
    shown = {name: answers[name] for name in ("before", "after", "retrained")}
    verdicts = {
        "default": _verdict(stage, default, {**shown, "after": answers["default"]}, attack["default"]),
        "references": _verdict(stage, unlearned, shown, attack["references"]),
    }
    seconds = {"default": default.seconds, "references": unlearned.seconds, "retrained": stage.retrain_seconds}
    columns = {
        name: _column(stage, answers["after" if name == "references" else name])
        | {"u_lira_auc": _told(attack, name), "seconds": seconds.get(name)}
        | {"verdict": verdicts[name].word if name in verdicts else None}
        for name in ("before", "default", "references", "retrained")
    }
    found = _judged(stage, shown)
    test_labels = labels_of(scenario.test)
    result = build_result(
        stage.target,
        unlearned,
        found,
        shown,
        stage.oracle,
        method={"name": "forsaken", **REFERENCES.settings},
        learnt=scenario.forget,
        test_labels=test_labels,
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
        facts={
            **unlearned.details.facts,
            "side_by_side": columns,
            "u_lira_floor": list(attack["default"].floor or ()),
            "u_lira_originals": ORIGINALS,
            "default_line": verdicts["default"].line,
        },
        notes=list(unlearned.notes),
        warnings=[],
        job=None,
    )
    return Demo(result.model_copy(update={"verdict": verdicts["references"]}), shown)


def _judged(stage: Stage, answers: dict[str, dict[str, Array]]) -> Any:
    return judge(
        answers["before"],
        answers["after"],
        answers["retrained"],
        oracle=stage.oracle,
        test_labels=labels_of(stage.scenario.test),
        retrain_seconds=stage.retrain_seconds,
    )


def _attacks(stage: Stage, progress: Progress) -> dict[str, Any]:
    """Return U-LiRA's AUC on the forgotten samples for both ways, against an ensemble of retrained models."""
    ensembles = Ensembles(
        inputs_of(stage.scenario, stage.target),
        {"default": DEFAULT, "references": REFERENCES},
        originals=ORIGINALS,
        retrained=2 * ORIGINALS,
        references={"references": TABLE},
    )
    matrices, seed = ensembles.measure(progress=progress), stage.scenario.seed
    floors = Floors.of(matrices, ORIGINALS, seed=seed)
    return {name: Full(matrices, name, seed=seed, floors=floors).areas()[0] for name in ("default", "references")}


def _told(attack: dict[str, Any], name: str) -> float:
    number = attack.get(name, attack["default"])
    return float({"before": number.before, "retrained": number.retrained}.get(name, number.value))


def _verdict(stage: Stage, unlearned: Unlearned[Any], answers: dict[str, dict[str, Array]], attack: Any) -> Verdict:
    """Return the verdict beside one retrained model, with U-LiRA's number among the checks."""
    evidence = evidence_of(
        unlearned,
        _judged(stage, answers),
        answers,
        stage.oracle,
        method="forsaken",
        learnt=stage.scenario.forget,
        test_labels=labels_of(stage.scenario.test),
        references=None,
    )
    check = as_check(attack)
    return decide(replace(evidence, checks=(*([] if check is None else [check]), *evidence.checks)))


def _column(stage: Stage, answers: dict[str, Array]) -> dict[str, float | None]:
    """Return the numbers of one model."""
    before = posteriors(stage.target, stage.scenario.forget)
    own = rates(stage.oracle, {"forget": before}, {"forget": answers["forget"]}, None)
    return {
        "learnt_label": float(correct(answers["forget"], labels_of(stage.scenario.forget)).mean()),
        "fr": own.fr,
        "confidence_auc": separation(answers["forget"].max(1), answers["reference"].max(1)),
        "confidence": own.confidence,
        "accuracy": float(correct(answers["test"], labels_of(stage.scenario.test)).mean()),
    }
