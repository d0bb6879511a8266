"""L1-sparse: fine-tuning that pulls the weights to zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from forsaken.unlearning.base import About, Details, Request, class_count, labelled
from forsaken.unlearning.descent import Descent, descent_run
from forsaken.unlearning.settings import number, whole


@dataclass(frozen=True, kw_only=True)
class L1Sparse(Descent):
    """Fine-tune on retain data with γ_t · ‖θ‖₁ added, γ_t falling linearly from γ to 0 over the epochs.

    Weights that only D needed shrink, since nothing on the retain data pulls them back. Jia, Liu, Ram, Yao, Liu, Liu,
    Sharma and Liu, "Model Sparsity Can Simplify Machine Unlearning", 2023. Epoch e of E (from 0) has γ · (1 − e / E),
    so that 0 is reached when the last one ends. The other settings are those of `Descent`.

    Parameters
    ----------
    gamma : float
        γ, the pull to zero on every trainable weight in the first epoch.
    """

    about: ClassVar[About] = About(
        summary="fine-tunes on retain data with an L1 pull on all weights that fades over the epochs",
        paper='Jia et al., "Model Sparsity Can Simplify Machine Unlearning", 2023',
        needs=("forget", "retain with labels"),
    )

    epochs: int = whole(10, "passes over the retain data", least=1)
    gamma: float = number(1e-4, "γ, the pull to zero in the first epoch")

    def run(self, student: nn.Module, request: Request) -> Details:
        """Train `student` on the retain samples, sparsely. See `Unlearner.run`."""
        kept = labelled(request, "retain", class_count(student, request))
        with descent_run(self, student, request) as run:
            data = run.place(kept)
            for epoch in run.epochs(self.epochs * run.steps(data)):
                gamma = self.gamma * (1 - epoch / self.epochs)
                for batch in run.batches(data):
                    loss = cross_entropy(run.logits(batch), batch.labels)
                    size = gamma * torch.stack([weight.abs().sum() for weight in run.weights.values()]).sum()
                    run.step(loss + size, anchor=loss, penalty=size)
        return run.details()
