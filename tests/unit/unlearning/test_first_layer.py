"""A wide first layer in the coordinates of the samples: the same result, in fewer numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import forsaken
from forsaken import Curvature
from forsaken.data.samples import Samples
from forsaken.models.logits import LogitModel
from forsaken.models.weights import fingerprint
from forsaken.references import curvature as curvature_place
from forsaken.unlearning.forsaken import parameters as place
from forsaken.unlearning.forsaken.parameters import InputSpan, ParameterSpace, input_span

WIDTH, HIDDEN, CLASSES, DAMPING = 40, 8, 3, 0.1


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


def of(model: nn.Module, *parts: Tensor, chosen: set[str] | None = None, data: Tensor | None = None) -> Any:
    found = Curvature.fit(model, bags(50, 9) if data is None else data)
    names = frozenset(found.names if chosen is None else chosen)
    picked = {name: p for name, p in model.named_parameters() if p.requires_grad and name in names}
    return input_span(LogitModel(model), [Samples(part) for part in parts], picked, found, DAMPING)


def sides(found: Curvature, name: str) -> tuple[Tensor, Tensor]:
    """Return A + λā and G + λḡ."""
    own = found.factors[name]
    pair = own.inputs.matrix / own.divisor, own.outputs.matrix / found.rows
    A, G = (side + DAMPING * side.diagonal().mean() * torch.eye(len(side), dtype=side.dtype) for side in pair)
    return A, G


def wanted(count: int) -> Tensor:
    return torch.randn(count, CLASSES, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def test_coordinates_stand_for_a_displacement_of_weight_and_bias() -> None:
    model, forget = network(), bags(6, 1, slice(3, 33))
    found = of(model, forget[:4], forget[4:])
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
    found = of(model, forget, data=data)
    A, _ = sides(Curvature.fit(model, data), "0.weight")
    at = [*range(3, 33), WIDTH]
    gram = found.basis @ A[at][:, at] @ found.basis.T
    torch.testing.assert_close(gram, torch.eye(6, dtype=torch.float64), atol=1e-4, rtol=0)


@pytest.mark.parametrize("sketched", [False, True])
@pytest.mark.parametrize("make", [network, unbiased])
@pytest.mark.parametrize("chosen", [None, ["0.weight", "2.*"]])
def test_the_result_is_the_same(
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
    assert of(model, forget) is not None
    found = forsaken.unlearn(model, forget, targets=targets, curvature=curvature)
    assert found.stopped == "tolerance"
    said, aims = (rows - rows.mean(1, keepdim=True) for rows in (found.model(forget).detach(), targets))
    assert float((said - aims).square().mean().sqrt()) <= found.details.facts["tolerance"]


@pytest.mark.parametrize("classes", [2, 3])
def test_estimators(monkeypatch: pytest.MonkeyPatch, classes: int) -> None:
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


def hooked() -> nn.Module:
    model = network()
    model[0].register_forward_pre_hook(lambda _, given: (given[0] + 1,))
    return model


def frozen() -> nn.Module:
    model = network()
    model[0].weight.requires_grad_(False)
    return model


def test_where_there_are_none() -> None:
    model, few = network(), bags(6, 1)
    assert of(model, few) is not None
    assert of(nn.Sequential(model, nn.Identity()), few).name == "0.0.weight"
    assert of(model, bags(20, 1)) is not None
    assert of(model, bags(21, 1)) is None, "more than half as many samples as columns"
    assert of(model, bags(6, 1, slice(0, 10))) is None
    assert of(model, torch.zeros(2, WIDTH, dtype=torch.float64)) is None
    assert of(model, few, chosen={"0.bias", "2.weight"}) is None
    assert of(model, few, chosen={"0.weight"}).bias is None
    assert of(hooked(), few) is None
    assert of(frozen(), few) is None
    assert of(nn.Sequential(nn.Tanh(), network()), few) is None
