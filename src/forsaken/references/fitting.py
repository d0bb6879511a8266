"""Cross-fitting: one model for each fold, trained on all other folds, gives the logits of the fold's rows.

Here are also the augmented copies of rows that these models are asked about (`Views`), what the trainings cost
(`Costs`), and the fold models that a user chose to keep (`FoldModels`).
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from forsaken._files import make_folder, write_atomically
from forsaken._keys import new_record_key, read_record_key, remove_empty_key, write_record_key
from forsaken._random import Purpose, generator, torch_seed
from forsaken._untrusted import read_safetensors
from forsaken.data.nest import Nest, concatenate, leaves, length, row_keys, shape_of
from forsaken.data.samples import Samples
from forsaken.engine import fan_out
from forsaken.errors import InputError, ModelError, SettingsError
from forsaken.models.augment import AUGMENTATIONS, View, augmentation_named
from forsaken.models.ensemble import train_many
from forsaken.models.logits import PREDICT_BATCH, Forward, LogitModel, as_module, called_plainly, predict_logits
from forsaken.models.train import Training, steps_of
from forsaken.models.train import train as fit_network
from forsaken.models.weights import fingerprint
from forsaken.references.rows import ReferenceRows, as_keys, row_hashes, units
from forsaken.types import Array, Progress, Tick, silent

Train: TypeAlias = Callable[[Array, int | None, int], object]
"""``train(rows, steps, seed)`` returns a model like the target, trained on these rows of the data."""

STAGE = "train models without a fold each"
_WHOLE = 1  # beside `Purpose.FOLD_TRAININGS`: the models that learn everything
CUSTOM = "custom"  # the name of views that a function of the user's makes
_PUBLIC = bytes(32)  # views are seeded by hashes of content that are never stored, so their key need not be secret
_KEY = "references.key"  # holds the key of an unfinished fit for which the user named none


@dataclass(frozen=True, slots=True)
class Views:
    """Augmented copies of a row, the same ones whenever they are asked for.

    A model that is trained with augmentation also remembers the mirrored and shifted copies of a picture. The fold
    models' logits of a few such copies tell a request where those must move when the picture is forgotten.

    Attributes
    ----------
    count : int
        How many views of each row there are.
    seed : int
        Decides the views of a row, together with the row's content.
    name : str
        A name of `forsaken.models.augment.AUGMENTATIONS`, or "custom".
    view : callable or None
        ``view(inputs, generator)`` returns an augmented copy of a batch; None where a table was read without it.
    """

    count: int
    seed: int
    name: str
    view: View | None

    @classmethod
    def of(cls, count: int, view: View | str | None, seed: int) -> Views | None:
        """Return checked views, or None for a `count` of 0; `view` is a function or the name of an augmentation."""
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
            raise SettingsError(f"views is {count!r}, expected how many views of each row: a whole number >= 0")
        if count == 0:
            return None
        if view is None:
            raise SettingsError(
                f"views={count} needs to know what a view is; give view= (a function (inputs, generator) -> inputs, or "
                f"one of {', '.join(AUGMENTATIONS)}), or a Training whose recipe has an augmentation"
            )
        if isinstance(view, str):
            return cls(int(count), seed, view, augmentation_named(view))
        if not callable(view):
            raise SettingsError(f"view is of type {type(view).__name__}, expected a function (inputs, generator)")
        known = [name for name, each in AUGMENTATIONS.items() if each is view]
        return cls(int(count), seed, known[0] if known else CUSTOM, view)

    def __call__(self, samples: Samples) -> Samples:
        """Return the views of samples: the first view of each sample, then the second of each, and so on."""
        return next(self.parts(samples, max(1, self.count * len(samples))))

    def parts(self, samples: Samples, size: int) -> Iterator[Samples]:
        """Return the views of samples in parts of at most `size`."""
        hashes = row_hashes(samples, _PUBLIC)
        every = [(number, at) for number in range(self.count) for at in range(len(samples))]
        for start in range(0, len(every), size):
            rows = [self._row(samples.rows([at]), hashes[at], number) for number, at in every[start : start + size]]
            inputs = concatenate(rows)
            if any(leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()) for leaf in leaves(inputs)):
                raise InputError("view= made inputs that are NaN or infinite; check it")
            yield Samples(inputs)

    def _row(self, sample: Samples, key: Array, number: int) -> Nest:
        """Return one view of a sample."""
        if self.view is None:
            raise SettingsError(
                "this table's views were made by a function of your own; load it with view=, that same function"
            )
        row = sample.inputs
        drawn_from = key.tobytes() + number.to_bytes(4, "little") + self.seed.to_bytes(8, "little")
        digest = hashlib.blake2b(drawn_from).digest()
        seen = self.view(row, torch.Generator().manual_seed(int.from_bytes(digest[:7], "little")))
        if type(seen) is not type(row) and not (isinstance(seen, Tensor) and isinstance(row, Tensor)):
            raise InputError(
                f"view= returned {type(seen).__name__} for a row of type {type(row).__name__}; expected inputs of the "
                "same shape"
            )
        if shape_of(seen) != shape_of(row) or length(seen) != 1:
            raise InputError(
                f"view= turned a row of shape {shape_of(row)} into {length(seen)} of shape {shape_of(seen)}; expected "
                "inputs of the same shape"
            )
        return seen


def asked_views(model: Any, rows: Samples, views: Views, forward: Forward | None) -> Tensor:
    """Return a model's logits of the views of rows (rows x views x classes)."""
    parts = views.parts(rows, PREDICT_BATCH)  # one pass each: the views of a large fold need not be held together
    said = torch.cat([predict_logits(model, part, forward=forward) for part in parts]).float()
    return said.view(views.count, len(rows), -1).transpose(0, 1).contiguous()


@dataclass(frozen=True, slots=True)
class Costs:
    """The seconds of all trainings of a table, and how many trainings there were.

    >>> Costs(160.0, 4).break_even(), Costs(160.0, 4).break_even(unlearning=20.0)
    (5, 9)
    """

    seconds: float
    trainings: int

    @property
    def each(self) -> float:
        """The seconds of one training, and so of one retraining, which takes as many steps."""
        return self.seconds / self.trainings if self.trainings else 0.0

    def plus(self, seconds: float) -> Costs:
        """Return the costs with one training more."""
        return Costs(self.seconds + seconds, self.trainings + 1)

    def break_even(self, unlearning: float = 0.0) -> int | None:
        """Return the first request at which the table has cost less than retraining for each; None if there is none.

        Parameters
        ----------
        unlearning : float
            The seconds of one unlearning.
        """
        saved = self.each - unlearning
        return math.floor(self.seconds / saved + 1e-9) + 1 if saved > 0 else None

    def of_a_request(self, requests: int, unlearning: float) -> float:
        """Return the seconds of each of `requests` requests, with an equal share of the table's cost."""
        return self.seconds / requests + unlearning


@dataclass(frozen=True, slots=True)
class Origin:
    """How a table was made.

    Attributes
    ----------
    folds : int
        How many folds there were; 0 where logits were handed in.
    by : str
        What the folds were drawn by, "row" or "group"; "claim" where logits were handed in.
    steps : int or None
        The steps of each training, where known.
    seed : int
        Decided the folds and the trainings.
    costs : Costs
        The cost of the trainings.
    budget : int or None
        How many trainings were allowed, where the number of folds was chosen by the estimate of their worth.
    """

    folds: int
    by: str
    steps: int | None
    seed: int
    costs: Costs
    budget: int | None = None


@dataclass(frozen=True, slots=True)
class UnbuiltModel:
    """A fold model that was read from a file without its network: it can be saved again and dropped, nothing else."""

    state: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class FoldModels:
    """The models of the folds, kept, and the rows that they learnt: each model all rows but those of its own fold.

    Forgotten rows stay listed here for as long as the models are kept, so that no model is asked about a row that it
    learnt.

    Attributes
    ----------
    models : tuple
        The model of each fold.
    content : bytes, shape (n, 32)
        The keyed hash of each row.
    groups : bytes, shape (n, 32), or None
        The keyed hash of each row's group.
    fold : int array, shape (n,)
        The fold of each row: the number of the one model that did not learn it.
    fold_of : dict
        The fold of each content and of each group.
    """

    models: tuple[Any, ...]
    content: Array
    groups: Array | None
    fold: Array
    fold_of: dict[bytes, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fold_of", _folds(self.content, self.groups, self.fold))

    @property
    def built(self) -> tuple[Any, ...]:
        """The models; a `SettingsError` where they were read without their network."""
        if any(isinstance(model, UnbuiltModel) for model in self.models):
            raise SettingsError(
                "the kept models of this table were read without a network; load it with build=, a function that "
                "returns one, or let go of them with drop_models()"
            )
        return self.models

    def learnt(self, content: Array, model: int | None = None) -> Array:
        """Return, for each row, whether model number `model` learnt it; for None, whether any model did."""
        folds = [self.fold_of.get(key) for key in as_keys(content)]
        return np.array([fold is not None and fold != model for fold in folds], dtype=bool)

    def fold_for(self, content: Array, groups: Array | None, table: ReferenceRows) -> Array:
        """Return a fold for each new row, whose model learnt neither the row nor another row of its group.

        Where several folds qualify, it is the fold of the group's other rows in the table, or else the smallest fold.
        Rows that share their content or a group get one fold.
        """
        sizes = np.bincount(table.fold, minlength=len(self.models))
        in_table = _folds(table.content, table.groups, table.fold)
        keys = as_keys(content)
        names = keys if groups is None else as_keys(groups)
        unit = units(keys, None if groups is None else names)
        chosen = np.empty(len(keys), dtype=np.int64)
        order = np.argsort(unit, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(unit[order])) + 1):
            own = {key for row in rows for key in (keys[row], names[row])}
            required = {self.fold_of[key] for key in own if key in self.fold_of}
            known = required | {in_table[key] for key in own if key in in_table}
            if required and len(known) > 1:
                raise InputError(
                    f"{len(rows)} new rows (first: row {rows[0]} of those that are new) belong together, by a group or "
                    "as copies, with old rows of several folds, so every kept model learnt some of these; leave "
                    "them out, or drop_models() and extend with train="
                )
            chosen[rows] = min(known) if known else int(sizes.argmin())
            sizes[chosen[rows[0]]] += len(rows)
        return chosen


def _folds(content: Array, groups: Array | None, fold: Array) -> dict[bytes, int]:
    found = dict(zip(as_keys(content), fold.tolist(), strict=True))
    if groups is not None:
        found |= zip(as_keys(groups), fold.tolist(), strict=True)
    return found


@dataclass(frozen=True, slots=True)
class FoldResult:
    """What one training of a table leaves: the answers of its model, which learnt all rows but a fold's, or all rows.

    Attributes
    ----------
    logits : Tensor, shape (rows, classes)
        The model's logits of the fold's rows, which it never saw; no rows for a model that learnt all of them.
    seconds : float
        How long the training took.
    views : Tensor, shape (rows, views, classes), or None
        Its logits of their views.
    unseen : Tensor, shape (samples, classes), or None
        Its logits of samples that no model saw.
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
    """The trainings of a table, numbered: one for each fold, and then models that learn everything, like the target.

    Attributes
    ----------
    train : Training or callable
        How the target was trained; networks of a `Training` are trained many at a time where that is faster.
    data : Samples
        Everything that the target was trained on.
    fold : int array
        The fold of each row.
    steps : int or None
        The steps of each training; by default, of a `Training`, as many as the target took on all of the data.
    seed : int
        Decides the seed of each training.
    forward : callable or None
        How to call the models; see `forsaken.unlearn`.
    keep_models : bool
        Whether the fold models are returned too.
    folder : Path or None
        Where finished folds are stored, so that a fit that was killed can be continued. They stay there: only whoever
        writes the table knows when it is on the disk, and removes them.
    key : bytes
        Keys the names of files in `folder`, so that a name tells nothing about the data.
    views : Views or None
        The augmented copies of its rows that each model is asked about too.
    unseen : Samples or None
        Samples that no model saw, which every model is asked about.
    wholes : int
        How many further models learn all rows, as the target did: see `forsaken.references.worth`.
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
    wholes: int = 0

    def __post_init__(self) -> None:
        _check_train(self.train)
        object.__setattr__(self, "steps", checked_steps(self.steps))

    @cached_property
    def count(self) -> int:
        """How many folds there are."""
        return int(self.fold.max()) + 1

    @property
    def trainings(self) -> range:
        """The numbers of all trainings."""
        return range(self.count + self.wholes)

    @cached_property
    def seeds(self) -> list[int]:
        """The seed of each training."""
        of_folds = generator(self.seed, Purpose.FOLD_TRAININGS).integers(2**32, size=self.count)
        of_wholes = generator(self.seed, Purpose.FOLD_TRAININGS, _WHOLE).integers(2**32, size=self.wholes)
        return [int(seed) for seed in (*of_folds, *of_wholes)]

    @cached_property
    def steps_each(self) -> int | None:
        """The steps of each training: as many as the target's, since fewer give less confident models."""
        if self.steps is not None or not isinstance(self.train, Training):
            return self.steps
        with torch_seed(0):
            network = self.train.build()
        steps = self.train.recipe.epochs * steps_of(len(self.data), self.train.recipe, network)
        if steps < 1:
            raise SettingsError("the recipe has 0 epochs, so the folds' models would know nothing; give at least 1")
        return steps

    def rows_of(self, at: int) -> tuple[Array, Array]:
        """Return the rows that the model of a training learns, and those that it never sees."""
        return np.flatnonzero(self.fold != at), np.flatnonzero(self.fold == at)

    def run(
        self,
        numbers: Sequence[int] | None = None,
        *,
        engine: str = "local",
        workers: int | None = None,
        progress: Progress = silent,
    ) -> dict[int, FoldResult]:
        """Return the results of some trainings (by default of all); what is stored in `folder` is not trained again."""
        wanted = self.trainings if numbers is None else numbers
        found = {at: stored for at in wanted if (stored := self._stored(at)) is not None}
        missing = [at for at in wanted if at not in found]
        for at, result in self._trained(missing, engine, workers, progress):
            path = self._path(at)
            if path is not None:
                make_folder(path.parent)
                _write(path, result)
            found[at] = result
        shapes = {result.logits.shape[1] for result in found.values()}
        if len(shapes) > 1:
            raise ModelError(
                f"the models of the folds tell {' or '.join(map(str, sorted(shapes)))} classes apart, expected one "
                "number: is there a class whose rows are all in one fold? let train build models of all classes"
            )
        return found

    def _trained(
        self, missing: Sequence[int], engine: str, workers: int | None, progress: Progress
    ) -> Iterator[tuple[int, FoldResult]]:
        if isinstance(self.train, Training) and engine == "local":
            yield from self._together(self.train, missing, progress)
        elif engine == "local":
            for done, at in enumerate(missing):
                progress(Tick(STAGE, done, len(missing)))
                yield at, self._alone(at)
            progress(Tick(STAGE, len(missing), len(missing)))
        else:
            # Workers never get the key. A worker on this machine stores its result where a continued fit looks for it.
            work = partial(_on_ray, replace(self, key=b"", folder=None))
            jobs = [(at, path if (path := self._path(at)) is None else path.absolute()) for at in missing]
            if self.folder is not None:
                make_folder(self.folder)
            each = fan_out(work, jobs, engine=engine, workers=workers, progress=progress, stage=STAGE)
            yield from zip(missing, each, strict=True)

    def _together(
        self, training: Training, missing: Sequence[int], progress: Progress
    ) -> Iterator[tuple[int, FoldResult]]:
        # `train_many` trains neighbours with equally many rows together.
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
                yield at, self._result(at, _unwrapped(network), seconds)
            start = time.perf_counter()

    def _alone(self, at: int) -> FoldResult:
        start = time.perf_counter()
        learnt, _ = self.rows_of(at)
        model = trained_on(
            self.train, self.data, learnt, steps=self.steps_each, seed=self.seeds[at], forward=self.forward
        )
        return self._result(at, model, time.perf_counter() - start)

    def _result(self, at: int, model: Any, seconds: float) -> FoldResult:
        unseen = None if self.unseen is None else predict_logits(model, self.unseen, forward=self.forward).float()
        if unseen is not None and at >= self.count:
            return FoldResult(unseen[:0], seconds, unseen=unseen)  # it has learnt every row, so it is asked about none
        rows = Samples(self.data.rows(self.rows_of(at)[1]).inputs)
        return FoldResult(
            predict_logits(model, rows, forward=self.forward).float(),
            seconds,
            None if self.views is None else asked_views(model, rows, self.views, self.forward),
            unseen,
            model if self.keep_models else None,
        )

    def _path(self, at: int) -> Path | None:
        """Return where the result of a fold is stored; models are not, since a file of weights has no class."""
        if self.folder is None or self.keep_models:
            return None
        return self.folder / f"fold-{at}-{self._identity[:24]}.safetensors"

    def _stored(self, at: int) -> FoldResult | None:
        path = self._path(at)
        if path is None or not path.is_file():
            return None
        try:
            about, tensors = read_safetensors(path)
            logits, seconds = tensors["logits"], float(about["seconds"])
            views = None if self.views is None or at >= self.count else tensors["views"]
            unseen = None if self.unseen is None else tensors["unseen"]
        except (OSError, KeyError, ValueError):  # an `UnreadableError` is a `ValueError`
            return None  # damaged: the fold is trained again, and the file replaced
        whole = logits.dim() == 2 and len(logits) == len(self.rows_of(at)[1]) and logits.dtype == torch.float32
        parts = [part for part in (logits, views, unseen) if part is not None]
        whole = whole and all(bool(torch.isfinite(part).all()) for part in parts)
        return FoldResult(logits, seconds, views, unseen) if whole else None

    @cached_property
    def _identity(self) -> str:
        """A keyed hash of everything that decides the models; of a function only its name is known."""
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
    _check_train(train)
    if not isinstance(train, Training):
        progress(Tick(stage, 0, 1))
        model = train(rows, steps, seed)
        progress(Tick(stage, 1, 1))
        return model
    return fit_network(
        train.build,
        data.rows(rows),
        train.recipe,
        seed=seed,
        forward=forward,
        device=train.device,
        steps=steps,
        progress=progress,
        stage=stage,
    )


def key_in(folder: Path) -> bytes:
    """Return the key of the unfinished fit in a folder, or write a new one there."""
    path = folder / _KEY
    remove_empty_key(path)
    if not path.is_file():
        make_folder(folder)
        write_record_key(path, new_record_key())
    return read_record_key(path)


def checked_steps(steps: object) -> int | None:
    """Return the steps of a training, or raise a `SettingsError`."""
    if steps is None:
        return None
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise SettingsError(f"steps is {steps!r}, expected a whole number >= 1, or None")
    return int(steps)


def _check_train(train: object) -> None:
    if not isinstance(train, Training) and not callable(train):
        raise SettingsError(
            f"train is of type {type(train).__name__}, expected a function (rows, steps, seed) -> model, or "
            "forsaken.Training(build, recipe)"
        )


def _unwrapped(network: nn.Module) -> nn.Module:
    """Return the network without the adapter that `called_plainly` may have put around it."""
    return network.model if isinstance(network, LogitModel) else network


def _on_ray(plan: CrossFit, job: tuple[int, Path | None]) -> FoldResult:
    at, path = job
    result = plan._alone(at)
    if path is not None and path.parent.is_dir():  # a worker on another machine may not have the folder
        _write(path, result)
    return result


def _write(path: Path, result: FoldResult) -> None:
    parts = {"logits": result.logits, "views": result.views, "unseen": result.unseen}
    tensors = {name: part.contiguous() for name, part in parts.items() if part is not None}
    content = safetensors.torch.save(tensors, metadata={"seconds": repr(result.seconds)})
    write_atomically(path, content, private=True)


def _name(function: object) -> str:
    """Return the name of a function, or of the class of another callable."""
    if isinstance(function, partial):
        return f"partial of {_name(function.func)}"
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _bytes(data: Samples) -> bytes:
    labels = b"" if data.labels is None else data.labels.cpu().to(torch.int64).numpy().tobytes()
    return b"".join(row_keys(data.inputs)) + labels
