"""A small federation for tests: nodes on synthetic rows, in one process."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from forsaken import References
from forsaken.data.samples import Samples
from forsaken.federated.app import client_app
from forsaken.federated.client import Node, parameters_of
from forsaken.federated.grid import InMemoryGrid, Tamper
from forsaken.federated.scaling import Terms, Vector
from forsaken.federated.strategy import MacForget
from forsaken.models.train import train
from forsaken.recipe import Recipe

WIDTH, CLASSES, ROWS = 30, 3, 40
LOCAL = Recipe(epochs=4, batch_size=8, learning_rate=0.05, optimiser="sgd")
CENTRES = torch.randn(CLASSES, WIDTH, generator=torch.Generator().manual_seed(7))


def build() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(WIDTH, 48), nn.ReLU(), nn.Linear(48, CLASSES))


def rows_of(seed: int, count: int = ROWS) -> Samples:
    """Rows of three classes; the first eight of every node have a wrong label, which a model must learn by heart."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=draw)
    inputs = CENTRES[labels] + 0.5 * torch.randn(count, WIDTH, generator=draw)
    labels[:8] = (labels[:8] + 1) % CLASSES
    return Samples(inputs, labels)


@cache
def claimed(seed: int) -> References:
    """References for the rows of a seed, by a model that never saw the first eight."""
    data = rows_of(seed)
    model = train(build, data.rows(range(8, ROWS)), Recipe(30, 8, 0.05, optimiser="sgd"), seed=1)
    with torch.no_grad():
        return References.claimed(data.inputs, model(data.inputs))


class ScriptedNode(Node):
    """A node whose ordinary uploads are fixed numbers of its seed and the step, as from a recording."""

    silent_at: int = -1

    def _ordinary(self, kept: Samples, terms: Terms) -> Vector:
        draw = torch.Generator().manual_seed(self.seed * 1000 + terms.step)
        size = 0.0 if terms.step == self.silent_at else 0.05
        return {
            name: size * torch.randn(part.shape, generator=draw) for name, part in parameters_of(self.model).items()
        }


def nodes_in(folder: Path, count: int = 4, kind: type[Node] = Node, **settings: Any) -> dict[int, Node]:
    found = {}
    for at in range(count):
        data = rows_of(at)
        about: dict[str, Any] = {"recipe": LOCAL, "references": claimed(at), "seed": at} | settings
        found[100 + at] = kind(build(), data, folder / f"node-{at}", **about)
    return found


def grid_of(nodes: dict[int, Node], tamper: Tamper | None = None) -> InMemoryGrid:
    return InMemoryGrid(client_app(lambda context: nodes[context.node_id]), nodes, tamper)


def run(strategy: MacForget, grid: InMemoryGrid, rounds: int, start: Vector | None = None) -> list[Vector]:
    """Return the weights before the first round and after every round."""
    arrays = strategy.resume(parameters_of(build()) if start is None else start) if not strategy.theta else None
    found = [dict(strategy.theta)]
    for _ in range(rounds):
        from flwr.app import ArrayRecord

        strategy.start(grid, arrays or ArrayRecord(dict(strategy.theta)), num_rounds=1)
        found.append(dict(strategy.theta))
    return found
