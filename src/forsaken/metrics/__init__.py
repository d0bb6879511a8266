"""Pure functions of arrays: no torch, no files, no prints."""

from forsaken.metrics.arrays import margins
from forsaken.metrics.forgetting import catastrophic_forgetting_rate, forgetting_rate
from forsaken.metrics.intervals import bootstrap_interval, jackknife_intervals
from forsaken.metrics.klom import KlomFloor, klom, klom_floor, klom_summary
from forsaken.metrics.membership import lira, rmia
from forsaken.metrics.neurips import forgetting_epsilon, forgetting_quality, neurips_score
from forsaken.metrics.normals import likelihood_ratio_auc
from forsaken.metrics.roc import Roc, caught, roc, separation, tpr_at
from forsaken.metrics.ulira import (
    FEW,
    Floor,
    RequestFloor,
    ULira,
    ULiraIntervals,
    at_floor,
    request_floor,
    request_interval,
    request_u_lira,
    smallest_shift,
    u_lira,
    u_lira_floor,
    u_lira_intervals,
)

__all__ = [
    "FEW",
    "Floor",
    "KlomFloor",
    "RequestFloor",
    "Roc",
    "ULira",
    "ULiraIntervals",
    "at_floor",
    "bootstrap_interval",
    "catastrophic_forgetting_rate",
    "caught",
    "forgetting_epsilon",
    "forgetting_quality",
    "forgetting_rate",
    "jackknife_intervals",
    "klom",
    "klom_floor",
    "klom_summary",
    "likelihood_ratio_auc",
    "lira",
    "margins",
    "neurips_score",
    "request_floor",
    "request_interval",
    "request_u_lira",
    "rmia",
    "roc",
    "separation",
    "smallest_shift",
    "tpr_at",
    "u_lira",
    "u_lira_floor",
    "u_lira_intervals",
]
