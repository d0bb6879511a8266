"""Forsaken: make a trained classifier forget given samples, without retraining, and measure how well it did."""

from forsaken import errors, metrics
from forsaken.data.readers import read_records
from forsaken.data.records import Records
from forsaken.data.scenario import Scenario
from forsaken.data.scenarios.table import load_scenario
from forsaken.data.store import load_dataset
from forsaken.errors import ForsakenError
from forsaken.models.fit import fit
from forsaken.oracles.shadow import OracleReport, ShadowOracle
from forsaken.recipe import Network, Recipe
from forsaken.types import Tick
from forsaken.unlearning.base import Details, Step, Unlearned, Unlearner
from forsaken.unlearning.call import unlearn
from forsaken.unlearning.forsaken.mask import Mask
from forsaken.unlearning.forsaken.method import Forsaken
from forsaken.unlearning.table import METHODS

__version__ = "0.1.0"

__all__ = [
    "METHODS",
    "Details",
    "Forsaken",
    "ForsakenError",
    "Mask",
    "Network",
    "OracleReport",
    "Recipe",
    "Records",
    "Scenario",
    "ShadowOracle",
    "Step",
    "Tick",
    "Unlearned",
    "Unlearner",
    "errors",
    "fit",
    "load_dataset",
    "load_scenario",
    "metrics",
    "read_records",
    "unlearn",
]
