"""One trial: everything that is trained for a seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from forsaken.bench.networks import ESTIMATORS, build, fit
from forsaken.bench.scenarios.scenario import Scenario
from forsaken.bench.scenarios.table import load_scenario
from forsaken.bench.store import Store, Trained, clocked, content_hash
from forsaken.data.samples import Samples
from forsaken.oracles.base import OracleReport
from forsaken.oracles.shadow import ShadowOracle
from forsaken.provenance import PACKAGE, source_hash
from forsaken.types import Progress, silent


@dataclass(frozen=True, slots=True)
class Stage:
    """A scenario with its trained models: the target, the retrained one, and an oracle from the shadow."""

    scenario: Scenario
    target: nn.Module
    retrained: nn.Module
    oracle: ShadowOracle
    train_seconds: float
    retrain_seconds: float
    retrain_processor_seconds: float = 0.0

    def oracle_report(self) -> OracleReport:
        """Judge the oracle on the target, where the truth is known."""
        return self.oracle.evaluate(self.target, members=self.scenario.train, nonmembers=self.scenario.nonmembers)


def prepare(name: str, seed: int, progress: Progress = silent, *, device: str | torch.device = "cpu") -> Stage:
    """Load the scenario of a seed and train all that it needs."""
    return staged(load_scenario(name, seed=seed, progress=progress), progress, device=device)


def staged(
    scenario: Scenario,
    progress: Progress = silent,
    *,
    device: str | torch.device = "cpu",
    store: Store | None = None,
) -> Stage:
    """Train all that a scenario needs; networks that a store holds are not trained again."""
    seed = scenario.seed

    def trained(what: str, data: Samples, purpose: int) -> Trained:
        return train_or_load(
            scenario,
            data,
            seed=seed * 10 + purpose,
            device=device,
            store=store,
            progress=progress,
            stage=f"train the {what}",
        )

    target = trained("target", scenario.train, 1)
    shadow = trained("shadow", scenario.shadow_members, 2).model
    retrained = trained("retrained model", scenario.kept, 3)
    oracle = ShadowOracle.fit(shadow, members=scenario.shadow_members, nonmembers=scenario.shadow_nonmembers, seed=seed)
    return Stage(
        scenario=scenario,
        target=target.model,
        retrained=retrained.model,
        oracle=oracle,
        train_seconds=target.seconds,
        retrain_seconds=retrained.seconds,
        retrain_processor_seconds=retrained.processor_seconds,
    )


def train_or_load(
    scenario: Scenario,
    data: Samples,
    *,
    seed: int,
    device: str | torch.device = "cpu",
    store: Store | None = None,
    progress: Progress = silent,
    stage: str = "train",
) -> Trained:
    """Train the scenario's model on `data`, unless a store holds the network that such a training gives.

    Estimators of scikit-learn are fitted anew each time, which takes seconds.
    """

    def make() -> object:
        return fit(scenario, data, seed=seed, device=device, progress=progress, stage=stage)

    if store is None or scenario.network.name in ESTIMATORS:
        return clocked(make)
    facts = training_facts(scenario, data, device) | {"seed": seed}
    return store.trained(facts, lambda: build(scenario.network, scenario.given), make, device)


def training_facts(scenario: Scenario, data: Samples, device: str | torch.device) -> dict[str, Any]:
    """Return what decides the weights of a network that is trained on `data`, but for the seed."""
    return {
        "data": content_hash(data),
        "network": str(scenario.network),
        "given": [content_hash(Samples(tensor)) for _, tensor in sorted(scenario.given.items())],
        "recipe": scenario.recipe.to_dict(),
        "device": torch.device(device).type,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "code": _training_code(),
    }


@cache
def _training_code() -> str:
    """Return the hash of the code that decides the weights of a network beside its facts."""
    texts = [path.read_bytes() for path in (PACKAGE / "recipe.py", PACKAGE / "bench" / "networks.py")]
    return hashlib.sha256(source_hash(PACKAGE / "models").encode() + b"".join(texts)).hexdigest()
