"""A scenario: which samples a model is trained on, which it must forget, and which are used to judge it.

A `Plan` says what a scenario is before its data are read; a builder reads the data, splits them with the functions of
this file, and returns a `Scenario`. All sets are disjoint by construction, in rows and in content.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forsaken._random import Purpose, generator
from forsaken.data.nest import row_keys
from forsaken.data.samples import Samples, join
from forsaken.errors import InputError
from forsaken.recipe import Network, Recipe
from forsaken.sets import Sets
from forsaken.types import Array, Progress

Rows = np.ndarray[Any, np.dtype[np.intp]]

_SURPLUS = 2  # references drawn for one wanted: some will equal a sample of another set


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many samples go where, and how the rest is split.

    Attributes
    ----------
    forget, reference : int
        Samples to forget, and references.
    shadow_in, shadow_out : int
        Strangers that the shadow is and is not trained on.
    train_share : float
        The training share of each half, for datasets that are pooled.
    retain_share : float
        The share of the kept training samples that a method may use.
    """

    forget: int = 200
    reference: int = 1000
    shadow_in: int = 200
    shadow_out: int = 200
    train_share: float = 0.8
    retain_share: float = 0.01

    @property
    def strangers(self) -> int:
        """How many out-of-distribution rows are needed in all."""
        return self.forget + self.shadow_in + self.shadow_out + self.reference


@dataclass(frozen=True, slots=True)
class Halves:
    """The rows of a task, halved into those of the target and those of the shadow, each in train and test."""

    train: Rows
    test: Rows
    shadow_train: Rows
    shadow_test: Rows

    @property
    def learnt(self) -> Rows:
        """The training rows of both halves: what vocabularies are made from."""
        return np.concatenate([self.train, self.shadow_train])


@dataclass(frozen=True, slots=True)
class Strangers:
    """The out-of-distribution rows."""

    forget: Rows
    shadow_in: Rows
    shadow_out: Rows
    reference: Rows


@dataclass(frozen=True, slots=True)
class Members:
    """Halves of which some training rows are to be forgotten, and references that nothing else uses."""

    halves: Halves
    forget: Rows
    reference: Rows


@dataclass(frozen=True, slots=True)
class Plan:
    """One row of the table of scenarios.

    Attributes
    ----------
    summary : str
        What is learnt and what is forgotten, in a line.
    datasets : tuple of str
        What must lie in the data folder.
    classes : int
        Of the task.
    build : callable
        ``build(plan, seed, progress)`` returns the scenario.
    options : mapping
        What the builder, or a kind of trial, needs to know beside the sizes.
    note : str
        Where it departs from the paper, and why.
    """

    name: str
    summary: str
    datasets: tuple[str, ...]
    classes: int
    network: Network
    recipe: Recipe
    build: Callable[[Plan, int, Progress], Scenario]
    sizes: Sizes = field(default_factory=Sizes)
    options: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""


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

    @property
    def corrected(self) -> Samples:
        """The samples to forget under their true labels."""
        return self.forget if self.truth is None else Samples(self.forget.inputs, self.truth)

    def sets(self, *, nonmembers: bool = False) -> Sets:
        """Return who plays which role in a request on this scenario.

        Parameters
        ----------
        nonmembers : bool
            Whether as many references as there are forgotten samples, the last ones, are set aside as `nonmembers`, for
            attacks to compare with. The method then never sees them. Strangers are learnt under random labels, so these
            get random labels too. Where the forgotten samples are of the task itself, or references are scarce, there
            are none: attacks compare with the test samples.
        """
        count, reference, others = len(self.forget), self.reference, None
        if nonmembers and self.outsiders and len(reference) >= 2 * count:
            rest, last = np.split(np.arange(len(reference)), [len(reference) - count])
            labels = generator(self.seed, Purpose.STRANGERS_LABELS).integers(self.classes, size=count)
            others = Samples(reference.rows(last).inputs, torch.from_numpy(labels))
            reference = reference.rows(rest)
        return Sets(
            self.forget,
            retain=self.retain,
            reference=reference,
            kept=self.unseen_kept,
            test=self.test,
            nonmembers=others,
        )

    def sizes(self) -> dict[str, int]:
        """Return how many samples each set holds."""
        sets = ("train", "forget", "reference", "retain_rows", "test", "shadow_members", "shadow_nonmembers")
        return {name.removesuffix("_rows"): len(getattr(self, name)) for name in sets}


def halve(
    train: Rows, test: Rows | None, sizes: Sizes, draw: np.random.Generator, *, spare: int = 0, share: float = 0.5
) -> tuple[Halves, Rows]:
    """Halve the rows of a task into the target's and the shadow's.

    Parameters
    ----------
    train, test : array
        The training and test rows of a dataset that comes so split; all rows and None for one that does
        not: its halves are cut by `sizes.train_share`.
    sizes : Sizes
        The training share.
    draw : Generator
        Decides who gets what.
    spare : int
        Rows of the shadow's half that are left to others.
    share : float
        The target's share of the training rows, where it is not half.

    Returns
    -------
    Halves
        In random order.
    array
        The spare rows.
    """
    mixed = draw.permutation(train)
    half = int(share * len(mixed))
    first, second = mixed[:half], mixed[half:]
    if spare > len(second) // 2:
        raise InputError(f"{len(train):,} rows are too few, expected {4 * spare:,} or more; get the complete dataset")
    left, second = second[:spare], second[spare:]
    if test is None:
        a, b = int(sizes.train_share * len(first)), int(sizes.train_share * len(second))
        return Halves(first[:a], first[a:], second[:b], second[b:]), left
    shown = draw.permutation(test)
    half = len(shown) // 2
    return Halves(first, shown[:half], second, shown[half:]), left


def draw_members(
    train: Rows, test: Rows | None, sizes: Sizes, draw: np.random.Generator, *, share: float = 0.5
) -> Members:
    """Halve the rows of a task, and draw training rows of the target's half to forget.

    References are test rows of the target that then serve no other purpose; where its test half is smaller than two
    times their number, rows of the shadow's half that neither it nor anybody else uses. `share`: see `halve`.
    """
    tested = (1 - sizes.train_share) * len(train) if test is None else len(test)
    scarce = tested / 2 < 2 * sizes.reference
    halves, spare = halve(train, test, sizes, draw, spare=sizes.reference if scarce else 0, share=share)
    if len(halves.train) <= sizes.forget:
        raise InputError(
            f"the scenario forgets {sizes.forget} of only {len(halves.train)} training rows; get more rows"
        )
    reference, shown = (spare, halves.test) if scarce else np.split(halves.test, [sizes.reference])
    kept = Halves(halves.train[sizes.forget :], shown, halves.shadow_train, halves.shadow_test)
    return Members(kept, halves.train[: sizes.forget], reference)


def draw_strangers(pool: Rows, sizes: Sizes, draw: np.random.Generator, source: str) -> Strangers:
    """Draw the out-of-distribution rows from `pool`; `source` is what error messages call it."""
    if len(pool) < sizes.strangers:
        raise InputError(
            f"the scenario needs {sizes.strangers} out-of-distribution rows, found {len(pool)} in {source}; get the "
            f"complete dataset"
        )
    mixed = draw.permutation(pool)
    ends = np.cumsum([sizes.forget, sizes.shadow_in, sizes.shadow_out, _SURPLUS * sizes.reference])
    return Strangers(*np.split(mixed[: ends[-1]], ends[:-1]))


def ood_scenario(
    plan: Plan, seed: int, samples: Samples, halves: Halves, strangers: Strangers, **more: Any
) -> Scenario:
    """Build a scenario that forgets strangers.

    Parameters
    ----------
    plan : Plan
        Name, classes, sizes and the like.
    seed : int
        Decides every draw.
    samples : Samples
        All rows. Labels are the task's class numbers; a stranger's is its own class in the task, or -1 where
        it has none. Strangers are learnt under random labels other than their own.
    halves, strangers
        Who gets which rows.
    more
        Further fields of the scenario.
    """
    draw = generator(seed, Purpose.SCENARIO_LABELS)

    def mislabelled(rows: Rows) -> Samples:
        part = samples.rows(rows)
        return Samples(part.inputs, torch.from_numpy(_wrong_labels(_labels(part), plan.classes, draw)))

    kept, forget = samples.rows(halves.train), mislabelled(strangers.forget)
    return from_sets(
        plan,
        seed,
        kept,
        forget,
        reference=Samples(samples.rows(strangers.reference).inputs),
        test=samples.rows(halves.test),
        shadow_members=join([samples.rows(halves.shadow_train), mislabelled(strangers.shadow_in)]),
        shadow_nonmembers=join([samples.rows(halves.shadow_test), mislabelled(strangers.shadow_out)]),
        outsiders=True,
        **more,
    )


def id_scenario(
    plan: Plan, seed: int, samples: Samples, halves: Halves, forget: Rows, reference: Rows, **more: Any
) -> Scenario:
    """Build a scenario that forgets training samples of the task: `forget` and `reference` are rows of their own."""
    return from_sets(
        plan,
        seed,
        samples.rows(halves.train),
        samples.rows(forget),
        reference=samples.rows(reference),
        test=samples.rows(halves.test),
        shadow_members=samples.rows(halves.shadow_train),
        shadow_nonmembers=samples.rows(halves.shadow_test),
        outsiders=False,
        **more,
    )


def poison_scenario(plan: Plan, seed: int, samples: Samples, halves: Halves, **more: Any) -> Scenario:
    """Build a scenario that puts right a share of one class's training samples, learnt under another class's label.

    The options `source`, `target` and `share` say which class, under which label, and how much of it. The shadow's half
    is poisoned alike. References are labelled test samples that serve no other purpose.
    """
    options, own = plan.options, _labels(samples)
    reference, shown = np.split(halves.test, [plan.sizes.reference])

    def cut(rows: Rows) -> tuple[Rows, Rows]:
        able = rows[own[rows] == options["source"]]
        victims = able[: round(options["share"] * len(able))]
        if len(victims) == 0:
            raise InputError(
                f"a share of {options['share']} of class {options['source']} is no sample; get the complete dataset"
            )
        return victims, rows[~np.isin(rows, victims)]

    forget, kept = cut(halves.train)
    shadow, _ = cut(halves.shadow_train)
    labels = own.copy()
    labels[np.concatenate([forget, shadow])] = options["target"]
    return id_scenario(
        plan,
        seed,
        Samples(samples.inputs, torch.from_numpy(labels)),
        Halves(kept, shown, halves.shadow_train, halves.shadow_test),
        forget,
        reference,
        truth=torch.full((len(forget),), options["source"]),
        **more,
    )


def from_sets(
    plan: Plan,
    seed: int,
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
    reference = reference.rows(np.arange(min(len(reference), plan.sizes.reference)))
    shadow_nonmembers = _without(shadow_nonmembers, shadow_members)
    retain = generator(seed, Purpose.SCENARIO_RETAIN).permutation(len(kept))[
        : round(plan.sizes.retain_share * len(kept))
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
                f"scenario {plan.name} has no {name} samples; the dataset is too small: get the complete one"
            )
    return Scenario(
        name=plan.name,
        seed=seed,
        classes=plan.classes,
        network=plan.network,
        recipe=plan.recipe,
        kept=kept,
        forget=forget,
        reference=reference,
        retain_rows=retain,
        test=test,
        shadow_members=shadow_members,
        shadow_nonmembers=shadow_nonmembers,
        **more,
    )


def _labels(samples: Samples) -> Array:
    return samples.labels.numpy()  # type: ignore[union-attr]


def _wrong_labels(own: Array, classes: int, draw: np.random.Generator) -> Array:
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
