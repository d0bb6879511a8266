"""The distances against SciPy, the objective against autograd over the whole expression, and who is held in place."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax

from forsaken.bench.networks import mlp
from forsaken.data.samples import Samples
from forsaken.models.logits import LogitModel, centre
from forsaken.unlearning.base import Request
from forsaken.unlearning.forsaken.objective import DISTANCES, Anchors, Kept, Objective
from forsaken.unlearning.forsaken.parameters import ParameterSpace, default_batch_size


@pytest.fixture
def draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_distances_are_what_they_say(draw: torch.Generator) -> None:
    z, t = (torch.randn(7, 4, generator=draw, dtype=torch.float64) for _ in range(2))
    q, p = softmax(z.numpy(), 1), softmax(t.numpy(), 1)
    np.testing.assert_allclose(DISTANCES["kl"](z, centre(t)), rel_entr(p, q).sum(1), rtol=1e-10)
    np.testing.assert_allclose(DISTANCES["kl-reverse"](z, centre(t)), rel_entr(q, p).sum(1), rtol=1e-10)
    gap = (z - z.mean(1, keepdim=True) - t + t.mean(1, keepdim=True)).numpy()
    np.testing.assert_allclose(DISTANCES["logits"](z, centre(t)), (gap**2).mean(1), rtol=1e-10)


@pytest.mark.parametrize("distance", sorted(DISTANCES))
@pytest.mark.parametrize("batch_size", [None, 3, 5, 100])
def test_value_and_gradient(draw: torch.Generator, distance: str, batch_size: int | None) -> None:
    net = mlp((5, 6, 3)).double()
    forget, anchors = (torch.randn(n, 5, generator=draw, dtype=torch.float64) for n in (7, 4))
    target = centre(torch.randn(7, 3, generator=draw, dtype=torch.float64))
    held = centre(torch.randn(4, 3, generator=draw, dtype=torch.float64))
    space = ParameterSpace(LogitModel(net))
    scale = 0.5 + torch.rand(space.size, generator=draw, dtype=torch.float64)
    nu = 0.1 * torch.randn(space.size, generator=draw, dtype=torch.float64)
    f = Objective(
        space,
        scale,
        Samples(forget),
        target,
        Samples(anchors),
        held,
        distance=distance,
        beta=0.7,
        batch_size=batch_size,
    )
    f.move(nu)
    gradient = torch.full_like(nu, torch.nan)
    smooth = f(gradient)

    # the whole expression in one piece, differentiated with respect to ν
    free = nu.clone().requires_grad_(True)
    theta = torch.nn.utils.parameters_to_vector(net.parameters()).detach() - scale * free
    shapes = {name: p.shape for name, p in net.named_parameters()}
    parts = dict(zip(shapes, theta.split([s.numel() for s in shapes.values()]), strict=True))
    weights = {name: part.view(shapes[name]) for name, part in parts.items()}
    first = DISTANCES[distance](torch.func.functional_call(net, weights, forget), target).mean()
    second = (centre(torch.func.functional_call(net, weights, anchors)) - held).square().mean()
    (first + 0.7 * second).backward()
    assert smooth.distance == pytest.approx(first.item(), rel=1e-10)
    assert smooth.anchor == pytest.approx(second.item(), rel=1e-10)
    assert smooth.value == pytest.approx((first + 0.7 * second).item(), rel=1e-10)
    torch.testing.assert_close(gradient, free.grad, rtol=1e-9, atol=1e-12)


def test_moving_part_of_it_is_moving_it(draw: torch.Generator) -> None:
    space = ParameterSpace(LogitModel(mlp((5, 6, 3))))
    scale = 0.5 + torch.rand(space.size, generator=draw)
    x = torch.randn(4, 5, generator=draw)
    f = Objective(space, scale, Samples(x), torch.zeros(4, 3), None, None, distance="logits", beta=1.0)
    nu = torch.randn(space.size, generator=draw) * (torch.rand(space.size, generator=draw) < 0.3)
    index = nu.nonzero()[:, 0]
    f.move(nu)
    whole = space.theta.clone()
    space.theta.copy_(space.start)
    f.move(nu[index], index)
    assert torch.equal(space.theta, whole)


def test_a_parameter_without_a_role_has_no_gradient(draw: torch.Generator) -> None:
    net = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 2), "idle": torch.nn.Linear(3, 2)})
    adapter = LogitModel(net, forward=lambda model, x: model["used"](x))
    space = ParameterSpace(adapter)
    x = Samples(torch.randn(4, 3, generator=draw))
    f = Objective(space, torch.ones(space.size), x, torch.zeros(4, 2), None, None, distance="logits", beta=0.0)
    gradient = torch.full((space.size,), torch.nan)
    f(gradient)
    for name, cut in space.slices.items():
        assert bool((gradient[cut] == 0).all()) == name.startswith("idle"), name


def test_pictures_and_texts_pass_few_at_a_time_and_rows_of_numbers_all_at_once() -> None:
    adapter = LogitModel(mlp((5, 6, 3)))
    assert default_batch_size(adapter, Samples(torch.zeros(500, 5))) is None
    assert default_batch_size(adapter, Samples(torch.zeros(500, 3, 8, 8))) == 64
    assert default_batch_size(adapter, Samples(torch.zeros(500, 40, dtype=torch.long))) == 64
    assert default_batch_size(adapter, Samples((torch.zeros(500, 5), torch.zeros(500, 5)))) == 64


def samples(count: int, value: float) -> Samples:
    return Samples(torch.full((count, 2), value), torch.zeros(count, dtype=torch.long))


def kept_request(retain: int | None = 4, reference: int | None = 10, seed: int = 0) -> Request:
    return Request(
        forget=samples(3, 0.0),
        reference=None if reference is None else samples(reference, 2.0),
        retain=None if retain is None else samples(retain, 1.0),
        seed=seed,
    )


def held(asked: Request, *, weight: float = 1.0, references: int = 6) -> Kept:
    return Kept.of(asked, Anchors(weight=weight, references=references))


def values(part: Samples | None) -> list[float]:
    return [] if part is None else part.inputs[:, 0].tolist()


def test_retain_samples_come_first_and_at_most_so_many_references() -> None:
    found = held(kept_request())
    assert values(found.anchors) == [1.0] * 4 + [2.0] * 6
    assert (values(found.guard), found.source) == ([1.0] * 4, "retain")
    assert found.notes(importance=True) == []


def test_without_references_or_with_none_of_them_retain_samples_are_held_alone() -> None:
    for found in (held(kept_request(reference=None)), held(kept_request(), references=0)):
        assert (values(found.anchors), values(found.guard), found.source) == ([1.0] * 4, [1.0] * 4, "retain")


@pytest.mark.parametrize(("retain", "guard"), [(4, [1.0] * 4), (None, [2.0] * 10)])
def test_without_anchors_the_importance_stays(retain: int | None, guard: list[float]) -> None:
    found = held(kept_request(retain=retain), weight=0.0)
    assert found.anchors is None
    assert values(found.guard) == guard


def test_references_stand_in_for_retain_samples() -> None:
    found = held(kept_request(retain=None))
    assert (values(found.anchors), values(found.guard), found.source) == ([2.0] * 6, [2.0] * 10, "reference")
    assert "importance and anchor come from the references" in found.notes(importance=True)[0]
    assert found.notes(importance=False) == ["no retain samples were given: anchor come from the references"]


def test_nobody_is_told() -> None:
    found = held(kept_request(retain=None, reference=None))
    assert (found.anchors, found.guard, found.source) == (None, None, "none")
    assert "nothing holds the other samples in place" in found.notes(importance=False)[0]


@pytest.mark.parametrize("seed", [0, 1])
def test_references_are_drawn_by_the_seed(seed: int) -> None:
    asked = Request(
        forget=samples(1, -1.0), reference=Samples(torch.arange(50.0)[:, None].repeat(1, 2)), retain=None, seed=seed
    )
    one, two = held(asked), held(asked)
    assert torch.equal(one.anchors.inputs, two.anchors.inputs)
    other = held(Request(forget=asked.forget, reference=asked.reference, retain=None, seed=seed + 10))
    assert not torch.equal(one.anchors.inputs, other.anchors.inputs)
