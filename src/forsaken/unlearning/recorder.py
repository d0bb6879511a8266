"""What SMU writes down while a model trains: how much of the weights came from the watched rows.

An update of SGD with momentum, or of Adam given its second moment, is linear in the gradient. So is the gradient of a
batch in its samples. The weights are then a sum, θ = (what the other rows and the start made) + R, and R follows the
same recursion as θ, fed with the watched rows' part of every gradient:

    SGD:   b ← m·b + g,    d = g + m·b (Nesterov) or b
    Adam:  b ← β₁·b + (1 − β₁)·g,    d = (b / (1 − β₁ᵗ)) / (√(v / (1 − β₂ᵗ)) + ε),   v the optimiser's own
    R ← R − rate·d,    g = clip factor · (1 / |B|) Σ over watched rows of the batch + weight decay · R
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from forsaken.recipe import Recipe

_CLIP_GUARD = 1e-6  # torch's clip_grad_norm_ divides by the norm plus this


@dataclass(frozen=True, slots=True)
class Record:
    """R, and what is needed to use it.

    Attributes
    ----------
    parts : dict of tensors
        The watched rows' share of each trainable parameter, by name. As sensitive as the memory itself.
    keys : tuple of bytes
        Digests of the watched rows, to know them again; not the rows.
    kinds : tuple of dtypes
        Of the inputs, from left to right.
    shape : object
        Of one input.
    remaining : int
        How many rows of the training data were not watched.
    recipe : Recipe
        How the model was trained.
    """

    parts: dict[str, Tensor]
    keys: tuple[bytes, ...]
    kinds: tuple[torch.dtype, ...]
    shape: object
    remaining: int
    recipe: Recipe

    @property
    def bytes(self) -> int:
        """What it takes to keep."""
        return sum(part.numel() * part.element_size() for part in self.parts.values()) + sum(map(len, self.keys))


class Recorder:
    """An `Observer` that keeps R while a network trains on ``(inputs, rows)`` in place of inputs.

    The watched rows' part of a gradient is the loss's own gradient at the logits, set to zero for all other rows and
    sent back through the same graph: the same dropout, the same batch statistics, one more backward pass for batches
    with watched rows, and no more forward passes. The training itself is the same, bit for bit.

    Parameters
    ----------
    watched : bool tensor, shape (n,)
        Which rows of the training data to watch.
    clip : float, optional
        The recipe's bound on the norm of a gradient.
    """

    def __init__(self, watched: Tensor, clip: float | None = None) -> None:
        self._watched, self._clip = watched, clip
        self._named: dict[str, nn.Parameter] = {}
        self._total: dict[str, Tensor] = {}
        self._momentum: dict[str, Tensor] = {}
        self._steps: Counter[str] = Counter()
        self._share: dict[str, Tensor] = {}
        self._norms: list[Tensor] = []
        self._batch: tuple[Tensor, Tensor] | None = None
        self._handles: list[RemovableHandle] = []

    def attach(self, network: nn.Module) -> nn.Module:
        """Return a module that takes ``(inputs, rows)``, answers as `network` does, and lets this look on."""
        self._named = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
        # The norm before clipping is gone once the gradients are clipped, so it is noted as they come in.
        heard = self._named.values() if self._clip is not None else ()
        self._handles = [weight.register_post_accumulate_grad_hook(self._note_norm) for weight in heard]  # type: ignore[no-untyped-call]
        return _Tagged(network, self)

    def detach(self) -> None:
        """Leave the network without a trace of having been watched."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._batch = [], None

    def look(self, logits: Tensor, rows: Tensor) -> None:
        """Wait for the gradient of these logits, if any of the rows is watched."""
        self._watched = self._watched.to(rows.device)
        mine = self._watched[rows]
        if logits.requires_grad and bool(mine.any()):
            self._batch = logits, mine
            logits.register_hook(self._divide)  # type: ignore[no-untyped-call]

    def _divide(self, gradient: Tensor) -> None:
        if self._batch is None:
            return
        logits, mine = self._batch
        self._batch = None  # the pass below comes by here again; and the graph, whose hook holds this, must go
        mine = mine.view(-1, *[1] * (gradient.dim() - 1))
        weights = list(self._named.values())
        found = torch.autograd.grad(logits, weights, gradient * mine, retain_graph=True, allow_unused=True)
        self._share = {name: part for name, part in zip(self._named, found, strict=True) if part is not None}

    def _note_norm(self, weight: Tensor) -> None:
        if weight.grad is not None:
            self._norms.append(torch.linalg.vector_norm(weight.grad))

    def before(self, network: nn.Module, rows: Tensor, optimiser: torch.optim.Optimizer) -> None:  # noqa: ARG002
        """Clip the share by the factor by which the whole gradient was clipped."""
        if self._clip is not None and self._norms:
            norm = torch.linalg.vector_norm(torch.stack(self._norms))
            factor = (self._clip / (norm + _CLIP_GUARD)).clamp(max=1.0)
            self._share = {name: part * factor for name, part in self._share.items()}
        self._norms = []

    @torch.no_grad()
    def after(self, network: nn.Module, rows: Tensor, optimiser: torch.optim.Optimizer) -> None:  # noqa: ARG002
        """Let R take its part of the step that the weights have just taken."""
        (group,) = optimiser.param_groups
        for name, weight in self._named.items():
            if weight.grad is None:
                continue
            self._steps[name] += 1
            total = self._total.setdefault(name, torch.zeros_like(weight))
            kept = self._momentum.setdefault(name, torch.zeros_like(weight))
            gradient = total * group["weight_decay"]
            if name in self._share:
                gradient += self._share[name]
            if isinstance(optimiser, torch.optim.Adam):
                (first, second), step = group["betas"], self._steps[name]
                kept.mul_(first).add_(gradient, alpha=1 - first)
                spread = (optimiser.state[weight]["exp_avg_sq"] / (1 - second**step)).sqrt_().add_(group["eps"])
                total.addcdiv_(kept, spread, value=-group["lr"] / (1 - first**step))
            else:
                kept.mul_(group["momentum"]).add_(gradient)
                move = gradient.add_(kept, alpha=group["momentum"]) if group["nesterov"] else kept
                total.sub_(move, alpha=group["lr"])
        self._share = {}

    def parts(self) -> dict[str, Tensor]:
        """Return R, one tensor a trainable parameter, on the CPU; zeros for one that no gradient reached."""
        return {
            name: self._total.get(name, torch.zeros_like(weight)).detach().cpu().contiguous()
            for name, weight in self._named.items()
        }


class _Tagged(nn.Module):
    """A network whose batches say which rows they are."""

    def __init__(self, network: nn.Module, recorder: Recorder) -> None:
        super().__init__()
        self.network = network
        self._recorder = recorder

    def forward(self, batch: tuple[object, Tensor]) -> Tensor:
        inputs, rows = batch
        logits: Tensor = self.network(inputs)
        self._recorder.look(logits, rows)
        return logits
