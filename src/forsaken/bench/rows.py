"""The rows of the benchmarks: a method, what it is given, and how it makes a scenario's target forget."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from forsaken._random import Purpose, generator
from forsaken.auditing.held_out import HeldOut
from forsaken.bench.audit import table_of
from forsaken.bench.networks import fit, training_of
from forsaken.bench.scenarios.scenario import Rows
from forsaken.bench.store import Trained, clocked
from forsaken.bench.trial import Stage
from forsaken.data.samples import Samples, join
from forsaken.errors import UnknownNameError
from forsaken.references.curvature import Curvature
from forsaken.references.suspects import rank_suspects
from forsaken.references.table import References
from forsaken.types import Progress, silent
from forsaken.unlearning.base import Unlearner, UpfrontUnlearner
from forsaken.unlearning.forsaken.method import Forsaken
from forsaken.unlearning.methods import build

FOLDS = 4  # of a table of references, drawn before anybody knows what will be forgotten
BEFORE, RETRAINED, REFERENCES, DEFAULT, PAPER = "before", "retrained", "references", "forsaken", "paper"
_MANY = 1000


Preset = Literal[
    "default", "paper", "curvature", "corrected", "corrected-paper", "out-of-fold", "grouped", "suspects", "matched"
]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the tables.

    Attributes
    ----------
    label : str
        Its name for people.
    method : str
        A name of `forsaken.METHODS`; empty for the model before and the retrained one.
    preset : str
        For Forsaken: "default", "paper" (`Forsaken.paper`), "curvature" (the default with a curvature of the training
        data, whose pass is timed apart), "corrected" (the samples' true labels are known), "corrected-paper" (the
        same by the paper's settings), or with references: "out-of-fold" (folds drawn before the request is known),
        "grouped" (all forgotten samples in one fold, which must be known beforehand) or "suspects" (nobody says which
        samples: those whose labels look wrong by the references); of a language model "matched" (each canary gets the
        answers on an unused one).
    retain : str
        Which kept samples the method gets: "few" (the scenario's 1 %), "many" (1,000, or where that is less half of
        them, with references a tenth) or "all".
    tuned : bool
        Whether its settings were chosen on other seeds (`TUNED`).
    """

    label: str
    method: str = "forsaken"
    preset: Preset = "default"
    retain: Literal["few", "many", "all"] = "few"
    tuned: bool = False


_PEERS = ("fine-tune", "gradient-ascent", "neggrad-plus", "l1-sparse", "salun", "scrub", "ssd", "bad-teacher")
_ON_CONVOLUTIONS = ("msg", "ct")
# What a user can have comes first, then the yardsticks, then the others.
ROWS: dict[str, Row] = {
    REFERENCES: Row(f"Forsaken with references (K = {FOLDS})", preset="out-of-fold", retain="many"),
    DEFAULT: Row("Forsaken without references (1 % retained)"),
    "forsaken-1000": Row("Forsaken without references (1,000 retained)", retain="many"),
    "forsaken-curvature": Row("Forsaken without references, by one pass over the training data", preset="curvature"),
    PAPER: Row("the paper's settings", preset="paper"),
    "suspects": Row("Forsaken with references, the suspects", preset="suspects", retain="many"),
    "grouped": Row("Forsaken with references, one fold (upper bound)", preset="grouped", retain="many"),
    "corrected": Row("Forsaken to the true labels", preset="corrected"),
    "corrected-paper": Row("the paper's settings to the true labels", preset="corrected-paper"),
    "matched": Row("Forsaken by the curvature, targets from unused canaries", preset="matched", tuned=True),
    "matched-anchors": Row("Forsaken by anchors, targets from unused canaries", preset="matched", tuned=True),
    RETRAINED: Row("retrained", ""),
    "relabelled": Row("retrained with the true labels", ""),
    BEFORE: Row("before", ""),
    "fold-models": Row("the references themselves", ""),
    "smu": Row("SMU", "smu", retain="all", tuned=True),
    "sisa": Row("SISA", "sisa", retain="all"),
    "sisa-dp": Row("SISA-DP", "sisa-dp", retain="all"),
    "sisa-dp-sgd": Row("SISA-DP (DP-SGD)", "sisa-dp-sgd", retain="all", tuned=True),
    **{name: Row(name, name, tuned=True) for name in (*_PEERS, *_ON_CONVOLUTIONS)},
    **{
        f"{name}-all": Row(f"{name} (all kept data)", name, retain="all", tuned=True)
        for name in (*_PEERS, *_ON_CONVOLUTIONS)
        if name != "gradient-ascent"
    },
}
PEERS = tuple(name for name in ROWS if ROWS[name].method in (*_PEERS, *_ON_CONVOLUTIONS))

# Chosen on seeds 100 and 101 by how near a method comes to the retrained model (`tuning`), and for
# the poison on seed 100 by the sum of accuracy and recall. A method that a task has no entry for takes Reuters'.
# `alpha` of ssd is a share of the largest ratio that any weight can have, 1 / (D's share of the training data).
_REUTERS: dict[str, dict[str, Any]] = {
    "gradient-ascent": {"learning_rate": 0.02, "epochs": 5},
    "smu": {"learning_rate": 0.003},
    "sisa-dp-sgd": {"rate": 0.1},
    "fine-tune": {"learning_rate": 0.1, "epochs": 50},
    "neggrad-plus": {"learning_rate": 0.1, "alpha": 0.8, "epochs": 5},
    "l1-sparse": {"learning_rate": 0.1, "gamma": 0.01, "epochs": 5},
    "salun": {"learning_rate": 0.0001, "epochs": 50},
    "scrub": {"learning_rate": 0.03, "epochs": 50},
    "ssd": {"alpha": 0.98, "damping": 5.0},
    "bad-teacher": {"learning_rate": 0.0001, "epochs": 50},
    "msg": {"learning_rate": 0.01, "epochs": 50},
    "ct": {"learning_rate": 0.003, "epochs": 50},
    "fine-tune-all": {"learning_rate": 0.1},
    "neggrad-plus-all": {"learning_rate": 0.03, "alpha": 0.95},
    "l1-sparse-all": {"learning_rate": 0.1, "gamma": 1e-5},
    "salun-all": {"learning_rate": 0.01},
    "scrub-all": {"learning_rate": 0.03},
    "ssd-all": {"alpha": 0.95, "damping": 2.0},
    "bad-teacher-all": {"learning_rate": 0.1},
    "msg-all": {"learning_rate": 0.03},
    "ct-all": {"learning_rate": 0.003},
}
TUNED: dict[str, dict[str, dict[str, Any]]] = {
    # Chosen by a longer grid than `_REUTERS`, which other tasks were measured by.
    "reuters": _REUTERS | {"ssd": {"alpha": 0.9995, "damping": 10.0}},
    "digits": {
        "gradient-ascent": {"learning_rate": 0.03, "epochs": 50},
        "smu": {"learning_rate": 0.03},
        "sisa-dp-sgd": {"rate": 3.0},
        "fine-tune": {"learning_rate": 0.3, "epochs": 50},
        "neggrad-plus": {"learning_rate": 0.3, "alpha": 0.95, "epochs": 50},
        "l1-sparse": {"learning_rate": 1.0, "gamma": 0.001, "epochs": 5},
        "salun": {"learning_rate": 0.0003, "epochs": 50},
        "scrub": {"learning_rate": 0.3, "epochs": 50},
        "ssd": {"alpha": 0.99, "damping": 10.0},
        "bad-teacher": {"learning_rate": 0.01, "epochs": 5},
        "fine-tune-all": {"learning_rate": 0.3},
        "neggrad-plus-all": {"learning_rate": 0.3, "alpha": 0.8},
        "l1-sparse-all": {"learning_rate": 0.1, "gamma": 0.0001},
        "salun-all": {"learning_rate": 0.0003},
        "scrub-all": {"learning_rate": 0.3},
        "ssd-all": {"alpha": 0.95, "damping": 5.0},
        "bad-teacher-all": {"learning_rate": 0.0003},
    },
    "i-c": {
        "salun": {"learning_rate": 0.0001, "epochs": 50},
        "salun-all": {"learning_rate": 0.001},
        "neggrad-plus": {"learning_rate": 0.03, "epochs": 50},
        "neggrad-plus-all": {"learning_rate": 0.01},
        "scrub": {"learning_rate": 0.003, "epochs": 50},
        "scrub-all": {"learning_rate": 0.03},
    },
    "news": {
        "salun": {"learning_rate": 0.0001},
        "salun-all": {"learning_rate": 0.001},
        "neggrad-plus": {"learning_rate": 0.01},
        "neggrad-plus-all": {"learning_rate": 0.01},
        "scrub": {"learning_rate": 0.003, "epochs": 50},
        "scrub-all": {"learning_rate": 0.003},
    },
    "poison-digits": {
        "smu": {"learning_rate": 0.0001},
        "fine-tune-all": {"learning_rate": 0.1},
        "neggrad-plus-all": {"learning_rate": 0.1},
        "scrub-all": {"learning_rate": 0.3},
        "ssd-all": {"alpha": 0.6},
    },
    "poison": {
        "smu": {"learning_rate": 0.01},
        "fine-tune-all": {"learning_rate": 0.01},
        "neggrad-plus-all": {"learning_rate": 0.003},
        "scrub-all": {"learning_rate": 0.003},
        "ssd-all": {"alpha": 0.1},
    },
    "c10": {
        "salun": {"learning_rate": 0.0001},
        "neggrad-plus": {"learning_rate": 0.01},
        "scrub": {"learning_rate": 0.003, "epochs": 50},
    },
    "ptb-canaries": {
        "matched": {"optimiser": "gauss-newton", "batch_size": 4096, "damping": 0.3, "rounds": 10, "steps": 20},
        "matched-anchors": {"optimiser": "owlqn", "batch_size": 4096, "iterations": 40},
        "gradient-ascent": {},
        "fine-tune": {},
    },
}
_SAME_TUNING = {"imdb": "i-c", "cifar": "c10", "tiny": "c10", "t100": "c10", "c100": "c10"}
_FEW_SLICES = {"slices": 10}  # digits have 54 samples a shard: too few for 100 slices


def row_named(name: str) -> Row:
    """Return a row by name."""
    if name not in ROWS:
        raise UnknownNameError("row", name, ROWS)
    return ROWS[name]


def settings_of(scenario: str, name: str) -> dict[str, Any]:
    """Return the settings of a row on a scenario, as they were chosen on other seeds; empty for defaults."""
    row, found = row_named(name), {}
    if row.tuned:
        start = next((own for own in (*TUNED, *_SAME_TUNING) if scenario.startswith(own)), "reuters")
        found = TUNED[_SAME_TUNING.get(start, start)].get(name, _REUTERS.get(name, {}))
    if row.method.startswith("sisa") and scenario.startswith(("digits", "poison-digits")):
        found = found | _FEW_SLICES
    return dict(found)


def method_of(name: str, settings: Mapping[str, Any]) -> Unlearner:
    """Return the method of a row; `rate` changes a training and no method."""
    row, settings = row_named(name), {key: value for key, value in settings.items() if key != "rate"}
    if row.method != "forsaken":
        return build(row.method or "do-nothing", settings)
    if row.preset.startswith("corrected"):
        settings = {"target": "corrected", **settings}
    if row.preset in ("paper", "corrected-paper"):
        return Forsaken.paper(**settings)
    plain = row.preset in ("default", "curvature", "corrected", "matched")
    return Forsaken(**settings) if plain else Forsaken.out_of_fold(**settings)


def plan_of(name: str, *, outsiders: bool) -> HeldOut | None:
    """Return how the references of a row are made; None for a row without any.

    Strangers come from one source, which is one group of the folds; rows of the task are drawn one by one.
    """
    preset = row_named(name).preset
    if preset not in ("out-of-fold", "grouped"):
        return None
    return HeldOut(FOLDS, "forgotten" if outsiders or preset == "grouped" else "row")


@dataclass(frozen=True, slots=True)
class Outcome:
    """A model that forgot by one row.

    Attributes
    ----------
    model : object
        The new model.
    before : object
        The model that the method started from: the target, or one that it trained in its own way.
    used : array
        The rows of the kept samples on which no collateral damage is measured, since the method was given them; where
        it was given all of them, the scenario's retain samples.
    numbers : mapping
        Seconds and the like; `seconds` is the request alone, what must be there before it is told apart.
    """

    model: Any
    before: Any
    used: Rows
    numbers: Mapping[str, Any] = field(default_factory=dict)


def forget(
    stage: Stage,
    name: str,
    settings: Mapping[str, Any],
    *,
    device: str | torch.device = "cpu",
    withhold: bool = False,
    progress: Progress = silent,
) -> Outcome:
    """Make the target of a stage forget by a row.

    Parameters
    ----------
    stage : Stage
        A scenario with its trained models.
    name : str
        A name of `ROWS`.
    settings : mapping
        Every setting of the method that is not its default.
    device : str or device
        Where methods train, if they do.
    withhold : bool
        Whether as many references as there are forgotten samples are kept from the method, for oracles to judge.
    progress : callable
        Called while the method works.
    """
    row, scenario, seed = row_named(name), stage.scenario, stage.scenario.seed
    if name == BEFORE:
        return Outcome(stage.target, stage.target, scenario.retain_rows, {"seconds": 0.0, "density": 0.0})
    if name == RETRAINED:
        times = {"seconds": stage.retrain_seconds, "processor_seconds": stage.retrain_processor_seconds}
        return Outcome(stage.retrained, stage.target, scenario.retain_rows, times)
    if name == "relabelled":
        data = join([scenario.kept, scenario.corrected])
        own = clocked(lambda: fit(scenario, data, seed=seed * 10 + 4, device=device, progress=progress))
        times = {"seconds": own.seconds, "processor_seconds": own.processor_seconds}
        return Outcome(own.model, stage.target, scenario.retain_rows, times)
    used = rows_given(stage, name)
    if row.method != "forsaken":
        return _others(stage, row, dict(settings), used, device, progress)
    if row.preset in ("out-of-fold", "grouped", "suspects"):
        plan = plan_of(name, outsiders=scenario.outsiders)
        return _with_references(stage, plan, settings, used, device, progress)
    reference = scenario.sets(nonmembers=True).reference if withhold else scenario.reference
    method, curvature, more = method_of(name, settings), None, {}
    samples = scenario.corrected if row.preset.startswith("corrected") else scenario.forget
    if row.preset in ("curvature", "corrected"):
        passed = clocked(lambda: Curvature.fit(stage.target, Samples(scenario.train.inputs)))
        curvature, more = passed.model, {"curvature_seconds": passed.seconds}
    found = clocked(
        lambda: method(
            stage.target,
            samples,
            reference,
            scenario.kept.rows(used),
            curvature=curvature,
            seed=seed,
            progress=progress,
        )
    )
    return Outcome(found.model.model, stage.target, used, _told(found) | more)


def _with_references(
    stage: Stage,
    plan: HeldOut | None,
    settings: Mapping[str, Any],
    used: Rows,
    device: str | torch.device,
    progress: Progress,
) -> Outcome:
    """Forget by a table of references: the samples of the request or, without a `plan`, those that look mislabelled.

    Taking their share out of the curvature afterwards is part of the time.
    """
    scenario, seed, more = stage.scenario, stage.scenario.seed, {}
    samples = Samples(scenario.forget.inputs)
    if plan is None:
        training = training_of(scenario, device)
        table = References.fit(training, scenario.train, FOLDS, seed=seed * 10 + 5, model=stage.target)
        first = rank_suspects(table, scenario.train).rows[: len(scenario.forget)]
        more = {"precision": float((first >= len(scenario.kept)).mean())}  # `train` ends with the forget samples
        samples, used = Samples(scenario.train.rows(first).inputs), used[~np.isin(used, first)]
    else:
        table = table_of(stage, plan, device)
    method, retain = Forsaken.out_of_fold(**settings), Samples(scenario.kept.rows(used).inputs)
    found = clocked(lambda: method(stage.target, samples, None, retain, references=table, seed=seed, progress=progress))
    curvature = table.curvature
    if curvature is not None:
        moments = clocked(lambda: curvature.without(stage.target, found.model.model, samples))
        more |= {"moments_seconds": moments.seconds}
        found = dataclasses.replace(found, processor_seconds=found.processor_seconds + moments.processor_seconds)
    told = _told(found) | {"table_trainings": FOLDS} | more
    told["seconds"] += told.get("moments_seconds", 0.0)
    return Outcome(found.model.model, stage.target, used, told)


def rows_given(stage: Stage, name: str) -> Rows:
    """Return which of the kept rows the method of a row gets."""
    row, kept = row_named(name), len(stage.scenario.kept)
    if row.retain == "all":
        return np.arange(kept)
    if row.retain == "few":
        return stage.scenario.retain_rows
    mixed = generator(stage.scenario.seed, Purpose.SCENARIO_RETAIN).permutation(kept)
    # What a job draws for a request with references is a tenth at most.
    return np.asarray(mixed[: min(_MANY, kept // (2 if row.preset == "default" else 10))])


def _told(found: Trained) -> dict[str, Any]:
    """Return what a method reports of its run."""
    result = found.model
    passes = result.details.facts.get("sample_passes")
    return {
        "seconds": result.seconds,
        "processor_seconds": found.processor_seconds,
        "density": result.density,
        "iterations": result.iterations,
        "evaluations": result.evaluations,
        "stopped": result.stopped,
        **({} if passes is None else {"sample_passes": passes}),
    }


def _others(
    stage: Stage, row: Row, settings: dict[str, Any], used: Rows, device: str | torch.device, progress: Progress
) -> Outcome:
    """Run a method that is not Forsaken; SMU and SISA first train a model in their own way."""
    scenario, seed = stage.scenario, stage.scenario.seed
    training = training_of(scenario, device)
    if row.method == "ssd":
        largest = len(scenario.train) / len(scenario.forget)
        settings |= {"alpha": settings["alpha"] * largest, "training_samples": len(scenario.train)}
    if "rate" in settings:
        rate = training.recipe.learning_rate * settings.pop("rate")
        training = dataclasses.replace(training, recipe=dataclasses.replace(training.recipe, learning_rate=rate))
    method, model, cost = build(row.method, settings), stage.target, {}
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(method, UpfrontUnlearner):
            watched = torch.arange(len(scenario.kept), len(scenario.train))
            ready = method.prepare(
                training, scenario.train, seed=seed * 10 + 1, folder=Path(folder), watched=watched, progress=progress
            )
            model, cost = ready.model, {f"upfront_{key}": value for key, value in ready.cost.to_dict().items()}
        found = clocked(
            lambda: method(
                model,
                scenario.forget,
                scenario.reference,
                scenario.kept.rows(used),
                training=training,
                seed=seed * 10 + 3,
                progress=progress,
            )
        )
    # A method that gets all kept data leaves none that it did not see: its CFR is measured on what it was trained on.
    unseen = stage.scenario.retain_rows if row.retain == "all" else used
    return Outcome(found.model.model, model, unseen, _told(found) | cost)
