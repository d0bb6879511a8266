"""Gradient ascent on what is to be forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from torch.nn.functional import cross_entropy

from forsaken.unlearning.base import About, Details, Request, class_count, labelled
from forsaken.unlearning.descent import Descent, descent_run
from forsaken.unlearning.settings import number, switch


@dataclass(frozen=True, kw_only=True)
class GradientAscent(Descent):
    """Ascend the cross-entropy on D, and on nothing else: training run backwards.

    The loss has no upper bound and nothing holds the other samples, so too high a rate destroys the model. It needs
    no retain data. Thudi, Deza, Chandrasekaran and Papernot, "Unrolling SGD: Understanding Factors Influencing Machine
    Unlearning", 2022; Graves, Nagisetty and Ganesh, "Amnesiac Machine Learning", 2021. Batch-norm is frozen by default,
    since statistics of D alone are not the model's. The other settings are those of `Descent`.
    """

    about: ClassVar[About] = About(
        summary="ascends the loss on the samples to forget: training run backwards",
        paper='Thudi, Deza, Chandrasekaran and Papernot, "Unrolling SGD: Understanding Factors Influencing Machine '
        'Unlearning", 2022',
        needs=("forget with labels",),
    )

    learning_rate: float = number(1e-4, "the size of a step; it decides everything, so tune it")
    freeze_batch_norm: bool = switch(True, "whether batch-norm layers keep their statistics")

    def run(self, student: nn.Module, request: Request) -> Details:
        """Ascend on the forget samples. See `Unlearner.run`."""
        gone = labelled(request, "forget", class_count(student, request))
        with descent_run(self, student, request) as run:
            data = run.place(gone)
            for _ in run.epochs(self.epochs * run.steps(data)):
                for batch in run.batches(data):
                    loss = cross_entropy(run.logits(batch), batch.labels)
                    run.step(-loss, distance=loss)
        return run.details()
