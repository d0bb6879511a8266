"""How the settings of other methods were chosen: every setting of a grid, on seeds that no table reports.

The setting that comes nearest to the retrained model is taken: |FR - FR'| + |CFR - CFR'| and the accuracy that is lost
beside it. `rows.TUNED` holds what was chosen. A setting is a trial like any other, so that a run which was stopped goes
on where it was, and what was tried stays on the disk.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from forsaken.bench.rows import RETRAINED, row_named
from forsaken.bench.scenarios import canaries
from forsaken.bench.scenarios.table import plan_named
from forsaken.bench.trials import Trial, read
from forsaken.errors import SettingsError

SEEDS = (100, 101)
WORST = 3.0  # the distance of a setting that ruins the model, or of which a number is not defined
_POISON = "poison"
_RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0)
_EPOCHS = (5, 50)  # with few retain samples an epoch is a step or two
_BY_ACCURACY = ("sisa-dp-sgd",)  # it memorises nothing, so that no rate tells one setting from another
GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "fine-tune": {"learning_rate": _RATES},
    "gradient-ascent": {"learning_rate": (1e-4, 1e-3, 3e-3, 1e-2, 2e-2, 3e-2, 1e-1, 3e-1), "epochs": _EPOCHS},
    "neggrad-plus": {"learning_rate": _RATES, "alpha": (0.8, 0.95)},
    "l1-sparse": {"learning_rate": _RATES[2:], "gamma": (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)},
    "salun": {"learning_rate": (1e-5, 3e-5, 1e-4, *_RATES)},
    "scrub": {"learning_rate": (*_RATES, 10.0)},
    # of the largest ratio that any weight can have, 1 / (D's share of the training data)
    "ssd": {
        "alpha": (0.1, 0.3, 0.5, 0.6, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995),
        "damping": (0.5, 1.0, 2.0, 5.0, 10.0, 20.0),
    },
    "bad-teacher": {"learning_rate": (1e-5, 3e-5, 1e-4, *_RATES)},
    "msg": {"learning_rate": _RATES},
    "ct": {"learning_rate": _RATES},
    "smu": {"learning_rate": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)},
    # times the recipe's rate: noise of this size may want smaller or larger steps than plain training
    "sisa-dp-sgd": {"rate": (0.1, 0.3, 1.0, 3.0)},
}
_FIXED_EPOCHS = ("gradient-ascent", "ssd", "smu", "sisa-dp-sgd")  # whose epochs are in the grid, or are none


@dataclass(frozen=True, slots=True)
class Tried:
    """One setting of a row.

    Attributes
    ----------
    settings : mapping
        What was tried.
    distance : float
        From the retrained model, as a mean over the seeds; `WORST` where the method could not do it.
    numbers : tuple of mapping
        What was measured, seed by seed.
    """

    settings: Mapping[str, Any]
    distance: float
    numbers: tuple[Mapping[str, Any], ...]


def grid_of(name: str) -> dict[str, tuple[Any, ...]]:
    """Return the values that are tried for each setting of a row; with few retain samples more epochs are tried too."""
    row = row_named(name)
    if row.method not in GRIDS:
        raise SettingsError(f"{name} has no settings to choose; expected a row of one of {', '.join(GRIDS)}")
    grid = GRIDS[row.method]
    return grid if row.retain == "all" or row.method in _FIXED_EPOCHS else grid | {"epochs": _EPOCHS}


def trials_of(scenario: str, name: str, seeds: Iterable[int] = SEEDS, device: str = "cpu") -> list[Trial]:
    """Return the trials of a row's grid, and for each seed that of the retrained model first."""
    if plan_named(scenario).build is canaries.canaries:
        raise SettingsError(
            f"{scenario} is judged by exposure and not by FR and CFR; choose another scenario to tune on"
        )
    kind = _POISON if scenario.startswith(_POISON) else "forget"
    return [
        trial
        for seed in seeds
        for trial in (
            Trial(scenario, seed, RETRAINED, kind, device=device),
            *(Trial(scenario, seed, name, kind, settings, device=device) for settings in _choices(name)),
        )
    ]


def _choices(name: str) -> list[dict[str, Any]]:
    grid = grid_of(name)
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def gather(
    scenario: str, name: str, folder: Path, seeds: Iterable[int] = SEEDS, device: str = "cpu"
) -> tuple[Tried, ...]:
    """Return the settings of a row that were tried on all seeds, the nearest to retraining first."""
    by_seed: list[list[Mapping[str, Any] | None]] = []
    for seed in seeds:
        contents = [read(trial, folder) for trial in trials_of(scenario, name, [seed], device)]
        by_seed.append([None if content is None else content["numbers"] for content in contents])
    found = []
    for at, settings in enumerate(_choices(name), 1):
        pairs = [(numbers[at], numbers[0]) for numbers in by_seed]
        known = [(mine, again) for mine, again in pairs if mine is not None and again is not None]
        if len(known) == len(pairs):
            far = float(np.mean([distance(name, mine, again) for mine, again in known]))
            found.append(Tried(settings, far, tuple(mine for mine, _ in known)))
    return tuple(sorted(found, key=lambda one: one.distance))


def distance(name: str, numbers: Mapping[str, Any], retrained: Mapping[str, Any]) -> float:
    """Return how far a model is from the retrained one, 0 being the same.

    A method that trains a model of its own is judged beside that one. What was poisoned is judged by accuracy and the
    recall of its class, of which more than the retrained model's is no distance.

    >>> distance("scrub", {"fr": 1.0, "cfr": 0.0, "accuracy": 0.7}, {"fr": 0.9, "cfr": 0.05, "accuracy": 0.8})
    0.25
    """
    if "refused" in numbers:
        return WORST
    lost: float = max(0.0, retrained["accuracy"] - numbers["accuracy"])
    if "recall" in numbers:
        return lost + float(max(0.0, retrained["recall"] - numbers["recall"]))
    if row_named(name).method in _BY_ACCURACY:
        return lost
    fr, cfr = (numbers.get(f"own_{rate}", numbers.get(rate)) for rate in ("fr", "cfr"))
    if fr is None or cfr is None:
        return WORST
    return float(round(abs(fr - retrained["fr"]) + abs(cfr - retrained["cfr"]) + lost, 12))


def edges(name: str, settings: Mapping[str, Any]) -> list[str]:
    """Return the settings that lie at an end of their grid, beyond which a better value may lie.

    >>> edges("scrub-all", {"learning_rate": 10.0}), edges("scrub-all", {"learning_rate": 0.1})
    (['learning_rate'], [])
    """
    grid = grid_of(name)
    return [key for key, value in settings.items() if len(grid[key]) > 2 and value in (grid[key][0], grid[key][-1])]
