"""Forsaken: make a trained classifier forget given samples, without retraining, and measure how well it did."""

from forsaken import errors, metrics
from forsaken.errors import ForsakenError
from forsaken.oracles.shadow import OracleReport, ShadowOracle
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
    "OracleReport",
    "ShadowOracle",
    "Step",
    "Tick",
    "Unlearned",
    "Unlearner",
    "errors",
    "metrics",
    "unlearn",
]
