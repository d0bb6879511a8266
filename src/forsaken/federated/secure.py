"""Secure aggregation (SecAgg+): the server sees the sum of all uploads and no single one.

In Flower 1.41 SecAgg+ lives in the older interface, as a workflow of the server and a mod of the client; both are used
here as they are. Every client uploads w·u with the weight 1, and the clipping range is what the announced bound allows
to a single number, so that a scaled mask is not cut. The sum is right within the quantisation: a step of
2·range/2²² for every client.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, RecordDict
from flwr.client import Client
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.server import LegacyContext, ServerConfig, SimpleClientManager
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid
from torch import nn

from forsaken.errors import ForsakenError, SettingsError
from forsaken.federated.client import Node, parameters_of
from forsaken.federated.messages import read_terms, terms_record
from forsaken.federated.scaling import Vector
from forsaken.federated.strategy import MacForget

QUANTA = 2**22
_MODULUS = 2**32
_THRESHOLD = 0.5  # of the nodes may be missing, and the sum can still be opened


class _Forgetting(Client):
    """A node in Flower's older interface."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def fit(self, ins: FitIns) -> FitRes:
        """Return the node's upload, weighted; the mod around this app masks it."""
        names = sorted(parameters_of(self.node.model))
        theta = _vector(ins.parameters, names)
        told = dict(ins.config)
        record = _terms_record(str(told["terms"]))
        try:
            terms = read_terms(record)
            upload, token = self.node.round(theta, terms)
        except ForsakenError as error:
            self.node.requests.remember("problem", str(error))
            raise
        weight = terms.weight(len(self.node.data))
        arrays = [(weight * upload[name]).double().numpy() for name in names]
        return FitRes(Status(Code.OK, ""), ndarrays_to_parameters(arrays), 1, {"token": token})


def secure_client_app(load: Callable[[Context], Node]) -> ClientApp:
    """Return the app of a node for secure aggregation; `load` as for `app.client_app`."""
    return ClientApp(client_fn=lambda context: _Forgetting(load(context)), mods=[secaggplus_mod])


class _Sum(FedAvg):
    """Flower's older strategy around `MacForget`: it gets the mean of all uploads and makes it their sum again."""

    def __init__(self, own: MacForget, nodes: int) -> None:
        super().__init__(
            fraction_evaluate=0.0, min_fit_clients=nodes, min_evaluate_clients=0, min_available_clients=nodes
        )
        self.own = own

    def initialize_parameters(self, client_manager: Any) -> Parameters:  # noqa: ARG002 (Flower's signature)
        return _parameters(self.own.theta)

    def configure_fit(self, server_round: int, parameters: Parameters, client_manager: Any) -> Any:  # noqa: ARG002
        chosen = client_manager.sample(client_manager.num_available(), self.min_available_clients)
        terms = self.own.announce(len(chosen))
        told = {"terms": json.dumps(dict(terms_record(terms)))}
        return [(proxy, FitIns(_parameters(self.own.theta), dict(told))) for proxy in chosen]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> tuple[Parameters | None, dict[str, Any]]:  # noqa: ARG002
        if not results:
            return None, {}
        mean = _vector(results[0][1].parameters, sorted(self.own.theta))
        share = len(results) / self.own.terms.divisor
        gradient = {name: part * share for name, part in mean.items()}
        self.own.update(gradient, [str(result.metrics["token"]) for _, result in results])
        return _parameters(self.own.theta), {}


def run_secure(grid: Grid, build: Callable[[], nn.Module], config: Any) -> MacForget:
    """Run rounds with secure aggregation on a grid; the settings are those of `app.run_rounds`, and `bound` is needed.

    Every upload is clipped, number by number, to what `bound` allows to a whole upload. Robust rules cannot be used:
    the server does not see single uploads.
    """
    told = dict(config)
    rounds, folder, nodes = int(told.pop("rounds")), told.pop("folder", None), int(told.get("nodes", 2))
    if told.get("bound") is None:
        raise SettingsError(
            "secure aggregation needs a bound: it sets the clipping range",
            field="bound",
            expected="by how much one upload may move the weights, as a norm, such as their own norm",
        )
    own = MacForget(folder=None if not folder else Path(str(folder)), **told)
    if own.aggregation != "mean":
        raise SettingsError(field="aggregation", value=own.aggregation, expected="'mean' with secure aggregation")
    own.resume(parameters_of(build()))
    own.last = rounds
    terms = own.announce(nodes)
    workflow = SecAggPlusWorkflow(
        num_shares=1.0,
        reconstruction_threshold=_THRESHOLD,
        max_weight=1.0,
        clipping_range=terms.bound * terms.divisor / terms.rate,
        quantization_range=QUANTA,
        modulus_range=_MODULUS,
        timeout=own.timeout,
    )
    plain = Context(run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config={})
    legacy = LegacyContext(plain, ServerConfig(rounds - own.step), _Sum(own, nodes), SimpleClientManager())
    DefaultWorkflow(fit_workflow=workflow)(grid, legacy)
    return own


def _terms_record(text: str) -> RecordDict:
    """Return the record of terms that were sent as a text."""
    return RecordDict({"terms": ConfigRecord(json.loads(text))})


def _vector(parameters: Parameters, names: list[str]) -> Vector:
    arrays = parameters_to_ndarrays(parameters)
    return {name: torch.from_numpy(np.asarray(part)).float() for name, part in zip(names, arrays, strict=True)}


def _parameters(theta: Vector) -> Parameters:
    return ndarrays_to_parameters([theta[name].numpy() for name in sorted(theta)])
