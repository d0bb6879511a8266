"""Relearn time: how fast a model learns the forgotten samples again. What has only been hidden comes back quickly."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import nn

from forsaken._random import Purpose, generator, torch_seed
from forsaken.auditing.case import Case, labels_of
from forsaken.auditing.result import Number
from forsaken.data.nest import map_nest
from forsaken.data.samples import Samples
from forsaken.models.logits import Forward, LogitModel, evaluation
from forsaken.models.train import optimiser_of
from forsaken.recipe import Recipe
from forsaken.types import Progress, Tick, silent

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
        Where to begin; it is left as it is.
    forget : Samples
        The samples, under the labels that were learnt.
    goal : float
        The loss of the model before; 5 % above it counts.
    recipe : Recipe
        Whose optimiser, rate and batch size are used; the rate is constant.
    most, seed
        When to give up; what decides the order.
    """
    student = LogitModel(copy.deepcopy(model), forward)
    student.eval()  # neither dropout nor batch statistics: the question is about the weights
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


def relearn_time(case: Case, progress: Progress = silent) -> list[Number]:
    """Return the steps that the model that forgot takes, beside those of retrained models."""
    forget, recipe = case.sets.need("forget", labels=True), case.network.recipe
    goal = mean_loss(case.before, forget, case.forward)
    models = [case.after, *case.retrained]
    # One batch holds them all: every order is the same fine-tuning.
    repeats = 1 if recipe.batch_size >= len(forget) else _REPEATS
    total = len(models) * repeats
    steps: list[list[int]] = []
    for model in models:
        own = []
        for repeat in range(repeats):
            progress(Tick(STAGE, len(steps) * repeats + repeat, total))
            own.append(relearn_steps(model, forget, goal, recipe, seed=case.seed + repeat, forward=case.forward))
        steps.append(own)
    progress(Tick(STAGE, total, total))
    return [_number(steps[0], [step for own in steps[1:] for step in own], goal)]


def _number(ours: list[int], usual: list[int], goal: float) -> Number:
    notes = [f"to a loss of {goal:.4g}, at most {MOST} steps"]
    if len(ours) > 1:
        notes.append(f"{len(ours)} orders of the samples; the interval is their range")
    else:
        notes.append("one batch holds all samples, so that their order decides nothing")
    gave_up = {"": _gave_up(ours), " of the retrained models": _gave_up(usual)}
    unknown = all(step >= MOST for step in (*ours, *usual))
    for whose, (late, count) in gave_up.items():
        if late:
            notes.append(f"{late} of {count} fine-tunings{whose} never got there")
    if unknown:
        notes.append("so nothing is known but that it takes longer")
    elif any(late for late, _ in gave_up.values()):
        notes.append(f"they count as {MOST}, so that the mean is at least what is shown")
    return Number(
        "relearn_steps",
        "steps to relearn the forgotten samples",
        None if unknown else float(np.mean(ours)),
        "retrained",
        n=len(ours),
        unit="fine-tunings",
        interval=None if unknown or len(ours) == 1 else (float(min(ours)), float(max(ours))),
        retrained=None if unknown or not usual else float(np.mean(usual)),
        before=0.0,
        note="; ".join(notes),
    )


def _gave_up(steps: list[int]) -> tuple[int, int]:
    return sum(step >= MOST for step in steps), len(steps)


def _loss(adapter: LogitModel, inputs: Any, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return float(nn.functional.cross_entropy(adapter(inputs), labels))


def _placed(samples: Samples, adapter: LogitModel) -> torch.Tensor:
    return torch.from_numpy(labels_of(samples)).to(adapter.device)


def _rows(inputs: Any, rows: torch.Tensor) -> Any:
    return map_nest(lambda leaf: leaf[rows], inputs)
