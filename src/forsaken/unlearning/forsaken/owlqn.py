"""OWL-QN: orthant-wise L-BFGS, for a smooth function plus an L1 term (Andrew and Gao 2007).

    minimise over ν:   f(ν) + Σ_d l_d |ν_d|,     f smooth, l_d = λ w_d >= 0

The L1 term is treated exactly: entries of ν are exactly zero unless moving them pays. Pure functions first.

Work and memory follow the *working set* W: the coordinates that can move. Outside it ν is zero and |∂f| <= l, so the
pseudo-gradient is zero and so is every step. A coordinate that becomes free joins W with an empty history, so that
its first step is along the scaled gradient; when half of W has come to rest at zero, that half leaves it. Only finding
newcomers needs all d numbers. Where the penalty falls, they join after the next step.
What that gains: docs/decisions/0001-optimiser-over-a-working-set.md.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from forsaken.unlearning.forsaken.history import CURVATURE, History
from forsaken.unlearning.forsaken.search import Found, Point, Smooth, Watch

ARMIJO = 1e-4
HALVINGS = 10
FIRST_STEP = 0.1  # over the pseudo-gradient's norm, where there is no history to scale by
EASE, EASED = 0.9, 0.3  # the share of the penalty that is left after an iteration, and at last, where it falls
LONGER = 4  # times as many pairs are kept, at most, when the working set has become smaller for good
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
        self.settled, self.eased = False, 1.0
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
        if self.settled:
            return
        self._prune()
        self._join(gradient)

    def _join(self, gradient: Tensor) -> bool:
        """Let in who can move, and return whether there was anyone."""
        new = self._free(gradient, besides=self.index)
        if len(new):
            self.index = torch.cat([self.index, new])
            self.nu = torch.cat([self.nu, self.nu.new_zeros(len(new))])
            self.gradient = torch.cat([self.gradient, gradient.index_select(0, new)])
            self.penalty = torch.cat([self.penalty, self.penalties.index_select(0, new)])
            self.pairs.grow(len(self.index))
        return len(new) > 0

    def ease(self) -> bool:
        """Let the penalty fall a little, if there is one and it may; return whether it did."""
        if self.eased <= EASED or self.kinks is False:
            return False
        factor = max(EASE, EASED / self.eased)
        self.penalties *= factor
        self.penalty *= factor
        self.eased *= factor
        return True

    def wake(self, gradient: Tensor) -> bool:
        """Where all are at rest: let the penalty fall until another can move, and return whether one can."""
        while not self._join(gradient) and not bool(pseudo_gradient(self.nu, self.gradient, self.penalty).any()):
            if not self.ease():
                return False
        return True

    def farthest(self, most: int | None) -> Tensor:
        """Return which coordinates have moved; of more than `most`, those that have moved farthest."""
        moved = self.nu.nonzero()[:, 0]
        if most is None or len(moved) <= most:
            return moved
        return self.nu.abs().topk(most, sorted=False).indices.sort().values

    def settle(self, live: Tensor) -> None:
        """Let only these go on, without a penalty; no other joins them. More pairs are kept in the same memory."""
        room, length = self.pairs.length * len(self.index), self.pairs.length
        self._keep(live)
        self.pairs.lengthen(max(length, min(LONGER * length, room // max(1, len(live)))))
        self.penalty = torch.zeros_like(self.penalty)
        self.settled, self.kinks = True, False

    def _prune(self) -> None:
        moving = (self.nu != 0) | (self.gradient.abs() > self.penalty)
        if int(moving.sum()) < PRUNE * len(self.index):
            self._keep(moving.nonzero()[:, 0])

    def _keep(self, live: Tensor) -> None:
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
    relax: int | None = None,
    most: int | None = None,
    plenty: int = 0,
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
        l, non-negative; overwritten where it falls.
    iterations, history : int
        The most iterations; the pairs m that are kept.
    watch : callable
        Sees the point after each iteration and says why to stop, or None; "chosen" only ends the penalty.
    relax : int, optional
        After so many iterations, or when the point has settled or is said to be chosen before, the coordinates that
        are not zero go on alone and without a penalty: the L1 term chooses them, and then biases them no longer (the
        relaxed lasso of Meinshausen 2007).
    most : int, optional
        How many coordinates go on then: those that have moved farthest. The others are zero again.
    plenty : int
        As long as fewer coordinates have moved, or when half of the way to `relax` is gone, the penalty falls by a
        tenth an iteration, to 30 % of itself at last; where all are at rest, at once until one can move. 0: it stays.

    Notes
    -----
    Memory: about (2m + 8) numbers a coordinate of the working set and 2 a parameter. Per iteration one evaluation of f,
    or a few where the line search halves its step. A trial that is not finite counts as too long.
    """
    value = start
    free = WorkingSet(gradient, penalty, history)
    done, stopped, relaxed, chosen = 0, None, None, False
    while done < iterations:
        settled = chosen or stopped in ("converged", "line-search")
        if relax is not None and (settled or (stopped is None and done >= relax)) and bool(free.nu.any()):
            value = _settled(f, free, value, gradient, most)
            relax, stopped, relaxed = None, None, done
        if stopped is not None:
            break
        kink = free.kink
        slope = free.gradient if kink is False else pseudo_gradient(free.nu, free.gradient, free.penalty)
        norm = float(torch.linalg.vector_norm(slope))
        if norm == 0:
            if not (plenty and relaxed is None and free.wake(gradient)):
                stopped = "converged"
            continue
        direction = align(free.pairs.times(slope).neg_(), slope, kink)
        orthant = slope if kink is False else torch.where(free.nu == 0, -slope.sign(), free.nu.sign())
        step, best = 1.0 if len(free.pairs) else FIRST_STEP / norm, value + free.cost(free.nu)
        for _ in range(HALVINGS + 1):
            trial = into_orthant(torch.add(free.nu, direction, alpha=step), orthant, kink)
            f.move(trial, free.index)
            smooth, cost = f(gradient), free.cost(trial)
            # written so that NaN fails
            if smooth.value + cost <= best + ARMIJO * float(torch.dot(slope, trial - free.nu)):
                done, value, moved = done + 1, smooth.value, int(torch.count_nonzero(trial))
                stopped = watch(Point(done, value + cost, smooth, cost, moved, step))
                chosen, stopped = stopped == "chosen", None if stopped == "chosen" else stopped
                free.accept(trial, gradient)
                ends = stopped is not None or chosen or done in (iterations, relax)
                late = relax is not None and done >= relax / 2
                if plenty and relaxed is None and not ends and (late or moved < plenty):
                    free.ease()
                break
            step /= 2
        else:
            f.move(free.nu, free.index)
            stopped = None if len(free.pairs) else "line-search"
            free.pairs.clear()
    found = torch.zeros_like(penalty)
    found[free.index] = free.nu
    return Found(found, done, stopped or "iterations", relaxed, free.eased)


def _settled(f: Objective, free: WorkingSet, value: float, gradient: Tensor, most: int | None) -> float:
    """End the penalty and return f, which is `value` if all that have moved go on, and otherwise is seen anew."""
    moved, live = free.farthest(None), free.farthest(most)
    if len(live) < len(moved):
        nowhere = torch.zeros_like(free.penalties)
        f.move(nowhere)
        f.move(free.nu[live], free.index[live])
        seen = f(gradient).value
        if math.isfinite(seen):
            free.settle(live)
            free.gradient = gradient.index_select(0, free.index)
            return seen
        f.move(free.nu, free.index)
    free.settle(moved)
    return value
