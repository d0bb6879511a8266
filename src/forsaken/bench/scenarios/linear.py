"""Scenarios for linear models: what they read in place of token sequences."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from forsaken.bench.scenarios.plan import Plan
from forsaken.errors import SettingsError, UnknownNameError
from forsaken.recipe import Network

# What a linear model reads instead of token sequences (Table expansion).
_LINEAR_WORDS = 5_000
LINEAR = ("logistic-regression", "svm")


def linear_plan(plan: Plan, model: str) -> Plan:
    """Return the plan of a scenario with a linear model in place of its network."""
    if model not in LINEAR:
        raise UnknownNameError("model", model, LINEAR)
    if plan.network.name not in ("mlp", "news-convolutions", "text-convolutions"):
        kind = "sequences of words" if plan.network.name == "language-model" else "pictures"
        raise SettingsError(f"{model} is for topics of texts and digits, and {plan.name} has {kind}; leave model out")
    options: Mapping[str, Any] = plan.options
    if "length" in options:
        options = {key: value for key, value in options.items() if key not in ("length", "dimensions", "window")}
        options = {**options, "words": _LINEAR_WORDS}
    return dataclasses.replace(plan, network=Network(model), options=options)
