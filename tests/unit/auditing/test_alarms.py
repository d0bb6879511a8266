"""The two alarms: nothing forgotten, and too much forgotten."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from audit_case import Small

from forsaken.auditing.alarms import like_the_ensemble, no_op, outside_band, over_forgetting
from forsaken.auditing.inputs import AuditInputs
from forsaken.auditing.quick import Quick
from forsaken.data.samples import Samples, join
from forsaken.sets import Sets


def case(trained: Small, after: object, *, retrained: tuple = (), oracle: bool = True) -> AuditInputs:
    sets = Sets(trained.forget, kept=trained.kept, test=trained.test, nonmembers=trained.nonmembers)
    judge = trained.oracle if oracle else None
    return AuditInputs(trained.before, after, sets, retrained=retrained, oracle=judge, training=trained.training)


def noise(trained: Small, size: float) -> torch.nn.Module:
    model = copy.deepcopy(trained.before)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(size * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    return model


def test_the_same_weights_are_a_no_op(trained):
    ours = case(trained, copy.deepcopy(trained.before))
    told = no_op(ours, Quick(ours))
    assert told.raised
    assert "No weight has changed" in told.told


def test_other_weights_with_the_same_answers_are_a_no_op(trained):
    ours = case(trained, noise(trained, 1e-7))
    told = no_op(ours, Quick(ours))
    assert told.raised
    assert "each of the 20 forgotten samples gets the same class" in told.told


def test_a_model_that_forgot_raises_nothing(trained):
    ours = case(trained, trained.after, retrained=(trained.retrained,))
    quick = Quick(ours)
    assert no_op(ours, quick).raised is False


def test_without_a_retrained_model_too_much_cannot_be_told(trained):
    ours = case(trained, trained.after)
    alarm, numbers = over_forgetting(ours, Quick(ours), None, None)
    assert alarm.raised is None
    assert numbers == []


def without_labels(given: AuditInputs) -> AuditInputs:
    return replace(given, sets=replace(given.sets, forget=Samples(given.sets.forget.inputs)))


def test_confidence_far_below_a_retrained_model_is_too_much_where_there_are_no_labels(trained):
    flat = copy.deepcopy(trained.before)
    with torch.no_grad():
        for weight in flat.parameters():
            weight.mul_(0.1)
    ours = without_labels(case(trained, flat, retrained=(trained.before,)))
    alarm, _ = over_forgetting(ours, Quick(ours), None, None)
    assert alarm.raised
    assert "less sure" in alarm.told
    same = without_labels(case(trained, trained.retrained, retrained=(trained.retrained,)))
    assert over_forgetting(same, Quick(same), None, None)[0].raised is False


def test_confident_wrong_answers_are_too_much(trained):
    wrong = Samples(trained.forget.inputs, (trained.forget.labels + 1) % 3)
    model = trained.training.run(join([trained.kept, trained.retain, wrong]), seed=5)
    ours = case(trained, model, retrained=(trained.retrained,))
    alarm, _ = over_forgetting(ours, Quick(ours), None, None)
    assert alarm.raised
    assert "mean margin" in alarm.told


def test_several_retrained_models_make_a_band_in_every_profile(trained):
    rest = join([trained.kept, trained.retain])
    retrained = tuple(trained.training.run(rest, seed=seed) for seed in range(10, 15))
    ours = case(trained, trained.before, retrained=retrained)
    alarm, (number,) = over_forgetting(ours, Quick(ours), None, None)
    assert "band" in alarm.told
    assert number.value < number.retrained


@pytest.mark.parametrize(("retrained", "raised"), [((3, 0), False), ((3, 2), True)])
def test_verdicts_as_before_are_an_alarm_only_if_a_retrained_model_s_are_not(trained, monkeypatch, retrained, raised):
    """Samples that a model knows without having seen them need no other verdict."""
    ours = case(trained, trained.after, retrained=(trained.retrained,))
    quick = Quick(ours)
    monkeypatch.setattr(quick, "moved", lambda view: (3, 0) if view is quick.after else retrained)
    assert no_op(ours, quick).raised is raised


def test_a_model_of_another_kind_is_not_like_the_ensemble():
    draw = np.random.default_rng(0)
    ensemble = draw.normal(size=(12, 50))
    assert like_the_ensemble(draw.normal(size=50), ensemble)
    assert not like_the_ensemble(draw.normal(size=50) + 5, ensemble)


def test_the_band_is_two_standard_deviations_wide_and_never_narrower_than_the_floor():
    retrained = np.array([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]])  # means 2 and 5, deviations 2 and 0
    below, above = outside_band(np.array([-2.0, 5.19]), retrained)
    assert below.tolist() == [True, False]
    assert above.tolist() == [False, False]
    below, above = outside_band(np.array([5.93, 5.2]), retrained)
    assert below.tolist() == [False, False]
    assert above.tolist() == [True, True]


@pytest.mark.parametrize(("shift", "raised"), [(0.0, False), (-6.0, True), (6.0, False)])
def test_samples_below_the_band_of_many_retrained_models_are_too_much(trained, shift, raised):
    draw = np.random.default_rng(0)
    retrained = draw.normal(size=(30, len(trained.forget)))
    ours = case(trained, trained.after)
    alarm, (number,) = over_forgetting(ours, Quick(ours), draw.normal(size=len(trained.forget)) + shift, retrained)
    assert alarm.raised is raised
    assert (number.value > 0.8) is (shift == 0)
    assert 0.85 < number.retrained < 1


@pytest.mark.parametrize(("ours", "raised"), [(-21.2, False), (-24.0, True)])
def test_what_the_verdict_takes_for_a_retrained_margin_is_not_too_much(trained, monkeypatch, ours, raised):
    """From 3.9 to -18.9 in a retrained model: a fifth of that way is allowed on either side."""
    given = case(trained, trained.after, retrained=(trained.retrained,))
    means = {id(given.before): 3.9, id(given.after): ours, id(trained.retrained): -18.9}
    monkeypatch.setattr(AuditInputs, "margins", lambda _, model, part: np.full(len(part), means[id(model)]))
    assert over_forgetting(given, Quick(given))[0].raised is raised
