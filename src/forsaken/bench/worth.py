"""What references are worth: the estimate of a table beside the AUC at which U-LiRA tells such references.

N originals draw folds of their own, in which the samples to forget are one group, and N retrained models judge the
fold models' answers on these samples, and on test samples. The tables of the first originals are completed, each with
two models that learnt everything: the target, and another one. Each gives an estimate from one half of the test
samples, as `References.fit` would; what is measured is on the other half. All models take as many steps as the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from forsaken._files import make_folder, write_atomically
from forsaken._untrusted import UnreadableError, read_safetensors
from forsaken.bench.networks import training_of
from forsaken.bench.scenarios.scenario import Scenario
from forsaken.bench.store import Store, content_hash, identity
from forsaken.bench.trial import training_facts
from forsaken.data.nest import row_keys
from forsaken.data.samples import Samples
from forsaken.errors import InputError
from forsaken.metrics import margins, u_lira, u_lira_floor, u_lira_intervals
from forsaken.models.ensemble import train_many
from forsaken.models.logits import predict_logits
from forsaken.models.train import steps_of
from forsaken.references.rows import assign_folds
from forsaken.references.worth import Worth, worth_of
from forsaken.types import Array, Progress, silent

NEAR = 0.04  # of AUC, within which an estimate is called right
_DRAWN = 500  # simulated samples
_ASKED = 1000  # test samples, of which one half is set aside for the estimates
_SETS = ("forget", "unseen", "test")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One model: the rows that it learns and its seed."""

    rows: Array
    seed: int


class WorthStage:
    """What the models of one scenario and seed say about the samples to forget and about test samples.

    Models are trained when they are asked for. Their answers stay in the store, so that a run which was stopped goes
    on where it was.
    """

    def __init__(self, scenario: Scenario, device: str, store: Store | None, progress: Progress) -> None:
        self.seed, self.device, self.progress = scenario.seed, device, progress
        self.folder = None if store is None else store.folder / "answers"
        sets = scenario.sets(nonmembers=True)
        self.train, self.rest = sets.train, len(sets.remaining)  # the samples to forget come last
        self.training = training_of(scenario, device)
        half = min(_ASKED, len(scenario.test)) // 2
        parts = (
            self.train.rows(np.arange(self.rest, len(self.train))),
            scenario.test.rows(np.arange(half)),
            scenario.test.rows(np.arange(half, 2 * half)),
        )
        self.asked = dict(zip(_SETS, parts, strict=True))
        self.facts = training_facts(scenario, self.train, device) | {"asked": [content_hash(part) for part in parts]}

    def judges(self, count: int) -> list[Wanted]:
        """Return the models that are retrained without the samples to forget."""
        return [self._wanted(f"retrained-{at}", np.arange(self.rest)) for at in range(count)]

    def wholes(self, table: int, count: int) -> list[Wanted]:
        """Return the models that learnt everything: a target, and others like it."""
        return [self._wanted(f"whole-{table}-{at}", np.arange(len(self.train))) for at in range(count)]

    def fold_model(self, folds: int, table: int, at: int | None = None) -> Wanted:
        """Return a model of a table: that of fold `at`, or without `at` that of the samples to forget."""
        groups = [*range(self.rest), *[-1] * (len(self.train) - self.rest)]
        fold = assign_folds(self._keys, groups, folds=folds, seed=1000 * self.seed + table)
        at = int(fold[self.rest]) if at is None else at
        return self._wanted(f"{folds}-{table}-{at}", np.flatnonzero(fold != at))

    @cached_property
    def _keys(self) -> list[bytes]:
        return row_keys(self.train.inputs)

    def _wanted(self, name: str, rows: Array) -> Wanted:
        return Wanted(rows, int(np.random.default_rng([self.seed, *name.encode()]).integers(2**32)))

    def answers(self, models: Sequence[Wanted]) -> dict[str, Array]:
        """Return the logits of models by set (models x samples x classes), from the store or from a training."""
        found = [self._saved(one) for one in models]
        missing = [at for at, known in enumerate(found) if known is None]
        recipe = self.training.recipe
        chunks = train_many(
            self.training.build,
            self.train,
            recipe,
            rows=[models[at].rows for at in missing],
            seeds=[models[at].seed for at in missing],
            device=self.device,
            steps=recipe.epochs * steps_of(len(self.train), recipe, self.training.build()),
            progress=self.progress,
        )
        for at, network in zip(missing, (network for chunk in chunks for network in chunk), strict=True):
            said = {name: predict_logits(network, Samples(part.inputs)).float() for name, part in self.asked.items()}
            found[at] = said
            if self.folder is not None:
                make_folder(self.folder)
                write_atomically(self._path(models[at]), safetensors.torch.save(said))
        return {name: np.stack([one[name].numpy() for one in found if one is not None]) for name in _SETS}

    def _saved(self, one: Wanted) -> Mapping[str, Tensor] | None:
        try:
            _, found = read_safetensors(self._path(one))
        except (OSError, UnreadableError):
            return None
        return found if found.keys() == set(_SETS) else None

    def _path(self, one: Wanted) -> Path:
        own = {**self.facts, "rows": one.rows.tolist(), "seed": one.seed}
        return (self.folder or Path()) / f"{identity(own)}.safetensors"

    def margins(self, logits: Array, name: str) -> Array:
        """Return the margins of the samples' own labels."""
        return margins(logits, np.asarray(self.asked[name].labels))


def staged(
    scenario: Scenario, progress: Progress = silent, *, device: str = "cpu", store: Store | None = None
) -> WorthStage:
    """Prepare what is asked; models are trained later."""
    return WorthStage(scenario, device, store, progress)


def measured(stage: WorthStage, *, folds: int, models: int, tables: int, wholes: int) -> dict[str, Any]:
    """Return how well U-LiRA tells fold models from retrained ones, beside the estimates of single tables.

    Parameters
    ----------
    stage : WorthStage
        Scenario and models.
    folds : int
        K.
    models : int
        Originals with folds of their own; twice as many models are retrained.
    tables : int
        Complete tables, each of which gives an estimate.
    wholes : int
        The models of each table that learnt everything, its target included.
    """
    judges = stage.answers(stage.judges(2 * models))
    references = stage.answers([stage.fold_model(folds, table) for table in range(models)])
    own, theirs = ({name: stage.margins(of[name], name) for name in _SETS} for of in (references, judges))
    request = 1 - stage.rest / len(stage.train)
    worths = [_worth(stage, folds, table, wholes) for table in range(tables)]
    auc = u_lira(own["forget"], theirs["forget"][:models]).auc
    estimates = [one.at(folds, request) for one in worths]
    expected = [expected_with(models, one, request) for one in worths]
    floor = u_lira_floor(theirs["forget"])
    return {
        "auc_forget": auc,
        "auc_forget_interval": u_lira_intervals(own["forget"], theirs["forget"][:models]).auc,
        "auc_test": u_lira(own["test"], theirs["test"][:models]).auc,
        "floor": [floor.low, floor.high],
        "estimate": float(np.mean(estimates)),
        "estimates": estimates,
        "expected": float(np.mean(expected)),
        "expected_of_tables": expected,
        "near": float(np.mean([abs(one - auc) <= NEAR for one in expected])),
        "worths": [one.about() for one in worths],
        "request": request,
        "samples": {name: len(part) for name, part in stage.asked.items()},
    }


def _worth(stage: WorthStage, folds: int, table: int, wholes: int) -> Worth:
    """Return the estimate of one table, from the samples that are set aside for it."""
    models = [*(stage.fold_model(folds, table, at) for at in range(folds)), *stage.wholes(table, wholes)]
    said = torch.from_numpy(stage.answers(models)["unseen"])
    found = worth_of(list(said[:folds]), list(said[folds:]), count=folds)
    if found is None:
        raise InputError(f"{said.shape[1]} unseen samples are too few for an estimate; choose a larger scenario")
    return found


def expected_with(models: int, worth: Worth, request: float) -> float:
    """Return what U-LiRA with so many models a side would measure where the estimate holds, by simulation.

    The attack that an estimate speaks of knows both distributions; one with few models has to fit them.
    """
    draw, (shift, spread, sigma) = np.random.default_rng(0), worth.normals(worth.folds, request)
    references = draw.normal(shift, spread, (models, _DRAWN))
    return u_lira(references, draw.normal(0.0, sigma, (models, _DRAWN))).auc
