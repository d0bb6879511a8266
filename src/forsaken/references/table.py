"""`forsaken.References`: for every row of the training data, the logits of a model that never saw it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from forsaken._random import checked_seed
from forsaken.data.samples import Samples, shuffles
from forsaken.errors import InputError, ModelError, NotHeldOutError, SettingsError
from forsaken.models.augment import View
from forsaken.models.logits import Forward, as_module, centre, predict_logits
from forsaken.models.train import Training
from forsaken.progress import reporter
from forsaken.references import store
from forsaken.references.curvature import Curvature
from forsaken.references.fitting import (
    Costs,
    CrossFit,
    FoldModels,
    FoldResult,
    Origin,
    Train,
    Views,
    asked_views,
    checked_steps,
    key_in,
    trained_on,
)
from forsaken.references.rows import (
    CLAIMED,
    ReferenceRows,
    as_keys,
    assign_folds,
    checked_key,
    group_hashes,
    row_hashes,
    units,
)
from forsaken.references.worth import GOAL, Worth, worth_of
from forsaken.types import Array, Progress

BUDGET = 8  # trainings in all, where the number of folds is chosen
_START = 4  # folds that "auto" begins with; from this number on one more model costs little beside them
_GAIN = 0.02  # of AUC, for which it is worth while to begin anew with more folds

Unlearn: TypeAlias = Callable[[Any, Samples, Tensor], Any]
"""Makes a fold model forget: ``(model, samples, their out-of-fold logits) -> model``."""


@dataclass(slots=True, repr=False, eq=False)
class References:
    """A table of out-of-fold logits, made once, which serves every later request to forget. See `fit`.

    The table recognises rows by a hash under `key`; it holds neither samples nor labels. A row's own logits carry no
    trace of whether the row was trained on, but they carry traces of the other rows: protect the table as you protect
    the training data.

    Attributes
    ----------
    entries : ReferenceRows
        Hashes, folds and logits, row by row.
    key : bytes
        The secret that keys the hashes.
    origin : Origin
        How the table was made.
    fold_models : FoldModels or None
        The models of the folds and the hashes of the rows they learnt, where they were kept.
    forgotten : int
        How many rows were taken out so far.
    owed : int
        How many of these rows the fold models still remember.
    forward : callable or None
        How to call the models; see `forsaken.unlearn`.
    views : Views or None
        The augmented copies of each row that the fold models were asked about too.
    curvature : Curvature or None
        Of the model that was given to `fit`: it keeps that model's other answers in place while it forgets.
    spread : float or None
        How far two models that never saw a sample differ on it: the root mean square distance, on unseen samples,
        between the centred logits of the model given to `fit` and those of the fold models, divided by the root mean
        square of the latter.
    worth : Worth or None
        How well an attack would tell these references from retrained models, estimated on unseen samples when they were
        made.
    """

    entries: ReferenceRows
    key: bytes = field(repr=False)
    origin: Origin
    fold_models: FoldModels | None = None
    forgotten: int = 0
    owed: int = 0
    forward: Forward | None = None
    views: Views | None = None
    curvature: Curvature | None = None
    spread: float | None = None
    worth: Worth | None = None

    @classmethod
    def fit(
        cls,
        train: Training | Train,
        data: object,
        folds: int | Literal["auto"] = 4,
        groups: Sequence[Any] | None = None,
        steps: int | None = None,
        seed: int = 0,
        *,
        model: object = None,
        second: object = None,
        budget: int | None = None,
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
        """Train one model for each fold on all other folds, and record its logits of the fold's rows.

        Parameters
        ----------
        train : callable or Training
            ``train(rows, steps, seed)`` returns a model like the target, trained on these rows of `data`; or how the
            target was trained, ``forsaken.Training(build, recipe)``, whose networks are trained many at a time.
        data : inputs, or pair (inputs, labels)
            Everything that the target was trained on, in the form in which samples will be given to be forgotten.
        folds : int or "auto"
            K, the number of models; each is trained without 1/K of the data. "auto" trains two of four folds
            and one more model of everything, estimates on `unseen` how well an attack would tell such references from
            retrained models (`worth`), and goes on with as many folds as bring the AUC below 0.55, or as `budget`
            allows.
        groups : sequence, optional
            To whom each row belongs (a person, a source), as names or numbers: rows of one group share a fold. Rows of
            equal content always share a fold.
        steps : int, optional
            The steps of each training. Give the target's: models that take fewer are less confident than the target.
            A `Training` takes the target's number by itself.
        seed : int
            Decides the folds and the trainings. It must differ from the target's own.
        model : Module or estimator, optional
            The trained model that requests will be about. Its curvature over the training data is measured in one pass
            and kept in the table: a request then passes only the forgotten samples, and does less damage.
        second : Module or estimator, or bool, optional
            A model that was trained as `model` was, with another seed. The two tell how much retrained models differ,
            which `worth` needs. By default such a model is trained where there are `unseen` samples and four folds or
            more; True does so with fewer folds too, False never.
        budget : int, optional
            For "auto": the most trainings in all, 8 by default.
        views : int
            How many augmented copies of each row the models are asked about as well, so that a request forgets a row
            together with its neighbourhood. Give some (3) where the model was trained with augmentation.
        view : callable or str, optional
            How an augmented copy is made: ``view(inputs, generator)``, which draws from `generator` alone, or a name of
            `forsaken.models.augment`. By default the augmentation of the training's recipe.
        unseen : inputs, optional
            Samples of the task that neither `model` nor these trainings saw. `worth` is estimated on them, and `spread`
            measured, which tells a request when its result is near enough.
        keep_models : bool
            Keep the fold models for `extend`. They remember rows, and must forget too.
        key : bytes, optional
            The 32 bytes that key the hashes of rows; new ones by default.
        forward : callable, optional
            See `forsaken.unlearn`.
        engine, workers
            "local", "ray" or "ray://host:port": see the guide.
        folder : path, optional
            Where finished folds are stored, so that a fit that was killed can be continued (with `keep_models` it
            begins anew). Remove the folder once the table is saved. Of functions only the names are known: remove the
            folder when you change one, too.
        progress : bool or callable
            Show a bar, or call a function with each `Tick`.

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
            _check_order(data, "data", "rows and groups follow the order")
        samples = Samples.read(data, "data", seed=start)
        others = None if unseen is None else Samples.read(unseen, "unseen", labels=False)
        if others is not None and model is None:
            raise SettingsError("unseen= is there to compare a model with; give model= too")
        checked = None if folds != "auto" else _checked_budget(budget, second, others)
        if budget is not None and checked is None:
            raise SettingsError(f'budget= is there for folds="auto", but folds is {folds!r}; leave one of them out')
        own_view = train.recipe.augmentation if isinstance(train, Training) else None
        viewed = Views.of(views, own_view if view is None else view, start)
        curvature = None if model is None else Curvature.fit(model, samples, forward=forward, progress=progress)
        content = row_hashes(samples, secret)
        names = None if groups is None else group_hashes(groups, secret)
        units_of = as_keys(content), None if names is None else as_keys(names)

        def plan(count: Any, wholes: int) -> CrossFit:
            fold = assign_folds(*units_of, folds=count, seed=start)
            return CrossFit(
                train, samples, fold, steps, start, forward, keep_models, place, secret, viewed, others, wholes
            )

        whole = [each for each in (model, second) if each is not None and not isinstance(each, bool)]
        targets = [] if others is None else [predict_logits(each, others, forward=forward) for each in whole]
        with reporter(progress) as report:
            how = {"engine": engine, "workers": workers, "progress": report}
            if checked is None:
                done = _Done(plan(folds, _wholes(folds, second, others)), targets).run(how)
            else:
                done = _chosen(plan, checked, int(units(*units_of).max()) + 1, targets, how)
        fold, results = done.plan.fold, done.folds
        classes = results[0].logits.shape[1]
        logits = torch.empty(len(samples), classes)
        of_views = None if viewed is None else torch.empty(len(samples), viewed.count, classes)
        for at, each in enumerate(results):
            rows = torch.from_numpy(done.plan.rows_of(at)[1])
            logits[rows] = each.logits
            if of_views is not None and each.views is not None:
                of_views[rows] = each.views
        kept = FoldModels(tuple(each.model for each in results), content, names, fold) if keep_models else None
        by = "row" if groups is None else "group"
        return cls(
            ReferenceRows(content, names, fold, logits, of_views),
            secret,
            Origin(done.plan.count, by, done.plan.steps_each, start, done.costs, checked),
            kept,
            forward=forward,
            views=viewed,
            curvature=curvature,
            spread=spread_of(targets[0], [each.unseen for each in results]) if targets else None,
            worth=done.worth,
        )

    @classmethod
    def claimed(cls, data: object, logits: object, *, key: bytes | None = None) -> References:
        """Return a table of logits (rows x classes) that you hand in.

        Nothing proves here that the rows were held out: results name such rows as claimed.
        """
        secret = checked_key(key)
        _check_order(data, "data", "logits follow the order")
        samples = Samples.read(data, "data", labels=False)
        content, fold = row_hashes(samples, secret), np.full(len(samples), CLAIMED)
        entries = ReferenceRows(content, None, fold, _given_logits(logits, len(samples)))
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
        """Return a table from models that you hand in, with the numbers of the rows that each of them never saw.

        The last model that held out a row gives its logits. As in `claimed`, nothing proves that it was held out.
        """
        _check_order(data, "data", "held-out rows follow the order")
        samples = Samples.read(data, "data", labels=False)
        if len(models) != len(held_out):
            raise InputError(f"{len(models)} models but {len(held_out)} sets of held-out rows; give one for each model")
        found: dict[int, Tensor] = {}
        for model, given in zip(models, held_out, strict=True):
            rows = _row_numbers(given, len(samples))
            if rows.size:
                said = predict_logits(model, samples.rows(rows), forward=forward).float()
                found |= dict(zip(rows.tolist(), said, strict=True))
        if not found:
            raise InputError("no model is said to have held out any row; name some in held_out")
        if len({len(row) for row in found.values()}) > 1:
            raise ModelError("the models tell different numbers of classes apart; give models of one task")
        order = sorted(found)
        return cls.claimed(samples.rows(order), torch.stack([found[at] for at in order]), key=key)

    def logits(self, x: object) -> Tensor:
        """Return the out-of-fold logits of samples; a sample that is not in the table raises a `NotHeldOutError`."""
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
        """Return for how many of these samples the logits were handed in."""
        return int((self.entries.fold[self._places(Samples.read(x, "x", labels=False))] == CLAIMED).sum())

    def forget(
        self, rows: object, unlearn: Unlearn | None = None, *, before: object = None, after: object = None
    ) -> References:
        """Take samples and their copies out of the table, and return it.

        Parameters
        ----------
        rows : inputs
            The forgotten samples; each must be in the table.
        unlearn : callable, optional
            Makes each fold model forget those of the samples that it learnt. Without it `owed` counts them. As long as
            fold models are kept, the keyed hashes of the samples stay with them, so that no model is asked about a row
            that it learnt.
        before, after : Module or estimator, optional
            The target before and after it forgot the samples: their share is subtracted from the curvature, which then
            belongs to `after`. Without both models the curvature is dropped, since it holds their share.
        """
        samples = Samples.read(rows, "rows", labels=False)
        places = self._places(samples)
        gone = self.entries.copies_of(places)
        kept, owed, curvature = self.fold_models, self.owed, self.curvature
        if kept is not None and unlearn is not None:
            models = [self._unlearnt(kept, at, samples, places, unlearn) for at in range(len(kept.models))]
            kept = replace(kept, models=tuple(models))
        elif kept is not None:
            owed += int(kept.learnt(self.entries.content[gone]).sum())
        if curvature is not None and (before is None or after is None):
            curvature = None
        elif curvature is not None:
            # Each content is subtracted as often as the table has it, however often it was handed in.
            copies = Counter(self.entries.places[key] for key in as_keys(self.entries.content[gone]))
            first = {int(place): at for at, place in reversed(list(enumerate(places)))}
            leaving = samples.rows([at for place, at in first.items() for _ in range(copies[place])])
            curvature = curvature.without(before, after, leaving, forward=self.forward)
        # Nothing is changed before this point, so a request that fails leaves the table as it was.
        self.fold_models, self.owed, self.curvature = kept, owed, curvature
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
        """Add rows that the target learnt after the table was made, and return the table.

        With fold models this costs one pass: each row is given to the model of its group's fold (of its own fold, where
        the row was forgotten and comes back), or else of the smallest fold. Without them one model is trained on the
        old rows, except those whose group a new row belongs to, and gives the logits of all new rows. Rows that are in
        the table already stay as they are. The curvature is dropped: the target has learnt rows that it lacks.

        Parameters
        ----------
        data, groups
            The new rows, as in `fit`; groups are given exactly where the table has them.
        train, old, steps, seed
            Without fold models: how to train, as in `fit` (a function's rows are row numbers in `old`), and all rows
            that the table was made from, apart from forgotten ones.
        progress : bool or callable
            Show a bar, or call a function with each `Tick`.
        """
        start, count = checked_seed(seed), checked_steps(steps)
        if groups is not None:
            _check_order(data, "data", "groups follow the order")
        samples = Samples.read(data, "data", seed=start)
        if (groups is None) != (self.entries.groups is None):
            wanted = "no groups" if self.entries.groups is None else "groups, as it was made with them"
            raise InputError(f"the table has {wanted}; give groups= accordingly")
        content = row_hashes(samples, self.key)
        names = None if groups is None else group_hashes(groups, self.key)
        if names is not None and len(names) != len(samples):
            raise InputError(
                f"groups names the group of {len(names)} rows, but there are {len(samples)}; give one a row"
            )
        new = np.flatnonzero([key not in self.entries.places for key in as_keys(content)])
        if not len(new):
            return self
        inputs, content = Samples(samples.rows(new).inputs), content[new]
        names = None if names is None else names[new]
        origin = self.origin
        if self.fold_models is not None:
            fold = self.fold_models.fold_for(content, names, self.entries)
            asked = [(model, np.flatnonzero(fold == at)) for at, model in enumerate(self.fold_models.built)]
        else:
            began = time.perf_counter()
            with reporter(progress) as report:
                model = self._trained_on_old(names, train, old, count, start, report)
            origin = replace(origin, costs=origin.costs.plus(time.perf_counter() - began))
            fold = np.full(len(new), max(0, int(self.entries.fold.max(initial=-1)) + 1))
            asked = [(model, np.arange(len(new)))]
        logits = torch.empty(len(new), self.classes)
        views = None if self.views is None else torch.empty(len(new), self.views.count, self.classes)
        for model, rows in asked:
            if not len(rows):
                continue
            part = inputs.rows(rows)
            said = predict_logits(model, part, forward=self.forward).float()
            if said.shape[1] != self.classes:
                raise ModelError(f"the new model tells {said.shape[1]} classes apart, the table has {self.classes}")
            logits[torch.from_numpy(rows)] = said
            if views is not None and self.views is not None:
                views[torch.from_numpy(rows)] = asked_views(model, part, self.views, self.forward)
        self.entries = self.entries.joined(ReferenceRows(content, names, fold, logits, views))
        self.origin, self.curvature = origin, None
        return self

    def drop_models(self) -> References:
        """Drop the fold models, and with them the count of what they still remember; `extend` then trains a model."""
        self.fold_models, self.owed = None, 0
        return self

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the table, and its key into the file `path`.key unless that holds it; only the owner may read them."""
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

        Parameters
        ----------
        path : path
            The table's file.
        key : bytes, optional
            The table's key; by default the content of the file `path`.key.
        build : callable, optional
            Returns a network for the weights of kept fold models. Without it they can only be saved again or dropped.
        forward : callable, optional
            How to call the fold models; see `forsaken.unlearn`.
        view : callable, optional
            The function that made the views, where it was one of your own.
        """
        return store.load(cls, Path(path), key, build, forward, view)

    @property
    def models(self) -> tuple[Any, ...]:
        """The models of the folds, where they were kept."""
        return () if self.fold_models is None else self.fold_models.models

    @property
    def classes(self) -> int:
        """How many classes the logits have."""
        return self.entries.logits.shape[1]

    @property
    def claims(self) -> int:
        """For how many rows the logits were handed in."""
        return int((self.entries.fold == CLAIMED).sum())

    @property
    def worth_now(self) -> float | None:
        """The AUC to expect of an attack on the next request: the estimate of `worth`, after what was forgotten so far.

        The fold models still know rows that models retrained by now lack. That rows of one source are related, and so
        say more about each other than others do, is not in it.
        """
        if self.worth is None or not self.origin.folds or not len(self):
            return None
        return self.worth.after(self.forgotten / (len(self) + self.forgotten))

    @property
    def refit_due(self) -> bool:
        """Whether so much was forgotten that references fitted anew would be clearly better, and these are not good."""
        if self.worth is None or (now := self.worth_now) is None:
            return False
        return now >= max(GOAL, self.worth.at(self.origin.folds) + _GAIN)

    def about(self) -> dict[str, Any]:
        """Return counts, settings and costs of the table, ready for JSON; nothing in it describes a row."""
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
            "worth": None if self.worth is None else self.worth.about(),
            "worth_now": self.worth_now,
            "refit_due": self.refit_due,
            "budget": origin.budget,
            "training_seconds": costs.seconds,
            "trainings": costs.trainings,
        }

    def __len__(self) -> int:
        return len(self.entries.fold)

    def __repr__(self) -> str:
        by = "claimed" if self.origin.by == "claim" else f"{self.origin.folds} folds by {self.origin.by}"
        return f"References({len(self)} rows, {self.classes} classes, {by}, {len(self.models)} models kept)"

    def _places(self, samples: Samples) -> Array:
        """Return the row of the table for each sample, or raise a `NotHeldOutError`."""
        known, keys = self.entries.places, as_keys(row_hashes(samples, self.key))
        missing = [at for at, key in enumerate(keys) if key not in known]
        if missing:
            doubt = " (is its key the right one?)" if len(missing) == len(keys) else ""
            raise NotHeldOutError(
                f"{len(missing)} of {len(keys)} samples are not in the table of references{doubt} (first: sample "
                f"{missing[0]}), so no model is known that never saw them; give them as the table's data were "
                "given, add them with extend, or fit a new table",
                rows=missing,
            )
        return np.array([known[key] for key in keys], dtype=np.int64)

    def _unlearnt(self, kept: FoldModels, at: int, samples: Samples, places: Array, unlearn: Unlearn) -> Any:
        """Return fold model number `at` after it forgot those of the samples that it learnt."""
        model = kept.built[at]
        learnt = np.flatnonzero(kept.learnt(self.entries.content[places], at))
        if not len(learnt):
            return model
        after = unlearn(model, samples.rows(learnt), self.entries.logits[torch.from_numpy(places[learnt])])
        as_module(after)  # refuses what is no model, such as None
        return after

    def _trained_on_old(
        self,
        groups: Array | None,
        train: Training | Train | None,
        old: object,
        steps: int | None,
        seed: int,
        progress: Progress,
    ) -> Any:
        """Train a model on the old rows, apart from those that share a fold with a row of the new rows' groups."""
        if train is None or old is None:
            raise SettingsError(
                "the table keeps no models (keep_models=True does), so one must be trained without the new rows; "
                "give train= and old=, all the rows that the table was made from"
            )
        if not isinstance(train, Training):
            _check_order(old, "old", "a function's rows follow the order")
        before = Samples.read(old, "old", seed=seed)
        keys, known = as_keys(row_hashes(before, self.key)), self.entries.places
        strange = [at for at, key in enumerate(keys) if key not in known]
        if strange:
            raise InputError(
                f"{len(strange)} of {len(keys)} rows of old are not in the table (first: row {strange[0]}); leave out "
                "what was forgotten"
            )
        barred: set[bytes] = set()
        if groups is not None and self.entries.groups is not None:
            own, names, wanted = as_keys(self.entries.content), as_keys(self.entries.groups), set(as_keys(groups))
            unit = units(own, names).tolist()
            near = {at for at, name in zip(unit, names, strict=True) if name in wanted}
            barred = {key for at, key in zip(unit, own, strict=True) if at in near}
        rows = np.flatnonzero([key not in barred for key in keys])
        if not len(rows):
            raise InputError("every row of old belongs to a group of the new rows, so none is left to train on")
        return trained_on(
            train,
            before,
            rows,
            steps=steps or self.origin.steps,
            seed=seed,
            forward=self.forward,
            progress=progress,
            stage="train a model without the new rows",
        )


@dataclass(frozen=True, slots=True)
class _Done:
    """The trainings of a table so far.

    Attributes
    ----------
    plan : CrossFit
        All trainings.
    targets : list of Tensor
        The logits of unseen samples by models that learnt everything and are there already, the target first; none
        where no sample is given.
    results : dict of int to FoldResult
        Of the trainings that were run, by their numbers.
    earlier : tuple of FoldResult
        The trainings of an earlier plan that this one replaced.
    """

    plan: CrossFit
    targets: list[Tensor]
    results: dict[int, FoldResult] = field(default_factory=dict)
    earlier: tuple[FoldResult, ...] = ()

    def run(self, how: Mapping[str, Any], numbers: Sequence[int] | None = None) -> _Done:
        """Return this with some more trainings, by default with all."""
        wanted = self.plan.trainings if numbers is None else numbers
        missing = [at for at in wanted if at not in self.results]
        return replace(self, results=self.results | self.plan.run(missing, **how))

    @property
    def folds(self) -> list[FoldResult]:
        """The results of the folds in their order, without the models of everything."""
        return [self.results[at] for at in range(self.plan.count) if at in self.results]

    @property
    def wholes(self) -> list[Tensor]:
        """The logits of unseen samples by all models that learnt everything, the target first."""
        own = [each.unseen for at, each in self.results.items() if at >= self.plan.count]
        return [*self.targets, *(each for each in own if each is not None)]

    @property
    def costs(self) -> Costs:
        """What all trainings cost."""
        every = [*self.earlier, *self.results.values()]
        return Costs(sum(each.seconds for each in every), len(every))

    @property
    def worth(self) -> Worth | None:
        """The estimate from what was trained so far."""
        folds = [each.unseen for each in self.folds if each.unseen is not None]
        return worth_of(folds, self.wholes, count=self.plan.count)


def _checked_budget(budget: object, second: object, unseen: Samples | None) -> int:
    if unseen is None:
        raise SettingsError(
            'folds="auto" chooses by what the models say about samples that none of them saw; give unseen= and model=, '
            "or a number of folds"
        )
    least = 2 if _is_model(second) else 3
    allowed = BUDGET if budget is None else budget
    if second is False or isinstance(allowed, bool) or not isinstance(allowed, int) or allowed < least:
        what = "second is False" if second is False else f"budget is {budget!r}"
        raise SettingsError(
            f'{what}, expected {least} trainings or more for folds="auto": two folds, and a second model of everything '
            "where second= is none"
        )
    return allowed


def _is_model(second: object) -> bool:
    return second is not None and not isinstance(second, bool)


def _wholes(folds: object, second: object, unseen: Samples | None) -> int:
    """Return how many models are trained like the target, on everything."""
    if unseen is None or second is False or _is_model(second) or not isinstance(folds, int):
        return 0
    return int(folds >= _START or second is True)


def _chosen(
    plan: Callable[[int, int], CrossFit], budget: int, most: int, targets: list[Tensor], how: Mapping[str, Any]
) -> _Done:
    """Train as many folds as the estimate asks for, within a budget of trainings in all.

    Two of four folds (and a second model of everything) come first. Where they show that four folds are too few, the
    budget goes to more of them at once; otherwise the four are finished, and only then is it decided.
    """
    once = 2 - len(targets)  # 0 where a second model was given
    start = max(2, min(_START, budget - once, most))
    done = _Done(plan(start, once), targets).run(how, [0, 1, *range(start, start + once)])
    if (worth := done.worth) is not None and worth.low < GOAL:
        done = done.run(how)
        worth = done.worth
    left = budget - len(done.results)
    if worth is None or worth.auc < GOAL:
        return done.run(how)
    count = min(worth.folds_needed or left, left, most)
    if count <= start or worth.at(start) - worth.at(count) < _GAIN:
        return done.run(how)
    return _Done(plan(count, 0), done.wholes, {}, tuple(done.results.values())).run(how)


def spread_of(own: Tensor, others: Sequence[Tensor | None]) -> float | None:
    """Return the root mean square distance of one model's centred logits to other models', relative to their size.

    Parameters
    ----------
    own : Tensor, shape (samples, classes)
        The logits of one model, on samples that no model saw.
    others : sequence of Tensor
        Those of the other models.

    >>> spread_of(torch.tensor([[1.0, -1.0]]), [torch.tensor([[2.0, -2.0]])])
    0.5
    """
    there = [centre(each.double()) for each in others if each is not None]
    size = sum(float(each.square().mean()) for each in there)
    apart = sum(float((centre(own.double()) - each).square().mean()) for each in there)
    return (apart / size) ** 0.5 if size > 0 else None


def _check_order(data: object, name: str, what: str) -> None:
    """Refuse a loader that shuffles, where groups, logits or row numbers refer to the order of its samples."""
    if shuffles(data):
        raise InputError(
            f"{what} of {name}, but its loader shuffles, so rows would be taken for others; give a loader with "
            "shuffle=False, or a Dataset"
        )


def _given_logits(logits: object, count: int) -> Tensor:
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


def _row_numbers(rows: Sequence[int], count: int) -> Array:
    found = np.asarray(rows)
    if not found.size:
        return np.zeros(0, dtype=np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise InputError(
            f"a set of held-out rows is an array of {found.dtype} with {found.ndim} axes, expected row numbers; turn a "
            "mask into numbers with np.flatnonzero(mask)"
        )
    if found.min() < 0 or found.max() >= count:
        raise InputError(f"held-out rows reach from {found.min()} to {found.max()}, expected 0 to {count - 1}")
    return found.astype(np.int64)
