"""Jackknife intervals against closed forms, near their ends, and how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as student

from forsaken.errors import InputError, SettingsError
from forsaken.metrics import jackknife_intervals


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
