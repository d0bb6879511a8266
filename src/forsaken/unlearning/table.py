"""Every unlearning method by name."""

from __future__ import annotations

from typing import Any

from forsaken.errors import UnknownNameError
from forsaken.unlearning.base import Unlearner
from forsaken.unlearning.forsaken.method import Forsaken

METHODS: dict[str, type[Unlearner]] = {"forsaken": Forsaken}


def build(name: str, settings: dict[str, Any]) -> Unlearner:
    """Return the method called `name` with these settings."""
    if not isinstance(name, str) or name not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    return METHODS[name](**settings)
