"""Requests in a row: what an attack finds after 1, 5, 10 and 20 requests from one table of references.

    FORSAKEN_DATA=... python benchmarks/sequences.py --task digits --models 16
    FORSAKEN_DATA=... python benchmarks/sequences.py --task reuters-id --models 8 --device cuda

The samples of a scenario are forgotten in equal parts, one request after the other, by N originals that each have a
table of K = 4 folds of their own. 2 N models that were retrained without all of the samples judge them: half of these
against the unlearned models, half against the other half (the floor). Rows:

- "by group": all samples share a fold, as rows of one person or source do when groups= is given.
- "by row": rows are spread over the folds, so that the references of a later request have learnt earlier requests'
  rows. For related samples (strangers under random labels) they still hold what the earlier requests took out.
- "by row, references forget too": the fold models are kept, forget each request's rows by the same method, and are
  asked again before the next request. K - 1 further unlearnings a request.
- "by row, refit": the folds are trained anew without what was forgotten, every fifth request (5 K trainings in all).
- "one request": all samples at once, by group: what the last step of a sequence is compared with.

Writes results/sequences-TASK-SEED.json: AUC by sample and by request, test accuracy, kept samples, the patch's size
and the seconds after each of the steps, as means over the originals.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, origin

from forsaken import Curvature, Forsaken, References
from forsaken._files import write_atomically
from forsaken.bench.networks import training_of
from forsaken.bench.scenarios.scenario import Scenario
from forsaken.bench.scenarios.table import load_scenario
from forsaken.data.samples import Samples
from forsaken.metrics import margins, u_lira, u_lira_floor
from forsaken.models.ensemble import train_many
from forsaken.models.logits import predict_logits
from forsaken.progress import bars
from forsaken.types import Array, Progress, Tick

FOLDS, REFIT, WATCHED = 4, 5, 500
STEPS = (1, 5, 10, 20)
ROWS = ("by group", "by row", "by row, references forget too", "by row, refit", "one request")


def measured(model: Any, scenario: Scenario) -> dict[str, Array]:
    """Return the margins of forgotten, kept and test samples, and the test accuracy."""
    found = {}
    for name, samples in (("forget", scenario.forget), ("kept", scenario.kept), ("test", scenario.test)):
        part = samples if name == "forget" else samples.rows(np.arange(min(WATCHED, len(samples))))
        found[name] = margins(predict_logits(model, part).double().numpy(), np.asarray(part.labels))
    everything = predict_logits(model, scenario.test).argmax(1).numpy()
    return found | {"accuracy": np.array((everything == np.asarray(scenario.test.labels)).mean())}


class Sequence:
    """One original, its table of references, and requests in a row."""

    def __init__(self, scenario: Scenario, target: Any, seed: int, device: str) -> None:
        self.scenario, self.target, self.seed = scenario, target, seed
        self.training = training_of(scenario, device)
        self.count = len(scenario.forget)
        self.rest = len(scenario.train) - self.count
        self.unseen = Samples(scenario.sets(nonmembers=True).need("reference").inputs)

    def table(self, *, by_group: bool, left: Array, model: Any, keep: bool, seed: int) -> References:
        """Fit a table on the rows that are kept and on those forget samples that are left."""
        sets = self.scenario.sets(nonmembers=True)
        inside = np.concatenate([np.arange(self.rest), self.rest + left])
        groups = [*range(self.rest), *[-1] * len(left)] if by_group else None
        return References.fit(
            self.training,
            sets.train.rows(inside),
            FOLDS,
            groups,
            seed=seed,
            model=model,
            unseen=self.unseen,
            keep_models=keep,
        )

    def run(self, row: str, parts: list[Array]) -> Iterator[tuple[int, Any, float, int]]:
        """Forget part after part; yield the number of requests, the model, the seconds and the changed weights."""
        everything = np.arange(self.count)
        keep = "forget too" in row
        table = self.table(
            by_group=row in ("by group", "one request"), left=everything, model=self.target, keep=keep, seed=self.seed
        )
        model, seconds = self.target, 0.0
        for number, part in enumerate(parts, 1):
            samples = Samples(self.scenario.forget.rows(part).inputs)
            if row == "by row, refit" and number > 1 and (number - 1) % REFIT == 0:
                left = np.concatenate(parts[number - 1 :])
                table = self.table(by_group=False, left=left, model=model, keep=False, seed=self.seed + number)
            if keep and number > 1:
                self._ask_again(table, np.concatenate(parts[number - 1 :]))
            start = time.perf_counter()
            found = Forsaken.out_of_fold()(model, samples, references=table, seed=self.seed)
            table.forget(samples, self._forgetful if keep else None, before=model, after=found.model)
            seconds += time.perf_counter() - start
            model = found.model
            yield number, model, seconds, self._changed(model)

    def _ask_again(self, table: References, left: Array) -> None:
        """Replace the table's logits of the samples still to come by what the fold models say of them now."""
        kept = table.fold_models
        samples = Samples(self.scenario.forget.rows(left).inputs)
        places = table._places(samples)
        for at, model in enumerate(kept.models):
            own = places[table.entries.fold[places] == at]
            if len(own):
                rows = samples.rows(np.flatnonzero(table.entries.fold[places] == at))
                table.entries.logits[torch.from_numpy(own)] = predict_logits(model, rows).float()

    def _forgetful(self, model: Any, samples: Samples, logits: torch.Tensor) -> Any:
        """Make a fold model forget rows, towards what the table says of them."""
        sets = self.scenario.sets(nonmembers=True)
        curvature = Curvature.fit(model, Samples(sets.train.inputs))
        method = Forsaken(optimiser="gauss-newton")
        return method(model, samples, targets=logits, curvature=curvature, seed=self.seed).model

    def _changed(self, model: Any) -> int:
        pairs = zip(model.state_dict().values(), self.target.state_dict().values(), strict=True)
        return sum(int((one != other).sum()) for one, other in pairs)


def numbers(found: list[dict[str, Array]], judges: list[dict[str, Array]], rows: Array) -> dict[str, Any]:
    """Return what the attack finds on some of the forgotten samples, and on kept and test samples."""
    count = len(found)
    first = judges[:count]

    def stacked(of: list[dict[str, Array]], name: str) -> Array:
        return np.stack([one[name][rows] if name == "forget" else one[name] for one in of])

    told = {
        f"auc_{name}": u_lira(stacked(found, name), stacked(first, name)).auc for name in ("forget", "kept", "test")
    }
    floor = u_lira_floor(stacked(judges, "forget"))
    told |= {"floor": [floor.low, floor.high], "accuracy": float(np.mean([one["accuracy"] for one in found]))}
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="digits", help="a scenario")
    parser.add_argument("--models", type=int, default=16, help="originals; twice as many are retrained")
    parser.add_argument("--requests", type=int, default=20, help="how many requests the samples are divided among")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--only", default="", help="names of rows, with semicolons between them")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    rows = [row for row in ROWS if not options.only or row in options.only.split(";")]
    start = time.perf_counter()
    with bars() as progress:
        table = study(options, rows, progress)
    content = {
        "command": "python benchmarks/sequences.py",
        "options": {name: value for name, value in vars(options).items() if name != "results"},
        "provenance": origin(),
        "wall_seconds": time.perf_counter() - start,
        "rows": table,
    }
    path = options.results / f"sequences-{options.task}-{options.seed}.json"
    write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")
    for name, told in table.items():
        print(name, json.dumps(told))


def study(options: argparse.Namespace, rows: list[str], progress: Progress) -> dict[str, Any]:
    """Train everything, run every row on every original, and return the numbers after each step."""
    scenario = load_scenario(options.task, seed=options.seed, progress=progress)
    training, count = training_of(scenario, options.device), options.models
    seeds = np.random.default_rng([options.seed, 97]).integers(2**31, size=3 * count).tolist()

    def trained(data: Samples, own: list[int], stage: str) -> list[Any]:
        every = [torch.arange(len(data))] * len(own)
        chunks = train_many(
            training.build,
            data,
            training.recipe,
            rows=every,
            seeds=own,
            device=options.device,
            progress=progress,
            stage=stage,
        )
        return [model for chunk in chunks for model in chunk]

    originals = trained(scenario.train, seeds[:count], "train originals")
    judges = [measured(model, scenario) for model in trained(scenario.kept, seeds[count:], "retrain")]
    before = [measured(model, scenario) for model in originals]
    everything = np.arange(len(scenario.forget))
    parts = np.array_split(everything, options.requests)
    done, steps = 0, [step for step in STEPS if step <= options.requests]
    found: dict[tuple[str, int], list[dict[str, Array]]] = {}
    for original, seed in zip(originals, seeds[:count], strict=True):
        sequence = Sequence(scenario, original, seed % 2**30, options.device)
        for row in rows:
            own = [everything] if row == "one request" else parts
            for number, model, seconds, changed in sequence.run(row, own):
                at = options.requests if row == "one request" else number
                if at in steps:
                    told = measured(model, scenario) | {"seconds": np.array(seconds), "changed": np.array(changed)}
                    found.setdefault((row, at), []).append(told)
            done += 1
            progress(Tick("requests", done, count * len(rows)))
    table: dict[str, Any] = {"do nothing": numbers(before, judges, everything)}
    table["retrained"] = numbers(judges[count:], judges, everything)
    for row in rows:
        table[row] = {}
        for step in steps:
            if (row, step) not in found:
                continue
            own = found[row, step]
            covered = np.concatenate(parts[:step])
            told = numbers(own, judges, covered)
            told |= {name: float(np.mean([one[name] for one in own])) for name in ("seconds", "changed")}
            told["auc_last_request"] = numbers(own, judges, parts[step - 1])["auc_forget"]
            table[row][str(step)] = told
    return table


if __name__ == "__main__":
    main()
