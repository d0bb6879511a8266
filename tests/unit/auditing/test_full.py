"""The full profile on matrices whose truth is known."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from forsaken.auditing.full import Full
from forsaken.auditing.measurements import Matrices
from forsaken.auditing.result import Curve
from forsaken.errors import InputError
from forsaken.metrics import (
    klom,
    klom_floor,
    neurips_score,
    request_floor,
    request_interval,
    request_u_lira,
    roc,
    smallest_shift,
    u_lira,
    u_lira_floor,
    u_lira_intervals,
)

N, SAMPLES = 16, 60


def matrices(
    *, unlearned: float = 0.0, before: float = 6.0, accuracy: float = 0.9, n: int = N, seed: int = 0
) -> Matrices:
    """Return normal margins; `unlearned` and `before` say how far from the retrained models' these lie."""
    draw = np.random.default_rng(seed)
    place = {part: draw.normal(size=SAMPLES) for part in ("forget", "retain", "test")}

    def of(models: int, shift: float) -> dict[str, np.ndarray]:
        return {
            part: centre + draw.normal(size=(models, SAMPLES)) + (shift if part == "forget" else 0)
            for part, centre in place.items()
        }

    margins = {"before": of(n, before), "unlearned": of(n, unlearned), "retrained": of(2 * n, 0.0)}
    rates = {"before": 0.9, "unlearned": accuracy, "retrained": 0.9}
    accuracies = {
        who: dict.fromkeys(("retain", "test"), np.full(len(margins[who]["forget"]), rate))
        for who, rate in rates.items()
    }
    return Matrices(margins, accuracies, {who: np.ones(len(sets["forget"])) for who, sets in margins.items()})


def listed(found: Matrices) -> dict:
    return {number.name: number for number in Full(found, "unlearned").numbers()}


@cache
def numbers(**settings: float) -> dict:
    return listed(matrices(**settings))


def test_a_perfect_method_is_at_the_floor_of_every_number():
    found = numbers()
    auc = found["u_lira_auc"]
    assert auc.floor[0] - 0.02 <= auc.value <= auc.floor[1] + 0.02
    assert abs(auc.retrained - 0.5) < 0.05
    assert auc.before > 0.99
    assert found["u_lira_tpr_1"].value < 0.05
    assert found["u_lira_tpr_1"].before > 0.9
    assert found["klom_forget_mean"].value < 1.2 * found["klom_forget_mean"].retrained
    assert found["klom_forget_mean"].before > 2 * found["klom_forget_mean"].retrained
    assert found["neurips_score"].value == pytest.approx(found["neurips_score"].retrained, abs=0.1)
    assert found["neurips_score"].before < 0.2


def test_a_method_that_does_too_little_or_too_much_is_told_either_way():
    for shift in (3.0, -3.0):
        assert numbers(unlearned=shift)["u_lira_auc"].value > 0.9


def test_a_destroyed_model_loses_by_its_accuracy():
    assert numbers(accuracy=0.1)["neurips_score"].value < 0.2 * numbers()["neurips_score"].value


def test_the_numbers_are_those_of_the_pure_functions():
    ours = matrices(unlearned=1.0)
    found, margins = numbers(unlearned=1.0), ours.margins
    mine, both = margins["unlearned"]["forget"], margins["retrained"]["forget"]
    first, floor = both[:N], klom_floor(both)
    assert found["u_lira_auc"].value == u_lira(mine, first).auc
    intervals = u_lira_intervals(mine, first)
    assert found["u_lira_auc"].interval == intervals.auc
    assert found["u_lira_worst"].interval == intervals.worst
    assert found["u_lira_tpr_1"].interval == intervals.tpr_at_1
    assert found["klom_forget_mean"].value == pytest.approx(klom(mine, first).mean())
    assert found["klom_forget_mean"].retrained == floor.mean
    assert found["klom_forget_mean"].floor == (floor.low, floor.high)
    assert found["klom_forget_p95"].floor == (floor.p95_low, floor.p95_high)
    assert Full(ours, "unlearned").klom()[0].floor == (floor.mean, floor.p95_mean)
    score = neurips_score(mine, first, retain_ratio=1.0, test_ratio=1.0)
    assert found["neurips_score"].value == pytest.approx(score)


def test_the_request_as_a_whole_and_the_smallest_shift_are_those_of_the_pure_functions():
    ours = matrices(unlearned=0.3)
    found, margins = numbers(unlearned=0.3), ours.margins
    mine, both = margins["unlearned"]["forget"], margins["retrained"]["forget"]
    whole, floor = found["u_lira_request_auc"], request_floor(both)
    assert (whole.value, whole.interval) == (request_u_lira(mine, both[:N]), request_interval(mine, both[:N]))
    assert whole.before == request_u_lira(margins["before"]["forget"], both[:N]) == 1
    assert (whole.retrained, whole.floor) == (floor.mean, (floor.low, floor.high))
    assert (whole.n, whole.unit) == (2 * N, "models")
    assert found["u_lira_smallest_shift"].value == smallest_shift(both, u_lira_floor(both))
    assert found["u_lira_request_smallest_shift"].value == smallest_shift(both, floor, request_u_lira)


def test_each_number_says_on_how_much_it_rests():
    found = numbers(unlearned=1.0)
    assert found["u_lira_auc"].n == 2 * N * SAMPLES
    assert found["u_lira_worst"].n == 2 * N * 6  # a tenth of the samples
    assert found["klom_forget_mean"].n == SAMPLES
    assert "chooses noise" in found["u_lira_worst"].note
    assert "before: the ceiling; all at 16 models a side" in found["klom_forget_mean"].note
    for name in ("u_lira_auc_retain", "u_lira_auc_test"):
        assert "a trace of the forgotten samples or of the unlearning" in found[name].label


def test_a_rate_of_false_positives_that_so_few_cannot_tell_is_not_given():
    found = numbers()  # 960 negatives
    assert found["u_lira_tpr_1"].value is not None
    rare = found["u_lira_tpr_01"]
    assert (rare.value, rare.interval, rare.before, rare.retrained) == (None, None, None, None)
    assert "960 pairs" in rare.note
    assert "takes 1000" in rare.note
    enough = matrices(n=20)
    parts = {who: {part: one[:, :50] for part, one in sets.items()} for who, sets in enough.margins.items()}
    found = listed(Matrices(parts, enough.accuracy, enough.seconds))  # exactly 1,000
    assert found["u_lira_tpr_01"].value is not None
    assert found["u_lira_tpr_01"].before > 0.5


def test_what_no_model_moves_has_no_interval_and_says_so():
    perfect = numbers(unlearned=60.0)["u_lira_auc"]
    assert (perfect.value, perfect.interval) == (1.0, None)
    assert "no interval" in perfect.note


def test_more_retrained_models_than_twice_the_originals_change_nothing():
    ours = matrices()
    more = {part: np.concatenate([one, one[:5] + 9]) for part, one in ours.margins["retrained"].items()}
    rates = {part: np.concatenate([one, np.zeros(5)]) for part, one in ours.accuracy["retrained"].items()}
    longer = Matrices({**ours.margins, "retrained": more}, {**ours.accuracy, "retrained": rates}, ours.seconds)
    assert listed(longer) == listed(ours)


def test_models_that_are_all_the_same_are_no_ensemble():
    ours = matrices()
    same = {part: np.repeat(one[:1], 2 * N, axis=0) for part, one in ours.margins["retrained"].items()}
    with pytest.raises(InputError, match=r"32 retrained models .*no randomness.*use the profile standard.*bootstrap"):
        Full(Matrices({**ours.margins, "retrained": same}, ours.accuracy, ours.seconds), "unlearned")
    same["forget"][3, 7] += 1e-3
    Full(Matrices({**ours.margins, "retrained": same}, ours.accuracy, ours.seconds), "unlearned")


def test_the_score_s_interval_knows_the_accuracies():
    ours = matrices()
    uneven = {**ours.accuracy, "unlearned": {**ours.accuracy["unlearned"], "test": np.linspace(0.1, 0.9, N)}}
    wide, narrow = (
        listed(Matrices(ours.margins, accuracy, ours.seconds))["neurips_score"] for accuracy in (uneven, ours.accuracy)
    )
    assert wide.interval[1] / wide.interval[0] > 1.1 * narrow.interval[1] / narrow.interval[0]
    assert narrow.interval[0] < narrow.value < narrow.interval[1]


def test_the_interval_holds_the_value_and_is_wider_with_fewer_models():
    def width(n: int) -> float:
        one = numbers(unlearned=0.5, n=n)["u_lira_auc"]
        assert one.interval[0] <= one.value <= one.interval[1]
        return one.interval[1] - one.interval[0]

    assert width(32) < width(4)


def test_the_pictures_show_the_worst_samples_and_three_curves():
    full = Full(matrices(unlearned=1.0), "unlearned")
    assert full.worst()[0].row == int(full.attack["forget"].worst_rows[0])
    assert [one.name for one in full.curves()] == ["unlearned", "doing nothing", "retrained"]
    assert {one.part: one.n for one in full.klom()} == dict.fromkeys(("forget", "retain", "test"), SAMPLES)


def test_a_thinned_curve_keeps_its_ends_and_lies_on_the_whole_one():
    draw = np.random.default_rng(0)
    whole = roc(draw.normal(1, 1, 5000), draw.normal(0, 1, 5000))
    thin = Curve.of("c", whole)
    assert len(thin.fpr) <= 402
    assert (thin.fpr[0], thin.tpr[0]) == (0, 0)
    assert (thin.fpr[-1], thin.tpr[-1]) == (1, 1)
    known = {(round(float(f), 6), round(float(t), 6)) for f, t in zip(whole.fpr, whole.tpr, strict=True)}
    assert set(zip(thin.fpr, thin.tpr, strict=True)) <= known


def test_few_models_are_a_warning_and_too_few_an_error():
    assert "8 originals" in Full(matrices(n=8), "unlearned").caveats()[0].problem
    assert Full(matrices(n=16), "unlearned").caveats() == []
    with pytest.raises(InputError, match="3 originals are too few"):
        Full(matrices(n=3), "unlearned")


def test_too_few_retrained_models_for_a_floor_are_an_error():
    ours = matrices()
    short = {part: matrix[:20] for part, matrix in ours.margins["retrained"].items()}
    with pytest.raises(InputError, match="20 retrained models for 16 originals"):
        Full(Matrices({**ours.margins, "retrained": short}, ours.accuracy, ours.seconds), "unlearned")


def test_margins_that_are_not_finite_are_refused():
    ours = matrices()
    ours.margins["unlearned"]["forget"][3, 7] = np.nan
    with pytest.raises(InputError, match="finite"):
        Full(ours, "unlearned")


def test_a_method_that_was_not_measured_is_named():
    with pytest.raises(InputError, match=r"no 'scrub' models, only before, unlearned, retrained"):
        Full(matrices(), "scrub")
