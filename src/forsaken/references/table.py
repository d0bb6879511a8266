"""`forsaken.References`: for every row of the training data, the logits of a model that never saw it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, SequentialSampler

from forsaken._random import checked_seed
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError, NotHeldOutError, SettingsError
from forsaken.models.augment import View
from forsaken.models.logits import Forward, as_module, predict_logits
from forsaken.models.train import Training
from forsaken.progress import reporter
from forsaken.references import store
from forsaken.references.curvature import Curvature
from forsaken.references.fitting import (
    Costs,
    CrossFit,
    Origin,
    Taught,
    Train,
    Views,
    asked_views,
    built,
    checked_steps,
    key_in,
    trained_on,
)
from forsaken.references.rows import CLAIMED, Entries, as_keys, checked_key, deal, group_hashes, row_hashes, units
from forsaken.types import Array, Progress


def in_order(data: object, name: str, what: str) -> None:
    """Refuse a loader that shuffles, where something goes by the order of its samples."""
    if isinstance(data, DataLoader) and not isinstance(data.sampler, SequentialSampler):
        raise InputError(
            f"{what} of {name}, but its loader shuffles, so that rows would be taken for others; give a loader with "
            "shuffle=False, or a Dataset"
        )


def as_given(logits: object, count: int) -> Tensor:
    """Return logits that were handed in for `count` samples, checked; one column z is the classes (-z/2, z/2)."""
    try:
        raw = torch.as_tensor(logits).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"logits is of type {type(logits).__name__}, expected an array (rows, classes)") from error
    if raw.is_complex():
        raise InputError(f"logits has dtype {raw.dtype}, expected real numbers; take their real part")
    found = raw.float()
    if found.dim() == 1:
        found = found.unsqueeze(1)
    if found.dim() == 2 and found.shape[1] == 1:
        found = torch.cat([-found / 2, found / 2], dim=1)
    if found.dim() != 2 or len(found) != count or found.shape[1] == 0:
        raise InputError(f"logits has shape {tuple(found.shape)}, expected ({count}, classes): one row a sample")
    if not bool(torch.isfinite(found).all()):
        raise InputError("logits holds NaN or infinite values; give finite ones")
    return found


def answers(
    models: Sequence[Any], samples: Samples, held_out: Sequence[Sequence[int]], forward: Forward | None
) -> tuple[list[int], Tensor]:
    """Return the rows that some model is said never to have seen, and what the last such model says about each."""
    if len(models) != len(held_out):
        raise InputError(f"{len(models)} models but {len(held_out)} sets of held-out rows; give one for each model")
    found: dict[int, Tensor] = {}
    for model, rows in zip(models, held_out, strict=True):
        at = _row_numbers(rows)
        if at.size and (at.min() < 0 or at.max() >= len(samples)):
            raise InputError(f"held-out rows reach from {at.min()} to {at.max()}, expected 0 to {len(samples) - 1}")
        if at.size:
            said = predict_logits(model, samples.rows(at), forward=forward).float()
            found |= dict(zip(at.tolist(), said, strict=True))
    if not found:
        raise InputError("no model is said to have held out any row; name some in held_out")
    if len({len(row) for row in found.values()}) > 1:
        raise ModelError("the models tell different numbers of classes apart; give models of one task")
    order = sorted(found)
    return order, torch.stack([found[at] for at in order])


def _row_numbers(rows: Sequence[int]) -> np.ndarray[Any, Any]:
    found = np.asarray(rows)
    if found.size and (found.ndim != 1 or found.dtype.kind not in "iu"):
        raise InputError(
            f"a set of held-out rows is an array of {found.dtype} with {found.ndim} axes, expected row numbers; turn a "
            "mask into numbers with np.flatnonzero(mask)"
        )
    return found.astype(np.int64).reshape(-1)


def _extend(
    table: References,
    data: object,
    groups: Sequence[Any] | None,
    *,
    train: Training | Train | None,
    old: object,
    steps: int | None,
    seed: int,
    progress: Progress,
) -> None:
    """Add rows to a table; see `References.extend`."""
    start, count = checked_seed(seed), checked_steps(steps)
    if groups is not None:
        in_order(data, "data", "groups follow the order")
    samples = Samples.read(data, "data", seed=start)
    if (groups is None) != (table.entries.groups is None):
        wanted = "no groups" if table.entries.groups is None else "groups, as it was made with them"
        raise InputError(f"the table has {wanted}; give groups= accordingly")
    content = row_hashes(samples, table.key)
    names = None if groups is None else group_hashes(groups, table.key)
    if names is not None and len(names) != len(samples):
        raise InputError(f"groups names the group of {len(names)} rows, but there are {len(samples)}; give one a row")
    new = np.flatnonzero([key not in table.entries.places for key in as_keys(content)])
    if not len(new):
        return
    samples, content = samples.rows(new), content[new]
    names = None if names is None else names[new]
    if table.models and table.taught is not None:
        fold = table.taught.fold_for(content, names, table.entries, len(table.models))
        logits, views = asked(table, samples, fold)
    else:
        logits, views, seconds = trained(
            table, samples, names, train=train, old=old, steps=count, seed=start, progress=progress
        )
        fold = np.full(len(samples), max(0, int(table.entries.fold.max(initial=-1)) + 1))
        table.origin = replace(table.origin, costs=table.origin.costs.plus(seconds))
    table.entries = table.entries.joined(Entries(content, names, fold, logits, views))
    table.curvature = None  # the model has learnt rows that it does not know of


def asked(table: References, new: Samples, fold: Array) -> tuple[Tensor, Tensor | None]:
    """Return what the kept model of each new row's fold says about it and about its views."""
    logits = torch.empty(len(new), table.classes)
    views = None if table.views is None else torch.empty(len(new), table.views.count, table.classes)
    for at, model in enumerate(built(table.models)):
        rows = np.flatnonzero(fold == at)
        if len(rows):
            said = predict_logits(model, Samples(new.rows(rows).inputs), forward=table.forward)
            logits[torch.from_numpy(rows)] = said.float()
            if views is not None and table.views is not None:
                unseen = Samples(new.rows(rows).inputs)
                views[torch.from_numpy(rows)] = asked_views(model, unseen, table.views, table.forward)
    return logits, views


def trained(
    table: References,
    new: Samples,
    groups: Array | None,
    *,
    train: Training | Train | None,
    old: object,
    steps: int | None,
    seed: int,
    progress: Progress,
) -> tuple[Tensor, Tensor | None, float]:
    """Return what a model says about the new rows and their views that was trained on the old ones, and its seconds.

    Old rows of groups that a new row belongs to are left out of the training, and so are those which copies tie to
    them.
    """
    if train is None or old is None:
        raise SettingsError(
            "the table keeps no models (keep_models=True does), so that one must be trained without the new rows; "
            "give train= and old=, all the rows that the table was made from"
        )
    if not isinstance(train, Training):
        in_order(old, "old", "a function's rows follow the order")
    before = Samples.read(old, "old", seed=seed)
    keys, known = as_keys(row_hashes(before, table.key)), table.entries.places
    strange = [at for at, key in enumerate(keys) if key not in known]
    if strange:
        raise InputError(
            f"{len(strange)} of {len(keys)} rows of old are not in the table (first: row {strange[0]}); leave out what "
            "was forgotten"
        )
    barred = np.zeros(len(keys), dtype=bool)
    if groups is not None and table.entries.groups is not None:
        near = _near(table.entries, groups)
        barred = np.array([key in near for key in keys], dtype=bool)
    if barred.all():
        raise InputError("every row of old belongs to a group of the new rows, so that none is left to train on")
    start = time.perf_counter()
    model = trained_on(
        train,
        before,
        np.flatnonzero(~barred),
        steps=steps or table.origin.steps,
        seed=seed,
        forward=table.forward,
        progress=progress,
        stage="train a model without the new rows",
    )
    seconds = time.perf_counter() - start
    logits = predict_logits(model, Samples(new.inputs), forward=table.forward).float()
    if logits.shape[1] != table.classes:
        raise ModelError(f"the new model tells {logits.shape[1]} classes apart, the table has {table.classes}")
    views = None if table.views is None else asked_views(model, Samples(new.inputs), table.views, table.forward)
    return logits, views, seconds


def _near(table: Entries, groups: Array) -> set[bytes]:
    """Return the content of the table's rows that belong to these groups, directly or by way of copies."""
    if table.groups is None:
        return set()
    own, names = as_keys(table.content), as_keys(table.groups)
    unit = units(own, names)
    wanted = set(as_keys(groups))
    found = {at for at, name in zip(unit.tolist(), names, strict=True) if name in wanted}
    return {key for at, key in zip(unit.tolist(), own, strict=True) if at in found}


Unlearn: TypeAlias = Callable[[Any, Samples, Tensor], Any]
"""Makes a kept model forget: ``(model, samples, their out-of-fold logits) -> model``."""


@dataclass(slots=True, repr=False, eq=False)
class References:
    """A table of out-of-fold logits, made once, which serves every later request to forget. See `fit`.

    Rows are known by a hash under `key`; the table holds neither samples nor labels. A row's own logits carry no trace
    of whether it was trained on, but a trace of the other rows: keep the table as the training data are kept.

    Attributes
    ----------
    entries : Entries
        Hashes, folds and logits, row by row.
    key : bytes
        The secret behind the hashes.
    origin : Origin
        How it came about.
    models : tuple
        The models of the folds, where they were kept.
    forgotten : int
        How many rows were taken out so far.
    owed : int
        Of these, how many the kept models still remember.
    taught : Taught or None
        The hashes of all rows that the kept models learnt, for as long as they are kept.
    views : Views or None
        Which augmented copies of each row the models were asked about too.
    curvature : Curvature or None
        Of the model that was handed to `fit`: what holds everything else in place while it forgets.
    spread : float or None
        By how much two models that never saw a sample differ on it: the root mean square distance between the centred
        logits of the model handed to `fit` and of the folds' models on unseen samples, as a share of these logits'.
    """

    entries: Entries
    key: bytes = field(repr=False)
    origin: Origin
    models: tuple[Any, ...] = ()
    forgotten: int = 0
    owed: int = 0
    forward: Forward | None = None
    taught: Taught | None = None
    views: Views | None = None
    curvature: Curvature | None = None
    spread: float | None = None

    @classmethod
    def fit(
        cls,
        train: Training | Train,
        data: object,
        folds: int = 4,
        groups: Sequence[Any] | None = None,
        steps: int | None = None,
        seed: int = 0,
        *,
        model: object = None,
        views: int = 0,
        view: View | str | None = None,
        unseen: object = None,
        keep_models: bool = False,
        key: bytes | None = None,
        forward: Forward | None = None,
        engine: str = "local",
        workers: int | None = None,
        folder: str | os.PathLike[str] | None = None,
        progress: bool | Progress = False,
    ) -> References:
        """Train one model for each fold without it, and note what it says about the fold's rows.

        Parameters
        ----------
        train : callable or Training
            ``train(rows, steps, seed)`` returns a model like the target, trained on these rows of `data`; or how the
            target was trained, ``forsaken.Training(build, recipe)``: then networks are trained many at a time.
        data : inputs, or pair (inputs, labels)
            Everything that the target was trained on, in the form in which it will be asked to forget.
        folds : int
            K, how many models are trained, each without 1/K of the data.
        groups : sequence, optional
            Whose each row is (a person, a source), as names or numbers: rows of one group share a fold. Without it
            every row is on its own; rows of equal content always share a fold.
        steps : int, optional
            How many steps each training takes. Give the target's: with fewer, models are less confident than the
            target is. A `Training` takes the target's by itself.
        seed : int
            Decides the folds and the trainings. It must differ from the target's own.
        model : Module or estimator, optional
            The trained model that requests will be about. Its curvature over the training data is measured in one pass
            and kept in the table: with it a request passes the forgotten samples alone, and damages less.
        views : int
            How many augmented copies of each row the models are asked about as well, so that a request forgets the
            neighbourhood of a row and not the row alone. Give some (3) where the model was trained with augmentation.
        view : callable or str, optional
            What an augmented copy is: ``view(inputs, generator)`` draws from `generator` alone, or a name of
            `forsaken.models.augment`. By default the augmentation of the training's recipe.
        unseen : inputs, optional
            Samples of the task that neither `model` nor these trainings saw: on them `spread` is measured, which tells
            a request when it is near enough.
        keep_models : bool
            Keep the models for `extend`. They remember rows, and must forget too.
        key : bytes, optional
            32 bytes behind the hashes of rows; new ones by default.
        forward : callable, optional
            See `forsaken.unlearn`.
        engine, workers
            "local", "ray" or "ray://host:port": see the guide.
        folder : path, optional
            Where finished folds are kept until all are done, so that a fit that was killed goes on (with
            `keep_models` it begins anew). Of functions only the names are known: remove the folder when you change one.
        progress : bool or callable
            Show a bar, or tell a function of each `Tick`.

        Examples
        --------
        >>> import torch, forsaken
        >>> x, y = torch.eye(8), torch.arange(8) % 2
        >>> def train(rows, steps, seed):
        ...     model = torch.nn.Linear(8, 2)
        ...     return model
        >>> references = References.fit(train, (x, y), folds=2)
        >>> references.logits(x[:3]).shape
        torch.Size([3, 2])
        """
        start = checked_seed(seed)
        place = None if folder is None else Path(folder)
        secret = checked_key(key) if key is not None or place is None or keep_models else key_in(place)
        if groups is not None or not isinstance(train, Training):
            in_order(data, "data", "rows and groups follow the order")
        samples = Samples.read(data, "data", seed=start)
        others = None if unseen is None else Samples.read(unseen, "unseen", labels=False)
        if others is not None and model is None:
            raise SettingsError("unseen= is there to compare a model with; give model= too")
        own = train.recipe.augmentation if isinstance(train, Training) else None
        plan_of_views = Views.of(views, own if view is None else view, start)
        curvature = None if model is None else Curvature.fit(model, samples, forward=forward, progress=progress)
        content = row_hashes(samples, secret)
        names = None if groups is None else group_hashes(groups, secret)
        fold = deal(as_keys(content), None if names is None else as_keys(names), folds=folds, seed=start)
        plan = CrossFit(train, samples, fold, steps, start, forward, keep_models, place, secret, plan_of_views, others)
        with reporter(progress) as report:
            done = plan.run(engine=engine, workers=workers, progress=report)
        classes = done[0].logits.shape[1]
        logits = torch.empty(len(samples), classes)
        seen = None if plan_of_views is None else torch.empty(len(samples), plan_of_views.count, classes)
        for at, each in enumerate(done):
            rows = torch.from_numpy(plan.rows_of(at)[1])
            logits[rows] = each.logits
            if seen is not None and each.views is not None:
                seen[rows] = each.views
        spread = None
        if others is not None:
            spread = spread_of(predict_logits(model, others, forward=forward), [each.unseen for each in done])
        costs = Costs(sum(each.seconds for each in done), len(done))
        origin = Origin(folds, "row" if groups is None else "group", plan.steps_each, start, costs)
        models = tuple(each.model for each in done) if keep_models else ()
        taught = Taught(content, names, fold) if keep_models else None
        return cls(
            Entries(content, names, fold, logits, seen),
            secret,
            origin,
            models,
            forward=forward,
            taught=taught,
            views=plan_of_views,
            curvature=curvature,
            spread=spread,
        )

    @classmethod
    def claimed(cls, data: object, logits: object, *, key: bytes | None = None) -> References:
        """Return a table of logits (rows x classes) that somebody hands in; that no row was seen is their word."""
        secret = checked_key(key)
        in_order(data, "data", "logits follow the order")
        samples = Samples.read(data, "data", labels=False)
        entries = Entries(
            row_hashes(samples, secret), None, np.full(len(samples), CLAIMED), as_given(logits, len(samples))
        )
        return cls(entries, secret, Origin(0, "claim", None, 0, Costs(0.0, 0)))

    @classmethod
    def from_models(
        cls,
        models: Sequence[Any],
        data: object,
        held_out: Sequence[Sequence[int]],
        *,
        key: bytes | None = None,
        forward: Forward | None = None,
    ) -> References:
        """Return a table from models that somebody hands in, with the rows that each is said never to have seen."""
        in_order(data, "data", "held-out rows follow the order")
        samples = Samples.read(data, "data", labels=False)
        rows, logits = answers(models, samples, held_out, forward)
        return cls.claimed(samples.rows(rows), logits, key=key)

    def logits(self, x: object) -> Tensor:
        """Return the out-of-fold logits of samples; a row that cannot be proved to have been held out is refused."""
        return self.entries.logits[self._places(Samples.read(x, "x", labels=False))]

    def views_of(self, x: object) -> tuple[Samples, Tensor] | None:
        """Return the views of samples (the first of each, then the second of each, ...) and their out-of-fold logits.

        None for a table without views.
        """
        if self.views is None or self.entries.views is None:
            return None
        samples = Samples.read(x, "x", labels=False)
        said = self.entries.views[self._places(samples)]
        return self.views(samples), said.transpose(0, 1).reshape(-1, said.shape[2])

    def claimed_among(self, x: object) -> int:
        """Return for how many of these samples the logits are somebody's word."""
        return int((self.entries.fold[self._places(Samples.read(x, "x", labels=False))] == CLAIMED).sum())

    def forget(
        self, rows: object, unlearn: Unlearn | None = None, *, before: object = None, after: object = None
    ) -> References:
        """Take samples out of the table, copies included, and return it.

        Parameters
        ----------
        rows : inputs
            What was forgotten; each must be in the table.
        unlearn : callable, optional
            Makes each kept model that learnt some of them forget those. Without it `owed` counts them. As long as
            models are kept, their keyed hashes stay behind: the models are never asked about what they learnt.
        before, after : Module or estimator, optional
            The model as it was and as it is now that it has forgotten them: the samples' share leaves the curvature,
            which then belongs to `after`. Without them the curvature is dropped, since it holds their share.
        """
        samples = Samples.read(rows, "rows", labels=False)
        places = self._places(samples)
        if self.taught is not None and unlearn is not None:
            self.models = tuple(
                self._forgetful(at, model, samples, places, unlearn) for at, model in enumerate(built(self.models))
            )
        if self.curvature is not None:
            known = before is not None and after is not None
            # each content as often as the table has it, however often it was handed in
            copies = np.bincount(self._places_of_copies(places), minlength=len(self))
            first = {int(place): at for at, place in reversed(list(enumerate(places)))}
            leaving = samples.rows([at for place, at in first.items() for _ in range(int(copies[place]))])
            self.curvature = self.curvature.without(before, after, leaving, forward=self.forward) if known else None
        gone = self.entries.copies_of(places)
        if self.taught is not None and unlearn is None:
            self.owed += int(self.taught.learnt(self.entries.content[gone]).sum())
        self.entries = self.entries.without(gone)
        self.forgotten += len(gone)
        return self

    def extend(
        self,
        data: object,
        groups: Sequence[Any] | None = None,
        *,
        train: Training | Train | None = None,
        old: object = None,
        steps: int | None = None,
        seed: int = 1,
        progress: bool | Progress = False,
    ) -> References:
        """Add rows that the target learnt after the table was made, and return it.

        With kept models this costs one pass: each row is asked of the model of its group's fold (its own, where it
        was forgotten and comes back), or of the smallest fold. Without them one model is trained on the old rows, apart
        from those of groups that the new rows belong to, and asked about all new ones: one training. Rows that are in
        the table already stay as they are.

        Parameters
        ----------
        data, groups
            The new rows, as in `fit`; groups are given exactly where the table has them.
        train, old, steps, seed
            Without kept models: how to train, as in `fit` (a function's rows count in `old`), and all the rows that
            the table was made from, as far as they were not forgotten.
        """
        with reporter(progress) as report:
            _extend(self, data, groups, train=train, old=old, steps=steps, seed=seed, progress=report)
        return self

    def drop_models(self) -> References:
        """Drop the kept models, and with them what they owe; `extend` then trains one."""
        self.models, self.owed, self.taught = (), 0, None
        return self

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the table, and its key beside it (`path`.key) unless a file of that key is there; both private."""
        return store.save(self, Path(path))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        key: bytes | None = None,
        build: Callable[[], nn.Module] | None = None,
        forward: Forward | None = None,
        view: View | None = None,
    ) -> References:
        """Read a table that `save` wrote; nothing is unpickled.

        `key` is by default what is in the file `path`.key; `build` returns a network for the weights of kept models:
        without it they can be saved again and dropped, and nothing else. `view` is the function that made the views,
        where that was one of your own.
        """
        return store.load(cls, Path(path), key, build, forward, view)

    @property
    def classes(self) -> int:
        """How many classes the logits have."""
        return self.entries.logits.shape[1]

    @property
    def claims(self) -> int:
        """How many rows are somebody's word."""
        return int((self.entries.fold == CLAIMED).sum())

    def about(self) -> dict[str, Any]:
        """Return what there is to know about the table, ready for JSON; nothing of it tells a row."""
        origin, costs = self.origin, self.origin.costs
        return {
            "rows": len(self),
            "classes": self.classes,
            **{name: getattr(origin, name) for name in ("folds", "by", "steps", "seed")},
            "claimed": self.claims,
            "forgotten": self.forgotten,
            "models_kept": len(self.models),
            "models_owe": self.owed,
            "views": 0 if self.views is None else self.views.count,
            "curvature_rows": None if self.curvature is None else self.curvature.rows,
            "spread": self.spread,
            "training_seconds": costs.seconds,
            "trainings": costs.trainings,
        }

    def __len__(self) -> int:
        return len(self.entries.fold)

    def __repr__(self) -> str:
        by = "claimed" if self.origin.by == "claim" else f"{self.origin.folds} folds by {self.origin.by}"
        return f"References({len(self)} rows, {self.classes} classes, {by}, {len(self.models)} models kept)"

    def _places(self, samples: Samples) -> Array:
        known, keys = self.entries.places, as_keys(row_hashes(samples, self.key))
        missing = [at for at, key in enumerate(keys) if key not in known]
        if missing:
            doubt = " (is its key the right one?)" if len(missing) == len(keys) else ""
            raise NotHeldOutError(
                f"{len(missing)} of {len(keys)} samples are not in the table of references{doubt} (first: sample "
                f"{missing[0]}), so that nothing proves a model which never saw them; give them as the table's data "
                "were given, add them with extend, or fit a new table",
                rows=missing,
            )
        return np.array([known[key] for key in keys], dtype=np.int64)

    def _places_of_copies(self, places: Array) -> Array:
        """Return, for every row of the table that has the content of one at `places`, the first row that has it."""
        gone = self.entries.copies_of(places)
        return np.array([self.entries.places[key] for key in as_keys(self.entries.content[gone])], dtype=np.int64)

    def _forgetful(self, at: int, model: Any, samples: Samples, places: Array, unlearn: Unlearn) -> Any:
        seen = np.flatnonzero(self.taught.learnt(self.entries.content[places], at)) if self.taught else np.zeros(0)
        if not len(seen):
            return model
        after = unlearn(model, samples.rows(seen), self.entries.logits[torch.from_numpy(places[seen])])
        as_module(after)  # or nothing at all would stand in for a model
        return after


def spread_of(own: Tensor, others: Sequence[Tensor | None]) -> float | None:
    """Return how far models lie from each other on samples that none of them saw, as a share of their logits' size.

    Parameters
    ----------
    own : Tensor, shape (samples, classes)
        The logits of one model.
    others : sequence of Tensor
        Those of the others.

    >>> spread_of(torch.tensor([[1.0, -1.0]]), [torch.tensor([[2.0, -2.0]])])
    0.5
    """

    def centred(logits: Tensor) -> Tensor:
        return logits.double() - logits.double().mean(1, keepdim=True)

    there = [centred(each) for each in others if each is not None]
    size = sum(float(each.square().mean()) for each in there)
    apart = sum(float((centred(own) - each).square().mean()) for each in there)
    return (apart / size) ** 0.5 if size > 0 else None
