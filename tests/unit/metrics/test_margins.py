"""Margins against scipy, and where probabilities would have been rounded away."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from forsaken.errors import InputError
from forsaken.metrics import margins


def test_is_the_formula_one_by_one() -> None:
    draw = np.random.default_rng(0)
    logits, labels = draw.normal(scale=5, size=(4, 7, 3)), draw.integers(3, size=7)
    found = margins(logits, labels)
    assert found.shape == (4, 7)
    for model in range(4):
        for sample in range(7):
            others = np.delete(logits[model, sample], labels[sample])
            expected = logits[model, sample, labels[sample]] - logsumexp(others)
            assert found[model, sample] == pytest.approx(expected, abs=1e-12)


def test_is_the_log_odds_of_the_label() -> None:
    draw = np.random.default_rng(1)
    logits, labels = draw.normal(size=(9, 4)), draw.integers(4, size=9)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    p = p[np.arange(9), labels]
    assert margins(logits, labels) == pytest.approx(np.log(p / (1 - p)))


def test_extreme_logits_neither_overflow_nor_round() -> None:
    logits = np.array([[1e4, 0.0, 0.0], [-1e4, 0.0, 0.0], [1e4, 1e4, -1e4]])
    expected = [1e4 - np.log(2), -1e4 - np.log(2), 0.0]
    assert margins(logits, [0, 0, 0]) == pytest.approx(expected, abs=1e-9)
    # a float32 softmax would call both certain
    surer = margins(np.array([[40.0, 0.0], [60.0, 0.0]], dtype=np.float32), [0, 0])
    assert surer.dtype == np.float64
    assert surer.tolist() == [40.0, 60.0]


def test_takes_tensors_and_leaves_the_input_alone() -> None:
    logits = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert margins(logits, torch.tensor([1, 0])).tolist() == [1.0, -1.0]
    assert logits.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    array = np.ones((2, 2))
    margins(array, [0, 1])
    assert (array == 1).all()


@pytest.mark.parametrize(
    ("logits", "labels", "words"),
    [
        ([1.0, 2.0], [0], r"shape \(2,\), expected \(..., samples, classes\)"),
        ([[1.0]], [0], "two classes or more"),
        ([["a", "b"]], [0], "logits must be"),
        ([[np.nan, 1.0]], [0], "1 values that are not finite"),
        ([[np.inf, 1.0], [-np.inf, 0.0]], [0, 0], "2 values that are not finite"),
        ([[0.0, 1.0]], [2], "1 of 1 labels are out of range, expected 0 to 1"),
        ([[0.0, 1.0]], [-1], "1 of 1 labels are out of range, expected 0 to 1"),
        ([[0.0, 1.0]], [0, 1], r"shape \(2,\), expected 1 whole numbers"),
        ([[0.0, 1.0]], [0.0], "dtype float64"),
    ],
)
def test_what_has_no_margin(logits, labels, words) -> None:
    with pytest.raises(InputError, match=words):
        margins(logits, labels)


def test_a_tensor_that_still_wants_its_gradient() -> None:
    with pytest.raises(InputError, match="logits must be an array"):
        margins(torch.ones(1, 2, requires_grad=True), [0])
