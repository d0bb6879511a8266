"""The smallest displacement, in the metric of what the model has learnt, that brings samples to their targets.

    minimise ½ δᵀMδ   subject to   J δ = t − c(f_θ(D))        M: the curvature over all training rows

J is the Jacobian of the centred logits of D at θ. The solution is δ = M⁻¹Jᵀy with J M⁻¹Jᵀ y = t − c(f_θ(D)), and y is
found by a few steps of the conjugate-residual method, each of which takes one product with Jᵀ (a backward pass over D)
and one with J (a forward pass with tangents). Then θ moves by δ, and all is linearised again: since networks are not
linear, few steps and more rounds win. Only D is passed: no sample holds the others in place, M does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jvp

from forsaken.data.nest import Nest, leaves, length, map_nest
from forsaken.errors import ModelError
from forsaken.references.curvature import Apply, Curvature
from forsaken.unlearning.forsaken.first_layer import FirstLayer
from forsaken.unlearning.forsaken.search import IMPURE, SLACK, Point, Smooth, Watch
from forsaken.unlearning.forsaken.space import ParameterSpace
from forsaken.unlearning.forsaken.targets import centre

HELD = 2048  # rows whose activations are kept between the passes of one round
LINEARISED, STEP = 1.0, 1.5  # sample passes: a linearisation, a step; one of training is 1
_HALVINGS = 4
# A linear system is solved to this share of what is left: to the first where the last round kept what it promised, to
# the second where the network turned out less linear than that.
_ACCURACY, _AGREES = (0.1, 0.5), 0.4
_ENOUGH = 0.3  # of the tolerance: what a linear system need not go below
_SETTLED, _PATIENCE = 0.98, 3  # so many rounds in a row that leave more than this share of the distance are enough

_NEAR = 1e-3  # of the weights' norm: how far apart the passes of a difference are
_WAYS = ("forward", "double-backward", "difference")  # how a product with J is computed, the first that works

Named = dict[str, Tensor]


class Metric:
    """M over the parts of a space, to divide by.

    Parameters
    ----------
    space : ParameterSpace
        The parameters that may change.
    curvature : Curvature
        A and G of each weight.
    damping : float
        λ: this share of the mean eigenvalue is added to every eigenvalue of A and of G.
    """

    def __init__(self, space: ParameterSpace, curvature: Curvature, damping: float) -> None:
        self._layers: list[_Layer] = []
        self._squares: dict[str, Tensor] = {}
        device = space.start.device
        for name, factors in curvature.factors.items():
            weight = name if name in space.parts else None
            bias = factors.bias if factors.bias is not None and factors.bias in space.parts else None
            if weight is None and bias is None:
                continue
            if isinstance(space.narrow, FirstLayer) and space.narrow.name == name:
                outputs = curvature.divide_outputs(name, damping, device)
                self._layers.append(_Layer(weight, None, _same, outputs))  # its basis is orthonormal in A
                continue
            columns = _columns(len(factors.inputs.diagonal), factors.bias, weight, bias)
            pair = (
                curvature.divide_inputs(name, damping, device, None if columns is None else columns.to(device)),
                curvature.divide_outputs(name, damping, device),
            )
            # the rows of an embedding are its inputs
            self._layers.append(_Layer(weight, bias, *(reversed(pair) if factors.embedding else pair)))
        for name, squares in curvature.diagonals.items():
            if name in space.parts:
                spread = squares.to(device).clamp_min(0) / max(1, curvature.rows)
                floor = damping * float(spread.mean())
                self._squares[name] = spread + (floor if floor > 0 else 1.0)

    def divide(self, gradient: Named) -> Named:
        """Return M⁻¹ of a gradient, part by part."""
        found = {name: gradient[name] / spread for name, spread in self._squares.items()}
        for layer in self._layers:
            found |= layer.divide(gradient)
        return {name: found[name] for name in gradient}


@dataclass(frozen=True, slots=True)
class _Layer:
    """A weight, its bias, and how to divide by the sides of their columns and of their rows."""

    weight: str | None
    bias: str | None
    columns: Apply
    rows: Apply

    def divide(self, gradient: Named) -> Named:
        parts = [] if self.weight is None else [gradient[self.weight].flatten(1)]
        parts += [] if self.bias is None else [gradient[self.bias][:, None]]
        matrix = self.columns(self.rows(torch.cat(parts, 1).T).T)
        found = {}
        if self.bias is not None:
            found[self.bias], matrix = matrix[:, -1], matrix[:, :-1]
        if self.weight is not None:
            found[self.weight] = matrix.reshape(gradient[self.weight].shape)
        return found


class Linearised:
    """The centred logits of samples as a function of the weights, and its derivative at the point where θ is.

    Parameters
    ----------
    space : ParameterSpace
        θ.
    batches : sequence of (inputs, outputs of the frozen prefix)
        Placed. Up to `HELD` rows keep their activations from `at` on; more are passed anew for each product.
    """

    def __init__(self, space: ParameterSpace, batches: Sequence[tuple[Nest, tuple[Tensor, ...] | None]]) -> None:
        self.space, self.batches = space, batches
        self.rows = sum(length(inputs) for inputs, _ in batches)
        self.passed = 0.0  # sample passes so far
        self._graphs: list[Tensor] | None = None
        self._sizes: list[int] = []
        self.way = _WAYS[0]

    def at(self) -> Tensor:
        """Linearise at θ, and return the centred logits there (rows x classes)."""
        self._graphs = None  # the last round's go before new ones come
        graphs: list[Tensor] = []
        found: list[Tensor] = []
        for at in range(len(self.batches)):
            given = None if self._sizes or at else map_nest(torch.clone, self.batches[at][0])
            logits = self._logits(at, self.space.parts)
            if given is not None:
                pairs = zip(leaves(given), leaves(self.batches[at][0]), strict=True)
                if not all(torch.equal(one, other) for one, other in pairs):
                    raise ModelError(IMPURE)
            found.append(logits.detach())
            if self.rows <= HELD:
                graphs.append(logits)
        self._sizes = [len(each) for each in found]
        self.passed += LINEARISED * sum(self._sizes)
        self._graphs = graphs if self.rows <= HELD else None
        return torch.cat(found)

    def transposed(self, dual: Tensor) -> Named:
        """Return Jᵀ of a vector (rows x classes): the gradient of its product with the logits."""
        names = list(self.space.parts)
        leaves = [self.space.parts[name] for name in names]
        total: list[Tensor] | None = None
        for at, part in enumerate(torch.split(dual, self._sizes)):
            logits = self._logits(at, self.space.parts) if self._graphs is None else self._graphs[at]
            found = torch.autograd.grad(
                logits, leaves, grad_outputs=part, retain_graph=self._graphs is not None, allow_unused=True
            )
            dense = [torch.zeros_like(leaf) if each is None else each for leaf, each in zip(leaves, found, strict=True)]
            dense = [each.to_dense() if each.is_sparse else each for each in dense]
            total = dense if total is None else [a + b for a, b in zip(total, dense, strict=True)]
        return dict(zip(names, total or [], strict=True))

    def product(self, tangent: Named) -> Tensor:
        """Return J of a displacement (rows x classes)."""
        self.passed += STEP * sum(self._sizes)
        for way in (self._forward, self._twice, self._difference)[_WAYS.index(self.way) :]:
            try:
                found = torch.cat([way(at, tangent) for at in range(len(self.batches))])
            except torch.OutOfMemoryError:
                raise
            except (NotImplementedError, RuntimeError) as error:
                if self.way == _WAYS[-1]:
                    raise ModelError(f"the model's logits cannot be differentiated ({error})") from error
                self.way = _WAYS[_WAYS.index(self.way) + 1]  # some layer has no such derivative
                continue
            return found
        raise ModelError("the model's logits cannot be differentiated")

    def _logits(self, at: int, parts: Named) -> Tensor:
        inputs, prefixed = self.batches[at]
        return centre(self.space.logits(inputs, parts, prefixed))

    def _forward(self, at: int, tangent: Named) -> Tensor:
        here = {name: part.detach() for name, part in self.space.parts.items()}
        found: Tensor = jvp(lambda parts: self._logits(at, parts), (here,), (tangent,))[1]
        return found

    def _twice(self, at: int, tangent: Named) -> Tensor:
        """Return J of a displacement by two backward passes: Jᵀu is linear in u, and its derivative is J."""
        logits = self._logits(at, self.space.parts)
        dual = torch.zeros_like(logits, requires_grad=True)
        names = list(tangent)
        leaves = [self.space.parts[name] for name in names]
        found = torch.autograd.grad(logits, leaves, grad_outputs=dual, create_graph=True, allow_unused=True)
        pairs = [(each, tangent[name]) for name, each in zip(names, found, strict=True) if each is not None]
        product = torch.autograd.grad([each for each, _ in pairs], dual, grad_outputs=[each for _, each in pairs])
        return product[0].detach()

    def _difference(self, at: int, tangent: Named) -> Tensor:
        """Return J of a displacement by the difference of two passes, where layers can be differentiated only once."""
        size = sum(float(part.square().sum()) for part in tangent.values()) ** 0.5
        whole = sum(float(part.detach().square().sum()) for part in self.space.parts.values()) ** 0.5
        if size == 0:
            return torch.zeros_like(self._logits(at, self.space.parts)).detach()
        step = _NEAR * (1 + whole) / size
        with torch.no_grad():
            ends = [
                self._logits(at, {name: part + way * step * tangent[name] for name, part in self.space.parts.items()})
                for way in (1.0, -1.0)
            ]
        found: Tensor = (ends[0] - ends[1]) / (2 * step)
        return found


@dataclass(slots=True)
class Solver:
    """Moves θ until samples are as near to their targets as a tolerance; see `run`.

    Attributes
    ----------
    space : ParameterSpace
        θ.
    metric : Metric
        M.
    steps : int
        The most conjugate-residual steps of a round.
    forgotten : int
        How many of the first rows are samples to be forgotten: `watch` sees their distance.
    watch : callable
        Sees each round.
    rounds : int
        How many rounds may still come.
    before : float or None
        The mean squared distance of the samples to be forgotten as passes without gradients saw it, to make sure once
        that the model answers the same with gradients.
    done : int
        How many rounds have been.
    """

    space: ParameterSpace
    metric: Metric
    steps: int
    forgotten: int
    watch: Watch
    rounds: int
    before: float | None = None
    done: int = 0

    def run(self, linear: Linearised, target: Tensor, tolerance: float) -> str:
        """Move θ, round by round, and return why it stopped.

        Parameters
        ----------
        linear : Linearised
            The samples' logits.
        target : Tensor, shape (rows, classes)
            Centred target logits.
        tolerance : float
            The root mean square distance of logits that is near enough.
        """
        theta, wanted = self.space.theta, target.to(self.space.theta)
        left = wanted - linear.at()
        if self.before is not None:
            own = float(left[: self.forgotten].double().square().mean())
            if not abs(own - self.before) <= SLACK * (1 + self.before):
                raise ModelError(IMPURE)
            self.before = None
        near, accuracy, slow = _rms(left), _ACCURACY[1], 0
        while near > tolerance:
            if self.rounds == 0:
                return "iterations"
            delta = self._displacement(linear, left, max(_ENOUGH * tolerance, accuracy * near))
            moved = torch.cat([delta[name].reshape(-1) for name in self.space.parts])
            before, base, share = near, theta.clone(), 1.0
            for _ in range(_HALVINGS):
                torch.add(base, moved, alpha=share, out=theta)
                left = wanted - linear.at()
                near = _rms(left)
                if near < before:
                    break
                share /= 2
            else:
                theta.copy_(base)
                return "line-search"
            self.rounds, self.done = self.rounds - 1, self.done + 1
            accuracy = _ACCURACY[0] if near < _AGREES * before else _ACCURACY[1]
            distance = float(left[: self.forgotten].square().mean())
            reason = self.watch(
                Point(self.done, distance, Smooth(distance, 0.0, distance), 0.0, self.space.size, share)
            )
            if reason is not None:
                return reason
            slow = slow + 1 if near > _SETTLED * before else 0
            if slow == _PATIENCE:
                return "converged"
        return "tolerance"

    def _displacement(self, linear: Linearised, left: Tensor, enough: float) -> Named:
        """Return δ = M⁻¹Jᵀy for the y that conjugate-residual steps find for J M⁻¹Jᵀ y = left."""
        residual = left.clone()
        towards = self.metric.divide(linear.transposed(residual))
        image = linear.product(towards)
        found = {name: torch.zeros_like(part) for name, part in towards.items()}
        direction, reached, scale = dict(towards), image.clone(), (residual * image).sum()
        for at in range(self.steps):
            size = (reached * reached).sum()
            if not float(size) > 0 or not float(scale) > 0:
                break  # no weight moves what is left
            rate = scale / size
            for name, part in direction.items():
                found[name].add_(part * rate)
            residual -= rate * reached
            if at == self.steps - 1 or _rms(residual) <= enough:
                break
            towards = self.metric.divide(linear.transposed(residual))
            image = linear.product(towards)
            scale, before = (residual * image).sum(), scale
            share = scale / before
            direction = {name: towards[name] + share * part for name, part in direction.items()}
            reached = image + share * reached
        return found


def _columns(width: int, known: str | None, weight: str | None, bias: str | None) -> Tensor | None:
    """Return which columns of A the chosen parameters have; None for all."""
    if known is None or (weight is not None and bias is not None):
        return None
    return torch.arange(width - 1) if weight is not None else torch.tensor([width - 1])


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def _same(rows: Tensor) -> Tensor:
    return rows
