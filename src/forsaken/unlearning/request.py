"""One unlearning request: what is to be forgotten and what may be used for it. Checked once, here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, SequentialSampler

from forsaken._random import checked_seed
from forsaken.data.nest import as_kinds, common_kind, leaves, row_keys, shape_of
from forsaken.data.samples import Samples
from forsaken.errors import InputError, OverlapError
from forsaken.models.logits import Forward
from forsaken.models.train import Training
from forsaken.references.curvature import Curvature
from forsaken.references.table import References
from forsaken.types import Progress, silent


@dataclass(frozen=True, slots=True)
class Request:
    """The data of one request, read and checked.

    Attributes
    ----------
    forget : Samples
        D, what is to be forgotten.
    reference : Samples or None
        X_n, samples that the model was never trained on.
    retain : Samples or None
        D_0, a very small part of the training data that must not be forgotten.
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

    forget: Samples
    reference: Samples | None = None
    retain: Samples | None = None
    targets: object = None
    references: References | None = None
    curvature: Curvature | None = None
    training: Training | None = None
    forward: Forward | None = None
    seed: int = 0
    progress: Progress = silent

    def __post_init__(self) -> None:
        for name, other in (("reference", self.reference), ("retain", self.retain)):
            if other is not None:
                _check_alike(self.forget, other, name)
                _check_apart(self.forget, other, name)

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


def _check_alike(forget: Samples, other: Samples, name: str) -> None:
    ours, theirs = shape_of(forget.inputs), shape_of(other.inputs)
    if ours != theirs:
        raise InputError(
            f"a forget sample has shape {ours} but a {name} sample has {theirs}; they must be inputs of the same model"
        )
    for a, b in zip(leaves(forget.inputs), leaves(other.inputs), strict=True):
        if a.is_floating_point() != b.is_floating_point():
            raise InputError(f"forget is {a.dtype} but {name} is {b.dtype}; they must be inputs of the same model")


def _check_apart(forget: Samples, other: Samples, name: str) -> None:
    pairs = zip(leaves(forget.inputs), leaves(other.inputs), strict=True)
    kinds = [common_kind(one.dtype, two.dtype) for one, two in pairs]
    unwanted: dict[bytes, int] = {}
    for at, key in enumerate(row_keys(as_kinds(forget.inputs, kinds))):
        unwanted.setdefault(key, at)
    keys = row_keys(as_kinds(other.inputs, kinds))
    shared = [at for at, key in enumerate(keys) if key in unwanted]
    if shared:
        first = shared[0]
        raise OverlapError(
            f"{len(shared)} of {len(other)} {name} samples are also in forget (first: {name} sample {first} equals "
            f"forget sample {unwanted[keys[first]]}); leave them out (this error's `rows` lists them)",
            rows=shared,
        )
