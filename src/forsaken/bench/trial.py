"""One trial: everything that is trained for a seed, and how a model that forgot is judged beside it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from forsaken.data.samples import Samples
from forsaken.data.scenario import Scenario
from forsaken.data.scenarios.table import load_scenario
from forsaken.errors import UndefinedMetricError
from forsaken.metrics import catastrophic_forgetting_rate, forgetting_rate
from forsaken.models.fit import fit
from forsaken.models.logits import posteriors
from forsaken.oracles.shadow import OracleReport, ShadowOracle
from forsaken.types import Progress, silent

Array = np.ndarray[Any, Any]


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
class Verdict:
    """What an oracle and a test set say of one model. The retrained model's verdict belongs beside it.

    Attributes
    ----------
    fr : float or None
        Forgetting rate on the forget set; compare with the retrained model's. None where nothing was memorised.
    cfr : float or None
        Catastrophic forgetting rate on kept training samples that no method used; lower is better.
    accuracy : float
        On the test set.
    confidence : float
        The mean largest posterior of the forget samples; compare with the retrained model's.
    """

    fr: float | None
    cfr: float | None
    accuracy: float
    confidence: float

    def to_dict(self) -> dict[str, float | None]:
        """Return the numbers by name."""
        return asdict(self)


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

    def judge(self, view: View) -> Verdict:
        """Judge a model by its posteriors."""
        oracle, before = self.oracle, self.before
        labels = _labels(self.scenario.test)
        return Verdict(
            fr=_defined(forgetting_rate, _members(oracle, before.forget), _members(oracle, view.forget)),
            cfr=_defined(catastrophic_forgetting_rate, _members(oracle, before.kept), _members(oracle, view.kept)),
            accuracy=float(np.mean(view.test.argmax(1) == labels)),
            confidence=float(view.forget.max(1).mean()),
        )

    def oracle_report(self) -> OracleReport:
        """Judge the oracle on the target, where the truth is known."""
        return self.oracle.evaluate(self.target, members=self.scenario.train, nonmembers=self.scenario.nonmembers)

    @property
    def memorised(self) -> int:
        """BT: how many forget samples the oracle takes for members before."""
        return int(_members(self.oracle, self.before.forget).sum())


def prepare(name: str, seed: int, progress: Progress = silent, *, device: str | torch.device = "cpu") -> Stage:
    """Load the scenario of a seed and train all that it needs."""
    scenario = load_scenario(name, seed=seed, progress=progress)

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


def _defined(rate: Callable[[Array, Array], float], before: Array, after: Array) -> float | None:
    try:
        return rate(before, after)
    except UndefinedMetricError:  # nothing was memorised: no number, rather than one that means nothing
        return None


def _members(oracle: ShadowOracle, posterior: Array) -> Array:
    return oracle.score_posteriors(posterior) > oracle.threshold


def _labels(samples: Samples) -> Array:
    return samples.labels.numpy() if samples.labels is not None else np.empty(0)
