"""References for the originals of an ensemble: models of their own that never saw the forgotten samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from forsaken._random import Purpose, generator, torch_seed
from forsaken.auditing.case import Case
from forsaken.auditing.trainings import trained
from forsaken.data.nest import row_keys
from forsaken.data.samples import Samples
from forsaken.errors import InputError, SettingsError
from forsaken.models.augment import View
from forsaken.models.logits import predict_logits
from forsaken.models.train import Training, steps_of
from forsaken.references.curvature import Curvature
from forsaken.references.fitting import CUSTOM, Costs, Origin, Views, asked_views
from forsaken.references.rows import Entries, as_keys, deal, row_hashes, units
from forsaken.references.table import References, spread_of
from forsaken.sets import Sets
from forsaken.types import Array

By = Literal["row", "group", "forgotten", "all"]

_KINDS: dict[By, int] = {"row": 1, "group": 2, "forgotten": 3, "all": 4}


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What the references of an original are trained on. No two originals share one, and no judge is one.

    Attributes
    ----------
    folds : int
        K: each reference lacks one of K folds of the training data, drawn anew for each original.
    by : str
        "row": folds of rows. "group": folds of groups, as `groups` says. "forgotten": the forgotten samples are one
        group, and every other row is one of its own. "all": one reference, which lacks the forgotten samples alone;
        the ideal that folds are compared with.
    groups : tuple of hashables, optional
        The group of each row of `Sets.train`.
    views : int
        How many augmented copies of each forgotten sample the references are asked about too.
    view : callable or str, optional
        Which augmentation makes them; by default that of the training's recipe.
    """

    folds: int = 4
    by: By = "row"
    groups: tuple[Any, ...] | None = None
    views: int = 0
    view: View | str | None = None

    @classmethod
    def of(cls, table: References, sets: Sets) -> HeldOut:
        """Return how a table was made, to be repeated on the same data."""
        if table.origin.by == "claim":
            raise SettingsError(
                "these references were handed in, so that nobody here knows how to make others like them for the "
                "originals of an ensemble; the profile standard needs none"
            )
        views = table.views
        asked = (0, None) if views is None else (views.count, views.view if views.name == CUSTOM else views.name)
        if table.entries.groups is None:
            return cls(table.origin.folds, "row", None, *asked)
        places, keys = table.entries.places, as_keys(row_hashes(sets.train, table.key))
        gone = sum(key not in places for key in keys[len(sets.remaining) :])
        if gone:
            raise InputError(
                f"{gone} of {len(sets.forget)} forgotten samples are not in the table of references, so that nobody "
                "knows their groups; give the table as it was when the model forgot them, before references.forget"
            )
        # Groups that share a row are one, as they were when the folds were drawn.
        names = units(as_keys(table.entries.content), as_keys(table.entries.groups)).tolist()
        # A row that came in otherwise is a group of its own.
        groups = tuple(names[places[key]] if key in places else key for key in keys)
        return cls(table.origin.folds, "group", groups, *asked)

    def parts(self, sets: Sets, seed: int) -> list[tuple[Array, Array]]:
        """Return, for each reference that is needed, the rows of `Sets.train` it learns, and whom it is asked about."""
        rest, whole = len(sets.remaining), len(sets.train)
        if self.by == "all":
            return [(np.arange(rest), np.arange(whole - rest))]
        groups: Sequence[Any] | None = self.groups
        if self.by == "forgotten":
            groups = [*range(rest), *[-1] * (whole - rest)]
        fold = deal(row_keys(sets.train.inputs), groups, folds=self.folds, seed=seed)
        of_forget = fold[rest:]
        return [(np.flatnonzero(fold != at), np.flatnonzero(of_forget == at)) for at in np.unique(of_forget)]

    def count(self, sets: Sets, seeds: Sequence[int]) -> int:
        """Return how many references so many originals need."""
        return sum(len(self.parts(sets, seed)) for seed in seeds)

    def tables(
        self,
        case: Case,
        seeds: Sequence[int],
        models: Sequence[Any],
        curvatures: Sequence[Curvature | None],
        *,
        device: str | torch.device,
        tell: Callable[[float], None],
    ) -> list[References]:
        """Train the references of originals, known by their seeds, and return a table of the forget samples for each.

        Each table has the curvature of its original, and the spread between the original and its references on the
        reference samples of the case, which neither of them saw.
        """
        sets, forget, unseen = case.sets, Samples(case.sets.forget.inputs), case.sets.reference
        views = self._views(case)
        wanted = [
            (number, learnt, asked, int(own))
            for number, seed in enumerate(seeds)
            for (learnt, asked), own in zip(*self._seeded(sets, seed), strict=True)
        ]
        wanted.sort(key=lambda one: len(one[1]))  # models of equally many rows can be trained together
        trainings = trained(
            case,
            sets.train,
            [torch.from_numpy(learnt) for _, learnt, _, _ in wanted],
            [own for *_, own in wanted],
            device=device,
            steps=_steps(case),
            progress=lambda tick: tell(tick.done / max(1, tick.total)),
            stage="train references",
        )
        found: list[_Answers] = [_Answers() for _ in seeds]
        for (number, _, asked, _), reference in zip(wanted, trainings, strict=True):
            own, rows = found[number], forget.rows(asked)
            own.places.append(asked)
            own.logits.append(predict_logits(reference, rows, forward=case.forward).float())
            if views is not None:
                own.views.append(asked_views(reference, rows, views, case.forward))
            if unseen is not None:
                own.unseen.append(predict_logits(reference, Samples(unseen.inputs), forward=case.forward))
        key = bytes(32)  # nobody else sees these tables
        content, by = row_hashes(forget, key), "row" if self.by == "row" else "group"
        tables = []
        for each, model, curvature in zip(found, models, curvatures, strict=True):
            order = torch.from_numpy(np.argsort(np.concatenate(each.places), kind="stable"))
            entries = Entries(
                content,
                None,
                np.zeros(len(forget), dtype=np.int64),
                torch.cat(each.logits)[order],
                torch.cat(each.views)[order] if each.views else None,
            )
            said = None if unseen is None else predict_logits(model, Samples(unseen.inputs), forward=case.forward)
            table = References(entries, key, Origin(self.folds, by, None, case.seed, Costs(0.0, 0)), views=views)
            table.forward, table.curvature = case.forward, curvature
            table.spread = None if said is None else spread_of(said, each.unseen)
            tables.append(table)
        return tables

    def _views(self, case: Case) -> Views | None:
        own = case.training.recipe.augmentation if isinstance(case.training, Training) else None
        return Views.of(self.views, own if self.view is None else self.view, case.seed)

    def to_dict(self) -> dict[str, Any]:
        """Return what decides the references, ready for JSON."""
        groups = None if self.groups is None else [str(group) for group in self.groups]
        told = {"folds": None if self.by == "all" else self.folds, "by": self.by, "groups": groups}
        function = f"{getattr(self.view, '__module__', '')}.{getattr(self.view, '__qualname__', '')}"
        return told | {"views": self.views, "view": function if callable(self.view) else self.view}

    def _seeded(self, sets: Sets, seed: int) -> tuple[list[tuple[Array, Array]], Array]:
        parts = self.parts(sets, seed)
        draw = generator(seed, Purpose.HELD_OUT_TRAININGS, 0 if self.by == "all" else self.folds, _KINDS[self.by])
        return parts, draw.integers(2**32, size=len(parts))


@dataclass(slots=True)
class _Answers:
    """What the references of one original say: for which samples, of them, of their views, of unseen samples."""

    places: list[Array] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    views: list[Tensor] = field(default_factory=list)
    unseen: list[Tensor | None] = field(default_factory=list)


def _steps(case: Case) -> int | None:
    """Return the steps of an original's training, which its references take too; None where a function trains."""
    training = case.trained
    if not isinstance(training, Training):
        return None
    with torch_seed(0):
        network = training.build()
    return training.recipe.epochs * steps_of(len(case.sets.train), training.recipe, network)
