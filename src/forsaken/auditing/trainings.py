"""Models like the audited one, trained for an audit: many networks at a time, or one by one by the user's function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from forsaken.auditing.case import Case
from forsaken.data.samples import Samples
from forsaken.models.ensemble import train_many
from forsaken.models.logits import LogitModel
from forsaken.models.train import Training
from forsaken.types import Progress, Tick


def trained(
    case: Case,
    data: Samples,
    rows: Sequence[Any],
    seeds: Sequence[int],
    *,
    device: str | torch.device,
    progress: Progress,
    stage: str,
    at_once: int | None = None,
    steps: int | None = None,
) -> Iterator[Any]:
    """Return model after model: number i learns the samples at `rows[i]` by `seeds[i]`.

    `steps` stands in for the recipe's epochs; a function trains as it sees fit.
    """
    training = case.trained
    if not isinstance(training, Training):
        for at, (part, seed) in enumerate(zip(rows, seeds, strict=True)):
            progress(Tick(stage, at, len(seeds)))
            yield training(data.rows(part), seed)
        progress(Tick(stage, len(seeds), len(seeds)))
        return
    for chunk in train_many(
        case.build(training),
        data,
        training.recipe,
        rows=rows,
        seeds=seeds,
        device=device,
        at_once=at_once,
        steps=steps,
        progress=progress,
        stage=stage,
    ):
        yield from (model.model if isinstance(model, LogitModel) else model for model in chunk)
