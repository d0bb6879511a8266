"""Who seems to be remembered: one file an oracle. HIGHER MEANS MEMBER, for every oracle."""

from forsaken.oracles.base import OracleReport
from forsaken.oracles.shadow import ShadowOracle
from forsaken.oracles.white_box import WhiteBoxOracle

__all__ = ["OracleReport", "ShadowOracle", "WhiteBoxOracle"]
