"""A Flower app whose nodes can forget. Replace the four functions of the task by your own."""

from __future__ import annotations

from forsaken.bench.federated import build, load_node, measure
from forsaken.federated.app import client_app, server_app

# load_node(context) returns a forsaken.federated.client.Node: network, rows, folder, local recipe and references.
client = client_app(load_node)

# build() returns the network with its initial weights, and measure(weights) what the log says of it.
server = server_app(build, measure)
