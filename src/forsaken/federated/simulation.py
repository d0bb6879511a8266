"""The same apps by Flower's simulation: every node runs in a process of Ray's on this machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import nn

from forsaken.errors import ForsakenError
from forsaken.federated.app import client_app, run_rounds
from forsaken.federated.client import Node
from forsaken.federated.scaling import Vector


def simulate(
    load: Callable[[Any], Node],
    build: Callable[[], nn.Module],
    config: Mapping[str, Any],
    nodes: int,
    evaluate: Callable[[Vector], dict[str, float]],
) -> dict[str, float]:
    """Run rounds of a federation on Ray, and return what `evaluate` says of the last weights.

    Parameters
    ----------
    load, build, evaluate : callable
        As for `app.client_app` and `app.server_app`.
    config : mapping
        The run's configuration, which nodes see as `context.run_config`.
    nodes : int
        How many nodes there are.
    """
    last: list[Vector] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:  # noqa: ARG001 (Flower's signature)
        last.append(run_rounds(grid, build, config).theta)

    def configured(context: Context) -> Node:
        own = context.run_id, context.node_id, context.node_config, context.state  # Flower refuses a changed context
        return load(Context(*own, run_config=dict(config)))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_simulation(server, client_app(configured), nodes, backend_config=resources)  # type: ignore[arg-type]
    if not last:
        raise ForsakenError("the simulation ended before its rounds were done", remedy="see its log above")
    return evaluate(last[0])
