"""Optimisers for a smooth function plus an L1 term, and when they stop.

    minimise over ν:   f(ν) + Σ_d l_d |ν_d|,     f smooth, l_d = λ w_d >= 0

`owlqn` treats the L1 term exactly: entries of ν are exactly zero unless moving them pays. `lbfgs` is the paper's
optimiser, torch's L-BFGS on a subgradient, kept to reproduce the paper. Pure functions first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from forsaken.errors import NonFiniteError
from forsaken.result import Step
from forsaken.types import Progress, Tick
from forsaken.unlearning.settings import choice, whole

ARMIJO = 1e-4
HALVINGS = 10
FIRST_STEP = 0.1  # over the pseudo-gradient's norm, where there is no history to scale by
PRUNE = 0.5  # the working set is pruned when fewer than this share of it can move
CURVATURE = 1e-10  # a pair (s, y) is kept if sᵀy > CURVATURE yᵀy
STOPS = ("calibrated", "converged", "none")
SETTLED, SPAN = 1e-4, 5  # converged: the objective changed by less than this share of itself over so many iterations
_TRIALS = 25  # of lbfgs' line search in one iteration; torch's own default


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Settings of "owlqn" and "lbfgs"; `stop` counts for "gauss-newton" too.

    Attributes
    ----------
    iterations : int
        T, the most iterations.
    history : int
        m, the pairs that the optimiser remembers.
    stop : {"converged", "calibrated", "none"}
        Stop early when the objective settles (by less than 1e-4 of itself over 5 iterations); when the forgotten
        samples are as near to their targets as held-out references are to theirs; never.
    """

    iterations: int = whole(60, "T, the most iterations", least=1)
    history: int = whole(10, "m, the pairs that the optimiser remembers", least=1)
    stop: str = choice("converged", "when to stop before T", STOPS)


@dataclass(frozen=True, slots=True)
class Smooth:
    """The smooth part f at one point: two means and their weighted sum."""

    distance: float
    anchor: float
    value: float  # distance + β · anchor


@dataclass(frozen=True, slots=True)
class Point:
    """Where an optimiser is after an iteration."""

    iteration: int
    objective: float
    smooth: Smooth
    penalty: float
    nonzero: int
    step: float


@dataclass(frozen=True, slots=True)
class Found:
    """What an optimiser found: ν, after how many iterations, and why it stopped there."""

    nu: Tensor
    iterations: int
    stopped: str


Watch: TypeAlias = Callable[[Point], str | None]
"""Sees the point after each iteration; returns a reason to stop there, or None."""


class Function(Protocol):
    """What an optimiser needs to know of f."""

    def move(self, nu: Tensor, index: Tensor | None = None) -> None:
        """Go to ν, given everywhere, or at `index` and zero elsewhere."""

    def __call__(self, gradient: Tensor) -> Smooth:
        """Evaluate f there; write its gradient, shape (d,)."""


class Watcher:
    """Keeps the history of an optimiser, reports progress, and decides when to stop early.

    More iterations than needed hardly forget more, and cost accuracy (the paper's "Training Iteration of Generator").

    Parameters
    ----------
    rule : {"converged", "calibrated", "none"}
        When to stop before the last iteration.
    bound : float or None
        The distance at which "calibrated" stops.
    trainable, iterations : int
        The model's trainable parameters; the most iterations.
    progress : callable
        Called after each iteration.
    """

    def __init__(self, rule: str, bound: float | None, trainable: int, iterations: int, progress: Progress) -> None:
        self.rule, self.bound, self.trainable, self.iterations = rule, bound, trainable, iterations
        self.progress = progress
        self.history: list[Step] = []
        self._begun = time.perf_counter()

    def __call__(self, point: Point) -> str | None:
        """Record a point; return a reason to stop there, or None."""
        smooth = point.smooth
        self.history.append(
            Step(
                iteration=point.iteration,
                objective=point.objective,
                distance=smooth.distance,
                anchor=smooth.anchor,
                penalty=point.penalty,
                density=point.nonzero / self.trainable,
                step=point.step,
                seconds=time.perf_counter() - self._begun,
            )
        )
        self.progress(Tick("forget", point.iteration, self.iterations, f"objective {point.objective:.4g}"))
        if self.rule == "calibrated" and self.bound is not None and smooth.distance <= self.bound:
            return "calibrated"
        if self.rule == "converged" and len(self.history) > SPAN:
            earlier = self.history[-1 - SPAN].objective
            if abs(earlier - point.objective) < SETTLED * abs(point.objective):
                return "converged"
        return None


# --- OWL-QN: orthant-wise L-BFGS (Andrew and Gao 2007) ----------------------------------------------------------------


def pseudo_gradient(nu: Tensor, gradient: Tensor, penalty: Tensor) -> Tensor:
    """Return the steepest one-sided slope of f + Σ l|ν|: zero where neither direction descends.

    >>> z, l = torch.zeros(3), torch.ones(3)
    >>> pseudo_gradient(z, torch.tensor([-3.0, 0.5, 3.0]), l)
    tensor([-2.,  0.,  2.])
    >>> pseudo_gradient(torch.tensor([1.0, -1.0, 0.0]), torch.zeros(3), l)
    tensor([ 1., -1.,  0.])
    """
    shrunk = gradient - gradient.clamp(-penalty, penalty)
    return torch.where(nu == 0, shrunk, gradient + penalty * nu.sign())


def align(direction: Tensor, slope: Tensor, kink: Tensor | bool) -> Tensor:
    """Zero the entries of a direction that do not descend, in place, where there is a kink to stay away from.

    >>> align(torch.tensor([1.0, -1.0, 1.0, -1.0]), torch.tensor([-1.0, -1.0, 0.0, -1.0]), torch.arange(4) < 3)
    tensor([ 1.,  0.,  0., -1.])
    """
    if kink is False:
        return direction
    uphill = direction * slope >= 0
    return direction.masked_fill_(uphill if kink is True else uphill & kink, 0)


def into_orthant(point: Tensor, orthant: Tensor, kink: Tensor | bool) -> Tensor:
    """Zero the entries of a point that left the orthant, in place, where there is a kink at zero.

    >>> into_orthant(torch.tensor([1.0, -1.0, 2.0, -1.0]), torch.tensor([1.0, 1.0, 0.0, 1.0]), torch.arange(4) < 3)
    tensor([ 1.,  0.,  0., -1.])
    """
    if kink is False:
        return point
    beyond = point * orthant <= 0
    return point.masked_fill_(beyond if kink is True else beyond & kink, 0)


class History:
    """The last m pairs (s, y) over the working set, and the inverse Hessian that they imply.

    Preallocated as one (2m, capacity) matrix: m rows of s, m rows of y. The two-loop recursion is done in matrix
    form (Byrd, Nocedal and Schnabel 1994), so that a direction reads the matrix twice and no more:

        H v = γ v + Sᵀa + Yᵀb,   u = R⁻¹ S v,   a = R⁻ᵀ (D u + γ Y Yᵀ u − γ Y v),   b = −γ u

    with R the upper triangle of S Yᵀ, D its diagonal and γ = sᵀy / yᵀy of the newest pair. A pair counts only if
    sᵀy is positive, so H is positive definite.
    """

    def __init__(self, length: int, like: Tensor) -> None:
        self.length = length
        self.size = like.numel()
        self.pairs = like.new_empty(2 * length, 2 * self.size)  # room to grow; untouched memory costs nothing
        self.pairs[:, : self.size] = 0
        self.order: list[int] = []  # slots from the oldest to the newest pair
        small = {"dtype": torch.float64, "device": like.device}
        self.products = torch.zeros(2 * length, length, **small)  # type: ignore[call-overload]

    def __len__(self) -> int:
        return len(self.order)

    def clear(self) -> None:
        """Drop all pairs."""
        self.order.clear()

    def grow(self, size: int) -> None:
        """Make room for a larger working set; old pairs are zero on the new coordinates."""
        if size > self.pairs.shape[1]:
            wider = self.pairs.new_empty(len(self.pairs), 2 * size)
            wider[:, : self.size] = self.pairs[:, : self.size]
            self.pairs = wider
        self.pairs[:, self.size : size] = 0
        self.size = size

    def shrink(self, kept: Tensor) -> None:
        """Keep only the coordinates at `kept`; drop pairs without positive curvature on them."""
        m = self.length
        self.pairs = self.pairs[:, : self.size].index_select(1, kept)
        self.size = len(kept)
        self.products = (self.pairs @ self.pairs[m:].T).double()
        curved = (self.products[:m].diagonal() > CURVATURE * self.products[m:].diagonal()).tolist()
        self.order = [slot for slot in self.order if curved[slot]]

    def add(self, s: Tensor, y: Tensor) -> None:
        """Add a pair, in place of the oldest where there are m."""
        m = self.length
        slot = self.order.pop(0) if len(self.order) == m else min(set(range(m)) - set(self.order))
        self.pairs[slot, : self.size] = s
        self.pairs[m + slot, : self.size] = y
        self.order.append(slot)
        column = (self.pairs[:, : self.size] @ y).double()
        self.products[:, slot] = column  # s_i · y_slot, then y_i · y_slot
        self.products[m:, slot] = self.products[m + slot, :] = column[m:]

    def times(self, vector: Tensor) -> Tensor:
        """Return H · vector; the vector itself without a pair."""
        if not self.order:
            return vector.clone()
        m = self.length
        kept = torch.tensor(self.order, device=vector.device)
        pairs = self.pairs[:, : self.size]
        onto = (pairs @ vector).double()
        crossed = self.products[kept][:, kept]  # S Yᵀ
        inner = self.products[m + kept][:, kept]  # Y Yᵀ
        upper, newest = crossed.triu(), len(self.order) - 1
        gamma = crossed[newest, newest] / inner[newest, newest]
        u = torch.linalg.solve_triangular(upper, onto[kept, None], upper=True)
        middle = crossed.diagonal()[:, None] * u + gamma * (inner @ u - onto[m + kept, None])
        a = torch.linalg.solve_triangular(upper.T, middle, upper=False)
        weights = torch.zeros(2 * m, dtype=torch.float64, device=vector.device)
        weights[kept], weights[m + kept] = a[:, 0], -gamma * u[:, 0]
        return torch.addmv(vector * gamma.to(vector.dtype), pairs.T, weights.to(vector.dtype))


class WorkingSet:
    """The coordinates that can move: their positions, ν, gradient and penalty, and the history over them.

    Outside the working set ν is zero and |∂f| <= l, so the pseudo-gradient is zero and so is every step: work and
    memory follow the set, not d. A coordinate that becomes free joins with an empty history, so that its first step is
    along the scaled gradient; when half of the set has come to rest at zero, that half leaves. Only finding new
    coordinates reads all d numbers. What that gains: docs/decisions/0001-optimiser-over-a-working-set.md.
    """

    def __init__(self, gradient: Tensor, penalty: Tensor, history: int) -> None:
        self.penalties = penalty
        self._absolute = torch.empty_like(gradient)
        self.index = self._free(gradient)
        self.nu = gradient.new_zeros(len(self.index))
        self.gradient, self.penalty = gradient[self.index], penalty[self.index]
        self.pairs = History(history, self.gradient)
        zeros = int(torch.count_nonzero(penalty == 0))
        self._kinks: bool | None = True if zeros == 0 else False if zeros == len(penalty) else None

    @property
    def kink(self) -> Tensor | bool:
        """Where f + Σ l|ν| has a kink at zero: everywhere, nowhere, or by a mask."""
        return self.penalty > 0 if self._kinks is None else self._kinks

    def cost(self, nu: Tensor) -> float:
        """Return Σ l|ν|."""
        return 0.0 if self._kinks is False else float(torch.dot(self.penalty, nu.abs()))

    def accept(self, nu: Tensor, gradient: Tensor) -> None:
        """Go to ν, where the gradient over all d numbers is `gradient`; update the history and the set."""
        fresh = gradient.index_select(0, self.index)  # several times faster than gradient[self.index] on a CPU
        s, y = nu - self.nu, fresh - self.gradient
        if float(torch.dot(s, y)) > CURVATURE * float(torch.dot(y, y)):
            self.pairs.add(s, y)
        self.nu, self.gradient = nu, fresh
        self._prune()
        new = self._free(gradient, besides=self.index)
        if len(new):
            self.index = torch.cat([self.index, new])
            self.nu = torch.cat([self.nu, self.nu.new_zeros(len(new))])
            self.gradient = torch.cat([self.gradient, gradient.index_select(0, new)])
            self.penalty = torch.cat([self.penalty, self.penalties.index_select(0, new)])
            self.pairs.grow(len(self.index))

    def found(self, iterations: int, stopped: str) -> Found:
        """Return ν over all d coordinates."""
        nu = torch.zeros_like(self.penalties)
        nu[self.index] = self.nu
        return Found(nu, iterations, stopped)

    def _free(self, gradient: Tensor, besides: Tensor | None = None) -> Tensor:
        torch.abs(gradient, out=self._absolute)
        if besides is not None:
            self._absolute.index_fill_(0, besides, 0)
        return (self._absolute > self.penalties).nonzero()[:, 0]

    def _prune(self) -> None:
        moving = (self.nu != 0) | (self.gradient.abs() > self.penalty)
        if int(moving.sum()) < PRUNE * len(self.index):
            live = moving.nonzero()[:, 0]
            self.index, self.nu = self.index[live], self.nu[live]
            self.gradient, self.penalty = self.gradient[live], self.penalty[live]
            self.pairs.shrink(live)


def owlqn(
    f: Function,
    start: float,
    gradient: Tensor,
    penalty: Tensor,
    *,
    iterations: int,
    history: int,
    watch: Watch,
) -> Found:
    """Minimise f(ν) + Σ l|ν| from ν = 0 by orthant-wise L-BFGS.

    Parameters
    ----------
    f : Function
        The smooth part.
    start : float
        f at ν = 0.
    gradient : Tensor, shape (d,)
        The gradient of f at ν = 0; overwritten.
    penalty : Tensor, shape (d,)
        l, non-negative.
    iterations, history : int
        The most iterations; the pairs m that are kept.
    watch : callable
        Sees the point after each iteration and returns a reason to stop, or None.

    Notes
    -----
    Memory: about (2m + 8) numbers a coordinate of the working set and 2 a parameter. Per iteration one evaluation of f,
    or a few where the line search halves its step. A trial that is not finite counts as too long.
    """
    best, done = start, 0
    free = WorkingSet(gradient, penalty, history)
    while done < iterations:
        kink = free.kink
        slope = free.gradient if kink is False else pseudo_gradient(free.nu, free.gradient, free.penalty)
        norm = float(torch.linalg.vector_norm(slope))
        if norm == 0:
            return free.found(done, "converged")
        direction = align(free.pairs.times(slope).neg_(), slope, kink)
        orthant = slope if kink is False else torch.where(free.nu == 0, -slope.sign(), free.nu.sign())
        step = 1.0 if len(free.pairs) else FIRST_STEP / norm
        for _ in range(HALVINGS + 1):
            trial = into_orthant(torch.add(free.nu, direction, alpha=step), orthant, kink)
            f.move(trial, free.index)
            smooth, cost = f(gradient), free.cost(trial)
            # written so that NaN fails
            if smooth.value + cost <= best + ARMIJO * float(torch.dot(slope, trial - free.nu)):
                break
            step /= 2
        else:
            f.move(free.nu, free.index)
            if not len(free.pairs):
                return free.found(done, "line-search")
            free.pairs.clear()  # the next step is along the gradient
            continue
        done, best = done + 1, smooth.value + cost
        reason = watch(Point(done, best, smooth, cost, int(torch.count_nonzero(trial)), step))
        free.accept(trial, gradient)
        if reason is not None:
            return free.found(done, reason)
    return free.found(done, "iterations")


# --- the paper's optimiser -------------------------------------------------------------------------------------------


class _Closure:
    """f + Σ l|ν| and its subgradient, as torch calls them. Keeps its last point, which each step asks for again."""

    def __init__(self, f: Function, start: float, gradient: Tensor, nu: Tensor, penalty: Tensor) -> None:
        self.f, self.nu, self.penalty, self.gradient = f, nu, penalty, gradient
        self.last = torch.zeros_like(gradient)
        self.seen = (Smooth(math.nan, math.nan, start), 0.0)

    def __call__(self) -> Tensor:
        nu = self.nu.detach()
        if not torch.equal(nu, self.last):
            self.f.move(nu)
            self.seen = (self.f(self.gradient), float(torch.dot(self.penalty, nu.abs())))
            self.last.copy_(nu)
        smooth, cost = self.seen
        value = smooth.value + cost
        if not math.isfinite(value):
            raise NonFiniteError(
                f"the objective became {value} in the line search of lbfgs; use optimiser='owlqn', or a smaller penalty"
            )
        self.nu.grad = torch.addcmul(self.gradient, self.penalty, nu.sign())
        return torch.tensor(value, dtype=torch.float64, device=nu.device)


def lbfgs(
    f: Function,
    start: float,
    gradient: Tensor,
    penalty: Tensor,
    *,
    iterations: int,
    history: int,
    watch: Watch,
) -> Found:
    """Minimise f(ν) + Σ l|ν| from ν = 0 by torch's L-BFGS with strong Wolfe conditions. Parameters as for `owlqn`.

    It starts at the kink of |ν|, where the subgradient is taken as zero, leaves no exact zeros, and its line search may
    stall; `owlqn` treats the same objective exactly. Memory: (2m + 8) · d numbers.
    """
    nu = torch.zeros_like(penalty, requires_grad=True)
    closure = _Closure(f, start, gradient, nu, penalty)
    optimiser = torch.optim.LBFGS(
        [nu],
        max_iter=1,
        max_eval=1 + _TRIALS,
        history_size=history,
        tolerance_grad=0.0,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )
    for done in range(1, iterations + 1):
        before = nu.detach().clone()
        optimiser.step(closure)  # type: ignore[no-untyped-call]
        if torch.equal(nu.detach(), before):
            return Found(before, done - 1, "line-search")
        closure()
        smooth, cost = closure.seen
        point = nu.detach()
        step = float(optimiser.state[nu]["t"])
        nonzero = int(torch.count_nonzero(point))
        stopped = watch(Point(done, smooth.value + cost, smooth, cost, nonzero, step))
        if stopped:
            return Found(point.clone(), done, stopped)
    return Found(nu.detach(), iterations, "iterations")
