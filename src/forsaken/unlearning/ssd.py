"""SSD: selective synaptic dampening, in one step and without training."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from forsaken.data.samples import Samples
from forsaken.errors import InputError
from forsaken.models.logits import LogitModel, predict_logits
from forsaken.result import Step
from forsaken.types import Tick
from forsaken.unlearning.base import About, Details, Request, Unlearner, class_count, labelled
from forsaken.unlearning.forsaken.importance import importance
from forsaken.unlearning.forsaken.parameters import ParameterSpace, prepared
from forsaken.unlearning.settings import number, whole


@dataclass(frozen=True, kw_only=True)
class Ssd(Unlearner):
    """Dampen the weights that matter far more to D than to all data.

    Where I_D > α · I_all, θ becomes min(λ · I_all / I_D, 1) · θ. I is the mean over samples of the squared gradient of
    the cross-entropy, taken sample by sample: a batch's gradient would depend on the batch size. Foster, Schoepf and
    Brintrup, "Fast Machine Unlearning Without Retraining Through Selective Synaptic Dampening", 2024.

    Parameters
    ----------
    alpha : float
        α, how many times more a weight must matter to D than to all data to be dampened.
    damping : float
        λ; smaller dampens more.
    training_samples : int, optional
        How many samples the model was trained on, D among them, where the retain samples are only a part of the rest.
        I_all is then the mean over so many, with the retain samples standing for all others. By default the retain and
        the forget samples are taken for all data; where D is more than 1/α of them nothing can be selected.
    """

    about: ClassVar[About] = About(
        summary="dampens the weights that matter far more to the samples to forget than to all data; no training",
        paper='Foster, Schoepf and Brintrup, "Fast Machine Unlearning Without Retraining Through Selective Synaptic '
        'Dampening", 2024',
        needs=("forget with labels", "retain with labels"),
    )

    alpha: float = number(10.0, "α, how many times more a weight must matter to D to be dampened")
    damping: float = number(1.0, "λ; smaller dampens more")
    training_samples: int | None = whole(None, "how many samples the model was trained on, D among them", least=2)

    def run(self, student: nn.Module, request: Request) -> Details:
        """Dampen weights of `student`. See `Unlearner.run`."""
        start = time.perf_counter()
        classes = class_count(student, request)
        kept, gone = labelled(request, "retain", classes), labelled(request, "forget", classes)
        everything = self.training_samples or len(kept) + len(gone)
        if everything < len(kept) + len(gone):
            raise InputError(
                f"training_samples is {everything}, but there are {len(kept)} retain and {len(gone)} forget samples; "
                "give how many the model was trained on in all"
            )
        space = ParameterSpace(LogitModel(student, request.forward))
        with prepared(student):
            on_forget = importance(space, gone, "loss", request.progress, of=Tensor.square)
            on_retain = importance(space, kept, "loss", request.progress, of=Tensor.square)
        share = len(gone) / everything
        on_all = share * on_forget + (1 - share) * on_retain
        chosen, factor = dampening(on_forget, on_all, self.alpha, self.damping)
        with torch.no_grad():
            for name, weight in student.named_parameters():
                if name in space.slices:
                    cut = space.slices[name]
                    # where, not a product by one: weights that are not chosen stay bit for bit
                    new = weight * factor[cut].view(weight.shape).to(weight.dtype)
                    weight.copy_(torch.where(chosen[cut].view(weight.shape), new, weight))
        request.progress(Tick("forget", 1, 1))
        losses = [self._loss(student, samples, request) for samples in (gone, kept)]
        some = on_forget > 0
        ratio = float((on_forget[some] / on_all[some]).max()) if bool(some.any()) else None
        selected = float(chosen.double().mean())
        step = Step(1, losses[0], losses[0], losses[1], 0.0, selected, self.damping, time.perf_counter() - start)
        facts = {"selected": int(chosen.sum()), "largest_ratio": ratio, "forget_share": share}
        return Details("iterations", 1, 2, (step,), None, facts, self._notes(kept, gone))

    def _loss(self, student: nn.Module, samples: Samples, request: Request) -> float:
        logits = predict_logits(student, samples, forward=request.forward)
        return float(cross_entropy(logits.double(), samples.labels))  # type: ignore[arg-type]

    def _notes(self, kept: Samples, gone: Samples) -> tuple[str, ...]:
        if self.training_samples is None:
            return (
                f"the importance to all data is that to the {len(kept)} retain and {len(gone)} forget samples; if they "
                "are not all that the model was trained on, give training_samples",
            )
        return (
            f"the {len(kept)} retain samples stand for the {self.training_samples - len(gone)} training samples that "
            "are not to be forgotten",
        )

    def hint(self, details: Details) -> str:
        """Say how α stands to the largest ratio of importances."""
        ratio, share = details.facts["largest_ratio"], details.facts["forget_share"]
        if ratio is None:
            return "the forget samples have no gradient at all, so no weight matters to them; use another method"
        if ratio > self.alpha:
            return f"damping is {self.damping:g}, which leaves the chosen weights as they are; lower it"
        most = f"no weight can pass 1 / (D's share of all data) = {1 / share:.3g}"
        return (
            f"alpha is {self.alpha:g}, and the largest I_D / I_all is {ratio:.3g} ({most}); lower alpha or give more "
            + ("retain samples" if self.training_samples else "retain samples or training_samples")
        )


def dampening(on_forget: Tensor, on_all: Tensor, alpha: float, damping: float) -> tuple[Tensor, Tensor]:
    """Return which weights are chosen, and the factor of each: min(λ · I_all / I_D, 1), 1 where it is not chosen.

    >>> dampening(torch.tensor([8.0, 1.0, 0.0]), torch.tensor([2.0, 1.0, 0.0]), alpha=3.0, damping=1.0)
    (tensor([ True, False, False]), tensor([0.2500, 1.0000, 1.0000]))
    """
    chosen = on_forget > alpha * on_all
    # Chosen weights have I_D > 0; the others' quotient, perhaps 0 / 0, is never read.
    scaled = (damping * on_all / torch.where(chosen, on_forget, 1.0)).clamp(max=1.0)
    return chosen, torch.where(chosen, scaled, 1.0)
