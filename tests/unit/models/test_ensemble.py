"""Many networks trained at once are the networks that `train` makes, one by one."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from forsaken.bench.networks import LanguageModel, NewsConvolutions, mlp, small_convolutions
from forsaken.data.samples import Samples
from forsaken.errors import EmptyError, InputError, NonFiniteError, SettingsError
from forsaken.models import ensemble
from forsaken.models.ensemble import at_once_for, clip_each, train_many, vectorises
from forsaken.models.train import train
from forsaken.models.weights import fingerprint
from forsaken.recipe import Recipe

DRAWS = torch.Generator().manual_seed(0)
DATA = Samples(torch.randn(60, 5, generator=DRAWS), torch.arange(60) % 3)
TOKENS = Samples(torch.randint(0, 20, (60, 12), generator=DRAWS) * (torch.arange(12) < 8), torch.arange(60) % 3)
PICTURES = Samples(torch.randn(60, 1, 8, 8, generator=DRAWS), torch.arange(60) % 3)
ROWS = [torch.randperm(60, generator=DRAWS)[:37] for _ in range(4)]
SEEDS = [5, 6, 7, 5]
RECIPE = Recipe(3, 16, 1e-2)


class Words(nn.Module):
    """Token numbers, padded with zeros, whose embedding must stay zero there."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 6, padding_idx=0)
        self.dense = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.dense(self.embedding(tokens).mean(1))


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x + torch.randn_like(x))


class Idle(nn.Linear):
    """A weight that plays no part."""

    def __init__(self) -> None:
        super().__init__(5, 3)
        self.spare = nn.Parameter(torch.ones(2))


class Counting(nn.Linear):
    """A layer that counts its calls."""

    def __init__(self) -> None:
        super().__init__(5, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return super().forward(x)


class TwiceDropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.dropout = nn.Linear(5, 3), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.dense(self.dropout(x)))


class AsksForItsShare(nn.Module):
    """Attention of Hugging Face models reads the share of its dropout layer, and draws itself."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.dropout = nn.Linear(5, 3), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.dense(x)) / (1 - self.dropout.p)


def frozen() -> nn.Module:
    network = mlp((5, 8, 3))
    network[0].requires_grad_(False)
    return network


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def double(samples: Samples) -> Samples:
    return replace(samples, inputs=samples.inputs.double())


def furthest(build: Callable[[], nn.Module], data: Samples, recipe: Recipe, rows=ROWS, seeds=SEEDS, **how) -> float:
    """Return the largest difference of logits from networks that were trained one by one."""
    many = list(chain.from_iterable(train_many(build, data, recipe, rows=rows, seeds=seeds, **how)))
    assert len(many) == len(seeds)
    how.pop("at_once", None)
    one = [train(build, data.rows(at), recipe, seed=seed, **how) for at, seed in zip(rows, seeds, strict=True)]
    return max((a(data.inputs) - b(data.inputs)).abs().max().item() for a, b in zip(many, one, strict=True))


@pytest.mark.parametrize(
    ("build", "data"),
    [
        (lambda: mlp((5, 32, 3)), DATA),
        (lambda: mlp((5, 32, 16, 3), dropout=0.3), DATA),
        (Words, TOKENS),
        (lambda: small_convolutions(classes=3, channels=(4, 6)), PICTURES),
        (frozen, DATA),
        (AsksForItsShare, DATA),
    ],
    ids=["dense", "dropout", "embedding", "convolutions", "frozen", "no-dropout"],
)
@pytest.mark.parametrize("at_once", [3, None])
def test_they_are_what_train_makes(build: Callable[[], nn.Module], data: Samples, at_once: int | None) -> None:
    assert vectorises(build, data)
    assert furthest(build, data, RECIPE, at_once=at_once) < 1e-4


@pytest.mark.parametrize(
    "recipe",
    [
        RECIPE,
        Recipe(3, 16, 1e-2, weight_decay=0.1),
        Recipe(3, 16, 1e-1, optimiser="sgd", weight_decay=0.01, schedule="one-cycle"),
        Recipe(3, 16, 1e-1, optimiser="sgd", clip=0.05),
        Recipe(3, 16, 1e-2, clip=0.05),
        Recipe(0, 16, 1e-2),
    ],
    ids=["adam", "decay", "one-cycle", "clipped-sgd", "clipped-adam", "untrained"],
)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_in_double_precision_to_nine_places(recipe: Recipe, dropout: float) -> None:
    assert furthest(lambda: mlp((5, 32, 3), dropout=dropout).double(), double(DATA), recipe) < 1e-9


def test_unequal_counts_and_a_number_of_steps() -> None:
    rows = [*ROWS[:2], np.arange(50), torch.arange(60), torch.arange(10, 60)]
    build = lambda: mlp((5, 16, 3)).double()  # noqa: E731
    recipe = replace(RECIPE, schedule="one-cycle")
    for steps in (None, 1, 7):
        assert furthest(build, double(DATA), recipe, rows, [1, 2, 3, 4, 5], steps=steps) < 1e-9
    chunks = train_many(build, double(DATA), recipe, rows=rows, seeds=[1, 2, 3, 4, 5])
    assert [len(chunk) for chunk in chunks] == [2, 1, 1, 1], "neighbours of one count share a chunk, in order"


@pytest.mark.parametrize(
    ("build", "data"),
    [
        (batch_norm, DATA),
        (lambda: LanguageModel(20, units=8), Samples(TOKENS.inputs, TOKENS.inputs)),
        (lambda: NewsConvolutions(torch.ones(20, 4), classes=3, channels=3, pools=(2,)), TOKENS),
        (Noisy, DATA),
        (Idle, DATA),
        (Counting, DATA),
        (TwiceDropped, DATA),
    ],
    ids=["batch-norm", "recurrent", "channels-last", "noise", "idle", "counting", "dropout-twice"],
)
def test_what_cannot_be_stacked_is_trained_one_by_one(build: Callable[[], nn.Module], data: Samples) -> None:
    assert not vectorises(build, data)
    if data is DATA:
        chunks = list(train_many(build, data, RECIPE, rows=ROWS, seeds=SEEDS, at_once=4))
        assert [len(chunk) for chunk in chunks] == [1, 1, 1, 1]
        for (network,), at, seed in zip(chunks, ROWS, SEEDS, strict=True):
            assert fingerprint(network) == fingerprint(train(build, data.rows(at), RECIPE, seed=seed)), "bit for bit"


def test_gradients_that_differ_are_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    build = lambda: mlp((5, 8, 3))  # noqa: E731
    right = ensemble.Stack.gradients

    def wrong(self, *given):
        found, losses = right(self, *given)
        return {name: part.roll(1, 0) for name, part in found.items()}, losses

    monkeypatch.setattr(ensemble.Stack, "gradients", wrong)
    assert not vectorises(build, DATA)


def test_the_same_network_whatever_its_company() -> None:
    build = lambda: mlp((5, 32, 3), dropout=0.3).double()  # noqa: E731
    (whole,) = train_many(build, double(DATA), RECIPE, rows=ROWS, seeds=SEEDS)
    ((last,),) = train_many(build, double(DATA), RECIPE, rows=ROWS[3:], seeds=SEEDS[3:])
    assert torch.allclose(whole[3](double(DATA).inputs), last(double(DATA).inputs), atol=1e-9)


def test_a_network_to_go_on_with_is_copied() -> None:
    given = mlp((5, 8, 3))
    before = fingerprint(given)
    (networks,) = train_many(lambda: given, DATA, RECIPE, rows=ROWS, seeds=SEEDS)
    assert fingerprint(given) == before
    assert len({fingerprint(network) for network in networks}) == 4


def test_they_are_ordinary_networks_of_their_own() -> None:
    state = torch.random.get_rng_state()
    chunks = train_many(lambda: mlp((5, 8, 3)), DATA, RECIPE, rows=ROWS, seeds=SEEDS, at_once=2)
    first = next(chunks)
    assert torch.equal(torch.random.get_rng_state(), state), "the program's generator is left alone"
    for network in first:
        assert not network.training
        for weight in network.parameters():
            assert weight.requires_grad
            assert weight.is_leaf
            assert weight.untyped_storage().nbytes() == weight.numel() * 4, "no view that holds the others' weights"
    gone = weakref.ref(first[0])
    del first, network, weight
    next(chunks)
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(("build", "text"), [(lambda: mlp((5, 8, 3)), "networks 1 to 3"), (batch_norm, "network 3")])
def test_one_stream_of_ticks(build: Callable[[], nn.Module], text: str) -> None:
    ticks = []
    rows = [torch.arange(30), torch.arange(30), torch.arange(1, 31), torch.arange(50)]
    list(train_many(build, DATA, Recipe(12, 16, 1e-2), rows=rows, seeds=SEEDS, progress=ticks.append, stage="here"))
    done = [tick.done for tick in ticks]
    assert done == sorted(done)
    assert {(tick.stage, tick.total) for tick in ticks} == {("here", 12 * (2 + 2 + 2 + 4))}
    assert done[-1] == 120
    assert f"{text} of 4, epoch 12 of 12" in {tick.text for tick in ticks}
    assert any(not tick.text for tick in ticks), "signs of life between the ends of epochs"


@pytest.mark.parametrize("build", [lambda: mlp((5, 8, 3)), batch_norm], ids=["together", "alone"])
def test_a_loss_that_is_not_finite_names_its_network(build: Callable[[], nn.Module]) -> None:
    inputs = DATA.inputs.clone()
    inputs[59] = torch.nan
    rows = [torch.arange(40), torch.arange(40), torch.arange(20, 60)]
    with pytest.raises(NonFiniteError, match=r"network 2: the training loss is nan in epoch \d; lower the rate"):
        list(train_many(build, Samples(inputs, DATA.labels), Recipe(9, 40, 1e-2), rows=rows, seeds=[0, 1, 2]))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"data": Samples(DATA.inputs)}, InputError, "training needs labels"),
        ({"seeds": [1]}, InputError, "4 networks and seeds 1; give one seed"),
        ({"seeds": [1, 2, 3, -4]}, SettingsError, "seed is -4"),
        ({"rows": [*ROWS[:3], torch.arange(61)]}, InputError, r"rows\[3\] reaches from 0 to 60, expected 0 to 59"),
        ({"rows": [np.array([-1]), *ROWS[:3]]}, InputError, r"rows\[0\] reaches from -1"),
        ({"rows": [np.ones(60, dtype=bool), *ROWS[:3]]}, InputError, r"rows\[0\] is .* expected row numbers"),
        ({"rows": [*ROWS[:3], []]}, EmptyError, r"rows\[3\] is empty"),
        ({"at_once": 0}, SettingsError, "at_once is 0, expected a whole number >= 1"),
        ({"device": "gpu9"}, SettingsError, "device 'gpu9' cannot be used"),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(changes: dict, error: type[Exception], words: str) -> None:
    given = {"data": DATA, "rows": ROWS, "seeds": SEEDS, **changes}
    with pytest.raises(error, match=words):
        train_many(lambda: mlp((5, 8, 3)), given.pop("data"), RECIPE, **given)


def test_no_networks_is_no_work() -> None:
    assert list(train_many(lambda: mlp((5, 8, 3)), DATA, RECIPE, rows=[], seeds=[])) == []


def test_how_many_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    def counts() -> list[int]:
        builds = lambda: mlp((64, 2048, 8)), lambda: mlp((10000, 512, 256, 35)), lambda: mlp((10000, 10000, 1000))
        with torch.device("meta"):
            return [at_once_for(build) for build in builds]

    assert counts() == [16, 4, 1]
    monkeypatch.setattr(ensemble, "usable_device", lambda device: torch.device("cuda"))
    assert counts() == [64, 64, 9], "110 million weights, 16 bytes each, in 16 GB"


def test_each_network_is_clipped_by_its_own_norm() -> None:
    parts = [torch.randn(3, 4, 2, generator=DRAWS), torch.randn(3, 5, generator=DRAWS)]
    parts = [part * torch.tensor([0.01, 1.0, 100.0]).view(3, *[1] * (part.dim() - 1)) for part in parts]
    expected = []
    for at in range(3):
        weights = [nn.Parameter(torch.zeros_like(part[at])) for part in parts]
        for weight, part in zip(weights, parts, strict=True):
            weight.grad = part[at].clone()
        nn.utils.clip_grad_norm_(weights, 0.5)
        expected.append([weight.grad for weight in weights])
    found = {str(at): part.clone() for at, part in enumerate(parts)}
    clip_each(found, 0.5)
    for at in range(3):
        for name, wanted in enumerate(expected[at]):
            assert torch.allclose(found[str(name)][at], wanted, rtol=1e-5)
    assert torch.equal(found["0"][0], parts[0][0]), "small gradients stay as they are"
