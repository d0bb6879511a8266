"""One trial: everything that is trained for a seed, and how a model that forgot is judged beside it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import nn

from forsaken.auditing.judgement import Rates, members, rates
from forsaken.bench.networks import fit
from forsaken.bench.scenarios.scenario import Scenario
from forsaken.bench.scenarios.table import load_scenario
from forsaken.data.samples import Samples
from forsaken.models.logits import posteriors
from forsaken.oracles.base import OracleReport
from forsaken.oracles.shadow import ShadowOracle
from forsaken.types import Array, Progress, silent


@dataclass(frozen=True, slots=True)
class View:
    """The posteriors of one model on the sets that matter, in float64."""

    forget: Array
    kept: Array
    test: Array

    @classmethod
    def of(cls, model: object, scenario: Scenario) -> View:
        """Look at a model."""
        return cls(
            posteriors(model, scenario.forget),
            posteriors(model, scenario.unseen_kept),
            posteriors(model, scenario.test),
        )


@dataclass(frozen=True, slots=True)
class Stage:
    """A scenario with its trained models: the target, the retrained one, and an oracle from the shadow."""

    scenario: Scenario
    target: nn.Module
    retrained: nn.Module
    oracle: ShadowOracle
    train_seconds: float
    retrain_seconds: float
    before: View

    def judge(self, view: View) -> Rates:
        """Judge a model by its posteriors."""
        return rates(self.oracle, asdict(self.before), asdict(view), _labels(self.scenario.test))

    def oracle_report(self) -> OracleReport:
        """Judge the oracle on the target, where the truth is known."""
        return self.oracle.evaluate(self.target, members=self.scenario.train, nonmembers=self.scenario.nonmembers)

    @property
    def memorised(self) -> int:
        """BT: how many forget samples the oracle takes for members before."""
        return int(members(self.oracle, self.before.forget).sum())


def prepare(name: str, seed: int, progress: Progress = silent, *, device: str | torch.device = "cpu") -> Stage:
    """Load the scenario of a seed and train all that it needs."""
    return staged(load_scenario(name, seed=seed, progress=progress), progress, device=device)


def staged(scenario: Scenario, progress: Progress = silent, *, device: str | torch.device = "cpu") -> Stage:
    """Train all that a scenario needs."""
    seed = scenario.seed

    def trained(what: str, data: Samples, purpose: int) -> tuple[nn.Module, float]:
        start = time.perf_counter()
        model = fit(
            scenario, data, seed=seed * 10 + purpose, device=device, progress=progress, stage=f"train the {what}"
        )
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a GPU goes on after the call that asked it to work has returned
        return model, time.perf_counter() - start

    target, train_seconds = trained("target", scenario.train, 1)
    shadow, _ = trained("shadow", scenario.shadow_members, 2)
    retrained, retrain_seconds = trained("retrained model", scenario.kept, 3)
    oracle = ShadowOracle.fit(shadow, members=scenario.shadow_members, nonmembers=scenario.shadow_nonmembers, seed=seed)
    before = View.of(target, scenario)
    return Stage(scenario, target, retrained, oracle, train_seconds, retrain_seconds, before)


def _labels(samples: Samples) -> Array:
    return samples.labels.numpy() if samples.labels is not None else np.empty(0)
