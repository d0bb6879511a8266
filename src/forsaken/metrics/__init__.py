"""Pure functions of arrays: no torch, no files, no prints."""

from forsaken.metrics.forgetting import catastrophic_forgetting_rate, forgetting_rate

__all__ = ["catastrophic_forgetting_rate", "forgetting_rate"]
