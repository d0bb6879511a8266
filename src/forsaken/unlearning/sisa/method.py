"""SISA: an ensemble over shards, so that forgetting retrains a part of a part."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from forsaken._checks import Problems
from forsaken.data.samples import Samples
from forsaken.engine import check_engine, fan_out
from forsaken.errors import InputError, ModelError, SettingsError, UnknownNameError
from forsaken.models.logits import as_logits
from forsaken.models.train import Training, usable_device
from forsaken.result import Step
from forsaken.types import Progress, silent
from forsaken.unlearning.base import About, Cost, Details, Readied, Request, UpfrontUnlearner, stopwatch
from forsaken.unlearning.settings import number, other, whole
from forsaken.unlearning.sisa.shards import Ledger, Rows, Stage, deal, labels_of
from forsaken.unlearning.sisa.training import (
    Checkpoint,
    Plain,
    State,
    Store,
    Task,
    Taught,
    Teacher,
    clear_drafts,
    kept_stages,
    new_network,
    packed,
    teach,
)

_ELSEWHERE = ("engine", "workers")  # settings of where the work is done, which do not change the result
_ENGINES = "local, ray, or ray://host:port"


@dataclass(frozen=True, kw_only=True)
class Sisa(UpfrontUnlearner):
    """Sharded, isolated, sliced and aggregated training: `prepare` trains the ensemble, a call makes it forget.

    The training data are dealt to shards, each of which trains a network of its own, slice after slice, with a
    checkpoint after each; the networks vote. To forget, each shard that held a sample goes back to the last checkpoint
    before it and trains on without it. The result is bit for bit the ensemble that was dealt the same rows and never
    had the samples: forgetting is exact, and paid for with storage and with weaker constituents (Bourtoule et al.,
    "Machine Unlearning", 2021).

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
    ``old.discard(new)`` deletes what the new one does not use. With few epochs and many slices some stages have no
    steps; a sample that no step has used leaves the books, and the weights stay. The fact `longest_shard_seconds` is
    what a request takes at least where every shard has a machine of its own; locally they train one after the other.
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
            ensemble = SisaEnsemble(_networks(standing, training), standing)
            self._teach(ensemble, ledger, dict.fromkeys(range(self.shards), 1), None, seed, progress)
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
        taught = self._teach(student, ledger, _first_stages(old, ledger, rows), rows, request.seed, request.progress)
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
            "longest_shard_seconds": max((done.seconds for done in taught), default=0.0),
            "rows_forgotten": len(rows),
            "slices": ledger.slices,
            "bytes": student.bytes,
            "full_bytes": old.full_bytes,
            "old_bytes": sum(each.bytes for each in _files(old) - _files(student.standing)),
            **self._facts(student.standing),
        }
        notes = [*self._notes(ledger, facts, request), *self._told(facts)]
        if not taught:
            notes.insert(0, "no step had used the samples, so the weights are as they were; the books are without them")
        stopped = "iterations" if taught else "not-memorised"
        return Details(stopped, len(history), max(steps, len(history)), history, None, facts, tuple(notes))

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
        self,
        ensemble: SisaEnsemble,
        ledger: Ledger,
        first: dict[int, int],
        gone: Rows | None,
        seed: int,
        progress: Progress,
    ) -> list[Taught]:
        """Train shards from their first stage on, with the ledger's rows; leave no file behind if that fails."""
        standing = ensemble.standing
        if not first:
            ensemble.standing = _later(standing, ledger, ())
            return []
        with _generation(standing) as folder:
            tasks = [_task(standing, ledger, shard, stage, gone, folder) for shard, stage in first.items()]
            local = self.engine == "local"
            on_gpu = usable_device(standing.teacher.training.device).type == "cuda"
            taught = fan_out(
                # a progress function cannot follow a task to another process
                partial(teach, progress=progress) if local else teach,
                tasks,
                engine=self.engine,
                workers=self.workers,
                gpus=1.0 if on_gpu else 0.0,
                progress=progress,
                stage="shards",
            )
            ensemble.standing = _later(standing, ledger, taught)
            for done in taught:
                ensemble.constituents[done.shard].load_state_dict(self._publish(done, ensemble.standing, seed))
        return taught

    def _check_settings(self, standing: Standing) -> None:
        name = type(self).__name__
        if standing.method != name:
            raise SettingsError(f"the model was prepared by {standing.method}; {name} cannot make it forget")
        differing = [key for key, value in standing.settings.items() if self.settings[key] != value]
        if differing:
            told = ", ".join(f"{key}={standing.settings[key]!r}" for key in differing)
            raise SettingsError(f"the model was prepared with {told}; give {name} the same settings as then")

    def _notes(self, ledger: Ledger, facts: Mapping[str, Any], request: Request) -> Iterator[str]:
        rows = facts["rows_forgotten"]
        if ledger.slices < self.slices:
            yield f"each shard has {ledger.slices} slices, not {self.slices}: a slice holds at least one row"
        if rows > len(request.forget):
            yield f"{rows} rows of the training data equal the {len(request.forget)} samples; all were forgotten"
        empty = ledger.shards - len(ledger.voters)
        if empty:
            yield f"{empty} of {ledger.shards} shards have no rows left and no vote"
        if facts["old_bytes"]:
            yield (
                "checkpoints of the model handed over still remember what was forgotten; when it is no longer needed, "
                "delete them with old.discard(new)"
            )


def _first_stages(old: Standing, ledger: Ledger, rows: Rows) -> dict[int, int]:
    """Return the touched shards, each with the stage after its last checkpoint before its first forgotten row.

    A shard is left out where no stage from that row on has steps, with it or without: its networks and checkpoints are
    already those of a shard that never had the row.
    """
    found = {}
    for shard in np.unique(old.ledger.shard[rows]).tolist():
        touched = rows[old.ledger.shard[rows] == shard]
        first = int(old.ledger.slice[touched].min())
        plans = (_stages(old.teacher, books, shard) for books in (old.ledger, ledger))
        if any(stage.steps for stages in plans for stage in stages[first - 1 :]):
            found[shard] = 1 + max((stage for stage in old.checkpoints[shard] if stage < first), default=0)
    return found


def _stages(teacher: Teacher, ledger: Ledger, shard: int) -> tuple[Stage, ...]:
    return teacher.plan(ledger.sizes(shard), tuple(int(count) for count in ledger.dealt[shard].cumsum()))


def _task(standing: Standing, ledger: Ledger, shard: int, first: int, gone: Rows | None, folder: Path) -> Task:
    was = standing.ledger
    return Task(
        shard=shard,
        teacher=standing.teacher,
        data=ledger.of(shard),
        stages=_stages(standing.teacher, ledger, shard),
        first=first,
        start=standing.checkpoints[shard].get(first - 1),
        start_seed=ledger.start_seed(shard),
        stage_seeds=standing.teacher.seeds(ledger, shard),
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


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Where an ensemble stands: everything that a request needs. Never changed; a request makes a new one.

    Attributes
    ----------
    method, settings : str, mapping
        Who prepared the ensemble, and how.
    ledger : Ledger
        The rows that it was trained on, with their shards and slices.
    teacher : Teacher
        How its members are trained.
    store : Store
        Where checkpoints go.
    keep : tuple of int
        After which slices one is kept.
    full_bytes : int
        What one after every slice would take.
    checkpoints : tuple of mappings
        For each shard, the checkpoints by slice.
    trainings : tuple of int
        For each shard, the stage that each of its trainings began with.
    """

    method: str
    settings: Mapping[str, Any]
    ledger: Ledger
    teacher: Teacher
    store: Store
    keep: tuple[int, ...]
    full_bytes: int
    checkpoints: tuple[Mapping[int, Checkpoint], ...]
    trainings: tuple[tuple[int, ...], ...]

    def __deepcopy__(self, memo: object) -> Standing:
        return self


class SisaEnsemble(nn.Module):
    """The constituents of SISA as one classifier: a majority vote, and the mean posterior of those who won it.

    The output is the logarithm of that posterior, so that its softmax is the posterior itself. Among classes with as
    many votes the one with the larger mean posterior over all constituents wins. A constituent whose samples have all
    been forgotten has no vote. Copies share the data and the checkpoint files, which are never overwritten.

    Attributes
    ----------
    constituents : ModuleList
        One network a shard.
    standing : Standing
        What a request needs.
    """

    def __init__(self, constituents: list[nn.Module], standing: Standing) -> None:
        super().__init__()
        self.constituents = nn.ModuleList(constituents)
        self.standing = standing

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Return the logarithm of the posterior (samples x classes)."""
        voters = self.standing.ledger.voters
        outputs = [as_logits(net(*inputs, **named)) for at, net in enumerate(self.constituents) if at in voters]
        return vote(torch.stack(outputs))

    @property
    def bytes(self) -> int:
        """What its checkpoints take on disk."""
        return sum(each.bytes for each in self._files())

    def unused(self, successor: SisaEnsemble | None = None) -> list[Checkpoint]:
        """Return the checkpoints that a successor, which has forgotten more, does not use."""
        used = set() if successor is None else successor._files()
        return sorted(self._files() - used, key=lambda each: each.path)

    def discard(self, successor: SisaEnsemble | None = None) -> int:
        """Delete the checkpoints that `successor` does not use, and return how many bytes that freed.

        They were trained on samples that the successor has forgotten, so they remember them. This ensemble still
        predicts afterwards, but it cannot forget any more.
        """
        old = self.unused(successor)
        for each in old:
            each.path.unlink(missing_ok=True)
        for folder in {each.path.parent for each in old}:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        return sum(each.bytes for each in old)

    def _files(self) -> set[Checkpoint]:
        return {each for shard in self.standing.checkpoints for each in shard.values()}


def vote(logits: Tensor) -> Tensor:
    """Return the logarithm of the winners' mean posterior.

    Parameters
    ----------
    logits : Tensor, shape (constituents, samples, classes)

    Returns
    -------
    Tensor, shape (samples, classes)

    >>> one, two = [2.0, 0.0], [0.0, 1.0]
    >>> vote(torch.tensor([[one], [one], [two]])).exp()
    tensor([[0.8808, 0.1192]])
    """
    logs = logits.log_softmax(2)
    votes = logits.argmax(2)
    counts = nn.functional.one_hot(votes, logits.shape[2]).sum(0)
    # votes are whole and a mean posterior is at most 1, so half of it decides ties and nothing else
    winner = (counts + 0.5 * logs.double().exp().mean(0)).argmax(1)
    won = (votes == winner).unsqueeze(2)
    # sums of logarithms stay finite where posteriors would round to zero
    total = logs.masked_fill(~won, -math.inf).logsumexp(0)
    return total - won.sum(0).to(total.dtype).log()
