"""A wide first linear layer: only the used columns, or the span of the inputs, with the same result and mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import forsaken
from forsaken import Curvature, Forsaken
from forsaken.data.samples import Samples
from forsaken.models.logits import LinearModel, LogitModel
from forsaken.models.weights import fingerprint
from forsaken.references import curvature as curvature_place
from forsaken.unlearning.forsaken import method as method_place
from forsaken.unlearning.forsaken import parameters as place
from forsaken.unlearning.forsaken.parameters import InputSpan, ParameterSpace, UsedColumns, input_span, used_columns

WIDTH, HIDDEN, CLASSES, DAMPING = 40, 8, 3, 0.1
FEW = slice(12)


def bags(count: int, seed: int, words: slice = slice(None)) -> Tensor:
    """Documents that use some words of the vocabulary alone."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.zeros(count, WIDTH, dtype=torch.float64)
    found[:, words] = torch.rand(count, WIDTH, generator=draw, dtype=torch.float64)[:, words]
    return found


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).double()


def unbiased() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, HIDDEN, bias=False), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).double()


def free(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def span(model: nn.Module, *parts: Tensor, chosen: set[str] | None = None, data: Tensor | None = None) -> Any:
    found = Curvature.fit(model, bags(50, 9) if data is None else data)
    names = frozenset(found.names if chosen is None else chosen)
    picked = {name: p for name, p in free(model).items() if name in names}
    return input_span(LogitModel(model), [Samples(part) for part in parts], picked, found, DAMPING)


def sides(found: Curvature, name: str) -> tuple[Tensor, Tensor]:
    """Return A + λā and G + λḡ."""
    own = found.factors[name]
    pair = own.inputs.matrix / own.divisor, own.outputs.matrix / found.rows
    A, G = (side + DAMPING * side.diagonal().mean() * torch.eye(len(side), dtype=side.dtype) for side in pair)
    return A, G


def wanted(count: int) -> Tensor:
    return torch.randn(count, CLASSES, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def hooked() -> nn.Module:
    model = network()
    model[0].register_forward_pre_hook(lambda _, given: (given[0] + 1,))
    return model


def frozen() -> nn.Module:
    model = network()
    model[0].weight.requires_grad_(False)
    return model


# --- the span of the inputs ------------------------------------------------------------------------------------------


def test_coordinates_stand_for_a_displacement_of_weight_and_bias() -> None:
    model, forget = network(), bags(6, 1, slice(3, 33))
    found = span(model, forget[:4], forget[4:])
    assert isinstance(found, InputSpan)
    assert (found.name, found.bias, found.width) == ("0.weight", "0.bias", WIDTH)
    assert found.used.tolist() == list(range(3, 33))
    part = torch.randn(HIDDEN, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    weight, bias = model[0].weight.detach().clone(), model[0].bias.detach().clone()
    said = nn.functional.linear(found.inputs(forget), found.turned(part), bias)
    for name, places, values in found.changes(part, weight.numel()):
        (weight if name == "0.weight" else bias).view(-1)[places] += values
    torch.testing.assert_close(said, nn.functional.linear(forget, weight, bias))
    assert not found.part(weight).any()
    assert found.part(weight).shape == (HIDDEN, 6)


def test_in_these_coordinates_the_curvature_of_the_inputs_is_the_identity() -> None:
    model, forget, data = network(), bags(6, 1, slice(3, 33)), bags(50, 9)
    found = span(model, forget, data=data)
    A, _ = sides(Curvature.fit(model, data), "0.weight")
    at = [*range(3, 33), WIDTH]
    gram = found.basis @ A[at][:, at] @ found.basis.T
    torch.testing.assert_close(gram, torch.eye(6, dtype=torch.float64), atol=1e-4, rtol=0)


@pytest.mark.parametrize("sketched", [False, True])
@pytest.mark.parametrize("make", [network, unbiased])
@pytest.mark.parametrize("chosen", [None, ["0.weight", "2.*"]])
def test_the_span_gives_the_same_result(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], nn.Sequential], chosen: list[str] | None, sketched: bool
) -> None:
    if sketched:
        monkeypatch.setattr(curvature_place, "DENSE", 20)
        monkeypatch.setattr(curvature_place, "RANK", 10)
    monkeypatch.setattr(place, "SPAN_JITTER", 1e-14)
    model, forget = make(), bags(6, 1)
    curvature = Curvature.fit(model, bags(50, 9))
    assert sketched == (curvature.factors["0.weight"].inputs.sketch is not None)
    sizes: list[int] = []
    real = ParameterSpace.__init__

    def noted(self: ParameterSpace, *given: object, **named: object) -> None:
        real(self, *given, **named)
        sizes.append(self.size)

    monkeypatch.setattr(ParameterSpace, "__init__", noted)

    def run() -> Any:
        return forsaken.unlearn(
            model, forget, targets=wanted(6), curvature=curvature, parameters=chosen, damping=DAMPING, rounds=4
        )

    short = run()
    monkeypatch.setattr(place, "MAX_SPAN", 0.0)
    wide = run()
    rest = HIDDEN * CLASSES + CLASSES
    moves = make is network and chosen is None
    assert sizes == [6 * HIDDEN + rest, WIDTH * HIDDEN + moves * HIDDEN + rest]
    for one, other in zip(short.model.parameters(), wide.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-6)
    assert short.stopped == wide.stopped
    assert [step.distance for step in short.history] == pytest.approx([step.distance for step in wide.history])
    if make is network:
        assert torch.equal(short.model[0].bias, model[0].bias) == (chosen is not None)
    assert fingerprint(short.mask.revert(short.model)) == fingerprint(model)
    assert fingerprint(short.mask.apply(model)) == fingerprint(short.model)


def test_the_slack_changes_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, forget = network(), bags(6, 1)
    curvature = Curvature.fit(model, bags(50, 9))

    def run() -> Tensor:
        found = forsaken.unlearn(model, forget, targets=wanted(6), curvature=curvature, rounds=3)
        return found.model[0].weight.detach() - model[0].weight.detach()

    short = run()
    monkeypatch.setattr(place, "MAX_SPAN", 0.0)
    wide = run()
    assert float((short - wide).norm()) < 1e-3 * float(wide.norm())


def test_columns_that_no_sample_uses_are_not_touched() -> None:
    """Among the used ones it is the smallest displacement there is, by dense matrices."""
    torch.manual_seed(0)
    model, forget = nn.Linear(WIDTH, CLASSES).double(), bags(6, 1, slice(3, 33))
    curvature = Curvature.fit(model, bags(50, 9))
    found = forsaken.unlearn(
        model, forget, targets=wanted(6), curvature=curvature, damping=DAMPING, tolerance=1e-9, rounds=60, steps=60
    )
    unused = [*range(3), *range(33, WIDTH)]
    assert torch.equal(found.model.weight[:, unused], model.weight[:, unused])
    at = [*range(3, 33), WIDTH]
    A, G = sides(curvature, "weight")
    centre = torch.eye(CLASSES, dtype=torch.float64) - 1 / CLASSES
    ones = torch.cat([forget, torch.ones(6, 1, dtype=torch.float64)], 1)[:, at]
    J = torch.cat([torch.kron(centre, row[None]) for row in ones])
    back = torch.linalg.solve(torch.kron(G, A[at][:, at]), J.T)
    left = ((wanted(6) - model(forget).detach()) @ centre).reshape(-1)
    expected = (back @ torch.linalg.pinv(J @ back, hermitian=True) @ left).view(CLASSES, -1)
    change = torch.cat([found.model.weight - model.weight, (found.model.bias - model.bias)[:, None]], 1).detach()
    torch.testing.assert_close(change[:, at], expected, atol=1e-5, rtol=1e-4)


def test_columns_that_no_row_at_all_uses_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "SPAN_JITTER", 1e-14)
    model, some = network(), slice(3, 33)
    curvature = Curvature.fit(model, bags(50, 9, some))

    def run() -> list[Tensor]:
        found = forsaken.unlearn(model, bags(6, 1, some), targets=wanted(6), curvature=curvature, rounds=3)
        return [weight.detach() for weight in found.model.parameters()]

    short = run()
    monkeypatch.setattr(place, "MAX_SPAN", 0.0)
    for one, other in zip(short, run(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-6)


def test_two_samples_may_be_equal() -> None:
    model, forget = network(), bags(6, 1)
    forget[3] = forget[0]
    targets = wanted(6)
    targets[3] = targets[0]
    curvature = Curvature.fit(model, bags(50, 9))
    assert span(model, forget) is not None
    found = forsaken.unlearn(model, forget, targets=targets, curvature=curvature)
    assert found.stopped == "tolerance"
    said, aims = (rows - rows.mean(1, keepdim=True) for rows in (found.model(forget).detach(), targets))
    assert float((said - aims).square().mean().sqrt()) <= found.details.facts["tolerance"]


@pytest.mark.parametrize("classes", [2, 3])
def test_the_span_for_estimators(monkeypatch: pytest.MonkeyPatch, classes: int) -> None:
    monkeypatch.setattr(place, "SPAN_JITTER", 1e-14)
    x = bags(60, 2).numpy()
    y = np.random.default_rng(0).integers(classes, size=60)
    estimator = LogisticRegression(C=100.0, max_iter=500).fit(x, y)
    curvature, targets = Curvature.fit(estimator, x), np.linspace(-1, 1, 5 * classes).reshape(5, classes) ** 2

    def run() -> Any:
        return forsaken.unlearn(estimator, x[:5], targets=targets, curvature=curvature).model

    short = run()
    monkeypatch.setattr(place, "MAX_SPAN", 0.0)
    wide = run()
    assert isinstance(short, LogisticRegression)
    np.testing.assert_allclose(short.coef_, wide.coef_, atol=1e-7)
    np.testing.assert_allclose(short.intercept_, wide.intercept_, atol=1e-7)
    assert (short.intercept_ != estimator.intercept_).any()


def test_models_and_samples_without_a_span() -> None:
    model, few = network(), bags(6, 1)
    assert span(model, few) is not None
    assert span(nn.Sequential(model, nn.Identity()), few).name == "0.0.weight"
    assert span(model, bags(20, 1)) is not None
    assert span(model, bags(21, 1)) is None, "more than half as many samples as columns"
    assert span(model, bags(6, 1, slice(0, 10))) is None
    assert span(model, torch.zeros(2, WIDTH, dtype=torch.float64)) is None
    assert span(model, few, chosen={"0.bias", "2.weight"}) is None
    assert span(model, few, chosen={"0.weight"}).bias is None
    assert span(hooked(), few) is None
    assert span(frozen(), few) is None
    assert span(nn.Sequential(nn.Tanh(), network()), few) is None


# --- the used columns ------------------------------------------------------------------------------------------------


def columns(model: nn.Module, *parts: Tensor, forward: object = None) -> UsedColumns | None:
    return used_columns(LogitModel(model, forward), [Samples(part) for part in parts], free(model))


def test_the_columns_that_some_sample_uses() -> None:
    found = columns(network(), bags(3, 0, FEW), bags(2, 1, slice(14)))
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
def test_used_columns_give_the_same_result(
    monkeypatch: pytest.MonkeyPatch, optimiser: str, settings: dict[str, object]
) -> None:
    model, forget, retain, reference = network(), bags(6, 1, FEW), bags(5, 2, FEW), bags(30, 3, FEW)
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
    Forsaken(target="uniform", iterations=2)(network(), bags(4, 1, FEW), retain=bags(3, 2, FEW))
    rest = HIDDEN + HIDDEN * CLASSES + CLASSES
    assert sizes == [(12 * HIDDEN + rest, WIDTH * HIDDEN + rest)]


def test_a_filter_may_leave_the_first_layer_alone() -> None:
    model = network()
    found = Forsaken(target="uniform", iterations=3, parameters="2.*")(model, bags(4, 1, FEW), retain=bags(3, 2, FEW))
    assert torch.equal(found.model[0].weight, model[0].weight)
    assert not torch.equal(found.model[2].weight, model[2].weight)


def test_used_columns_of_estimators() -> None:
    draw = torch.Generator().manual_seed(0)
    x = bags(60, 0, FEW).numpy()
    y = torch.randint(3, (60,), generator=draw).numpy()
    estimator = LogisticRegression(C=100.0, max_iter=500).fit(x, y)
    assert columns(LinearModel(estimator), torch.from_numpy(x)) is not None
    found = Forsaken(target="uniform", iterations=5)(estimator, x[:4], retain=x[10:20])
    assert (found.model.coef_[:, 12:] == estimator.coef_[:, 12:]).all()


class Own(nn.Module):
    """Nobody knows what it does with its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x + 1)


def twice() -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH).double()
    return nn.Sequential(layer, nn.ReLU(), layer)


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)).double()
    model[2].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    "make", [Own, hooked, twice, tied, frozen, lambda: nn.Sequential(nn.ReLU(), network()), nn.Sequential]
)
def test_models_of_which_it_is_not_sure(make: object) -> None:
    assert columns(make(), bags(3, 0, FEW)) is None


def test_inputs_that_do_not_pay_or_do_not_fit() -> None:
    model = network()
    dense, whole, deep = bags(3, 0, slice(35)), bags(3, 0, FEW).long(), bags(3, 0, FEW).reshape(3, 8, 5)
    for part in (dense, whole, deep, torch.zeros(3, WIDTH, dtype=torch.float64)):
        assert columns(model, part) is None
    assert columns(model, bags(3, 0, FEW), forward=lambda model, x: model(x)) is None
    assert used_columns(LogitModel(model), [], free(model)) is None
    pairs = Samples((bags(3, 0, FEW), bags(3, 1, FEW)))
    assert used_columns(LogitModel(model), [pairs], free(model)) is None


def test_nested_sequences_are_followed() -> None:
    model = nn.Sequential(nn.Sequential(network()), nn.Identity())
    found = columns(model, bags(3, 0, FEW))
    assert found is not None
    assert found.name == next(iter(dict(model.named_parameters())))


def words(count: int, seed: int) -> Tensor:
    """Documents of three words each, out of the whole vocabulary."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.zeros(count, WIDTH, dtype=torch.float64)
    for row in found:
        row[torch.randperm(WIDTH, generator=draw)[:3]] = 1.0 + torch.rand(3, generator=draw, dtype=torch.float64)
    return found


def test_inputs_that_are_mostly_zero_are_multiplied_without_their_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    model, forget, retain, reference = network(), words(40, 1), words(30, 2), words(60, 3)
    found = columns(model, forget, retain)
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
    assert columns(model, forget, retain) is None
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
    assert columns(LinearModel(estimator), torch.from_numpy(x)).sparse
    method = Forsaken(target="uniform", iterations=6, batch_size=batch_size)

    def run() -> object:
        return method(estimator, x[:10], retain=x[20:40], seed=0).model.coef_

    sparse = run()
    monkeypatch.setattr(place, "MAX_FILLED", 0.0)
    assert abs(sparse - run()).max() < 1e-9
    assert abs(sparse - estimator.coef_).max() > 1e-3


def test_bags_that_are_full_stay_dense() -> None:
    found = columns(network(), bags(3, 0, FEW))
    assert found is not None
    assert not found.sparse
    assert found.sparse_rows(bags(3, 0, FEW)).layout == torch.strided
