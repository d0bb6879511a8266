"""U-LiRA against explicit leave-one-out loops with scipy's normals, and against the closed form for two normals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm
from scipy.stats import t as student
from sklearn.metrics import roc_auc_score

from forsaken.errors import EmptyError, InputError, SettingsError
from forsaken.metrics import (
    FEW,
    Floor,
    RequestFloor,
    at_floor,
    request_floor,
    request_interval,
    request_u_lira,
    smallest_shift,
    tpr_at,
    u_lira,
    u_lira_floor,
    u_lira_intervals,
)


def slow_scores(unlearned: np.ndarray, retrained: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray]:
    def log_n(value: float, others: np.ndarray) -> float:
        return float(norm.logpdf(value, np.mean(others), max(np.std(others, ddof=1), floor)))

    of_unlearned, of_retrained = np.empty_like(unlearned), np.empty_like(retrained)
    for sample in range(unlearned.shape[1]):
        u, r = unlearned[:, sample], retrained[:, sample]
        for i in range(len(u)):
            of_unlearned[i, sample] = log_n(u[i], np.delete(u, i)) - log_n(u[i], r)
        for j in range(len(r)):
            of_retrained[j, sample] = log_n(r[j], u) - log_n(r[j], np.delete(r, j))
    return of_unlearned, of_retrained


def area(positives: np.ndarray, negatives: np.ndarray) -> float:
    truth = np.repeat([1, 0], [positives.size, negatives.size])
    return float(roc_auc_score(truth, np.concatenate([positives.ravel(), negatives.ravel()])))


@pytest.mark.parametrize(("n", "m"), [(3, 3), (5, 8), (16, 16), (7, 4)])
def test_is_leave_one_out_one_by_one(n, m) -> None:
    draw = np.random.default_rng(n)
    unlearned, retrained = draw.normal(1, 2, (n, 23)), draw.normal(0, 1, (m, 23))
    unlearned[:, 3] = 1.25  # no spread at all: the floor decides
    found = u_lira(unlearned, retrained)
    mine, theirs = slow_scores(unlearned, retrained, 0.1)
    assert found.scores_unlearned == pytest.approx(mine, rel=1e-6)
    assert found.scores_retrained == pytest.approx(theirs, rel=1e-6)
    each = np.array([area(mine[:, s], theirs[:, s]) for s in range(23)])
    assert found.per_sample == pytest.approx(each)
    assert found.auc == found.roc.auc == pytest.approx(area(mine, theirs))
    assert len(found.worst_rows) == 3  # a tenth of 23, rounded up
    assert sorted(each[found.worst_rows]) == pytest.approx(sorted(each)[-3:])
    assert found.worst == pytest.approx(area(mine[:, found.worst_rows], theirs[:, found.worst_rows]))
    assert (found.tpr_at_1, found.tpr_at_01) == (tpr_at(found.roc, 0.01), tpr_at(found.roc, 0.001))


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0])
def test_of_two_normals_is_the_closed_form(shift) -> None:
    # Equal spread d apart: the score is linear in φ, so AUC = Φ(d / √2), and TPR at FPR a is Φ(d - Φ⁻¹(1 - a)).
    draw = np.random.default_rng(0)
    found = u_lira(draw.normal(shift, 1, (400, 60)), draw.normal(0, 1, (400, 60)))
    assert found.auc == pytest.approx(norm.cdf(shift / np.sqrt(2)), abs=0.01)
    assert found.tpr_at_1 == pytest.approx(norm.cdf(shift - norm.isf(0.01)), abs=0.02)


def test_of_another_spread_is_the_closed_form() -> None:
    # σ = 1 against 3, same mean: |φ| is all that counts, and AUC = P(|3z'| > |z|) = 2 arctan(3) / π.
    draw = np.random.default_rng(1)
    found = u_lira(draw.normal(0, 1, (300, 60)), draw.normal(0, 3, (300, 60)))
    assert found.auc == pytest.approx(2 * np.arctan(3) / np.pi, abs=0.01)


def test_one_sample_is_its_own_worst() -> None:
    draw = np.random.default_rng(2)
    found = u_lira(draw.normal(1, 1, (8, 1)), draw.normal(0, 1, (8, 1)))
    assert found.worst_rows.tolist() == [0]
    assert found.worst == found.auc == pytest.approx(found.per_sample[0])


def test_the_worst_tenth_finds_the_one_sample_that_was_not_forgotten() -> None:
    draw = np.random.default_rng(3)
    unlearned, retrained = draw.normal(0, 1, (16, 10)), draw.normal(0, 1, (16, 10))
    unlearned[:, 7] += 9
    found = u_lira(unlearned, retrained)
    assert found.worst_rows.tolist() == [7]
    assert found.worst > 0.99
    assert found.auc < 0.65


def test_is_frozen_and_leaves_its_input_alone() -> None:
    draw = np.random.default_rng(4)
    unlearned, retrained = draw.normal(size=(4, 5)), draw.normal(size=(4, 5))
    kept = unlearned.copy()
    found = u_lira(unlearned, retrained)
    assert (unlearned == kept).all()
    for values in (found.scores_unlearned, found.scores_retrained, found.per_sample, found.worst_rows):
        assert not values.flags.writeable


def test_the_floor_is_the_range_over_halvings() -> None:
    models = np.random.default_rng(5).normal(size=(12, 30))
    found = u_lira_floor(models, halvings=50, seed=3)
    draw, areas, worst = np.random.default_rng(3), [], []
    for _ in range(50):
        order = draw.permutation(12)
        one = u_lira(models[order[:6]], models[order[6:]])
        areas.append(one.auc)
        worst.append(one.worst)
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(areas, [2.5, 97.5])))
    assert (found.worst_low, found.worst_high) == pytest.approx(tuple(np.percentile(worst, [2.5, 97.5])))
    assert (found.mean, found.worst_mean) == pytest.approx((np.mean(areas), np.mean(worst)))


def test_the_floor_of_an_odd_number_and_of_a_seed() -> None:
    models = np.random.default_rng(6).normal(size=(13, 20))
    assert u_lira_floor(models, halvings=20) == u_lira_floor(models, halvings=20)
    assert u_lira_floor(models, halvings=20) != u_lira_floor(models, halvings=20, seed=1)


@pytest.mark.parametrize(
    ("auc", "expected"),
    [(0.45, True), (0.56, True), (0.449, False), (0.561, False), (1.0, False), (0.0, False), (float("nan"), False)],
)
def test_at_the_floor(auc, expected) -> None:
    assert at_floor(auc, Floor(0.45, 0.56, 0.5, 0.6, 0.7, 0.65)) is expected


@pytest.mark.parametrize(("auc", "expected"), [(0.47, True), (0.53, True), (0.469, False), (0.531, False)])
def test_within_three_hundredths_of_one_half_is_always_at_the_floor(auc, expected) -> None:
    assert at_floor(auc, Floor(0.499, 0.501, 0.5, 0.6, 0.7, 0.65)) is expected


def test_few_is_what_the_definitions_ask_for() -> None:
    assert FEW == 16


GOOD = np.random.default_rng(7).normal(size=(6, 4))


def spoilt(model: int, sample: int, value: float) -> np.ndarray:
    margins = GOOD.copy()
    margins[model, sample] = value
    return margins


@pytest.mark.parametrize(
    ("unlearned", "retrained", "error", "words"),
    [
        (GOOD, GOOD[:, :3], InputError, r"unlearned has 4 samples .* retrained has 3 .*same samples in the same order"),
        (GOOD[:2], GOOD, InputError, "unlearned has 2 models, expected at least 3; train more"),
        (GOOD, GOOD[:1], InputError, "retrained has 1 models, expected at least 3"),
        (GOOD[0], GOOD, InputError, r"unlearned has shape \(4,\), expected models x samples"),
        (GOOD, GOOD[None], InputError, r"retrained has shape \(1, 6, 4\)"),
        (GOOD[:, :0], GOOD[:, :0], EmptyError, "no sample"),
        (spoilt(2, 1, np.nan), GOOD, InputError, "1 values .* model 2, sample 1; .*leave it out"),
        (GOOD, spoilt(0, 3, -np.inf), InputError, "retrained holds 1 .* model 0, sample 3"),
        (GOOD, spoilt(0, 3, 1e200), InputError, "not finite"),
        ([["a"]] * 3, GOOD, InputError, "unlearned must be a matrix of margins"),
        (GOOD > 0, GOOD > 1, InputError, "nothing but 0 and 1, .*give margins"),
        ((GOOD > 0).astype(float), np.ones((3, 4)), InputError, "right and wrong answers"),
    ],
)
def test_what_cannot_be_attacked(unlearned, retrained, error, words) -> None:
    with pytest.raises(error, match=words):
        u_lira(unlearned, retrained)


def test_a_destroyed_model_s_zeros_are_no_correctness() -> None:
    assert u_lira(np.zeros((6, 4)), GOOD).auc > 0.5


@pytest.mark.parametrize(
    ("retrained", "settings", "error", "words"),
    [
        (GOOD[:5], {}, InputError, "5 models, expected at least 6"),
        (GOOD > 0, {}, InputError, "nothing but 0 and 1"),
        (GOOD, {"halvings": 0}, SettingsError, "halvings is 0, expected a whole number >= 1"),
        (GOOD, {"seed": -1}, SettingsError, "seed is -1"),
    ],
)
def test_what_has_no_floor(retrained, settings, error, words) -> None:
    with pytest.raises(error, match=words):
        u_lira_floor(retrained, **settings)


def moving(draw: np.random.Generator, models: int, shift: float = 0.0) -> np.ndarray:
    """Return margins of models each of which moves all samples together."""
    return np.linspace(-2, 2, 30) + draw.normal(shift, 0.7, (models, 1)) + 0.7 * draw.normal(size=(models, 30))


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_interval_holds_the_truth_as_often_as_it_says(shift) -> None:
    draw = np.random.default_rng(1)
    found = []
    for _ in range(150):
        left, right = moving(draw, 8, shift), moving(draw, 8)
        found.append((u_lira(left, right).auc, *u_lira_intervals(left, right).auc))
    areas, lows, highs = np.array(found).T
    truth = areas.mean()
    assert ((lows < areas) & (areas < highs)).all()
    assert ((lows <= truth) & (truth <= highs)).sum() >= 135  # 142 expected, 2.7 a standard deviation
    assert np.mean(highs - lows) < 8 * areas.std()  # and not by being endless
    assert np.mean(highs - lows) > 3 * areas.std()


def test_the_interval_refits_without_each_model() -> None:
    draw = np.random.default_rng(2)
    left, right = moving(draw, 6, 0.8), moving(draw, 5)
    value = u_lira(left, right)
    variance = np.zeros(2)
    for matrix, other, swap in ((left, right, False), (right, left, True)):
        found = []
        for at in range(len(matrix)):
            pair = [np.delete(matrix, at, axis=0), other]
            one = u_lira(*(pair[::-1] if swap else pair))
            found.append((one.auc, one.tpr_at_1))
        variance += (len(matrix) - 1) * np.var(found, axis=0)
    logit = math.log(value.auc / (1 - value.auc))
    width = student.ppf(0.975, 9) * math.sqrt(variance[0]) / (value.auc * (1 - value.auc))
    intervals = u_lira_intervals(left, right)
    assert [math.log(end / (1 - end)) for end in intervals.auc] == pytest.approx([logit - width, logit + width])
    assert intervals.tpr_at_1[0] <= value.tpr_at_1 <= intervals.tpr_at_1[1]
    assert intervals.worst[0] <= value.worst <= intervals.worst[1]


def test_models_that_are_told_without_a_mistake_have_no_interval() -> None:
    draw = np.random.default_rng(3)
    assert u_lira_intervals(moving(draw, 6, 50.0), moving(draw, 6)).auc is None


def test_an_interval_takes_one_model_more() -> None:
    with pytest.raises(InputError, match="3 models, expected at least 4"):
        u_lira_intervals(GOOD[:3], GOOD)


def slow_request(unlearned: np.ndarray, retrained: np.ndarray) -> float:
    """Every pair of models by itself, scored by scipy's normals that were fitted without either."""
    won = 0.0
    for i in range(len(unlearned)):
        for j in range(len(retrained)):
            sides = np.delete(unlearned, i, axis=0), np.delete(retrained, j, axis=0)
            u, r = ((side.mean(axis=0), np.maximum(side.std(axis=0, ddof=1), 0.1)) for side in sides)
            mine, theirs = (
                sum(max(-3.0, min(3.0, each)) for each in norm.logpdf(model, *u) - norm.logpdf(model, *r))
                for model in (unlearned[i], retrained[j])
            )
            won += 1.0 if mine > theirs else 0.5 if mine == theirs else 0.0
    return won / (len(unlearned) * len(retrained))


@pytest.mark.parametrize(("n", "m", "shift"), [(3, 3, 0.0), (5, 8, 0.5), (7, 4, -0.3), (6, 6, 0.2), (9, 9, 0.1)])
def test_a_request_is_every_pair_of_models_by_itself(n, m, shift) -> None:
    draw = np.random.default_rng(n)
    unlearned, retrained = (
        shift + draw.standard_t(2, (n, 23)),
        draw.standard_t(2, (m, 23)),
    )  # so that ratios are bounded
    unlearned[:, 3] = 1.25
    assert request_u_lira(unlearned, retrained) == pytest.approx(slow_request(unlearned, retrained))


def test_a_shift_that_no_sample_shows_adds_up_over_a_request() -> None:
    # Equal spread, a shift of d in each of S samples: the sum of the ratios is d·√S apart, so AUC = Φ(d·√S / √2).
    draw = np.random.default_rng(0)
    shifted, retrained = draw.normal(0.5, 1, (300, 4)), draw.normal(0, 1, (300, 4))
    assert u_lira(shifted, retrained).auc == pytest.approx(norm.cdf(0.5 / np.sqrt(2)), abs=0.03)
    assert request_u_lira(shifted, retrained) == pytest.approx(norm.cdf(1 / np.sqrt(2)), abs=0.03)


@pytest.mark.parametrize("samples", [1, 20, 200])
def test_equal_models_are_at_chance_however_many_samples_are_summed(samples) -> None:
    draw = np.random.default_rng(1)
    found = [request_u_lira(*draw.normal(size=(2, 12, samples))) for _ in range(60)]
    assert np.mean(found) == pytest.approx(0.5, abs=3 * np.std(found) / np.sqrt(60))


def test_a_few_samples_in_the_tails_do_not_decide_a_request() -> None:
    # Student's t with 3 degrees of freedom, a shift of 0.3: 0.72 with the bound and 0.59 without
    draw = np.random.default_rng(2)
    found = [request_u_lira(0.3 + draw.standard_t(3, (16, 200)), draw.standard_t(3, (16, 200))) for _ in range(30)]
    assert np.mean(found) > 0.66


def test_the_floor_of_a_request_is_the_range_over_the_same_halvings() -> None:
    models = np.random.default_rng(5).normal(size=(12, 30))
    draw, areas = np.random.default_rng(3), []
    for _ in range(30):
        order = draw.permutation(12)
        areas.append(request_u_lira(models[order[:6]], models[order[6:]]))
    found = request_floor(models, halvings=30, seed=3)
    assert found == pytest.approx((*np.percentile(areas, [2.5, 97.5]), np.mean(areas)))
    assert at_floor(found.mean, found)


def test_the_interval_of_a_request_holds_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(1)
    found = []
    for _ in range(100):
        left, right = moving(draw, 8, 0.5), moving(draw, 8)
        found.append((request_u_lira(left, right), *(request_interval(left, right) or (0.0, 1.0))))
    areas, lows, highs = np.array(found).T
    assert ((lows <= areas.mean()) & (areas.mean() <= highs)).sum() >= 88  # 95 expected, 2.2 a standard deviation


def test_the_smallest_shift_is_where_the_closed_form_reaches_the_floor() -> None:
    # AUC = Φ(d / √2) is 0.76 for d = 1; by a request of 4 samples it is 0.76 for d = 1/2.
    models = np.random.default_rng(8).normal(size=(600, 4))
    floor = RequestFloor(0.24, float(norm.cdf(1 / np.sqrt(2))), 0.5)
    assert smallest_shift(models, floor, halvings=5) == pytest.approx(1.0, abs=0.1)
    assert smallest_shift(models, floor, request_u_lira, halvings=5) == pytest.approx(0.5, abs=0.06)


def test_a_smallest_shift_is_seen_and_half_of_it_is_not() -> None:
    models = np.random.default_rng(9).normal(size=(32, 30))
    floor = u_lira_floor(models)
    found = smallest_shift(models, floor)
    draw = np.random.default_rng(10)
    shares = []
    for shift in (found / 2, found, 2 * found):
        pairs = [(draw.normal(shift, 1, (16, 30)), draw.normal(size=(16, 30))) for _ in range(100)]
        shares.append(np.mean([not at_floor(u_lira(*pair).auc, floor) for pair in pairs]))
    assert shares[0] < 0.5
    assert 0.6 < shares[1] < 0.95
    assert shares[2] == 1


def test_more_models_see_a_smaller_shift_and_a_floor_up_to_one_sees_none() -> None:
    draw = np.random.default_rng(11)
    few, many = draw.normal(size=(16, 30)), draw.normal(size=(64, 30))
    assert smallest_shift(many, u_lira_floor(many)) < smallest_shift(few, u_lira_floor(few))
    assert smallest_shift(few, RequestFloor(0.0, 1.0, 0.5), request_u_lira) is None


def test_the_smallest_shift_is_that_of_the_whole_attack() -> None:
    models = np.random.default_rng(1).normal(size=(12, 30))
    floor = u_lira_floor(models, halvings=50)
    whole = smallest_shift(models, floor, lambda mine, theirs: u_lira(mine, theirs).auc, halvings=10)
    assert smallest_shift(models, floor, halvings=10) == whole
