"""Pictures: what lies where, against numbers computed here."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from report_runs import make_arrays, make_result, typed
from sklearn.metrics import roc_curve

from forsaken.auditing.result import Curve, Divergence, Spread
from forsaken.report.figures import (
    Map,
    Plot,
    accuracy_picture,
    drift_picture,
    histograms,
    klom_picture,
    line_ticks,
    log_ticks,
    margin_picture,
    objective_curve,
    reached,
    roc_picture,
)
from forsaken.result import Step


def test_a_frame_puts_values_where_they_belong() -> None:
    plot = Plot(100, 100, (0, 10), (1, 100), log_upward=True, left=10, right=10, top=10, bottom=10)
    assert (plot.x(0), plot.x(5), plot.x(10)) == (10, 50, 90)
    assert (plot.y(1), plot.y(10), plot.y(100)) == (90, 50, 10)


@pytest.mark.parametrize(("low", "high"), [(0, 1e-9), (0, 1), (3, 3), (-5, 7), (0, 1e300), (0.95, 0.951)])
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    ticks = line_ticks(low, high)
    assert 1 <= len(ticks) <= 12
    assert all(low - 1e-9 * abs(high) <= tick <= high * (1 + 1e-9) for tick in ticks)


def test_log_ticks_are_few() -> None:
    assert len(log_ticks(1e-300, 1e300)) <= 7
    assert log_ticks(2, 3) == [2, 3]


def test_histograms_show_shares_on_one_scale() -> None:
    arrays = {"before_forget": np.array([[0.5]] * 3 + [[0.99]]), "after_forget": np.array([[0.01], [0.5]])}
    first, second = histograms(typed(make_result()), arrays)
    tall = [float(height) for height in re.findall(r'width="11.5" height="([\d.]+)"', first.picture)]
    assert tall[0] == pytest.approx(3 * tall[1], abs=0.3)
    assert len(re.findall(r"<rect", second.picture)) == 2
    assert "the mean largest posterior of 4 samples is 0.62" in first.picture


def steps(values: list[float], **others: float) -> list[Step]:
    rest = {"distance": 0.0, "anchor": 0.0, "penalty": -1.0, "density": 0.5, "step": 1.0, "seconds": 0.0} | others
    return [Step(iteration=n, objective=value, **rest) for n, value in enumerate(values, 1)]


def test_the_curve_leaves_out_what_a_logarithm_cannot_show() -> None:
    drawn = objective_curve(steps([0.1, 0.01, 0.001]))
    assert drawn.count('class="line') == 1
    assert "it ends at 0.001" in drawn
    assert objective_curve([]) == ""
    assert objective_curve(steps([0.0])) == ""


def test_a_long_curve_is_thinned_and_keeps_its_end() -> None:
    path = re.search(r'class="line objective" d="M([^"]+)"', objective_curve(steps(list(map(float, range(1, 5002))))))
    assert path
    points = path[1].split("L")
    assert len(points) <= 402
    assert points[-1].startswith("548 ")  # the right edge


def test_the_chain_is_drawn_with_its_bounds() -> None:
    chain = typed(make_result()).chain
    assert chain
    assert "Drift after 3 requests: 0.09; the bound is 0.08" in drift_picture(chain)
    assert drift_picture(chain).count("line bound") == 1
    assert drift_picture(chain.model_copy(update={"max_drift": None})).count("line bound") == 0
    accuracy = accuracy_picture(chain)
    assert accuracy is not None
    assert "from 0.950 to 0.920; the bound is 0.900" in accuracy
    links = [chain.links[0].model_copy(update={"accuracy_after": None}), *chain.links[1:]]
    assert accuracy_picture(chain.model_copy(update={"links": links})) is None


def test_the_map_holds_all_sets_on_one_plane() -> None:
    found = Map.of(make_arrays(make_result()))
    assert found.embedded
    assert set(found.before) == set(found.after) == {"forget", "kept", "test", "reference"}
    for side in (found.before, found.after):
        for part in side.values():
            assert part.min() >= 0
            assert part.max() <= 1
    again = Map.of(make_arrays(make_result()))
    assert np.array_equal(found.after["forget"], again.after["forget"])


@pytest.mark.parametrize("count", [1, 2])
def test_few_points_are_laid_out_by_their_posteriors(count: int) -> None:
    arrays = {name: part for name, part in make_arrays(make_result(count)).items() if name.endswith("_forget")}
    found = Map.of(arrays)
    assert not found.embedded
    assert np.allclose(found.before["forget"], arrays["before_forget"][:, :2])


def test_equal_points_are_no_problem() -> None:
    found = Map.of(
        {f"{when}_{part}": np.full((50, 3), 1 / 3) for when in ("before", "after") for part in ("forget", "test")}
    )
    assert not found.embedded
    assert np.isfinite(found.after["test"]).all()


def test_large_sets_are_thinned(monkeypatch) -> None:
    monkeypatch.setattr("forsaken.report.figures._arranged", lambda points: (points[:, :2], True))
    draw = np.random.default_rng(0)
    sizes = {"forget": 2000, "kept": 5000, "test": 30}
    found = Map.of({f"{when}_{part}": draw.random((n, 3)) for part, n in sizes.items() for when in ("before", "after")})
    assert {name: len(part) for name, part in found.before.items()} == {"forget": 300, "test": 30, "kept": 170}
    assert len(set(found.forgotten)) == 300


def test_a_rate_is_what_a_threshold_reaches() -> None:
    draw = np.random.default_rng(0)
    members, others = draw.normal(1, 1, 300), draw.normal(0, 1, 200)
    fpr, tpr, _ = roc_curve([1] * 300 + [0] * 200, np.concatenate([members, others]))
    rates = np.array([0.001, 0.01, 0.1, 0.5])
    scan = [
        max(np.mean(members >= at) for at in [*others, np.inf, *members] if np.mean(others >= at) <= rate)
        for rate in rates
    ]
    assert reached(Curve(name="", fpr=tuple(fpr.tolist()), tpr=tuple(tpr.tolist())), rates) == pytest.approx(scan)


def test_a_roc_curve_lies_where_its_rates_are() -> None:
    drawn = roc_picture([Curve(name="mine", fpr=(0.0, 0.01, 0.1, 1.0), tpr=(0.0, 0.1, 0.9, 1.0))])
    left, right, top, base = 56, 408, 10, 340
    spots = [
        tuple(map(float, spot)) for spot in re.findall(r'class="spot line run0" cx="([\d.]+)" cy="([\d.]+)"', drawn)
    ]
    third, high = (right - left) / 3, (base - top) / 3
    up = base - high * (np.log10(0.9) + 3)
    wanted = [(left, base), (left + third, base - 2 * high), (left + 2 * third, up)]
    assert np.allclose(spots, wanted, atol=0.1)
    assert f'class="line guess" d="M{left} {base}L{right} {top}"' in drawn
    path = re.search(r'class="line run0" d="M([^"]+)"', drawn)
    assert path
    points = [tuple(map(float, point.split())) for point in path[1].split("L")]
    assert points[0] == (left, base), "a rate of zero lies on the lower edge"
    assert points[-1] == (right, top)
    assert max(y for x, y in points if x < left + third - 1) == base, "nothing is reached before the first point"
    assert "<title>mine: TPR 0.900 at FPR 0.1</title>" in drawn
    assert "mine: true positive rate 0.100 at 1 % false positives" in drawn


def heights(path: str, base: float) -> list[float]:
    return [base - float(at) for at in re.findall(r"V([\d.]+)H", path)]


def test_margins_are_shares_in_common_bins_and_the_largest_counts() -> None:
    spread = Spread(row=0, unlearned=(0.0, 10.0, 10.0, 10.0), retrained=(0.0, 0.0, 5.0, 5.0))
    drawn = margin_picture(spread, "row 7")
    green, blue = (
        re.search(rf'class="{kind}" d="([^"]+)"', drawn)[1]  # type: ignore[index]
        for kind in ("fill after", "stairs retrained")
    )
    tall = 130 - 24 - 8
    assert np.flatnonzero(heights(green, 106)).tolist() == [0, 19]
    assert heights(green, 106)[19] == pytest.approx(tall, abs=0.1)
    assert heights(green, 106)[0] == pytest.approx(tall / 3, abs=0.1)
    assert np.flatnonzero(heights(blue, 106)).tolist() == [0, 10]
    assert heights(blue, 106)[10] == pytest.approx(tall * 0.5 / 0.75, abs=0.1)
    assert "faint" not in drawn
    assert "<title>margin 9.50 to 10.00: unlearned 3 of 4</title>" in drawn
    assert "<title>margin 0.00 to 0.50: unlearned 1 of 4, retrained 2 of 4</title>" in drawn
    assert "Margins of row 7; means: unlearned 7.50 (4 models), retrained 2.50 (4 models)" in drawn


@pytest.mark.parametrize("value", [0.0, 1e300, -1e300, 5e-324])
def test_margins_that_are_all_the_same(value: float) -> None:
    drawn = margin_picture(Spread(row=0, unlearned=(value,), retrained=(value,), before=(value,)), "row 0")
    assert "nan" not in drawn
    assert "fill faint forget" in drawn


def test_klom_lies_between_floor_and_ceiling() -> None:
    marks: dict[str, Any] = {"value": (2.0, 5.0), "floor": (1.0, 3.0), "ceiling": (8.0, 10.0)}
    drawn = klom_picture([Divergence(part="forget", n=1200, **marks)])
    wide = 560 - 76 - 16
    for kind, mark in (("fill after", "value"), ("stop retrained", "floor"), ("stop forget", "ceiling")):
        found = [float(x) for x in re.findall(rf'class="{kind}" d="M([\d.]+) ', drawn)]
        assert np.allclose(found, [76 + wide * value / 10.5 for value in marks[mark]], atol=0.1), mark
    assert "forget (1,200)" in drawn
    assert "<title>forget, mean: unlearned 2, floor 1, ceiling 8</title>" in drawn
    assert "forget, 95th percentile: unlearned 5, floor 3, ceiling 10" in drawn


def test_every_mark_can_be_nothing() -> None:
    zero = Divergence(part="test", n=0, value=(0.0, 0.0), floor=(0.0, 0.0), ceiling=(0.0, 5e-324))
    assert "nan" not in klom_picture([zero])
