"""The ROC curve and its area: against counting pairs, a scan of every threshold, and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from forsaken.errors import EmptyError, InputError
from forsaken.metrics import Roc, caught, roc, separation, tpr_at

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


CURVES = st.lists(st.integers(0, 8).map(lambda k: k / 4), min_size=1, max_size=15)


def scan(positives: list[float], negatives: list[float], fpr: float) -> float:
    best = 0.0
    for threshold in [*positives, *negatives]:
        false = sum(score >= threshold for score in negatives) / len(negatives)
        if false <= fpr:
            best = max(best, sum(score >= threshold for score in positives) / len(positives))
    return best


@given(CURVES, CURVES, st.sampled_from([0.0, 0.01, 0.1, 0.3, 0.5, 0.99, 1.0]))
def test_tpr_at_is_the_best_of_all_thresholds(positives, negatives, fpr) -> None:
    assert tpr_at(roc(positives, negatives), fpr) == pytest.approx(scan(positives, negatives, fpr))


@given(CURVES, CURVES)
def test_every_threshold_lies_on_the_curve(positives, negatives) -> None:
    curve = roc(positives, negatives)
    assert (curve.fpr[0], curve.tpr[0], curve.fpr[-1], curve.tpr[-1]) == (0, 0, 1, 1)
    for threshold in {*positives, *negatives}:
        false = np.mean(np.array(negatives) >= threshold)
        true = np.mean(np.array(positives) >= threshold)
        # corners only: the rest lies on the straight lines between them
        at = np.isclose(curve.fpr, false)
        on_a_vertical = at.any() and curve.tpr[at].min() - 1e-12 <= true <= curve.tpr[at].max() + 1e-12
        assert on_a_vertical or np.interp(false, curve.fpr, curve.tpr) == pytest.approx(true)


@given(CURVES, CURVES)
def test_the_area_is_that_of_the_curve_and_scikit_learn_s(positives, negatives) -> None:
    curve = roc(positives, negatives)
    truth = np.repeat([1, 0], [len(positives), len(negatives)])
    assert curve.auc == pytest.approx(roc_auc_score(truth, positives + negatives))
    steps = np.diff(curve.fpr) * (curve.tpr[1:] + curve.tpr[:-1]) / 2
    assert steps.sum() == pytest.approx(curve.auc)


def test_many_points_keep_only_corners() -> None:
    curve = roc(np.arange(1000) + 2000.0, np.arange(1000.0))
    assert curve.fpr.tolist() == [0, 0, 1]
    assert curve.tpr.tolist() == [0, 1, 1]


def test_a_rate_is_met_exactly_and_never_exceeded() -> None:
    # 1,000 negatives of which 1 lies above half of the positives, and 1 more above the other half
    negatives = np.array([2.5, 1.5, *[0.0] * 998])
    curve = roc([3.0, 2.0], negatives)
    assert [tpr_at(curve, fpr) for fpr in (0.0, 0.0009, 0.001, 0.0019)] == [0.5, 0.5, 1.0, 1.0]


def test_infinite_scores_are_scores() -> None:
    assert roc([np.inf, 1.0], [-np.inf, 0.0]).auc == 1.0


def test_is_frozen() -> None:
    curve = roc([1.0, 2.0], [0.0, 1.5])
    with pytest.raises(AttributeError):
        curve.auc = 1.0  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        curve.tpr[0] = 1.0


@pytest.mark.parametrize("fpr", [-0.1, 1.1, float("nan")])
def test_a_rate_is_from_0_to_1(fpr) -> None:
    with pytest.raises(InputError, match="expected a rate from 0 to 1"):
        tpr_at(Roc(np.array([0.0, 1.0]), np.array([0.0, 1.0]), 0.5), fpr)


@pytest.mark.parametrize(
    ("positives", "negatives", "error", "words"),
    [
        ([], [1.0], EmptyError, "positives is empty"),
        ([1.0], [], EmptyError, "negatives is empty"),
        ([[1.0]], [1.0], InputError, r"positives has shape \(1, 1\)"),
        ([1.0], [float("nan")], InputError, "negatives holds NaN"),
    ],
)
def test_what_has_no_curve(positives, negatives, error, words) -> None:
    with pytest.raises(error, match=words):
        roc(positives, negatives)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 1.0])
def test_the_quick_point_is_the_curve_s(share):
    draw = np.random.default_rng(1)
    for _ in range(20):
        positives, negatives = draw.normal(1, 1, 300).round(1), draw.normal(0, 1, 200).round(1)
        assert caught(positives, negatives, share=share) == pytest.approx(tpr_at(roc(positives, negatives), share))
