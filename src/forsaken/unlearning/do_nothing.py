"""Do nothing: the floor of every table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from forsaken.types import Tick
from forsaken.unlearning.base import About, Details, Request, Unlearner


@dataclass(frozen=True, kw_only=True)
class DoNothing(Unlearner):
    """Return the model as it is. What another method gains, it gains over this one."""

    about: ClassVar[About] = About(
        summary="returns the model as it is: the floor of every table",
        paper="none",
        needs=("forget",),
    )
    changes_weights: ClassVar[bool] = False

    def run(self, student: nn.Module, request: Request) -> Details:  # noqa: ARG002 (nothing is done with it)
        """Leave `student` alone. See `Unlearner.run`."""
        request.progress(Tick("forget", 1, 1))
        return Details("iterations", 0, 0, (), notes=("nothing was changed, as asked",))
