"""Targets against sums written out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from forsaken.errors import InputError
from forsaken.unlearning.forsaken import targets


def test_class_rows_average_posteriors_class_by_class() -> None:
    posterior = torch.tensor([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
    rows, missing = targets.class_rows(posterior, posterior.argmax(1))
    np.testing.assert_allclose(rows[0], [0.7, 0.2, 0.1], rtol=1e-6)
    np.testing.assert_allclose(rows[1], [0.2, 0.7, 0.1], rtol=1e-6)
    np.testing.assert_allclose(rows[2], posterior.mean(0), rtol=1e-6)
    assert missing == (2,)


def test_target_logits_give_the_posterior_back() -> None:
    posterior = torch.tensor([[0.7, 0.2, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(targets.target_logits(posterior).softmax(1), posterior)
    assert targets.target_logits(posterior).sum().abs() < 1e-12


def test_target_logits_are_floored() -> None:
    found = targets.target_logits(torch.tensor([[1.0, 0.0]]))
    assert found.dtype == torch.float64
    assert float(found[0, 0] - found[0, 1]) == pytest.approx(-math.log(1e-12))


def test_given_targets_are_centred_and_one_column_is_two_classes() -> None:
    assert targets.given([[1.0, 3.0]], 1, 2).tolist() == [[-1.0, 1.0]]
    assert targets.given(np.array([2.0, -4.0]), 2, 2).tolist() == [[-1.0, 1.0], [2.0, -2.0]]


@pytest.mark.parametrize("wrong", [[[1.0, 2.0, 3.0]], [[1.0, 2.0], [3.0, 4.0]]])
def test_given_targets_must_fit(wrong: list[list[float]]) -> None:
    with pytest.raises(InputError, match=r"expected \(1, 2\)"):
        targets.given(wrong, 1, 2)
