"""Ensembles for an audit: originals that learn everything and then forget, and models that never saw the samples.

Models are trained many at a time where that is faster, and dropped as soon as their margins are noted. What was noted
is kept in a folder under a hash of all that decides it, so that an audit that was killed goes on where it was, and one
with more models trains only those.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forsaken._files import write_atomically
from forsaken._random import generator
from forsaken.auditing.case import Case, some
from forsaken.auditing.identity import cachable, method_identity, training_identity
from forsaken.auditing.matrices import BEFORE, RETRAINED, Matrices, packed, unpacked
from forsaken.auditing.trainings import trained
from forsaken.data.samples import Samples
from forsaken.engine import fan_out
from forsaken.errors import ForsakenError, InputError, SettingsError
from forsaken.models.ensemble import at_once_for, vectorises
from forsaken.models.train import Training
from forsaken.types import Progress, Tick, silent
from forsaken.unlearning.base import Unlearner
from forsaken.unlearning.retrain import Retrain
from forsaken.unlearning.upfront import UpfrontUnlearner

Array = np.ndarray[Any, Any]
Record = Mapping[str, Array]

_ORIGINAL, _RETRAINED, _WATCHED = 61, 62, 63  # purposes of the seed
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
    """

    case: Case
    methods: Mapping[str, Unlearner]
    originals: int
    retrained: int
    watched: int = WATCHED
    folder: Path | None = None
    device: str | torch.device = "cpu"
    at_once: int | None = None
    views: Mapping[str, Samples] = field(init=False)

    def __post_init__(self) -> None:
        for name, method in self.methods.items():
            if isinstance(method, UpfrontUnlearner):
                raise SettingsError(
                    f"{name} trains its own model before anything is forgotten, so that it cannot be run on originals "
                    "that were trained plainly; compare it by benchmarks/baselines.py"
                )
        sets, draw = self.case.sets, generator(self.case.seed, _WATCHED)
        parts = {"forget": sets.named("forget"), "retain": sets.named("kept"), "test": sets.named("test")}
        limited = {name: part if name == "forget" else some(part, self.watched, draw) for name, part in parts.items()}
        object.__setattr__(self, "views", limited)

    def kept(self) -> int:
        """Return of how many models everything is there already, from an earlier run."""
        return sum(self._there(self._paths(role, seed)) for role, seed in self._wanted())

    def measure(self, *, engine: str = "local", workers: int | None = None, progress: Progress = silent) -> Matrices:
        """Train what is not there yet, note every margin, and return all of them."""
        wanted = list(self._wanted())
        found: dict[tuple[str, int], dict[str, Record]] = {}
        missing = []
        for role, seed in wanted:
            known = self._known(role, seed)
            if known is None:
                missing.append((role, seed))
            else:
                found[role, seed] = known
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

    def _wanted(self) -> Iterator[tuple[str, int]]:
        for role, purpose, count in (
            (BEFORE, _ORIGINAL, self.originals),
            (RETRAINED, _RETRAINED, self.retrained),
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
                self._keep(chunk)
                yield chunk
            return
        behind = 0
        for role, seeds in chunks:
            yield self._done((role, seeds), partial(_within, tell, behind, len(seeds)))
            behind += len(seeds)
            tell(behind)

    def _chunks(self, missing: Sequence[tuple[str, int]]) -> Iterator[tuple[str, list[int]]]:
        size = self.at_once or (self._size() if missing else 1)
        for role in (BEFORE, RETRAINED):
            seeds = [seed for kind, seed in missing if kind == role]
            yield from ((role, seeds[at : at + size]) for at in range(0, len(seeds), size))

    def _size(self) -> int:
        training = self.case.trained
        if not isinstance(training, Training):
            return 1
        build, few = self.case.build(training), self.case.sets.named("forget")
        return at_once_for(build, device=self.device) if vectorises(build, few, device=self.device) else 1

    def _done(
        self, chunk: tuple[str, list[int]], tell: Callable[[float], None] = lambda _: None
    ) -> dict[tuple[str, int], dict[str, Record]]:
        """Train the models of one chunk, and return what was noted of each."""
        role, seeds = chunk
        data = self.case.sets.train if role == BEFORE else self.case.sets.remaining
        found: dict[tuple[str, int], dict[str, Record]] = {}
        start = time.perf_counter()
        everything = torch.arange(len(data))
        models = list(
            trained(
                self.case,
                data,
                [everything] * len(seeds),
                seeds,
                device=self.device,
                progress=lambda tick: tell(tick.done / max(1, tick.total) * 0.9),
                stage="train",
                at_once=len(seeds),
            )
        )
        spent = (time.perf_counter() - start) / len(seeds)
        for seed, model in zip(seeds, models, strict=True):
            noted = {role: self._noted(model, spent)}
            if role == BEFORE:
                for name, method in self.methods.items():
                    noted[name] = self._forgotten(name, method, model, seed)
            found[role, seed] = noted
            tell(0.9 + 0.1 * len(found) / len(seeds))
        self._keep(found)
        return found

    def _forgotten(self, name: str, method: Unlearner, model: Any, seed: int) -> Record:
        sets, training = self.case.sets, self.case.training
        retain = sets.remaining if isinstance(method, Retrain) else sets.retain
        try:
            result = method(
                model,
                sets.forget,
                sets.reference,
                retain,
                training=training if isinstance(training, Training) else None,
                forward=self.case.forward,
                seed=seed,
            )
        except ForsakenError as error:
            raise ForsakenError(f"{name} failed on an original of the ensemble (seed {seed}): {error}") from error
        return self._noted(result.model, result.seconds)

    def _noted(self, model: Any, seconds: float) -> Record:
        noted: dict[str, Array] = {"seconds": np.array(seconds)}
        for part, samples in self.views.items():
            noted[part], right = self.case.seen(model, samples)
            if part != "forget":
                noted[f"{part}.accuracy"] = np.array(right.mean())
        return noted

    # What was noted, on disk: a file for the models themselves, and one for each method's.

    def _known(self, role: str, seed: int) -> dict[str, Record] | None:
        paths = self._paths(role, seed)
        if not self._there(paths):
            return None
        return {who: self._checked(path) for who, path in paths.items()}

    def _there(self, paths: Mapping[str, Path]) -> bool:
        return bool(paths) and all(path.exists() for path in paths.values())

    def _checked(self, path: Path) -> Record:
        record = unpacked(path)
        wanted = {part: (len(samples),) for part, samples in self.views.items()} | {"seconds": ()}
        wanted |= {f"{part}.accuracy": () for part in self.views if part != "forget"}
        found = {name: value.shape for name, value in record.items()}
        if found != wanted or not all(np.isfinite(value).all() for value in record.values()):
            raise InputError(f"{path} is damaged: it holds other arrays than noted; delete it, and it is made anew")
        return record

    def _keep(self, found: Mapping[tuple[str, int], Mapping[str, Record]]) -> None:
        for (role, seed), noted in found.items():
            for who, path in self._paths(role, seed).items():
                if not path.exists():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_atomically(path, packed(noted[who]))

    def _paths(self, role: str, seed: int) -> dict[str, Path]:
        if self.folder is None or not isinstance(self.case.training, Training):
            return {}  # of a function nobody can tell whether it is the same as before
        if role == BEFORE and not all(map(cachable, self.methods.values())):
            return {}
        return {who: self.folder / key[:32] / f"{seed}.npz" for who, key in self._keys[role].items()}

    @cached_property
    def _keys(self) -> dict[str, dict[str, str]]:
        case, sets, training = self.case, self.case.sets, self.case.network
        trained = {
            role: training_identity(training, data, self.views, device=self.device, forward=case.forward)
            for role, data in ((BEFORE, sets.train), (RETRAINED, sets.remaining))
        }
        given = {"reference": sets.reference, "retain": sets.retain}
        own = {name: method_identity(trained[BEFORE], name, method, given) for name, method in self.methods.items()}
        return {BEFORE: {BEFORE: trained[BEFORE]} | own, RETRAINED: {RETRAINED: trained[RETRAINED]}}


def _within(tell: Callable[[float], None], behind: int, count: int, share: float) -> None:
    tell(behind + share * count)


def _tell(progress: Progress, stage: str, done: float, total: int) -> None:
    progress(Tick(stage, round(done * _PARTS_A_MODEL), total * _PARTS_A_MODEL))
