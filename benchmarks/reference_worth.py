"""What references are worth: the estimate of a table beside the AUC at which U-LiRA tells such references.

    python benchmarks/reference_worth.py --task small --models 48 --tables 3 --seed 2
    FORSAKEN_DATA=... python benchmarks/reference_worth.py --task digits --seed 0
    FORSAKEN_DATA=... python benchmarks/reference_worth.py --task cifar10-id --folds 2,4,8 --models 4 --device cuda

For each K, N originals draw folds of their own, in which the samples to forget are one group, and N retrained models
judge the references of the samples to forget (and of test samples). The tables of the first originals are completed,
with a quarter of their folds (two at least) trained twice. Each gives an estimate from one half of the test samples, as
`References.fit` would; measured is on the other half. A row "K x R" averages the logits of R tables. Every model takes
as many steps as the target. Answers of every model stay in --folder, so that a run goes on where it was. The task
"small" is a network of 3,600 weights on 600 of scikit-learn's digits, 20 of which are forgotten: it takes minutes. Any
other task is a scenario. Writes results/reference-worth-TASK-SEED.json.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS
from sklearn.datasets import load_digits
from torch import nn

from forsaken import Recipe, Training
from forsaken._files import write_atomically
from forsaken.bench.audit import inputs_of
from forsaken.bench.networks import training_of
from forsaken.bench.scenarios.table import load_scenario
from forsaken.data.nest import row_keys
from forsaken.data.samples import Samples
from forsaken.metrics import margins, u_lira, u_lira_floor, u_lira_intervals
from forsaken.models.ensemble import train_many
from forsaken.models.logits import predict_logits
from forsaken.models.train import steps_of
from forsaken.progress import bars
from forsaken.provenance import provenance
from forsaken.references.rows import assign_folds
from forsaken.references.worth import Worth, worth_of

DRAWN = 500  # simulated samples, to say what an attack with N models would measure if the estimate were true
SMALL = "small"
SETS = ("forget", "unseen", "test")


def loaded(options: argparse.Namespace) -> tuple[Training, Samples, int, Samples]:
    """Return how models of a scenario are trained, its rows (those to forget last), how many are kept, and its test."""
    scenario = load_scenario(options.task, seed=options.seed)
    training = training_of(scenario, options.device)
    sets = inputs_of(scenario, training.build(), options.device).sets
    return training, sets.train, len(sets.remaining), sets.need("test")


def small(options: argparse.Namespace) -> tuple[Training, Samples, int, Samples]:
    """Return the same of a small network on scikit-learn's digits."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(options.seed).permutation(len(x))
    data = Samples(torch.from_numpy(x / 16).float(), torch.from_numpy(y))
    recipe = Recipe(epochs=40, batch_size=25, learning_rate=3e-3)
    training = Training(lambda: nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)), recipe, options.device)
    return training, data.rows(order[:600]), 580, data.rows(order[600:1400])


@dataclass(frozen=True)
class Wanted:
    """One model: its name, the rows that it learns and its seed."""

    name: str
    rows: np.ndarray[Any, Any]
    seed: int


class Study:
    """The models of one scenario and seed, and what they say about the samples to forget and the test samples."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.seed = options, options.seed
        self.training, self.train, self.rest, test = small(options) if options.task == SMALL else loaded(options)
        half = min(1000, len(test)) // 2
        forget = self.train.rows(np.arange(self.rest, len(self.train)))
        parts = (forget, test.rows(np.arange(half)), test.rows(np.arange(half, 2 * half)))
        self.asked = dict(zip(SETS, parts, strict=True))
        network, recipe = self.training.build(), self.training.recipe
        self.steps = recipe.epochs * steps_of(len(self.train), recipe, network)
        self.keys = row_keys(self.train.inputs)
        self.answers: dict[str, dict[str, np.ndarray[Any, Any]]] = {}

    def wanted(self) -> list[Wanted]:
        """Return the models that judge, the target, and the references."""
        count = self.options.models
        found = [self._wanted(f"retrained-{at}", np.arange(self.rest)) for at in range(2 * count)]
        found.append(self._wanted("target", np.arange(len(self.train))))
        for folds in self.options.folds:
            for table in range(self.options.average.get(folds, 1) * count):
                fold = self.fold(folds, table)
                numbers = [int(fold[self.rest])]
                if table < self.options.tables:
                    numbers = list(range(folds + min(folds, max(2, folds // 4))))
                found += [self._wanted(f"{folds}-{table}-{at}", np.flatnonzero(fold != at % folds)) for at in numbers]
        return found

    def _wanted(self, name: str, rows: np.ndarray[Any, Any]) -> Wanted:
        return Wanted(name, rows, int(np.random.default_rng([self.seed, *name.encode()]).integers(2**32)))

    def fold(self, folds: int, table: int) -> np.ndarray[Any, Any]:
        """Return the folds of one table: the samples to forget are one group."""
        groups = [*range(self.rest), *[-1] * (len(self.train) - self.rest)]
        return assign_folds(self.keys, groups, folds=folds, seed=1000 * self.seed + table)

    def run(self) -> None:
        """Train what is not in the folder yet, and ask every model."""
        place = self.options.folder / f"{self.options.task}-{self.seed}"
        place.mkdir(parents=True, exist_ok=True)
        models = self.wanted()
        missing = sorted((one for one in models if not self._path(place, one).exists()), key=lambda one: len(one.rows))
        with bars() as progress:
            chunks = train_many(
                self.training.build,
                self.train,
                self.training.recipe,
                rows=[one.rows for one in missing],
                seeds=[one.seed for one in missing],
                device=self.options.device,
                steps=self.steps,
                at_once=48 if self.options.task == SMALL else None,
                progress=progress,
            )
            for one, network in zip(missing, (network for chunk in chunks for network in chunk), strict=True):
                said = {
                    name: predict_logits(network, Samples(part.inputs)).float().numpy()
                    for name, part in self.asked.items()
                }
                np.savez(self._path(place, one), **said)
        for one in models:
            with np.load(self._path(place, one)) as stored:
                self.answers[one.name] = {name: stored[name] for name in SETS}

    def _path(self, place: Path, one: Wanted) -> Path:
        return place / f"{one.name}-{one.seed}.npz"

    def margins(self, logits: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
        """Return the margins of the samples' own labels."""
        return margins(logits, self.asked[name].labels.numpy())  # type: ignore[union-attr]

    def judges(self, name: str) -> np.ndarray[Any, Any]:
        """Return the margins of all retrained models."""
        every = [self.answers[f"retrained-{at}"][name] for at in range(2 * self.options.models)]
        return self.margins(np.stack(every), name)

    def references(self, folds: int, name: str, average: int = 1) -> np.ndarray[Any, Any]:
        """Return the margins of N references, each the mean of `average` models' logits."""

        def model(table: int) -> np.ndarray[Any, Any]:
            return self.answers[f"{folds}-{table}-{self.fold(folds, table)[self.rest]}"][name]

        numbers = np.arange(self.options.models * average).reshape(-1, average)
        return self.margins(np.stack([np.mean([model(at) for at in own], axis=0) for own in numbers]), name)

    def worth(self, folds: int, table: int) -> Worth:
        """Return the estimate of one table, from the samples that are set aside for it."""

        def model(at: int) -> torch.Tensor:
            return torch.from_numpy(self.answers[f"{folds}-{table}-{at}"]["unseen"])

        pairs = [(model(folds + at), model(at)) for at in range(min(folds, max(2, folds // 4)))]
        target = torch.from_numpy(self.answers["target"]["unseen"])
        found = worth_of([model(at) for at in range(folds)], pairs, [target], count=folds)
        if found is None:
            raise SystemExit("too few samples for an estimate")
        return found


def measured_with(models: int, worth: Worth, request: float) -> float:
    """Return what U-LiRA with so many models a side would measure where the estimate holds, by simulation."""
    draw = np.random.default_rng(0)
    share = max(0.0, 1 / worth.folds - request)
    data = worth.data**2 * share * (1 - share) / (1 / worth.folds * (1 - 1 / worth.folds))
    shift = worth.shift * share * worth.folds
    references = draw.normal(shift, np.sqrt(worth.sigma**2 + data), (models, DRAWN))
    return u_lira(references, draw.normal(0.0, worth.sigma, (models, DRAWN))).auc


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits", help="a scenario")
    parser.add_argument("--folds", type=lambda text: [int(part) for part in text.split(",")], default=[2, 4, 8, 16])
    parser.add_argument("--models", type=int, default=16, help="originals, and retrained models that judge them")
    parser.add_argument("--tables", type=int, default=1, help="complete tables, each of which gives an estimate")
    parser.add_argument(
        "--average",
        type=lambda text: dict(map(int, part.split("x")) for part in text.split(",") if part),
        default={},
        help="such as 4x4: also the mean logits of 4 tables with 4 folds",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--folder", type=Path, default=Path("runs/reference-worth"), help="where answers are kept")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    start, study = time.perf_counter(), Study(options)
    study.run()
    count, request = options.models, 1 - study.rest / len(study.train)
    judges = {name: study.judges(name) for name in SETS}
    floor = u_lira_floor(judges["forget"])
    rows = []
    for folds in options.folds:
        for average in range(1, options.average.get(folds, 1) + 1):
            own = {name: study.references(folds, name, average) for name in SETS}
            told: dict[str, Any] = {"folds": folds, "average": average}
            for name in ("forget", "test"):
                told[f"auc_{name}"] = u_lira(own[name], judges[name][:count]).auc
            told["interval"] = u_lira_intervals(own["forget"], judges["forget"][:count]).auc
            if average == 1:
                worths = [study.worth(folds, table) for table in range(options.tables)]
                told["estimates"] = [worth.about() for worth in worths]
                told["of_request"] = [worth.at(folds, request) for worth in worths]
                told["of_request_and_models"] = [measured_with(count, worth, request) for worth in worths]
            rows.append(told)
            print(f"K = {folds} x {average}: forget {told['auc_forget']:.3f} test {told['auc_test']:.3f}", end="")
            for name in ("of_request", "of_request_and_models"):
                print(f"  {name} " + " ".join(f"{value:.3f}" for value in told.get(name, [])), end="")
            print(f"  estimates {[round(one['auc'], 3) for one in told.get('estimates', [])]}")
    content = {
        "command": "python benchmarks/reference_worth.py",
        "options": {name: value for name, value in vars(options).items() if name not in ("folder", "results")},
        "provenance": provenance(),
        "wall_seconds": time.perf_counter() - start,
        "request": request,
        "samples": {name: len(part) for name, part in study.asked.items()},
        "floor": [floor.low, floor.high],
        "rows": rows,
    }
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / f"reference-worth-{options.task}-{options.seed}.json"
    write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")
    print(f"floor {floor.low:.3f} to {floor.high:.3f}; {content['wall_seconds']:.0f} s; wrote {path.name}")


if __name__ == "__main__":
    main()
