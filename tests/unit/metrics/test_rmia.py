"""RMIA by hand, and against the definition pair by pair."""

from __future__ import annotations

import numpy as np
import pytest

from forsaken.errors import InputError, SettingsError
from forsaken.metrics import rmia, separation


def test_by_hand() -> None:
    references = [[0.8, 0.6], [0.6, 0.2], [0.1, 0.4]]
    inside = [[True, False], [True, True], [False, False]]
    # Pr: ½(0.7 + 0.1) = 0.4, ½(0.2 + 0.5) = 0.35; ratios 0.8 / 0.4 = 2 and 0.14 / 0.35 = 0.4
    population, strangers = [0.5, 0.5, 0.3, 0.1], [[0.5, 0.25, 0.3, 0.5]] * 3
    # ratios of the population: 1, 2, 1, 0.2
    assert rmia([0.8, 0.14], references, inside, population, strangers).tolist() == pytest.approx([1.0, 0.25])
    assert rmia([0.8, 0.14], references, inside, population, strangers, gamma=2).tolist() == [0.75, 0.25]
    assert rmia([0.8, 0.14], references, inside, population, strangers, gamma=2.5).tolist() == [0.25, 0.0]


def test_a_tie_counts_as_outdone() -> None:
    found = rmia([0.5], [[0.75], [0.25]], [[True], [False]], [0.5, 0.25], [[0.5, 0.5]] * 2)
    assert found.tolist() == [1.0]  # ratios 1 against 1 and 0.5, all exact


@pytest.mark.parametrize("gamma", [0.8, 1.0, 2.0])
def test_is_the_definition_pair_by_pair(gamma) -> None:
    draw = np.random.default_rng(0)
    observed, references = draw.uniform(0.01, 1, 30), draw.uniform(0.01, 1, (6, 30))
    inside = np.array([draw.permutation(6) < 3 for _ in range(30)]).T
    public, strangers = draw.uniform(0.01, 1, 40), draw.uniform(0.01, 1, (6, 40))
    found = rmia(observed, references, inside, public, strangers, gamma=gamma)
    for s in range(30):
        within, without = references[inside[:, s], s].mean(), references[~inside[:, s], s].mean()
        ratio = observed[s] / ((within + without) / 2)
        wins = sum(ratio / (public[z] / strangers[:, z].mean()) >= gamma for z in range(40))
        assert found[s] == pytest.approx(wins / 40)


def test_higher_means_member() -> None:
    draw = np.random.default_rng(1)

    def p(margins: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-margins))

    hard = draw.normal(0, 2, 300)
    inside = np.array([draw.permutation(8) < 4 for _ in range(300)]).T
    members = draw.random(300) < 0.5
    references = p(hard + draw.normal(0, 0.5, (8, 300)) + 3 * inside)
    observed = p(hard + draw.normal(0, 0.5, 300) + 3 * members)
    other = draw.normal(0, 2, 200)
    found = rmia(observed, references, inside, p(other), p(other + draw.normal(0, 0.5, (8, 200))))
    assert separation(found[members], found[~members]) > 0.95


P, INSIDE = np.full((2, 3), 0.5), np.array([[True] * 3, [False] * 3])


@pytest.mark.parametrize(
    ("observed", "references", "inside", "public", "strangers", "words"),
    [
        ([0.5] * 2, P, INSIDE, [0.5], [[0.5]] * 2, "observed has 2 samples .* references has 3"),
        ([0.5] * 3, P, INSIDE, [0.5] * 2, [[0.5]] * 2, "population_observed has 2 .* population_references has 1"),
        ([0.5] * 3, P, INSIDE, [0.5], [[0.5]] * 3, "references has 2 models and population_references 3"),
        ([0.5] * 3, P, INSIDE[:1], [0.5], [[0.5]] * 2, r"inside has .* shape \(1, 3\)"),
        ([0.5] * 3, P, INSIDE | True, [0.5], [[0.5]] * 2, "only 0 of the 2 .* were not trained on it"),
        ([0.5, 0.0, 0.5], P, INSIDE, [0.5], [[0.5]] * 2, r"observed holds values from 0.0 to 0.5, .*\(0, 1\]"),
        ([0.5] * 3, P + 1, INSIDE, [0.5], [[0.5]] * 2, "references holds values from 1.5"),
        ([0.5] * 3, P, INSIDE, [np.nan], [[0.5]] * 2, "population_observed holds values from nan"),
        ([0.5] * 3, P, INSIDE, [], np.ones((2, 0)), r"population_observed has shape \(0,\)"),
        ([0.5] * 3, P[0], INSIDE, [0.5], [[0.5]] * 2, r"references has shape \(3,\), expected models x samples"),
    ],
)
def test_what_cannot_be_attacked(observed, references, inside, public, strangers, words) -> None:
    with pytest.raises(InputError, match=words):
        rmia(observed, references, inside, public, strangers)


def test_gamma_is_checked() -> None:
    with pytest.raises(SettingsError, match="gamma is 0"):
        rmia([0.5] * 3, P, INSIDE, [0.5], [[0.5]] * 2, gamma=0)
