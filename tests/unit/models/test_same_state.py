"""Two models hold the same bits: what a fingerprint would tell, without a hash."""

from __future__ import annotations

import copy

import torch
from torch import nn

from forsaken.models.weights import drift, fingerprint, same_state


def test_it_agrees_with_the_fingerprint_for_every_single_change() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2).half())
    with torch.no_grad():
        model[0].weight.zero_()
    for name, value in model.state_dict().items():
        twin = copy.deepcopy(model)
        assert same_state(model, twin)
        changed = twin.state_dict()[name]
        changed.copy_(-value if name == "0.weight" else value + 1)  # -0.0 is not 0.0
        assert not same_state(model, twin), name
        assert fingerprint(model) != fingerprint(twin)
    assert not same_state(model, model[0])


def test_the_drift_is_that_of_all_weights_at_once() -> None:
    torch.manual_seed(0)
    one, other = (nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)) for _ in range(2))
    was, now = (torch.cat([each.detach().double().flatten() for each in model.parameters()]) for model in (one, other))
    assert abs(drift(one, other) - float((now - was).norm() / was.norm())) < 1e-12
