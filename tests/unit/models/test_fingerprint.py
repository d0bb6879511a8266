"""The fingerprint of weights: computed by hand, the same on one thread and on many, and different for any change."""

from __future__ import annotations

import hashlib

import pytest
import torch
from torch import nn

from forsaken.models import weights
from forsaken.models.weights import fingerprint


def network() -> nn.Module:
    torch.manual_seed(0)
    found = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))
    found.register_buffer("empty", torch.empty(0))
    return found


def test_by_hand() -> None:
    model, lines = network(), ""
    for name, value in sorted(model.state_dict().items()):
        own = hashlib.sha256(value.numpy().tobytes()).hexdigest()
        lines += f"{name} {value.dtype} {tuple(value.shape)} {own}\n"
    assert fingerprint(model) == hashlib.sha256(lines.encode()).hexdigest()


def test_many_threads_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network()
    alone = fingerprint(model)
    monkeypatch.setattr(weights, "_LARGE", 0)
    assert fingerprint(model) == alone


@pytest.mark.parametrize("name", [name for name in network().state_dict() if name != "empty"])
def test_any_change_is_seen(name: str) -> None:
    model = network()
    before = fingerprint(model)
    value = model.state_dict()[name]
    value += 1
    assert fingerprint(model) != before


def test_a_transposed_weight_is_hashed_as_it_reads() -> None:
    model, other = nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False)
    other.weight = nn.Parameter(model.weight.detach().T.contiguous().T)
    assert not other.weight.is_contiguous()
    assert fingerprint(model) == fingerprint(other)
