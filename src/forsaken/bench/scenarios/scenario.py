"""A scenario: who is trained on what, what is to be forgotten, and who may look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forsaken._random import Purpose, generator
from forsaken.bench.scenarios.splits import Halves, Rows, Sizes, Strangers
from forsaken.data.nest import row_keys
from forsaken.data.samples import Samples, join
from forsaken.errors import InputError
from forsaken.recipe import Network, Recipe


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """One unlearning experiment, fixed by a seed. Disjoint by construction, in rows and in content.

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
    draw = generator(frame.seed, Purpose.SCENARIO_LABELS)

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


def from_sets(
    frame: Frame,
    kept: Samples,
    forget: Samples,
    *,
    reference: Samples,
    test: Samples,
    shadow_members: Samples,
    shadow_nonmembers: Samples,
    **more: Any,
) -> Scenario:
    """Build a scenario of sets that share no row, and take out what they share in content.

    Real corpora repeat themselves. A kept sample that equals a forgotten one goes, or a model retrained without the
    forget set would know it; so does a test sample that equals a training sample, which is a member; a reference that
    equals a sample of any other set, of which as many stay as are wanted; and a non-member of the shadow that
    equals one of its members.
    """
    kept = _without(kept, forget)
    test = _without(test, kept, forget)
    reference = _without(reference, kept, forget, test, shadow_members)
    reference = reference.rows(np.arange(min(len(reference), frame.sizes.reference)))
    shadow_nonmembers = _without(shadow_nonmembers, shadow_members)
    retain = generator(frame.seed, Purpose.SCENARIO_RETAIN).permutation(len(kept))[
        : round(frame.sizes.retain_share * len(kept))
    ]
    counts = {
        "kept": len(kept),
        "forget": len(forget),
        "reference": len(reference),
        "retain": len(retain),
        "test": len(test),
        "shadow member": len(shadow_members),
        "shadow non-member": len(shadow_nonmembers),
    }
    for name, count in counts.items():
        if count == 0:
            raise InputError(
                f"scenario {frame.name} has no {name} samples; the dataset is too small: get the complete one"
            )
    return Scenario(
        name=frame.name,
        seed=frame.seed,
        classes=frame.classes,
        network=frame.network,
        recipe=frame.recipe,
        kept=kept,
        forget=forget,
        reference=reference,
        retain_rows=retain,
        test=test,
        shadow_members=shadow_members,
        shadow_nonmembers=shadow_nonmembers,
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


def _without(samples: Samples, *others: Samples) -> Samples:
    """Return the samples that equal none of the others."""
    known = {key for other in others for key in row_keys(other.inputs)}
    fresh = [at for at, key in enumerate(row_keys(samples.inputs)) if key not in known]
    return samples if len(fresh) == len(samples) else samples.rows(np.array(fresh, dtype=np.intp))
