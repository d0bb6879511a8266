"""SalUn: random labels, learnt by the weights that matter to what is forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from forsaken._random import Purpose, generator
from forsaken.data.samples import Samples
from forsaken.unlearning.base import About, Details, Request, class_count, labelled
from forsaken.unlearning.descent import Descent, descent_run, loss_gradient
from forsaken.unlearning.settings import number


@dataclass(frozen=True, kw_only=True)
class SalUn(Descent):
    """Learn random labels for D and the true ones of retain data, by the salient half of the weights alone.

    Salient are the weights where ∇CE(D) is largest in magnitude, by one threshold over all of them. The others stay bit
    for bit as they were: after each step they and their momentum are put back, so neither momentum nor weight decay
    moves them. Fan, Liu, Zhang, Wong, Wei and Liu, "SalUn: Empowering Machine Unlearning via Gradient-based Weight
    Saliency in Both Image Classification and Generation", 2024. The other settings are those of `Descent`.

    Parameters
    ----------
    share : float
        The share of all trainable weights that may move. Weights that tie at the threshold are taken in the model's
        order.
    retain_weight : float
        The weight of the retain data's cross-entropy beside that of the random labels.
    """

    about: ClassVar[About] = About(
        summary="learns random labels for the samples to forget, by the weights most salient to them alone",
        paper='Fan, Liu, Zhang, Wong, Wei and Liu, "SalUn: Empowering Machine Unlearning via Gradient-based Weight '
        'Saliency in Both Image Classification and Generation", 2024',
        needs=("forget with labels", "retain with labels"),
    )

    share: float = number(0.5, "the share of all weights that may move", most=1.0)
    retain_weight: float = number(1.0, "the weight of the retain data beside the random labels")

    def run(self, student: nn.Module, request: Request) -> Details:
        """Train the salient weights of `student`. See `Unlearner.run`."""
        classes = class_count(student, request)
        kept, gone = labelled(request, "retain", classes), labelled(request, "forget", classes)
        gradient = loss_gradient(student, request, [(1.0, gone)], self.batch_size)
        salient = largest(gradient, self.share)
        confused = Samples(gone.inputs, other_labels(gone.labels, classes, request.seed))  # type: ignore[arg-type]
        with descent_run(self, student, request) as run:
            start = {name: weight.detach().clone() for name, weight in run.weights.items()}

            def restore(optimiser: torch.optim.Optimizer, *_: Any) -> None:
                with torch.no_grad():
                    for name, weight in run.weights.items():
                        weight.copy_(torch.where(salient[name], weight, start[name]))
                        momentum = optimiser.state[weight].get("momentum_buffer")
                        if momentum is not None:
                            momentum.masked_fill_(~salient[name], 0.0)

            run.optimiser.register_step_post_hook(restore)
            retain, forget = run.place(kept), run.place(confused)
            for _ in run.epochs(self.epochs * run.steps(retain, forget)):
                for keep, lose in run.pairs(retain, forget):
                    anchor = cross_entropy(run.logits(keep), keep.labels)
                    distance = cross_entropy(run.logits(lose), lose.labels)
                    run.step(distance + self.retain_weight * anchor, distance=distance, anchor=anchor)
        chosen = sum(int(part.sum()) for part in salient.values())
        return run.details({"salient": chosen, "weights": sum(p.numel() for p in salient.values())}, passes=1)


def largest(gradient: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Return where the `share` of all entries lies whose magnitude is largest; exactly so many, ties in order.

    >>> largest({"a": torch.tensor([3.0, -1.0]), "b": torch.tensor([[0.0], [-4.0]])}, 0.5)
    {'a': tensor([ True, False]), 'b': tensor([[False], [ True]])}
    """
    flat = torch.cat([part.abs().reshape(-1) for part in gradient.values()])
    count = round(share * flat.numel())
    if count == 0:
        chosen = torch.zeros_like(flat, dtype=torch.bool)
    else:
        threshold = flat.kthvalue(flat.numel() - count + 1).values
        chosen = flat > threshold
        # Most gradients may be exactly zero (words that D does not have), so ties at the threshold are the rule.
        tied = (flat == threshold).nonzero()[:, 0]
        chosen[tied[: count - int(chosen.sum())]] = True
    parts = torch.split(chosen, [part.numel() for part in gradient.values()])
    return {name: cut.view(part.shape) for (name, part), cut in zip(gradient.items(), parts, strict=True)}


def other_labels(labels: Tensor, classes: int, seed: int) -> Tensor:
    """Return a random label for each sample, each of the other classes as likely, never the sample's own."""
    shift = torch.from_numpy(generator(seed, Purpose.RANDOM_LABELS).integers(1, classes, size=len(labels)))
    return (labels + shift) % classes
