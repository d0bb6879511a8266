"""Ensembles for an audit: originals that learn everything and then forget, and models that never saw the samples.

Models are trained many at a time where that is faster, and dropped as soon as their margins are noted. What was noted
is kept in a folder under a hash of all that decides it, so that an audit that was killed goes on where it was, and one
with more models trains only those.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forsaken._random import Purpose, generator
from forsaken.auditing.case import Case, labels_of, some
from forsaken.auditing.held_out import HeldOut
from forsaken.auditing.identity import cachable, method_identity, training_identity
from forsaken.auditing.matrices import BEFORE, RETRAINED, Matrices
from forsaken.auditing.notebook import Notebook, Record
from forsaken.auditing.trainings import trained
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

_PARTS_A_MODEL = 100  # of a progress bar
WATCHED = 500


@dataclass(frozen=True)
class Ensembles:
    """Which models to train, on what, and what to do with them.

    Attributes
    ----------
    case : Case
        The data, and how models are trained.
    methods : mapping of str to Unlearner
        What makes every original forget, by name.
    originals, retrained : int
        How many models learn everything, and how many never see the forgotten samples.
    watched : int
        The most retain and test samples whose margins are noted.
    folder : Path or None
        Where to keep what was noted; nowhere if None.
    references : mapping of str to HeldOut
        Of methods that go by references, by name: how those of each original are made.
    retains : mapping of str to Samples
        Of methods that get other retain samples than the case's, by name: which.
    besides : mapping of str to Samples
        Further sets whose margins are noted, by name: `Matrices.facts` holds them.
    """

    case: Case
    methods: Mapping[str, Unlearner]
    originals: int
    retrained: int
    watched: int = WATCHED
    folder: Path | None = None
    device: str | torch.device = "cpu"
    at_once: int | None = None
    references: Mapping[str, HeldOut] = field(default_factory=dict)
    retains: Mapping[str, Samples] = field(default_factory=dict)
    besides: Mapping[str, Samples] = field(default_factory=dict)
    views: Mapping[str, Samples] = field(init=False)

    def __post_init__(self) -> None:
        for name, method in self.methods.items():
            if isinstance(method, UpfrontUnlearner):
                raise SettingsError(
                    f"{name} trains its own model before anything is forgotten, so that it cannot be run on originals "
                    "that were trained plainly; compare it by benchmarks/baselines.py"
                )
        sets, draw = self.case.sets, generator(self.case.seed, Purpose.WATCHED_ROWS)
        parts = {
            "forget": sets.need("forget", labels=True),
            "retain": sets.need("kept", labels=True),
            "test": sets.need("test", labels=True),
        }
        limited = {name: part if name == "forget" else some(part, self.watched, draw) for name, part in parts.items()}
        object.__setattr__(self, "views", limited)

    def kept(self) -> int:
        """Return of how many models everything is there already, from an earlier run."""
        return sum(self._notes.whole(role, seed) for role, seed in self._wanted())

    def reference_count(self) -> int:
        """Return how many references are trained for the originals."""
        seeds = [seed for role, seed in self._wanted() if role == BEFORE]
        return sum(plan.count(self.case.sets, seeds) for plan in dict.fromkeys(self.references.values()))

    def measure(self, *, engine: str = "local", workers: int | None = None, progress: Progress = silent) -> Matrices:
        """Train what is not there yet, note every margin, and return all of them."""
        wanted = list(self._wanted())
        found: dict[tuple[str, int], dict[str, Record]] = {}
        missing = []
        for role, seed in wanted:
            if self._notes.whole(role, seed):
                found[role, seed] = self._notes.read(role, seed)
            else:
                missing.append((role, seed))
        stage = f"train {len(wanted)} models"
        done = len(wanted) - len(missing)
        for chunk in self._work(
            missing, engine, workers, lambda more: _tell(progress, stage, done + more, len(wanted))
        ):
            found |= chunk
        records: dict[str, list[Record]] = {}
        for key in wanted:
            for who, record in found[key].items():
                records.setdefault(who, []).append(record)
        return Matrices.of(records)

    def fill(self, part: int, parts: int, *, progress: Progress = silent) -> None:
        """Train every `parts`-th of the wanted models, from number `part` on, unless it is in the folder.

        Several processes fill one folder side by side so; afterwards `measure` finds all models there.
        """
        if not 0 <= part < parts:
            raise SettingsError(f"part is {part} of {parts}, expected a number from 0 to {parts - 1}")
        if self.folder is None:
            raise SettingsError("several processes fill one folder, and folder is None; give folder=")
        lost = [who for own in self._notes.keys.values() for who, key in own.items() if key is None]
        if lost:
            raise SettingsError(
                f"{', '.join(lost)} cannot be known again, so that nothing of it is kept for other processes: train by "
                "forsaken.Training, and use methods of this package without functions among their settings"
            )
        number = {role: itertools.count() for role in (BEFORE, RETRAINED)}
        own = [(role, seed) for role, seed in self._wanted() if next(number[role]) % parts == part]
        missing = [(role, seed) for role, seed in own if not self._notes.whole(role, seed)]
        for _ in self._work(missing, "local", None, lambda more: _tell(progress, "train", more, len(missing))):
            pass

    def _wanted(self) -> Iterator[tuple[str, int]]:
        for role, purpose, count in (
            (BEFORE, Purpose.ORIGINALS, self.originals),
            (RETRAINED, Purpose.RETRAINED, self.retrained),
        ):
            for seed in generator(self.case.seed, purpose).integers(2**32, size=count):
                yield role, int(seed)

    def _work(
        self, missing: Sequence[tuple[str, int]], engine: str, workers: int | None, tell: Callable[[float], None]
    ) -> Iterator[dict[tuple[str, int], dict[str, Record]]]:
        chunks = list(self._chunks(missing))
        if engine != "local":
            done = [0.0]

            def count(tick: Tick) -> None:
                done[0] = sum(len(chunk[1]) for chunk in chunks) * tick.done / tick.total
                tell(done[0])

            for chunk in fan_out(self._done, chunks, engine=engine, workers=workers, progress=count, stage="train"):
                self._notes.write(chunk)
                yield chunk
            return
        behind = 0
        for role, seeds in chunks:
            yield self._done((role, seeds), partial(_within, tell, behind, len(seeds)))
            behind += len(seeds)
            tell(behind)

    def _chunks(self, missing: Sequence[tuple[str, int]]) -> Iterator[tuple[str, list[int]]]:
        size = self.at_once or (self._size() if missing else 1)
        for role in (RETRAINED, BEFORE):  # what judges first: an ensemble that was killed then needs originals alone
            seeds = [seed for kind, seed in missing if kind == role]
            yield from ((role, seeds[at : at + size]) for at in range(0, len(seeds), size))

    def _size(self) -> int:
        training = self.case.trained
        if not isinstance(training, Training):
            return 1
        build, few = self.case.build(training), self.case.sets.need("forget", labels=True)
        return at_once_for(build, device=self.device) if vectorises(build, few, device=self.device) else 1

    def _done(
        self, chunk: tuple[str, list[int]], tell: Callable[[float], None] = lambda _: None
    ) -> dict[tuple[str, int], dict[str, Record]]:
        """Train the models of one chunk, and return what was noted of each."""
        role, seeds = chunk
        data = self.case.sets.train if role == BEFORE else self.case.sets.remaining
        found: dict[tuple[str, int], dict[str, Record]] = {}
        there = self._notes.complete(role, seeds)
        absent = [name for name in self.methods if name not in there] if role == BEFORE else []
        plans = dict.fromkeys(self.references[name] for name in absent if name in self.references)
        share = 0.9 * len(seeds) / (len(seeds) + sum(plan.count(self.case.sets, seeds) for plan in plans))
        start = time.perf_counter()
        everything = torch.arange(len(data))
        models = list(
            trained(
                self.case,
                data,
                [everything] * len(seeds),
                seeds,
                device=self.device,
                progress=lambda tick: tell(tick.done / max(1, tick.total) * share),
                stage="train",
                at_once=len(seeds),
            )
        )
        spent = (time.perf_counter() - start) / len(seeds)
        tables: dict[HeldOut, list[References]] = {}
        curvatures = [self._curvature(model) for model in models] if plans else []
        for at, plan in enumerate(plans):
            behind, each = share + (0.9 - share) * at / len(plans), (0.9 - share) / len(plans)
            told = partial(_between, tell, behind, each)
            tables[plan] = plan.tables(self.case, seeds, models, curvatures, device=self.device, tell=told)
        for at, (seed, model) in enumerate(zip(seeds, models, strict=True)):
            noted: dict[str, Record] = {role: self._noted(model, spent)}
            for name in absent:
                table = tables[self.references[name]][at] if name in self.references else None
                noted[name] = self._forgotten(name, model, seed, table)
            found[role, seed] = self._notes.read(role, seed) | noted
            tell(0.9 + 0.1 * len(found) / len(seeds))
        self._notes.write(found)
        return found

    def _curvature(self, model: Any) -> Curvature:
        return Curvature.fit(model, Samples(self.case.sets.train.inputs), forward=self.case.forward)

    def _forgotten(self, name: str, model: Any, seed: int, table: References | None) -> Record:
        sets, training, method = self.case.sets, self.case.training, self.methods[name]
        retain = sets.remaining if isinstance(method, Retrain) else self.retains.get(name, sets.retain)
        try:
            result = method(
                model,
                sets.forget,
                sets.reference,
                retain,
                references=table,
                training=training if isinstance(training, Training) else None,
                forward=self.case.forward,
                seed=seed,
            )
        except ForsakenError as error:
            raise ForsakenError(f"{name} failed on an original of the ensemble (seed {seed}): {error}") from error
        noted = self._noted(result.model, result.seconds) | {"density": np.array(result.density)}
        if table is not None:
            said = table.logits(sets.forget).double().numpy()
            noted["targets"] = margins(said, labels_of(sets.need("forget", labels=True)))
            noted["passes"] = np.array(float(result.details.facts.get("sample_passes", np.nan)))
        return noted

    def _noted(self, model: Any, seconds: float) -> dict[str, Array]:
        noted: dict[str, Array] = {"seconds": np.array(seconds)}
        for part, samples in self.views.items():
            seen = self.case.seen(model, samples)
            noted[part] = seen.margins
            if part != "forget":
                noted[f"{part}.accuracy"] = np.array(seen.right.mean())
            if part != "test":
                noted[f"{part}.top"] = seen.top
        noted |= {name: self.case.margins(model, samples) for name, samples in self.besides.items()}
        return noted

    @cached_property
    def _notes(self) -> Notebook:
        known = isinstance(self.case.training, Training)  # of a function nobody can tell whether it is the same
        keys: dict[str, dict[str, str | None]] = {BEFORE: dict.fromkeys((BEFORE, *self.methods)), RETRAINED: {}}
        keys[RETRAINED][RETRAINED] = None
        return Notebook(self.folder, self._keys if known and self.folder is not None else keys, self._shapes)

    @property
    def _shapes(self) -> dict[str, dict[str, tuple[int, ...]]]:
        plain: dict[str, tuple[int, ...]] = {part: (len(samples),) for part, samples in self.views.items()}
        plain |= {name: (len(samples),) for name, samples in self.besides.items()}
        plain |= {"seconds": ()} | {f"{part}.accuracy": () for part in self.views if part != "forget"}
        own = {name: plain | {"density": ()} for name in self.methods}
        for name in self.references:
            own[name] |= {"targets": plain["forget"], "passes": ()}
        return {BEFORE: plain, RETRAINED: plain} | own

    @property
    def _keys(self) -> dict[str, dict[str, str | None]]:
        case, sets, training = self.case, self.case.sets, self.case.network
        views = {**self.views, **self.besides}
        trained = {
            role: training_identity(training, data, views, device=self.device, forward=case.forward)
            for role, data in ((BEFORE, sets.train), (RETRAINED, sets.remaining))
        }
        own: dict[str, str | None] = {BEFORE: trained[BEFORE]}
        for name, method in self.methods.items():
            given = {"reference": sets.reference, "retain": self.retains.get(name, sets.retain)}
            held_out = self.references[name].to_dict() if name in self.references else None
            identity = method_identity(trained[BEFORE], name, method, given, held_out)
            own[name] = identity if cachable(method) else None
        return {BEFORE: own, RETRAINED: {RETRAINED: trained[RETRAINED]}}


def _within(tell: Callable[[float], None], behind: int, count: int, share: float) -> None:
    tell(behind + share * count)


def _between(tell: Callable[[float], None], behind: float, width: float, share: float) -> None:
    tell(behind + width * share)


def _tell(progress: Progress, stage: str, done: float, total: int) -> None:
    progress(Tick(stage, round(done * _PARTS_A_MODEL), total * _PARTS_A_MODEL))
