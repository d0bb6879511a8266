"""Federated unlearning on Flower: a client forgets in an ordinary round. It needs the extra `forsaken[federated]`."""

from __future__ import annotations

from importlib.util import find_spec

from forsaken.errors import SettingsError

if find_spec("flwr") is None:
    raise SettingsError(
        "Flower is not installed, which forsaken.federated needs", remedy="pip install 'forsaken[federated]'"
    )
