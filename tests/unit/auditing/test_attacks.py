"""References: every candidate is inside half of them, and the attacks tell members on a model that remembers."""

from __future__ import annotations

import numpy as np
import pytest
from audit_case import Small

from forsaken.auditing.attacks import ShadowModels, halves, white_box
from forsaken.auditing.inputs import AuditInputs
from forsaken.errors import InputError
from forsaken.metrics import separation
from forsaken.sets import Sets


def case(trained: Small, **changes: object) -> AuditInputs:
    sets = Sets(trained.forget, **{**trained.sets, **changes})
    return AuditInputs(trained.before, trained.after, sets, retrained=(trained.retrained,), training=trained.training)


@pytest.fixture(scope="module")
def references(trained: Small) -> ShadowModels:
    return ShadowModels.fit(case(trained), 8)


@pytest.mark.parametrize(("models", "samples"), [(4, 7), (8, 40), (16, 3)])
def test_every_sample_is_inside_exactly_half_of_the_models(models, samples):
    inside = halves(models, samples, np.random.default_rng(0))
    assert (inside.sum(0) == models // 2).all()
    assert len(np.unique(inside, axis=1).T) > 1


def test_candidates_are_the_forgotten_samples_then_as_many_others(references, trained):
    assert len(references.candidates) == 2 * len(trained.forget)
    assert len(references.candidates) == 2 * len(trained.forget)
    assert bool((references.candidates.inputs[:20] == trained.forget.inputs).all())
    assert len(references.models) == 8


def test_references_know_the_candidates_that_they_were_trained_on(references):
    phi = np.stack([one.margins for one in references.models])
    assert separation(phi[references.inside], phi[~references.inside]) > 0.7


@pytest.mark.parametrize("attack", ["lira", "rmia"])
def test_the_model_before_remembers_and_a_retrained_one_does_not(references, trained, attack):
    def auc(model: object) -> float:
        scores = references.attacks(model)[attack]
        return separation(scores[:20], scores[20:])

    assert auc(trained.before) > 0.85
    assert 0.25 < auc(trained.retrained) < 0.75


def test_numbers_have_their_neighbours_and_curves_for_the_picture(references):
    numbers, curves = references.numbers()
    assert [number.name for number in numbers] == ["rmia_auc", "rmia_tpr_1", "lira_auc", "lira_tpr_1"]
    for number in numbers[::2]:
        assert number.before is not None
        assert number.retrained is not None
        assert number.interval is not None
    assert [one.name for one in curves] == ["unlearned", "doing nothing", "retrained"]


def test_without_strangers_the_test_samples_serve_and_the_population_is_the_rest(trained):
    found = ShadowModels.fit(case(trained, nonmembers=None), 4)
    candidates = {tuple(row) for row in found.candidates.inputs.numpy().tolist()}
    assert not candidates & {tuple(row) for row in found.population.inputs.numpy().tolist()}
    assert len(found.population) == len(trained.test) - len(trained.forget)


def test_too_few_test_samples_for_a_population_are_an_error(trained):
    with pytest.raises(InputError, match="so none is left"):
        ShadowModels.fit(case(trained, nonmembers=None, test=trained.test.rows(range(10))), 4)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_too_few_or_an_odd_number_of_references_are_an_error(trained, count):
    with pytest.raises(InputError, match=f"{count} shadow models, expected an even number of at least 4"):
        ShadowModels.fit(case(trained), count)


def test_what_the_white_box_judges_is_no_part_of_what_it_learns_from(trained, monkeypatch):
    learnt: list[set[tuple[float, ...]]] = []
    judged: list[set[tuple[float, ...]]] = []

    def rows(samples: object) -> set[tuple[float, ...]]:
        return {tuple(row) for row in samples.inputs.numpy().tolist()}

    class Oracle:
        threshold = 0.5

        @classmethod
        def fit(cls, model: object, *, members: object, nonmembers: object, **_: object) -> Oracle:
            learnt.append(rows(members) | rows(nonmembers))
            return cls()

        def score(self, model: object, samples: object, **_: object) -> np.ndarray:
            judged.append(rows(samples))
            assert not judged[-1] & learnt[-1]
            return np.linspace(0, 1, len(samples))

    monkeypatch.setattr("forsaken.auditing.attacks.WhiteBoxOracle", Oracle)
    white_box(case(trained, nonmembers=None))
    assert len(learnt) == 2
    assert len(set.union(*judged)) == 2 * len(trained.forget)


def test_so_few_strangers_give_no_rate_at_one_percent_of_false_positives(references):
    numbers, _ = references.numbers()
    for number in numbers:
        if number.name.endswith("tpr_1"):
            assert (number.value, number.before, number.interval) == (None, None, None)
            assert "cannot tell a rate of 1 %" in number.note
