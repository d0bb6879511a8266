"""One shard's training: stage by stage, from the beginning or from a checkpoint."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from forsaken._files import make_folder, write_atomically
from forsaken._random import torch_seed
from forsaken.data.nest import map_nest
from forsaken.data.samples import Samples
from forsaken.errors import ModelError, NonFiniteError, OutputError
from forsaken.models.logits import caller, copied, evaluation
from forsaken.models.train import Training, train, usable_device
from forsaken.types import Progress, Tick, silent
from forsaken.unlearning.sisa.shards import ShardedData, SliceStage, plan

_LOSS_BATCH = 512


class StageTrainer(Protocol):
    """How a constituent is built and how one stage of it is trained; it travels to Ray's workers."""

    @property
    def training(self) -> Training:
        """The network, the recipe and the device."""

    def plan(self, sizes: tuple[int, ...], assigned: tuple[int, ...]) -> tuple[SliceStage, ...]:
        """Return the stages of a shard whose slices 1 to i hold so many rows now, and held so many when assigned."""

    def seeds(self, sharded: ShardedData, shard: int) -> tuple[int, ...]:
        """Return the seed of each of a shard's stages, which must follow from its rows up to that stage alone."""

    def build(self) -> nn.Module:
        """Return a new network."""

    def train_stage(self, network: nn.Module, data: Samples, stage: SliceStage, seed: int) -> nn.Module:
        """Train the network for one stage, with an optimiser of its own."""


@dataclass(frozen=True, slots=True)
class PlainTrainer:
    """Trains a stage by the training's recipe. The optimiser is new in each stage: checkpoints hold weights alone."""

    training: Training
    least: int = 1

    @classmethod
    def of(cls, training: Training) -> PlainTrainer:
        """Return the trainer of a training's network, which with batch-norm takes no sample alone."""
        with torch_seed(0):
            parts = training.build().modules()
        normed = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in parts)
        return cls(training, 2 if normed else 1)

    def plan(self, sizes: tuple[int, ...], assigned: tuple[int, ...]) -> tuple[SliceStage, ...]:  # noqa: ARG002 (the protocol's)
        """Return the stages for the rows that there are now."""
        return plan(sizes, self.training.recipe.epochs, self.training.recipe.batch_size, least=self.least)

    def seeds(self, sharded: ShardedData, shard: int) -> tuple[int, ...]:
        """Return the seeds of the first assignment, whatever rows are left."""
        return sharded.stage_seeds(shard)

    def build(self) -> nn.Module:
        """Return a new network."""
        return self.training.build()

    def train_stage(self, network: nn.Module, data: Samples, stage: SliceStage, seed: int) -> nn.Module:
        """Train the network for one stage."""
        recipe, device = replace(self.training.recipe, batch_size=stage.batch), self.training.device
        return train(lambda: network, data, recipe, seed=seed, device=device, steps=stage.steps)


@dataclass(frozen=True, slots=True)
class ShardTask:
    """The training of one shard.

    Attributes
    ----------
    shard : int
        Its number, from 0.
    trainer : StageTrainer
        How it is trained.
    data : Samples
        Its rows, in the order of its slices.
    stages : tuple of SliceStage
        All of them.
    first : int
        The stage to begin with, from 1.
    start : Checkpoint or None
        The checkpoint after the stage before; None begins with new weights.
    start_seed, stage_seeds : int, tuple of int
        Seeds of the new weights and of each stage.
    keep : tuple of int
        The stages after which a checkpoint is kept.
    folder : Path
        Where it goes.
    forgotten : Samples or None
        What was in the shard and is to be forgotten, for the curve alone.
    """

    shard: int
    trainer: StageTrainer
    data: Samples
    stages: tuple[SliceStage, ...]
    first: int
    start: Checkpoint | None
    start_seed: int
    stage_seeds: tuple[int, ...]
    keep: tuple[int, ...]
    folder: Path
    forgotten: Samples | None = None


@dataclass(frozen=True, slots=True)
class TrainedShard:
    """A shard's training, done: the network's state on the CPU, its checkpoints by stage, and what it took."""

    shard: int
    first: int
    state: Mapping[str, Tensor]
    checkpoints: Mapping[int, Checkpoint]
    steps: int
    passes: int
    loss_kept: float
    loss_forgotten: float
    seconds: float


def train_shard(task: ShardTask, progress: Progress = silent) -> TrainedShard:
    """Train one shard. The result depends on the task alone, wherever and however often it runs."""
    started = time.perf_counter()
    place = usable_device(task.trainer.training.device)
    network = new_network(task.trainer, task.start_seed).to(place)
    if task.start is not None:
        _load(network, task.start)
    data = _placed(task.data, place)
    checkpoints: dict[int, Checkpoint] = {}
    remaining = task.stages[task.first - 1 :]
    for at, (stage, seed) in enumerate(zip(remaining, task.stage_seeds[task.first - 1 :], strict=True), task.first):
        if stage.steps:
            network = task.trainer.train_stage(network, _head(data, stage.rows), stage, seed)
        if at in task.keep:
            name = f"shard-{task.shard:03d}-slice-{at:04d}.safetensors"
            checkpoints[at] = Checkpoint.write(task.folder / name, network.state_dict())
        progress(Tick(f"shard {task.shard + 1}", at - task.first + 1, len(remaining)))
    state = {name: value.detach().cpu().clone() for name, value in network.state_dict().items()}
    if not all(bool(torch.isfinite(value).all()) for value in state.values() if value.is_floating_point()):
        raise NonFiniteError(f"the weights of shard {task.shard} are NaN or infinite; lower the recipe's learning_rate")
    return TrainedShard(
        task.shard,
        task.first,
        state,
        checkpoints,
        sum(stage.steps for stage in remaining),
        sum(stage.passes for stage in remaining),
        _loss(network, data),
        0.0 if task.forgotten is None else _loss(network, _placed(task.forgotten, place)),
        time.perf_counter() - started,
    )


def new_network(trainer: StageTrainer, seed: int) -> nn.Module:
    """Return a network with the initial weights of a seed."""
    with torch_seed(seed):
        return copied(trainer.build())


def _load(network: nn.Module, checkpoint: Checkpoint) -> None:
    try:
        network.load_state_dict(checkpoint.read())
    except RuntimeError as error:
        raise ModelError(
            f"checkpoint {checkpoint.path} does not fit the network that the training builds; build the same network "
            "as when the model was prepared"
        ) from error


def _placed(data: Samples, place: torch.device) -> Samples:
    labels = None if data.labels is None else data.labels.to(place)
    return Samples(map_nest(lambda leaf: leaf.to(place), data.inputs), labels)


def _head(data: Samples, rows: int) -> Samples:
    """Return the first rows, without copying them."""
    labels = None if data.labels is None else data.labels[:rows]
    return Samples(map_nest(lambda leaf: leaf[:rows], data.inputs), labels)


def _loss(network: nn.Module, data: Samples) -> float:
    """Return the mean cross-entropy in evaluation mode; 0 for no samples."""
    total, logits_of = 0.0, caller(network)
    with evaluation(network), torch.no_grad():
        for part in data.batches(_LOSS_BATCH) if len(data) else ():
            logits = logits_of(part.inputs).float()
            labels = part.labels
            if labels is not None:
                flat = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
                total += float(flat) * len(part)
    return total / max(1, len(data))


State = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint's file, its size and the SHA-256 that it must have."""

    path: Path
    bytes: int
    sha256: str

    @classmethod
    def write(cls, path: Path, state: State) -> Checkpoint:
        """Write a network's state in one step."""
        content = packed(state)
        write_atomically(path, content, private=True)  # weights remember samples
        return cls(path, len(content), hashlib.sha256(content).hexdigest())

    def read(self) -> dict[str, Tensor]:
        """Return the state, or raise an `OutputError` if the file is not what was written."""
        remedy = "bring it back from a backup, or prepare the model anew"
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise OutputError(f"checkpoint {self.path} cannot be read ({error.strerror}); {remedy}") from error
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise OutputError(f"checkpoint {self.path} is damaged: its SHA-256 is not {self.sha256[:12]}…; {remedy}")
        try:
            state: dict[str, Tensor] = load(content)
        except SafetensorError as error:  # pragma: no cover (only a writer's mistake passes the digest)
            raise OutputError(f"checkpoint {self.path} is no safetensors file ({error}); {remedy}") from error
        return state


def packed(state: State) -> bytes:
    """Return a state as the bytes of a safetensors file."""
    # copies: tensors that share memory (tied weights) cannot be written otherwise
    content: bytes = save({name: value.detach().cpu().contiguous().clone() for name, value in state.items()})
    return content


class CheckpointStore:
    """A folder of checkpoints; each training or request puts its files into a generation of its own.

    Without a folder of the user's it is a temporary one, which goes when the last ensemble that uses it goes.
    """

    def __init__(self, folder: Path | None) -> None:
        self.temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="forsaken-sisa-")) if folder is None else Path(folder).absolute()
        if self.temporary:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def generation(self) -> Path:
        """Make and return a new folder; no two calls get the same, in this process or another."""
        number = 0
        make_folder(self.folder)
        while True:
            new = self.folder / f"generation-{number:03d}"
            try:
                make_folder(new, 0o700, new=True)
            except OutputError as error:
                if not isinstance(error.__cause__, FileExistsError):
                    raise
                number += 1
            else:
                return new


def kept_stages(slices: int, a_checkpoint: int, room: float) -> tuple[int, ...]:
    """Return after which slices of a shard a checkpoint is kept: all, or every k-th with the least k that fits.

    Parameters
    ----------
    slices : int
        How many slices the shard has.
    a_checkpoint : int
        The bytes of one checkpoint.
    room : float
        The bytes that the shard's checkpoints may use.

    >>> kept_stages(10, 100, 1000), kept_stages(10, 100, 350), kept_stages(10, 100, 99)
    ((1, 2, 3, 4, 5, 6, 7, 8, 9, 10), (3, 6, 9), ())
    """
    count = int(room // a_checkpoint)
    if count >= slices:
        return tuple(range(1, slices + 1))
    # no request goes back to the last stage, so it is the first to be left out
    every = next(k for k in range(1, slices + 1) if (slices - 1) // k <= count)
    return tuple(range(every, slices, every))
