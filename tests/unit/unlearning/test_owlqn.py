"""OWL-QN against independent computations: scikit-learn's lasso, a two-loop recursion, closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import Lasso
from torch import Tensor

from forsaken.unlearning.forsaken.history import History
from forsaken.unlearning.forsaken.owlqn import EASE, EASED, LONGER, WorkingSet, owlqn, pseudo_gradient
from forsaken.unlearning.forsaken.search import Found, Point, Smooth


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


def solve(
    f: Quadratic,
    penalty: Tensor,
    iterations: int = 500,
    history: int = 10,
    relax: int | None = None,
    most: int | None = None,
    plenty: int = 0,
) -> Found:
    gradient = torch.empty_like(penalty)
    start = f(gradient)
    settings = {"iterations": iterations, "history": history, "relax": relax, "most": most, "plenty": plenty}
    return owlqn(f, start.value, gradient, penalty, watch=lambda point: None, **settings)


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


def test_no_penalty_is_plain_minimisation() -> None:
    f = random_quadratic(30, seed=1)
    found = solve(f, torch.zeros(30, dtype=torch.float64))
    torch.testing.assert_close(found.nu, torch.linalg.solve(f.matrix, f.vector), atol=1e-5, rtol=0)


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


def test_a_longer_history_keeps_its_pairs_and_takes_more() -> None:
    f, draw = random_quadratic(9, seed=8), torch.Generator().manual_seed(3)
    history, pairs = History(3, f.vector), []
    vector = torch.randn(9, generator=draw, dtype=torch.float64)

    def add(count: int) -> None:
        for _ in range(count):
            s = torch.randn(9, generator=draw, dtype=torch.float64)
            pairs.append((s, f.matrix @ s))
            history.add(*pairs[-1])

    add(5)
    history.lengthen(6)
    torch.testing.assert_close(history.times(vector), two_loop(pairs[-3:], vector), rtol=1e-9, atol=1e-9)
    add(2)
    torch.testing.assert_close(history.times(vector), two_loop(pairs[-5:], vector), rtol=1e-9, atol=1e-9)
    add(4)
    torch.testing.assert_close(history.times(vector), two_loop(pairs[-6:], vector), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("live", "length"), [(8, 3), (4, 6), (3, 8), (1, 3 * LONGER)])
def test_fewer_coordinates_have_a_longer_history_in_the_same_memory(live: int, length: int) -> None:
    free = WorkingSet(torch.full((8,), 2.0), torch.ones(8), history=3)
    free.settle(torch.arange(live))
    assert free.pairs.length == length
    assert free.pairs.pairs.numel() <= 2 * 3 * 8


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


@pytest.mark.parametrize("seed", range(3))
def test_relaxed_it_is_least_squares_on_what_the_lasso_chose(seed: int) -> None:
    draw = np.random.default_rng(seed)
    design, noise = draw.normal(size=(80, 40)), draw.normal(size=80)
    answer = design[:, :5].sum(1) + 0.5 * noise
    lasso = Lasso(alpha=0.1, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(design, answer)
    f = Quadratic(torch.tensor(design.T @ design / 80), torch.tensor(design.T @ answer / 80))
    found = solve(f, torch.full((40,), 0.1, dtype=torch.float64), relax=200)
    chosen = lasso.coef_ != 0
    expected = np.zeros(40)
    expected[chosen] = np.linalg.lstsq(design[:, chosen], answer, rcond=None)[0]
    np.testing.assert_allclose(found.nu.numpy(), expected, atol=1e-6)
    assert 0 < chosen.sum() < 40


@pytest.mark.parametrize("most", [1, 4, 9])
def test_at_most_so_many_go_on_those_that_moved_farthest(most: int) -> None:
    draw = np.random.default_rng(0)
    design = draw.normal(size=(80, 40))
    answer = design[:, :12] @ np.linspace(1, 3, 12) + 0.1 * draw.normal(size=80)
    lasso = Lasso(alpha=0.05, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(design, answer)
    f = Quadratic(torch.tensor(design.T @ design / 80), torch.tensor(design.T @ answer / 80))
    found = solve(f, torch.full((40,), 0.05, dtype=torch.float64), relax=200, most=most)
    chosen = np.argsort(-np.abs(lasso.coef_))[:most]
    expected = np.zeros(40)
    expected[chosen] = np.linalg.lstsq(design[:, chosen], answer, rcond=None)[0]
    np.testing.assert_allclose(found.nu.numpy(), expected, atol=1e-6)
    assert torch.equal(f.point, found.nu), "those left behind are at zero for the objective too"
    assert np.count_nonzero(lasso.coef_) > most


def test_of_those_that_moved_as_far_some_go_on() -> None:
    f = Quadratic(torch.eye(8, dtype=torch.float64), torch.ones(8, dtype=torch.float64))
    found = solve(f, torch.full((8,), 0.5, dtype=torch.float64), relax=20, most=3)
    assert sorted(found.nu.tolist()) == pytest.approx([0.0] * 5 + [1.0] * 3)


def test_where_fewer_would_not_be_finite_all_go_on() -> None:
    class Spoilt(Quadratic):
        def __call__(self, gradient: Tensor) -> Smooth:
            seen = super().__call__(gradient)
            return Smooth(np.nan, 0.0, np.nan) if 0 < int(torch.count_nonzero(self.point)) < 8 else seen

    f = Spoilt(torch.eye(8, dtype=torch.float64), torch.ones(8, dtype=torch.float64))
    found = solve(f, torch.full((8,), 0.5, dtype=torch.float64), relax=20, most=3)
    torch.testing.assert_close(found.nu, torch.ones(8, dtype=torch.float64))


def test_fewer_than_the_most_are_as_without_it() -> None:
    penalty = torch.full((30,), 0.3, dtype=torch.float64)
    few, all_of_them = random_quadratic(30, 0), random_quadratic(30, 0)
    assert torch.equal(solve(few, penalty, relax=20, most=30).nu, solve(all_of_them, penalty, relax=20).nu)
    assert few.calls == all_of_them.calls


def test_it_relaxes_when_it_has_settled_and_goes_on() -> None:
    f = random_quadratic(30, 0)
    gradient = torch.empty_like(f.vector)
    seen = []

    def watch(point: Point) -> str | None:
        seen.append(point)
        return "converged" if len(seen) == 7 else None

    penalty = torch.full_like(f.vector, 0.3)
    start = f(gradient)
    found = owlqn(f, start.value, gradient, penalty, iterations=60, history=10, watch=watch, relax=50)
    assert found.iterations > 7, "to settle under the penalty is not the end"
    assert seen[6].penalty > 0
    assert all(point.penalty == 0 for point in seen[7:])
    assert all(later.nonzero <= seen[6].nonzero for later in seen[7:]), "nobody joins"


def test_nothing_chosen_is_nothing_to_go_on_with() -> None:
    f = random_quadratic(10, 0)
    found = solve(f, torch.full_like(f.vector, 1e3), relax=1)
    assert not found.nu.any()


def test_who_says_stop_for_another_reason_is_heard() -> None:
    f = random_quadratic(30, 0)
    gradient = torch.empty_like(f.vector)
    start = f(gradient)
    seen = []

    def watch(point: Point) -> str | None:
        seen.append(point)
        return "calibrated" if len(seen) == 5 else None

    penalty = torch.full_like(f.vector, 0.1)
    found = owlqn(f, start.value, gradient, penalty, iterations=60, history=10, watch=watch, relax=5)
    assert (found.iterations, found.stopped, found.relaxed) == (5, "calibrated", None)


def test_who_says_chosen_once_more_is_not_heard() -> None:
    f = random_quadratic(30, 0)
    gradient = torch.empty_like(f.vector)
    start = f(gradient)
    penalty = torch.full_like(f.vector, 0.1)
    found = owlqn(f, start.value, gradient, penalty, iterations=9, history=10, watch=lambda point: "chosen", relax=5)
    assert (found.iterations, found.stopped, found.relaxed) == (9, "iterations", 1)


@pytest.mark.parametrize(("plenty", "share"), [(1, 1.0), (41, EASED)])
def test_the_penalty_falls_while_too_few_have_moved(plenty: int, share: float) -> None:
    draw = np.random.default_rng(0)
    design = draw.normal(size=(80, 40))
    answer = design[:, :12] @ np.linspace(1, 3, 12) + 0.1 * draw.normal(size=80)
    f = Quadratic(torch.tensor(design.T @ design / 80), torch.tensor(design.T @ answer / 80))
    found = solve(f, torch.full((40,), 0.5, dtype=torch.float64), plenty=plenty)
    lasso = Lasso(alpha=0.5 * share, fit_intercept=False, tol=1e-12, max_iter=100_000).fit(design, answer)
    np.testing.assert_allclose(found.nu.numpy(), lasso.coef_, atol=1e-6)
    assert found.eased == pytest.approx(share)


def test_the_penalty_falls_no_more_when_enough_have_moved() -> None:
    f = random_quadratic(60, 4)
    seen: list[int] = []

    def watch(point: Point) -> None:
        seen.append(point.nonzero)

    gradient = torch.empty_like(f.vector)
    start, penalty = f(gradient), torch.full_like(f.vector, float(f.vector.abs().max()) * 0.8)
    found = owlqn(f, start.value, gradient, penalty, iterations=200, history=10, watch=watch, plenty=20)
    few = sum(count < 20 for count in seen)
    assert 1 < few < len(seen), "both happen"
    assert found.eased == pytest.approx(max(EASED, EASE**few))


def test_the_penalty_falls_in_any_case_on_the_way_to_its_end() -> None:
    penalty = torch.full((30,), 0.1, dtype=torch.float64)
    shares = [solve(random_quadratic(30, 0), penalty, iterations=n, relax=20, plenty=1).eased for n in (10, 11, 14, 25)]
    assert shares == pytest.approx([1.0, EASE, EASE**4, EASE**10])
    assert solve(random_quadratic(30, 0), penalty, iterations=15, relax=20).eased == 1.0


def test_a_trial_is_compared_with_where_it_stands_under_the_penalty_that_has_fallen() -> None:
    """A second step that would do under the old penalty, and does not under the new one, is halved."""

    class Bumped(Quadratic):
        bump = 0.0

        def __call__(self, gradient: Tensor) -> Smooth:
            found = super().__call__(gradient)
            more = self.bump if self.calls == 3 else 0.0
            return Smooth(found.value + more, 0.0, found.value + more)

    def points(bump: float) -> list[Point]:
        f, seen = Bumped(*parts), []
        f.bump = bump
        gradient, penalty = torch.empty_like(f.vector), torch.full_like(f.vector, 0.3)
        start = f(gradient)
        owlqn(f, start.value, gradient, penalty, iterations=2, history=5, watch=seen.append, plenty=99)
        return seen

    plain = random_quadratic(20, 2)
    parts = (plain.matrix, plain.vector)
    first, second = points(0.0)
    assert second.step == 1.0
    gained = first.smooth.value + EASE * first.penalty - second.objective
    assert points(gained + 0.5 * (1 - EASE) * first.penalty)[1].step == 0.5


def test_a_penalty_that_moves_nothing_falls_until_it_does() -> None:
    f = Quadratic(torch.eye(2, dtype=torch.float64), torch.tensor([1.0, 0.5], dtype=torch.float64))
    found = solve(f, torch.full((2,), 1.1, dtype=torch.float64), plenty=10)
    torch.testing.assert_close(found.nu, f.vector - 1.1 * EASED)
    stays = solve(f, torch.full((2,), 4.0, dtype=torch.float64), plenty=10)
    assert (stays.stopped, stays.iterations, float(stays.nu.abs().sum())) == ("converged", 0, 0.0)


def test_who_can_move_when_the_penalty_has_fallen_does() -> None:
    """One weight without a penalty comes to rest at once; the other may move only after the penalty fell."""
    f = Quadratic(torch.eye(2, dtype=torch.float64), torch.tensor([0.1, 0.95], dtype=torch.float64))
    found = solve(f, torch.tensor([0.0, 1.0], dtype=torch.float64), plenty=10)
    torch.testing.assert_close(found.nu, torch.tensor([0.1, 0.95 - EASED], dtype=torch.float64))


def test_no_penalty_does_not_fall() -> None:
    assert solve(random_quadratic(20, 1), torch.zeros(20, dtype=torch.float64), plenty=99).eased == 1.0


def test_it_tells_when_the_penalty_ended() -> None:
    f = random_quadratic(30, 0)
    penalty = torch.full_like(f.vector, 0.1)
    assert solve(f, penalty, iterations=20, relax=7).relaxed == 7
    assert solve(random_quadratic(30, 0), penalty, iterations=20).relaxed is None


def test_a_search_that_failed_at_once_is_told_as_such() -> None:
    class Cliff(Quadratic):
        def __call__(self, gradient: Tensor) -> Smooth:
            found = super().__call__(gradient)
            return found if not self.point.any() else Smooth(np.nan, 0.0, np.nan)

    f = Cliff(torch.eye(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64))
    assert solve(f, torch.full((5,), 0.1, dtype=torch.float64), relax=3).stopped == "line-search"
