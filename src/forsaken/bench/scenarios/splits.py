"""Who gets which rows: halves for target and shadow, strangers, references. Disjoint by construction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from forsaken.errors import InputError

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


def halve(
    train: Rows, test: Rows | None, sizes: Sizes, draw: np.random.Generator, *, spare: int = 0
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

    Returns
    -------
    Halves
        In random order.
    array
        The spare rows.
    """
    mixed = draw.permutation(train)
    half = len(mixed) // 2
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


def draw_members(train: Rows, test: Rows | None, sizes: Sizes, draw: np.random.Generator) -> Members:
    """Halve the rows of a task, and draw training rows of the target's half to forget.

    References are test rows of the target that then serve no other purpose; where its test half is smaller than two
    times their number, rows of the shadow's half that neither it nor anybody else uses.
    """
    tested = (1 - sizes.train_share) * len(train) if test is None else len(test)
    scarce = tested / 2 < 2 * sizes.reference
    halves, spare = halve(train, test, sizes, draw, spare=sizes.reference if scarce else 0)
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
