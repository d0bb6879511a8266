"""A scenario: who is trained on what, what is to be forgotten, and who may look."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forsaken._random import generator
from forsaken.data.nest import row_keys
from forsaken.data.samples import Samples, join
from forsaken.data.splits import Halves, Rows, Sizes, Strangers
from forsaken.recipe import Network, Recipe


@dataclass(frozen=True, slots=True)
class Scenario:
    """One unlearning experiment, fixed by a seed. Disjoint by construction.

    Attributes
    ----------
    kept : Samples
        What the target is trained on and must keep.
    forget : Samples
        What the target is trained on too and must forget, under the labels that it was trained with.
    truth : Tensor or None
        The true labels of `forget`, where those were poisoned.
    reference : Samples
        Samples that no model here was trained on: like those of `forget`, or from the task.
    retain_rows : array
        The rows of `kept` that the method may use (D_0 of the paper).
    test : Samples
        Samples of the task that the target was not trained on.
    shadow_members, shadow_nonmembers : Samples
        What the shadow model is and is not trained on; both hold samples like those of `forget`.
    outsiders : bool
        Whether the samples to forget come from outside the task.
    network, recipe : Network, Recipe
        What is trained, and how.
    given : mapping
        Tensors that the network takes beside its settings, such as frozen word vectors.
    names : tuple of str
        The names of the classes, where known.
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
    network: Network
    recipe: Recipe
    outsiders: bool = True
    truth: Tensor | None = None
    given: Mapping[str, Tensor] = field(default_factory=dict)
    names: tuple[str, ...] = ()
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

    @property
    def nonmembers(self) -> Samples:
        """What an oracle is judged on beside `train`: the test set, and as many unseen strangers as are forgotten."""
        if not self.outsiders:
            return Samples(self.test.inputs)
        strangers = self.reference.rows(np.arange(min(len(self.forget), len(self.reference))))
        return join([Samples(self.test.inputs), Samples(strangers.inputs)])

    @property
    def corrected(self) -> Samples:
        """The samples to forget under their true labels."""
        return self.forget if self.truth is None else Samples(self.forget.inputs, self.truth)

    def with_retain(self, count: int) -> Scenario:
        """Return the same scenario with `count` retain samples."""
        rows = _retain_rows(self.kept, self.forget, count, self.seed)
        return dataclasses.replace(self, retain_rows=rows)

    def sizes(self) -> dict[str, int]:
        """Return how many samples each set holds."""
        sets = ("train", "forget", "reference", "retain_rows", "test", "shadow_members", "shadow_nonmembers")
        return {name.removesuffix("_rows"): len(getattr(self, name)) for name in sets}


@dataclass(frozen=True, slots=True)
class Frame:
    """What a scenario is, apart from its samples."""

    name: str
    seed: int
    classes: int
    sizes: Sizes
    network: Network
    recipe: Recipe


def ood_scenario(frame: Frame, samples: Samples, halves: Halves, strangers: Strangers, **more: Any) -> Scenario:
    """Build a scenario that forgets strangers.

    Parameters
    ----------
    frame : Frame
        Name, seed, network and the like.
    samples : Samples
        All rows. Labels are the task's class numbers; a stranger's is its own class in the task, or -1 where
        it has none. Strangers are learnt under random labels other than their own.
    halves, strangers
        Who gets which rows.
    more
        Further fields of the scenario.
    """
    draw = generator(frame.seed, 2)

    def mislabelled(rows: Rows) -> Samples:
        part = samples.rows(rows)
        return Samples(part.inputs, torch.from_numpy(_wrong_labels(_labels(part), frame.classes, draw)))

    kept, forget = samples.rows(halves.train), mislabelled(strangers.forget)
    return from_sets(
        frame,
        kept,
        forget,
        reference=Samples(samples.rows(strangers.reference).inputs),
        test=samples.rows(halves.test),
        shadow_members=join([samples.rows(halves.shadow_train), mislabelled(strangers.shadow_in)]),
        shadow_nonmembers=join([samples.rows(halves.shadow_test), mislabelled(strangers.shadow_out)]),
        outsiders=True,
        **more,
    )


def id_scenario(frame: Frame, samples: Samples, halves: Halves, forget: Rows, reference: Rows, **more: Any) -> Scenario:
    """Build a scenario that forgets training samples of the task: `forget` and `reference` are rows of their own."""
    return from_sets(
        frame,
        samples.rows(halves.train),
        samples.rows(forget),
        reference=samples.rows(reference),
        test=samples.rows(halves.test),
        shadow_members=samples.rows(halves.shadow_train),
        shadow_nonmembers=samples.rows(halves.shadow_test),
        outsiders=False,
        **more,
    )


def from_sets(frame: Frame, kept: Samples, forget: Samples, *, reference: Samples, **more: Any) -> Scenario:
    """Build a scenario of ready sets; references that equal a training sample are left out."""
    # Real corpora repeat themselves: a reference that equals a training sample would be a member.
    learnt = {*row_keys(kept.inputs), *row_keys(forget.inputs)}
    fresh = [at for at, key in enumerate(row_keys(reference.inputs)) if key not in learnt]
    retain = _retain_rows(kept, forget, round(frame.sizes.retain_share * len(kept)), frame.seed)
    return Scenario(
        name=frame.name,
        seed=frame.seed,
        classes=frame.classes,
        network=frame.network,
        recipe=frame.recipe,
        kept=kept,
        forget=forget,
        reference=reference.rows(fresh),
        retain_rows=retain,
        **more,
    )


def _labels(samples: Samples) -> np.ndarray[Any, np.dtype[np.int64]]:
    return samples.labels.numpy()  # type: ignore[union-attr]


def _wrong_labels(own: np.ndarray[Any, Any], classes: int, draw: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return a random label for each sample, other than its own where it has one (own >= 0)."""
    if (own < 0).all():
        return draw.integers(classes, size=len(own))
    labels = draw.integers(classes - (own >= 0))
    return labels + ((own >= 0) & (labels >= own))


def _retain_rows(kept: Samples, forget: Samples, count: int, seed: int) -> Rows:
    # A kept row that equals a forgotten one cannot be an anchor.
    unwanted = set(row_keys(forget.inputs))
    order = generator(seed, 3).permutation(len(kept))
    keys = row_keys(kept.inputs)
    return np.array([at for at in order if keys[at] not in unwanted][:count], dtype=np.intp)
