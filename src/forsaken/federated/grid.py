"""Flower's grid inside one process: messages go straight to a client app. For tests and measurements, without Ray."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Tamper = Callable[[int, Message], Message | None]
"""What happens to a reply on its way: ``(node, reply) -> reply``, or None for a node that leaves in mid-round."""


class InMemoryGrid(Grid):
    """A grid of nodes that all live in this process.

    Parameters
    ----------
    app : ClientApp
        What every node runs.
    nodes : iterable of int
        The nodes' ids, which a context has as `node_id` and as `node_config["partition-id"]`.
    tamper : callable, optional
        Changes or drops replies.
    """

    def __init__(self, app: ClientApp, nodes: Iterable[int], tamper: Tamper | None = None) -> None:
        self.app, self.nodes, self.tamper = app, list(nodes), tamper
        self._states: dict[int, RecordDict] = {node: RecordDict() for node in self.nodes}
        # A message takes its sender from the identity that Flower's own processes set.
        if TaskIdentity._run_id is None:
            TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    def set_run(self, run: Any) -> None:
        """Take no run: there is one alone."""

    @property
    def run(self) -> Any:
        """The one run that there is, by its number."""
        return SimpleNamespace(run_id=1)

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Return a message; see Flower."""
        return Message(content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refuse: replies come at once, by `send_and_receive`."""
        raise NotImplementedError("an in-memory grid answers at once; call send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Refuse: replies come at once, by `send_and_receive`."""
        raise NotImplementedError("an in-memory grid answers at once; call send_and_receive")

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:  # noqa: ARG002 (Flower's signature)
        """Run the client app on every message; a node whose app fails replies its error, as in a deployment."""
        replies = []
        for sent in messages:
            # As over a network: an app may change what it gets, and several messages may share their content.
            message, node = copy.deepcopy(sent), sent.metadata.dst_node_id
            config: dict[str, Any] = {"partition-id": self.nodes.index(node), "num-partitions": len(self.nodes)}
            context = Context(run_id=1, node_id=node, node_config=config, state=self._states[node], run_config={})
            try:
                reply: Message | None = self.app(message, context)
            except (ValueError, RuntimeError, LookupError, TypeError) as error:
                reply = Message(Error(code=2, reason=type(error).__name__), reply_to=message)
            if self.tamper is not None and reply is not None:
                reply = self.tamper(node, reply)
            if reply is not None:
                replies.append(reply)
        return replies
