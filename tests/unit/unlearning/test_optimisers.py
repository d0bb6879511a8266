"""The optimisers against independent computations: scikit-learn's lasso, a two-loop recursion, torch, closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso
from torch import Tensor

from forsaken.errors import NonFiniteError
from forsaken.unlearning.forsaken.optimisers import Found, History, Smooth, WorkingSet, lbfgs, owlqn, pseudo_gradient


class Quadratic:
    """½ νᵀAν − bᵀν, with the optimiser's view of it."""

    def __init__(self, matrix: Tensor, vector: Tensor) -> None:
        self.matrix, self.vector = matrix, vector
        self.point = torch.zeros_like(vector)
        self.calls = 0

    def move(self, nu: Tensor, index: Tensor | None = None) -> None:
        self.point = nu.clone() if index is None else self.point.index_copy(0, index, nu)

    def __call__(self, gradient: Tensor) -> Smooth:
        self.calls += 1
        curved = self.matrix @ self.point
        torch.sub(curved, self.vector, out=gradient)
        value = float(0.5 * self.point @ curved - self.vector @ self.point)
        return Smooth(value, 0.0, value)


def solve(f: Quadratic, penalty: Tensor, iterations: int = 500, history: int = 10) -> Found:
    gradient = torch.empty_like(penalty)
    start = f(gradient)
    return owlqn(f, start.value, gradient, penalty, iterations=iterations, history=history, watch=lambda point: None)


def random_quadratic(size: int, seed: int, condition: float = 100.0) -> Quadratic:
    draw = torch.Generator().manual_seed(seed)
    basis, _ = torch.linalg.qr(torch.randn(size, size, generator=draw, dtype=torch.float64))
    values = torch.logspace(0, np.log10(condition), size, dtype=torch.float64)
    return Quadratic(basis @ (values[:, None] * basis.T), torch.randn(size, generator=draw, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(3))
def test_lasso_has_the_same_solution_as_in_scikit_learn(seed: int) -> None:
    draw = np.random.default_rng(seed)
    design, noise = draw.normal(size=(80, 40)), draw.normal(size=80)
    answer = design[:, :5].sum(1) + 0.1 * noise
    alpha = 0.1
    lasso = Lasso(alpha=alpha, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(design, answer)
    f = Quadratic(torch.tensor(design.T @ design / 80), torch.tensor(design.T @ answer / 80))
    found = solve(f, torch.full((40,), alpha, dtype=torch.float64))
    np.testing.assert_allclose(found.nu.numpy(), lasso.coef_, atol=1e-6)
    assert np.array_equal(found.nu.numpy() == 0, lasso.coef_ == 0), "zeros are exact, and the same ones"
    assert (lasso.coef_ == 0).any()


def test_separable_problem_is_soft_thresholding() -> None:
    scale = torch.tensor([1.0, 2.0, 4.0, 8.0], dtype=torch.float64)
    b = torch.tensor([3.0, -3.0, 0.5, -0.2], dtype=torch.float64)
    penalty = torch.tensor([1.0, 0.5, 1.0, 0.1], dtype=torch.float64)
    found = solve(Quadratic(torch.diag(scale), b), penalty)
    wanted = b.sign() * (b.abs() - penalty).clamp_min(0) / scale
    torch.testing.assert_close(found.nu, wanted, atol=1e-8, rtol=0)


def test_a_penalty_above_the_largest_gradient_moves_nothing() -> None:
    f = random_quadratic(10, seed=2)
    largest = float(f.vector.abs().max())
    still = solve(f, torch.full((10,), 1.0001 * largest, dtype=torch.float64))
    assert torch.count_nonzero(still.nu) == 0
    assert still.stopped == "converged"
    assert torch.count_nonzero(solve(f, torch.full((10,), 0.99 * largest, dtype=torch.float64)).nu) > 0


def test_objective_never_rises() -> None:
    f = random_quadratic(50, seed=3, condition=1e4)
    values: list[float] = []
    gradient = torch.empty(50, dtype=torch.float64)
    start = f(gradient)

    def watch(point) -> None:
        values.append(point.objective)

    penalty = torch.full((50,), 0.05, dtype=torch.float64)
    owlqn(f, start.value, gradient, penalty, iterations=60, history=5, watch=watch)
    assert all(later <= earlier for earlier, later in zip([start.value, *values], values, strict=False))


def test_watch_stops_at_the_point_it_saw() -> None:
    f = random_quadratic(20, seed=4)
    gradient = torch.empty(20, dtype=torch.float64)
    start = f(gradient)
    penalty = torch.zeros(20, dtype=torch.float64)
    found = owlqn(
        f, start.value, gradient, penalty, iterations=50, history=5,
        watch=lambda point: "enough" if point.iteration == 7 else None,
    )  # fmt: skip
    assert (found.stopped, found.iterations) == ("enough", 7)
    assert torch.equal(f.point, found.nu), "the function stands where the optimiser says it is"


def test_a_trial_that_is_not_finite_is_too_long() -> None:
    class Cliff(Quadratic):
        def __call__(self, gradient: Tensor) -> Smooth:
            smooth = super().__call__(gradient)
            gone = float(self.point.abs().max()) > 0.5
            return Smooth(np.nan, 0.0, np.nan) if gone else smooth

    f = Cliff(torch.eye(2, dtype=torch.float64), torch.tensor([0.49, 0.1], dtype=torch.float64))
    found = solve(f, torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(found.nu, f.vector, atol=1e-6, rtol=0)


def test_pseudo_gradient_is_the_smallest_subgradient() -> None:
    draw = torch.Generator().manual_seed(0)
    nu = torch.randn(200, generator=draw) * (torch.rand(200, generator=draw) < 0.5)
    gradient, penalty = torch.randn(200, generator=draw), torch.rand(200, generator=draw)
    # an independent way: the projection of zero on the interval of subgradients
    low = torch.where(nu > 0, gradient + penalty, gradient - penalty)
    high = torch.where(nu < 0, gradient - penalty, gradient + penalty)
    torch.testing.assert_close(pseudo_gradient(nu, gradient, penalty), torch.zeros(200).clamp(low, high))


def two_loop(pairs: list[tuple[Tensor, Tensor]], vector: Tensor) -> Tensor:
    """The textbook recursion (Nocedal and Wright, algorithm 7.4), pair by pair."""
    q, alphas = vector.clone(), []
    for s, y in reversed(pairs):
        alpha = (s @ q) / (s @ y)
        alphas.append(alpha)
        q = q - alpha * y
    s, y = pairs[-1]
    q = q * (s @ y) / (y @ y)
    for (s, y), alpha in zip(pairs, reversed(alphas), strict=True):
        q = q + s * (alpha - (y @ q) / (s @ y))
    return q


@pytest.mark.parametrize("count", [1, 3, 4, 9])
def test_matrix_form_equals_the_two_loop_recursion(count: int) -> None:
    f, draw = random_quadratic(12, seed=5), torch.Generator().manual_seed(1)
    history, pairs = History(4, f.vector), []
    for _ in range(count):
        s = torch.randn(12, generator=draw, dtype=torch.float64)
        pairs.append((s, f.matrix @ s))
        history.add(*pairs[-1])
    vector = torch.randn(12, generator=draw, dtype=torch.float64)
    torch.testing.assert_close(history.times(vector), two_loop(pairs[-4:], vector), rtol=1e-9, atol=1e-9)


def test_history_grows_with_zeros_and_shrinks_with_its_pairs() -> None:
    f, draw = random_quadratic(6, seed=6), torch.Generator().manual_seed(2)
    history, pairs = History(3, f.vector), []
    for _ in range(5):
        s = torch.randn(6, generator=draw, dtype=torch.float64)
        pairs.append((s, f.matrix @ s))
        history.add(*pairs[-1])
    history.grow(8)
    longer = [(torch.cat([s, s.new_zeros(2)]), torch.cat([y, y.new_zeros(2)])) for s, y in pairs[-3:]]
    vector = torch.randn(8, generator=draw, dtype=torch.float64)
    torch.testing.assert_close(history.times(vector), two_loop(longer, vector), rtol=1e-9, atol=1e-9)
    kept = torch.tensor([0, 2, 3, 5, 7])
    history.shrink(kept)
    shorter = [(s[kept], y[kept]) for s, y in longer]
    shorter = [(s, y) for s, y in shorter if s @ y > 1e-10 * (y @ y)]
    torch.testing.assert_close(history.times(vector[kept]), two_loop(shorter, vector[kept]), rtol=1e-9, atol=1e-9)


def test_working_set_holds_what_can_move() -> None:
    penalty = torch.full((6,), 1.0)
    free = WorkingSet(torch.tensor([2.0, 0.5, -3.0, 1.0, 0.0, -1.5]), penalty, history=3)
    assert free.index.tolist() == [0, 2, 5]
    # 5 comes to rest at zero with a small gradient, 1 becomes free
    free.accept(torch.tensor([-1.0, 1.0, 0.0]), torch.tensor([0.0, -1.2, 0.0, 0.0, 0.0, 0.1]))
    assert set(free.index.tolist()) >= {0, 1, 2}
    assert free.nu[free.index.tolist().index(1)] == 0
    # now half of the set rests: it is pruned to what is away from zero or has slope
    free.accept(torch.zeros(len(free.index)), torch.tensor([0.0, -1.2, 0.0, 0.0, 0.0, 0.0]))
    assert free.index.tolist() == [1]


def test_without_a_penalty_zero_is_a_point_like_any_other() -> None:
    """No kink, no orthant: as fast as plain L-BFGS, although the minimum lies on the other side of zero."""
    f = random_quadratic(200, seed=7)
    found = solve(f, torch.zeros(200, dtype=torch.float64), iterations=60)
    best = torch.linalg.solve(f.matrix, f.vector)
    gap = 0.5 * (found.nu - best) @ f.matrix @ (found.nu - best)
    assert gap < 1e-6


def test_a_search_that_failed_at_once_is_told_as_such() -> None:
    class Cliff(Quadratic):
        def __call__(self, gradient: Tensor) -> Smooth:
            found = super().__call__(gradient)
            return found if not self.point.any() else Smooth(np.nan, 0.0, np.nan)

    f = Cliff(torch.eye(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64))
    assert solve(f, torch.full((5,), 0.1, dtype=torch.float64)).stopped == "line-search"


def by_lbfgs(f, penalty, iterations, watch=lambda point: None):
    gradient = torch.empty_like(penalty)
    start = f(gradient)
    return lbfgs(f, start.value, gradient, penalty, iterations=iterations, history=10, watch=watch)


@pytest.mark.parametrize("level", [0.0, 0.01])
def test_lbfgs_equals_torch_in_one_call(level: float) -> None:
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
    found = by_lbfgs(f, penalty, 8)
    torch.testing.assert_close(found.nu, nu.detach(), rtol=1e-8, atol=1e-10)


def test_lbfgs_finds_the_minimum() -> None:
    f = random_quadratic(20, seed=1)
    found = by_lbfgs(f, torch.zeros(20, dtype=torch.float64), 200)
    torch.testing.assert_close(found.nu, torch.linalg.solve(f.matrix, f.vector), atol=1e-6, rtol=0)


def test_reports_where_it_stopped() -> None:
    f = random_quadratic(20, seed=2)
    seen = []

    def watch(point):
        seen.append(point)
        return "x" if len(seen) == 3 else None

    found = by_lbfgs(f, torch.zeros(20, dtype=torch.float64), 50, watch)
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
        by_lbfgs(f, torch.zeros(3, dtype=torch.float64), 5)


def test_a_step_without_positive_curvature_leaves_no_pair() -> None:
    """Along such a pair the model of the objective would have no minimum, and the next direction would go uphill."""
    free = WorkingSet(torch.tensor([3.0, -3.0]), torch.ones(2), 3)
    free.accept(torch.tensor([-1.0, 1.0]), torch.tensor([4.0, -4.0]))  # s · y = −2
    assert len(free.pairs) == 0
    free.accept(torch.tensor([-2.0, 2.0]), torch.tensor([3.0, -3.0]))  # s · y = 2
    assert len(free.pairs) == 1


def test_a_pair_without_positive_curvature_on_what_is_left_goes() -> None:
    for kept, count in ((0, 0), (1, 1)):
        pairs = History(2, torch.zeros(2))
        pairs.add(torch.tensor([1.0, 2.0]), torch.tensor([-1.0, 2.0]))  # s · y = −1 + 4
        assert len(pairs) == 1
        pairs.shrink(torch.tensor([kept]))
        assert len(pairs) == count
