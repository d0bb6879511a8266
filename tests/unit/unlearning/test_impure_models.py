"""Models whose forward pass is not a pure function, and loaders that would lose or mix up samples."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

from forsaken import Forsaken, ShadowOracle, errors, unlearn
from forsaken.models.weights import fingerprint

DRAW = torch.Generator().manual_seed(0)
X, KEPT = torch.randn(8, 6, generator=DRAW), torch.randn(20, 6, generator=DRAW)


class Counting(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.layer(x)


class InPlace(nn.Module):
    """Shifts its input in place at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x += 1
        return self.layer(x)


class Restless(nn.Module):
    """Drops out in evaluation mode as well."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(functional.dropout(x, 0.5))


class Padded(nn.Module):
    """Averages over padding, which torch's fast path without gradients leaves at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.layer = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.out = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 30 * self.out(self.layer(self.words(x), src_key_padding_mask=x == 0).mean(1))


def test_buffers_come_back_as_they_were() -> None:
    model = Counting()
    before = copy.deepcopy(model.state_dict())
    result = Forsaken(target="uniform", penalty=0.0)(model, X, None, KEPT)
    assert int(model.calls) == int(before["calls"])
    assert int(result.model.calls) == int(before["calls"])
    assert torch.equal(result.mask.apply(model).layer.weight, result.model.layer.weight)
    with pytest.raises(errors.NothingForgottenError, match="λ_max"):
        Forsaken(target="uniform", penalty=1e6)(model, X, None, KEPT)


def test_a_model_that_works_in_place_leaves_the_user_s_data_alone() -> None:
    x, kept = X.clone(), KEPT.clone()
    with pytest.raises(errors.ModelError, match="in place"):
        Forsaken(target="uniform")(InPlace(), x, None, kept)
    assert torch.equal(x, X)
    assert torch.equal(kept, KEPT)


@pytest.mark.parametrize("seed", range(3))
def test_a_model_that_draws_random_numbers_is_refused(seed: int) -> None:
    torch.manual_seed(seed)
    model = Restless()
    with torch.no_grad():
        model.layer.weight.mul_(10)
    with pytest.raises(errors.ModelError, match="random"):
        Forsaken(target="uniform")(model, X, None, KEPT)


def test_the_fast_path_of_transformers_is_noticed() -> None:
    torch.manual_seed(0)
    words = torch.randint(1, 30, (28, 10))
    words[:, 4:] = 0
    with pytest.raises(errors.ModelError, match="enable_nested_tensor"):
        Forsaken(target="uniform")(Padded(), words[:8], None, words[8:])


def test_a_loader_that_drops_samples_is_refused() -> None:
    loader = DataLoader(TensorDataset(X), batch_size=3, drop_last=True)
    with pytest.raises(errors.InputError, match="drop_last"):
        Forsaken(target="uniform")(nn.Linear(6, 3), loader, None, KEPT)


class Backwards(BatchSampler):
    """Batches in an order of its own."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter(list(super().__iter__())[::-1])


@pytest.mark.parametrize(
    "order",
    [
        {"batch_size": 3, "shuffle": True},
        {"batch_sampler": BatchSampler(RandomSampler(X), 3, False)},
        {"batch_sampler": Backwards(SequentialSampler(X), 3, False)},
        {"batch_sampler": [[3, 4, 5], [0, 1, 2], [6, 7]]},
    ],
    ids=["shuffle", "batches of a random sampler", "unknown batch sampler", "list of batches"],
)
def test_targets_and_a_shuffling_loader_are_refused(order: dict[str, Any]) -> None:
    loader = DataLoader(TensorDataset(X), **order)
    with pytest.raises(errors.InputError, match="order"):
        Forsaken()(nn.Linear(6, 3), loader, None, KEPT, targets=torch.zeros(8, 3))


def test_references_may_carry_labels_of_another_task() -> None:
    model = nn.Linear(6, 3)
    with torch.no_grad():
        model.weight.mul_(20)
    foreign = torch.randn(30, 6, generator=DRAW) / 10
    plain, labelled = (
        Forsaken(iterations=5)(model, X, reference, KEPT)
        for reference in (foreign, TensorDataset(foreign, torch.arange(30) + 70))
    )
    assert torch.equal(plain.model.weight, labelled.model.weight)
    with pytest.raises(errors.InputError, match="30 of 30 labels of reference"):
        Forsaken(target="corrected")(model, (X, torch.zeros(8, dtype=torch.long)), (foreign, torch.arange(30) + 70))


def test_labels_are_truly_ignored_by_the_oracle() -> None:
    names = ["a"] * 8
    oracle = ShadowOracle.fit(nn.Identity(), members=(9 * X, names), nonmembers=(X, names))
    assert oracle.score(nn.Identity(), (X, names)).shape == (8,)


def test_calibrated_without_a_calibration_is_an_error() -> None:
    model = nn.Linear(6, 3)
    with pytest.raises(errors.SettingsError, match="calibrate"):
        Forsaken(stop="calibrated")(model, X, None, KEPT, targets=torch.ones(8, 3).cumsum(1))


def test_no_message_holds_a_record() -> None:
    secret = "patient 4711, positive"
    refused = [secret, (secret, [1]), {"text": secret}, [secret], ([secret], None), (X, [secret] * 8)]
    for data in refused:
        with pytest.raises(errors.ForsakenError) as caught:
            Forsaken(target="uniform")(nn.Linear(6, 3), data, None, KEPT)
        assert "4711" not in str(caught.value)


def test_notes_say_what_happened() -> None:
    model = nn.Linear(6, 3)
    with torch.no_grad():
        model.weight.mul_(20)
    near = KEPT / 10
    both = Forsaken()(model, X, near)
    assert "importance and anchor come from the references" in both.notes[0]
    held = Forsaken(anchor_references=0)(model, X, near)
    assert "importance come from the references" in held.notes[0]
    nothing = Forsaken(anchor=0.0, power=0.0)(model, X, near)
    assert "nothing holds" in nothing.notes[0]
    assert Forsaken()(model, X, near, KEPT).notes == ()


def test_unused_inputs_leave_the_largest_penalty_finite() -> None:
    model = nn.Linear(6, 3)
    x, kept = X.clone(), KEPT.clone()
    x[:, 0] = kept[:, 0] = 0.0  # a word that occurs nowhere: importance and gradient are both zero
    labels = torch.arange(20) % 3
    method = Forsaken(target="uniform", weights="importance-raw", importance="loss", power=0.0)
    assert method(model, x, None, (kept, labels)).details.facts["penalty_max"] is not None


class WithoutGradients(nn.Module):
    """Answers like its network, but lets no gradient through."""

    def __init__(self, act: str) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(6, 3), act
        with torch.no_grad():
            self.layer.weight.mul_(20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.act == "detach":
            return self.layer(x).detach()
        with torch.no_grad() if self.act == "no_grad" else torch.inference_mode():
            return self.layer(x)


_DESCENTS = ["fine-tune", "gradient-ascent", "neggrad-plus", "l1-sparse", "salun", "scrub", "bad-teacher", "ssd"]


@pytest.mark.parametrize("method", _DESCENTS)
@pytest.mark.parametrize("act", ["no_grad", "detach", "inference_mode"])
def test_a_forward_pass_without_gradients_is_told(method: str, act: str) -> None:
    labels = torch.arange(20) % 3
    with pytest.raises(errors.ForsakenError, match=r"by a gradient; remove detach|left every weight as it was"):
        unlearn(WithoutGradients(act), (X, labels[:8]), retain=(KEPT, labels), method=method)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("method", ["forsaken", *_DESCENTS])
@pytest.mark.parametrize("inside", [False, True])
def test_scripted_and_traced_modules_are_told(method: str, inside: bool) -> None:
    labels = torch.arange(20) % 3
    scripted = torch.jit.trace(nn.Linear(6, 3), X) if inside else torch.jit.script(nn.Linear(6, 3))
    model = nn.Sequential(nn.Identity(), scripted) if inside else scripted
    with pytest.raises(errors.ModelError, match=r"scripted or traced module \(torch\.jit\).*made from"):
        unlearn(model, (X, labels[:8]), KEPT, retain=(KEPT, labels), method=method)


class Bounded(nn.Module):
    """Looks up words whose vectors are shortened where they are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(30, 8, max_norm=0.1), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.words(x))


@pytest.mark.parametrize(
    ("model", "x"), [(Counting(), torch.cat([X, KEPT])), (Bounded(), torch.arange(28))], ids=["counter", "max_norm"]
)
def test_a_check_of_the_accuracy_leaves_the_callers_model_alone(model: nn.Module, x: torch.Tensor) -> None:
    before, labels = fingerprint(model), torch.arange(28) % 3
    settings = {"method": "fine-tune", "epochs": 1, "learning_rate": 1e-6}
    unlearn(model, forget=(x[:8], labels[:8]), retain=(x[8:], labels[8:]), allow=(), **settings)
    assert fingerprint(model) == before


class Lazy(nn.Module):
    """Registers a buffer at its first call, and replaces another one by a longer one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("cache", torch.zeros(0), persistent=False)
        self.register_buffer("nothing", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "scale"):
            self.register_buffer("scale", torch.ones(6), persistent=False)
        if len(self.cache) < len(x):
            self.cache = torch.ones(len(x))
        return self.layer(x * self.scale * self.cache[: len(x), None])


def test_buffers_may_appear_and_grow_in_a_call() -> None:
    plain, lazy = nn.Linear(6, 3), Lazy()
    lazy.layer.load_state_dict(plain.state_dict())
    results = [Forsaken(target="uniform", penalty=0.0)(each, X, None, KEPT) for each in (plain, lazy)]
    torch.testing.assert_close(results[0].model.weight, results[1].model.layer.weight)
    for model in (lazy, results[1].model):
        assert dict(model.named_buffers()).keys() == {"cache"}
        assert not len(model.cache)
