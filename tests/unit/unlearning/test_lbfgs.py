"""The paper's optimiser is torch's own, asked one iteration at a time."""

from __future__ import annotations

import math

import pytest
import torch
from test_owlqn import Quadratic, random_quadratic

from forsaken.errors import NonFiniteError
from forsaken.unlearning.forsaken.optimisers import Smooth, lbfgs


def solve(f, penalty, iterations, watch=lambda point: None):
    gradient = torch.empty_like(penalty)
    start = f(gradient)
    return lbfgs(f, start.value, gradient, penalty, iterations=iterations, history=10, watch=watch)


@pytest.mark.parametrize("level", [0.0, 0.01])
def test_equals_torch_in_one_call(level: float) -> None:
    f = random_quadratic(20, seed=0)
    penalty = torch.full((20,), level, dtype=torch.float64)
    nu = torch.zeros(20, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [nu], max_iter=8, history_size=10, tolerance_grad=0, tolerance_change=0, line_search_fn="strong_wolfe",
        max_eval=10_000,
    )  # fmt: skip

    def closure():
        optimiser.zero_grad()
        value = 0.5 * nu @ f.matrix @ nu - f.vector @ nu + (penalty * nu.abs()).sum()
        value.backward()
        return value

    optimiser.step(closure)
    found = solve(f, penalty, 8)
    torch.testing.assert_close(found.nu, nu.detach(), rtol=1e-8, atol=1e-10)


def test_finds_the_minimum() -> None:
    f = random_quadratic(20, seed=1)
    found = solve(f, torch.zeros(20, dtype=torch.float64), 200)
    torch.testing.assert_close(found.nu, torch.linalg.solve(f.matrix, f.vector), atol=1e-6, rtol=0)


def test_reports_where_it_stopped() -> None:
    f = random_quadratic(20, seed=2)
    seen = []

    def watch(point):
        seen.append(point)
        return "x" if len(seen) == 3 else None

    found = solve(f, torch.zeros(20, dtype=torch.float64), 50, watch)
    assert (found.iterations, found.stopped) == (3, "x")
    value = 0.5 * found.nu @ f.matrix @ found.nu - f.vector @ found.nu
    assert seen[-1].objective == pytest.approx(float(value))


def test_running_off_is_an_error() -> None:
    class Broken(Quadratic):
        def __call__(self, gradient):
            smooth = super().__call__(gradient)
            return smooth if self.calls == 1 else Smooth(math.nan, 0.0, math.nan)

    f = Broken(torch.eye(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    with pytest.raises(NonFiniteError, match="owlqn"):
        solve(f, torch.zeros(3, dtype=torch.float64), 5)
