"""SISA: an ensemble over shards, so that forgetting retrains a part of a part."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from forsaken._checks import Problems
from forsaken._files import remove, remove_drafts
from forsaken.data.samples import Samples
from forsaken.engine import check_engine, fan_out
from forsaken.errors import InputError, ModelError, SettingsError, UnknownNameError
from forsaken.models.logits import as_logits
from forsaken.models.train import Training, usable_device
from forsaken.result import Step
from forsaken.types import Progress, silent
from forsaken.unlearning.base import About, Cost, Details, PreparedModel, Request, UpfrontUnlearner, stopwatch
from forsaken.unlearning.settings import number, other, whole
from forsaken.unlearning.sisa.shards import Rows, ShardedData, SliceStage, assign_shards, labels_of
from forsaken.unlearning.sisa.training import (
    Checkpoint,
    CheckpointStore,
    PlainTrainer,
    ShardTask,
    StageTrainer,
    State,
    TrainedShard,
    kept_stages,
    new_network,
    packed,
    train_shard,
)

_ELSEWHERE = ("engine", "workers")  # settings of where the work is done, which do not change the result
_ENGINES = "local, processes, ray, or ray://host:port"


@dataclass(frozen=True, kw_only=True)
class Sisa(UpfrontUnlearner):
    """Sharded, isolated, sliced and aggregated training: `prepare` trains the ensemble, a call makes it forget.

    The training data are assigned to shards, each of which trains a network of its own, slice after slice, with a
    checkpoint after each; the networks vote. To forget, each shard that held a sample goes back to the last checkpoint
    before it and trains on without it. The result is bit for bit the ensemble that was assigned the same rows and never
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
    steps; a sample that no step has used is only taken off the list of the training data, and the weights stay. The
    fact `longest_shard_seconds` is what a request takes at least where every shard has a machine of its own; locally
    they train one after the other.
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
    ) -> PreparedModel:
        """Train the ensemble, with checkpoints in `folder`, or in a temporary one that lives as long as the model.

        See `UpfrontUnlearner.prepare`.
        """
        labels_of(data)
        if folder is None and self.engine.startswith("ray://"):
            raise SettingsError("on a cluster the checkpoints need a place that all machines share; give folder=")
        with stopwatch(nn.Identity()) as clock:
            sharded = assign_shards(data, self.shards, self.slices, seed)
            trainer = self._trainer(training, sharded)
            a_checkpoint = len(packed(new_network(trainer, sharded.start_seed(0)).state_dict()))
            ensemble_state = EnsembleState(
                method=type(self).__name__,
                settings={name: value for name, value in self.settings.items() if name not in _ELSEWHERE},
                sharded=sharded,
                trainer=trainer,
                store=CheckpointStore(folder),
                keep=kept_stages(sharded.slices, a_checkpoint, self.space / self.shards),
                full_bytes=self.shards * sharded.slices * a_checkpoint,
                checkpoints=({},) * self.shards,
                trainings=((),) * self.shards,
            )
            ensemble = SisaEnsemble(_networks(ensemble_state, training), ensemble_state)
            self._train_shards(ensemble, sharded, dict.fromkeys(range(self.shards), 1), None, seed, progress)
        return PreparedModel(ensemble.eval(), Cost(clock.seconds, ensemble.bytes, ensemble_state.full_bytes))

    def run(self, student: nn.Module, request: Request) -> Details:
        """Retrain the touched shards of an ensemble. See `Unlearner.run`."""
        if not isinstance(student, SisaEnsemble):
            raise ModelError(
                f"{type(self).__name__} cannot make a {type(student).__name__} forget, only an ensemble of its own: "
                "train it with prepare(training, data, seed=...) and give its model"
            )
        old = student.ensemble_state
        self._check_settings(old)
        rows = old.sharded.find(request.forget)
        if len(rows) == len(old.sharded.shard):
            raise InputError("forget holds all training data, so no shard would be left; delete the model instead")
        sharded = old.sharded.without(rows)
        trained = self._train_shards(
            student, sharded, _first_stages(old, sharded, rows), rows, request.seed, request.progress
        )
        steps = sum(done.steps for done in trained)
        rate = old.trainer.training.recipe.learning_rate
        history = tuple(
            Step(at, done.loss_kept, done.loss_forgotten, done.loss_kept, 0.0, 0.0, rate, done.seconds)
            for at, done in enumerate(trained, start=1)
        )
        facts = {
            "shards_retrained": len(trained),
            "stages_retrained": sum(sharded.slices - done.first + 1 for done in trained),
            "samples_passed": sum(done.passes for done in trained),
            "longest_shard_seconds": max((done.seconds for done in trained), default=0.0),
            "rows_forgotten": len(rows),
            "slices": sharded.slices,
            "bytes": student.bytes,
            "full_bytes": old.full_bytes,
            "old_bytes": sum(each.bytes for each in _files(old) - _files(student.ensemble_state)),
            **self._facts_of_variant(student.ensemble_state),
        }
        notes = [*self._notes(sharded, facts, request), *self._notes_of_variant(facts)]
        if not trained:
            notes.insert(0, "no step had used the samples, so the weights stay; only the list of training data changed")
        stopped = "iterations" if trained else "not-memorised"
        return Details(stopped, len(history), max(steps, len(history)), history, None, facts, tuple(notes))

    def _trainer(self, training: Training, sharded: ShardedData) -> StageTrainer:  # noqa: ARG002 (for those who plan ahead)
        """Return how constituents are trained."""
        return PlainTrainer.of(training)

    def _publish(self, done: TrainedShard, ensemble_state: EnsembleState, seed: int) -> State:  # noqa: ARG002 (for those who add noise)
        """Return the weights of a constituent that the model shows."""
        return done.state

    def _facts_of_variant(self, ensemble_state: EnsembleState) -> dict[str, Any]:  # noqa: ARG002 (SISA has said it all)
        """Return what a subclass has to say in numbers."""
        return {}

    def _notes_of_variant(self, facts: Mapping[str, Any]) -> list[str]:  # noqa: ARG002 (as above)
        """Return what a subclass has to say in sentences."""
        return []

    def _train_shards(
        self,
        ensemble: SisaEnsemble,
        sharded: ShardedData,
        first: dict[int, int],
        gone: Rows | None,
        seed: int,
        progress: Progress,
    ) -> list[TrainedShard]:
        """Train shards from their first stage on, with the rows of `sharded`; leave no file behind if that fails."""
        ensemble_state = ensemble.ensemble_state
        if not first:
            ensemble.ensemble_state = _later(ensemble_state, sharded, ())
            return []
        with _generation(ensemble_state) as folder:
            tasks = [_task(ensemble_state, sharded, shard, stage, gone, folder) for shard, stage in first.items()]
            local = self.engine == "local"
            on_gpu = usable_device(ensemble_state.trainer.training.device).type == "cuda"
            trained = fan_out(
                # a progress function cannot follow a task to another process
                partial(train_shard, progress=progress) if local else train_shard,
                tasks,
                engine=self.engine,
                workers=self.workers,
                gpus=1.0 if on_gpu else 0.0,
                progress=progress,
                stage="shards",
            )
            ensemble.ensemble_state = _later(ensemble_state, sharded, trained)
            for done in trained:
                ensemble.constituents[done.shard].load_state_dict(self._publish(done, ensemble.ensemble_state, seed))
        return trained

    def _check_settings(self, ensemble_state: EnsembleState) -> None:
        name = type(self).__name__
        if ensemble_state.method != name:
            raise SettingsError(f"the model was prepared by {ensemble_state.method}; {name} cannot make it forget")
        differing = [key for key, value in ensemble_state.settings.items() if self.settings[key] != value]
        if differing:
            told = ", ".join(f"{key}={ensemble_state.settings[key]!r}" for key in differing)
            raise SettingsError(f"the model was prepared with {told}; give {name} the same settings as then")

    def _notes(self, sharded: ShardedData, facts: Mapping[str, Any], request: Request) -> Iterator[str]:
        rows = facts["rows_forgotten"]
        if sharded.slices < self.slices:
            yield f"each shard has {sharded.slices} slices, not {self.slices}: a slice holds at least one row"
        if rows > len(request.forget):
            yield f"{rows} rows of the training data equal the {len(request.forget)} samples; all were forgotten"
        empty = sharded.shards - len(sharded.voters)
        if empty:
            yield f"{empty} of {sharded.shards} shards have no rows left and no vote"
        if facts["old_bytes"]:
            yield (
                "checkpoints of the model handed over still remember what was forgotten; when it is no longer needed, "
                "delete them with old.discard(new)"
            )


def _first_stages(old: EnsembleState, sharded: ShardedData, rows: Rows) -> dict[int, int]:
    """Return the touched shards, each with the stage after its last checkpoint before its first forgotten row.

    A shard is left out where no stage from that row on has steps, with it or without: its networks and checkpoints are
    already those of a shard that never had the row.
    """
    found = {}
    for shard in np.unique(old.sharded.shard[rows]).tolist():
        touched = rows[old.sharded.shard[rows] == shard]
        first = int(old.sharded.slice[touched].min())
        plans = (_stages(old.trainer, data, shard) for data in (old.sharded, sharded))
        if any(stage.steps for stages in plans for stage in stages[first - 1 :]):
            found[shard] = 1 + max((stage for stage in old.checkpoints[shard] if stage < first), default=0)
    return found


def _stages(trainer: StageTrainer, sharded: ShardedData, shard: int) -> tuple[SliceStage, ...]:
    return trainer.plan(sharded.sizes(shard), tuple(int(count) for count in sharded.assigned[shard].cumsum()))


def _task(
    ensemble_state: EnsembleState, sharded: ShardedData, shard: int, first: int, gone: Rows | None, folder: Path
) -> ShardTask:
    was = ensemble_state.sharded
    return ShardTask(
        shard=shard,
        trainer=ensemble_state.trainer,
        data=sharded.of(shard),
        stages=_stages(ensemble_state.trainer, sharded, shard),
        first=first,
        start=ensemble_state.checkpoints[shard].get(first - 1),
        start_seed=sharded.start_seed(shard),
        stage_seeds=ensemble_state.trainer.seeds(sharded, shard),
        keep=ensemble_state.keep,
        folder=folder,
        forgotten=None if gone is None else was.data.rows(gone[was.shard[gone] == shard]),
    )


def _later(old: EnsembleState, sharded: ShardedData, trained: Sequence[TrainedShard]) -> EnsembleState:
    """Return where an ensemble stands after some of its shards were trained."""
    checkpoints, trainings = list(old.checkpoints), list(old.trainings)
    for done in trained:
        earlier = {stage: each for stage, each in checkpoints[done.shard].items() if stage < done.first}
        checkpoints[done.shard] = {**earlier, **done.checkpoints}
        trainings[done.shard] = (*trainings[done.shard], done.first)
    return replace(old, sharded=sharded, checkpoints=tuple(checkpoints), trainings=tuple(trainings))


def _networks(ensemble_state: EnsembleState, training: Training) -> list[nn.Module]:
    place = usable_device(training.device)
    sharded = ensemble_state.sharded
    return [new_network(ensemble_state.trainer, sharded.start_seed(shard)).to(place) for shard in range(sharded.shards)]


def _files(ensemble_state: EnsembleState) -> set[Checkpoint]:
    return {each for shard in ensemble_state.checkpoints for each in shard.values()}


@contextmanager
def _generation(ensemble_state: EnsembleState) -> Iterator[Path]:
    """Make a folder for new checkpoints, and remove it if the block fails."""
    if not ensemble_state.keep:
        yield Path(os.devnull)
        return
    folder = ensemble_state.store.generation()
    try:
        yield folder
    except BaseException:
        with suppress(OSError):
            remove(folder)
        raise
    remove_drafts(folder)  # of killed writers; they may remember samples


@dataclass(frozen=True, slots=True, eq=False)
class EnsembleState:
    """Where an ensemble stands: everything that a request needs. Never changed; a request makes a new one.

    Attributes
    ----------
    method, settings : str, mapping
        Who prepared the ensemble, and how.
    sharded : ShardedData
        The rows that it was trained on, with their shards and slices.
    trainer : StageTrainer
        How its members are trained.
    store : CheckpointStore
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
    sharded: ShardedData
    trainer: StageTrainer
    store: CheckpointStore
    keep: tuple[int, ...]
    full_bytes: int
    checkpoints: tuple[Mapping[int, Checkpoint], ...]
    trainings: tuple[tuple[int, ...], ...]

    def __deepcopy__(self, memo: object) -> EnsembleState:
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
    ensemble_state : EnsembleState
        What a request needs.
    """

    def __init__(self, constituents: list[nn.Module], ensemble_state: EnsembleState) -> None:
        super().__init__()
        self.constituents = nn.ModuleList(constituents)
        self.ensemble_state = ensemble_state

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Return the logarithm of the posterior (samples x classes)."""
        voters = self.ensemble_state.sharded.voters
        outputs = [net(*inputs, **named) for at, net in enumerate(self.constituents) if at in voters]
        outputs = [as_logits(getattr(output, "logits", output)) for output in outputs]
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
            remove(each.path)
        for folder in {each.path.parent for each in old}:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        return sum(each.bytes for each in old)

    def _files(self) -> set[Checkpoint]:
        return {each for shard in self.ensemble_state.checkpoints for each in shard.values()}


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
