"""Federated forgetting on Reuters: ten clients, 150 newswires of one of them forgotten, beside the central case.

usage: FORSAKEN_DATA=<folder> python benchmarks/federated.py --split iid|dirichlet [--seeds 0-2]

The data are those of `reuters-35-11`, restricted to the 2,000 commonest words, on a network of 128 hidden units. All
150 strangers, under random labels, belong to client 0. Every round runs the real strategy and client app on an
in-process grid. Settings were chosen on seed 100. Writes benchmarks/results/federated-SPLIT.json.

Rows: "central model" is `forsaken.unlearn` on a model that was trained centrally, with its own retrained model beside
it. The others are the federation's: "central" is `forsaken.unlearn` by someone who holds all rows; retrained;
FedEraser's calibrated replay; and the global model after one round (exact) or ten (hidden) with claimed references (of
a federated training without the samples) or client 0's own folds, by its own moments, by those of all clients, or with
its rows as anchors.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, add_seeds, summary, write_result
from flwr.app import ArrayRecord
from torch import nn

import forsaken
from forsaken.auditing.judgement import members, rates
from forsaken.bench.scenarios.table import load_scenario
from forsaken.data.samples import Samples, join
from forsaken.federated.app import client_app
from forsaken.federated.client import Node, parameters_of
from forsaken.federated.grid import InMemoryGrid
from forsaken.federated.scaling import Vector, norm, plus
from forsaken.federated.strategy import MacForget
from forsaken.metrics import margins, separation
from forsaken.models.logits import posteriors, predict_logits
from forsaken.models.train import Training, train
from forsaken.oracles.shadow import ShadowOracle
from forsaken.recipe import Recipe
from forsaken.references.curvature import Curvature

TASK, WORDS, HIDDEN, CLIENTS, FORGOTTEN, ROUNDS = "reuters-35-11", 2000, 128, 10, 150, 40
LOCAL = Recipe(epochs=2, batch_size=32, learning_rate=0.05, optimiser="sgd")
FOLDS = Recipe(epochs=20, batch_size=32, learning_rate=0.05, optimiser="sgd")
COVER = 0.15
HIDDEN_ROUNDS = 10
INTERVAL, CALIBRATION = 2, 1  # FedEraser: every second update is stored; one epoch in place of two calibrates it


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(WORDS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 35))


def model_of(theta: Vector) -> nn.Module:
    model = build()
    model.load_state_dict(theta)
    return model.eval()


def initial(seed: int) -> Vector:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return parameters_of(build())


@dataclass(eq=False)
class Task:
    """The data of a seed: what is kept by whom, and what judges."""

    kept: Samples
    forget: Samples
    test: Samples
    strangers: Samples
    shadow_in: Samples
    shadow_out: Samples
    parts: list[np.ndarray]
    seed: int

    @classmethod
    def load(cls, seed: int, split: str) -> Task:
        """Read the data of a seed and divide them over the clients."""
        scenario = load_scenario(TASK, seed=seed)
        commonest = (scenario.kept.inputs > 0).sum(0).argsort(descending=True)[:WORDS]

        def cut(part: Samples) -> Samples:
            return Samples(part.inputs[:, commonest].contiguous(), part.labels)

        kept = cut(scenario.kept)
        parts = partition(kept.labels.numpy(), split, np.random.default_rng(seed))
        forget = cut(scenario.forget).rows(range(FORGOTTEN))
        sets = (scenario.test, scenario.reference, scenario.shadow_members, scenario.shadow_nonmembers)
        return cls(kept, forget, *map(cut, sets), parts, seed)

    def clients(self, forget: Samples | None) -> list[Samples]:
        """Return the rows of every client; client 0 has those to forget, where they are given."""
        found = [self.kept.rows(part) for part in self.parts]
        return found if forget is None else [join([found[0], forget]), *found[1:]]

    def shadow(self) -> list[Samples]:
        """Return the shadow's data over as many clients, its strangers with the first."""
        count = len(self.shadow_in) - 200
        order = np.random.default_rng(self.seed + 1).permutation(count)
        found = [self.shadow_in.rows(part) for part in np.array_split(order, CLIENTS)]
        return [join([found[0], self.shadow_in.rows(range(count, count + FORGOTTEN))]), *found[1:]]


def partition(labels: np.ndarray, split: str, draw: np.random.Generator) -> list[np.ndarray]:
    """Divide rows over clients: at random, or each class by shares from a Dirichlet distribution of 0.5."""
    if split == "iid":
        return np.array_split(draw.permutation(len(labels)), CLIENTS)
    parts: list[list[np.ndarray]] = [[] for _ in range(CLIENTS)]
    for label in np.unique(labels):
        rows = draw.permutation(np.flatnonzero(labels == label))
        ends = (np.cumsum(draw.dirichlet([0.5] * CLIENTS))[:-1] * len(rows)).astype(int)
        for part, some in zip(parts, np.split(rows, ends), strict=True):
            part.append(some)
    return [np.concatenate(part) for part in parts]


@dataclass(eq=False)
class Federation:
    """Clients on an in-process grid, and what was measured of their rounds."""

    clients: Sequence[Samples]
    folder: Path
    seed: int
    mode: str = "exact"
    references: forsaken.References | None = None
    seconds: list[dict[int, float]] = field(default_factory=list)
    uploads: list[dict[int, Vector]] = field(default_factory=list)
    record: bool = False

    def __post_init__(self) -> None:
        self.nodes = {
            at: Node(
                build(),
                data,
                self.folder / f"node-{at}",
                LOCAL,
                self.references if at == 0 else None,
                self.mode,  # type: ignore[arg-type]
                seed=self.seed * 100 + at,
            )
            for at, data in enumerate(self.clients)
        }
        app = client_app(lambda context: self.nodes[context.node_id])

        def timed(message: Any, context: Any) -> Any:
            start = time.perf_counter()
            reply = app(message, context)
            if message.metadata.message_type == "train":
                self.seconds[-1][context.node_id] = time.perf_counter() - start
                if self.record:
                    found = reply.content.array_records["arrays"].to_torch_state_dict()
                    self.uploads[-1][context.node_id] = found
            return reply

        self.grid = InMemoryGrid(timed, self.nodes)  # type: ignore[arg-type]

    def run(self, rounds: int, start: Vector, strategy: MacForget | None = None) -> MacForget:
        """Run rounds from weights, or go on with a strategy."""
        strategy = MacForget(nodes=CLIENTS) if strategy is None else strategy
        arrays = ArrayRecord(dict(strategy.theta)) if strategy.theta else strategy.resume(start)
        for _ in range(rounds):
            self.seconds.append({})
            self.uploads.append({})
            strategy.start(self.grid, arrays, num_rounds=1)
        return strategy


def eraser(clients: Sequence[Samples], start: Vector, stored: Sequence[dict[int, Vector]], seed: int) -> Vector:
    """Return FedEraser's model: stored updates, each turned to the direction of a short calibration, at its old length.

    After Liu, Ma, Yang, Wang and Liu (2021), "FedEraser: Enabling Efficient Client-Level Data Removal from Federated
    Learning Models"; here the client that forgets stays, with the rows that it keeps.
    """
    theta = dict(start)
    recipe = replace(LOCAL, epochs=CALIBRATION)
    for at, uploads in enumerate(stored):
        total = {name: torch.zeros_like(part) for name, part in theta.items()}
        for node, data in enumerate(clients):
            model = model_of(theta).train()
            local = train(lambda model=model: model, data, recipe, seed=seed * 997 + at * 31 + node)
            change = {name: theta[name] - part.detach() for name, part in local.named_parameters()}
            scale = INTERVAL * norm(uploads[node]) / max(norm(change), 1e-12)
            total = plus(total, change, scale / len(clients))
        theta = plus(theta, total, -1.0)
    return theta


@dataclass(eq=False)
class Trial:
    """One seed: everything that is trained, and the rows that are measured."""

    task: Task
    folder: Path
    rows: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def seed(self) -> int:
        """The task's seed."""
        return self.task.seed

    def judge(self, name: str, after: nn.Module, **more: float) -> None:
        """Add the row of a model."""
        labels = self.task.test.labels.numpy()

        def view(model: nn.Module) -> dict[str, np.ndarray]:
            return {each: posteriors(model, getattr(self.task, each)) for each in ("forget", "kept", "test")}

        before = view(self.target)
        found = rates(self.oracle, before, view(after), labels).to_dict()
        found["accuracy_loss"] = rates(self.oracle, before, before, labels).accuracy - found["accuracy"]
        self.rows[name] = found | before_and_after(self.task, self.target, after) | more

    def judge_by(self, shadow: nn.Module) -> None:
        """Fit the oracle on a shadow model."""
        known = join(self.task.shadow())
        self.oracle = ShadowOracle.fit(shadow, members=known, nonmembers=self.task.shadow_out, seed=self.seed)

    def federation(self, name: str, clients: Sequence[Samples], number: int, **settings: Any) -> Federation:
        """Return a federation with a folder and a seed of its own."""
        return Federation(clients, self.folder / f"{name}-{self.seed}", self.seed * 10 + number, **settings)

    def first(self, number: int) -> Vector:
        """Return the initial weights of a training."""
        return initial(self.seed * 10 + number)

    def central(self) -> None:
        """Measure a model that was trained centrally."""
        task, recipe, seed = self.task, Recipe(40, 32, 0.05, optimiser="sgd"), self.seed * 10
        self.target = train(build, join([task.kept, task.forget]), recipe, seed=seed + 1)
        self.judge_by(train(build, join(task.shadow()), recipe, seed=seed + 2))
        start = time.perf_counter()
        retrained = train(build, task.kept, recipe, seed=seed + 3)
        self.judge("central model, retrained", retrained, seconds=time.perf_counter() - start)
        other = train(build, task.kept, recipe, seed=seed + 4)
        table = forsaken.References.from_models([other], task.forget.inputs, [range(FORGOTTEN)])
        self.by_all("central model", table)

    def by_all(self, name: str, table: forsaken.References) -> None:
        """Measure what someone who holds all rows would do."""
        task = self.task
        curvature = Curvature.fit(self.target, task.kept.inputs)
        done = forsaken.unlearn(self.target, task.forget.inputs, references=table, curvature=curvature, seed=self.seed)
        self.judge(name, done.model, seconds=done.seconds)

    def train(self) -> None:
        """Train the federation with and without the samples, and its shadow."""
        task = self.task
        learnt = self.federation("target", task.clients(task.forget), 1, record=True)
        self.theta = learnt.run(ROUNDS, self.first(1)).theta
        self.target = model_of(self.theta)
        without = self.federation("retrained", task.clients(None), 3)
        retrained = model_of(without.run(ROUNDS, self.first(3)).theta)
        self.judge_by(model_of(self.federation("shadow", task.shadow(), 2).run(ROUNDS, self.first(2)).theta))
        self.judge(
            "before",
            self.target,
            memorised=int(members(self.oracle, posteriors(self.target, task.forget)).sum()),
            round_seconds=float(np.mean([sum(each.values()) for each in learnt.seconds])),
            client_seconds=float(np.mean([each[0] for each in learnt.seconds])),
        )
        self.judge("retrained", retrained, seconds=float(sum(sum(each.values()) for each in without.seconds)))
        start = time.perf_counter()
        erased = eraser(task.clients(None), self.first(1), learnt.uploads[::INTERVAL], self.seed)
        self.judge("fed-eraser", model_of(erased), seconds=time.perf_counter() - start)

    def references(self) -> dict[str, forsaken.References]:
        """Return client 0's references: of a federated training without the samples, and of its own folds."""
        task = self.task
        innocent = model_of(self.federation("claims", task.clients(None), 4).run(ROUNDS, self.first(4)).theta)
        own = task.clients(task.forget)[0]
        groups = [*range(len(own) - FORGOTTEN), *[-1] * FORGOTTEN]  # one person's records share a fold
        start = time.perf_counter()
        folds = forsaken.References.fit(
            Training(build, FOLDS), (own.inputs, own.labels), 4, groups, seed=self.seed + 77
        )
        self.rows["folds"] = {"seconds": time.perf_counter() - start}
        return {"claimed": forsaken.References.from_models([innocent], own.inputs, [range(len(own))]), "folds": folds}

    def forget(self, name: str, mode: str, table: forsaken.References, rounds: int, **settings: Any) -> None:
        """Measure the global model after client 0's request."""
        clients = self.task.clients(self.task.forget)
        run = self.federation(name, clients, 6, mode=mode, references=table, record=True)
        run.nodes[0].requests.file(range(len(clients[0]) - FORGOTTEN, len(clients[0])))
        strategy = MacForget(nodes=CLIENTS, **settings)
        run.run(rounds - 1, self.theta, strategy)
        if settings.get("cover"):
            self.judge(f"{name}, after round 9", model_of(strategy.theta))
        run.run(1, self.theta, strategy)
        ordinary = float(np.median([norm(run.uploads[0][at]) for at in range(1, CLIENTS)]))
        cost = {
            "seconds": float(np.mean([each[0] for each in run.seconds])),
            "norm_ratio": norm(run.uploads[0][0]) / ordinary,
        }
        self.judge(name, model_of(strategy.theta), **cost)
        run.run(3, self.theta, strategy)
        request = run.nodes[0].requests.get(1)
        self.judge(
            f"{name}, 3 rounds later",
            model_of(strategy.theta),
            attempts=request.attempt,
            checked=float(request.state == "checked"),
        )


def one_seed(seed: int, split: str, folder: Path) -> dict[str, dict[str, float]]:
    """Return all rows of a seed."""
    trial = Trial(Task.load(seed, split), folder)
    trial.central()
    trial.train()
    tables = trial.references()
    for kind, table in tables.items():
        trial.by_all(f"central, {kind}", table)
        trial.forget(f"exact, {kind}, own moments", "exact", table, 1)
        trial.forget(f"exact, {kind}, all moments", "exact", table, 1, moments=1)
        start = time.perf_counter()
        anchors = trial.task.clients(None)[0]
        done = forsaken.unlearn(trial.target, trial.task.forget.inputs, references=table, retain=anchors, seed=seed)
        trial.judge(f"{kind}, own rows as anchors", done.model, seconds=time.perf_counter() - start)
    claimed = tables["claimed"]
    trial.forget("hidden, claimed, own moments", "hidden", claimed, HIDDEN_ROUNDS, cover=COVER)
    trial.forget("hidden, claimed, all moments", "hidden", claimed, HIDDEN_ROUNDS, cover=COVER, moments=20)
    for name in ("trimmed-mean", "krum"):
        trial.forget(f"exact, claimed, own moments, {name}", "exact", claimed, 1, aggregation=name)
    trial.rows["moments"] = given_away(trial.task, trial.target)
    return trial.rows


def before_and_after(task: Task, before: nn.Module, after: nn.Module) -> dict[str, float]:
    """Return how well the change of the answers tells the forgotten samples from strangers that nobody learnt.

    `pair_auc` goes by the fall of the margin of the learnt label (of a random one for the others), `pair_kept_auc`
    tells them from kept samples, and `pair_logits_auc` goes by the length of the change without any label.
    """
    draw = np.random.default_rng(task.seed)
    others = task.strangers.rows(range(FORGOTTEN))
    sets = {
        "forget": (task.forget.inputs, task.forget.labels.numpy()),
        "others": (others.inputs, draw.integers(35, size=FORGOTTEN)),
        "kept": (task.kept.inputs, task.kept.labels.numpy()),
    }
    falls, moves = {}, {}
    for name, (inputs, labels) in sets.items():
        old, new = (predict_logits(model, Samples(inputs)).double().numpy() for model in (before, after))
        falls[name] = margins(old, labels) - margins(new, labels)
        change = new - old
        moves[name] = np.linalg.norm(change - change.mean(1, keepdims=True), axis=1)
    return {
        "pair_auc": separation(falls["forget"], falls["others"]),
        "pair_kept_auc": separation(falls["forget"], falls["kept"]),
        "pair_logits_auc": separation(moves["forget"], moves["others"]),
    }


def given_away(task: Task, model: nn.Module) -> dict[str, float]:
    """Return how well second moments tell the rows that they were summed over from rows that nobody learnt.

    The score of a row is how much of it lies in words that the sums hold: −Σ x² / (diagonal + floor).
    """
    clients, found = task.clients(task.forget), {}
    for name, data in (("one", clients[0]), ("all", join(clients))):
        moments = Curvature.fit(model, data.inputs, rows=len(data))
        diagonal = moments.factors["0.weight"].inputs.diagonal[:WORDS].double()
        floor = float(diagonal.mean()) * 1e-3

        def score(inputs: torch.Tensor, diagonal: torch.Tensor = diagonal, floor: float = floor) -> np.ndarray:
            return -(inputs.double().square() / (diagonal + floor)).sum(1).numpy()

        found[f"{name}_kept_auc"] = separation(score(clients[0].inputs[:-FORGOTTEN]), score(task.test.inputs))
        found[f"{name}_forgotten_auc"] = separation(score(task.forget.inputs), score(task.strangers.inputs[:FORGOTTEN]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--split", default="iid", choices=("iid", "dirichlet"))
    add_seeds(parser, "0-2")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in options.seeds:
            for name, numbers in one_seed(seed, options.split, Path(folder)).items():
                found.setdefault(name, []).append(numbers)
                print(
                    f"seed {seed}  {name:44s} " + " ".join(f"{k} {v:.4g}" for k, v in numbers.items() if v is not None),
                    flush=True,
                )
    print(summary(found))
    settings = {
        "clients": CLIENTS,
        "forgotten": FORGOTTEN,
        "rounds": ROUNDS,
        "words": WORDS,
        "hidden_units": HIDDEN,
        "local": LOCAL.to_dict(),
        "cover": COVER,
    }
    if min(options.seeds) < 100:
        write_result(RESULTS / f"federated-{options.split}.json", options.seeds, found, settings=settings)


if __name__ == "__main__":
    main()
