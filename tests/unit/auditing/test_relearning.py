"""Relearn time: a model that only hid the samples has them back at once."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from audit_case import RECIPE, Small
from torch import nn

from forsaken.auditing.inputs import AuditInputs
from forsaken.auditing.relearning import MOST, mean_loss, relearn_steps, relearn_time
from forsaken.auditing.result import Number
from forsaken.data.samples import Samples
from forsaken.recipe import Recipe
from forsaken.sets import Sets


def test_the_loss_is_the_mean_cross_entropy(trained):
    logits = trained.before(trained.forget.inputs).detach()
    assert mean_loss(trained.before, trained.forget) == pytest.approx(
        float(nn.functional.cross_entropy(logits, trained.forget.labels)), rel=1e-5
    )


def test_a_model_at_its_goal_needs_no_step(trained):
    goal = mean_loss(trained.before, trained.forget)
    assert relearn_steps(trained.before, trained.forget, goal, RECIPE) == 0


def test_a_model_that_hid_the_samples_relearns_faster_than_one_that_never_saw_them(trained):
    goal = mean_loss(trained.before, trained.forget)
    hidden = copy.deepcopy(trained.before)
    with torch.no_grad():
        list(hidden.parameters())[-1].add_(torch.tensor([2.0, -1.0, -1.0]))  # one bias moves every answer
    assert mean_loss(hidden, trained.forget) > 2 * goal
    ours = relearn_steps(hidden, trained.forget, goal, RECIPE)
    assert 0 < ours < relearn_steps(trained.retrained, trained.forget, goal, RECIPE) <= MOST


def test_steps_follow_plain_gradient_descent_computed_by_hand():
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    one = Samples(torch.ones(1, 1), torch.tensor([0]))
    # With momentum 0.9 (Nesterov) from zero: simulate the two logits' difference by hand.
    a, velocity, steps, goal = 0.0, 0.0, 0, 0.3
    while torch.log1p(torch.exp(torch.tensor(-2 * a))).item() > goal * 1.05:
        gradient = -1 / (1 + torch.exp(torch.tensor(2 * a)).item())
        velocity = 0.9 * velocity + gradient
        a -= 0.1 * (gradient + 0.9 * velocity)
        steps += 1
    assert relearn_steps(model, one, goal, Recipe(1, 1, 0.1, optimiser="sgd")) == steps > 3


def test_it_gives_up_after_so_many_steps_and_leaves_the_model_alone(trained):
    before = [weight.clone() for weight in trained.retrained.parameters()]
    assert relearn_steps(trained.retrained, trained.forget, 0.0, RECIPE, most=7) == 7
    assert all(bool((one == two).all()) for one, two in zip(before, trained.retrained.parameters(), strict=True))


def measured(trained: Small, *, batch: int = 8, rate: float = 5e-3, after: nn.Module | None = None) -> Number:
    recipe = replace(RECIPE, batch_size=batch, learning_rate=rate)
    sets = Sets(trained.forget, **trained.sets)
    model = trained.after if after is None else after
    return relearn_time(AuditInputs(trained.before, model, sets, retrained=(trained.retrained,)), recipe)


def test_three_orders_of_batches_are_three_fine_tunings(trained):
    found = measured(trained)
    assert found.n == 3
    assert 0 < found.interval[0] <= found.value <= found.interval[1] < MOST
    assert "range" in found.note
    assert "never got there" not in found.note


def test_one_batch_of_all_samples_is_one_fine_tuning(trained):
    found = measured(trained, batch=32)
    assert (found.n, found.interval) == (1, None)
    assert "order decides nothing" in found.note


def test_where_nobody_gets_there_nothing_is_measured(trained):
    found = measured(trained, rate=1e-8, batch=32)
    assert (found.value, found.interval, found.retrained) == (None, None, None)
    assert "1 of 1 fine-tunings never got there" in found.note
    assert "1 of 1 fine-tunings of the retrained models never got there" in found.note


def test_where_only_the_retrained_model_gives_up_it_is_said(trained):
    found = measured(trained, rate=1e-8, batch=32, after=trained.before)
    assert (found.value, found.retrained) == (0.0, float(MOST))
    assert "1 of 1 fine-tunings of the retrained models never got there" in found.note
    assert "1 of 1 fine-tunings never" not in found.note
    assert "at least" in found.note
