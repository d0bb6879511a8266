"""One unlearning request: what is to be forgotten and what may be used for it. Checked once, here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, SequentialSampler

from forsaken._random import checked_seed
from forsaken.data.samples import Samples
from forsaken.errors import InputError
from forsaken.models.logits import Forward
from forsaken.models.train import Training
from forsaken.references.curvature import Curvature
from forsaken.references.table import References
from forsaken.sets import Sets
from forsaken.types import Progress, silent


@dataclass(frozen=True, kw_only=True, eq=False)
class Request(Sets):
    """The samples of one request (see `Sets`), and everything else that a method may use.

    Attributes
    ----------
    targets : object
        Logits for D, sample by sample, or None.
    references : References or None
        What models that never saw a sample say about it.
    curvature : Curvature or None
        By how much each direction of weights changes the answers on the training data; the references' by default.
    training : Training or None
        How the model came about, for methods that train again.
    forward : callable or None
        How to call the model.
    seed : int
        Decides everything that is drawn.
    progress : callable
        Told about each step.
    """

    targets: object = None
    references: References | None = None
    curvature: Curvature | None = None
    training: Training | None = None
    forward: Forward | None = None
    seed: int = 0
    progress: Progress = silent

    @classmethod
    def read(
        cls,
        forget: object,
        reference: object = None,
        retain: object = None,
        *,
        targets: object = None,
        references: References | None = None,
        curvature: Curvature | None = None,
        training: Training | None = None,
        forward: Forward | None = None,
        seed: int = 0,
        progress: Progress = silent,
        classes: np.ndarray[Any, Any] | None = None,
        reference_labels: bool = True,
    ) -> Request:
        """Read what a user hands over; see `Samples.read` for what it may be.

        References may be unrelated public data with labels of their own, so theirs are read only if `reference_labels`.
        """
        start = checked_seed(seed)
        if references is not None and not isinstance(references, References):
            raise InputError(
                f"references is of type {type(references).__name__}, expected a table that forsaken.References.fit "
                "made; samples that the model never saw go into reference="
            )
        if curvature is not None and not isinstance(curvature, Curvature):
            raise InputError(
                f"curvature is of type {type(curvature).__name__}, expected what forsaken.Curvature.fit made of the "
                "model and its training data"
            )
        if targets is not None and isinstance(forget, DataLoader) and not isinstance(forget.sampler, SequentialSampler):
            raise InputError(
                "targets follow the order of the forget samples, but their loader shuffles; give a loader with "
                "shuffle=False, or a Dataset"
            )

        def samples(data: object, name: str) -> Samples:
            used = reference_labels or name != "reference"
            return Samples.read(data, name, labels=used, classes=classes, seed=start)

        return cls(
            forget=samples(forget, "forget"),
            reference=None if reference is None else samples(reference, "reference"),
            retain=None if retain is None else samples(retain, "retain"),
            targets=targets,
            references=references,
            curvature=references.curvature if curvature is None and references is not None else curvature,
            training=training,
            forward=forward,
            seed=start,
            progress=progress,
        )
