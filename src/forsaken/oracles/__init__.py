"""Membership oracles: was a sample in the training data of a model? Higher scores mean member, for every oracle."""

from forsaken.oracles.base import OracleReport
from forsaken.oracles.shadow import ShadowOracle
from forsaken.oracles.white_box import WhiteBoxOracle

__all__ = ["OracleReport", "ShadowOracle", "WhiteBoxOracle"]
