"""Flower's two apps, made from a function that loads a node and one that builds the network."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from forsaken.errors import ForsakenError, SettingsError
from forsaken.federated.client import Node, parameters_of
from forsaken.federated.messages import curvature_record, read_curvature, read_terms, read_vector
from forsaken.federated.scaling import Vector
from forsaken.federated.strategy import MacForget

PROBLEM = "problem"
_RAISED = 2  # Flower's code for a client app that raised an exception
_SETTINGS = (
    *("rule", "rate", "momentum", "divisor", "bound", "cover"),
    *("aggregation", "optimiser", "fraction", "nodes", "moments", "seed"),
)
_log = logging.getLogger("forsaken.federated")


def client_app(load: Callable[[Context], Node]) -> ClientApp:
    """Return the app of a node.

    One `train` action serves training and forgetting alike, so that no message tells the server which of the two a node
    does. `query.moments` returns second moments, `query.status` how many rows the node has
    and how many of them have references; of requests no message tells.

    Parameters
    ----------
    load : callable
        ``load(context)`` returns the node, by the context's `node_config`.
    """
    app = ClientApp()

    def answered(message: Message, context: Context, act: Callable[[Node], RecordDict]) -> Message:
        node = None
        try:
            node = load(context)
            content = act(node)
        except ForsakenError as error:
            _log.warning("this node leaves the round out: %s", error)
            if node is not None:
                node.requests.remember(PROBLEM, str(error))
            return Message(
                Error(code=_RAISED, reason=f"{type(error).__name__}: {error.field or 'see the node'}"), reply_to=message
            )
        if node.requests.fact(PROBLEM):
            node.requests.remember(PROBLEM, "")
        return Message(content, reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        def act(node: Node) -> RecordDict:
            terms, content = read_terms(message.content), message.content
            upload, token = node.round(read_vector(content.array_records["arrays"]), terms, _moments(message))
            about = ConfigRecord({"token": token, "step": terms.step, "samples": len(node.data)})
            return RecordDict({"arrays": ArrayRecord(dict(upload)), "upload": about})

        return answered(message, context, act)

    @app.query("moments")
    def moments(message: Message, context: Context) -> Message:
        def act(node: Node) -> RecordDict:
            found = node.moments(read_vector(message.content.array_records["arrays"]))
            return RecordDict(dict(curvature_record(found)))

        return answered(message, context, act)

    @app.query("status")
    def status(message: Message, context: Context) -> Message:
        def act(node: Node) -> RecordDict:
            bare = len(node.requests.fact("data")["without_reference"])
            told = {"samples": len(node.data), "with-references": len(node.data) - bare}
            return RecordDict({"status": MetricRecord(dict(told))})

        return answered(message, context, act)

    return app


def _moments(message: Message) -> Any:
    try:
        return read_curvature(message.content)
    except (ValueError, LookupError) as error:
        _log.warning("the server's moments are left out, this node's own serve: %s", error)
        return None


def server_app(
    build: Callable[[], nn.Module], evaluate: Callable[[Vector], dict[str, float]] | None = None
) -> ServerApp:
    """Return the app of the server: `MacForget` with the settings of the run's configuration.

    The configuration has "rounds", the number of updates in all, "folder", where the state is kept (a server that is
    started again goes on from there), "round-timeout" in seconds, and settings of `MacForget`.

    Parameters
    ----------
    build : callable
        Returns the network with its initial weights.
    evaluate : callable, optional
        ``evaluate(weights)`` returns metrics of the global model, which are logged after every round.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run_rounds(grid, build, context.run_config, evaluate)

    return app


def run_rounds(
    grid: Grid,
    build: Callable[[], nn.Module],
    config: Any,
    evaluate: Callable[[Vector], dict[str, float]] | None = None,
) -> MacForget:
    """Run rounds on a grid until there were as many updates as the configuration says; return the strategy."""
    told = dict(config)
    folder = told.get("folder")
    settings = {name: told[name] for name in _SETTINGS if name in told}
    rounds = told.get("rounds")
    if not isinstance(rounds, int) or rounds < 1:
        raise SettingsError(field="rounds", value=rounds, expected="the number of updates in all, >= 1")
    strategy = MacForget(folder=None if not folder else Path(str(folder)), **settings)
    arrays = strategy.resume(parameters_of(build()))
    strategy.last = rounds
    last = -1

    def measured(_: int, record: ArrayRecord) -> MetricRecord | None:
        return None if evaluate is None else MetricRecord(dict(evaluate(read_vector(record))))

    while strategy.step < rounds and strategy.step != last:  # a round without any upload makes no update
        last = strategy.step
        result = strategy.start(
            grid,
            arrays,
            num_rounds=rounds - strategy.step,
            timeout=float(told.get("round-timeout", 600)),
            evaluate_fn=measured,
        )
        arrays = result.arrays or arrays
    if strategy.step < rounds:
        raise ForsakenError(
            f"there were {strategy.step} updates of {rounds}: no node sent an upload that could be used",
            remedy="see the logs of the nodes, then start the run again: it goes on from there",
        )
    return strategy
