"""NegGrad+: down on what is kept, up on what is forgotten, at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from torch.nn.functional import cross_entropy

from forsaken.unlearning.base import About, Details, Request, class_count, labelled
from forsaken.unlearning.descent import Descent, descent_run
from forsaken.unlearning.settings import number


@dataclass(frozen=True, kw_only=True)
class NegGradPlus(Descent):
    """Descend α · CE(retain) − (1 − α) · CE(D), a batch of each in every step.

    Gradient ascent with something to hold on to. Kurmanji, Triantafillou, Hayes and Triantafillou, "Towards Unbounded
    Machine Unlearning", 2023. The smaller of the two sets starts again until the larger has been seen. The other
    settings are those of `Descent`.

    Parameters
    ----------
    alpha : float
        α, the weight of what is kept; 1 is fine-tuning, 0 is gradient ascent.
    """

    about: ClassVar[About] = About(
        summary="descends the loss on retain data and ascends it on the samples to forget, at once",
        paper='Kurmanji, Triantafillou, Hayes and Triantafillou, "Towards Unbounded Machine Unlearning", 2023',
        needs=("forget with labels", "retain with labels"),
    )

    alpha: float = number(0.95, "α, the weight of what is kept", most=1.0)

    def run(self, student: nn.Module, request: Request) -> Details:
        """Descend on the difference. See `Unlearner.run`."""
        classes = class_count(student, request)
        kept, gone = labelled(request, "retain", classes), labelled(request, "forget", classes)
        with descent_run(self, student, request) as run:
            retain, forget = run.place(kept), run.place(gone)
            for _ in run.epochs(self.epochs * run.steps(retain, forget)):
                for keep, lose in run.pairs(retain, forget):
                    anchor = cross_entropy(run.logits(keep), keep.labels)
                    distance = cross_entropy(run.logits(lose), lose.labels)
                    loss = self.alpha * anchor - (1 - self.alpha) * distance
                    run.step(loss, distance=distance, anchor=anchor)
        return run.details()
