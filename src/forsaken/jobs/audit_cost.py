"""The dry run of an audit: what it would train, about how long that takes, and what it reads."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from forsaken.auditing.result import Profile
from forsaken.auditing.words import cost_of
from forsaken.jobs.audit import Plan, evidence_of
from forsaken.jobs.evidence import Evidence
from forsaken.models.train import Training, steps_of, train
from forsaken.types import Progress, silent

_WARM_UP, _TIMED = 5, 20  # steps: the first ones are many times slower than the rest
_SHORT = 5.0  # seconds; what is faster is fitted once more, without what the first fit prepared
_SETS = ("forget", "kept", "retain", "test", "reference", "nonmembers")
NOT_COUNTED: dict[Profile, str] = {
    "quick": "reading, judging and the page",
    "standard": "reading, the white-box oracle, relearning and the page",
    "full": "reading, the measuring of each model, the attacks and the page",
}


def rehearse_audit(plan: Plan, progress: Progress = silent) -> dict[str, Any]:
    """Read everything, train for some steps, and return what an audit would cost. Nothing is written."""
    read = evidence_of(plan, progress)
    each = 0.0 if read.training is None else _seconds(read, progress)
    training = plan.trainings * each
    unlearning = plan.unlearnings * plan.certificate.seconds.unlearning
    return {
        "profile": plan.profile,
        "told": cost_of(
            plan.profile, plan.trainings - plan.references, f"at most {plan.references}" if plan.references else ""
        ),
        "models": plan.models,
        "trainings": plan.trainings,
        "references": plan.references,
        "unlearnings": plan.unlearnings,
        "training_seconds": training,
        "unlearning_seconds": unlearning,
        "seconds": training + unlearning,
        "not_counted": NOT_COUNTED[plan.profile],
        "counts": {name: None if (part := read.sets.get(name)) is None else len(part) for name in _SETS},
        "notes": [*read.sets.notes, *read.warnings],
    }


class Stopwatch:
    """Sees the steps of a training, and notes when each was done."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def before(self, network: nn.Module, rows: Tensor, optimiser: torch.optim.Optimizer) -> None:
        """Nothing: a step ends where the next one begins."""

    def after(self, network: nn.Module, rows: Tensor, optimiser: torch.optim.Optimizer) -> None:  # noqa: ARG002
        """Note the time; a GPU works on after it was told to, and is waited for."""
        if rows.is_cuda:
            torch.cuda.synchronize(rows.device)
        self.times.append(time.perf_counter())

    def seconds_a_step(self) -> float:
        """Return how long a step takes after the first ones."""
        first = min(_WARM_UP, max(0, len(self.times) - 2))
        return (self.times[-1] - self.times[first]) / max(1, len(self.times) - 1 - first)


def _seconds(read: Evidence, progress: Progress) -> float:
    """Return about how long the training of one model takes."""
    data, training = read.sets.kept, read.training
    if data is None or training is None:
        return 0.0
    if not isinstance(training, Training):
        return _fitting(read)
    recipe = training.recipe
    learnt = sum(len(part) for part in (read.sets.forget, data, read.sets.retain) if part is not None)
    steps = recipe.epochs * steps_of(learnt, recipe, training.build())
    watch = Stopwatch()
    train(
        training.build,
        data,
        recipe,
        seed=0,
        device=training.device,
        steps=_WARM_UP + _TIMED,
        observer=watch,
        progress=progress,
        stage="train for some steps",
    )
    return watch.seconds_a_step() * steps


def _fitting(read: Evidence) -> float:
    spent = [_SHORT]
    for _ in range(2):
        start = time.perf_counter()
        read.training(read.sets.kept, 0)  # type: ignore[misc, operator, arg-type]
        spent.append(time.perf_counter() - start)
        if spent[-1] > _SHORT:
            break
    return min(spent[1:])
