"""Experiments: a scenario, a target, a shadow, an oracle, a retrained model, and methods judged side by side."""
