"""SMU: write down what the samples did to the weights while the model trains, and subtract it later."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from forsaken.data.nest import as_kinds, leaves, row_keys, shape_of
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError, NonFiniteError
from forsaken.models.linear import LinearModel
from forsaken.models.logits import LogitModel, predict_logits
from forsaken.models.train import Training, train, usable_device
from forsaken.types import Progress, silent
from forsaken.unlearning.base import About, Details
from forsaken.unlearning.ledger import Ledger, check_finite, labels_of
from forsaken.unlearning.recorder import Record, Recorder
from forsaken.unlearning.request import Request
from forsaken.unlearning.settings import number
from forsaken.unlearning.upfront import Cost, Readied, UpfrontUnlearner

_NAME = "smu_record"


@dataclass(frozen=True, kw_only=True)
class Smu(UpfrontUnlearner):
    """Subtract the recorded updates of the forgotten samples in one more epoch over the others.

    Cao and Yang, "Towards Making Systems Forget with Machine Unlearning" (2015), keep sums that a model is made of, so
    that a sample's terms can be taken out again. Liu et al. apply it to networks: while the network trains, the share
    of every update that came from the samples' gradients is summed up; one more epoch over the remaining data then
    subtracts it, an equal part in each step.

    Parameters
    ----------
    learning_rate : float, optional
        Of that epoch, the same in every step; by default the recipe's highest.

    Notes
    -----
    The samples must be known *before* the training: `prepare` takes them as ``watched=``. That is its weakness. One sum
    is kept for all of them, since a sum a sample would take the size of the model for each, so a request must name all
    watched samples at once. What the sum leaves out: the later updates by other samples were computed at weights that
    the watched ones had moved, and the running statistics of batch-norm layers have seen them. Weight decay shrinks the
    record as it shrinks the weights.

    The model that `prepare` returns is the network itself, with the record as its attribute; a copy by `copy.deepcopy`
    keeps it, a state dict does not. ``Smu()(model, forget, retain=remaining)`` needs nothing else.
    """

    about: ClassVar[About] = About(
        summary="subtract the samples' share of every training update in one more epoch over the others",
        paper='Cao and Yang, "Towards Making Systems Forget with Machine Unlearning", 2015, as Liu et al. apply it',
        needs=("forget", "retain (all of the remaining training data, with labels)"),
        upfront="it must watch the training, and be told beforehand which samples may have to be forgotten; it keeps "
        "one vector of the model's size",
    )

    learning_rate: float | None = number(None, "of the one epoch that subtracts; the recipe's by default")

    def prepare(
        self,
        training: Training,
        data: Samples,
        *,
        seed: int,
        folder: Path | None = None,  # noqa: ARG002 (the record stays with the model)
        watched: Tensor | None = None,
        progress: Progress = silent,
    ) -> Readied:
        """Train as `training.run` does, bit for bit, and record the share of the `watched` rows.

        See `UpfrontUnlearner.prepare`; `watched` is needed, and no folder is.
        """
        labels = labels_of(data, "data")
        mine = _mask(watched, len(data))
        tagged = Samples((data.inputs, torch.arange(len(data))), labels)
        recorder: Recorder | None = None

        def build() -> nn.Module:
            nonlocal recorder
            recorder = Recorder(training.build(), mine, training.recipe.clip)
            return recorder

        class _Late:
            """The recorder, which is there only once the network is built."""

            def before(self, network: nn.Module, rows: Tensor, optimiser: torch.optim.Optimizer) -> None:
                network.before(network, rows, optimiser)  # type: ignore[operator]

            def after(self, network: nn.Module, rows: Tensor, optimiser: torch.optim.Optimizer) -> None:
                network.after(network, rows, optimiser)  # type: ignore[operator]

        raise NotImplementedError
