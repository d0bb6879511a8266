"""Exposure of secrets, against ranks counted by hand and SciPy's own skew-normal distribution."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from forsaken.errors import InputError
from forsaken.metrics.exposure import exposure_by_fit, exposure_by_rank


def test_the_likeliest_of_all_fills_has_all_bits() -> None:
    space = np.random.default_rng(0).permutation(1024.0 + np.arange(1024))
    bits = exposure_by_rank(space, space, all_fills=True)
    ranks = stats.rankdata(space)
    np.testing.assert_allclose(bits, 10 - np.log2(ranks))


def test_ties_share_the_worse_rank() -> None:
    bits = exposure_by_rank(np.array([1.0]), np.array([1.0, 1.0, 2.0, 3.0]), all_fills=True)
    assert bits.tolist() == [1.0], "an attacker has to try both"


def test_sampled_fills_bound_the_rank() -> None:
    fills = np.arange(1.0, 1024.0)
    assert exposure_by_rank(np.array([0.0, 5000.0]), fills).tolist() == [10.0, 0.0]


@pytest.mark.parametrize("shape", [-4.0, 0.0, 3.0])
def test_the_fit_agrees_with_the_true_distribution(shape: float) -> None:
    law = stats.skewnorm(shape, loc=80.0, scale=12.0)
    fills = law.rvs(20_000, random_state=0)
    secrets = law.ppf([1e-4, 1e-2, 0.2, 0.7, 0.999])
    np.testing.assert_allclose(exposure_by_fit(secrets, fills), -np.log2(law.cdf(secrets)), rtol=0.12, atol=0.03)


def test_fit_and_rank_agree_where_both_reach() -> None:
    draw = np.random.default_rng(1)
    fills, secrets = draw.gamma(40.0, size=50_000), draw.gamma(40.0, size=300)
    assert np.abs(exposure_by_fit(secrets, fills) - exposure_by_rank(secrets, fills)).mean() < 0.1


def test_the_fit_does_not_underflow() -> None:
    fills = stats.norm(100.0, 2.0).rvs(5000, random_state=0)
    bits = exposure_by_fit(np.array([10.0, 40.0, 500.0]), fills)
    assert np.isfinite(bits).all()
    assert bits[0] > bits[1] > 300
    assert bits[2] == 0.0


def test_a_secret_that_was_never_seen_has_one_and_a_half_bits() -> None:
    draw = np.random.default_rng(2)
    bits = exposure_by_rank(draw.normal(size=20_000), draw.normal(size=20_000))
    assert bits.mean() == pytest.approx(1 / np.log(2), abs=0.06)


@pytest.mark.parametrize(
    ("secrets", "fills"), [([], [1.0]), ([1.0], []), ([np.nan], [1.0, 2.0]), ([1.0], [1.0, np.inf])]
)
def test_what_is_missing_or_not_finite_is_refused(secrets: list[float], fills: list[float]) -> None:
    with pytest.raises(InputError, match="finite log-perplexities"):
        exposure_by_rank(np.array(secrets), np.array(fills))


def test_a_space_without_the_secret_is_refused() -> None:
    with pytest.raises(InputError, match="must contain it"):
        exposure_by_rank(np.array([0.0]), np.array([1.0, 2.0]), all_fills=True)


def test_a_fit_needs_fills_that_differ() -> None:
    with pytest.raises(InputError, match="at least 20"):
        exposure_by_fit(np.array([0.0]), np.ones(100))
