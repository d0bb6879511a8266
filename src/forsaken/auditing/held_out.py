"""References for the originals of an ensemble: models that did not learn the forgotten samples, for each original."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from forsaken._random import Purpose, generator, torch_seed
from forsaken.auditing.inputs import AuditInputs
from forsaken.auditing.measurements import function_name
from forsaken.data.nest import row_keys
from forsaken.data.samples import Samples
from forsaken.errors import InputError, SettingsError
from forsaken.models.augment import View
from forsaken.models.logits import predict_logits
from forsaken.models.train import Training, steps_of
from forsaken.references.curvature import Curvature
from forsaken.references.fitting import CUSTOM, Costs, Origin, Views, asked_views
from forsaken.references.rows import ReferenceRows, as_keys, assign_folds, row_hashes, units
from forsaken.references.table import References, spread_of
from forsaken.sets import Sets
from forsaken.types import Array

By = Literal["row", "group", "forgotten", "all"]

_KINDS: dict[By, int] = {"row": 1, "group": 2, "forgotten": 3, "all": 4}  # part of the seeds: change none


@dataclass(frozen=True, slots=True)
class HeldOut:
    """How the references of an original are made. No two originals share a reference.

    Attributes
    ----------
    folds : int
        K: each reference learns all but one of K folds of the training data, drawn anew for each original.
    by : str
        "row": folds of rows. "group": folds of groups, as `groups` says. "forgotten": the forgotten samples are one
        group, and every other row is one of its own. "all": one reference, which learns everything but the forgotten
        samples; the ideal that folds are compared with.
    groups : tuple of hashables, optional
        The group of each row of `Sets.train`.
    views : int
        How many augmented copies of each forgotten sample the references are evaluated on, too.
    view : callable or str, optional
        The augmentation that makes the copies; by default that of the training's recipe.
    """

    folds: int = 4
    by: By = "row"
    groups: tuple[Any, ...] | None = None
    views: int = 0
    view: View | str | None = None

    @classmethod
    def of(cls, table: References, sets: Sets) -> HeldOut:
        """Return how a table of references was made, to be repeated on the same data."""
        if table.origin.by == "claim":
            raise SettingsError(
                "these references were handed in, so it is not known how to make others like them for the "
                "originals of an ensemble; the profile standard needs none",
                field="references",
            )
        views = table.views
        asked = (0, None) if views is None else (views.count, views.view if views.name == CUSTOM else views.name)
        if table.entries.groups is None:
            return cls(table.origin.folds, "row", None, *asked)
        places, keys = table.entries.places, as_keys(row_hashes(sets.train, table.key))
        gone = sum(key not in places for key in keys[len(sets.remaining) :])
        if gone:
            raise InputError(
                f"{gone} of {len(sets.forget)} forgotten samples are not in the table of references, so their "
                "groups are not known",
                field="references",
                remedy="give the table as it was when the model forgot them, before references.forget",
            )
        # Groups that share a row are one group, as they were when the folds were drawn.
        names = units(as_keys(table.entries.content), as_keys(table.entries.groups)).tolist()
        # A row that is not in the table is a group of its own.
        groups = tuple(names[places[key]] if key in places else key for key in keys)
        return cls(table.origin.folds, "group", groups, *asked)

    def parts(self, sets: Sets, seed: int) -> list[tuple[Array, Array]]:
        """Return, for each reference, the rows of `Sets.train` that it learns and the forgotten samples that it lacks.

        References that lack no forgotten sample are left out: nothing is asked of them.
        """
        rest, whole = len(sets.remaining), len(sets.train)
        if self.by == "all":
            return [(np.arange(rest), np.arange(whole - rest))]
        groups: Sequence[Any] | None = self.groups
        if self.by == "forgotten":
            groups = [*range(rest), *[-1] * (whole - rest)]
        fold = assign_folds(row_keys(sets.train.inputs), groups, folds=self.folds, seed=seed)
        of_forget = fold[rest:]
        return [(np.flatnonzero(fold != at), np.flatnonzero(of_forget == at)) for at in np.unique(of_forget)]

    def seeds(self, sets: Sets, seed: int) -> list[int]:
        """Return the seeds of the trainings of an original's references, in the order of `parts`."""
        draw = generator(seed, Purpose.HELD_OUT_TRAININGS, 0 if self.by == "all" else self.folds, _KINDS[self.by])
        return [int(own) for own in draw.integers(2**32, size=len(self.parts(sets, seed)))]

    def count(self, sets: Sets, seeds: Sequence[int]) -> int:
        """Return how many references the originals with these seeds need."""
        return sum(len(self.parts(sets, seed)) for seed in seeds)

    def tables(
        self,
        inputs: AuditInputs,
        seeds: Sequence[int],
        models: Sequence[Any],
        curvatures: Sequence[Curvature | None],
        *,
        device: str | torch.device,
        tell: Callable[[float], None] = lambda _: None,
    ) -> list[References]:
        """Train the references of some originals, and return a table of the forget samples for each original.

        Each table has the curvature of its original, and the spread between the original and its references on the
        reference samples of the audit, which neither of them saw.

        Parameters
        ----------
        inputs : AuditInputs
            The data, and how models are trained.
        seeds, models, curvatures : sequences
            The originals, one entry each.
        device : str or device
            Where to train.
        tell : callable
            Told the share of the training that is done.
        """
        sets, forget, unseen = inputs.sets, Samples(inputs.sets.forget.inputs), inputs.sets.reference
        views = self._views(inputs)
        wanted = [
            (number, learnt, asked, own)
            for number, seed in enumerate(seeds)
            for (learnt, asked), own in zip(self.parts(sets, seed), self.seeds(sets, seed), strict=True)
        ]
        wanted.sort(key=lambda one: len(one[1]))  # models of equally many rows can be trained together
        trainings = inputs.train(
            sets.train,
            [torch.from_numpy(learnt) for _, learnt, _, _ in wanted],
            [own for *_, own in wanted],
            device=device,
            steps=_steps(inputs),
            progress=lambda tick: tell(tick.done / max(1, tick.total)),
            stage="train references",
        )
        found = [_Answers() for _ in seeds]
        for (number, _, asked, _), reference in zip(wanted, trainings, strict=True):
            own, rows = found[number], forget.rows(asked)
            own.places.append(asked)
            own.logits.append(predict_logits(reference, rows, forward=inputs.forward).float())
            if views is not None:
                own.views.append(asked_views(reference, rows, views, inputs.forward))
            if unseen is not None:
                own.unseen.append(predict_logits(reference, Samples(unseen.inputs), forward=inputs.forward))
        key = bytes(32)  # these tables are never written, so their hashes need no secret
        content, by = row_hashes(forget, key), "row" if self.by == "row" else "group"
        tables = []
        for each, model, curvature in zip(found, models, curvatures, strict=True):
            order = torch.from_numpy(np.argsort(np.concatenate(each.places), kind="stable"))
            entries = ReferenceRows(
                content,
                None,
                np.zeros(len(forget), dtype=np.int64),
                torch.cat(each.logits)[order],
                torch.cat(each.views)[order] if each.views else None,
            )
            table = References(entries, key, Origin(self.folds, by, None, inputs.seed, Costs(0.0, 0)), views=views)
            table.forward, table.curvature = inputs.forward, curvature
            if unseen is not None:
                logits = predict_logits(model, Samples(unseen.inputs), forward=inputs.forward)
                table.spread = spread_of(logits, each.unseen)
            tables.append(table)
        return tables

    def to_dict(self) -> dict[str, Any]:
        """Return what decides the references, ready for JSON."""
        return {
            "folds": None if self.by == "all" else self.folds,
            "by": self.by,
            "groups": None if self.groups is None else [str(group) for group in self.groups],
            "views": self.views,
            "view": function_name(self.view) if callable(self.view) else self.view,
        }

    def _views(self, inputs: AuditInputs) -> Views | None:
        own = inputs.training.recipe.augmentation if isinstance(inputs.training, Training) else None
        return Views.of(self.views, own if self.view is None else self.view, inputs.seed)


@dataclass(frozen=True, slots=True)
class _Answers:
    """The logits of one original's references: of which forget samples, of their views, and of unseen samples."""

    places: list[Array] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    views: list[Tensor] = field(default_factory=list)
    unseen: list[Tensor | None] = field(default_factory=list)


def _steps(inputs: AuditInputs) -> int | None:
    """Return the number of steps of an original's training, which its references take too; None for a function."""
    training = inputs.need_training()
    if not isinstance(training, Training):
        return None
    with torch_seed(0):
        network = training.build()
    return training.recipe.epochs * steps_of(len(inputs.sets.train), training.recipe, network)
