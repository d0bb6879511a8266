"""Scenarios are disjoint by construction and fixed by their seed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from forsaken._random import generator
from forsaken.bench.scenarios.scenario import (
    Plan,
    Scenario,
    Sizes,
    draw_members,
    draw_strangers,
    halve,
    id_scenario,
    ood_scenario,
)
from forsaken.bench.scenarios.table import load_scenario
from forsaken.data.nest import row_keys
from forsaken.data.samples import Samples
from forsaken.errors import InputError
from forsaken.recipe import Network, Recipe

SIZES = Sizes(forget=5, reference=10, shadow_in=6, shadow_out=7, retain_share=0.1)
PLAN = Plan("x", "", (), 3, Network("mlp"), Recipe(1, 1, 1.0), build=lambda *_: None, sizes=SIZES)
PARTS = ("kept", "forget", "reference", "test", "shadow_members", "shadow_nonmembers")


def all_rows(*parts: np.ndarray) -> list[int]:
    return np.concatenate(parts).tolist()


def assert_disjoint(scenario: Scenario) -> None:
    keys = [set(row_keys(getattr(scenario, name).inputs)) for name in PARTS]
    for at, one in enumerate(keys):
        for other in keys[at + 1 :]:
            assert not one & other


@pytest.mark.parametrize("test", [None, np.arange(100, 130)])
@pytest.mark.parametrize("spare", [0, 12])
def test_halves_share_no_row_and_lose_none(test, spare) -> None:
    halves, left = halve(np.arange(100), test, SIZES, generator(0, 1), spare=spare)
    rows = all_rows(halves.train, halves.test, halves.shadow_train, halves.shadow_test, left)
    assert sorted(rows) == list(range(100 if test is None else 130))
    assert len(left) == spare
    if test is not None:
        assert set(halves.test) | set(halves.shadow_test) == set(test.tolist())


def test_a_pooled_half_is_cut_by_the_share() -> None:
    halves, _ = halve(np.arange(150), None, SIZES, generator(0, 1))
    assert (len(halves.train), len(halves.test), len(halves.shadow_train), len(halves.shadow_test)) == (60, 15, 60, 15)


def test_strangers_share_no_row_and_have_the_sizes_asked_for() -> None:
    drawn = draw_strangers(np.arange(50, 100), SIZES, generator(0, 1), "here")
    rows = all_rows(drawn.forget, drawn.shadow_in, drawn.shadow_out, drawn.reference)
    assert len(rows) == len(set(rows))
    assert set(rows) <= set(range(50, 100))
    assert (len(drawn.forget), len(drawn.shadow_in), len(drawn.shadow_out)) == (5, 6, 7)
    assert len(drawn.reference) == 20, "twice as many as wanted: some may equal a training sample"


def test_too_few_strangers_is_an_error_that_says_how_many() -> None:
    with pytest.raises(InputError, match="needs 28 out-of-distribution rows, found 20 in customer-review"):
        draw_strangers(np.arange(20), SIZES, generator(0, 1), "customer-review")


def test_members_take_references_from_a_large_test_half() -> None:
    drawn = draw_members(np.arange(200), np.arange(200, 300), SIZES, generator(0, 1))
    halves = drawn.halves
    assert set(drawn.reference) <= set(range(200, 300))
    assert len(halves.test) == 40
    rows = all_rows(halves.train, halves.test, halves.shadow_train, halves.shadow_test, drawn.forget, drawn.reference)
    assert sorted(rows) == list(range(300))


@pytest.mark.parametrize("test", [None, np.arange(200, 220)])
def test_members_take_references_from_the_shadow_s_half_where_the_test_half_is_small(test) -> None:
    drawn = draw_members(np.arange(200), test, SIZES, generator(0, 1))
    halves = drawn.halves
    assert len(drawn.reference) == 10
    assert set(drawn.reference) <= set(range(200))
    rows = all_rows(halves.train, halves.test, halves.shadow_train, halves.shadow_test, drawn.forget, drawn.reference)
    assert sorted(rows) == list(range(200 if test is None else 220))
    assert len(halves.shadow_train) + len(drawn.reference) in (100, 82), "the shadow gives up what others use"


def test_a_task_smaller_than_its_forget_set_is_an_error() -> None:
    with pytest.raises(InputError, match="forgets 5 of only 4"):
        draw_members(np.arange(8), np.arange(8, 100), SIZES, generator(0, 1))


def make(labels: np.ndarray, inputs: torch.Tensor | None = None) -> Scenario:
    inputs = torch.arange(float(len(labels)))[:, None].repeat(1, 2) if inputs is None else inputs
    draw = generator(0, 1)
    halves, _ = halve(np.arange(150), None, SIZES, draw)
    strangers = draw_strangers(np.arange(150, len(labels)), SIZES, draw, "here")
    return ood_scenario(PLAN, 0, Samples(inputs, torch.from_numpy(labels)), halves, strangers)


def test_strangers_with_a_class_of_their_own_never_get_it() -> None:
    labels = np.arange(400) % 3
    found = make(labels)
    own = torch.from_numpy(labels)[found.forget.inputs[:, 0].long()]
    assert (found.forget.labels != own).all()
    shadow = found.shadow_members.rows(range(len(found.shadow_members) - 6, len(found.shadow_members)))
    assert (shadow.labels != torch.from_numpy(labels)[shadow.inputs[:, 0].long()]).all()
    assert set(found.forget.labels.tolist()) <= {0, 1, 2}


def test_wrong_labels_are_evenly_spread() -> None:
    sizes = Sizes(forget=3000, reference=1, shadow_in=1, shadow_out=1)
    labels = np.r_[np.zeros(150, int), np.ones(3003, int)]
    draw = generator(0, 1)
    halves, _ = halve(np.arange(150), None, sizes, draw)
    strangers = draw_strangers(np.arange(150, len(labels)), sizes, draw, "here")
    samples = Samples(torch.arange(float(len(labels)))[:, None], torch.from_numpy(labels))
    found = ood_scenario(dataclasses.replace(PLAN, sizes=sizes), 0, samples, halves, strangers)
    counts = torch.bincount(found.forget.labels, minlength=3).tolist()
    assert counts[1] == 0
    assert abs(counts[0] - 1500) < 120


def test_sets_that_repeat_themselves_share_no_content_in_the_end() -> None:
    inputs = (torch.arange(250.0)[:, None] % 110).repeat(1, 2)  # every row two or three times, all over the sets
    found = make(np.r_[np.zeros(150, int), np.full(100, -1)], inputs)
    keys = {name: set(row_keys(getattr(found, name).inputs)) for name in PARTS}
    assert len(found.forget) == 5
    assert 0 < len(found.reference) <= 10
    for one, other in (
        ("kept", "forget"),
        ("test", "kept"),
        ("test", "forget"),
        ("reference", "kept"),
        ("reference", "forget"),
        ("reference", "test"),
        ("reference", "shadow_members"),
        ("shadow_nonmembers", "shadow_members"),
    ):
        assert not keys[one] & keys[other], f"{one} and {other}"
    assert not set(row_keys(found.retain.inputs)) & keys["forget"]


def test_a_scenario_without_references_is_an_error() -> None:
    inputs = torch.arange(200.0)[:, None].repeat(1, 2)
    inputs[150:] = 7.0  # all strangers are one and the same row
    with pytest.raises(InputError, match="no reference samples; the dataset is too small"):
        make(np.r_[np.zeros(150, int), np.full(50, -1)], inputs)


def test_an_oracle_is_judged_on_strangers_too_where_strangers_are_forgotten() -> None:
    found = make(np.r_[np.zeros(150, int), np.full(50, -1)])
    assert len(found.nonmembers) == len(found.test) + 5
    drawn = draw_members(np.arange(200), None, SIZES, generator(0, 1))
    samples = Samples(torch.arange(200.0)[:, None], torch.zeros(200, dtype=torch.long))
    inside = id_scenario(PLAN, 0, samples, drawn.halves, drawn.forget, drawn.reference)
    assert len(inside.nonmembers) == len(inside.test)
    assert_disjoint(inside)


def test_digits_is_fixed_by_its_seed() -> None:
    a, b, c = (load_scenario("digits", seed=seed) for seed in (0, 0, 1))
    assert torch.equal(a.forget.inputs, b.forget.inputs)
    assert torch.equal(a.forget.labels, b.forget.labels)
    assert not torch.equal(a.forget.inputs, c.forget.inputs)


def test_the_sets_of_a_scenario_are_those_of_a_request() -> None:
    found = load_scenario("digits", seed=0)
    sets = found.sets()
    assert (sets.forget, sets.test, sets.reference, sets.nonmembers) == (
        found.forget,
        found.test,
        found.reference,
        None,
    )
    assert len(sets.retain) == len(found.retain_rows)
    assert sorted(row_keys(sets.remaining.inputs)) == sorted(row_keys(found.kept.inputs))


def test_non_members_are_references_that_the_method_does_not_see() -> None:
    found = load_scenario("digits", seed=0)
    sets = found.sets(nonmembers=True)
    assert (len(sets.reference), len(sets.nonmembers)) == (len(found.reference) - 40, 40)
    both = torch.cat([sets.reference.inputs, sets.nonmembers.inputs])
    assert torch.equal(both, found.reference.inputs)
    assert sets.nonmembers.labels.max() < found.classes
    drawn = draw_members(np.arange(200), None, SIZES, generator(0, 1))
    samples = Samples(torch.arange(200.0)[:, None], torch.zeros(200, dtype=torch.long))
    inside = id_scenario(PLAN, 0, samples, drawn.halves, drawn.forget, drawn.reference)
    assert inside.sets(nonmembers=True).nonmembers is None, "samples of the task are compared with the test samples"


def test_digits_sizes() -> None:
    found = load_scenario("digits", seed=0)
    assert len(found.forget) == 40
    assert len(found.train) == len(found.kept) + 40
    assert len(found.unseen_kept) == len(found.kept) - len(found.retain_rows)
    assert int(found.train.labels.max()) < found.classes
    assert_disjoint(found)
