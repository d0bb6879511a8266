"""Causal language models as classifiers of positions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from forsaken.bench.networks import LanguageModel
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError
from forsaken.models.logits import predict_logits
from forsaken.models.sequences import causal, matched_targets, positions, sequence_logits, token_log_probabilities


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return LanguageModel(12, units=8).eval()


def test_a_position_has_the_logits_that_the_whole_sequence_has_there(model) -> None:
    tokens = torch.randint(12, (5, 7), generator=torch.Generator().manual_seed(1))
    found = predict_logits(model, positions(tokens, start=2), forward=causal)
    with torch.no_grad():
        whole = model(tokens)
    torch.testing.assert_close(found, whole[:, 2:6].flatten(0, 1))


def test_neighbouring_positions_share_a_pass(model) -> None:
    tokens = torch.randint(12, (5, 7), generator=torch.Generator().manual_seed(1))
    passed = []
    model.register_forward_hook(lambda _, given, __: passed.append(len(given[0])))
    predict_logits(model, positions(tokens), forward=causal)
    assert passed == [5]


def test_equal_sequences_that_follow_each_other_keep_their_rows(model) -> None:
    tokens = torch.tensor([[1, 2, 3], [1, 2, 3], [3, 2, 1]])
    found = predict_logits(model, positions(tokens), forward=causal)
    torch.testing.assert_close(found[:2], found[2:4])
    assert len(found) == 6


def test_positions_that_do_not_count_are_left_out() -> None:
    found = positions(Samples(torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[2, 3, -100], [5, -100, -100]])))
    assert found.inputs[1].tolist() == [0, 1, 0]
    assert found.labels.tolist() == [2, 3, 5]


def test_log_probabilities_are_those_of_the_softmax(model) -> None:
    tokens = torch.randint(12, (3, 6), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = model(tokens[:, :-1]).double().softmax(-1).gather(2, tokens[:, 1:, None])[..., 0].log2()
    np.testing.assert_allclose(token_log_probabilities(model, tokens), expected.numpy(), rtol=1e-5)


def test_sequences_with_different_numbers_of_positions_are_refused(model) -> None:
    tokens, labels = torch.ones(2, 4, dtype=torch.int64), torch.ones(2, 4, dtype=torch.int64)
    labels[0, 1:] = labels[1, 3] = -100  # one position and three: four in all, which is two a sequence on average
    uneven = Samples(tokens, labels)
    with pytest.raises(InputError, match=r"differ in how many positions count \(1 to 3\)"):
        token_log_probabilities(model, uneven)
    with pytest.raises(InputError, match="differ in how many positions count"):
        matched_targets(model, uneven, 2)


def test_targets_come_round_where_unused_sequences_are_few(model) -> None:
    unused = torch.randint(12, (2, 6), generator=torch.Generator().manual_seed(3))
    found = matched_targets(model, unused, 3, start=1).reshape(3, 4, 12)
    torch.testing.assert_close(found[0], found[2])
    assert not torch.equal(found[0], found[1])


def test_a_token_outside_of_the_vocabulary_is_refused() -> None:
    class Counts(nn.Module):
        def forward(self, tokens):
            return torch.zeros(*tokens.shape, 4)

    with pytest.raises(InputError, match="1 of 1 tokens are not in the model's vocabulary, which has 4 tokens"):
        token_log_probabilities(Counts(), torch.tensor([[1, 9]]))


def test_a_model_that_is_not_causal_is_refused() -> None:
    with pytest.raises(ModelError, match="causal language model"):
        sequence_logits(_Flat(), torch.tensor([[1, 2]]))


class _Flat(nn.Module):
    def forward(self, tokens):
        return torch.zeros(len(tokens), 3)


def test_a_sequence_longer_than_the_context_is_refused() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    with pytest.raises(InputError, match="12 tokens, but the model's context is 8"):
        sequence_logits(transformers.GPT2LMHeadModel(config), torch.zeros(1, 12, dtype=torch.long))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.ones(2, 3), "token numbers"),
        (torch.ones(3, dtype=torch.long), "token numbers"),
        (torch.ones(2, 1, dtype=torch.long), "followed by a token"),
        (Samples(torch.ones(2, 3, dtype=torch.long), torch.ones(2, 2, dtype=torch.long)), "labels have shape"),
    ],
)
def test_what_is_no_sequence_is_refused(given: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        positions(given)
