"""The audit of a method on a scenario: everything is trained here, so that only the name and the seed are asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from forsaken.auditing.audit import audit
from forsaken.auditing.held_out import HeldOut
from forsaken.auditing.inputs import AuditInputs
from forsaken.auditing.result import Audit, Profile
from forsaken.bench.networks import ESTIMATORS, fit, training_of
from forsaken.bench.scenarios.scenario import Scenario
from forsaken.bench.trial import Stage, prepare
from forsaken.data.samples import Samples
from forsaken.references.curvature import Curvature
from forsaken.references.table import References
from forsaken.types import Progress, silent
from forsaken.unlearning.base import Unlearner
from forsaken.unlearning.methods import build


def audit_scenario(
    name: str,
    method: str | Unlearner = "forsaken",
    *,
    profile: Profile = "full",
    models: int | None = None,
    seed: int = 0,
    folder: Path | None = None,
    engine: str = "local",
    device: str | torch.device = "cpu",
    references: HeldOut | None = None,
    progress: Progress = silent,
) -> Audit:
    """Train a scenario's target, make it forget, and audit the result.

    Parameters
    ----------
    name : str
        The scenario; the samples to forget, what is trained and how follow from it.
    method : str or Unlearner
        What makes the target forget.
    profile, models, folder, engine, device
        See `forsaken.audit`.
    references : HeldOut, optional
        How the references are made that the method goes by: those of the target, and of every original of "full".
    seed : int
        Decides the split, the trainings and every draw.
    """
    stage = prepare(name, seed, progress, device=device)
    sets, training = stage.scenario.sets(nonmembers=True), training_of(stage.scenario, device)
    chosen = build(method, {}, references=references is not None) if isinstance(method, str) else method
    result = chosen(
        stage.target,
        sets.forget,
        sets.reference,
        sets.retain,
        references=None if references is None else table_of(stage, references, device),
        training=training,
        seed=seed,
        progress=progress,
    )
    return audit(
        stage.target,
        result.model,
        sets.forget,
        profile=profile,
        kept=sets.kept,
        retain=sets.retain,
        test=sets.test,
        reference=sets.reference,
        nonmembers=sets.nonmembers,
        retrained=stage.retrained,
        oracle=stage.oracle,
        training=training,
        method=chosen,
        references=references,
        models=models,
        folder=folder,
        engine=engine,
        device=device,
        seed=seed,
        progress=progress,
    )


def table_of(stage: Stage, plan: HeldOut, device: str | torch.device) -> References:
    """Train the target's references, and return a table of what they say of the samples to forget."""
    inputs = inputs_of(stage.scenario, stage.target, device)
    curvature = Curvature.fit(stage.target, Samples(inputs.sets.train.inputs))
    return plan.tables(inputs, [inputs.seed], [stage.target], [curvature], device=device, tell=lambda _: None)[0]


def inputs_of(scenario: Scenario, target: object, device: str | torch.device = "cpu") -> AuditInputs:
    """Return what an ensemble on a scenario is about; the target stands in for a model that forgot."""
    sets = scenario.sets(nonmembers=True)
    sets = replace(sets, reference=Samples(sets.need("reference").inputs))  # without labels, as a user's come
    by_fit = scenario.network.name in ESTIMATORS
    training = (lambda data, seed: fit(scenario, data, seed=seed)) if by_fit else training_of(scenario, device)
    return AuditInputs(target, target, sets, training=training, seed=scenario.seed)
