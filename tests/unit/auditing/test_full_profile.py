"""The full profile on matrices whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from forsaken.auditing.curves import caught, curve
from forsaken.auditing.full import Full
from forsaken.auditing.matrices import Matrices
from forsaken.errors import InputError
from forsaken.metrics import klom, roc, tpr_at, u_lira

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


def numbers(found: Matrices) -> dict:
    return {number.name: number for number in Full(found, "unlearned").numbers()}


def test_a_perfect_method_is_at_the_floor_of_every_number():
    found = numbers(matrices())
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
        assert numbers(matrices(unlearned=shift))["u_lira_auc"].value > 0.9


def test_a_destroyed_model_loses_by_its_accuracy():
    assert numbers(matrices(accuracy=0.1))["neurips_score"].value < 0.2 * numbers(matrices())["neurips_score"].value


def test_the_numbers_are_those_of_the_pure_functions():
    ours = matrices(unlearned=1.0)
    found, margins = numbers(ours), ours.margins
    first = margins["retrained"]["forget"][:N]
    assert found["u_lira_auc"].value == u_lira(margins["unlearned"]["forget"], first).auc
    assert found["klom_forget_mean"].value == pytest.approx(klom(margins["unlearned"]["forget"], first).mean())
    assert found["klom_forget_mean"].retrained == pytest.approx(klom(margins["retrained"]["forget"][N:], first).mean())
    assert found["u_lira_auc"].n == 2 * N * SAMPLES


def test_the_interval_holds_the_value_and_is_wider_with_fewer_models():
    def width(n: int) -> float:
        one = numbers(matrices(unlearned=0.5, n=n))["u_lira_auc"]
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
    thin = curve("c", whole)
    assert len(thin.fpr) <= 402
    assert (thin.fpr[0], thin.tpr[0]) == (0, 0)
    assert (thin.fpr[-1], thin.tpr[-1]) == (1, 1)
    known = {(round(float(f), 6), round(float(t), 6)) for f, t in zip(whole.fpr, whole.tpr, strict=True)}
    assert set(zip(thin.fpr, thin.tpr, strict=True)) <= known


def test_few_models_are_a_warning_and_too_few_an_error():
    assert "8 originals" in Full(matrices(n=8), "unlearned").warnings()[0]
    assert Full(matrices(n=16), "unlearned").warnings() == []
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


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 1.0])
def test_the_quick_point_is_the_curve_s(share):
    draw = np.random.default_rng(1)
    for _ in range(20):
        positives, negatives = draw.normal(1, 1, 300).round(1), draw.normal(0, 1, 200).round(1)
        assert caught(positives, negatives, share=share) == pytest.approx(tpr_at(roc(positives, negatives), share))
