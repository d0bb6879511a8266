"""LiRA against scipy's normals, sample by sample."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from forsaken.errors import InputError, SettingsError
from forsaken.metrics import lira, separation


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
    assert lira([5.0], references, inside, floor=0.5)[0] == pytest.approx(0.5 * (5 / 0.5) ** 2)


def test_higher_means_member() -> None:
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
def test_what_cannot_be_attacked(observed, references, inside, words) -> None:
    with pytest.raises(InputError, match=words):
        lira(observed, references, inside)


def test_one_model_on_a_side_has_no_spread() -> None:
    inside = np.array([[True], [False], [False]])
    with pytest.raises(InputError, match=r"only 1 of the 3 .*at least 2; train more reference models"):
        lira([1.0], [[1.0], [2.0], [3.0]], inside)


def test_the_floor_is_checked() -> None:
    with pytest.raises(SettingsError, match="floor is 0"):
        lira([1.0, 2.0], REFERENCES, INSIDE, floor=0)
