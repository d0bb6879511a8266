"""Randomness that leaves the program's own generators as they were."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from forsaken.errors import SettingsError


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
