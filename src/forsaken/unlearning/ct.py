"""CT: convolution transpose. Every kernel is turned over its diagonal, and the network repaired."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from forsaken.errors import ModelError
from forsaken.unlearning.base import About, Details, Request, class_count, labelled
from forsaken.unlearning.descent import Descent, descent_run, kernels
from forsaken.unlearning.settings import whole


@dataclass(frozen=True, kw_only=True)
class Ct(Descent):
    """Transpose the spatial axes of every square convolution kernel, then fine-tune on retain data.

    The damage is the same whatever is to be forgotten; the repair knows only retain data. An entry of the NeurIPS 2023
    unlearning challenge, as Cadet, Borovykh, Malekzadeh, Ahmadi-Abhari and Haddadi describe it in "Deep Unlearn:
    Benchmarking Machine Unlearning", 2024. Kernels of width 1 or of unequal sides stay as they are. The other settings
    are those of `Descent`.
    """

    about: ClassVar[About] = About(
        summary="transposes every square convolution kernel, and repairs on retain data",
        paper='NeurIPS 2023 unlearning challenge; Cadet et al., "Deep Unlearn: Benchmarking Machine Unlearning", 2024',
        needs=("forget", "retain with labels", "a network with square convolutions"),
    )

    epochs: int = whole(3, "passes over the retain data", least=1)

    def run(self, student: nn.Module, request: Request) -> Details:
        """Transpose kernels of `student` and repair it. See `Unlearner.run`."""
        named = kernels(student)
        square = [weight for weight in named.values() if weight.dim() > 3 and weight.shape[-1] == weight.shape[-2] > 1]
        if not square:
            shapes = ", ".join(sorted({str(tuple(weight.shape[2:])) for weight in named.values()}))
            raise ModelError(
                f"none of the model's {len(named)} convolutions has a square kernel of two or more ({shapes}), so "
                "there is nothing to transpose; use another method"
            )
        kept = labelled(request, "retain", class_count(student, request))
        with torch.no_grad():
            for weight in square:
                weight.copy_(weight.transpose(-1, -2).clone())
        with descent_run(self, student, request) as run:
            data = run.place(kept)
            for _ in run.epochs(self.epochs * run.steps(data)):
                for batch in run.batches(data):
                    loss = cross_entropy(run.logits(batch), batch.labels)
                    run.step(loss, anchor=loss)
        return run.details({"transposed": len(square), "skipped": len(named) - len(square)})
