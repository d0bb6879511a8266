"""Trials: what is measured once for a scenario, a seed and a row, and serves every table that shows it.

A trial is a plain value. Its key is a hash of everything that decides its numbers, its file is one JSON document that
is written in one step, and a trial whose file is there is never measured again.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.manifold import TSNE
from torch import nn

from forsaken._files import make_folder, write_atomically
from forsaken._random import Purpose, generator
from forsaken._untrusted import UnreadableError, parse_json
from forsaken.auditing.ensembles import Ensembles
from forsaken.auditing.full import Floors, Full
from forsaken.auditing.inputs import labels_of
from forsaken.auditing.judgement import correct, members, rates
from forsaken.bench import exposure, sequences, white_box, worth
from forsaken.bench.audit import inputs_of
from forsaken.bench.exposure import LanguageStage
from forsaken.bench.networks import ESTIMATORS, build, parameter_count
from forsaken.bench.rows import (
    BEFORE,
    REFERENCES,
    RETRAINED,
    Outcome,
    forget,
    method_of,
    plan_of,
    row_named,
    rows_given,
    settings_of,
)
from forsaken.bench.scenarios.scenario import Plan, Scenario
from forsaken.bench.scenarios.table import linear_plan, plan_named
from forsaken.bench.sequences import SequenceStage
from forsaken.bench.store import Store, Trained, identity
from forsaken.bench.trial import Stage, staged
from forsaken.bench.worth import WorthStage
from forsaken.data.samples import Samples
from forsaken.errors import ModelError, NonFiniteError, NothingForgottenError, SettingsError
from forsaken.models.logits import posteriors
from forsaken.models.weights import fingerprint
from forsaken.provenance import PACKAGE, provenance, source_hash
from forsaken.types import Array, Progress, Tick, silent

_LEAST = 1e-300  # posterior, of which the logarithm is taken
_POINTS = 100  # samples of each kind in a picture
_NEIGHBOURS = 5
_COST = 0.03  # of recall, that a poison must cost before a share of it means anything
_MODELS = 16  # originals of an ensemble
# A method that cannot do a scenario, or ruins the model.
_REFUSALS = (ModelError, NonFiniteError, NothingForgottenError)
_OF_THE_MACHINE = (torch.AcceleratorError, torch.OutOfMemoryError, MemoryError)
_GENERATION = (
    "0.1.0"  # raise it when code or defaults change so much that no trial saved before may stand beside new ones
)
Numbers = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Changes:
    """How a trial departs from its scenario. None leaves a value as it is.

    Attributes
    ----------
    forget : int
        How many samples are forgotten.
    epochs : int
        Of every training, the shadow's included.
    rows : int
        Training samples that are kept, of the target and of the shadow each.
    model : str
        "logistic-regression" or "svm" in place of the network.
    """

    forget: int | None = None
    epochs: int | None = None
    rows: int | None = None
    model: str | None = None

    def told(self) -> dict[str, Any]:
        """Return the changes that there are."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def plan(self, name: str) -> Plan:
        """Return the plan of a scenario with these changes."""
        plan = plan_named(name)
        if self.model is not None:
            plan = linear_plan(plan, self.model)
        if self.forget is not None:
            plan = dataclasses.replace(plan, sizes=dataclasses.replace(plan.sizes, forget=self.forget))
        if self.epochs is not None:
            plan = dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, epochs=self.epochs))
        return plan

    def scenario(self, name: str, seed: int, progress: Progress = silent) -> Scenario:
        """Load a scenario with these changes."""
        plan = self.plan(name)
        scenario = plan.build(plan, seed, progress)
        if self.rows is None:
            return scenario
        if self.rows > len(scenario.kept):
            raise SettingsError(f"rows is {self.rows:,}, expected at most the {len(scenario.kept):,} of {name}")
        share, shadow = self.rows / len(scenario.kept), scenario.shadow_members  # its strangers are the last rows
        retain = generator(seed, Purpose.SCENARIO_RETAIN).permutation(self.rows)
        return dataclasses.replace(
            scenario,
            kept=scenario.kept.rows(np.arange(self.rows)),
            shadow_members=shadow.rows(np.arange(len(shadow) - round(share * len(shadow)), len(shadow))),
            retain_rows=retain[: round(plan.sizes.retain_share * self.rows)],
        )


UNCHANGED = Changes()


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement.

    Attributes
    ----------
    scenario, seed, row
        What is forgotten, by which split and trainings, and how (a name of `rows.ROWS`).
    kind : str
        What is measured: a name of `KINDS`.
    settings : mapping
        Settings of the method beside those of its row.
    changes : Changes
        How it departs from the scenario.
    device : str
        "cpu" or "cuda".
    """

    scenario: str
    seed: int
    row: str
    kind: str = "forget"
    settings: Mapping[str, Any] = field(default_factory=dict)
    changes: Changes = UNCHANGED
    device: str = "cpu"

    @property
    def group(self) -> tuple[Any, ...]:
        """What trials must have in common to share their trained models."""
        return self.scenario, self.seed, self.changes, self.device, STAGES.get(self.kind)

    def facts(self) -> dict[str, Any]:
        """Return what decides the numbers; `_GENERATION` stands for code and defaults.

        What is only said again (a change to what the scenario has, a setting that is the method's default) is left out,
        so that the tables share it.
        """
        base, plan = plan_named(self.scenario), self.changes.plan(self.scenario)
        row = row_named(self.row)
        usual = {"forget": base.sizes.forget, "epochs": base.recipe.epochs}
        changes = {name: value for name, value in self.changes.told().items() if usual.get(name) != value}
        return {
            "kind": self.kind,
            "scenario": self.scenario,
            "seed": self.seed,
            "row": self.row,
            "method": [row.method, row.preset, row.retain],
            "settings": settings_of(self.scenario, self.row) | self._own_settings(),
            "changes": changes,
            "network": str(plan.network),
            "recipe": plan.recipe.to_dict(),
            "sizes": asdict(plan.sizes),
            "options": dict(plan.options),
            "device": self.device,
            "version": _GENERATION,
        }

    def _own_settings(self) -> dict[str, Any]:
        """Return the settings of this trial that are not what its row has anyway."""
        if not self.settings or self.kind not in ("forget", "poison"):
            return dict(self.settings)
        tuned = settings_of(self.scenario, self.row)
        usual = method_of(self.row, tuned)
        return {
            name: value
            for name, value in self.settings.items()
            if name == "rate" or method_of(self.row, {**tuned, name: value}) != usual
        }

    @property
    def key(self) -> str:
        """The hash of `facts`."""
        return identity(self.facts())

    def path(self, folder: Path) -> Path:
        """Return the place of its file."""
        kind = "" if self.kind == "forget" else f"{self.kind}-"
        return folder / self.scenario / f"{kind}{self.row}-seed-{self.seed}-{self.key[:10]}.json"


def read(trial: Trial, folder: Path) -> dict[str, Any] | None:
    """Return the saved content of a trial, or None where there is none or it is damaged."""
    path = trial.path(folder)
    try:
        content = parse_json(path.read_bytes())
    except (OSError, UnreadableError):
        return None
    return content if isinstance(content, dict) and content.get("key") == trial.key else None


def write(trial: Trial, folder: Path, content: Mapping[str, Any]) -> None:
    """Save what `measure_group` found of a trial, in one step."""
    path = trial.path(folder)
    make_folder(path.parent)
    write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")


def measure_group(
    trials: list[Trial], store: Store | None, progress: Progress = silent
) -> Iterator[tuple[Trial, dict[str, Any] | Exception]]:
    """Measure trials of one group, which share their trained models, one after the other.

    What is found of each is ready to be saved: its numbers, what was measured, how long it took, and where. Of a trial
    that failed it is the error.
    """
    first = trials[0]
    scenario = first.changes.scenario(first.scenario, first.seed, progress)
    stage = STAGES.get(first.kind, staged)(scenario, progress, device=first.device, store=store)
    rows = [trial for trial in trials if trial.kind == "truth"]
    for at, trial in enumerate(trials):
        progress(Tick(f"{first.scenario}, seed {first.seed}", at, len(trials)))
        start = time.perf_counter()
        try:
            if len(rows) > 1 and trial is rows[0] and store is not None:
                _train_together(stage, rows, store, progress)
            numbers = KINDS[trial.kind](stage, trial, store, progress)
        except Exception as error:  # noqa: BLE001 (the other trials of the group go on)
            reason = _refusal(error)
            if reason is None:
                yield trial, error
                continue
            numbers = {"refused": str(error), "error": reason}  # an answer, too
        yield (
            trial,
            {
                "key": trial.key,
                "trial": trial.facts(),
                "numbers": numbers,
                "trial_seconds": round(time.perf_counter() - start, 2),
                "provenance": provenance(),
            },
        )
    progress(Tick(f"{first.scenario}, seed {first.seed}", len(trials), len(trials)))


def _refusal(error: Exception) -> str | None:
    """Return the name of the reason why a method refused, or None where the error says nothing about the method."""
    chain: list[BaseException] = [error]
    while (below := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(below)
    reasons = [one for one in chain[:2] if isinstance(one, _REFUSALS)]  # ensembles wrap the reason
    if not reasons or any(isinstance(one, _OF_THE_MACHINE) for one in chain):
        return None
    return type(reasons[0]).__name__


def forgotten(stage: Stage, trial: Trial, progress: Progress, *, withhold: bool = False) -> Outcome:
    """Make the target forget as a trial says."""
    settings = settings_of(trial.scenario, trial.row) | dict(trial.settings)
    return forget(stage, trial.row, settings, device=trial.device, withhold=withhold, progress=progress)


def _forget(stage: Stage, trial: Trial, store: Store | None, progress: Progress) -> Numbers:
    """Return FR, CFR, accuracy, loss, confidence and seconds of a model that forgot."""
    found = forgotten(stage, trial, progress)
    if store is not None and trial.row == REFERENCES and isinstance(found.model, nn.Module):
        store.keep(_facts(stage, trial), Trained(found.model, 0.0, 0.0))
    numbers = judged(stage, found) | dict(found.numbers)
    if trial.row == BEFORE:
        numbers |= _of_target(stage)
    if trial.row == RETRAINED:
        numbers["train_accuracy"] = _accuracy(found.model, stage.scenario.kept)
    return numbers | {
        "retrain_seconds": stage.retrain_seconds,
        "retrain_processor_seconds": stage.retrain_processor_seconds,
        "train_seconds": stage.train_seconds,
        "training_rows": len(stage.scenario.train),
        "retrain_passes": stage.scenario.recipe.epochs * len(stage.scenario.kept),
        "forgotten_samples": len(stage.scenario.forget),
    }


def judged(stage: Stage, found: Outcome) -> Numbers:
    """Return what the oracle and the test set say of a model, beside the target and the model that it started from."""
    scenario = stage.scenario
    seen = np.ones(len(scenario.kept), dtype=bool)
    seen[found.used] = False
    sets = {"forget": scenario.forget, "kept": scenario.kept.rows(np.flatnonzero(seen)), "test": scenario.test}

    def answers(model: Any) -> dict[str, Array]:
        return {name: posteriors(model, samples) for name, samples in sets.items()}

    plain, after, labels = answers(stage.target), answers(found.model), labels_of(scenario.test)
    own = plain if found.before is stage.target else answers(found.before)
    beside, mine = (rates(stage.oracle, start, after, labels) for start in (plain, own))
    accuracy_before = float(correct(plain["test"], labels).mean())
    return {
        "fr": beside.fr,
        "cfr": beside.cfr,
        "own_fr": mine.fr,
        "own_cfr": mine.cfr,
        "accuracy": beside.accuracy,
        "accuracy_before": accuracy_before,
        "accuracy_loss": accuracy_before - (beside.accuracy or 0.0),
        "loss": _loss(after["test"], labels),
        "loss_before": _loss(plain["test"], labels),
        "confidence": beside.confidence,
        "learnt_label": float(correct(after["forget"], labels_of(scenario.forget)).mean()),
        "memorised": int(members(stage.oracle, plain["forget"]).sum()),
        "own_memorised": int(members(stage.oracle, own["forget"]).sum()),
    }


def _of_target(stage: Stage) -> Numbers:
    """Return what is known of the trained target: the paper's tables of networks and of oracles."""
    report = stage.oracle_report()
    learnt = correct(posteriors(stage.target, stage.scenario.forget), labels_of(stage.scenario.forget))
    return {
        "train_accuracy": _accuracy(stage.target, stage.scenario.train),
        "test_accuracy": _accuracy(stage.target, stage.scenario.test),
        "learnt": int(learnt.sum()),
        "oracle_accuracy": report.accuracy,
        "oracle_precision": report.precision,
        "oracle_recall": report.recall,
        "oracle_balanced_accuracy": report.balanced_accuracy,
        "parameters": parameter_count(stage.scenario),
        "samples": stage.scenario.sizes(),
    }


def _white_box(stage: Stage, trial: Trial, store: Store | None, progress: Progress) -> Numbers:
    """Return what black-box and white-box oracles say of the same model."""
    return white_box.compared(stage, _model(stage, trial, store, progress), device=trial.device)


def _picture(stage: Stage, trial: Trial, store: Store | None, progress: Progress) -> Numbers:
    """Return where t-SNE puts the three largest posteriors of members, test samples and forgotten ones.

    `member_neighbours` does without t-SNE: the share of members among the nearest five members and test samples of a
    forgotten sample, by the three largest posteriors.
    """
    scenario, draw = stage.scenario, generator(stage.scenario.seed, Purpose.BENCH_PICTURE)

    def some(samples: Samples) -> Samples:
        return samples.rows(np.sort(draw.permutation(len(samples))[:_POINTS]))

    parts = {"member": some(scenario.unseen_kept), "test": some(scenario.test), "forgotten": some(scenario.forget)}
    models = {"before": stage.target, "after": _model(stage, trial, store, progress), "retrained": stage.retrained}
    found: Numbers = {"counts": {name: len(part) for name, part in parts.items()}}
    for name, model in models.items():
        top = np.concatenate([largest(posteriors(model, part)) for part in parts.values()])
        found[f"points_{name}"] = drawn(top, scenario.seed)
        found[f"member_neighbours_{name}"] = member_neighbours(top, *found["counts"].values())
    if trial.settings.get("white_box", True) and scenario.outsiders:
        for name, codes in white_box.codes(stage, models, parts, device=trial.device).items():
            top = largest(codes)
            found[f"white_box_points_{name}"] = drawn(top, scenario.seed)
            found[f"white_box_member_neighbours_{name}"] = member_neighbours(top, *found["counts"].values())
    return found


def largest(rows: Array) -> Array:
    """Return the three largest numbers of each row, the largest first (two where there are two)."""
    return -np.sort(-rows, axis=1)[:, :3]


def drawn(points: Array, seed: int) -> list[list[float]]:
    """Return the places of points in the plane by t-SNE, between 0 and 1."""
    flat = TSNE(perplexity=min(30.0, (len(points) - 1) / 3), init="pca", random_state=seed).fit_transform(points)
    low, high = flat.min(0), flat.max(0)
    scaled = (flat - low) / np.maximum(high - low, 1e-12)
    return [[round(float(x), 3), round(float(y), 3)] for x, y in scaled]


def member_neighbours(points: Array, members_: int, others: int, forgotten_: int) -> float:
    """Return the mean share of members among the nearest five members and others of each forgotten point.

    The points are ordered: members, others, forgotten ones.

    >>> member_neighbours(np.array([[0.0], [0.1], [9.0], [9.1], [0.05]]), 2, 2, 1)
    0.5
    """
    known, own = points[: members_ + others], points[members_ + others : members_ + others + forgotten_]
    apart = ((own[:, None] - known[None]) ** 2).sum(2)
    nearest = np.argsort(apart, axis=1, kind="stable")[:, :_NEIGHBOURS]
    return float((nearest < members_).mean())


def _model(stage: Stage, trial: Trial, store: Store | None, progress: Progress) -> Any:
    """Return the model that forgot by the trial's row; the method did not see the references that oracles judge.

    With references a method sees none of those samples anyway, so the model of the trial of FR will do.
    """
    plain = dataclasses.replace(trial, kind="forget", settings={})
    if store is not None and trial.row == REFERENCES:
        known = store.get(_facts(stage, plain), lambda: build(stage.scenario.network, stage.scenario.given))
        if known is not None:
            return known.model.to(trial.device)
    return forgotten(stage, plain, progress, withhold=True).model


def _facts(stage: Stage, trial: Trial) -> dict[str, Any]:
    return {"unlearned": trial.facts(), "target": fingerprint(stage.target), "code": source_hash(PACKAGE)}


def _poison(stage: Stage, trial: Trial, store: Store | None, progress: Progress) -> Numbers:  # noqa: ARG001
    """Return accuracy and the recall of the poisoned class, and the share of what the poison cost that came back.

    `restored` is None where the poison cost 3 points of recall or less. SMU and SISA start from models of their own,
    and are compared with those.
    """
    found = forgotten(stage, trial, progress)
    after, start, goal = (_recall(model, stage.scenario) for model in (found.model, found.before, stage.retrained))
    cost = goal["recall"] - start["recall"]
    return (
        after
        | {
            "accuracy_before": start["accuracy"],
            "accuracy_loss": start["accuracy"] - after["accuracy"],
            "recall_before": start["recall"],
            "recall_retrained": goal["recall"],
            "restored": (after["recall"] - start["recall"]) / cost if cost > _COST else None,
            "retrain_seconds": stage.retrain_seconds,
        }
        | dict(found.numbers)
    )


def _recall(model: Any, scenario: Scenario) -> Numbers:
    """Return accuracy, recall of the poisoned class, and how many poisoned samples get their true label."""
    if scenario.truth is None:
        raise SettingsError(f"{scenario.name} has no poisoned labels; choose a scenario that poisons: poison-digits")
    labels, source = labels_of(scenario.test), int(scenario.truth[0])
    said, own = posteriors(model, scenario.test).argmax(1), labels == source
    return {
        "accuracy": float((said == labels).mean()),
        "recall": float((said[own] == source).mean()),
        "put_right": float((posteriors(model, scenario.forget).argmax(1) == source).mean()),
    }


def _truth(stage: Stage, trial: Trial, store: Store | None, progress: Progress) -> Numbers:
    """Return what an ensemble says: U-LiRA by sample and by request, KLoM and accuracies, each beside its floor."""
    models = _models(trial)
    matrices = _ensembles(stage, [trial], store).measure(progress=progress)
    floors = Floors.of(matrices, models, seed=stage.scenario.seed)
    found: Numbers = {"models": models}
    for number in Full(matrices, trial.row, seed=stage.scenario.seed, floors=floors).numbers():
        found[number.name] = number.value
        found |= {f"{number.name}_retrained": number.retrained, f"{number.name}_before": number.before}
        if number.floor is not None:
            found[f"{number.name}_floor"] = list(number.floor)
    return found


def _train_together(stage: Stage, trials: list[Trial], store: Store, progress: Progress) -> None:
    """Let the same originals forget by the methods of all these trials; each trial finds its part in the store.

    Nothing is kept of what estimators of scikit-learn answer, so that each trial fits its own.
    """
    if stage.scenario.network.name in ESTIMATORS:
        return
    for count in sorted({_models(trial) for trial in trials}):
        try:
            _ensembles(stage, [one for one in trials if _models(one) == count], store).measure(progress=progress)
        except Exception:  # noqa: BLE001, S112 (it costs its own trial alone, which meets the same error)
            continue


def _ensembles(stage: Stage, trials: list[Trial], store: Store | None) -> Ensembles:
    """Return the ensembles of trials with equally many models, each of which is a row of its own."""
    first = trials[0]
    methods, references, retains = {}, {}, {}
    for trial in trials:
        settings = {name: value for name, value in trial.settings.items() if name != "models"}
        methods[trial.row] = method_of(trial.row, settings_of(trial.scenario, trial.row) | settings)
        retains[trial.row] = stage.scenario.kept.rows(rows_given(stage, trial.row))
        plan = plan_of(trial.row, outsiders=stage.scenario.outsiders)
        if plan is not None:
            references[trial.row] = plan
    return Ensembles(
        inputs_of(stage.scenario, stage.target, first.device),
        methods,
        originals=_models(first),
        retrained=2 * _models(first),
        folder=None if store is None else store.folder / "ensembles",
        device=first.device,
        references=references,
        retains=retains,
    )


def _models(trial: Trial) -> int:
    return int(trial.settings.get("models", _MODELS))


def _exposure(stage: LanguageStage, trial: Trial, store: Store | None, progress: Progress) -> Numbers:  # noqa: ARG001
    """Return how exposed canaries are, and what extraction finds."""
    settings = settings_of(trial.scenario, trial.row) | dict(trial.settings)
    return exposure.measured(stage, trial.row, settings, progress)


def _worth(stage: WorthStage, trial: Trial, store: Store | None, progress: Progress) -> Numbers:  # noqa: ARG001
    """Return what references are worth, estimated and measured."""
    return worth.measured(stage, **trial.settings)


def _sequence(stage: SequenceStage, trial: Trial, store: Store | None, progress: Progress) -> Numbers:  # noqa: ARG001
    """Return what is found after 1, 5, 10 and 20 requests in a row."""
    return sequences.measured(stage, trial.row, **trial.settings, progress=progress)


def _accuracy(model: Any, samples: Samples) -> float:
    return float(correct(posteriors(model, samples), labels_of(samples)).mean())


def _loss(posterior: Array, labels: Array) -> float:
    """Return the mean cross-entropy."""
    own = posterior[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(own, _LEAST)).mean())


# What a kind needs to be trained, where that is not `staged`.
STAGES: dict[str, Callable[..., Any]] = {
    "exposure": exposure.staged,
    "sequence": sequences.staged,
    "worth": worth.staged,
}
KINDS: dict[str, Callable[[Any, Trial, Store | None, Progress], Numbers]] = {
    "exposure": _exposure,
    "forget": _forget,
    "picture": _picture,
    "poison": _poison,
    "sequence": _sequence,
    "truth": _truth,
    "white-box": _white_box,
    "worth": _worth,
}
