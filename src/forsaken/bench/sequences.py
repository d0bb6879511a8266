"""Requests in a row: what an attack finds after 1, 5, 10 and 20 requests that are met from one table of references.

The samples of a scenario are forgotten in equal parts, one request after the other, by N originals that each have a
table of folds of their own. 2 N models that were retrained without all of the samples judge them. How the table is
made, and looked after between requests (`ORDERS`), is what the lines of the table differ by.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from forsaken.bench.networks import training_of
from forsaken.bench.rows import BEFORE, FOLDS, RETRAINED
from forsaken.bench.scenarios.scenario import Scenario
from forsaken.bench.store import Store
from forsaken.data.samples import Samples
from forsaken.errors import UnknownNameError
from forsaken.metrics import margins, request_u_lira, u_lira, u_lira_floor
from forsaken.models.ensemble import train_many
from forsaken.models.logits import predict_logits
from forsaken.references.curvature import Curvature
from forsaken.references.table import References
from forsaken.types import Array, Progress, Tick, silent
from forsaken.unlearning.forsaken.method import GAUSS_NEWTON, Forsaken

MODELS, REQUESTS = 16, 20
STEPS = (1, 5, 10, 20)  # requests, after which the attack is made
ORDERS = {
    "group": "all samples share a fold, as rows of one person do when groups= is given",
    "row": "rows are spread over the folds: the references of a later request have learnt the rows of earlier ones",
    "row, references forget too": "the fold models are kept, and forget the rows of each request as well",
    "row, refit": "the folds are trained anew without what was forgotten, after every fifth request",
    "one request": "all samples at once, in one fold: what the last request of a sequence is compared with",
}
REFIT = 5
_WATCHED = 500  # kept and test samples


@dataclass(frozen=True, slots=True)
class SequenceStage:
    """The originals of one scenario and seed, and what retrained models say.

    Attributes
    ----------
    originals : list of (Module, int)
        Each with the seed of its table.
    before, judges : list of mapping
        What `looked_at` found of the originals, and of twice as many models that never saw the samples.
    """

    scenario: Scenario
    originals: list[tuple[Any, int]]
    before: list[dict[str, Array]]
    judges: list[dict[str, Array]]
    device: str


def staged(
    scenario: Scenario,
    progress: Progress = silent,
    *,
    device: str = "cpu",
    store: Store | None = None,  # noqa: ARG001 (what all stages take; these models are too many to keep)
    models: int = MODELS,
) -> SequenceStage:
    """Train the originals and the models that judge."""
    training = training_of(scenario, device)
    seeds = np.random.default_rng([scenario.seed, 97]).integers(2**31, size=3 * models).tolist()

    def trained(data: Samples, own: list[int], stage: str) -> Iterator[Any]:
        every = [torch.arange(len(data))] * len(own)
        for chunk in train_many(
            training.build,
            data,
            training.recipe,
            rows=every,
            seeds=own,
            device=device,
            progress=progress,
            stage=stage,
        ):
            yield from chunk

    originals = list(trained(scenario.train, seeds[:models], "train originals"))
    judges = [looked_at(model, scenario) for model in trained(scenario.kept, seeds[models:], "retrain")]
    before = [looked_at(model, scenario) for model in originals]
    return SequenceStage(scenario, list(zip(originals, seeds, strict=False)), before, judges, device)


def looked_at(model: Any, scenario: Scenario) -> dict[str, Array]:
    """Return the margins of forgotten, kept and test samples, and the test accuracy."""
    found = {}
    for name, samples in (("forget", scenario.forget), ("kept", scenario.kept), ("test", scenario.test)):
        part = samples if name == "forget" else samples.rows(np.arange(min(_WATCHED, len(samples))))
        found[name] = margins(predict_logits(model, part).double().numpy(), np.asarray(part.labels))
    said = predict_logits(model, scenario.test).argmax(1).numpy()
    return found | {"accuracy": np.array((said == np.asarray(scenario.test.labels)).mean())}


def measured(
    stage: SequenceStage, row: str, order: str = "", *, requests: int = REQUESTS, progress: Progress = silent
) -> dict[str, Any]:
    """Return what the attack finds after 1, 5, 10 and 20 requests, each number under its name and that count.

    Parameters
    ----------
    stage : SequenceStage
        The models.
    row : str
        "before" or "retrained", or any other name for requests by references.
    order : str
        For those a name of `ORDERS`.
    requests : int
        How many requests the samples are divided among.
    progress : callable
        Called after each original.
    """
    everything = np.arange(len(stage.scenario.forget))
    parts = np.array_split(everything, requests)
    if row == BEFORE:
        return _told(stage, stage.before, everything, requests)
    if row == RETRAINED:
        return _told(stage, stage.judges[len(stage.before) :], everything, requests)
    if order not in ORDERS:
        raise UnknownNameError("order", order, ORDERS)
    own = [everything] if order == "one request" else parts
    found: dict[int, list[dict[str, Array]]] = {}
    for at, (original, seed) in enumerate(stage.originals):
        progress(Tick(f"requests, {order}", at, len(stage.originals)))
        for number, model, seconds in _Sequence(stage, original, seed % 2**30).run(order, own):
            count = requests if order == "one request" else number
            if count in STEPS or count == requests:
                changed = sum(
                    int((one != other).sum())
                    for one, other in zip(model.state_dict().values(), original.state_dict().values(), strict=True)
                )
                more = {"seconds": np.array(seconds), "changed": np.array(changed)}
                found.setdefault(count, []).append(looked_at(model, stage.scenario) | more)
    progress(Tick(f"requests, {order}", len(stage.originals), len(stage.originals)))
    told: dict[str, Any] = {}
    for count, seen in found.items():
        told |= _told(stage, seen, np.concatenate(parts[:count]), count)
        last = parts[count - 1]
        told[f"auc_last_{count}"] = _auc(seen, stage.judges[: len(seen)], "forget", last)
        told |= {f"{name}_{count}": float(np.mean([one[name] for one in seen])) for name in ("seconds", "changed")}
    return told


def _told(stage: SequenceStage, seen: list[dict[str, Array]], rows: Array, count: int) -> dict[str, Any]:
    """Return the numbers of some models, on those samples that are forgotten after `count` requests."""
    judges = stage.judges[: len(seen)]

    def of(models: list[dict[str, Array]], chosen: Array) -> Array:
        return np.stack([one["forget"][chosen] for one in models])

    floor = u_lira_floor(of(stage.judges, rows))
    return {
        f"auc_{count}": _auc(seen, judges, "forget", rows),
        f"floor_{count}": [floor.low, floor.high],
        f"auc_request_{count}": request_u_lira(of(seen, rows), of(judges, rows)),
        f"auc_kept_{count}": _auc(seen, judges, "kept"),
        f"auc_test_{count}": _auc(seen, judges, "test"),
        f"accuracy_{count}": float(np.mean([one["accuracy"] for one in seen])),
    }


def _auc(
    seen: list[dict[str, Array]], judges: list[dict[str, Array]], name: str, rows: Array | slice = slice(None)
) -> float:
    def stacked(of: list[dict[str, Array]]) -> Array:
        return np.stack([one[name][rows] for one in of])

    return u_lira(stacked(seen), stacked(judges)).auc


class _Sequence:
    """One original, its table of references, and requests in a row."""

    def __init__(self, stage: SequenceStage, target: Any, seed: int) -> None:
        self.scenario, self.target, self.seed = stage.scenario, target, seed
        self.training = training_of(stage.scenario, stage.device)
        sets = stage.scenario.sets(nonmembers=True)
        self.train, self.rest = sets.train, len(sets.remaining)  # the samples to forget come last
        self.unseen = Samples(sets.need("reference").inputs)

    def run(self, order: str, parts: list[Array]) -> Iterator[tuple[int, Any, float]]:
        """Forget part after part; yield the number of requests, the model, and the seconds of all so far.

        What is done between requests (refits, fold models that forget too) counts, and the first table does not.
        """
        keep, by_group = order == "row, references forget too", order in ("group", "one request")
        model, seconds = self.target, 0.0
        table = self._table(np.concatenate(parts), model, by_group=by_group, keep=keep, seed=self.seed)
        for number, part in enumerate(parts, 1):
            start = time.perf_counter()
            if order == "row, refit" and number > 1 and (number - 1) % REFIT == 0:
                table = self._table(np.concatenate(parts[number - 1 :]), model, seed=self.seed + number)
            samples = Samples(self.scenario.forget.rows(part).inputs)
            found = Forsaken.out_of_fold()(model, samples, references=table, seed=self.seed)
            table.forget(samples, self._made_to_forget if keep else None, before=model, after=found.model)
            model = found.model
            if keep and number < len(parts):
                self._ask_again(table, np.concatenate(parts[number:]))
            seconds += time.perf_counter() - start
            yield number, model, seconds

    def _table(self, left: Array, model: Any, *, by_group: bool = False, keep: bool = False, seed: int) -> References:
        """Fit a table on the rows that are kept and on those samples that are left to forget."""
        inside = np.concatenate([np.arange(self.rest), self.rest + left])
        groups = [*range(self.rest), *[-1] * len(left)] if by_group else None
        return References.fit(
            self.training,
            self.train.rows(inside),
            FOLDS,
            groups,
            seed=seed,
            model=model,
            unseen=self.unseen,
            second=False,  # the spread alone is needed, and no estimate of what the references are worth
            keep_models=keep,
        )

    def _ask_again(self, table: References, left: Array) -> None:
        """Replace the table's logits of the samples still to come by what the fold models say of them now."""
        kept = table.fold_models
        if kept is None:
            return
        samples = Samples(self.scenario.forget.rows(left).inputs)
        places = table._places(samples)
        for at, model in enumerate(kept.models):
            mine = table.entries.fold[places] == at
            if mine.any():
                said = predict_logits(model, samples.rows(np.flatnonzero(mine))).float()
                table.entries.logits[torch.from_numpy(places[mine])] = said

    def _made_to_forget(self, model: Any, samples: Samples, logits: torch.Tensor) -> Any:
        """Make a fold model forget rows, towards what the table says of them."""
        curvature = Curvature.fit(model, Samples(self.train.inputs))
        method = Forsaken(optimiser=GAUSS_NEWTON)
        return method(model, samples, targets=logits, curvature=curvature, seed=self.seed).model
