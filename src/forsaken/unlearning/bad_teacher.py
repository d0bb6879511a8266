"""Bad teacher: an ignorant teacher for what is forgotten, the old model for the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from forsaken._random import Purpose, generator
from forsaken.errors import ModelError
from forsaken.models.logits import predict_logits
from forsaken.unlearning.base import About, Details, Request
from forsaken.unlearning.descent import Descent, descent_run, divergence, fresh
from forsaken.unlearning.settings import number


@dataclass(frozen=True, kw_only=True)
class BadTeacher(Descent):
    """Follow a network with random weights on D, and the model as it was on a part of the retain data.

    Descends KL(random ‖ student) on D plus KL(original ‖ student) on retain data, a batch of each in every step; no
    labels are needed. Chundawat, Tarun, Mandal and Kankanhalli, "Can Bad Teaching Induce Forgetting? Unlearning in
    Deep Networks Using an Incompetent Teacher", 2023. The random network has the model's architecture; its weights are
    drawn by ``training=`` of the call where it is given, or by the layers' own `reset_parameters`. The other settings
    are those of `Descent`.

    Parameters
    ----------
    share : float
        The share of the retain samples that is used, at least one.
    """

    about: ClassVar[About] = About(
        summary="follows a random network on the samples to forget, and the old model on retain data",
        paper='Chundawat, Tarun, Mandal and Kankanhalli, "Can Bad Teaching Induce Forgetting? Unlearning in Deep '
        'Networks Using an Incompetent Teacher", 2023',
        needs=("forget", "retain"),
        uses=("training",),
    )

    share: float = number(1.0, "the share of the retain samples that is used, at least one", most=1.0)

    def run(self, student: nn.Module, request: Request) -> Details:
        """Teach `student` ignorance. See `Unlearner.run`."""
        kept = request.need("retain")
        order = generator(request.seed, Purpose.TEACHER_ROWS).permutation(len(kept))
        kept = kept.rows(sorted(order[: max(1, math.ceil(self.share * len(kept)))]))
        good = predict_logits(student, kept, forward=request.forward)
        bad = self._ignorance(student, request)
        if bad.shape[1] != good.shape[1]:
            raise ModelError(
                f"training builds a network of {bad.shape[1]} classes, but the model has {good.shape[1]}; give the "
                "training that the model came from"
            )
        with descent_run(self, student, request) as run:
            retain, forget = run.place(kept, good), run.place(request.forget, bad)
            for _ in run.epochs(self.epochs * run.steps(retain, forget)):
                for keep, lose in run.pairs(retain, forget):
                    anchor = divergence(keep.taught, run.logits(keep))
                    distance = divergence(lose.taught, run.logits(lose))
                    run.step(distance + anchor, distance=distance, anchor=anchor)
        return run.details({"retain_used": len(kept)}, passes=1)

    def _ignorance(self, student: nn.Module, request: Request) -> Tensor:
        teacher, old = fresh(student, request.training, request.seed)
        if old:
            raise ModelError(
                f"{len(old)} parameters (first: {min(old)}) have no reset_parameters that draws them anew; "
                "give training=Training(build, recipe), so that a random teacher can be built"
            )
        return predict_logits(teacher, request.forget, forward=request.forward)
