"""Pure functions of arrays: no torch, no files, no prints."""

from forsaken.metrics.forgetting import catastrophic_forgetting_rate, forgetting_rate
from forsaken.metrics.separation import separation

__all__ = ["catastrophic_forgetting_rate", "forgetting_rate", "separation"]
