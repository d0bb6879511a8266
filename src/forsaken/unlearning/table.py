"""Every unlearning method by name."""

from __future__ import annotations

from typing import Any

from forsaken.errors import SettingsError, UnknownNameError
from forsaken.unlearning.base import Unlearner
from forsaken.unlearning.forsaken.method import Forsaken

METHODS: dict[str, type[Unlearner]] = {"forsaken": Forsaken}


def build(name: str, settings: dict[str, Any]) -> Unlearner:
    """Return the method called `name` with these settings."""
    if not isinstance(name, str) or name not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    kind = METHODS[name]
    known = getattr(kind, "__dataclass_fields__", {})
    for setting in settings:
        if setting not in known:
            raise UnknownNameError(f"setting of {name}", setting, known)
    try:
        return kind(**settings)
    except TypeError as error:
        raise SettingsError(f"{name}: {error}") from error
