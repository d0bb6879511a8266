"""ε against a scan of all pairs of thresholds; H and the score by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from forsaken.errors import InputError, SettingsError
from forsaken.metrics import forgetting_epsilon, forgetting_quality, neurips_score


def of_rates(false_positives: int, n_r: int, false_negatives: int, n_u: int, delta: float) -> float | None:
    if false_positives == 0 and false_negatives == 0:
        return math.inf
    if false_positives == 0 or false_negatives == 0:
        return None
    fpr, fnr = false_positives / n_r, false_negatives / n_u
    bounds = []
    if 1 - delta - fpr > 0:
        bounds.append(math.log(1 - delta - fpr) - math.log(fnr))
    if 1 - delta - fnr > 0:
        bounds.append(math.log(1 - delta - fnr) - math.log(fpr))
    return max(bounds) if bounds else None


def scan(unlearned: list[float], retrained: list[float], delta: float = 1e-5) -> float:
    values = sorted({*unlearned, *retrained})
    cuts = [values[0] - 1, *((a + b) / 2 for a, b in itertools.pairwise(values)), values[-1] + 1]
    best = 0.0
    for low in cuts:
        for high in cuts:
            if high < low:
                continue
            for wanted in (True, False):
                called = [(low < value < high) == wanted for value in unlearned]
                wrongly = [(low < value < high) == wanted for value in retrained]
                one = of_rates(sum(wrongly), len(retrained), called.count(False), len(unlearned), delta)
                best = best if one is None else max(best, one)
    return min(best, 50.0)


@pytest.mark.parametrize(("n", "m", "shift"), [(8, 8, 0.0), (8, 8, 1.0), (12, 5, 0.5), (6, 9, 3.0), (2, 2, 0.0)])
def test_is_a_scan_of_all_thresholds(n, m, shift) -> None:
    draw = np.random.default_rng(n * m)
    unlearned, retrained = draw.normal(shift, 1, (n, 12)), draw.normal(0, 1, (m, 12))
    expected = [scan(list(u), list(r)) for u, r in zip(unlearned.T, retrained.T, strict=True)]
    assert forgetting_epsilon(unlearned, retrained) == pytest.approx(expected, abs=1e-12)


def test_ties_are_never_cut() -> None:
    draw = np.random.default_rng(0)
    unlearned, retrained = draw.integers(0, 5, (9, 40)) * 1.0, draw.integers(1, 6, (7, 40)) * 1.0
    expected = [scan(list(u), list(r), 0.01) for u, r in zip(unlearned.T, retrained.T, strict=True)]
    assert forgetting_epsilon(unlearned, retrained, delta=0.01) == pytest.approx(expected, abs=1e-12)


def test_known_answers() -> None:
    # One of each side on the wrong side of the best cut: FPR = FNR = 1/4, ε = log(3/4 - δ) - log(1/4).
    unlearned, retrained = [[1.0], [6.0], [7.0], [8.0]], [[2.0], [3.0], [4.0], [9.0]]
    assert forgetting_epsilon(unlearned, retrained)[0] == pytest.approx(scan([1, 6, 7, 8], [2, 3, 4, 9]))
    single = math.log(0.75 - 1e-5) - math.log(0.25)
    assert forgetting_epsilon(unlearned, retrained)[0] >= single
    # Unlearned outside, retrained inside: only two thresholds part them.
    assert forgetting_epsilon([[-5.0], [5.0]], [[0.0], [1.0]]).tolist() == [50.0]
    assert forgetting_epsilon([[0.0], [1.0]], [[-5.0], [5.0]]).tolist() == [50.0]


def test_is_the_largest_over_thresholds_not_the_smallest() -> None:
    # Rates of 1/2 at the middle cut give about 0; every other cut has exactly one zero rate and is dropped.
    assert forgetting_epsilon([[1.0], [3.0]], [[2.0], [4.0]])[0] == pytest.approx(0.0)
    unlearned, retrained = np.arange(10.0)[:, None], np.array([0.5, *range(20, 29)])[:, None]
    # FPR 1/10, FNR 1/10 is the best by far
    assert forgetting_epsilon(unlearned, retrained)[0] == pytest.approx(math.log(0.9 - 1e-5) - math.log(0.1))


def test_nothing_to_tell_is_zero_and_never_less() -> None:
    same = np.random.default_rng(1).normal(size=(4, 3))
    constant = np.zeros((4, 3))
    assert forgetting_epsilon(constant, constant).tolist() == [0.0, 0.0, 0.0]
    assert (forgetting_epsilon(same, same) >= 0).all()
    assert forgetting_quality(forgetting_epsilon(constant, constant), 4) == 1.0  # 2^-⌊-0.00002⌋ would be 2


def test_the_two_sides_can_be_swapped() -> None:
    draw = np.random.default_rng(2)
    unlearned, retrained = draw.normal(1, 1, (10, 30)), draw.normal(0, 2, (10, 30))
    assert forgetting_epsilon(unlearned, retrained) == pytest.approx(forgetting_epsilon(retrained, unlearned))


def test_no_finite_epsilon_lies_past_the_end() -> None:
    draw = np.random.default_rng(3)
    found = forgetting_epsilon(draw.normal(1, 1, (16, 200)), draw.normal(0, 1, (16, 200)))
    assert found[found < 50].max() <= math.log(15) + 1e-9


@pytest.mark.parametrize(
    ("epsilon", "models", "expected"),
    [
        (0.0, 16, 1.0),
        (0.49, 16, 1.0),
        (0.5, 16, 0.5),
        (1.0, 16, 0.25),
        (2.7, 16, 2.0**-5),
        (3.0, 16, 2.0**-6),  # ⌈ln 15⌉ = 3 is not past 3
        (3.01, 16, 0.0),
        (50.0, 16, 0.0),
        (np.inf, 16, 0.0),
        (0.0, 2, 1.0),
    ],
)
def test_quality(epsilon, models, expected) -> None:
    assert forgetting_quality([epsilon], models) == expected


def test_quality_is_a_mean() -> None:
    assert forgetting_quality([0.0, 0.5, 1.0, 50.0], 16) == pytest.approx((1 + 0.5 + 0.25 + 0) / 4)


def test_the_score_is_quality_times_both_ratios() -> None:
    draw = np.random.default_rng(4)
    unlearned, retrained = draw.normal(0.5, 1, (8, 25)), draw.normal(0, 1, (8, 25))
    quality = forgetting_quality(forgetting_epsilon(unlearned, retrained), 8)
    assert quality > 0
    found = neurips_score(unlearned, retrained, retain_ratio=0.9, test_ratio=1.05)
    assert found == pytest.approx(quality * 0.9 * 1.05)


def test_the_score_wants_equally_many() -> None:
    with pytest.raises(InputError, match=r"6 models and retrained 4; .*leave out 2 of the larger"):
        neurips_score(np.ones((6, 2)), np.ones((4, 2)), retain_ratio=1.0, test_ratio=1.0)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: forgetting_epsilon(np.ones((3, 2)), np.ones((3, 1))), InputError, "2 samples .* 1"),
        (lambda: forgetting_epsilon(np.ones((1, 2)), np.ones((3, 2))), InputError, "expected at least 2"),
        (lambda: forgetting_epsilon(np.full((3, 2), np.nan), np.ones((3, 2))), InputError, "not finite"),
        (lambda: forgetting_epsilon(np.ones((3, 2)), np.ones((3, 2)), delta=0.7), SettingsError, "delta is 0.7"),
        (lambda: forgetting_quality([-0.1], 4), InputError, "holds -0.1, expected 0 or more"),
        (lambda: forgetting_quality([0.1], 1), SettingsError, "models is 1, expected a whole number >= 2"),
        (
            lambda: neurips_score(np.ones((3, 2)), np.ones((3, 2)), retain_ratio=np.nan, test_ratio=1.0),
            SettingsError,
            "retain_ratio is nan",
        ),
    ],
)
def test_what_has_no_score(call, error, words) -> None:
    with pytest.raises(error, match=words):
        call()
