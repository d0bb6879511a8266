"""Fine-tuning on what is to be kept, in the hope that the rest fades."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from torch.nn.functional import cross_entropy

from forsaken.unlearning.base import About, Details, Request, class_count, labelled
from forsaken.unlearning.descent import Descent, descent_run
from forsaken.unlearning.settings import whole


@dataclass(frozen=True, kw_only=True)
class FineTune(Descent):
    """Go on training on retain data alone: cross-entropy on them, and nothing said about D.

    What is not rehearsed fades, slowly: the method is cheap, and forgets little unless the learning rate is high.
    Golatkar, Achille and Soatto, "Eternal Sunshine of the Spotless Net: Selective Forgetting in Deep Networks", 2020,
    have it as a baseline. The other settings are those of `Descent`.
    """

    about: ClassVar[About] = About(
        summary="goes on training on retain data alone, so the rest fades",
        paper='Golatkar, Achille and Soatto, "Eternal Sunshine of the Spotless Net: Selective Forgetting in Deep '
        'Networks", 2020',
        needs=("forget", "retain with labels"),
    )

    epochs: int = whole(10, "passes over the retain data", least=1)

    def run(self, student: nn.Module, request: Request) -> Details:
        """Train `student` on the retain samples. See `Unlearner.run`."""
        kept = labelled(request, "retain", class_count(student, request))
        with descent_run(self, student, request) as run:
            data = run.place(kept)
            for _ in run.epochs(self.epochs * run.steps(data)):
                for batch in run.batches(data):
                    loss = cross_entropy(run.logits(batch), batch.labels)
                    run.step(loss, anchor=loss)
        return run.details()
