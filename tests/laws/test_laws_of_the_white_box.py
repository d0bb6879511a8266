"""Laws of evaluation.md, section 3, for the white-box oracle."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from forsaken import WhiteBoxOracle
from forsaken.metrics import catastrophic_forgetting_rate, forgetting_rate

if TYPE_CHECKING:
    from tests.conftest import Problem


def half(pair: tuple[torch.Tensor, torch.Tensor], at: int) -> tuple[torch.Tensor, torch.Tensor]:
    return pair[0][at::2], pair[1][at::2]


def strangers(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    return problem.reference, torch.randint(4, (100,), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def oracle(problem: Problem) -> WhiteBoxOracle:
    members, nonmembers = (
        tuple(torch.cat(parts) for parts in zip(*(half(pair, 0) for pair in pairs), strict=True))
        for pairs in ((problem.kept, problem.forget), (problem.test, strangers(problem)))
    )
    return WhiteBoxOracle.fit(problem.model, members=members, nonmembers=nonmembers)


def test_what_was_learnt_by_heart_gives_the_white_box_an_edge(oracle: WhiteBoxOracle, problem: Problem) -> None:
    inside = oracle.score(problem.model, half(problem.forget, 1))
    outside = oracle.score(problem.model, half(strangers(problem), 1))
    assert roc_auc_score(np.repeat([1, 0], [10, 50]), np.concatenate([inside, outside])) > 0.9


def test_doing_nothing_forgets_nothing_from_inside(oracle: WhiteBoxOracle, problem: Problem) -> None:
    twin = copy.deepcopy(problem.model)
    for rate, pair in ((forgetting_rate, problem.forget), (catastrophic_forgetting_rate, problem.kept)):
        assert rate(oracle.is_member(problem.model, pair), oracle.is_member(twin, pair)) == 0.0
