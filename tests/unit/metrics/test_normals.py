"""The likelihood ratio between two normals: closed forms, a simulation, and the numbers that were measured on text."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from forsaken.errors import SettingsError
from forsaken.metrics import likelihood_ratio_auc, roc, u_lira


@pytest.mark.parametrize("ratio", [0.2, 0.5, 0.9, 0.999, 1.001, 1.17, 2.0, 3.5, 30.0])
def test_without_a_shift_it_is_an_angle(ratio: float) -> None:
    expected = 2 / math.pi * math.atan(max(ratio, 1 / ratio))
    assert likelihood_ratio_auc(0.0, 0.7 * ratio, 0.7) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("shift", [-3.0, -0.2, 0.0, 0.5, 4.0])
def test_of_equal_widths_it_is_that_of_two_shifted_normals(shift: float) -> None:
    expected = norm.cdf(abs(shift) / (2 * math.sqrt(2)))
    for spread in (2.0, 2.0 * (1 + 2e-5), 2.0 * (1 - 2e-5)):
        assert likelihood_ratio_auc(shift, spread, 2.0) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("shift", "spread", "sigma"), [(0.4, 1.2, 0.4), (-0.4, 0.5, 0.8), (2.0, 0.6, 0.5), (0.1, 1, 3)]
)
def test_it_is_the_area_of_the_log_ratios_themselves(shift: float, spread: float, sigma: float) -> None:
    draw = np.random.default_rng(0)
    sides = draw.normal(shift, spread, 200_000), draw.normal(0.0, sigma, 200_000)
    ratios = [norm.logpdf(side, shift, spread) - norm.logpdf(side, 0.0, sigma) for side in sides]
    assert likelihood_ratio_auc(shift, spread, sigma) == pytest.approx(roc(*ratios).auc, abs=3e-3)


def test_it_is_the_integral_over_both_normals() -> None:
    shift, spread, sigma = 0.5, 1.5, 1.0
    grid = np.linspace(-9, 9, 901)
    ratios = norm.logpdf(grid, shift, spread) - norm.logpdf(grid, 0.0, sigma)
    weights = np.outer(norm.pdf(grid, shift, spread), norm.pdf(grid, 0.0, sigma)) * (grid[1] - grid[0]) ** 2
    expected = float((weights * ((ratios[:, None] > ratios) + 0.5 * (ratios[:, None] == ratios))).sum())
    assert likelihood_ratio_auc(shift, spread, sigma) == pytest.approx(expected, abs=1e-3)


def test_the_sign_of_a_shift_and_the_unit_make_no_difference() -> None:
    one = likelihood_ratio_auc(0.3, 1.0, 0.6)
    assert one == pytest.approx(likelihood_ratio_auc(-0.3, 1.0, 0.6), abs=1e-12)
    assert one == pytest.approx(likelihood_ratio_auc(3.0, 10.0, 6.0), abs=1e-12)


def test_many_models_measure_it() -> None:
    draw = np.random.default_rng(1)
    measured = u_lira(draw.normal(0.2, 0.8, (128, 60)), draw.normal(0.0, 0.4, (128, 60))).auc
    assert likelihood_ratio_auc(0.2, 0.8, 0.4) == pytest.approx(measured, abs=0.015)


@pytest.mark.parametrize("wrong", [(math.nan, 1.0, 1.0), (0.0, 0.0, 1.0), (0.0, 1.0, -1.0), (0.0, math.inf, 1.0)])
def test_it_refuses_what_is_no_normal(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(SettingsError, match="likelihood_ratio_auc"):
        likelihood_ratio_auc(*wrong)
