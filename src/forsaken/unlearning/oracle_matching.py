"""Oracle matching: fine-tune to the logits of models that never saw the samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import mse_loss

from forsaken._random import Purpose, generator
from forsaken.data.samples import Samples, join
from forsaken.models.logits import centre, predict_logits
from forsaken.unlearning.base import About, Details, Request
from forsaken.unlearning.descent import Descent, descent_run
from forsaken.unlearning.forsaken.objective import DISTANCES
from forsaken.unlearning.forsaken.targets import OUT_OF_FOLD, find_target
from forsaken.unlearning.settings import number, whole


@dataclass(frozen=True, kw_only=True)
class OracleMatching(Descent):
    """Descend the squared distance to the references' logits on D, and to the model's own on retain samples, by Adam.

    The peer that is given the same references as `Forsaken`. Georgiev, Rinberg, Park, Garg, Ilyas, Madry and Neel,
    "Attribute-to-Delete: Machine Unlearning via Datamodel Matching", 2024, with their numbers of rows: an epoch reads
    `retained` · |D| retain samples (all of them where there are fewer) and D `repeated` times, in one random order.
    There the oracle answers the retain samples too. A table of references has no model that lacks D and nothing else,
    so that here the model's own logits are kept. Logits are compared without their mean over the classes, on which no
    posterior depends. `momentum` is Adam's β1; the other settings are those of `Descent`.

    Parameters
    ----------
    retained, repeated : int
        Retain samples of an epoch for each forgotten one, and how often an epoch reads D.
    """

    about: ClassVar[About] = About(
        summary="fine-tunes to the references' logits on the samples to forget, and to its own on retain data",
        paper="Georgiev, Rinberg, Park, Garg, Ilyas, Madry and Neel, "
        '"Attribute-to-Delete: Machine Unlearning via Datamodel Matching", 2024',
        needs=("forget", "retain", "references"),
    )

    learning_rate: float = number(1e-3, "the size of a step of Adam; it decides everything, so tune it")
    epochs: int = whole(8, "passes over the data; published: 4 to 13", least=1)
    momentum: float = number(0.9, "of the optimiser: Adam's β1", most=0.9999)
    weight_decay: float = number(0.0, "of the optimiser")
    retained: int = whole(20, "retain samples of an epoch for each forgotten one", least=1)
    repeated: int = whole(5, "how often an epoch reads the samples to forget", least=1)

    def optimiser(self, weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return Adam. See `Descent.optimiser`."""
        return torch.optim.Adam(
            weights, lr=self.learning_rate, betas=(self.momentum, 0.999), weight_decay=self.weight_decay
        )

    def run(self, student: nn.Module, request: Request) -> Details:
        """Match the references. See `Unlearner.run`."""
        kept = request.need("retain")
        order = generator(request.seed, Purpose.MATCHED_ROWS).permutation(len(kept))
        kept = kept.rows(sorted(order[: self.retained * len(request.forget)]))
        forget = predict_logits(student, request.forget, forward=request.forward)
        target = find_target(OUT_OF_FOLD, DISTANCES["logits"], request, forget, None)
        own = centre(predict_logits(student, kept, forward=request.forward))
        rows = join([Samples(part.inputs) for part in (kept, *[request.forget] * self.repeated)])
        taught = torch.cat([own, *[target.logits.to(own.dtype)] * self.repeated])
        with descent_run(self, student, request) as run:
            data = run.place(rows, taught)
            for _ in run.epochs(self.epochs * run.steps(data)):
                for batch in run.batches(data):
                    distance = mse_loss(centre(run.logits(batch)), batch.taught)
                    run.step(distance, distance=distance)
        passes = self.epochs * len(rows) + len(kept) + len(forget)
        return run.details({"target": target.name, "retain_used": len(kept), "sample_passes": passes}, passes=1)
