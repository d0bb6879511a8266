"""Which neighbours an audit makes by itself, and that it attacks those it is given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from audit_case import METHOD, Small
from test_full import matrices

import forsaken
from forsaken import Training
from forsaken.auditing.full import Full
from forsaken.auditing.measurements import Matrices
from forsaken.auditing.neighbours import neighbours_of
from forsaken.data.samples import Samples
from forsaken.errors import InputError, UnknownNameError
from forsaken.metrics import request_floor, request_u_lira, u_lira, u_lira_floor
from forsaken.models.augment import mirror_shift, word_dropout
from forsaken.models.logits import accuracy

BAGS = Samples((torch.rand(10, 300, generator=torch.Generator().manual_seed(0)) < 0.05).float(), torch.arange(10) % 3)
TOKENS = Samples(torch.randint(1, 99, (10, 40), generator=torch.Generator().manual_seed(0)), torch.arange(10) % 3)
PICTURES = Samples(torch.rand(10, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 3)
NUMBERS = Samples(torch.rand(10, 64, generator=torch.Generator().manual_seed(0)), torch.arange(10) % 3)


def noisy(inputs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return inputs + 0.1 * torch.randn(inputs.shape, generator=generator)


def test_by_itself_texts_lose_words_and_the_recipe_decides_where_it_says(trained: Small):
    for texts in (BAGS, TOKENS):
        found = neighbours_of(texts, "auto", None, 0)
        assert torch.equal(found.labels, texts.labels)
        kept = (found.inputs == texts.inputs).double().mean()
        assert 0.7 < float(kept) < 1
        assert bool(((found.inputs == texts.inputs) | (found.inputs == 0)).all())
    assert neighbours_of(PICTURES, "auto", None, 0) is None
    assert neighbours_of(NUMBERS, "auto", trained.training, 0) is None
    mirrored = Training(trained.training.build, replace(trained.training.recipe, augmentation="mirror-shift"))
    assert not torch.equal(neighbours_of(PICTURES, "auto", mirrored, 0).inputs, PICTURES.inputs)


@pytest.mark.parametrize(
    ("how", "view", "samples"), [("mirror-shift", mirror_shift, PICTURES), (noisy, noisy, NUMBERS)]
)
def test_names_and_functions_make_the_same_neighbours_for_a_seed(how, view, samples):
    one, again, other = (neighbours_of(samples, how, None, seed).inputs for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert view(samples.inputs, torch.Generator().manual_seed(0)).shape == one.shape


def test_none_makes_none_and_what_cannot_be_is_refused():
    assert neighbours_of(BAGS, None, None, 0) is None
    with pytest.raises(UnknownNameError, match="did you mean 'word-dropout'"):
        neighbours_of(BAGS, "word-dropuot", None, 0)
    with pytest.raises(InputError, match="another shape"):
        neighbours_of(NUMBERS, lambda inputs, draw: inputs[:5], None, 0)
    assert word_dropout(BAGS.inputs, torch.Generator().manual_seed(0)).shape == BAGS.inputs.shape


def test_a_quick_audit_reads_the_neighbours_beside_the_retrained_model(trained: Small):
    given = {"kept": trained.kept, "test": trained.test, "retrained": trained.retrained}
    found = forsaken.audit(trained.before, trained.after, trained.forget, **given, neighbours=noisy)
    near = neighbours_of(trained.forget, noisy, None, 0)
    number = found["neighbour_accuracy"]
    assert number.value == pytest.approx(accuracy(trained.after, near))
    assert number.before == pytest.approx(accuracy(trained.before, near))
    assert number.retrained == pytest.approx(accuracy(trained.retrained, near))
    assert found["neighbour_confidence"].interval is not None
    assert not any(
        "neighbour" in one.name for one in forsaken.audit(trained.before, trained.after, trained.forget).numbers
    )


def test_a_full_audit_attacks_the_neighbours(trained: Small):
    found = forsaken.audit(
        trained.before,
        trained.after,
        trained.forget,
        **trained.sets,
        profile="full",
        models=4,
        training=trained.training,
        method=METHOD,
        neighbours=noisy,
    )
    assert found["u_lira_auc_neighbours"].before > 0.8
    assert found["u_lira_request_auc_neighbours"].floor is not None


def test_their_numbers_are_those_of_the_pure_functions():
    ours = matrices(unlearned=1.0)
    facts = {who: {"neighbours": sets["forget"] + 0.5} for who, sets in ours.margins.items()}
    full = Full(Matrices(ours.margins, ours.accuracy, ours.seconds, facts), "unlearned")
    found = {number.name: number for number in full.numbers()}
    mine, both = facts["unlearned"]["neighbours"], facts["retrained"]["neighbours"]
    floor, request = u_lira_floor(both), request_floor(both)
    near, whole = found["u_lira_auc_neighbours"], found["u_lira_request_auc_neighbours"]
    assert (near.value, near.floor) == (u_lira(mine, both[:16]).auc, (floor.low, floor.high))
    assert (whole.value, whole.floor) == (request_u_lira(mine, both[:16]), (request.low, request.high))
    assert np.isclose(whole.before, request_u_lira(facts["before"]["neighbours"], both[:16]))


def test_texts_of_several_inputs_have_neighbours_where_the_words_are_named() -> None:
    words, mask = torch.ones(4, 50, dtype=torch.int64), torch.ones(4, 50, dtype=torch.int64)
    assert neighbours_of(Samples((words, mask)), "auto", None, 0) is None
    named = neighbours_of(Samples({"input_ids": words, "attention_mask": mask}), "auto", None, 0)
    assert torch.equal(named.inputs["attention_mask"], mask)
    assert (named.inputs["input_ids"] == 0).any()
