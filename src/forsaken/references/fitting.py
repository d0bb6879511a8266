"""Cross-fitting: a model for each fold that never saw it, asked about it and dropped."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from forsaken._files import write_atomically
from forsaken._keys import new_record_key, read_record_key, write_record_key
from forsaken._random import Purpose, generator, torch_seed
from forsaken.data.nest import row_keys
from forsaken.data.samples import Samples
from forsaken.engine import fan_out
from forsaken.errors import ModelError, SettingsError
from forsaken.models.ensemble import train_many
from forsaken.models.logits import Forward, LogitModel, as_module, called_plainly, predict_logits
from forsaken.models.train import Training, steps_of
from forsaken.models.train import train as fit_network
from forsaken.models.weights import fingerprint
from forsaken.references.views import Views
from forsaken.types import Array, Progress, Tick, silent

Train: TypeAlias = Callable[[Array, int | None, int], object]
"""Trains a model like the target on some rows of the data, for so many steps, by a seed."""

STAGE = "train models without a fold each"
_KEY = "references.key"  # the file of a key that nobody named, for as long as a fit is not done


@dataclass(frozen=True, slots=True)
class Fold:
    """What is left of one fold's training.

    Attributes
    ----------
    logits : Tensor, shape (rows, classes)
        What its model says of the fold's rows.
    seconds : float
        Of the training.
    views : Tensor, shape (rows, views, classes), or None
        What it says of their views.
    unseen : Tensor, shape (samples, classes), or None
        What it says of samples that no model saw.
    model
        The model itself, where it is kept.
    """

    logits: Tensor
    seconds: float
    views: Tensor | None = None
    unseen: Tensor | None = None
    model: Any = None


@dataclass(frozen=True)
class CrossFit:
    """Which models to train, and what to ask them.

    Attributes
    ----------
    train : Training or callable
        How the target was trained; networks of a `Training` are trained many at a time where that is faster.
    data : Samples
        Everything that the target was trained on.
    fold : int array
        The fold of each row.
    steps : int or None
        The steps of each training; by default of a `Training` as many as the target took on all of the data.
    seed : int
        Each model gets another seed that follows from it.
    keep_models : bool
        Whether the models are handed back too.
    folder : Path or None
        Where what is done is kept until all is done, so that a killed run goes on.
    key : bytes
        Part of the names of files in `folder`, so that these tell nothing about the data.
    views : Views or None
        Which augmented copies of its rows each model is asked about too.
    unseen : Samples or None
        Samples that no model saw, which every model is asked about.
    """

    train: Training | Train
    data: Samples
    fold: Array
    steps: int | None
    seed: int
    forward: Forward | None = None
    keep_models: bool = False
    folder: Path | None = None
    key: bytes = field(default=b"", repr=False)
    views: Views | None = None
    unseen: Samples | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.train, Training) and not callable(self.train):
            raise _no_training(self.train)
        object.__setattr__(self, "steps", checked_steps(self.steps))

    @cached_property
    def count(self) -> int:
        """How many folds there are."""
        return int(self.fold.max()) + 1

    @cached_property
    def seeds(self) -> list[int]:
        """The seed of each fold's model."""
        return [int(seed) for seed in generator(self.seed, Purpose.FOLD_TRAININGS).integers(2**32, size=self.count)]

    @cached_property
    def steps_each(self) -> int | None:
        """The steps of each training: fewer than the target's would give less confident models."""
        if self.steps is not None or not isinstance(self.train, Training):
            return self.steps
        with torch_seed(0):
            network = self.train.build()
        return self.train.recipe.epochs * steps_of(len(self.data), self.train.recipe, network)

    def run(self, *, engine: str = "local", workers: int | None = None, progress: Progress = silent) -> list[Fold]:
        """Train what is not there yet, and return every fold."""
        found = {at: kept for at in range(self.count) if (kept := self._kept(at)) is not None}
        missing = [at for at in range(self.count) if at not in found]
        for at, fold in self._trained(missing, engine, workers, progress):
            self._keep(at, fold)
            found[at] = fold
        shapes = {fold.logits.shape[1] for fold in found.values()}
        if len(shapes) > 1:
            raise ModelError(
                f"the models of the folds tell {' or '.join(map(str, sorted(shapes)))} classes apart, expected one "
                "number: is there a class whose rows are all in one fold? let train build models of all classes"
            )
        for at in range(self.count):
            if (path := self._path(at)) is not None:
                path.unlink(missing_ok=True)
        if self.folder is not None and self.folder.is_dir() and not any(self.folder.glob("fold-*")):
            (self.folder / _KEY).unlink(missing_ok=True)
        return [found[at] for at in range(self.count)]

    def rows_of(self, at: int) -> tuple[Array, Array]:
        """Return the rows that a fold's model learns, and those that it never sees."""
        return np.flatnonzero(self.fold != at), np.flatnonzero(self.fold == at)

    def _trained(
        self, missing: Sequence[int], engine: str, workers: int | None, progress: Progress
    ) -> Iterator[tuple[int, Fold]]:
        if isinstance(self.train, Training) and engine == "local":
            yield from self._together(self.train, missing, progress)
        elif engine == "local":
            for done, at in enumerate(missing):
                progress(Tick(STAGE, done, len(missing)))
                yield at, self._alone(at)
            progress(Tick(STAGE, len(missing), len(missing)))
        else:
            # The key stays here. A worker on this machine keeps what is done where a killed run will look for it.
            work = partial(_on_ray, replace(self, key=b"", folder=None))
            jobs = [(at, path if (path := self._path(at)) is None else path.absolute()) for at in missing]
            if self.folder is not None:
                self.folder.mkdir(parents=True, exist_ok=True)
            each = fan_out(work, jobs, engine=engine, workers=workers, progress=progress, stage=STAGE)
            yield from zip(missing, each, strict=True)

    def _together(self, training: Training, missing: Sequence[int], progress: Progress) -> Iterator[tuple[int, Fold]]:
        # Models of equally many rows can be trained together, so those come side by side.
        order = sorted(missing, key=lambda at: len(self.rows_of(at)[0]))
        chunks = train_many(
            called_plainly(training.build, self.data, self.forward),
            self.data,
            training.recipe,
            rows=[self.rows_of(at)[0] for at in order],
            seeds=[self.seeds[at] for at in order],
            device=training.device,
            steps=self.steps_each,
            progress=progress,
            stage=STAGE,
        )
        left = iter(order)
        start = time.perf_counter()
        for chunk in chunks:
            seconds = (time.perf_counter() - start) / len(chunk)
            for network in chunk:
                at = next(left)
                yield at, self._asked(at, network.model if isinstance(network, LogitModel) else network, seconds)
            start = time.perf_counter()

    def _alone(self, at: int) -> Fold:
        start = time.perf_counter()
        learnt, _ = self.rows_of(at)
        model = trained_on(
            self.train, self.data, learnt, steps=self.steps_each, seed=self.seeds[at], forward=self.forward
        )
        return self._asked(at, model, time.perf_counter() - start)

    def _asked(self, at: int, model: Any, seconds: float) -> Fold:
        _, unseen = self.rows_of(at)
        rows = Samples(self.data.rows(unseen).inputs)
        return Fold(
            predict_logits(model, rows, forward=self.forward).float(),
            seconds,
            None if self.views is None else asked_views(model, rows, self.views, self.forward),
            None if self.unseen is None else predict_logits(model, self.unseen, forward=self.forward).float(),
            model if self.keep_models else None,
        )

    # What is done, on disk.

    def _path(self, at: int) -> Path | None:
        return None if self.folder is None else self.folder / f"fold-{at}-{self._identity[:24]}.safetensors"

    def _keep(self, at: int, fold: Fold) -> None:
        path = self._path(at)
        if path is not None and not self.keep_models:  # a model can be rebuilt by who knows its class alone
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, fold)

    def _kept(self, at: int) -> Fold | None:
        path = self._path(at)
        if path is None or self.keep_models or not path.is_file():
            return None
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                logits, seconds = file.get_tensor("logits"), float((file.metadata() or {})["seconds"])
                views = None if self.views is None else file.get_tensor("views")
                unseen = None if self.unseen is None else file.get_tensor("unseen")
        except (safetensors.SafetensorError, OSError, KeyError, ValueError):
            return None  # damaged: it is made anew, and then replaced
        whole = logits.dim() == 2 and len(logits) == len(self.rows_of(at)[1]) and logits.dtype == torch.float32
        parts = [part for part in (logits, views, unseen) if part is not None]
        whole = whole and all(bool(torch.isfinite(part).all()) for part in parts)
        return Fold(logits, seconds, views, unseen) if whole else None

    @cached_property
    def _identity(self) -> str:
        """Return a keyed hash of all that decides the models; of a function only its name is known."""
        told: dict[str, Any] = {"steps": self.steps_each, "seeds": self.seeds, "forward": _name(self.forward)}
        if isinstance(self.train, Training):
            with torch_seed(0):
                network: nn.Module = as_module(self.train.build())
            told |= {"recipe": self.train.recipe.to_dict(), "network": fingerprint(network), "text": str(network)}
        else:
            told["train"] = _name(self.train)
        digest = hashlib.blake2b(self.key, digest_size=32)
        digest.update(json.dumps(told, sort_keys=True).encode())
        digest.update(np.ascontiguousarray(self.fold).tobytes())
        digest.update(_bytes(self.data))
        if self.views is not None:
            digest.update(f"views {self.views.count} {self.views.seed} {_name(self.views.view)}".encode())
        if self.unseen is not None:
            digest.update(_bytes(self.unseen))
        return digest.hexdigest()


def trained_on(
    train: Training | Train,
    data: Samples,
    rows: Array,
    *,
    steps: int | None,
    seed: int,
    forward: Forward | None = None,
    progress: Progress = silent,
    stage: str = STAGE,
) -> Any:
    """Return a model that was trained on these rows of `data` and on nothing else."""
    if not isinstance(train, Training):
        if not callable(train):
            raise _no_training(train)
        progress(Tick(stage, 0, 1))
        model = train(rows, steps, seed)
        progress(Tick(stage, 1, 1))
        return model
    network = fit_network(
        called_plainly(train.build, data, forward),
        data.rows(rows),
        train.recipe,
        seed=seed,
        device=train.device,
        steps=steps,
        progress=progress,
        stage=stage,
    )
    return network.model if isinstance(network, LogitModel) else network


def asked_views(model: Any, rows: Samples, views: Views, forward: Forward | None) -> Tensor:
    """Return what a model says of the views of rows (rows x views x classes)."""
    said = predict_logits(model, views(rows), forward=forward).float()
    return said.view(views.count, len(rows), -1).transpose(0, 1).contiguous()


def key_in(folder: Path) -> bytes:
    """Return the key of the fit that was begun in a folder; a new one where there is none. A key is a fit's name."""
    path = folder / _KEY
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_record_key(path, new_record_key())
    return read_record_key(path)


def checked_steps(steps: object) -> int | None:
    """Return the steps of a training, or raise a `SettingsError`."""
    if steps is None:
        return None
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise SettingsError(f"steps is {steps!r}, expected a whole number >= 1, or None")
    return int(steps)


def _on_ray(plan: CrossFit, job: tuple[int, Path | None]) -> Fold:
    at, path = job
    fold = plan._alone(at)
    # On another machine, where that folder is not, nothing is left behind.
    if path is not None and not plan.keep_models and path.parent.is_dir():
        _write(path, fold)
    return fold


def _write(path: Path, fold: Fold) -> None:
    told = {"seconds": repr(fold.seconds)}
    parts = {"logits": fold.logits, "views": fold.views, "unseen": fold.unseen}
    tensors = {name: part.contiguous() for name, part in parts.items() if part is not None}
    content = safetensors.torch.save(tensors, metadata=told)
    write_atomically(path, content, private=True)


def _name(function: object) -> str:
    """Return the name of a function, or of the class of something else that can be called."""
    if isinstance(function, partial):
        return f"partial of {_name(function.func)}"
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _no_training(train: object) -> SettingsError:
    return SettingsError(
        f"train is of type {type(train).__name__}, expected a function (rows, steps, seed) -> model, or "
        "forsaken.Training(build, recipe)"
    )


def _bytes(data: Samples) -> bytes:
    labels = b"" if data.labels is None else data.labels.cpu().to(torch.int64).numpy().tobytes()
    return b"".join(row_keys(data.inputs)) + labels
