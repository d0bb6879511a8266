"""Columns of the first layer that no sample uses: left out, with the same result and the same mask."""

from __future__ import annotations

import itertools

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from forsaken import Forsaken
from forsaken.data.samples import Samples
from forsaken.models.logits import LinearModel, LogitModel
from forsaken.unlearning.forsaken import method as method_place
from forsaken.unlearning.forsaken import parameters as place
from forsaken.unlearning.forsaken.importance import scaled
from forsaken.unlearning.forsaken.parameters import ParameterSpace, UsedColumns, used_columns

WIDTH = 40


def bags(count: int, seed: int, words: int = 12) -> torch.Tensor:
    """Documents that use the first `words` of the vocabulary alone."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.zeros(count, WIDTH, dtype=torch.float64)
    found[:, :words] = torch.rand(count, words, generator=draw, dtype=torch.float64)
    return found


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 3)).double()


def free(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def of(model: nn.Module, *parts: torch.Tensor, forward: object = None) -> UsedColumns | None:
    return used_columns(LogitModel(model, forward), [Samples(part) for part in parts], free(model))


def test_the_columns_that_some_sample_uses() -> None:
    found = of(network(), bags(3, 0), bags(2, 1, words=14))
    assert found is not None
    assert (found.name, found.width) == ("0.weight", WIDTH)
    assert found.used.tolist() == list(range(14))


@pytest.mark.parametrize("sparse", [False, True])
def test_changes_name_positions_in_the_whole_weight(sparse: bool) -> None:
    some = UsedColumns("0.weight", torch.tensor([1, 4, 5]), 7, sparse=sparse)
    weight = 1 + torch.arange(4 * 7).reshape(4, 7)
    part = some.part(weight)
    assert torch.equal(some.turned(part), weight[:, [1, 4, 5]])
    [(name, positions, values)] = some.changes(part * (part % 2), weight.numel())
    assert name == "0.weight"
    assert len(values) == 6, "the even ones do not change"
    assert torch.equal(weight.reshape(-1)[positions], values)


@pytest.mark.parametrize("optimiser", ["owlqn", "lbfgs"])
@pytest.mark.parametrize("settings", [{}, {"power": 0.0}, {"weights": "importance"}, {"target": "uniform"}])
def test_the_result_is_the_same(monkeypatch: pytest.MonkeyPatch, optimiser: str, settings: dict[str, object]) -> None:
    model, forget, retain, reference = network(), bags(6, 1), bags(5, 2), bags(30, 3)
    method = Forsaken(**{"optimiser": optimiser, "iterations": 8, "penalty": 1e-4, "anchor_references": 5, **settings})

    def run() -> object:
        return method(model, forget, reference, retain, seed=0)

    short = run()
    monkeypatch.setattr(method_place, "used_columns", lambda *_: None)
    wide = run()
    for one, other in zip(short.model.parameters(), wide.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-9)
    assert short.density == wide.density
    assert short.details.facts["penalty_max"] == pytest.approx(wide.details.facts["penalty_max"])
    old = short.mask.revert(short.model)
    assert all(torch.equal(a, b) for a, b in zip(old.parameters(), model.parameters(), strict=True))
    untouched = short.model[0].weight[:, 12:]
    assert torch.equal(untouched, model[0].weight[:, 12:])


def test_it_is_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    real = ParameterSpace.__init__

    def noted(self: ParameterSpace, *given: object, **named: object) -> None:
        real(self, *given, **named)
        sizes.append((self.size, self.chosen))

    monkeypatch.setattr(ParameterSpace, "__init__", noted)
    Forsaken(target="uniform", iterations=2)(network(), bags(4, 1), retain=bags(3, 2))
    assert sizes == [(12 * 16 + 16 + 51, WIDTH * 16 + 16 + 51)]


def test_the_mean_importance_counts_what_is_left_out() -> None:
    omega = torch.tensor([1.0, 3.0])
    whole = torch.tensor([1.0, 3.0, 0.0, 0.0])
    assert torch.allclose(scaled(omega, 4), scaled(whole)[:2])


def test_a_filter_may_leave_the_first_layer_alone() -> None:
    model = network()
    found = Forsaken(target="uniform", iterations=3, parameters="2.*")(model, bags(4, 1), retain=bags(3, 2))
    assert torch.equal(found.model[0].weight, model[0].weight)
    assert not torch.equal(found.model[2].weight, model[2].weight)


def test_estimators() -> None:
    draw = torch.Generator().manual_seed(0)
    x = bags(60, 0).numpy()
    y = torch.randint(3, (60,), generator=draw).numpy()
    estimator = LogisticRegression(C=100.0, max_iter=500).fit(x, y)
    assert of(LinearModel(estimator), torch.from_numpy(x)) is not None
    found = Forsaken(target="uniform", iterations=5)(estimator, x[:4], retain=x[10:20])
    assert (found.model.coef_[:, 12:] == estimator.coef_[:, 12:]).all()


class Own(nn.Module):
    """Nobody knows what it does with its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x + 1)


def hooked() -> nn.Module:
    model = network()
    model[0].register_forward_pre_hook(lambda _, given: (given[0] + 1,))
    return model


def twice() -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH).double()
    return nn.Sequential(layer, nn.ReLU(), layer)


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).double()
    model[2].weight = model[0].weight
    return model


def frozen() -> nn.Module:
    model = network()
    model[0].weight.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    "make", [Own, hooked, twice, tied, frozen, lambda: nn.Sequential(nn.ReLU(), network()), nn.Sequential]
)
def test_models_of_which_it_is_not_sure(make: object) -> None:
    assert of(make(), bags(3, 0)) is None


def test_inputs_that_do_not_pay_or_do_not_fit() -> None:
    model = network()
    dense, whole, deep = bags(3, 0, words=35), bags(3, 0).long(), bags(3, 0).reshape(3, 8, 5)
    for part in (dense, whole, deep, torch.zeros(3, WIDTH, dtype=torch.float64)):
        assert of(model, part) is None
    assert of(model, bags(3, 0), forward=lambda model, x: model(x)) is None
    assert used_columns(LogitModel(model), [], free(model)) is None
    pairs = Samples((bags(3, 0), bags(3, 1)))
    assert used_columns(LogitModel(model), [pairs], free(model)) is None


def test_nested_sequences_are_followed() -> None:
    inner = network()
    found = of(nn.Sequential(inner, nn.Identity()), bags(3, 0))
    assert found is not None
    names = dict(nn.Sequential(inner, nn.Identity()).named_parameters())
    assert found.name in names
    assert list(itertools.islice(names, 1)) == [found.name]


def words(count: int, seed: int) -> torch.Tensor:
    """Documents of three words each, out of the whole vocabulary."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.zeros(count, WIDTH, dtype=torch.float64)
    for row in found:
        row[torch.randperm(WIDTH, generator=draw)[:3]] = 1.0 + torch.rand(3, generator=draw, dtype=torch.float64)
    return found


def test_inputs_that_are_mostly_zero_are_multiplied_without_their_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    model, forget, retain, reference = network(), words(40, 1), words(30, 2), words(60, 3)
    found = of(model, forget, retain)
    assert found is not None
    assert found.sparse
    assert len(found.used) > 0.75 * WIDTH, "worth it although nearly every column is used"
    thin = found.sparse_rows(found.inputs(forget))
    assert thin.layout == torch.sparse_csr
    assert torch.equal(thin.to_dense(), found.inputs(forget))
    method = Forsaken(iterations=8, penalty=1e-4, anchor_references=20)

    def run(**more: object) -> object:
        return method(model, forget, reference, retain, seed=0, **more)

    sparse = run()
    monkeypatch.setattr(place, "MAX_FILLED", 0.0)
    dense = run()
    assert of(model, forget, retain) is None
    for one, other in zip(sparse.model.parameters(), dense.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-9)
    assert sparse.density == dense.density
    old = sparse.mask.revert(sparse.model)
    assert all(torch.equal(a, b) for a, b in zip(old.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("batch_size", [None, 7])
def test_estimators_and_microbatches_without_zeros(monkeypatch: pytest.MonkeyPatch, batch_size: int | None) -> None:
    x = words(80, 4).numpy()
    y = torch.randint(3, (80,), generator=torch.Generator().manual_seed(0)).numpy()
    estimator = LogisticRegression(C=100.0, max_iter=500).fit(x, y)
    assert of(LinearModel(estimator), torch.from_numpy(x)).sparse
    method = Forsaken(target="uniform", iterations=6, batch_size=batch_size)

    def run() -> object:
        return method(estimator, x[:10], retain=x[20:40], seed=0).model.coef_

    sparse = run()
    monkeypatch.setattr(place, "MAX_FILLED", 0.0)
    assert abs(sparse - run()).max() < 1e-9
    assert abs(sparse - estimator.coef_).max() > 1e-3


def test_bags_that_are_full_stay_dense() -> None:
    found = of(network(), bags(3, 0))
    assert found is not None
    assert not found.sparse
    assert found.sparse_rows(bags(3, 0)).layout == torch.strided
