"""Methods around other methods, for benchmarks: many requests one after the other, and settings that may diverge."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from forsaken.errors import NonFiniteError, NothingForgottenError
from forsaken.models.logits import as_module
from forsaken.references.table import References
from forsaken.unlearning.base import About, Details, Request, Unlearned, Unlearner


def _asked(
    method: Unlearner,
    student: nn.Module,
    request: Request,
    part: np.ndarray[Any, Any],
    references: References | None,
) -> Unlearned[Any]:
    """Hand a part of the request's samples on to another method."""
    return method(
        student,
        request.forget.rows(part),
        request.reference,
        request.retain,
        targets=None if request.targets is None else torch.as_tensor(request.targets)[part],
        references=references,
        training=request.training,
        forward=request.forward,
        seed=request.seed,
    )


@dataclass(frozen=True, kw_only=True)
class InTurn(Unlearner):
    """The same method for one part of the samples after the other: as many requests, from one table."""

    about: ClassVar[About] = About("request after request", "no paper: a benchmark", ("forget",))
    method: Unlearner
    parts: int = 10

    def run(self, student: nn.Module, request: Request) -> Details:
        """Forget part after part; a later part is still in the model while an earlier one is forgotten."""
        steps = evaluations = 0
        table = copy.deepcopy(request.references)  # requests take their rows out of it
        for part in np.array_split(np.arange(len(request.forget)), min(self.parts, len(request.forget))):
            found = _asked(self.method, student, request, part, table)
            if table is not None:
                table.forget(request.forget.rows(part), before=student, after=found.model)
            student.load_state_dict(as_module(found.model).state_dict())
            steps, evaluations = steps + found.iterations, evaluations + found.evaluations
        return Details("iterations", steps, evaluations, ())


@dataclass(frozen=True, kw_only=True)
class OrNothing(Unlearner):
    """A method whose settings are only tried: where it diverges or does nothing, nothing is changed."""

    changes_weights: ClassVar[bool] = False  # it may
    about: ClassVar[About] = About("one try", "no paper: a benchmark", ("forget",))
    method: Unlearner

    def run(self, student: nn.Module, request: Request) -> Details:
        """Run the method; a model that is no longer finite is given back as it was."""
        try:
            found = _asked(self.method, student, request, np.arange(len(request.forget)), request.references)
        except (NonFiniteError, NothingForgottenError):
            return Details("diverged", 0, 0, ())
        student.load_state_dict(as_module(found.model).state_dict())
        return Details(found.stopped, found.iterations, found.evaluations, ())
