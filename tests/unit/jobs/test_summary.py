"""The numbers of a saved result, against counting by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from torch import nn

from forsaken.errors import InputError
from forsaken.jobs.summary import by_class, layers, sample_table

BEFORE = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]])
AFTER = np.array([[0.2, 0.7, 0.1], [0.1, 0.8, 0.1], [0.5, 0.1, 0.4]])


def test_by_class_counts_each_class_on_its_own() -> None:
    found = by_class(np.array([0, 0, 1]), BEFORE, AFTER, 3)
    assert found == {"support": [2, 1, 0], "before": [0.5, 0.0, None], "after": [0.0, 0.0, None]}


def test_by_class_without_samples() -> None:
    assert by_class(np.empty(0), np.empty((0, 3)), np.empty((0, 3)), 3) is None


def test_layers_follow_the_model_and_leave_out_the_frozen() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight.requires_grad_(False)
    other = copy.deepcopy(model)
    other[0].weight.data.view(-1)[[0, 2, 5]] += 1
    assert layers(model, other) == [
        {"name": "0.weight", "changed": 3, "total": 6},
        {"name": "0.bias", "changed": 0, "total": 2},
        {"name": "1.bias", "changed": 0, "total": 2},
        {"name": "2.weight", "changed": 0, "total": 4},
        {"name": "2.bias", "changed": 0, "total": 2},
    ]


def test_sample_table() -> None:
    hashes = ["0123456789abcdef0123", "1" * 64, "2" * 64]
    found = sample_table(BEFORE, AFTER, "oracle", np.array([0.9, 0.8, 0.7]), np.array([0.1, 0.2, 0.3]), hashes)
    assert found == {
        "score": "oracle",
        "row": [0, 1, 2],
        "hash": ["0123456789ab", "1" * 12, "2" * 12],
        "class_before": [0, 1, 2],
        "class_after": [1, 1, 0],
        "confidence_before": [0.7, 0.8, 0.4],
        "confidence_after": [0.7, 0.8, 0.5],
        "score_before": [0.9, 0.8, 0.7],
        "score_after": [0.1, 0.2, 0.3],
    }
    scores = BEFORE.max(1)
    assert sample_table(BEFORE, AFTER, "confidence", scores, scores, rows=[7, 8, 9])["row"] == [7, 8, 9]
    assert sample_table(BEFORE, AFTER, "confidence", scores, scores)["hash"] is None


def test_rows_must_agree() -> None:
    with pytest.raises(InputError, match=r"different numbers of rows .*score_after 2"):
        sample_table(BEFORE, AFTER, "oracle", np.ones(3), np.ones(2))
    with pytest.raises(InputError, match="labels 2, before 3"):
        by_class(np.zeros(2), BEFORE, AFTER, 3)
    with pytest.raises(InputError, match="score is 'guess', expected 'oracle' or 'confidence'"):
        sample_table(BEFORE, AFTER, "guess", np.ones(3), np.ones(3))
