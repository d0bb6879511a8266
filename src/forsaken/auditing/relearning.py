"""Relearn time: how many steps of fine-tuning a model needs to learn the forgotten samples again.

A model that only hides the samples relearns them faster than a model that was retrained without them.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import nn

from forsaken._random import Purpose, generator, torch_seed
from forsaken.auditing.inputs import AuditInputs, labels_of
from forsaken.auditing.result import Number
from forsaken.data.nest import map_nest
from forsaken.data.samples import Samples
from forsaken.models.logits import Forward, LogitModel, evaluation
from forsaken.models.train import optimiser_of
from forsaken.recipe import Recipe
from forsaken.types import Progress, Tick, silent
from forsaken.verdict import LEAST_RECORDS

MOST = 300  # steps, after which a model counts as not relearning
_SLACK = 1.05  # a loss this near to the goal has reached it
_REPEATS = 3
STAGE = "relearn"


def relearn_steps(
    model: nn.Module,
    forget: Samples,
    goal: float,
    recipe: Recipe,
    *,
    most: int = MOST,
    seed: int = 0,
    forward: Forward | None = None,
) -> int:
    """Return how many steps of fine-tuning on `forget` bring its mean loss down to `goal`; `most` if none do.

    Parameters
    ----------
    model : Module
        The model to begin with; it is not changed.
    forget : Samples
        The samples, under the labels that were learnt.
    goal : float
        The loss of the model before; 5 % above it counts.
    recipe : Recipe
        Gives the optimiser, the batch size and the learning rate, which stays constant.
    most : int
        The number of steps after which to give up.
    seed : int
        Decides the order of the samples.
    """
    student = LogitModel(copy.deepcopy(model), forward)
    student.eval()  # no dropout and no batch statistics: the question is about the weights
    for weight in student.parameters():
        weight.requires_grad_(weight.is_floating_point())
    optimiser = optimiser_of([weight for weight in student.parameters() if weight.requires_grad], recipe)
    inputs, labels = student.place(forget.inputs), _placed(forget, student)
    draw = generator(seed, Purpose.RELEARNING_ORDER)
    size, step = min(recipe.batch_size, len(forget)), 0
    with torch_seed(seed):
        while step < most:
            for rows in np.array_split(draw.permutation(len(forget)), -(-len(forget) // size)):
                if _loss(student, inputs, labels) <= goal * _SLACK or step >= most:
                    return step
                at = torch.as_tensor(rows, device=student.device)
                loss = nn.functional.cross_entropy(student(_rows(inputs, at)), labels[at])
                optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                step += 1
    return step


def mean_loss(model: nn.Module, samples: Samples, forward: Forward | None = None) -> float:
    """Return the mean cross-entropy of a model on labelled samples."""
    adapter = LogitModel(model, forward)
    with evaluation(adapter):
        return _loss(adapter, adapter.place(samples.inputs), _placed(samples, adapter))


def relearn_time(inputs: AuditInputs, recipe: Recipe, progress: Progress = silent) -> Number:
    """Return the mean number of steps that the model after takes, beside those of retrained models."""
    forget = inputs.sets.need("forget", labels=True)
    goal = mean_loss(inputs.before, forget, inputs.forward)
    models = [inputs.after, *inputs.retrained]
    # Where one batch holds all samples, their order changes nothing.
    repeats = 1 if recipe.batch_size >= len(forget) else _REPEATS
    steps: list[int] = []
    for model in models:
        for repeat in range(repeats):
            progress(Tick(STAGE, len(steps), len(models) * repeats))
            steps.append(relearn_steps(model, forget, goal, recipe, seed=inputs.seed + repeat, forward=inputs.forward))
    progress(Tick(STAGE, len(steps), len(steps)))
    # The mean loss over a few records could identify one of them.
    told = f"to a loss of {goal:.3g}" if len(forget) >= LEAST_RECORDS else "to the loss of the model before"
    return _number(steps[:repeats], steps[repeats:], told)


def _number(ours: list[int], usual: list[int], goal: str) -> Number:
    notes = [f"{goal}, at most {MOST} steps"]
    if len(ours) > 1:
        notes.append(f"{len(ours)} orders of the samples; the interval is their range")
    else:
        notes.append("one batch holds all samples, so their order decides nothing")
    for whose, steps in (("", ours), (" of the retrained models", usual)):
        late = sum(step >= MOST for step in steps)
        if late:
            notes.append(f"{late} of {len(steps)} fine-tunings{whose} never got there")
    unknown = all(step >= MOST for step in (*ours, *usual))
    if unknown:
        notes.append("so nothing is known but that it takes longer")
    elif any(step >= MOST for step in (*ours, *usual)):
        notes.append(f"they count as {MOST}, so the mean is at least what is shown")
    return Number(
        name="relearn_steps",
        label="steps to relearn the forgotten samples",
        value=None if unknown else float(np.mean(ours)),
        direction="retrained",
        n=len(ours),
        unit="fine-tunings",
        interval=None if unknown or len(ours) == 1 else (float(min(ours)), float(max(ours))),
        retrained=None if unknown or not usual else float(np.mean(usual)),
        before=0.0,
        note="; ".join(notes),
    )


def _loss(adapter: LogitModel, inputs: Any, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return float(nn.functional.cross_entropy(adapter(inputs), labels))


def _placed(samples: Samples, adapter: LogitModel) -> torch.Tensor:
    return torch.from_numpy(labels_of(samples)).to(adapter.device)


def _rows(inputs: Any, rows: torch.Tensor) -> Any:
    return map_nest(lambda leaf: leaf[rows], inputs)
