"""The smallest displacement, in the metric of what the model has learnt, that brings samples to their targets.

    minimise ½ δᵀMδ   subject to   J δ = t − c(f_θ(D))        M: the curvature over all training rows

J is the Jacobian of the centred logits of D at θ. The solution is δ = M⁻¹Jᵀy with J M⁻¹Jᵀ y = t − c(f_θ(D)). y is found
by a few steps of the conjugate-residual method, each of which takes one product with Jᵀ (a backward pass over D) and
one with J (a forward pass with tangents). Then θ moves by δ, and the problem is linearised again: since networks are
not linear, few steps and more rounds win. Only D is passed: M, not other samples, keeps the model's other answers. In
networks that are small for what they have learnt, retain samples are passed as well, with their own answers as targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from forsaken.data.nest import Nest, leaves, length, map_nest
from forsaken.errors import ModelError
from forsaken.models.logits import centre
from forsaken.references.curvature import Apply, Curvature
from forsaken.unlearning.forsaken.objective import IMPURE, SLACK
from forsaken.unlearning.forsaken.optimisers import Point, Smooth, Watch
from forsaken.unlearning.forsaken.parameters import InputSpan, ParameterSpace
from forsaken.unlearning.settings import number, whole

HELD = 2048  # rows whose activations are kept between the passes of one round
LINEARISED, STEP = 1.0, 1.5  # cost of a linearisation and of a step, in passes over the samples; training's is 1
_HALVINGS = 8
# A linear system is solved to this share of what is left: to the first where the last round kept what it promised, to
# the second where the network turned out less linear than that.
_ACCURACY, _AGREES = (0.1, 0.5), 0.4
_ENOUGH = 0.3  # of the tolerance: a linear system is not solved more closely
_SETTLED, _PATIENCE = 0.98, 3  # converged: so many rounds in a row left more than this share of the distance
_NEAR = 1e-3  # of the weights' norm: how far apart the two passes of a difference are
_WAYS = ("forward", "double-backward", "difference")  # how a product with J is computed: the first that works

Named = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Solver:
    """Settings of "gauss-newton".

    Attributes
    ----------
    damping : float
        The share of the mean eigenvalue that is added to every eigenvalue of the curvature.
    tolerance : float
        How near to its target is near enough, as a share of the distance between two models that never saw a sample.
        No attack can tell a smaller distance.
    rounds, steps : int
        The most linearisations, and the most steps of the linear solver in each.
    frozen_prefix : float
        The largest share of the parameters that may stay as they are in the first layers, whose outputs are then
        computed once. Small models have no parameters to spare, and no prefix.
    views : int or None
        How many of the references' views of each sample are forgotten with it; None for all.
    """

    damping: float = number(0.1, "what is added to the curvature, as a share of its mean", least=1e-6)
    tolerance: float = number(0.02, "how near is near enough, as a share of what unseen samples differ by")
    rounds: int = whole(30, "the most linearisations", least=1)
    steps: int = whole(20, "the most steps of the linear solver in each", least=1)
    frozen_prefix: float = number(0.3, "the share of the weights, in the first layers, that may stay", most=0.9)
    views: int | None = whole(None, "how many of the references' views are forgotten too; by default all")


class Metric:
    """M over the parts of a space, in the form of M⁻¹.

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
            if isinstance(space.first, InputSpan) and space.first.name == name:
                outputs = curvature.divide_outputs(name, damping, device)
                # in its coordinates A is the identity
                self._layers.append(_Layer(weight, None, _same, outputs, factors.transposed))
                continue
            columns = _columns(len(factors.inputs.diagonal), factors.bias, weight, bias)
            pair = (
                curvature.divide_inputs(name, damping, device, None if columns is None else columns.to(device)),
                curvature.divide_outputs(name, damping, device),
            )
            self._layers.append(_Layer(weight, bias, *pair, factors.transposed))
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
    """A weight, its bias, and how to divide by A and by G; whether the weight's rows, and not its columns, meet A."""

    weight: str | None
    bias: str | None
    inputs: Apply
    outputs: Apply
    transposed: bool

    def divide(self, gradient: Named) -> Named:
        parts = []
        if self.weight is not None:
            parts.append(gradient[self.weight].T if self.transposed else gradient[self.weight].flatten(1))
        if self.bias is not None:
            parts.append(gradient[self.bias][:, None])
        matrix = self.inputs(self.outputs(torch.cat(parts, 1).T).T)
        found = {}
        if self.bias is not None:
            found[self.bias], matrix = matrix[:, -1], matrix[:, :-1]
        if self.weight is not None:
            found[self.weight] = (matrix.T if self.transposed else matrix).reshape(gradient[self.weight].shape)
        return found


class Linearised:
    """The centred logits of samples as a function of the weights, and its derivative at the point where θ is.

    Parameters
    ----------
    space : ParameterSpace
        θ.
    batches : sequence of (inputs, outputs of the frozen prefix)
        Placed inputs. Up to `HELD` rows keep their activations from `at` on; more are passed again for each product.
    way : {"forward", "double-backward", "difference"}
        How to compute products with J; where a layer has no such derivative, the next way is taken.
    """

    def __init__(
        self,
        space: ParameterSpace,
        batches: Sequence[tuple[Nest, tuple[Tensor, ...] | None]],
        way: str = _WAYS[0],
    ) -> None:
        self.space, self.batches = space, batches
        self.rows = sum(length(inputs) for inputs, _ in batches)
        self.passed = 0.0  # sample passes so far
        self.way = way
        self._graphs: list[Tensor] | None = None
        self._here: Named | None = None
        self._sizes: list[int] = []

    def at(self) -> Tensor:
        """Linearise at θ, and return the centred logits there (rows x classes)."""
        self._graphs = self._here = None  # free the last round's activations before new ones come
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
        ways = dict(zip(_WAYS, (self._forward, self._twice, self._difference), strict=True))
        while True:
            try:
                return torch.cat([ways[self.way](at, tangent) for at in range(len(self.batches))])
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                if self.way == _WAYS[-1]:
                    raise ModelError(f"the model's logits cannot be differentiated ({error})") from error
                self.way, self._here = _WAYS[_WAYS.index(self.way) + 1], None

    def _logits(self, at: int, parts: Named) -> Tensor:
        inputs, prefixed = self.batches[at]
        return centre(self.space.logits(inputs, parts, prefixed))

    def _forward(self, at: int, tangent: Named) -> Tensor:
        if self._here is None:
            # Copies: the parts are views of one vector, and forward mode would give each a tangent of that whole size.
            self._here = {name: part.detach().clone() for name, part in self.space.parts.items()}
        here = self._here
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels of attention have no forward mode
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


@dataclass(frozen=True, slots=True)
class Reached:
    """How `bring_to_targets` ended: after which round, and why."""

    rounds: int
    stopped: str


def bring_to_targets(
    linear: Linearised,
    metric: Metric,
    target: Tensor,
    tolerance: float,
    *,
    solver: Solver,
    forgotten: int,
    watch: Watch,
    done: int = 0,
    before: float | None = None,
) -> Reached:
    """Move θ, round by round, until the logits are as near to their targets as a tolerance.

    Parameters
    ----------
    linear : Linearised
        The samples' logits as a function of θ.
    metric : Metric
        M.
    target : Tensor, shape (rows, classes)
        Centred target logits.
    tolerance : float
        The root mean square distance of logits that is near enough.
    solver : Solver
        The most rounds and steps.
    forgotten : int
        How many of the first rows are samples to be forgotten: `watch` sees their distance.
    watch : callable
        Sees the point after each round and returns a reason to stop, or None.
    done : int
        How many rounds there were already, of ``solver.rounds`` in all.
    before : float, optional
        The mean squared distance of the forgotten samples that passes without gradients found, to check that the model
        gives the same answers with gradients.
    """
    theta, wanted = linear.space.theta, target.to(linear.space.theta)
    left = wanted - linear.at()
    if before is not None:
        own = float(left[:forgotten].double().square().mean())
        if not abs(own - before) <= SLACK * (1 + before):
            raise ModelError(IMPURE)
    near, accuracy, slow = _rms(left), _ACCURACY[1], 0
    while near > tolerance:
        if done >= solver.rounds:
            return Reached(done, "iterations")
        delta = displacement(linear, metric, left, max(_ENOUGH * tolerance, accuracy * near), solver.steps)
        moved = torch.cat([delta[name].reshape(-1) for name in linear.space.parts])
        last, base, share = near, theta.clone(), 1.0
        for _ in range(_HALVINGS):
            torch.add(base, moved, alpha=share, out=theta)
            left = wanted - linear.at()
            near = _rms(left)
            if near < last:
                break
            share /= 2
        else:
            theta.copy_(base)
            return Reached(done, "line-search")
        done += 1
        accuracy = _ACCURACY[0] if near < _AGREES * last else _ACCURACY[1]
        distance = float(left[:forgotten].square().mean())
        reason = watch(Point(done, distance, Smooth(distance, 0.0, distance), 0.0, linear.space.size, share))
        if reason is not None:
            return Reached(done, reason)
        slow = slow + 1 if near > _SETTLED * last else 0
        if slow == _PATIENCE:
            return Reached(done, "converged")
    return Reached(done, "tolerance")


def displacement(linear: Linearised, metric: Metric, left: Tensor, enough: float, steps: int) -> Named:
    """Return δ = M⁻¹Jᵀy for the y that conjugate-residual steps find for J M⁻¹Jᵀ y = left.

    The steps end where the root mean square of the residual is `enough`, or after `steps`.
    """
    residual = left.clone()
    towards = metric.divide(linear.transposed(residual))
    image = linear.product(towards)
    found = {name: torch.zeros_like(part) for name, part in towards.items()}
    direction, reached, scale = dict(towards), image.clone(), (residual * image).sum()
    for at in range(steps):
        size = (reached * reached).sum()
        if not float(size) > 0 or not float(scale) > 0:
            break  # no parameter moves what is left
        rate = scale / size
        for name, part in direction.items():
            found[name].add_(part * rate)
        residual -= rate * reached
        if at == steps - 1 or _rms(residual) <= enough:
            break
        towards = metric.divide(linear.transposed(residual))
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
