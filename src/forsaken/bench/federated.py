"""The federated demonstration: digits on three nodes, of which one forgets the strangers among its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from forsaken._files import make_folder
from forsaken._random import torch_seed
from forsaken.bench.scenarios.scenario import Scenario
from forsaken.bench.scenarios.table import load_scenario
from forsaken.data.samples import Samples, join
from forsaken.federated.client import Node
from forsaken.federated.scaling import Vector
from forsaken.models.logits import accuracy, posteriors
from forsaken.models.train import Training
from forsaken.recipe import Recipe
from forsaken.references.table import References

NODES = 3
ROUNDS = 20
STRANGERS = 40  # the last rows of node 0
LOCAL = Recipe(epochs=10, batch_size=16, learning_rate=0.05, optimiser="sgd")
REFERENCES = "references.safetensors"
_FOLDS = Recipe(epochs=60, batch_size=16, learning_rate=0.05, optimiser="sgd")


def build() -> nn.Module:
    """Return the network, with the same initial weights everywhere."""
    with torch_seed(0):
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))


def rows_of(node: int) -> Samples:
    """Return the rows of a node: a third of the task, and for node 0 all strangers after them."""
    scenario = _scenario()
    own = scenario.kept.rows(np.arange(node, len(scenario.kept), NODES))
    return join([own, scenario.forget]) if node == 0 else own


def _scenario() -> Scenario:
    return load_scenario("digits", seed=0)


def load_node(context: Any) -> Node:
    """Return the node of a Flower context, whose `node_config` has "partition-id" and, in a deployment, "folder".

    In a simulation the nodes' folders lie in the folder "nodes-folder" of the run's configuration.
    """
    number = int(context.node_config["partition-id"]) % NODES
    named = context.node_config.get("folder")
    folder = Path(str(context.run_config["nodes-folder"])) / f"node-{number}" if named is None else Path(str(named))
    torch.set_num_threads(1)
    path = folder / REFERENCES
    table = References.load(path) if path.is_file() else None
    mode: Any = str(context.run_config.get("mode", "exact"))
    return Node(build(), rows_of(number), folder, LOCAL, table, mode, seed=number)


def fit_references(folder: Path, node: int) -> References:
    """Fit the references of a node on its own folds, once, and keep them in its folder.

    Node 0's strangers are one person's records, which share a fold.
    """
    data = rows_of(node)
    groups = list(range(len(data)))
    if node == 0:
        groups[-STRANGERS:] = [-1] * STRANGERS
    table = References.fit(Training(build, _FOLDS), (data.inputs, data.labels), 4, groups, seed=1)
    make_folder(folder, 0o700)
    table.save(folder / REFERENCES)
    return table


def measure(theta: Vector) -> dict[str, float]:
    """Return the test accuracy of weights, and how sure they are of the strangers."""
    model, scenario = build(), _scenario()
    model.load_state_dict(dict(theta))
    model.eval()
    with torch.no_grad():
        sure = float(posteriors(model, scenario.forget).max(1).mean())
    return {
        "test-accuracy": accuracy(model, (scenario.test.inputs, scenario.test.labels)),
        "strangers-learnt": accuracy(model, (scenario.forget.inputs, scenario.forget.labels)),
        "strangers-confidence": sure,
    }
