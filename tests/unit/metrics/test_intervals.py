"""Intervals against closed forms: the bootstrap over samples, and the jackknife over models."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as student

from forsaken.errors import EmptyError, InputError, SettingsError, UndefinedMetricError
from forsaken.metrics import bootstrap_interval, forgetting_rate, jackknife_intervals, separation


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


def mean(values: np.ndarray) -> list[float]:
    return [float(values.mean())]


def test_of_a_mean_is_student_s() -> None:
    values = np.random.default_rng(0).normal(3, 2, 20)
    error = values.std(ddof=1) / math.sqrt(20)
    expected = student.interval(0.9, 19, loc=values.mean(), scale=error)
    assert jackknife_intervals(mean, values, level=0.9)[0] == pytest.approx(expected)


def test_the_variances_of_two_groups_add() -> None:
    draw = np.random.default_rng(1)
    left, right = draw.normal(1, 1, 12), draw.normal(0, 3, 7)
    error = math.sqrt(left.var(ddof=1) / 12 + right.var(ddof=1) / 7)
    gap = left.mean() - right.mean()
    found = jackknife_intervals(lambda a, b: [a.mean() - b.mean(), 2.0 * a.mean()], left, right)
    assert found[0] == pytest.approx(student.interval(0.95, 17, loc=gap, scale=error))
    alone = 2 * left.std(ddof=1) / math.sqrt(12)
    assert found[1] == pytest.approx(student.interval(0.95, 17, loc=2 * left.mean(), scale=alone))


def test_whole_rows_are_left_out_and_nothing_is_held_twice() -> None:
    rows, seen = np.arange(12.0).reshape(4, 3), []

    def note(values: np.ndarray) -> list[float]:
        seen.append({tuple(row) for row in values})
        assert len(seen[-1]) == len(values)
        return [float(values.sum())]

    jackknife_intervals(note, rows)
    everything = {tuple(row) for row in rows}
    assert seen[0] == everything
    assert [everything - part for part in seen[1:]] == [{tuple(row)} for row in rows]


def test_a_share_is_symmetric_in_the_logit_and_a_positive_number_in_the_logarithm() -> None:
    values = np.array([0.8, 0.85, 0.9, 0.95, 0.99])
    value, error = values.mean(), values.std(ddof=1) / math.sqrt(5)
    reach = student.ppf(0.975, 4)
    low, high = jackknife_intervals(mean, values, scale="share")[0]
    logit = math.log(value / (1 - value))
    width = reach * error / (value * (1 - value))
    assert [math.log(one / (1 - one)) for one in (low, high)] == pytest.approx([logit - width, logit + width])
    low, high = jackknife_intervals(mean, values, scale="positive")[0]
    assert (math.log(low), math.log(high)) == pytest.approx(
        (math.log(value) - reach * error / value, math.log(value) + reach * error / value)
    )


def test_at_an_end_it_is_cut_off_there() -> None:
    # 0.98 ± 0.02: the tangent of the logit would say 0.13 to 1
    low, high = jackknife_intervals(mean, [1.0, 1.0, 1.0, 1.0, 0.9], scale="share")[0]
    assert (low, high) == (pytest.approx(0.98 - student.ppf(0.975, 4) * 0.02), 1.0)
    low, high = jackknife_intervals(mean, [0.0, 0.0, 0.0, 0.0, 5.0], scale="positive")[0]
    assert (low, high) == (0.0, pytest.approx(1 + student.ppf(0.975, 4)))


def test_what_no_unit_moves_has_no_interval() -> None:
    assert jackknife_intervals(lambda values: [1.0, values.max()], np.ones(6), scale="share") == (None, None)


@pytest.mark.parametrize(
    ("groups", "settings", "error", "words"),
    [
        ((), {}, InputError, r"\[\] units"),
        (([1.0, 2.0, 3.0], [1.0, 2.0]), {}, InputError, r"\[3, 2\] units; .*at least 3"),
        ((3.0,), {}, InputError, r"\[0\] units"),
        (([1.0, np.nan, 2.0],), {}, InputError, r"the statistic is \[nan\]"),
        (([1.0, 2.0, 3.0],), {"scale": "log", "level": 1.5}, SettingsError, "2 problems"),
    ],
)
def test_what_has_no_jackknife(groups, settings, error, words) -> None:
    with pytest.raises(error, match=words):
        jackknife_intervals(lambda *given: [float(given[0].mean())], *groups, **settings)
