"""Bootstrap intervals against the normal approximation, and where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from forsaken.errors import EmptyError, InputError, SettingsError, UndefinedMetricError
from forsaken.metrics import bootstrap_interval, forgetting_rate, separation


def test_of_a_mean_is_about_two_standard_errors() -> None:
    values = np.random.default_rng(0).normal(3, 2, 400)
    low, high = bootstrap_interval(np.mean, values, draws=4000)
    error = values.std(ddof=1) / 20
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.12 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.12 * error)


def test_holds_the_truth_about_as_often_as_it_says() -> None:
    draw, held = np.random.default_rng(1), 0
    for seed in range(200):
        low, high = bootstrap_interval(np.mean, draw.normal(size=60), draws=200, level=0.8, seed=seed)
        held += low <= 0 <= high
    assert 140 <= held <= 178  # 160 expected, 6 a standard deviation


def test_of_a_share_is_the_binomial_s() -> None:
    from scipy.stats import binom

    low, high = bootstrap_interval(np.mean, np.repeat([1.0, 0.0], [30, 70]), draws=5000)
    assert low == pytest.approx(binom.ppf(0.025, 100, 0.3) / 100, abs=0.011)
    assert high == pytest.approx(binom.ppf(0.975, 100, 0.3) / 100, abs=0.011)


def test_groups_are_drawn_on_their_own_or_together() -> None:
    values = np.random.default_rng(2).normal(size=50)

    def gap(a: np.ndarray, b: np.ndarray) -> float:
        return float(a.mean() - b.mean())

    assert bootstrap_interval(gap, values, values, paired=True) == (0.0, 0.0)
    low, high = bootstrap_interval(gap, values, values)
    assert high - low == pytest.approx(2 * 1.96 * np.sqrt(2) * values.std() / np.sqrt(50), rel=0.15)


def test_the_first_axis_is_the_unit() -> None:
    # two models that agree on everything inside: whole rows are drawn, so a statistic is one of three
    rows = np.repeat([[0.0], [1.0]], 100, axis=1)
    seen = set()
    bootstrap_interval(lambda m: seen.add(round(float(m.mean()), 9)) or 0.0, rows, draws=100)
    assert seen == {0.0, 0.5, 1.0}


def test_is_fixed_by_its_seed() -> None:
    values = np.random.default_rng(3).normal(size=30)
    assert bootstrap_interval(np.mean, values) == bootstrap_interval(np.mean, values)
    assert bootstrap_interval(np.mean, values) != bootstrap_interval(np.mean, values, seed=1)


def test_a_narrower_level_lies_inside() -> None:
    values = np.random.default_rng(4).normal(size=30)
    wide, narrow = bootstrap_interval(np.mean, values), bootstrap_interval(np.mean, values, level=0.5)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_undefined_draws_are_left_out() -> None:
    # one member in four before: a draw without it has no FR
    before, after = np.array([True, False, False, False]), np.zeros(4, bool)
    assert bootstrap_interval(forgetting_rate, before, after, paired=True) == (1.0, 1.0)


def test_mostly_undefined_is_no_interval() -> None:
    calls = iter(range(100))

    def rarely(values: np.ndarray) -> float:
        if next(calls) % 100 >= 49:
            raise UndefinedMetricError("nothing there")
        return 1.0

    assert bootstrap_interval(rarely, np.arange(9.0), draws=100) is None
    calls = iter(range(100))

    def half(values: np.ndarray) -> float:
        return 1.0 if next(calls) % 2 else float("nan")

    assert bootstrap_interval(half, np.arange(9.0), draws=100) == (1.0, 1.0)


def test_one_unit_has_no_spread() -> None:
    assert bootstrap_interval(np.mean, [3.0]) is None
    assert bootstrap_interval(separation, [3.0], [1.0, 2.0]) is None


def test_other_errors_are_not_hidden() -> None:
    def broken(values: np.ndarray) -> float:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        bootstrap_interval(broken, np.arange(3.0))


@pytest.mark.parametrize(
    ("groups", "settings", "error", "words"),
    [
        ((), {}, EmptyError, "nothing to resample"),
        (([1.0, 2.0], []), {}, EmptyError, r"group 1 has shape \(0,\)"),
        ((3.0,), {}, EmptyError, r"group 0 has shape \(\)"),
        (([1.0, 2.0], [1.0]), {"paired": True}, InputError, r"\[2, 1\] units; paired"),
        (([1.0, 2.0],), {"draws": 0, "level": 1.5, "seed": -1}, SettingsError, "3 problems"),
    ],
)
def test_what_cannot_be_resampled(groups, settings, error, words) -> None:
    with pytest.raises(error, match=words):
        bootstrap_interval(np.mean, *groups, **settings)
