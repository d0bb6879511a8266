"""Ensembles for an audit: originals that learn everything and then forget, and models that never saw the samples.

Models are trained many at a time where that is faster, and dropped as soon as they are measured. The measurements are
kept in a folder (`MeasurementCache`), so that an audit that was killed resumes, and an audit with more models trains
only the additional ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from forsaken._random import Purpose, generator
from forsaken.auditing.held_out import HeldOut
from forsaken.auditing.inputs import AuditInputs, labels_of, some
from forsaken.auditing.measurements import (
    BEFORE,
    RETRAINED,
    Matrices,
    MeasurementCache,
    Record,
    method_identity,
    training_identity,
)
from forsaken.data.samples import Samples
from forsaken.engine import fan_out
from forsaken.errors import ForsakenError, SettingsError
from forsaken.metrics import margins
from forsaken.models.ensemble import at_once_for, vectorises
from forsaken.models.train import Training
from forsaken.references.curvature import Curvature
from forsaken.references.table import References
from forsaken.types import Array, Progress, Tick, silent
from forsaken.unlearning.base import Unlearner, UpfrontUnlearner
from forsaken.unlearning.retrain import Retrain

WATCHED = 500  # the most retain and test samples that are measured
_TICKS = 100  # of a progress bar, for each model

Model: TypeAlias = tuple[str, int]
"""A model of the ensemble: "before" or "retrained", and its seed."""


@dataclass(frozen=True)
class Ensembles:
    """Which models are trained, on which data, and which methods make them forget.

    Attributes
    ----------
    inputs : AuditInputs
        The data, and how models are trained.
    methods : mapping of str to Unlearner
        The methods that make every original forget, by name.
    originals, retrained : int
        How many models learn everything, and how many never see the forgotten samples.
    watched : int
        The most retain and test samples whose margins are measured.
    folder : Path or None
        Where the measurements are kept; nowhere if None.
    secret : bytes or None
        The key that seals the measurements in the folder; see `MeasurementCache`.
    references : mapping of str to HeldOut
        For methods that use references, by name: how the references of each original are made.
    retains : mapping of str to Samples
        For methods that get other retain samples than those of `inputs`, by name.
    besides : mapping of str to Samples
        Further sets whose margins are measured, by name; `Matrices.facts` holds them.
    """

    inputs: AuditInputs
    methods: Mapping[str, Unlearner]
    originals: int
    retrained: int
    watched: int = WATCHED
    folder: Path | None = None
    secret: bytes | None = None
    device: str | torch.device = "cpu"
    at_once: int | None = None
    references: Mapping[str, HeldOut] = field(default_factory=dict)
    retains: Mapping[str, Samples] = field(default_factory=dict)
    besides: Mapping[str, Samples] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, method in self.methods.items():
            if isinstance(method, UpfrontUnlearner):
                raise SettingsError(
                    f"{name} trains its own model before anything is forgotten, so it cannot be run on originals "
                    "that were trained plainly; compare it by forsaken bench run fr-ood"
                )
        for role in ("forget", "kept", "test"):
            self.inputs.sets.need(role, labels=True)

    @cached_property
    def views(self) -> dict[str, Samples]:
        """The samples that every model is measured on: all forgotten ones, and some retain and test samples."""
        sets, draw = self.inputs.sets, generator(self.inputs.seed, Purpose.WATCHED_ROWS)
        retain, test = sets.need("kept", labels=True), sets.need("test", labels=True)
        return {
            "forget": sets.need("forget", labels=True),
            "retain": some(retain, self.watched, draw),
            "test": some(test, self.watched, draw),
        }

    @cached_property
    def models(self) -> list[Model]:
        """Every model of the ensemble: the originals, then the retrained models."""
        seed = self.inputs.seed
        drawn = {
            BEFORE: generator(seed, Purpose.ORIGINALS).integers(2**32, size=self.originals),
            RETRAINED: generator(seed, Purpose.RETRAINED).integers(2**32, size=self.retrained),
        }
        return [(group, int(one)) for group, seeds in drawn.items() for one in seeds]

    def missing(self) -> list[Model]:
        """Return the models that are not in the folder with everything that is measured of them."""
        return [model for model in self.models if not self.cache.complete(*model)]

    def reference_count(self) -> int:
        """Return how many references are trained for the originals."""
        seeds = [seed for group, seed in self.models if group == BEFORE]
        return sum(plan.count(self.inputs.sets, seeds) for plan in dict.fromkeys(self.references.values()))

    def measure(self, *, engine: str = "local", workers: int | None = None, progress: Progress = silent) -> Matrices:
        """Train the models that are not in the folder, and return the measurements of all."""
        self.cache.check(self.models)
        missing = self.missing()
        found = {model: self.cache.read(*model) for model in self.models if model not in set(missing)}
        for chunk in self.train(missing, engine=engine, workers=workers, progress=progress):
            found |= chunk
        records: dict[str, list[Record]] = {}
        for model in self.models:
            for group, record in found[model].items():
                records.setdefault(group, []).append(record)
        return Matrices.of(records)

    def train(
        self, models: Sequence[Model], *, engine: str = "local", workers: int | None = None, progress: Progress = silent
    ) -> Iterator[dict[Model, dict[str, Record]]]:
        """Train some models of the ensemble, keep what is measured of them, and yield it chunk by chunk."""
        total = len(self.models)
        done = total - len(models)

        def tell(more: float) -> None:
            progress(Tick(f"train {total} models", round((done + more) * _TICKS), total * _TICKS))

        chunks = list(self._chunks(models))
        if engine == "local":
            for group, seeds in chunks:
                yield self._measured((group, seeds), tell)
                done += len(seeds)
            tell(0)
            return
        yield from fan_out(
            self._measured,
            chunks,
            engine=engine,
            workers=workers,
            progress=lambda tick: tell(len(models) * tick.done / tick.total),
            stage="train",
            # The workers may have no access to the folder, so this process writes what each measured, as it comes.
            received=lambda _, chunk: self._keep(chunk),
        )

    def _chunks(self, models: Sequence[Model]) -> Iterator[tuple[str, list[int]]]:
        size = self.at_once or (self._chunk_size() if models else 1)
        for group in (RETRAINED, BEFORE):  # retrained models first: after a kill only originals are left to train
            seeds = [seed for own, seed in models if own == group]
            yield from ((group, seeds[at : at + size]) for at in range(0, len(seeds), size))

    def _chunk_size(self) -> int:
        training = self.inputs.need_training()
        if not isinstance(training, Training):
            return 1
        build = self.inputs.build(training)
        return (
            at_once_for(build, device=self.device) if vectorises(build, self.views["forget"], device=self.device) else 1
        )

    def _measured(
        self, chunk: tuple[str, list[int]], tell: Callable[[float], None] = lambda _: None
    ) -> dict[Model, dict[str, Record]]:
        """Train the models of one chunk, make originals forget, and return the measurements of each model.

        `tell` is told how many of these models are done, with fractions.
        """
        group, seeds = chunk
        sets = self.inputs.sets
        there = self.cache.groups(group, seeds)
        methods = [name for name in self.methods if name not in there] if group == BEFORE else []
        plans = dict.fromkeys(self.references[name] for name in methods if name in self.references)
        # Nine tenths of the progress are for training, divided among originals and references by their numbers.
        trainings = 0.9 * len(seeds)
        share = trainings * len(seeds) / (len(seeds) + sum(plan.count(sets, seeds) for plan in plans))
        start = time.perf_counter()
        data = sets.train if group == BEFORE else sets.remaining
        models = list(
            self.inputs.train(
                data,
                [torch.arange(len(data))] * len(seeds),
                seeds,
                device=self.device,
                progress=lambda tick: tell(tick.done / max(1, tick.total) * share),
                stage="train",
                at_once=len(seeds),
            )
        )
        spent = (time.perf_counter() - start) / len(seeds)
        curvatures = [self._curvature(model) for model in models if plans]
        tables: dict[HeldOut, list[References]] = {}
        for at, plan in enumerate(plans):
            width = (trainings - share) / len(plans)
            tables[plan] = plan.tables(
                self.inputs,
                seeds,
                models,
                curvatures,
                device=self.device,
                tell=lambda done, begin=share + at * width, width=width: tell(begin + done * width),  # type: ignore[misc]
            )
        found: dict[Model, dict[str, Record]] = {}
        for at, (seed, model) in enumerate(zip(seeds, models, strict=True)):
            records: dict[str, Record] = {group: self._record(model, spent)}
            for name in methods:
                table = tables[self.references[name]][at] if name in self.references else None
                records[name] = self._unlearned(name, model, seed, table)
            found[group, seed] = self.cache.read(group, seed) | records
            tell(trainings + 0.1 * len(found))
        self._keep(found)
        return found

    def _keep(self, found: Mapping[Model, Mapping[str, Record]]) -> None:
        for (group, seed), records in found.items():
            self.cache.write(group, seed, records)

    def _curvature(self, model: Any) -> Curvature:
        return Curvature.fit(model, Samples(self.inputs.sets.train.inputs), forward=self.inputs.forward)

    def _unlearned(self, name: str, model: Any, seed: int, table: References | None) -> Record:
        """Make an original forget by a method, and return the measurements of the unlearned model."""
        sets, training, method = self.inputs.sets, self.inputs.training, self.methods[name]
        retain = sets.remaining if isinstance(method, Retrain) else self.retains.get(name, sets.retain)
        try:
            result = method(
                model,
                sets.forget,
                sets.reference,
                retain,
                references=table,
                curvature=self._curvature(model) if self.inputs.curvature and table is None else None,
                training=training if isinstance(training, Training) else None,
                forward=self.inputs.forward,
                seed=seed,
            )
        except ForsakenError as error:
            raise ForsakenError(f"{name} failed on an original of the ensemble (seed {seed}): {error}") from error
        record = self._record(result.model, result.seconds) | {"density": np.array(result.density)}
        if table is not None:
            targets = table.logits(sets.forget).double().numpy()
            record["targets"] = margins(targets, labels_of(self.views["forget"]))
            record["passes"] = np.array(float(result.details.facts.get("sample_passes", np.nan)))
        return record

    def _record(self, model: Any, seconds: float) -> dict[str, Array]:
        record: dict[str, Array] = {"seconds": np.array(seconds)}
        for part, samples in self.views.items():
            answers = self.inputs.answers(model, samples)
            record[part] = answers.margins
            if part != "forget":
                record[f"{part}.accuracy"] = np.array(answers.right.mean())
            if part != "test":
                record[f"{part}.top"] = answers.top
        return record | {name: self.inputs.margins(model, samples) for name, samples in self.besides.items()}

    @cached_property
    def cache(self) -> MeasurementCache:
        """Where the measurements are kept. Nothing is kept of a training function, which may change unnoticed."""
        training, sets = self.inputs.training, self.inputs.sets
        if self.folder is None or not isinstance(training, Training):
            unknown: dict[str, Mapping[str, str | None]] = {BEFORE: dict.fromkeys((BEFORE, *self.methods))}
            return MeasurementCache(self.folder, unknown | {RETRAINED: {RETRAINED: None}}, {}, self.secret)
        identities = {
            group: training_identity(
                training, data, {**self.views, **self.besides}, device=self.device, forward=self.inputs.forward
            )
            for group, data in ((BEFORE, sets.train), (RETRAINED, sets.remaining))
        }
        own: dict[str, str | None] = {BEFORE: identities[BEFORE]}
        for name, method in self.methods.items():
            given = {"reference": sets.reference, "retain": self.retains.get(name, sets.retain)}
            held_out = self.references[name].to_dict() if name in self.references else None
            if held_out is None and self.inputs.curvature:
                held_out = {"curvature": True}
            own[name] = method_identity(identities[BEFORE], name, method, given, held_out)
        keys: dict[str, Mapping[str, str | None]] = {BEFORE: own, RETRAINED: {RETRAINED: identities[RETRAINED]}}
        return MeasurementCache(self.folder, keys, self._shapes, self.secret)

    @property
    def _shapes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        plain: dict[str, tuple[int, ...]] = {
            part: (len(samples),) for part, samples in {**self.views, **self.besides}.items()
        }
        plain |= {"seconds": ()} | {f"{part}.accuracy": () for part in self.views if part != "forget"}
        own = {name: plain | {"density": ()} for name in self.methods}
        for name in self.references:
            own[name] |= {"targets": plain["forget"], "passes": ()}
        return {BEFORE: plain, RETRAINED: plain} | own
