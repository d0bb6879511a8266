"""By the curvature: against dense linear algebra and finite differences, and from one end to the other."""

from __future__ import annotations

import copy
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Problem
from reference_case import KEY, drawn, hebb
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import forsaken
from forsaken import Curvature, Forsaken, References, Training
from forsaken.data.nest import Nest
from forsaken.data.samples import Samples
from forsaken.errors import InputError, NothingForgottenError, SettingsError
from forsaken.models.logits import LogitModel, predict_logits
from forsaken.models.train import train
from forsaken.models.weights import fingerprint
from forsaken.recipe import Recipe
from forsaken.unlearning.forsaken import gauss_newton as place
from forsaken.unlearning.forsaken import method as method_place
from forsaken.unlearning.forsaken.gauss_newton import Linearised, Metric, Solver, bring_to_targets
from forsaken.unlearning.forsaken.parameters import ParameterSpace, choose, frozen_prefix, prepared

CLASSES, DAMPING = 3, 0.1

Named = dict[str, Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def built(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().double().eval()


def centred(logits: Tensor) -> Tensor:
    return logits.detach().double() - logits.detach().double().mean(1, keepdim=True)


def rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.dense = nn.Embedding(9, 4), nn.Linear(4, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.dense(self.embedding(tokens).tanh().mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell, self.dense = kind(4, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(self.cell(x)[0][:, -1])


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.dense = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(self.encoder(x).mean(1))


class _NoForwardMode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradient


class Cube(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _NoForwardMode.apply(x)


def pictures() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(3, 4, 2, dilation=2, bias=False),
        nn.Flatten(),
        nn.Linear(4, CLASSES),
    )


NETS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (lambda: nn.Linear(6, CLASSES), normal(10, 6)),
    "layered": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES)), normal(10, 6)),
    "pictures": (pictures, normal(10, 1, 5, 5)),
    "sequences": (
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(12, CLASSES)),
        normal(10, 2, 4),
    ),
    "words": (Words, torch.randint(9, (10, 5), generator=torch.Generator().manual_seed(0))),
    "lstm": (lambda: Recurrent(nn.LSTM), normal(10, 3, 4)),
    "gru": (lambda: Recurrent(nn.GRU), normal(10, 3, 4)),
    "cube": (lambda: nn.Sequential(nn.Linear(6, 5), Cube(), nn.Linear(5, CLASSES)), normal(10, 6)),
}


@contextmanager
def linearised(model: nn.Module, rows: Tensor, size: int | None = None, way: str = "forward") -> Iterator[Linearised]:
    space = ParameterSpace(LogitModel(model))
    with prepared(model):
        yield Linearised(space, [(part.inputs, None) for part in Samples(rows).batches(size)], way)


def drawn_like(linear: Linearised, seed: int = 3) -> Named:
    return {name: normal(*part.shape, seed=seed) for name, part in linear.space.parts.items()}


def moved(old: nn.Module, new: nn.Module) -> Named:
    was = dict(old.named_parameters())
    return {name: (weight - was[name]).detach() for name, weight in new.named_parameters()}


# --- the metric ------------------------------------------------------------------------------------------------------


def sides(curvature: Curvature, name: str) -> tuple[Tensor, Tensor]:
    """Return A + λā and G + λḡ."""
    own = curvature.factors[name]
    found = []
    for side, divisor in ((own.inputs, own.divisor), (own.outputs, curvature.rows)):
        matrix = (torch.diag(side.diagonal) if side.matrix is None else side.matrix) / divisor
        found.append(matrix + DAMPING * matrix.diagonal().mean() * torch.eye(len(matrix), dtype=matrix.dtype))
    return found[0], found[1]


@pytest.mark.parametrize("name", ["linear", "layered", "pictures", "sequences", "words", "lstm"])
def test_dividing_by_the_metric_solves_with_the_kronecker_product(name: str) -> None:
    make, rows = NETS[name]
    model = built(make)
    curvature, space = Curvature.fit(model, rows), ParameterSpace(LogitModel(model))
    gradient = {name: normal(*part.shape, seed=1) for name, part in space.parts.items()}
    found = Metric(space, curvature, DAMPING).divide(gradient)
    assert list(found) == list(gradient)
    for weight, own in curvature.factors.items():
        A, G = sides(curvature, weight)
        part, answer = gradient[weight].flatten(1), found[weight].flatten(1)
        if own.transposed:
            part, answer = part.T, answer.T
        if own.bias is not None:
            part = torch.cat([part, gradient[own.bias][:, None]], 1)
            answer = torch.cat([answer, found[own.bias][:, None]], 1)
        expected = torch.linalg.solve(torch.kron(G, A), part.reshape(-1))
        torch.testing.assert_close(answer.reshape(-1), expected)
    for bias, squares in curvature.diagonals.items():
        spread = squares / curvature.rows
        torch.testing.assert_close(found[bias], gradient[bias] / (spread + DAMPING * spread.mean()))


@pytest.mark.parametrize(("chosen", "columns"), [("weight", slice(0, 6)), ("bias", slice(6, 7))])
def test_a_weight_or_a_bias_alone_has_its_own_part_of_the_metric(chosen: str, columns: slice) -> None:
    make, rows = NETS["linear"]
    model = built(make)
    curvature, space = Curvature.fit(model, rows), ParameterSpace(LogitModel(model), choose(model, chosen))
    gradient = {chosen: normal(*space.parts[chosen].shape, seed=1)}
    A, G = sides(curvature, "weight")
    expected = torch.linalg.solve(torch.kron(G, A[columns, columns]), gradient[chosen].reshape(-1))
    found = Metric(space, curvature, DAMPING).divide(gradient)
    torch.testing.assert_close(found[chosen].reshape(-1), expected)


# --- J and its transpose ---------------------------------------------------------------------------------------------


def differences(linear: Linearised, tangent: Named, step: float = 1e-6) -> Tensor:
    theta, along = linear.space.theta, torch.cat([tangent[name].reshape(-1) for name in linear.space.parts])
    base, found = theta.clone(), []
    for sign in (1, -1):
        theta.copy_(base + sign * step * along)
        found.append(linear.at())
    theta.copy_(base)
    linear.at()
    return (found[0] - found[1]) / (2 * step)


@pytest.mark.parametrize("held", [2048, 4])
@pytest.mark.parametrize("size", [None, 4])
@pytest.mark.parametrize("name", NETS)
def test_the_derivative_and_its_transpose(
    monkeypatch: pytest.MonkeyPatch, name: str, size: int | None, held: int
) -> None:
    monkeypatch.setattr(place, "HELD", held)
    make, rows = NETS[name]
    model = built(make)
    with linearised(model, rows, size) as linear:
        said = linear.at()
        torch.testing.assert_close(said, centred(model(rows)))
        tangent, dual = drawn_like(linear), normal(10, CLASSES, seed=4)
        product, gradient = linear.product(tangent), linear.transposed(dual)
        again = linear.transposed(dual)
        torch.testing.assert_close(product, differences(linear, tangent), atol=1e-6, rtol=1e-6)
    both = float(sum((gradient[name] * part).sum() for name, part in tangent.items()))
    assert both == pytest.approx(float((dual * product).sum()), rel=1e-9)
    assert all(torch.equal(again[name], part) for name, part in gradient.items())
    assert not product.requires_grad
    assert torch.allclose(product.sum(1), torch.zeros(10, dtype=torch.float64)), "centred, as the logits are"


@pytest.mark.parametrize("name", NETS)
def test_two_backward_passes_are_one_forward(name: str) -> None:
    make, rows = NETS[name]
    model = built(make)
    with linearised(model, rows, 4) as linear:
        linear.at()
        tangent = drawn_like(linear)
        product = linear.product(tangent)
        assert (linear.way == "forward") == (name != "cube"), "a layer without a forward derivative is found out"
    with linearised(model, rows, 4, "double-backward") as linear:
        linear.at()
        torch.testing.assert_close(linear.product(tangent), product)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.three, self.dense = nn.Linear(4, 12), nn.Linear(4, CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        parts = self.three(rows.unflatten(1, (3, 4))).chunk(3, dim=-1)
        return self.dense(nn.functional.scaled_dot_product_attention(*parts).mean(1))


def test_attention_has_a_forward_mode() -> None:
    """Its fused kernels have none, and the differences that stood in for it lose digits in float32."""
    model, rows = built(Attention), normal(5, 12)
    with linearised(model, rows, 5) as linear:
        start = linear.at()
        tangent = {name: normal(*part.shape, seed=1) for name, part in linear.space.parts.items()}
        found = linear.product(tangent)
        assert linear.way == "forward"
        move = torch.cat([tangent[name].reshape(-1) for name in linear.space.parts])
        linear.space.theta += 1e-6 * move
        torch.testing.assert_close(found, (linear.at() - start) / 1e-6, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("way", ["forward", "double-backward", "difference"])
def test_a_weight_that_plays_no_part_moves_nothing(way: str) -> None:
    model = built(lambda: nn.Linear(6, CLASSES))
    model.spare = nn.Parameter(torch.ones(2, dtype=torch.float64))
    with linearised(model, normal(4, 6), way=way) as linear:
        linear.at()
        assert torch.equal(linear.transposed(normal(4, CLASSES))["spare"], torch.zeros(2, dtype=torch.float64))
        tangent = {name: torch.zeros_like(part) for name, part in linear.space.parts.items()} | {"spare": normal(2)}
        assert torch.equal(linear.product(tangent), torch.zeros(4, CLASSES, dtype=torch.float64))


def test_a_frozen_prefix_changes_no_derivative() -> None:
    make, rows = NETS["pictures"]
    model = built(lambda: nn.Sequential(*make(), nn.Tanh(), nn.Linear(CLASSES, 900), nn.Linear(900, CLASSES)))
    adapter, parts = LogitModel(model), [Samples(rows)]
    picked = choose(model)
    prefix = frozen_prefix(adapter, parts, picked, 0.02)
    assert prefix is not None
    assert sorted(prefix.weights) == ["0.bias", "0.weight", "2.weight", "4.bias", "4.weight"]
    rest = {name: p for name, p in picked.items() if name not in prefix.weights}
    space = ParameterSpace(adapter, rest, prefix=prefix)
    with linearised(model, rows) as whole:
        short = Linearised(space, [(rows, space.prefix_outputs(rows))])
        torch.testing.assert_close(short.at(), whole.at())
        dual, tangent = normal(10, CLASSES), drawn_like(short)
        left, right = short.transposed(dual), whole.transposed(dual)
        for name, part in left.items():
            torch.testing.assert_close(part, right[name])
        still = {name: torch.zeros_like(part) for name, part in whole.space.parts.items()}
        torch.testing.assert_close(short.product(tangent), whole.product(still | tangent))


@pytest.mark.parametrize(("held", "kept"), [(2048, 5), (4, 0)])
def test_only_so_many_rows_keep_their_activations(monkeypatch: pytest.MonkeyPatch, held: int, kept: int) -> None:
    monkeypatch.setattr(place, "HELD", held)
    make, rows = NETS["layered"]
    model = built(make)
    outputs: list[weakref.ref[Tensor]] = []
    counts: list[int] = []

    def alive() -> int:
        return sum(each() is not None for each in outputs)

    def note(_: nn.Module, __: object, output: Tensor) -> None:
        counts.append(alive())
        outputs.append(weakref.ref(output))

    with linearised(model, rows, 2) as linear:
        handle = model[1].register_forward_hook(note)  # what the last layer's gradient needs
        linear.at()
        handle.remove()
        assert alive() == kept
    assert counts == [0, 1, 2, 3, 4] if kept else max(counts) <= 1, "one batch's go before the next one's come"


# --- the displacement ------------------------------------------------------------------------------------------------


def by_hand(model: nn.Module, curvature: Curvature, rows: Tensor, left: Tensor, columns: slice) -> Tensor:
    """Return M⁻¹Jᵀ(J M⁻¹Jᵀ)⁺ r of a linear model, its bias the last column, by dense matrices."""
    A, G = sides(curvature, "weight")
    width = len(range(7)[columns])
    ones = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], 1)[:, columns]
    centre = torch.eye(CLASSES, dtype=rows.dtype) - 1 / CLASSES
    J = torch.cat([torch.kron(centre, row[None]) for row in ones])
    M = torch.kron(G, A[columns, columns])
    back = torch.linalg.solve(M, J.T)
    return (back @ torch.linalg.pinv(J @ back, hermitian=True) @ left.reshape(-1)).view(CLASSES, width)


@pytest.mark.parametrize(
    ("chosen", "columns", "count"), [(None, slice(0, 7), 4), ("weight", slice(0, 6), 4), ("bias", slice(6, 7), 1)]
)
@pytest.mark.parametrize("one_round", [True, False])
def test_a_linear_model_takes_the_smallest_displacement_there_is(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, columns: slice, count: int, one_round: bool
) -> None:
    model, data = built(lambda: nn.Linear(6, CLASSES)), normal(40, 6, seed=5)
    curvature, targets = Curvature.fit(model, data), normal(count, CLASSES, seed=6)
    if one_round:
        monkeypatch.setattr(place, "_ACCURACY", (0.0, 0.0))
    found = forsaken.unlearn(
        model,
        data[:count],
        targets=targets,
        curvature=curvature,
        parameters=chosen,
        damping=DAMPING,
        tolerance=1e-11,
        rounds=1 if one_round else 100,
        steps=50,
    )
    assert found.stopped == "tolerance"
    left = centred(targets) - centred(model(data[:count]))
    change = moved(model, found.model)
    own = torch.cat([change["weight"], change["bias"][:, None]], 1)
    torch.testing.assert_close(
        own[:, columns], by_hand(model, curvature, data[:count], left, columns), atol=1e-8, rtol=1e-7
    )
    untouched = torch.ones(7, dtype=torch.bool)
    untouched[columns] = False
    assert not own[:, untouched].any()
    torch.testing.assert_close(centred(found.model(data[:count])), centred(targets), atol=1e-8, rtol=1e-8)


# --- the whole request -----------------------------------------------------------------------------------------------


class Flat(Metric):
    """Every direction costs the same."""

    def divide(self, gradient: Named) -> Named:
        return gradient


@pytest.fixture(scope="module")
def curved(problem64: Problem) -> Curvature:
    return Curvature.fit(problem64.model, torch.cat([problem64.kept[0], problem64.forget[0]]))


@pytest.fixture(scope="module")
def targets(problem64: Problem) -> Tensor:
    """What the model says of strangers that it never saw."""
    return problem64.model(problem64.reference[:20]).detach()


def test_the_samples_reach_their_targets_and_the_others_stay(
    monkeypatch: pytest.MonkeyPatch, problem64: Problem, curved: Curvature, targets: Tensor
) -> None:
    model, before = problem64.model, fingerprint(problem64.model)

    def run() -> tuple[Any, float]:
        found = forsaken.unlearn(model, problem64.forget[0], targets=targets, curvature=curved, tolerance=0.05)
        return found, rms(centred(found.model(problem64.kept[0])) - centred(model(problem64.kept[0])))

    found, drift = run()
    wanted = 0.05 * 0.5 * rms(centred(targets))
    assert found.stopped == "tolerance"
    assert found.details.facts["optimiser"] == "gauss-newton"
    assert found.details.facts["tolerance"] == pytest.approx(wanted)
    assert rms(centred(found.model(problem64.forget[0])) - centred(targets)) <= wanted
    assert fingerprint(model) == before
    old = found.mask.revert(found.model)
    assert fingerprint(old) == before
    assert fingerprint(found.mask.apply(model)) == fingerprint(found.model)
    monkeypatch.setattr(method_place, "Metric", Flat)
    flat, further = run()
    assert flat.stopped == "tolerance"
    assert drift < 0.5 * further


def test_the_same_bits_each_time(problem64: Problem, curved: Curvature, targets: Tensor) -> None:
    again = copy.deepcopy(curved)
    prints = {
        fingerprint(forsaken.unlearn(problem64.model, problem64.forget[0], targets=targets, curvature=each).model)
        for each in (curved, curved, again, Curvature.from_tensors(*curved.to_tensors()))
    }
    assert len(prints) == 1


def test_microbatches_play_no_role(
    monkeypatch: pytest.MonkeyPatch, problem64: Problem, curved: Curvature, targets: Tensor
) -> None:
    def run(size: int | None) -> list[Tensor]:
        found = forsaken.unlearn(
            problem64.model, problem64.forget[0], targets=targets, curvature=curved, batch_size=size, rounds=3
        )
        return [weight.detach() for weight in found.model.parameters()]

    whole, parts = run(None), run(7)
    monkeypatch.setattr(place, "HELD", 10)
    anew = run(7)
    for one, other, third in zip(whole, parts, anew, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-7)
        torch.testing.assert_close(one, third, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("small", [False, True])
def test_only_the_forgotten_samples_are_passed_and_in_small_networks_the_retained(
    small: bool, monkeypatch: pytest.MonkeyPatch, problem64: Problem, curved: Curvature, targets: Tensor
) -> None:
    monkeypatch.setattr(method_place, "SMALL", 10**9 if small else 0)
    model, forget = copy.deepcopy(problem64.model), problem64.forget[0]
    known, seen = {tuple(row.tolist()) for row in forget}, set()
    model.register_forward_pre_hook(lambda _, given: seen.update(tuple(row.tolist()) for row in given[0]))
    # Large networks have the retain samples for the stop alone, which looks at the accuracy before and after.
    found = forsaken.unlearn(
        model,
        forget,
        targets=targets,
        retain=problem64.retain,
        curvature=curved,
        rounds=2,
        allow=("accuracy-loss",),
    )
    held = {tuple(row.tolist()) for row in problem64.retain[0]} if small else set()
    assert seen == known | held
    assert found.details.facts["held"] == len(held)


def test_small_networks_hold_what_is_retained(problem64: Problem, curved: Curvature, targets: Tensor) -> None:
    held, others = problem64.kept[0][:60], problem64.kept[0][60:]
    given = {"targets": targets, "curvature": curved, "tolerance": 0.01}
    alone, beside = (
        forsaken.unlearn(problem64.model, problem64.forget[0], retain=retain, **given) for retain in (None, held)
    )
    aim = centred(targets)
    for found in (alone, beside):
        assert rms(centred(predict_logits(found.model, problem64.forget[0])) - aim) < found.details.facts["tolerance"]
    for rows, share in ((held, 0.5), (others, 0.9)):
        before = centred(predict_logits(problem64.model, rows))
        far, near = (rms(centred(predict_logits(each.model, rows)) - before) for each in (alone, beside))
        assert near < share * far
    assert any("give retain=" in note for note in alone.notes)
    assert not any("give retain=" in note for note in beside.notes)


DEEP = """
import resource
import torch
from torch import nn
from forsaken import Curvature, unlearn
torch.manual_seed(0)
layers = [layer for _ in range(60) for layer in (nn.Linear(192, 192), nn.ReLU())]
model, x = nn.Sequential(*layers, nn.Linear(192, 4)).eval(), torch.randn(16, 192)
for layer in layers[::2]:
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
curvature, aim = Curvature.fit(model, x), model(x[:4]).detach() + torch.randn(4, 4)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
unlearn(model, x[:4], targets=aim, curvature=curvature, rounds=1, steps=2)
weights = sum(p.numel() for p in model.parameters())
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / (4 * weights))
"""


def test_memory_does_not_grow_with_the_number_of_layers() -> None:
    """In forward mode each view of one vector would have a tangent of that vector's size: 120 times the model here."""
    told = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True, check=True)
    assert float(told.stdout) < 40  # 16 when this was written, 75 with views


def test_it_stops_at_its_rounds(problem64: Problem, curved: Curvature, targets: Tensor) -> None:
    ticks: list[Any] = []
    found = forsaken.unlearn(
        problem64.model,
        problem64.forget[0],
        targets=targets,
        curvature=curved,
        rounds=2,
        steps=2,
        tolerance=1e-6,
        progress=ticks.append,
    )
    assert (found.stopped, found.iterations, len(found.history)) == ("iterations", 2, 2)
    assert [(tick.done, tick.total) for tick in ticks] == [(1, 2), (2, 2)]
    now = rms(centred(found.model(problem64.forget[0])) - centred(targets))
    assert now**2 == pytest.approx(found.history[-1].distance)
    assert found.details.facts["distance_after"] == found.history[-1].distance
    assert found.history[-1].distance < found.history[0].distance < found.details.facts["distance_before"]


def test_weights_that_are_too_few_go_as_near_as_they_can(
    problem64: Problem, curved: Curvature, targets: Tensor
) -> None:
    last, forget = max(name for name in curved.names if name.endswith("bias")), problem64.forget[0]
    found = forsaken.unlearn(problem64.model, forget, targets=targets, curvature=curved, parameters=last, rounds=100)
    assert found.stopped in ("converged", "line-search")
    assert found.iterations < 20
    assert {name for name, change in moved(problem64.model, found.model).items() if change.any()} == {last}
    left = centred(targets) - centred(found.model(forget))
    torch.testing.assert_close(left.mean(0), torch.zeros(4, dtype=torch.float64), atol=1e-6, rtol=0)


five_rounds: dict[str, Any] = {"solver": Solver(rounds=5), "forgotten": 3, "watch": lambda _: None}


@pytest.mark.parametrize(("share", "expected"), [(0.99, ("converged", 3)), (0.9, ("iterations", 5))])
def test_it_stops_where_rounds_bring_next_to_nothing(share: float, expected: tuple[str, int]) -> None:
    model, rows = built(lambda: nn.Linear(6, CLASSES)), normal(3, 6)
    space, target = ParameterSpace(LogitModel(model)), centred(normal(3, CLASSES, seed=1))
    metric = Metric(space, Curvature.fit(model, rows), DAMPING)

    class Slow(Linearised):
        """What is left shrinks by a share in each round."""

        left = 1.0

        def at(self) -> Tensor:
            super().at()
            self.left *= share
            return target - self.left * centred(normal(3, CLASSES, seed=2))

    with prepared(model):
        found = bring_to_targets(Slow(space, [(rows, None)]), metric, target, 1e-6, **five_rounds)
    assert (found.stopped, found.rounds) == expected


def test_a_step_that_brings_samples_farther_is_shortened_and_then_left() -> None:
    model = built(lambda: nn.Linear(6, CLASSES))
    rows = normal(3, 6)
    space = ParameterSpace(LogitModel(model))
    metric = Metric(space, Curvature.fit(model, rows), DAMPING)
    seen: list[Tensor] = []

    class Away(Linearised):
        """Farther from the target the farther it goes, whatever its derivative says."""

        def at(self) -> Tensor:
            found = super().at()
            seen.append(self.space.theta.clone())
            return found + 100 * float((self.space.theta - self.space.start).norm())

    with prepared(model):
        target = centred(normal(3, CLASSES, seed=1))
        found = bring_to_targets(Away(space, [(rows, None)]), metric, target, 1e-6, **five_rounds)
    assert (found.stopped, found.rounds) == ("line-search", 0)
    assert torch.equal(space.theta, space.start)
    lengths = [float((each - space.start).norm()) for each in seen]
    assert lengths[0] == 0
    assert [length / lengths[1] for length in lengths[1:]] == pytest.approx([0.5**at for at in range(8)])


def test_weights_that_cannot_bring_samples_nearer_are_told() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, CLASSES)))
    model[0].bias.data.fill_(-100.0)
    data = normal(20, 6)
    curvature = Curvature.fit(model, data)
    with pytest.raises(NothingForgottenError, match=r"let more weights change \(parameters=\)"):
        forsaken.unlearn(model, data[:2], targets=normal(2, CLASSES), curvature=curvature, parameters="0.*")


def test_samples_that_are_near_enough_already_are_no_error(problem64: Problem, curved: Curvature) -> None:
    forget = problem64.forget[0]
    said = problem64.model(forget).detach()
    near = said + 1e-3 * rms(said) * normal(*said.shape)
    found = forsaken.unlearn(problem64.model, forget, targets=near, curvature=curved, tolerance=0.05)
    assert fingerprint(found.model) == fingerprint(problem64.model)
    assert rms(centred(said) - centred(near)) < 0.05 * 0.5 * rms(centred(near))


def test_norm_layers_stay() -> None:
    model = built(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, CLASSES))
    )
    data = normal(40, 6)
    model.train()(data)
    model.eval()
    curvature = Curvature.fit(model, data)
    found = forsaken.unlearn(model, data[:3], targets=normal(3, CLASSES), curvature=curvature)
    assert found.stopped == "tolerance"
    for at in (1, 3):
        for name, value in model[at].state_dict().items():
            assert torch.equal(found.model[at].state_dict()[name], value)
    assert not torch.equal(found.model[4].weight, model[4].weight)
    with pytest.raises(SettingsError, match="norm layers have none"):
        forsaken.unlearn(model, data[:3], targets=normal(3, CLASSES), curvature=curvature, parameters=["1.*", "3.*"])


# --- networks of other kinds -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sequences() -> Samples:
    draw = torch.Generator().manual_seed(0)
    return Samples(torch.randn(60, 3, 4, generator=draw), torch.randint(CLASSES, (60,), generator=draw))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_networks(kind: type[nn.RNNBase], sequences: Samples) -> None:
    model = train(lambda: Recurrent(kind), sequences, Recipe(40, 16, 2e-2), seed=0)
    forget = sequences.inputs[:4]
    targets = model(sequences.inputs[-4:]).detach() / 2
    found = forsaken.unlearn(model, forget, targets=targets, curvature=Curvature.fit(model, sequences))
    facts = found.details.facts
    assert found.stopped == "tolerance"
    assert (facts["jacobian"] == "forward") == (kind is nn.GRU), "oneDNN's LSTM has no forward derivative"
    assert rms(centred(found.model(forget)) - centred(targets)) <= facts["tolerance"]
    kept, before = centred(found.model(sequences.inputs[4:])), centred(model(sequences.inputs[4:]))
    assert rms(kept - before) < rms(centred(targets) - centred(model(forget)))


def attention() -> tuple[nn.Module, Tensor]:
    return Transformer(), normal(30, 3, 8)


def bags() -> tuple[nn.Module, Tensor]:
    model = nn.Sequential(nn.EmbeddingBag(9, 4), nn.Tanh(), nn.Linear(4, CLASSES))
    return model, torch.randint(9, (30, 5), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["pictures", "words", "cube", "attention", "bags"])
def test_other_layers_reach_their_targets_too(name: str) -> None:
    """Attention and bags have neither a forward nor a second derivative."""
    torch.manual_seed(0)
    if name in NETS:
        model, data = built(NETS[name][0]), NETS[name][1]
    else:
        model, data = {"attention": attention, "bags": bags}[name]()
        model, data = model.eval(), data.float() if data.is_floating_point() else data
    targets = centred(model(data[:2])) + 0.3 * normal(2, CLASSES)
    found = forsaken.unlearn(model, data[:2], targets=targets, curvature=Curvature.fit(model, data))
    assert found.stopped == "tolerance"
    assert (found.details.facts["jacobian"] == "forward") == (name in ("pictures", "words"))
    assert rms(centred(found.model(data[:2])) - centred(targets)) <= found.details.facts["tolerance"]


@pytest.mark.parametrize(("classes", "intercept"), [(3, True), (2, True), (3, False)])
def test_estimators(classes: int, intercept: bool) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.standard_normal((60, 8)), draw.integers(classes, size=60)
    estimator = LogisticRegression(C=100.0, fit_intercept=intercept).fit(x, y)
    before = estimator.coef_.copy()
    curvature = Curvature.fit(estimator, (x, y))
    assert curvature.names == ({"weight", "bias"} if intercept else {"weight"})
    targets = predict_logits(estimator, x[-2:]) + 1
    targets = targets * torch.tensor([1.0, -1.0, 0.5][:classes], dtype=targets.dtype)
    found = forsaken.unlearn(estimator, x[:2], targets=targets, curvature=curvature)
    assert isinstance(found.model, LogisticRegression)
    assert found.details.facts["optimiser"] == "gauss-newton"
    assert (estimator.coef_ == before).all()
    assert (found.model.coef_ != before).any()
    assert (found.model.intercept_ != estimator.intercept_).any() == intercept
    said = centred(predict_logits(found.model, x[:2]))
    assert rms(said - centred(targets)) <= found.details.facts["tolerance"]


# --- with a table of references --------------------------------------------------------------------------------------


def distance(model: Any, rows: Nest, logits: Tensor) -> float:
    return rms(centred(predict_logits(model, rows)) - centred(logits))


@pytest.fixture(scope="module")
def task() -> tuple[Training, Samples, Tensor]:
    """Small pictures with random labels, learnt by heart with augmentation, and some that nobody saw."""
    draw = torch.Generator().manual_seed(1)
    pictures = torch.randn(68, 1, 6, 6, generator=draw)
    labels = torch.randint(CLASSES, (60,), generator=draw)

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, CLASSES)
        )

    recipe = Recipe(30, 16, 1e-2, augmentation="mirror-shift")
    return Training(build, recipe), Samples(pictures[:60], labels), pictures[60:]


def test_samples_and_their_views_go_where_models_are_that_never_saw_them(
    task: tuple[Training, Samples, Tensor],
) -> None:
    training, data, unseen = task
    target = training.run(data, seed=7)
    table = References.fit(training, data, folds=2, model=target, views=2, unseen=unseen, seed=3)
    forget = data.inputs[:6]
    views, said = table.views_of(forget)
    assert table.spread is not None
    found = forsaken.unlearn(target, forget, references=table, tolerance=0.05)
    facts = found.details.facts
    assert found.stopped == "tolerance"
    assert facts["optimiser"] == "gauss-newton"
    assert facts["target"] == "out-of-fold"
    assert (facts["views"], facts["spread"]) == (2, table.spread)
    wanted = centred(torch.cat([table.logits(forget), said]))
    assert facts["tolerance"] == pytest.approx(0.05 * table.spread * rms(wanted))
    assert distance(found.model, forget, table.logits(forget)) <= facts["tolerance"] * (1 + 1e-4)
    assert distance(found.model, views, said) < 0.3 * distance(target, views, said)
    assert fingerprint(found.mask.revert(found.model)) == fingerprint(target)
    assert fingerprint(found.mask.apply(target)) == fingerprint(found.model)
    plain = forsaken.unlearn(target, forget, targets=table.logits(forget), curvature=table.curvature)
    assert distance(found.model, views, said) < 0.7 * distance(plain.model, views, said), "views were forgotten too"
    fewer = [forsaken.unlearn(target, forget, references=table, views=count) for count in (0, 1, 2, 9)]
    assert [each.details.facts["views"] for each in fewer] == [0, 1, 2, 2]
    assert distance(fewer[1].model, views, said) < distance(fewer[0].model, views, said)
    # one request after the other
    table.forget(forget, before=target, after=found.model)
    then = forsaken.unlearn(found.model, data.inputs[6:8], references=table)
    assert distance(then.model, data.inputs[6:8], table.logits(data.inputs[6:8])) <= then.details.facts["tolerance"]


def test_views_of_rows_of_numbers(problem: Problem) -> None:
    data = Samples(torch.cat([problem.forget[0], problem.kept[0]]), torch.cat([problem.forget[1], problem.kept[1]]))

    def fit(rows: Any, steps: int | None, seed: int) -> nn.Module:
        build = lambda: nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))  # noqa: E731
        return train(build, data.rows(rows), Recipe(60, 32, 1e-2), seed=seed)

    target = fit(range(len(data)), None, 9)
    table = References.fit(
        fit,
        (data.inputs, data.labels),
        folds=2,
        model=target,
        views=1,
        view=lambda x, draw: x + 0.2 * torch.randn(x.shape, generator=draw),
        unseen=problem.reference,
    )
    forget = data.inputs[:10]
    views, said = table.views_of(forget)
    found = forsaken.unlearn(target, forget, references=table)
    assert distance(found.model, forget, table.logits(forget)) <= found.details.facts["tolerance"] * (1 + 1e-4)
    assert distance(found.model, views, said) < 0.3 * distance(target, views, said)
    without = forsaken.unlearn(
        target, forget, references=table, optimiser="owlqn", iterations=5, retain=data.inputs[50:60]
    )
    assert "optimiser" not in without.details.facts


def test_samples_come_before_their_views() -> None:
    """Where a view is the row itself and should go elsewhere, both cannot be had."""
    x, y = drawn(24)
    fit = hebb(x, y)
    target = fit(range(24), None, 0)
    table = References.fit(fit, (x, y), folds=2, key=KEY, model=target, views=1, view=lambda row, _: row)
    table.entries.views.add_(normal(24, 1, CLASSES).float())
    found = forsaken.unlearn(target, x[:2], references=table)
    assert found.stopped == "tolerance"
    assert distance(found.model, x[:2], table.logits(x[:2])) <= found.details.facts["tolerance"] * (1 + 1e-4)


# --- what a user may get wrong ---------------------------------------------------------------------------------------


def test_a_table_of_another_model_is_refused(task: tuple[Training, Samples, Tensor]) -> None:
    training, data, _ = task
    quick = Training(training.build, Recipe(1, 16, 1e-2))
    one, other = quick.run(data, seed=1), quick.run(data, seed=2)
    table = References.fit(quick, data, folds=2, model=one)
    with pytest.raises(InputError, match=r"measured for other weights.*give the table of this model"):
        forsaken.unlearn(other, data.inputs[:2], references=table)
    forsaken.unlearn(other, data.inputs[:2], references=table, optimiser="owlqn", iterations=2)
    with pytest.raises(InputError, match="other weights"):
        forsaken.unlearn(other, data.inputs[:2], targets=torch.ones(2, 3) - torch.eye(3)[:2], curvature=table.curvature)


def test_gauss_newton_needs_a_curvature(problem64: Problem, targets: Tensor) -> None:
    with pytest.raises(SettingsError, match=r"needs the curvature.*forsaken\.Curvature\.fit"):
        forsaken.unlearn(problem64.model, problem64.forget[0], targets=targets, optimiser="gauss-newton")
    with pytest.raises(InputError, match="curvature is of type dict"):
        forsaken.unlearn(problem64.model, problem64.forget[0], targets=targets, curvature={})
    with pytest.raises(SettingsError, match='goes by distance="logits"'):
        Forsaken(optimiser="gauss-newton", distance="kl")


def test_other_optimisers_leave_the_curvature_alone(problem64: Problem, curved: Curvature, targets: Tensor) -> None:
    found = forsaken.unlearn(
        problem64.model,
        problem64.forget[0],
        retain=problem64.retain,
        targets=targets,
        curvature=curved,
        optimiser="owlqn",
        iterations=3,
    )
    plain = forsaken.unlearn(
        problem64.model, problem64.forget[0], retain=problem64.retain, targets=targets, optimiser="owlqn", iterations=3
    )
    assert fingerprint(found.model) == fingerprint(plain.model)
