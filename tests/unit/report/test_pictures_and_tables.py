"""Pictures and tables: what lies where, against numbers computed here."""

from __future__ import annotations

import re

import numpy as np
import pytest
from report_runs import make_arrays, make_result

from forsaken.report.figures import accuracy_picture, curve, drift_picture, histograms
from forsaken.report.places import MOST, MOST_FORGET, places
from forsaken.report.svg import Frame, line_ticks, log_ticks
from forsaken.report.tables import grouped, numbers, pairs


def test_a_frame_puts_values_where_they_belong() -> None:
    frame = Frame(100, 100, (0, 10), (1, 100), log=True, left=10, right=10, top=10, bottom=10)
    assert (frame.x(0), frame.x(5), frame.x(10)) == (10, 50, 90)
    assert (frame.y(1), frame.y(10), frame.y(100)) == (90, 50, 10)


@pytest.mark.parametrize(("low", "high"), [(0, 1e-9), (0, 1), (3, 3), (-5, 7), (0, 1e300), (0.95, 0.951)])
def test_ticks_are_few_and_inside(low: float, high: float) -> None:
    ticks = line_ticks(low, high)
    assert 1 <= len(ticks) <= 12
    assert all(low - 1e-9 * abs(high) <= tick <= high * (1 + 1e-9) for tick in ticks)


def test_log_ticks_are_few() -> None:
    assert len(log_ticks(1e-300, 1e300)) <= 7
    assert log_ticks(2, 3) == [2, 3]


def test_histograms_show_shares_on_one_scale() -> None:
    first, second = histograms({"a": np.array([0.5] * 3 + [0.99]), "b": np.array([0.01, 0.5])}, ["forget", "after"])
    tall = [float(height) for height in re.findall(r'width="11.5" height="([\d.]+)"', first)]
    assert tall[0] == pytest.approx(3 * tall[1], abs=0.3)
    assert len(re.findall(r"<rect", second)) == 2
    assert "the mean largest posterior of 4 samples is 0.62" in first


def test_the_curve_leaves_out_what_a_logarithm_cannot_show() -> None:
    steps = [
        {"iteration": n, "objective": 10.0**-n, "distance": None, "anchor": 0.0, "penalty": -1.0} for n in (1, 2, 3)
    ]
    drawn = curve(steps)
    assert drawn.count('class="line') == 1
    assert "it ends at 0.001" in drawn
    assert curve([]) == ""
    assert curve([steps[0] | {"objective": 0.0}]) == ""


def test_a_long_curve_is_thinned_and_keeps_its_end() -> None:
    steps = [
        {"iteration": n, "objective": float(n), "distance": None, "anchor": None, "penalty": None}
        for n in range(1, 5002)
    ]
    path = re.search(r'class="line objective" d="M([^"]+)"', curve(steps))
    assert path
    points = path[1].split("L")
    assert len(points) <= 402
    assert points[-1].startswith("548 ")  # the right edge


def test_the_chain_is_drawn_with_its_bounds() -> None:
    chain = make_result()["chain"]
    assert "Drift after 3 requests: 0.09; the bound is 0.08" in drift_picture(chain)
    assert drift_picture(chain).count("line bound") == 1
    assert drift_picture(chain | {"max_drift": None}).count("line bound") == 0
    accuracy = accuracy_picture(chain)
    assert accuracy is not None
    assert "from 0.950 to 0.920; the bound is 0.900" in accuracy
    chain["links"][1]["accuracy_after"] = None
    assert accuracy_picture(chain) is None


def test_the_map_holds_all_sets_on_one_plane() -> None:
    found = places(make_arrays(make_result()))
    assert found.embedded
    assert set(found.before) == set(found.after) == {"forget", "kept", "test", "reference"}
    for side in (found.before, found.after):
        for part in side.values():
            assert part.min() >= 0
            assert part.max() <= 1
    again = places(make_arrays(make_result()))
    assert np.array_equal(found.after["forget"], again.after["forget"])


@pytest.mark.parametrize("count", [1, 2])
def test_few_points_are_laid_out_by_their_posteriors(count: int) -> None:
    arrays = {name: part for name, part in make_arrays(make_result(count)).items() if name.endswith("_forget")}
    found = places(arrays)
    assert not found.embedded
    assert np.allclose(found.before["forget"], arrays["before_forget"][:, :2])


def test_equal_points_are_no_problem() -> None:
    found = places(
        {f"{when}_{part}": np.full((50, 3), 1 / 3) for when in ("before", "after") for part in ("forget", "test")}
    )
    assert not found.embedded
    assert np.isfinite(found.after["test"]).all()


def test_large_sets_are_thinned(monkeypatch) -> None:
    seen = []

    def fake(points):
        seen.append(len(points))
        return points[:, :2], True

    monkeypatch.setattr("forsaken.report.places._arranged", fake)
    draw = np.random.default_rng(0)
    sizes = {"forget": 2000, "kept": 5000, "test": 30}
    found = places({f"{when}_{part}": draw.random((n, 3)) for part, n in sizes.items() for when in ("before", "after")})
    assert seen == [2 * MOST]
    assert len(found.before["forget"]) == MOST_FORGET
    assert len(set(found.forgotten.tolist())) == MOST_FORGET
    assert len(found.before["test"]) == 30
    assert len(found.before["kept"]) == MOST - MOST_FORGET - 30


def test_parameters_of_a_transformer_are_grouped() -> None:
    layers = [
        {"name": f"encoder.layer.{n}.{part}.{kind}", "changed": n, "total": 100}
        for n in range(12)
        for part in ("attention.query", "attention.key", "attention.value", "dense", "norm", "out")
        for kind in ("weight", "bias")
    ]
    found = grouped(layers)
    assert 12 <= len(found) <= 40
    assert sum(group["changed"] for group in found) == sum(layer["changed"] for layer in layers)
    assert sum(group["parameters"] for group in found) == len(layers) == 144
    assert [group["name"] for group in grouped(layers[:4])] == [layer["name"] for layer in layers[:4]]


def test_the_table_of_numbers_never_rounds_up_to_one() -> None:
    rows = {row.name: [cell.text for cell in row.cells] for row in numbers(make_result() | {"fr": 0.9996})}
    assert rows["Forgetting rate (FR)"] == ["0", ">0.999", "0.900"]
    assert rows["Time"] == ["", "1.25 s", "5.00 s"]


def test_long_settings_are_cut() -> None:
    assert pairs({"ids": list(range(2000))})[0][1].endswith("…")
    assert pairs({"none": None, "empty": {}}) == [("none", "not set"), ("empty", "{}")]
