"""KLoM against one histogram at a time, and against a table made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from forsaken.errors import EmptyError, InputError, SettingsError
from forsaken.metrics import bootstrap_interval, jackknife_intervals, klom, klom_floor, klom_summary


def slow(unlearned: np.ndarray, retrained: np.ndarray, bins: int = 20, clip: float = 100.0) -> list[float]:
    found = []
    for u, r in zip(np.clip(unlearned, -clip, clip).T, np.clip(retrained, -clip, clip).T, strict=True):
        low, high = min(u.min(), r.min()), max(u.max(), r.max())
        if low == high:
            found.append(0.0)
            continue
        p = np.histogram(u, bins, range=(low, high))[0] / len(u)
        q = np.histogram(r, bins, range=(low, high))[0] / len(r)
        total = 0.0
        for a, b in zip(p, q, strict=True):
            if a > 0:
                total += a * math.log(a / max(b, 1e-5))
        found.append(total)
    return found


@pytest.mark.parametrize(("n", "m", "bins", "clip"), [(16, 16, 20, 100.0), (64, 31, 20, 1.5), (2, 9, 7, 100.0)])
def test_is_one_histogram_at_a_time(n, m, bins, clip) -> None:
    draw = np.random.default_rng(n)
    unlearned, retrained = draw.normal(1, 2, (n, 200)), draw.normal(0, 1, (m, 200))
    found = klom(unlearned, retrained, bins=bins, clip=clip)
    assert found == pytest.approx(slow(unlearned, retrained, bins, clip), abs=1e-12)
    assert (found >= 0).all()


def test_values_on_the_edges_fall_where_numpy_puts_them() -> None:
    # tenths are no binary fractions: products round to either side of an edge
    draw = np.random.default_rng(3)
    unlearned, retrained = draw.integers(0, 21, (40, 300)) / 10, draw.integers(0, 21, (40, 300)) / 10
    assert klom(unlearned, retrained) == pytest.approx(slow(unlearned, retrained), abs=1e-12)


def test_the_edges_themselves_open_their_bins() -> None:
    low, high = -np.arange(1, 41) / 10, np.arange(2, 82, 2) / 10
    unlearned = np.linspace(low, high, 21)
    retrained = np.repeat(unlearned[::4], 3, axis=0)
    assert klom(unlearned, retrained) == pytest.approx(slow(unlearned, retrained), abs=1e-12)


def test_a_table_made_by_hand() -> None:
    # Range 0 to 20, so bin k holds [k, k + 1) and the last one [19, 20].
    unlearned = np.array([[0.5], [0.7], [10.0], [20.0]])
    retrained = np.array([[0.0], [10.5], [10.9], [19.0]])
    # bin:          0     10    19
    # unlearned P  2/4   1/4   1/4
    # retrained Q  1/4   2/4   1/4
    expected = 0.5 * math.log(2) + 0.25 * math.log(0.5) + 0.25 * math.log(1)
    assert klom(unlearned, retrained)[0] == pytest.approx(expected)


def test_the_largest_value_counts() -> None:
    # A histogram that drops its largest value would see two equal halves, and call it 0.
    unlearned, retrained = np.array([[0.0], [5.0]]), np.array([[0.0], [0.0]])
    assert klom(unlearned, retrained)[0] == pytest.approx(0.5 * math.log(0.5) + 0.5 * math.log(0.5 / 1e-5))


def test_the_direction_is_unlearned_against_retrained() -> None:
    unlearned, retrained = np.array([[0.0], [0.0]]), np.array([[0.0], [5.0]])
    assert klom(unlearned, retrained)[0] == pytest.approx(math.log(2))


def test_all_equal_is_no_difference() -> None:
    same = np.full((4, 3), [0.0, -7.5, 1e6])
    assert klom(same, same[:2]).tolist() == [0.0, 0.0, 0.0]


def test_everything_beyond_the_clip_is_equal() -> None:
    assert klom(np.array([[150.0], [101.0]]), np.array([[100.0], [1e9]])).tolist() == [0.0]


def test_the_summary() -> None:
    values = np.random.default_rng(0).random(57)
    ordered = sorted(values)
    place = 0.95 * 56
    between = ordered[int(place)] + (place - int(place)) * (ordered[int(place) + 1] - ordered[int(place)])
    assert klom_summary(values) == pytest.approx((sum(values) / 57, between))
    with pytest.raises(EmptyError, match="values is empty"):
        klom_summary([])


@pytest.mark.parametrize(
    ("unlearned", "retrained", "words"),
    [
        (np.ones((3, 2)), np.ones((3, 4)), "2 samples .* 4 .*same samples"),
        (np.ones((1, 2)), np.ones((3, 2)), "unlearned has 1 models, expected at least 2"),
        (np.ones((3, 2)), np.full((3, 2), np.nan), "retrained holds 6 values that are not finite"),
        (np.ones(3), np.ones((3, 2)), "models x samples"),
    ],
)
def test_what_cannot_be_compared(unlearned, retrained, words) -> None:
    with pytest.raises(InputError, match=words):
        klom(unlearned, retrained)


def test_settings_are_checked_together() -> None:
    with pytest.raises(SettingsError, match=r"2 problems[\s\S]*bins is 0[\s\S]*clip is -1"):
        klom(np.ones((3, 2)), np.ones((3, 2)), bins=0, clip=-1)


def test_the_floor_is_klom_of_random_halves() -> None:
    models = np.random.default_rng(5).normal(size=(13, 40))
    draw = np.random.default_rng(3)
    found = []
    for _ in range(30):
        order = draw.permutation(13)
        values = slow(models[order[:6]], models[order[6:12]])
        found.append((np.mean(values), np.percentile(values, 95)))
    floor = klom_floor(models, halvings=30, seed=3)
    low, high = np.percentile(found, [2.5, 97.5], axis=0)
    assert (floor.low, floor.p95_low) == pytest.approx(tuple(low))
    assert (floor.high, floor.p95_high) == pytest.approx(tuple(high))
    assert (floor.mean, floor.p95_mean) == pytest.approx(tuple(np.mean(found, axis=0)))


@pytest.mark.parametrize(
    ("models", "settings", "error", "words"),
    [
        (np.ones((3, 2)), {}, InputError, "retrained has 3 models, expected at least 4"),
        (np.ones((4, 2)), {"halvings": 0, "seed": -1}, SettingsError, "2 problems"),
    ],
)
def test_what_has_no_floor_of_klom(models, settings, error, words) -> None:
    with pytest.raises(error, match=words):
        klom_floor(models, **settings)


def test_leaving_out_models_holds_the_mean_where_samples_move_together() -> None:
    draw, values, over_models, over_samples = np.random.default_rng(0), [], [], []
    for _ in range(60):
        left, right = (draw.normal(size=(12, 40)) + draw.normal(shift, 1, (12, 1)) for shift in (3, 0))
        found = klom(left, right)
        values.append(found.mean())
        over_models.append(jackknife_intervals(lambda u, r: [klom(u, r).mean()], left, right, scale="positive")[0])
        over_samples.append(bootstrap_interval(np.mean, found, draws=100))
    held, naive = (sum(low <= np.mean(values) <= high for low, high in each) for each in (over_models, over_samples))
    assert held >= 51
    assert naive < 30  # the samples of one model are no news of other models
    assert np.mean([high - low for low, high in over_models]) < 8 * np.std(values)
