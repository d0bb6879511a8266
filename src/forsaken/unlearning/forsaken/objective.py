"""The smooth part of what is minimised, and its gradient.

    dist(D) + β · anchor(D_0)        at θ = θ_0 − s ⊙ ν

The distance moves the forgotten samples to their targets; the anchor holds the others where they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from forsaken.data.nest import Nest, leaves
from forsaken.data.samples import Samples, join
from forsaken.errors import ForsakenError, ModelError, NonFiniteError
from forsaken.unlearning.forsaken.search import IMPURE, SLACK, Smooth
from forsaken.unlearning.forsaken.space import ParameterSpace
from forsaken.unlearning.forsaken.targets import centre


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


DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": kl,
    "kl-reverse": reverse_kl,
    "logits": squared_logits,
}


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
        What must stay where it is.
    anchored : Tensor, shape (anchors, p), float64
        Where the anchors' centred logits were.
    distance : str
        A name of `DISTANCES`, for D; the anchors' distance is always that of the logits.
    beta : float
        The anchors' weight β.
    batch_size : int or None
        Samples in a microbatch; None takes all at once. Both give the same result to rounding.
    """

    def __init__(
        self,
        space: ParameterSpace,
        scale: Tensor,
        forget: Samples,
        target: Tensor,
        anchors: Samples | None,
        anchored: Tensor | None,
        *,
        distance: str,
        beta: float,
        batch_size: int | None = None,
    ) -> None:
        self.space, self.scale, self.beta = space, scale, beta
        self._slope = -scale  # ∂θ/∂ν
        self._nu = torch.zeros_like(scale)
        self.measure = DISTANCES[distance]
        self.forgotten = len(forget)
        self.anchors = 0 if anchors is None else len(anchors)
        self.evaluations = 0
        device = space.adapter.device
        everything = forget if anchors is None else join([_bare(forget), _bare(anchors)])
        wanted = target if anchored is None else torch.cat([target, anchored])
        self._samples, self._size = everything, batch_size
        placed = [space.place(part.inputs) for part in everything.batches(batch_size)]
        rows = torch.split(wanted.to(device), batch_size or len(everything))
        self._batches = [
            (space.thinned(inputs), space.prefix_outputs(inputs), part)
            for inputs, part in zip(placed, rows, strict=True)
        ]

    def inputs_kept(self) -> bool:
        """Return whether the model left the inputs of the first batch as they were given."""
        given = self.space.place(next(self._samples.batches(self._size)).inputs)
        now = leaves(self._batches[0][0])
        return all(torch.equal(a, b.to_dense()) for a, b in zip(leaves(given), now, strict=True))

    def begin(self, gradient: Tensor, before: float) -> Smooth:
        """Evaluate at θ_0 as `__call__` does, and make sure of the model: `before` is D's distance as it is without."""
        start = self(gradient)
        if not math.isfinite(start.value) or not bool(torch.isfinite(gradient).all()):
            raise NonFiniteError(
                f"the objective is {start.value} at the weights handed over, or its gradient is not finite; "
                "check the model and the targets"
            )
        # passes with gradients may see another model than those without: D elsewhere, anchors not at rest
        slack = SLACK * (1 + before)
        if abs(start.distance - before) > slack or start.anchor > slack or not self.inputs_kept():
            raise ModelError(IMPURE)
        return start

    def move(self, nu: Tensor, index: Tensor | None = None) -> None:
        """Set θ = θ_0 − s ⊙ ν, everywhere or at `index` only."""
        if index is None:
            self._nu.copy_(nu)
        else:
            self._nu.index_copy_(0, index, nu)  # elsewhere ν is zero and stays so
        torch.addcmul(self.space.start, self._slope, self._nu, out=self.space.theta)

    def __call__(self, gradient: Tensor) -> Smooth:
        """Evaluate at the current θ; write the gradient with respect to ν into `gradient`, shape (d,)."""
        self.evaluations += 1
        weights = list(self.space.parts.values())
        sums = torch.zeros(2, dtype=torch.float64, device=self.space.adapter.device)
        seen = 0
        for inputs, prefixed, wanted in self._batches:
            parts = self._parts(self._logits(inputs, prefixed), wanted, seen)
            found = torch.autograd.grad(parts[0] + self.beta * parts[1], weights, allow_unused=True)
            self._collect(found, gradient, first=seen == 0)
            sums += torch.stack([parts[0].detach(), parts[1].detach()])
            seen += len(wanted)
        distance, anchor = sums.tolist()
        return Smooth(distance, anchor, distance + self.beta * anchor)

    def _logits(self, inputs: Nest, prefixed: tuple[Tensor, ...] | None) -> Tensor:
        try:
            logits = self.space.logits(inputs, prefixed=prefixed).double()
        except torch.OutOfMemoryError as error:
            raise ForsakenError("a batch does not fit into memory; give batch_size= with fewer samples") from error
        if not logits.requires_grad:
            raise ModelError(
                "the logits do not depend on the chosen parameters by a gradient; remove detach(), no_grad() or "
                "rounding from the model, or choose other parameters="
            )
        return logits

    def _parts(self, logits: Tensor, wanted: Tensor, seen: int) -> tuple[Tensor, Tensor]:
        cut = min(max(self.forgotten - seen, 0), len(wanted))
        zero = logits.new_zeros(())
        distance = self.measure(logits[:cut], wanted[:cut]).sum() / self.forgotten if cut else zero
        still = cut < len(wanted)
        anchor = squared_logits(logits[cut:], wanted[cut:]).sum() / self.anchors if still else zero
        return distance, anchor

    def _collect(self, found: tuple[Tensor | None, ...], gradient: Tensor, *, first: bool) -> None:
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


def _bare(samples: Samples) -> Samples:
    return Samples(samples.inputs)
