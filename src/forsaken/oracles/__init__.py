"""Who seems to be remembered: one file an oracle. HIGHER MEANS MEMBER, for every oracle."""

from forsaken.oracles.shadow import OracleReport, ShadowOracle
from forsaken.oracles.white_box import WhiteBoxOracle

__all__ = ["OracleReport", "ShadowOracle", "WhiteBoxOracle"]
