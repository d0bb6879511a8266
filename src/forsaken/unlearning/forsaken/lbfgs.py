"""The paper's optimiser: torch's L-BFGS with strong Wolfe conditions, on the subgradient of the L1 term.

Kept for faithful reproduction. It starts at the kink of |ν|, where the subgradient is taken as zero, leaves no exact
zeros, and its line search may stall; `owlqn` treats the same objective exactly.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from forsaken.errors import NonFiniteError
from forsaken.unlearning.forsaken.owlqn import Objective
from forsaken.unlearning.forsaken.search import Found, Point, Smooth, Watch

_TRIALS = 25  # of the line search in one iteration; torch's own default


class _Closure:
    """f + Σ l|ν| as torch's optimisers want it. Remembers its last point, since each step asks for it again."""

    def __init__(self, f: Objective, start: float, gradient: Tensor, nu: Tensor, penalty: Tensor) -> None:
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
    f: Objective,
    start: float,
    gradient: Tensor,
    penalty: Tensor,
    *,
    iterations: int,
    history: int,
    watch: Watch,
) -> Found:
    """Minimise f(ν) + Σ l|ν| from ν = 0. See `owlqn` for the parameters; memory is (2m + 8) · d numbers."""
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
