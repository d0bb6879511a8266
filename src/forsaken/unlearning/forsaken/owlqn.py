"""OWL-QN: orthant-wise L-BFGS, for a smooth function plus an L1 term (Andrew and Gao 2007).

    minimise over ν:   f(ν) + Σ_d l_d |ν_d|,     f smooth, l_d = λ w_d >= 0

The L1 term is treated exactly: entries of ν are exactly zero unless moving them pays. Pure functions first.

Work and memory follow the *working set* W: the coordinates that can move. Outside it ν is zero and |∂f| <= l, so the
pseudo-gradient is zero and so is every step. A coordinate that becomes free joins W with an empty history, so that
its first step is along the scaled gradient; when half of W has come to rest at zero, that half leaves it. Only finding
newcomers needs all d numbers. What that gains: docs/decisions/0001-optimiser-over-a-working-set.md.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from forsaken.unlearning.forsaken.history import CURVATURE, History
from forsaken.unlearning.forsaken.search import Found, Point, Smooth, Watch

ARMIJO = 1e-4
HALVINGS = 10
FIRST_STEP = 0.1  # over the pseudo-gradient's norm, where there is no history to scale by
PRUNE = 0.5  # the working set is pruned when fewer than this share of it can move


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


class Objective(Protocol):
    """What the optimiser needs to know of f."""

    def move(self, nu: Tensor, index: Tensor | None = None) -> None:
        """Go to ν, given everywhere or at `index`."""

    def __call__(self, gradient: Tensor) -> Smooth:
        """Evaluate there; write the gradient, shape (d,)."""


class WorkingSet:
    """The coordinates that can move: where they are, their ν, gradient and penalty, and the history over them."""

    def __init__(self, gradient: Tensor, penalty: Tensor, history: int) -> None:
        self.penalties = penalty
        self._absolute = torch.empty_like(gradient)
        self.index = self._free(gradient)
        self.nu = gradient.new_zeros(len(self.index))
        self.gradient, self.penalty = gradient[self.index], penalty[self.index]
        self.pairs = History(history, self.gradient)
        zeros = int(torch.count_nonzero(penalty == 0))
        self.kinks: bool | None = True if zeros == 0 else False if zeros == len(penalty) else None

    @property
    def kink(self) -> Tensor | bool:
        """Where f + Σ l|ν| has a kink at zero: everywhere, nowhere, or as a mask says."""
        return self.penalty > 0 if self.kinks is None else self.kinks

    def _free(self, gradient: Tensor, besides: Tensor | None = None) -> Tensor:
        torch.abs(gradient, out=self._absolute)
        if besides is not None:
            self._absolute.index_fill_(0, besides, 0)
        return (self._absolute > self.penalties).nonzero()[:, 0]

    def cost(self, nu: Tensor) -> float:
        """Return Σ l|ν|."""
        return 0.0 if self.kinks is False else float(torch.dot(self.penalty, nu.abs()))

    def accept(self, nu: Tensor, gradient: Tensor) -> None:
        """Go to ν, where the gradient over all d numbers is `gradient`; learn from the step; let others in and out."""
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

    def _prune(self) -> None:
        moving = (self.nu != 0) | (self.gradient.abs() > self.penalty)
        if int(moving.sum()) < PRUNE * len(self.index):
            live = moving.nonzero()[:, 0]
            self.index, self.nu = self.index[live], self.nu[live]
            self.gradient, self.penalty = self.gradient[live], self.penalty[live]
            self.pairs.shrink(live)


def owlqn(
    f: Objective,
    start: float,
    gradient: Tensor,
    penalty: Tensor,
    *,
    iterations: int,
    history: int,
    watch: Watch,
) -> Found:
    """Minimise f(ν) + Σ l|ν| from ν = 0.

    Parameters
    ----------
    f : Objective
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
        Sees the point after each iteration and says why to stop, or None.

    Notes
    -----
    Memory: about (2m + 8) numbers a coordinate of the working set and 2 a parameter. Per iteration one evaluation of f,
    or a few where the line search halves its step. A trial that is not finite counts as too long.
    """
    best = start
    free = WorkingSet(gradient, penalty, history)
    done, stopped = 0, None
    while stopped is None and done < iterations:
        kink = free.kink
        slope = free.gradient if kink is False else pseudo_gradient(free.nu, free.gradient, free.penalty)
        norm = float(torch.linalg.vector_norm(slope))
        if norm == 0:
            stopped = "converged"
            break
        direction = align(free.pairs.times(slope).neg_(), slope, kink)
        orthant = slope if kink is False else torch.where(free.nu == 0, -slope.sign(), free.nu.sign())
        step = 1.0 if len(free.pairs) else FIRST_STEP / norm
        for _ in range(HALVINGS + 1):
            trial = into_orthant(torch.add(free.nu, direction, alpha=step), orthant, kink)
            f.move(trial, free.index)
            smooth, cost = f(gradient), free.cost(trial)
            # written so that NaN fails
            if smooth.value + cost <= best + ARMIJO * float(torch.dot(slope, trial - free.nu)):
                done, best = done + 1, smooth.value + cost
                stopped = watch(Point(done, best, smooth, cost, int(torch.count_nonzero(trial)), step))
                free.accept(trial, gradient)
                break
            step /= 2
        else:
            f.move(free.nu, free.index)
            stopped = None if len(free.pairs) else "line-search"
            free.pairs.clear()
    found = torch.zeros_like(penalty)
    found[free.index] = free.nu
    return Found(found, done, stopped or "iterations")
