"""A scenario: who is trained on what, what is to be forgotten, and who may look."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forsaken._random import generator
from forsaken.data.nest import row_keys
from forsaken.data.samples import Samples, join
from forsaken.errors import InputError

Rows = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One unlearning experiment with out-of-distribution samples, fixed by a seed. Disjoint by construction.

    Attributes
    ----------
    kept : Samples
        What the target is trained on and must keep.
    forget : Samples
        What the target is trained on too, under random labels, and must forget.
    reference : Samples
        Samples like those of `forget` that no model here was trained on.
    retain_rows : array
        The rows of `kept` that the method may use (D_0 of the paper).
    test : Samples
        Samples of the task that the target was not trained on.
    shadow_members, shadow_nonmembers : Samples
        What the shadow model is and is not trained on; both hold samples like those of `forget`.
    """

    name: str
    seed: int
    classes: int
    kept: Samples
    forget: Samples
    reference: Samples
    retain_rows: Rows
    test: Samples
    shadow_members: Samples
    shadow_nonmembers: Samples
    train: Samples = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "train", join([self.kept, self.forget]))

    @property
    def retain(self) -> Samples:
        """The small part of `kept` that the method may use."""
        return self.kept.rows(self.retain_rows)

    @property
    def unseen_kept(self) -> Samples:
        """The part of `kept` that the method does not use: where collateral damage is measured."""
        mask = np.ones(len(self.kept), dtype=bool)
        mask[self.retain_rows] = False
        return self.kept.rows(np.flatnonzero(mask))

    def with_retain(self, count: int) -> Scenario:
        """Return the same scenario with `count` retain samples."""
        rows = _retain_rows(self.kept, self.forget, count, self.seed)
        return dataclasses.replace(self, retain_rows=rows)


@dataclass(frozen=True, slots=True)
class OodSizes:
    """How many out-of-distribution samples go where, and how the rest is split."""

    forget: int
    shadow_in: int
    shadow_out: int
    reference: int
    train_share: float
    retain_share: float


def ood_rows(in_task: np.ndarray[Any, Any], sizes: OodSizes, seed: int) -> dict[str, Rows]:
    """Split the rows of a dataset for a scenario with out-of-distribution samples.

    Parameters
    ----------
    in_task : bool array
        Which rows belong to the task; the others are the out-of-distribution pool.
    sizes : OodSizes
        How many rows go where.
    seed : int
        Decides the split.

    Returns
    -------
    dict
        Rows by name: train, test, shadow_train, shadow_test; forget, shadow_in, shadow_out, reference.
    """
    draw = generator(seed, 1)
    task = draw.permutation(np.flatnonzero(in_task))
    pool = draw.permutation(np.flatnonzero(~in_task))
    wanted = sizes.forget + sizes.shadow_in + sizes.shadow_out
    if len(pool) < wanted + 1:
        raise InputError(f"the scenario needs more than {wanted} out-of-distribution rows, found {len(pool)}")
    half = len(task) // 2
    split: dict[str, Rows] = {}
    for prefix, part in (("", task[:half]), ("shadow_", task[half:])):
        cut = int(sizes.train_share * len(part))
        split[f"{prefix}train"], split[f"{prefix}test"] = part[:cut], part[cut:]
    ends = np.cumsum([sizes.forget, sizes.shadow_in, sizes.shadow_out, sizes.reference])
    names = ("forget", "shadow_in", "shadow_out", "reference")
    split.update(zip(names, np.split(pool[: ends[-1]], ends[:-1]), strict=True))
    return split


def ood_scenario(
    name: str, samples: Samples, split: dict[str, Rows], classes: int, sizes: OodSizes, seed: int
) -> Scenario:
    """Build the scenario of a split. `samples` has the task's labels as 0 to `classes` - 1."""
    draw = generator(seed, 2)

    def mislabelled(rows: Rows) -> Samples:
        part = samples.rows(rows)
        labels = draw.integers(classes, size=len(rows))
        return Samples(part.inputs, samples.rows(rows).labels.new_tensor(labels))  # type: ignore[union-attr]

    kept, forget = samples.rows(split["train"]), mislabelled(split["forget"])
    reference = samples.rows(split["reference"])
    unwanted = set(row_keys(forget.inputs))
    fresh = [at for at, key in enumerate(row_keys(reference.inputs)) if key not in unwanted]
    retain_rows = _retain_rows(kept, forget, round(sizes.retain_share * len(kept)), seed)
    return Scenario(
        name=name,
        seed=seed,
        classes=classes,
        kept=kept,
        forget=forget,
        reference=Samples(reference.rows(fresh).inputs),
        retain_rows=retain_rows,
        test=samples.rows(split["test"]),
        shadow_members=join([samples.rows(split["shadow_train"]), mislabelled(split["shadow_in"])]),
        shadow_nonmembers=join([samples.rows(split["shadow_test"]), mislabelled(split["shadow_out"])]),
    )


def _retain_rows(kept: Samples, forget: Samples, count: int, seed: int) -> Rows:
    # Real corpora repeat themselves: a kept row that equals a forgotten one cannot be an anchor.
    unwanted = set(row_keys(forget.inputs))
    order = generator(seed, 3).permutation(len(kept))
    keys = row_keys(kept.inputs)
    return np.array([at for at in order if keys[at] not in unwanted][:count], dtype=np.intp)
