"""LiRA against scipy's normals, sample by sample; RMIA by hand and against its definition, pair by pair."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from forsaken.errors import InputError, SettingsError
from forsaken.metrics import lira, rmia, separation


def setting(models: int, samples: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    # exactly half of the models saw each sample, as in Carlini et al.
    inside = np.array([draw.permutation(models) < models // 2 for _ in range(samples)]).T
    references = draw.normal(0, draw.uniform(0.5, 2, samples), (models, samples)) + 3 * inside
    return draw.normal(1.5, 2, samples), references, inside


def test_many_models_have_a_spread_for_each_sample() -> None:
    observed, references, inside = setting(20, 15, 0)
    found = lira(observed, references, inside)
    for s in range(15):
        within, without = references[inside[:, s], s], references[~inside[:, s], s]
        expected = norm.logpdf(observed[s], within.mean(), within.std(ddof=1))
        expected -= norm.logpdf(observed[s], without.mean(), without.std(ddof=1))
        assert found[s] == pytest.approx(expected)


def test_few_models_share_their_spread() -> None:
    observed, references, inside = setting(8, 15, 1)
    found = lira(observed, references, inside)

    def pooled(side: np.ndarray) -> float:
        groups = [references[side[:, s], s] for s in range(15)]
        return float(np.sqrt(np.mean([group.var(ddof=1) for group in groups])))  # groups are equally large

    sigmas = pooled(inside), pooled(~inside)
    for s in range(15):
        within, without = references[inside[:, s], s].mean(), references[~inside[:, s], s].mean()
        expected = norm.logpdf(observed[s], within, sigmas[0]) - norm.logpdf(observed[s], without, sigmas[1])
        assert found[s] == pytest.approx(expected)


def test_the_floor_of_the_spread() -> None:
    references = np.repeat([[5.0], [0.0]], 3, axis=0)
    inside = references == 5.0
    assert lira([5.0], references, inside)[0] == pytest.approx(0.5 * (5 / 0.1) ** 2)


def test_lira_higher_means_member() -> None:
    draw = np.random.default_rng(2)
    _, references, inside = setting(16, 400, 3)
    members = draw.random(400) < 0.5
    observed = draw.normal(size=400) + 3 * members
    found = lira(observed, references, inside)
    assert separation(found[members], found[~members]) > 0.9


REFERENCES, INSIDE = (
    np.arange(8.0).reshape(4, 2),
    np.array([[True, True], [True, True], [False, False], [False, False]]),
)


@pytest.mark.parametrize(
    ("observed", "references", "inside", "words"),
    [
        ([1.0], REFERENCES, INSIDE, "observed has 1 samples .* references has 2"),
        ([[1.0, 2.0]], REFERENCES, INSIDE, r"observed has shape \(1, 2\), expected a flat array"),
        ([1.0, np.nan], REFERENCES, INSIDE, "observed holds 1 values that are not finite"),
        ([1.0, 2.0], np.full((4, 2), np.inf), INSIDE, "references holds 8 values"),
        ([1.0, 2.0], REFERENCES, INSIDE[:3], r"inside has dtype bool and shape \(3, 2\), .* \(4, 2\)"),
        ([1.0, 2.0], REFERENCES, INSIDE * 1, "inside has dtype int64"),
        ([1.0, 2.0], REFERENCES, INSIDE & [True, False], r"only 0 of the 4 .* were trained on it \(sample 1\)"),
        ([1.0, 2.0], REFERENCES, ~INSIDE | [False, True], r"only 0 of the 4 .* not trained on it \(sample 1\)"),
        ([1.0, 0.0], INSIDE * 1.0, INSIDE, "nothing but 0 and 1"),
    ],
)
def test_lira_what_cannot_be_attacked(observed, references, inside, words) -> None:
    with pytest.raises(InputError, match=words):
        lira(observed, references, inside)


def test_one_model_on_a_side_has_no_spread() -> None:
    inside = np.array([[True], [False], [False]])
    with pytest.raises(InputError, match=r"only 1 of the 3 .*at least 2; train more reference models"):
        lira([1.0], [[1.0], [2.0], [3.0]], inside)


def test_rmia_by_hand() -> None:
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
def test_rmia_is_the_definition_pair_by_pair(gamma) -> None:
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


def test_rmia_higher_means_member() -> None:
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


P, HALF = np.full((2, 3), 0.5), np.array([[True] * 3, [False] * 3])


@pytest.mark.parametrize(
    ("observed", "references", "inside", "public", "strangers", "words"),
    [
        ([0.5] * 2, P, HALF, [0.5], [[0.5]] * 2, "observed has 2 samples .* references has 3"),
        ([0.5] * 3, P, HALF, [0.5] * 2, [[0.5]] * 2, "population_observed has 2 .* population_references has 1"),
        ([0.5] * 3, P, HALF, [0.5], [[0.5]] * 3, "references has 2 models and population_references 3"),
        ([0.5] * 3, P, HALF[:1], [0.5], [[0.5]] * 2, r"inside has .* shape \(1, 3\)"),
        ([0.5] * 3, P, HALF | True, [0.5], [[0.5]] * 2, "only 0 of the 2 .* were not trained on it"),
        ([0.5, 0.0, 0.5], P, HALF, [0.5], [[0.5]] * 2, r"observed holds values from 0.0 to 0.5, .*\(0, 1\]"),
        ([0.5] * 3, P + 1, HALF, [0.5], [[0.5]] * 2, "references holds values from 1.5"),
        ([0.5] * 3, P, HALF, [np.nan], [[0.5]] * 2, "population_observed holds values from nan"),
        ([0.5] * 3, P, HALF, [], np.ones((2, 0)), r"population_observed has shape \(0,\)"),
        ([0.5] * 3, P[0], HALF, [0.5], [[0.5]] * 2, r"references has shape \(3,\), expected models x samples"),
    ],
)
def test_rmia_what_cannot_be_attacked(observed, references, inside, public, strangers, words) -> None:
    with pytest.raises(InputError, match=words):
        rmia(observed, references, inside, public, strangers)


def test_gamma_is_checked() -> None:
    with pytest.raises(SettingsError, match="gamma is 0"):
        rmia([0.5] * 3, P, HALF, [0.5], [[0.5]] * 2, gamma=0)
