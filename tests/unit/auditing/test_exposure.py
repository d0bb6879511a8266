"""Exposure of canaries in real language models, and unlearning them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import forsaken
from forsaken import Curvature, Recipe
from forsaken.auditing.exposure import CanaryFormat, exposure, extract, log_perplexities
from forsaken.bench.networks import LanguageModel
from forsaken.data.samples import Samples, join
from forsaken.errors import InputError, SettingsError
from forsaken.models.sequences import causal, matched_targets, positions
from forsaken.models.train import train
from forsaken.oracles.sequences import SequenceOracle

FORMAT = CanaryFormat(prefix=(10, 11), fills=tuple(range(10)), places=3)
SECRETS = np.array([[1, 2, 3], [4, 0, 9], [7, 7, 1], [2, 8, 5]])
UNUSED = np.array([[5, 6, 0], [9, 3, 3], [0, 1, 8], [6, 4, 4]])


class Digits(nn.Module):
    """A model whose next digit is likelier the smaller it is, whatever came before."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.5))

    def forward(self, tokens):
        return (-self.slope * torch.arange(12.0)).expand(*tokens.shape, 12)


@pytest.fixture(scope="module")
def learnt() -> nn.Module:
    """A small LSTM that has learnt the secrets by heart, beside sequences of random letters."""
    draw = torch.Generator().manual_seed(0)
    text = torch.randint(10, 14, (60, 5), generator=draw)
    canaries = FORMAT.sequences(SECRETS)
    data = join([Samples(text[:, :-1], text[:, 1:]), *[Samples(canaries[:, :-1], canaries[:, 1:])] * 5])
    return train(lambda: LanguageModel(14, units=24), data, Recipe(60, 20, 1e-2, clip=5.0), seed=0)


def test_log_perplexity_is_the_sum_over_tokens() -> None:
    probabilities = torch.softmax(-0.5 * torch.arange(12.0).double(), 0)
    expected = -(probabilities[[11, 1, 2, 3]].log2().sum())
    assert log_perplexities(Digits(), FORMAT, [[1, 2, 3]])[0] == pytest.approx(float(expected), rel=1e-5)


def test_the_three_ways_agree() -> None:
    secrets = np.array([[0, 0, 3], [1, 4, 2], [5, 5, 5], [9, 9, 2]])
    exact = exposure(Digits(), FORMAT, secrets, by="exact").bits
    rank = exposure(Digits(), FORMAT, secrets, by="rank", fills=20_000).bits
    fitted = exposure(Digits(), FORMAT, secrets, by="skew-normal", fills=20_000).bits
    np.testing.assert_allclose(rank, exact, atol=0.35)
    np.testing.assert_allclose(fitted, exact, atol=0.8)
    assert exposure(Digits(), FORMAT, [[0, 0, 0]], by="exact").bits[0] == pytest.approx(np.log2(1000))


def test_what_was_learnt_is_exposed_and_extracted(learnt) -> None:
    known = exposure(learnt, FORMAT, SECRETS, by="exact")
    assert known.bits.min() > 7
    assert exposure(learnt, FORMAT, UNUSED, by="exact").bits.mean() < 5
    beams = extract(learnt, FORMAT, beam=20)[0].tolist()
    assert all(row in beams for row in SECRETS.tolist())
    assert (extract(learnt, FORMAT, known=SECRETS[:, :1])[:, 0] == SECRETS).all()


def test_beam_search_finds_what_enumeration_finds(learnt) -> None:
    everything = FORMAT.everything()
    best = everything[log_perplexities(learnt, FORMAT, everything).argmin()]
    assert extract(learnt, FORMAT, beam=100)[0, 0].tolist() == best.tolist()


def forget(model: nn.Module, secrets: np.ndarray, unused: np.ndarray, text: torch.Tensor) -> nn.Module:
    curvature = Curvature.fit(model, positions(text), forward=causal)
    result = forsaken.unlearn(
        model,
        positions(FORMAT.sequences(secrets), start=FORMAT.start),
        targets=matched_targets(model, FORMAT.sequences(unused), len(secrets), start=FORMAT.start),
        curvature=curvature,
        forward=causal,
    )
    return result.model


def test_canaries_are_forgotten(learnt) -> None:
    text = torch.randint(10, 14, (20, 5), generator=torch.Generator().manual_seed(1))
    after = forget(learnt, SECRETS, UNUSED, text)
    assert exposure(after, FORMAT, SECRETS, by="exact").bits.mean() < 5
    assert (extract(after, FORMAT, known=SECRETS[:, :1])[:, 0] == SECRETS).all(1).sum() <= 1


def test_a_hugging_face_causal_model_forgets() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=14, n_positions=8, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    model = transformers.GPT2LMHeadModel(config)
    text = torch.randint(10, 14, (40, 5), generator=torch.Generator().manual_seed(1))
    data = torch.cat([text, *[FORMAT.sequences(SECRETS)] * 5])
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(150):
        loss = model(input_ids=data, labels=data).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    before = exposure(model, FORMAT, SECRETS, by="exact").bits
    after = exposure(forget(model, SECRETS, UNUSED, text), FORMAT, SECRETS, by="exact").bits
    assert before.min() > 7
    assert after.mean() < 5


def test_the_oracle_tells_learnt_sequences(learnt) -> None:
    draw = np.random.default_rng(0)
    others = draw.integers(10, size=(40, 3))
    members = np.repeat(SECRETS, 10, axis=0)
    sets = {"members": FORMAT.sequences(members), "nonmembers": FORMAT.sequences(others)}
    oracle = SequenceOracle.fit(learnt, **sets, start=FORMAT.start)
    assert oracle.is_member(learnt, FORMAT.sequences(SECRETS)).all()
    assert oracle.is_member(learnt, FORMAT.sequences(UNUSED)).mean() <= 0.5
    with pytest.raises(forsaken.errors.OracleError, match="same format"):
        oracle.score(learnt, torch.zeros(2, 9, dtype=torch.long))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CanaryFormat((), (1,), 2), "phrase is empty"),
        (lambda: CanaryFormat((1,), (), 2), "space of fills is empty"),
        (lambda: CanaryFormat((1,), (1,), 0), "space of fills is empty"),
        (lambda: CanaryFormat((1,), (1, 1), 2), "stands twice"),
        (lambda: CanaryFormat.from_text("no 7", "01", 2, "no 01"), "vocabulary lacks '7'"),
        (lambda: FORMAT.sequences([[1, 2]]), "expected"),
        (lambda: FORMAT.sequences([[1, 2, 11]]), "other tokens than the 10 fills"),
        (lambda: extract(Digits(), FORMAT, known=SECRETS), "fewer tokens than the 3 places"),
    ],
)
def test_bad_input_is_told(make, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"by": "guess"}, "expected one of"), ({"fills": 3}, "whole number >= 20"), ({"fills": True}, "whole number")],
)
def test_bad_settings_are_told(settings: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        exposure(Digits(), FORMAT, SECRETS, **settings)


def test_a_space_that_is_too_large_is_not_enumerated() -> None:
    large = CanaryFormat((10,), tuple(range(10)), 9)
    with pytest.raises(SettingsError, match="1,000,000,000 fills"):
        exposure(Digits(), large, np.zeros((1, 9), dtype=int), by="exact")


def test_a_canary_longer_than_the_context_is_told() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=14, n_positions=4, n_embd=8, n_layer=1, n_head=2)
    long = CanaryFormat((10, 11), tuple(range(10)), 5)
    with pytest.raises(InputError, match="the model's context is 4"):
        exposure(transformers.GPT2LMHeadModel(config), long, np.zeros((2, 5), dtype=int))
