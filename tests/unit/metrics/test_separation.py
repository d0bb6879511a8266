"""The area under the ROC curve, against counting pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forsaken import metrics
from forsaken.errors import EmptyError, InputError
from forsaken.metrics import separation

SCORES = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]), min_size=1, max_size=12)


@given(SCORES, SCORES)
def test_is_the_share_of_pairs_won(members, others) -> None:
    won = sum((a > b) + (a == b) / 2 for a in members for b in others)
    assert separation(members, others) == pytest.approx(won / (len(members) * len(others)))
    assert separation(others, members) == pytest.approx(1 - separation(members, others))


def test_is_scikit_learn_s_on_real_numbers() -> None:
    from sklearn.metrics import roc_auc_score

    draw = np.random.default_rng(0)
    members, others = draw.normal(0.5, size=300), draw.normal(size=200)
    truth = np.repeat([1, 0], [300, 200])
    assert separation(members, others) == pytest.approx(roc_auc_score(truth, np.concatenate([members, others])))


def test_known_answers() -> None:
    assert separation([1.0], [0.0]) == 1.0
    assert separation([0.0], [1.0]) == 0.0
    assert separation([0.3, 0.3], [0.3]) == 0.5


@pytest.mark.parametrize(
    ("members", "error", "words"),
    [
        ([], EmptyError, "members is empty"),
        ([[0.1]], InputError, r"shape \(1, 1\), expected a flat array"),
        ([float("nan")], InputError, "holds NaN"),
        (["x"], InputError, "flat array of scores"),
        (None, InputError, "members"),
    ],
)
def test_what_has_no_answer(members, error, words) -> None:
    with pytest.raises(error, match=words):
        separation(members, [0.5])


def test_is_public() -> None:
    assert "separation" in metrics.__all__
