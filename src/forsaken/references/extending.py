"""New rows for a table: asked of models that are older than they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from forsaken._random import checked_seed
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError, SettingsError
from forsaken.models.logits import predict_logits
from forsaken.models.train import Training
from forsaken.references.entries import Entries
from forsaken.references.fitting import Train, asked_views, checked_steps, trained_on
from forsaken.references.folds import units
from forsaken.references.handed import in_order
from forsaken.references.kept import built
from forsaken.references.keys import as_keys, group_hashes, row_hashes
from forsaken.types import Array, Progress

if TYPE_CHECKING:
    from forsaken.references.table import References


def extend(
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
