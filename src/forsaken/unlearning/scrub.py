"""SCRUB: a student that disobeys its teacher on D, and obeys on the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from forsaken._checks import Problems
from forsaken.models.logits import evaluation, predict_logits
from forsaken.unlearning.base import About, Details, Request, class_count, labelled
from forsaken.unlearning.descent import Descent, descent_run, divergence
from forsaken.unlearning.settings import number, whole


@dataclass(frozen=True, kw_only=True)
class Scrub(Descent):
    """Ascend KL(teacher ‖ student) on D, then descend CE + KL on retain data; later epochs only descend.

    The teacher is the model as it was, in evaluation mode; its answers are written down before the first step, so it
    cannot move. The student starts as its copy, and the optimiser holds the student's weights. Kurmanji, Triantafillou,
    Hayes and Triantafillou, "Towards Unbounded Machine Unlearning", 2023. The other settings are those of `Descent`.

    KL is at its minimum where the student starts, so its gradient is zero there: the first steps away come from
    dropout, from batch-norm or from the passes on retain data, so a network with neither needs a high rate.

    Parameters
    ----------
    ascent_epochs : int
        In how many of the epochs, the first ones, the student moves away from the teacher on D.
    alpha, gamma : float
        The weights of KL and of the cross-entropy on the retain data.
    """

    about: ClassVar[About] = About(
        summary="a student leaves its teacher, the old model, on the samples to forget and follows it on retain data",
        paper='Kurmanji, Triantafillou, Hayes and Triantafillou, "Towards Unbounded Machine Unlearning", 2023',
        needs=("forget", "retain with labels"),
    )

    epochs: int = whole(5, "passes over the data", least=1)
    ascent_epochs: int = whole(3, "how many of the epochs, the first ones, move away on D", least=1)
    alpha: float = number(1.0, "the weight of KL on the retain data")
    gamma: float = number(1.0, "the weight of the cross-entropy on the retain data")

    def problems(self, found: Problems) -> None:
        """Note ascent beyond the last epoch."""
        counts = self.ascent_epochs, self.epochs
        if all(isinstance(each, int) for each in counts) and self.ascent_epochs > self.epochs:
            found.add(f"ascent_epochs is {self.ascent_epochs}, expected at most epochs ({self.epochs})")

    def run(self, student: nn.Module, request: Request) -> Details:
        """Drive `student` away and back. See `Unlearner.run`."""
        kept = labelled(request, "retain", class_count(student, request))
        on_retain = predict_logits(student, kept, forward=request.forward)
        on_forget = predict_logits(student, request.forget, forward=request.forward)
        with descent_run(self, student, request) as run:
            retain, forget = run.place(kept, on_retain), run.place(request.forget, on_forget)
            for epoch in run.epochs(self.epochs * run.steps(retain) + self.ascent_epochs * run.steps(forget)):
                if epoch < self.ascent_epochs:
                    for batch in run.batches(forget):
                        away = divergence(batch.taught, run.logits(batch))
                        run.step(-away, distance=away)
                for batch in run.batches(retain):
                    logits = run.logits(batch)
                    near, loss = divergence(batch.taught, logits), cross_entropy(logits, batch.labels)
                    run.step(self.gamma * loss + self.alpha * near, anchor=loss, penalty=near)
                if epoch >= self.ascent_epochs:  # the curve shows whether what was forgotten comes back
                    with evaluation(student), torch.no_grad():
                        for batch in run.in_order(forget):
                            run.note(distance=divergence(batch.taught, run.adapter(batch.inputs)))
        return run.details({"ascent_epochs": self.ascent_epochs}, passes=self.ascent_epochs + 1)
