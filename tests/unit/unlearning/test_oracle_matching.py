"""Oracle matching on a linear model, where its optimum is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import forsaken
from forsaken import References
from forsaken.errors import SettingsError
from forsaken.unlearning.oracle_matching import OracleMatching


def centred(logits: torch.Tensor) -> torch.Tensor:
    return logits - logits.mean(1, keepdim=True)


def test_on_a_linear_model_every_sample_reaches_its_reference_and_the_rest_stays() -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(12, 3, bias=False), torch.eye(12)  # no sample moves another's answers
    wanted = torch.randn(4, 3)
    found = OracleMatching(learning_rate=0.03, epochs=200)(model, x[:4], retain=x[4:], targets=wanted, seed=0)
    with torch.no_grad():
        assert torch.allclose(centred(found.model(x[:4])), centred(wanted), atol=0.02)
        assert torch.allclose(centred(found.model(x[4:])), centred(model(x[4:])), atol=0.02)
    assert found.details.facts["sample_passes"] == 200 * (8 + 5 * 4) + 8 + 4


def test_one_step_is_adam_on_the_mean_squared_error_of_the_published_rows() -> None:
    torch.manual_seed(1)
    model, x, wanted = nn.Linear(6, 3), torch.randn(30, 6), torch.randn(2, 3)
    found = OracleMatching(learning_rate=0.01, epochs=1, batch_size=1000, retained=7, repeated=5)(
        model, x[:2], retain=x[2:16], targets=wanted, seed=0
    )
    twin = nn.Linear(6, 3)
    twin.load_state_dict(model.state_dict())
    optimiser = torch.optim.Adam(twin.parameters(), lr=0.01)
    rows = torch.cat([x[2:16], *[x[:2]] * 5])  # all 14 = 7 · |D| retain samples
    aims = torch.cat([centred(model(x[2:16])), *[centred(wanted)] * 5]).detach()
    ((centred(twin(rows)) - aims) ** 2).mean().backward()
    optimiser.step()
    for one, two in zip(found.model.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-5)


def test_it_takes_the_same_table_as_forsaken_and_asks_for_one() -> None:
    torch.manual_seed(2)
    model, others, x = nn.Linear(8, 3), nn.Linear(8, 3), torch.randn(40, 8)
    table = References.fit(lambda rows, steps, seed: others, x, folds=2, model=model)
    found = forsaken.unlearn(
        model, x[:5], retain=x[10:], references=table, method="oracle-matching", epochs=60, learning_rate=0.01
    )
    with torch.no_grad():
        was, now = (
            float((centred(one(x[:5])) - centred(others(x[:5]))).square().mean()) for one in (model, found.model)
        )
    assert now < 0.5 * was
    with pytest.raises(SettingsError, match="give references="):
        forsaken.unlearn(model, x[:5], retain=x[10:], method="oracle-matching")


def test_an_epoch_reads_no_more_retain_samples_than_asked_for() -> None:
    model, x = nn.Linear(4, 3), torch.randn(200, 4)
    found = OracleMatching(retained=3)(model, x[:2], retain=x[2:], targets=np.zeros((2, 3)), seed=0)
    assert found.details.facts["retain_used"] == 6


def test_a_momentum_that_adam_cannot_have_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"momentum is 1.0, expected a number from 0 to 0.9999"):
        OracleMatching(momentum=1.0)
