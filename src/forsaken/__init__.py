"""Forsaken: make a trained classifier forget given samples, without retraining, and measure how well it did."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forsaken import errors, metrics
    from forsaken.auditing.audit import audit
    from forsaken.auditing.exposure import CanaryFormat, exposure, extract
    from forsaken.auditing.result import Audit
    from forsaken.bench.datasets.store import load_dataset
    from forsaken.bench.networks import fit
    from forsaken.bench.scenarios.scenario import Scenario
    from forsaken.bench.scenarios.table import load_scenario
    from forsaken.data.readers import read_records
    from forsaken.data.records import Records
    from forsaken.errors import ForsakenError
    from forsaken.models.sequences import causal, matched_targets, positions
    from forsaken.models.train import Training
    from forsaken.oracles.base import OracleReport
    from forsaken.oracles.sequences import SequenceOracle
    from forsaken.oracles.shadow import ShadowOracle
    from forsaken.oracles.white_box import WhiteBoxOracle
    from forsaken.recipe import Network, Recipe
    from forsaken.references.curvature import Curvature
    from forsaken.references.suspects import rank_suspects
    from forsaken.references.table import References
    from forsaken.result import Step
    from forsaken.types import Tick
    from forsaken.unlearning.base import Details, Unlearned, Unlearner
    from forsaken.unlearning.forsaken.gauss_newton import Solver
    from forsaken.unlearning.forsaken.importance import Scaling
    from forsaken.unlearning.forsaken.mask import Mask
    from forsaken.unlearning.forsaken.method import Forsaken
    from forsaken.unlearning.forsaken.objective import Anchors
    from forsaken.unlearning.forsaken.optimisers import Schedule
    from forsaken.unlearning.methods import METHODS, unlearn

__version__ = "0.1.0"

# Where each public name lives. It is imported when it is first asked for, so that what needs no torch (help, shell
# completion, job files) does not wait for it.
_HOMES = {
    "METHODS": "unlearning.methods",
    "Anchors": "unlearning.forsaken.objective",
    "Audit": "auditing.result",
    "CanaryFormat": "auditing.exposure",
    "Curvature": "references.curvature",
    "Details": "unlearning.base",
    "Forsaken": "unlearning.forsaken.method",
    "ForsakenError": "errors",
    "Mask": "unlearning.forsaken.mask",
    "Network": "recipe",
    "OracleReport": "oracles.base",
    "Recipe": "recipe",
    "Records": "data.records",
    "References": "references.table",
    "Scaling": "unlearning.forsaken.importance",
    "Scenario": "bench.scenarios.scenario",
    "Schedule": "unlearning.forsaken.optimisers",
    "SequenceOracle": "oracles.sequences",
    "ShadowOracle": "oracles.shadow",
    "Solver": "unlearning.forsaken.gauss_newton",
    "Step": "result",
    "Tick": "types",
    "Training": "models.train",
    "Unlearned": "unlearning.base",
    "Unlearner": "unlearning.base",
    "WhiteBoxOracle": "oracles.white_box",
    "audit": "auditing.audit",
    "causal": "models.sequences",
    "errors": "",
    "exposure": "auditing.exposure",
    "extract": "auditing.exposure",
    "fit": "bench.networks",
    "load_dataset": "bench.datasets.store",
    "load_scenario": "bench.scenarios.table",
    "matched_targets": "models.sequences",
    "metrics": "",
    "positions": "models.sequences",
    "rank_suspects": "references.suspects",
    "read_records": "data.readers",
    "unlearn": "unlearning.methods",
}

__all__ = [
    "METHODS",
    "Anchors",
    "Audit",
    "CanaryFormat",
    "Curvature",
    "Details",
    "Forsaken",
    "ForsakenError",
    "Mask",
    "Network",
    "OracleReport",
    "Recipe",
    "Records",
    "References",
    "Scaling",
    "Scenario",
    "Schedule",
    "SequenceOracle",
    "ShadowOracle",
    "Solver",
    "Step",
    "Tick",
    "Training",
    "Unlearned",
    "Unlearner",
    "WhiteBoxOracle",
    "audit",
    "causal",
    "errors",
    "exposure",
    "extract",
    "fit",
    "load_dataset",
    "load_scenario",
    "matched_targets",
    "metrics",
    "positions",
    "rank_suspects",
    "read_records",
    "unlearn",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'forsaken' has no attribute {name!r}")
    home = _HOMES[name]
    value = getattr(import_module(f"forsaken.{home}"), name) if home else import_module(f"forsaken.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
