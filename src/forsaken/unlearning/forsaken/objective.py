"""The smooth part of what "owlqn" and "lbfgs" minimise, and its gradient.

    dist(D) + β · anchor(D_0)        at θ = θ_0 − s ⊙ ν

The distance moves the forgotten samples D to their targets; the anchor term holds the answers on other samples, the
anchors D_0, where they were.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from forsaken._random import Purpose, generator
from forsaken.data.nest import Nest, leaves
from forsaken.data.samples import Samples, join
from forsaken.errors import ForsakenError, ModelError, NonFiniteError
from forsaken.models.logits import centre, differentiable
from forsaken.unlearning.base import Request
from forsaken.unlearning.forsaken.optimisers import Smooth
from forsaken.unlearning.forsaken.parameters import ParameterSpace
from forsaken.unlearning.forsaken.targets import Distance
from forsaken.unlearning.settings import number, whole

SLACK = 1e-2  # relative difference of two calls of a model that rounding explains, in half precision too
IMPURE = (
    "the model answers differently when it is called again with gradients: it draws random numbers, changes its input "
    "in place, or takes torch's fast path for transformers (enable_nested_tensor=False)"
)


def squared_logits(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean over the classes of (c(z) − c(t))², one number a sample."""
    return (centre(logits) - target).square().mean(1)


def kl(logits: Tensor, target: Tensor) -> Tensor:
    """KL(P ‖ posterior), one number a sample."""
    wanted = target.log_softmax(1)
    return (wanted.exp() * (wanted - logits.log_softmax(1))).sum(1)


def reverse_kl(logits: Tensor, target: Tensor) -> Tensor:
    """KL(posterior ‖ P), one number a sample."""
    now = logits.log_softmax(1)
    return (now.exp() * (now - target.log_softmax(1))).sum(1)


DISTANCES: dict[str, Distance] = {"kl": kl, "kl-reverse": reverse_kl, "logits": squared_logits}


@dataclass(frozen=True, kw_only=True)
class Anchors:
    """Settings of the samples whose answers "owlqn" and "lbfgs" hold where they were.

    Attributes
    ----------
    weight : float
        β, how strongly they are held; 0 for no anchors.
    references : int
        How many references, at most, are anchors beside the retain samples. They are non-members, so they cost no
        training data.
    """

    weight: float = number(1.0, "β, how strongly retain samples are held where they were")
    references: int = whole(300, "how many references, at most, are held as well")


@dataclass(frozen=True, slots=True)
class Kept:
    """The samples on which the model must stay as it is.

    Attributes
    ----------
    anchors : Samples or None
        Samples whose answers are held: the retain samples, then some references.
    guard : Samples or None
        Samples from which the importance of the parameters is measured.
    source : str
        The role of the guard, for the result: "retain", "reference" or "none".
    """

    anchors: Samples | None
    guard: Samples | None
    source: str

    @classmethod
    def of(cls, request: Request, anchors: Anchors) -> Kept:
        """Choose the samples of a request; the seed decides which references are anchors.

        Without retain samples, all references are the guard.
        """
        retain, reference = request.retain, request.reference
        parts = [] if retain is None else [Samples(retain.inputs)]
        if reference is not None and anchors.references:
            order = generator(request.seed, Purpose.ANCHORS).permutation(len(reference))
            parts.append(Samples(reference.rows(order[: anchors.references]).inputs))
        held = join(parts) if anchors.weight > 0 and parts else None
        if retain is not None:
            return cls(held, retain, "retain")
        return cls(held, reference, "none" if reference is None else "reference")

    def notes(self, *, importance: bool) -> list[str]:
        """Say which samples replaced missing retain samples; `importance` says whether any importance was measured."""
        if self.source == "retain":
            return []
        used = (("importance", importance and self.guard is not None), ("anchor", self.anchors is not None))
        parts = [name for name, there in used if there]
        if not parts:
            return [
                "no retain samples were given, and no references stood in: nothing holds the other samples in place"
            ]
        return [f"no retain samples were given: {' and '.join(parts)} come from the references"]


class Objective:
    """The smooth part as a function of ν, over D and the anchors in one batch or in microbatches.

    Parameters
    ----------
    space : ParameterSpace
        The parameters.
    scale : Tensor, shape (d,)
        s.
    forget : Samples
        D.
    target : Tensor, shape (|D|, p), float64
        Where the logits of D should go, centred.
    anchors : Samples or None
        D_0.
    anchored : Tensor, shape (|D_0|, p), float64, or None
        The centred logits of the anchors at θ_0.
    distance : str
        A name of `DISTANCES`, for D; the anchors' distance is always that of the logits.
    beta : float
        The anchors' weight β.
    batch_size : int or None
        Samples in a microbatch; None takes all at once. Both give the same result to rounding.

    Notes
    -----
    Memory: 2 numbers for each entry of θ, the placed inputs, and the activations of one microbatch.
    """

    def __init__(
        self,
        space: ParameterSpace,
        scale: Tensor,
        forget: Samples,
        target: Tensor,
        anchors: Samples | None = None,
        anchored: Tensor | None = None,
        *,
        distance: str = "logits",
        beta: float = 0.0,
        batch_size: int | None = None,
    ) -> None:
        self.space, self.beta = space, beta
        self._slope = -scale  # ∂θ/∂ν
        self._nu = torch.zeros_like(scale)
        self._distance = DISTANCES[distance]
        self._forgotten = len(forget)
        self._anchors = 0 if anchors is None else len(anchors)
        self.evaluations = 0
        samples = forget if anchors is None else join([Samples(forget.inputs), Samples(anchors.inputs)])
        wanted = target if anchored is None else torch.cat([target, anchored])
        self._first = next(samples.batches(batch_size)).inputs
        rows = torch.split(wanted.to(space.adapter.device), batch_size or len(samples))
        placed = [space.sparse(space.place(part.inputs)) for part in samples.batches(batch_size)]
        self._batches = list(zip(placed, rows, strict=True))

    def begin(self, gradient: Tensor, before: float) -> Smooth:
        """Evaluate at θ_0 as `__call__` does, and check that the model gives the same answers as without gradients.

        `before` is the distance of D that passes without gradients found.
        """
        start = self(gradient)
        if not math.isfinite(start.value) or not bool(torch.isfinite(gradient).all()):
            raise NonFiniteError(
                f"the objective is {start.value} at the weights handed over, or its gradient is not finite; "
                "check the model and the targets"
            )
        slack = SLACK * (1 + before)
        if abs(start.distance - before) > slack or start.anchor > slack or not self._inputs_unchanged():
            raise ModelError(IMPURE)
        return start

    def _inputs_unchanged(self) -> bool:
        """Return whether the model left the first batch of inputs as it was given."""
        pairs = zip(leaves(self.space.place(self._first)), leaves(self._batches[0][0]), strict=True)
        return all(torch.equal(given, now.to_dense()) for given, now in pairs)

    def move(self, nu: Tensor, index: Tensor | None = None) -> None:
        """Set θ = θ_0 − s ⊙ ν, where ν is given everywhere, or at `index` and is zero elsewhere."""
        if index is None:
            self._nu.copy_(nu)
        else:
            self._nu.index_copy_(0, index, nu)
        torch.addcmul(self.space.start, self._slope, self._nu, out=self.space.theta)

    def __call__(self, gradient: Tensor) -> Smooth:
        """Evaluate at the current θ; write the gradient with respect to ν into `gradient`, shape (d,)."""
        self.evaluations += 1
        weights = list(self.space.parts.values())
        sums = torch.zeros(2, dtype=torch.float64, device=self.space.adapter.device)
        seen = 0
        for inputs, wanted in self._batches:
            parts = self._parts(self._logits(inputs), wanted, seen)
            found = torch.autograd.grad(parts[0] + self.beta * parts[1], weights, allow_unused=True)
            self._collect(found, gradient, first=seen == 0)
            sums += torch.stack([parts[0].detach(), parts[1].detach()])
            seen += len(wanted)
        distance, anchor = sums.tolist()
        return Smooth(distance, anchor, distance + self.beta * anchor)

    def _logits(self, inputs: Nest) -> Tensor:
        try:
            logits = self.space.logits(inputs).double()
        except torch.OutOfMemoryError as error:
            raise ForsakenError("a batch does not fit into memory; give batch_size= with fewer samples") from error
        return differentiable(logits)

    def _parts(self, logits: Tensor, wanted: Tensor, seen: int) -> tuple[Tensor, Tensor]:
        """Return a microbatch's share of both means; samples of D come before the anchors."""
        cut = min(max(self._forgotten - seen, 0), len(wanted))
        distance = anchor = logits.new_zeros(())
        if cut:
            distance = self._distance(logits[:cut], wanted[:cut]).sum() / self._forgotten
        if cut < len(wanted):
            anchor = squared_logits(logits[cut:], wanted[cut:]).sum() / self._anchors
        return distance, anchor

    def _collect(self, found: Sequence[Tensor | None], gradient: Tensor, *, first: bool) -> None:
        # ∂/∂ν = −s ⊙ ∂/∂θ; scaling while copying saves a pass over d numbers.
        for cut, part in zip(self.space.slices.values(), found, strict=True):
            out, slope = gradient[cut], self._slope[cut]
            if part is None:
                if first:
                    out.zero_()
                continue
            whole = part.to_dense() if part.is_sparse else part
            out, slope = out.view(whole.shape), slope.view(whole.shape)
            if first:
                torch.mul(whole, slope, out=out)
            else:
                out.addcmul_(whole, slope)
