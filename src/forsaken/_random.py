"""Randomness that leaves the program's own generators as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch

from forsaken.errors import SettingsError


class Purpose(IntEnum):
    """What a generator draws, so that no two draws of one seed share their numbers.

    The numbers are part of every result: change none of them, and give a new purpose a number that is not taken.
    """

    SCENARIO_ROWS = 1
    SCENARIO_LABELS = 2
    SCENARIO_RETAIN = 3
    SCENARIO_CLASSES = 4
    ANCHORS = 11
    CALIBRATION_HALVES = 12
    RANDOM_LABELS = 21
    TEACHER_ROWS = 22
    SALIENCY_ROWS = 23
    FRESH_WEIGHTS = 24
    MATCHED_ROWS = 25
    SHARDS = 41
    SHARD_WEIGHTS = 42
    SLICE_ORDER = 43
    PUBLISHED_NOISE = 44
    DP_NOISE = 45
    DP_ROWS = 46
    ORIGINALS = 61
    RETRAINED = 62
    WATCHED_ROWS = 63
    HELD_OUT_TRAININGS = 64
    ATTACK_TRAININGS = 65
    ATTACK_HALVES = 66
    ATTACK_ROWS = 67
    RELEARNING_ORDER = 68
    WHITE_BOX_FOLDS = 69
    COMPARED_ROWS = 70
    STRANGERS_LABELS = 71
    FOLDS = 81
    FOLD_TRAININGS = 82
    JOB_FORGET = 91
    JOB_REFERENCE = 92
    JOB_RETAIN = 93
    JOB_TRAIN = 94
    JOB_TEST = 95
    JOB_MEMBERS = 96
    JOB_NONMEMBERS = 97
    JOB_STRANGERS = 98
    JOB_DRAWN_RETAIN = 31
    JOB_JUDGED_KEPT = 32
    JOB_CURVED_ROWS = 35
    CANARY_FILLS = 33
    BENCH_HALVES = 8
    BENCH_PICTURE = 34


def generator(seed: int, *purpose: int) -> np.random.Generator:
    """Return a NumPy generator of its own for `seed` and a purpose.

    >>> generator(0, 1).integers(10, size=3).tolist() == generator(0, 1).integers(10, size=3).tolist()
    True
    >>> generator(0, 1).integers(1000) == generator(0, 2).integers(1000)
    np.False_
    """
    return np.random.default_rng([checked_seed(seed), *purpose])


def checked_seed(seed: object) -> int:
    """Return `seed` as an int, or raise a `SettingsError` that says what a seed is."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise SettingsError(f"seed is {seed!r}, expected a whole number from 0 to {2**32 - 1}")
    return int(seed)


@contextmanager
def torch_seed(seed: int) -> Iterator[None]:
    """Seed torch inside the block; its generators are given back as they were."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(checked_seed(seed))
        yield
