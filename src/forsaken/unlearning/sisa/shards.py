"""Which shard and slice each row belongs to, and how long each slice is trained for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from torch import Tensor

from forsaken._random import Purpose, generator
from forsaken.data.nest import as_kinds, common_kind, leaves, row_keys
from forsaken.data.samples import Samples
from forsaken.errors import InputError

Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class ShardedData:
    """The training data of an ensemble, ordered by shard and slice; what was forgotten is not in it any more.

    Attributes
    ----------
    data : Samples
        The rows, those of shard 0 first, in each shard those of slice 1 first.
    shard, slice : int array, shape (n,)
        Where each row belongs: shards count from 0, slices from 1.
    assigned : int array, shape (shards, slices)
        How many rows each slice had at the beginning.
    seed : int
        Decides which shard and slice a row is assigned to, the initial weights and every stage's order.
    """

    data: Samples
    shard: Rows
    slice: Rows
    assigned: Rows
    seed: int

    def __deepcopy__(self, memo: object) -> Self:
        # nothing here is ever changed, and the data may be large: copies of an ensemble share it
        return self

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return int(self.assigned.shape[0])

    @property
    def slices(self) -> int:
        """How many slices a shard has."""
        return int(self.assigned.shape[1])

    @cached_property
    def keys(self) -> list[bytes]:
        """One digest a row, equal where the inputs are."""
        return row_keys(self.data.inputs)

    @cached_property
    def voters(self) -> frozenset[int]:
        """The shards that have rows."""
        return frozenset(self.shard.tolist())

    def of(self, shard: int) -> Samples:
        """Return the rows of one shard, in the order of its slices."""
        at = np.flatnonzero(self.shard == shard)
        return self.data.rows(at)

    def sizes(self, shard: int) -> tuple[int, ...]:
        """Return how many rows of a shard lie in its slices 1 to i, for each i."""
        counts = np.bincount(self.slice[self.shard == shard], minlength=self.slices + 1)[1:]
        return tuple(int(count) for count in counts.cumsum())

    def find(self, forget: Samples) -> Rows:
        """Return the rows with the contents of `forget`, every copy of them, in ascending order."""
        ours, theirs = leaves(self.data.inputs), leaves(forget.inputs)
        if len(ours) != len(theirs) or any(a.shape[1:] != b.shape[1:] for a, b in zip(ours, theirs, strict=True)):
            raise InputError("forget samples have another shape than the training data; give rows of the training data")
        kinds = [common_kind(a.dtype, b.dtype) for a, b in zip(ours, theirs, strict=True)]
        own = [leaf.dtype for leaf in ours]
        keys = self.keys if kinds == own else row_keys(as_kinds(self.data.inputs, kinds))
        asked = row_keys(as_kinds(forget.inputs, kinds))
        strangers = len(asked) - sum(map(set(keys).__contains__, asked))
        if strangers:
            raise InputError(
                f"{strangers} of {len(asked)} forget samples are not in the training data of this ensemble, or were "
                "forgotten already; give rows exactly as they were when the model was prepared"
            )
        wanted = set(asked)
        return np.array([at for at, key in enumerate(keys) if key in wanted], dtype=np.int64)

    def without(self, rows: Rows) -> ShardedData:
        """Return the sharded data without these rows; every other row keeps its shard and slice."""
        left = np.delete(np.arange(len(self.shard)), rows)
        return replace(self, data=self.data.rows(left), shard=self.shard[left], slice=self.slice[left])

    def start_seed(self, shard: int) -> int:
        """Return the seed of a shard's initial weights."""
        return int(generator(self.seed, Purpose.SHARD_WEIGHTS, shard).integers(2**32))

    def stage_seeds(self, shard: int) -> tuple[int, ...]:
        """Return the seed of each of a shard's stages."""
        return tuple(
            int(seed) for seed in generator(self.seed, Purpose.SLICE_ORDER, shard).integers(2**32, size=self.slices)
        )


def assign_shards(data: Samples, shards: int, slices: int, seed: int) -> ShardedData:
    """Deal rows at random to shards, and those of a shard to slices, as evenly as they go.

    A slice holds at least one row: where the data are few, there are fewer slices than asked for.
    """
    if len(data) < shards:
        raise InputError(f"{len(data)} training samples cannot fill {shards} shards; lower shards to {len(data)}")
    order = generator(seed, Purpose.SHARDS).permutation(len(data))
    hands = np.array_split(order, shards)
    used = min(slices, len(hands[-1]))
    counts = np.array([[len(part) for part in np.array_split(hand, used)] for hand in hands], dtype=np.int64)
    shard = np.repeat(np.arange(shards), counts.sum(1))
    slice_ = np.concatenate([np.repeat(np.arange(1, used + 1), row) for row in counts])
    return ShardedData(data.rows(order), shard, slice_, counts, seed)


@dataclass(frozen=True, slots=True)
class SliceStage:
    """One stage of a shard: some steps on its first `rows` rows, `batch` at a time, which pass `passes` samples.

    Where steps draw their rows by chance, `rate` is the chance of each row.
    """

    rows: int
    batch: int
    steps: int
    passes: int
    rate: float = 0.0


def plan(sizes: Sequence[int], epochs: int, batch: int, *, least: int = 1) -> tuple[SliceStage, ...]:
    """Return the stages of a shard, such that its samples are passed as often as in plain training of `epochs`.

    With R slices of equal size, stage i passes i/R of the shard, so each lasts e = 2·epochs / (R + 1) epochs (Bourtoule
    et al. 2021, section V). Steps are whole: what one stage passes too much or too little, the next ones make good. A
    stage depends on itself and those before it alone, which is what lets a shard go on from a checkpoint.

    Parameters
    ----------
    sizes : sequence of int
        The rows of slices 1 to i, for each i.
    epochs, batch : int
        Of plain training.
    least : int
        The fewest samples that a step can take; batch-norm needs two. Batches grow until none is smaller.

    >>> [stage.steps for stage in plan([10, 20, 30], epochs=4, batch=10)]
    [2, 4, 6]
    """
    share = 2 * epochs / (len(sizes) + 1)
    due, stages = 0.0, []
    for rows in sizes:
        due += share * rows
        sizes_that_fit = (size for size in range(batch, batch + rows + 1) if rows % size == 0 or rows % size >= least)
        size = next(sizes_that_fit, batch)
        steps = passes = 0
        if rows >= least and due > 0:
            steps, passes = _nearest(due, rows, size)
            due -= passes
        stages.append(SliceStage(rows, size, steps, passes))
    return tuple(stages)


def _nearest(due: float, rows: int, batch: int) -> tuple[int, int]:
    """Return how many steps pass most nearly `due` samples, and how many they pass; an epoch's last may be smaller."""
    whole, rest = divmod(due, rows)
    within = int(rest // batch)
    below, above = min(rows, within * batch), min(rows, (within + 1) * batch)
    up = above - rest < rest - below
    an_epoch = -(-rows // batch)
    return int(whole) * an_epoch + within + up, int(whole) * rows + (above if up else below)


def labels_of(data: Samples) -> Tensor:
    """Return the labels, which training needs."""
    if data.labels is None:
        raise InputError("SISA trains, so the training data need labels; give Samples(inputs, labels)")
    return data.labels
