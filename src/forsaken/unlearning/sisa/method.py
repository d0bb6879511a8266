"""SISA: an ensemble over shards, so that forgetting retrains a part of a part."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor, nn

from forsaken._checks import Problems
from forsaken.data.samples import Samples
from forsaken.engine import check_engine, fan_out
from forsaken.errors import InputError, ModelError, SettingsError, UnknownNameError
from forsaken.models.train import Training, usable_device
from forsaken.types import Progress, silent
from forsaken.unlearning.base import About, Details, Step, stopwatch
from forsaken.unlearning.request import Request
from forsaken.unlearning.settings import number, other, whole
from forsaken.unlearning.sisa.ensemble import SisaEnsemble, Standing
from forsaken.unlearning.sisa.shards import Ledger, Rows, deal, labels_of
from forsaken.unlearning.sisa.store import Checkpoint, State, Store, clear_drafts, kept_stages, packed
from forsaken.unlearning.sisa.training import Plain, Task, Taught, Teacher, new_network, teach
from forsaken.unlearning.upfront import Cost, Readied, UpfrontUnlearner

_ELSEWHERE = ("engine", "workers")  # settings of where the work is done, which do not change the result
_ENGINES = "local, ray, or ray://host:port"


@dataclass(frozen=True, kw_only=True)
class Sisa(UpfrontUnlearner):
    """Sharded, isolated, sliced and aggregated training: `prepare` trains the ensemble, a call makes it forget.

    The training data are dealt to shards, each of which trains a network of its own, slice after slice, with a
    checkpoint after each; the networks vote. To forget, each shard that held a sample goes back to the last checkpoint
    before it and trains on without it. The result is bit for bit the ensemble that never had the samples: forgetting is
    exact, and paid for with storage and with weaker constituents (Bourtoule et al., "Machine Unlearning", 2021).

    Parameters
    ----------
    shards, slices : int
        Parts of the data, and parts of each part. A slice holds at least one row: of few data there are fewer slices,
        and the notes say so.
    space : float
        The bytes that the checkpoints of one ensemble may use. Where one after every slice would take more, every k-th
        is kept; the result is the same, forgetting takes longer.
    engine, workers
        Where shards are trained; see `forsaken.engine.fan_out`. A cluster (ray://) needs a `folder` that all of its
        machines share.

    Notes
    -----
    A stage lasts 2·epochs / (slices + 1) epochs, so that samples are passed as often as in plain training. Its
    optimiser is new, since checkpoints hold weights alone, and the recipe's schedule runs once a stage. The model of a
    request belongs to a new generation of files; those of the model handed over stay until
    ``old.discard(new)`` deletes what the new one does not use.
    """

    about: ClassVar[About] = About(
        summary="an ensemble over shards and slices; those that held the samples are trained again from a checkpoint",
        paper='Bourtoule et al., "Machine Unlearning", IEEE S&P 2021',
        needs=("forget (rows of the training data)",),
        upfront="trains the model itself, as an ensemble, and keeps checkpoints on disk",
    )

    shards: int = whole(10, "parts of the data, each with a network of its own", least=1)
    slices: int = whole(100, "parts of a shard, with a checkpoint after each", least=1)
    space: float = number(2e9, "the bytes that checkpoints may use")
    engine: str = other("local", "where shards are trained", _ENGINES)
    workers: int | None = whole(None, "the most shards at a time on Ray", least=1)

    def problems(self, found: Problems) -> None:
        """Note an engine that is not known."""
        try:
            check_engine(self.engine)
        except UnknownNameError as error:
            found.add(str(error))

    def prepare(
        self,
        training: Training,
        data: Samples,
        *,
        seed: int,
        folder: Path | None = None,
        watched: Tensor | None = None,  # noqa: ARG002 (every row may be forgotten)
        progress: Progress = silent,
    ) -> Readied:
        """Train the ensemble, with checkpoints in `folder`, or in a temporary one that lives as long as the model.

        See `UpfrontUnlearner.prepare`.
        """
        labels_of(data)
        if folder is None and self.engine.startswith("ray://"):
            raise SettingsError("on a cluster the checkpoints need a place that all machines share; give folder=")
        with stopwatch(nn.Identity()) as clock:
            ledger = deal(data, self.shards, self.slices, seed)
            teacher = self._teacher(training, ledger)
            a_checkpoint = len(packed(new_network(teacher, ledger.start_seed(0)).state_dict()))
            standing = Standing(
                method=type(self).__name__,
                settings={name: value for name, value in self.settings.items() if name not in _ELSEWHERE},
                ledger=ledger,
                teacher=teacher,
                store=Store(folder),
                keep=kept_stages(ledger.slices, a_checkpoint, self.space / self.shards),
                full_bytes=self.shards * ledger.slices * a_checkpoint,
                checkpoints=({},) * self.shards,
                trainings=((),) * self.shards,
            )
            taught = self._teach(standing, ledger, dict.fromkeys(range(self.shards), 1), None, progress)
            ensemble = SisaEnsemble(_networks(standing, training), _later(standing, ledger, taught))
            self._load(ensemble, taught, seed)
        return Readied(ensemble.eval(), Cost(clock.seconds, ensemble.bytes, standing.full_bytes))

    def run(self, student: nn.Module, request: Request) -> Details:
        """Retrain the touched shards of an ensemble. See `Unlearner.run`."""
        if not isinstance(student, SisaEnsemble):
            raise ModelError(
                f"{type(self).__name__} cannot make a {type(student).__name__} forget, only an ensemble of its own: "
                "train it with prepare(training, data, seed=...) and give its model"
            )
        old = student.standing
        self._check_settings(old)
        rows = old.ledger.find(request.forget)
        if len(rows) == len(old.ledger.shard):
            raise InputError("forget holds all training data, so no shard would be left; delete the model instead")
        ledger = old.ledger.without(rows)
        taught = self._teach(old, ledger, _first_stages(old, rows), rows, request.progress)
        student.standing = _later(old, ledger, taught)
        self._load(student, taught, request.seed)
        steps = sum(done.steps for done in taught)
        rate = old.teacher.training.recipe.learning_rate
        history = tuple(
            Step(at, done.loss_kept, done.loss_forgotten, done.loss_kept, 0.0, 0.0, rate, done.seconds)
            for at, done in enumerate(taught, start=1)
        )
        facts = {
            "shards_retrained": len(taught),
            "stages_retrained": sum(ledger.slices - done.first + 1 for done in taught),
            "samples_passed": sum(done.passes for done in taught),
            "rows_forgotten": len(rows),
            "slices": ledger.slices,
            "bytes": student.bytes,
            "full_bytes": old.full_bytes,
            "old_bytes": sum(each.bytes for each in _files(old) - _files(student.standing)),
            **self._facts(student.standing),
        }
        notes = [*self._notes(student.standing, rows, request), *self._told(facts)]
        return Details("iterations", len(history), max(steps, len(history)), history, None, facts, tuple(notes))

    def _teacher(self, training: Training, ledger: Ledger) -> Teacher:  # noqa: ARG002 (for those who plan ahead)
        """Return how constituents are trained."""
        return Plain.of(training)

    def _publish(self, done: Taught, standing: Standing, seed: int) -> State:  # noqa: ARG002 (for those who add noise)
        """Return the weights of a constituent that the model shows."""
        return done.state

    def _facts(self, standing: Standing) -> dict[str, Any]:  # noqa: ARG002 (SISA has said it all)
        """Return what a subclass has to say in numbers."""
        return {}

    def _told(self, facts: Mapping[str, Any]) -> list[str]:  # noqa: ARG002 (as above)
        """Return what a subclass has to say in sentences."""
        return []

    def _teach(
        self, standing: Standing, ledger: Ledger, first: dict[int, int], gone: Rows | None, progress: Progress
    ) -> list[Taught]:
        """Train shards from their first stage on, with the ledger's rows; leave no file behind if that fails."""
        with _generation(standing) as folder:
            tasks = [_task(standing, ledger, shard, stage, gone, folder) for shard, stage in first.items()]
            local = self.engine == "local"
            on_gpu = usable_device(standing.teacher.training.device).type == "cuda"
            return fan_out(
                # a progress function cannot follow a task to another process
                partial(teach, progress=progress) if local else teach,
                tasks,
                engine=self.engine,
                workers=self.workers,
                gpus=1.0 if on_gpu else 0.0,
                progress=progress,
                stage="shards",
            )

    def _load(self, ensemble: SisaEnsemble, taught: Sequence[Taught], seed: int) -> None:
        for done in taught:
            ensemble.constituents[done.shard].load_state_dict(self._publish(done, ensemble.standing, seed))

    def _check_settings(self, standing: Standing) -> None:
        name = type(self).__name__
        if standing.method != name:
            raise SettingsError(f"the model was prepared by {standing.method}; {name} cannot make it forget")
        differing = [key for key, value in standing.settings.items() if self.settings[key] != value]
        if differing:
            told = ", ".join(f"{key}={standing.settings[key]!r}" for key in differing)
            raise SettingsError(f"the model was prepared with {told}; give {name} the same settings as then")

    def _notes(self, standing: Standing, rows: Rows, request: Request) -> Iterator[str]:
        ledger = standing.ledger
        if ledger.slices < self.slices:
            yield f"each shard has {ledger.slices} slices, not {self.slices}: a slice holds at least one row"
        if len(rows) > len(request.forget):
            yield f"{len(rows)} rows of the training data equal the {len(request.forget)} samples; all were forgotten"
        empty = ledger.shards - len(ledger.voters)
        if empty:
            yield f"{empty} of {ledger.shards} shards have no rows left and no vote"
        if standing.keep:
            yield (
                "checkpoints of the model handed over still remember what was forgotten; when it is no longer needed, "
                "delete them with old.discard(new)"
            )


def _first_stages(old: Standing, rows: Rows) -> dict[int, int]:
    """Return the touched shards, each with the stage after its last checkpoint before its first forgotten row."""
    found = {}
    for shard in np.unique(old.ledger.shard[rows]).tolist():
        touched = rows[old.ledger.shard[rows] == shard]
        first = int(old.ledger.slice[touched].min())
        found[shard] = 1 + max((stage for stage in old.checkpoints[shard] if stage < first), default=0)
    return found


def _task(standing: Standing, ledger: Ledger, shard: int, first: int, gone: Rows | None, folder: Path) -> Task:
    dealt = tuple(int(count) for count in ledger.dealt[shard].cumsum())
    was = standing.ledger
    return Task(
        shard=shard,
        teacher=standing.teacher,
        data=ledger.of(shard),
        stages=standing.teacher.plan(ledger.sizes(shard), dealt),
        first=first,
        start=standing.checkpoints[shard].get(first - 1),
        start_seed=ledger.start_seed(shard),
        stage_seeds=ledger.stage_seeds(shard),
        keep=standing.keep,
        folder=folder,
        forgotten=None if gone is None else was.data.rows(gone[was.shard[gone] == shard]),
    )


def _later(old: Standing, ledger: Ledger, taught: Sequence[Taught]) -> Standing:
    """Return where an ensemble stands after some of its shards were trained."""
    checkpoints, trainings = list(old.checkpoints), list(old.trainings)
    for done in taught:
        earlier = {stage: each for stage, each in checkpoints[done.shard].items() if stage < done.first}
        checkpoints[done.shard] = {**earlier, **done.checkpoints}
        trainings[done.shard] = (*trainings[done.shard], done.first)
    return replace(old, ledger=ledger, checkpoints=tuple(checkpoints), trainings=tuple(trainings))


def _networks(standing: Standing, training: Training) -> list[nn.Module]:
    place = usable_device(training.device)
    ledger = standing.ledger
    return [new_network(standing.teacher, ledger.start_seed(shard)).to(place) for shard in range(ledger.shards)]


def _files(standing: Standing) -> set[Checkpoint]:
    return {each for shard in standing.checkpoints for each in shard.values()}


@contextmanager
def _generation(standing: Standing) -> Iterator[Path]:
    """Make a folder for new checkpoints, and remove it if the block fails."""
    if not standing.keep:
        yield Path(os.devnull)
        return
    folder = standing.store.generation()
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    clear_drafts(folder)
