"""A task small enough to train dozens of models of in seconds, with labels that can only be memorised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from forsaken import Forsaken, Recipe, ShadowOracle, Training
from forsaken.bench.networks import mlp
from forsaken.data.samples import Samples

RECIPE = Recipe(epochs=60, batch_size=32, learning_rate=5e-3)
CLASSES, WIDTH = 3, 20
METHOD = Forsaken(target="uniform")


@dataclass(frozen=True)
class Small:
    """Sets, models and how they were trained."""

    forget: Samples
    kept: Samples
    retain: Samples
    test: Samples
    reference: Samples
    nonmembers: Samples
    training: Training
    before: Any
    after: Any
    retrained: Any
    oracle: ShadowOracle

    @property
    def sets(self) -> dict[str, Samples]:
        """The sets as keywords of `forsaken.audit`."""
        names = ("kept", "retain", "test", "reference", "nonmembers")
        return {name: getattr(self, name) for name in names}


def build() -> torch.nn.Module:
    """Return the network."""
    return mlp(sizes=(WIDTH, 64, CLASSES))


def drawn(count: int, seed: int, *, strange: bool = False) -> Samples:
    """Return samples of three blobs; strange ones lie elsewhere, under random labels."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(CLASSES, size=count)
    centres = np.eye(CLASSES, WIDTH) * 2
    inputs = draw.normal(size=(count, WIDTH)) * (2 if strange else 1) + (0 if strange else centres[labels])
    return Samples(torch.tensor(inputs, dtype=torch.float32), torch.from_numpy(labels))


def small(seed: int = 0) -> Small:
    """Train everything that an audit looks at."""
    from forsaken.data.samples import join

    forget, kept, retain = drawn(20, seed, strange=True), drawn(120, seed + 1), drawn(12, seed + 2)
    test, reference = drawn(80, seed + 3), Samples(drawn(60, seed + 4, strange=True).inputs)
    nonmembers = drawn(20, seed + 5, strange=True)
    training = Training(build, RECIPE)
    before = training.run(join([kept, retain, forget]), seed=1)
    retrained = training.run(join([kept, retain]), seed=2)
    members = join([drawn(130, seed + 6), drawn(20, seed + 7, strange=True)])
    outside = join([drawn(80, seed + 8), drawn(20, seed + 9, strange=True)])
    oracle = ShadowOracle.fit(training.run(members, seed=3), members=members, nonmembers=outside)
    after = METHOD(before, forget, reference, retain, seed=0).model
    return Small(forget, kept, retain, test, reference, nonmembers, training, before, after, retrained, oracle)
