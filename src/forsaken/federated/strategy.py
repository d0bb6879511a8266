"""The server's side: it announces its divisor, adds up what arrives, and keeps to what it announced."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean
from flwr.serverapp.strategy.multikrum import select_multikrum

from forsaken._checks import Problems
from forsaken._files import make_folder, write_atomically
from forsaken.errors import DataError, ForsakenError, InputError, SettingsError
from forsaken.federated.messages import curvature_record, read_curvature, read_vector, terms_record
from forsaken.federated.moments import summed
from forsaken.federated.scaling import RULES, Terms, Vector, check_alike, norm, plus
from forsaken.references.curvature import Curvature

AGGREGATIONS = ("mean", "trimmed-mean", "krum")
STATE = "server.safetensors"
_ADAPTIVE = ("adagrad", "adam", "yogi")
_HORIZON = 20  # updates whose tokens are announced
_REACH = 2.0  # times the norm of the weights: by so much one upload may move them by default
_ROUNDING = 1.001  # an upload that a client cut to the bound is not cut again
_TRIM = 0.2
_POLL = 1.0  # seconds
_CLEAN = 10  # updates, of which the last takes the cover back
_log = logging.getLogger("forsaken.federated")


class MacForget(Strategy):
    """Accumulate gradients and mask gradients alike (the paper's Algorithm MacForget, with the scaling put right).

    Parameters
    ----------
    rule : str
        "mean", "weighted-mean" or "sum"; see `scaling.Terms`.
    rate, momentum : float
        η and ρ of the server's update.
    divisor : float, optional
        N: for "weighted-mean" and "sum" the number of samples of all nodes together. For "mean" it is the number of
        nodes that are asked in the round, unless given.
    bound : float, optional
        By how much one upload may move the weights, as a norm; longer uploads are shortened. By default twice the norm
        of the weights: enough for every mask, and too much for a federation with liars. With a tighter bound a mask
        takes several rounds.
    cover : float
        The standard deviation of the noise that every node adds and takes back; every tenth update and the last one
        (`last`) leave weights without any. Every node must be asked in every round, so that it can take its noise
        back: `fraction` must be 1.
    aggregation : str
        "mean", or Flower's "trimmed-mean" (a fifth cut off at both ends) or "krum". The last two are not linear in an
        upload, so that they deform a mask.
    optimiser : str
        "sgd". Adaptive ones are refused.
    fraction : float
        The share of the nodes that is asked in a round.
    nodes : int
        How many nodes there must be for a round.
    moments : int
        After how many updates the curvature is summed over all nodes anew, and announced with the rounds; 0: never.
    folder : Path, optional
        Where weights, velocity and tokens are kept in one file after every update, so that a server that was killed
        goes on from there.
    timeout : float
        Seconds to wait for the moments of all nodes.
    seed : int
        Decides which nodes are asked.
    """

    def __init__(
        self,
        *,
        rule: str = "mean",
        rate: float = 1.0,
        momentum: float = 0.0,
        divisor: float | None = None,
        bound: float | None = None,
        cover: float = 0.0,
        aggregation: str = "mean",
        optimiser: str = "sgd",
        fraction: float = 1.0,
        nodes: int = 2,
        moments: int = 0,
        folder: Path | None = None,
        timeout: float = 600.0,
        seed: int = 0,
    ) -> None:
        if optimiser in _ADAPTIVE:
            raise SettingsError(
                f"optimiser is {optimiser!r}: it divides every coordinate by the size of earlier gradients, which "
                "clients do not know, so that no upload would move the weights by a mask",
                field="optimiser",
                expected="'sgd', with or without momentum",
            )
        found = Problems("MacForget")
        found.choice("rule", rule, RULES)
        found.choice("optimiser", optimiser, ("sgd",))
        found.choice("aggregation", aggregation, AGGREGATIONS)
        found.number("fraction", fraction, least=1e-9, most=1)
        found.whole("nodes", nodes, least=1)
        found.whole("moments", moments, least=0)
        if divisor is None and rule != "mean":
            found.add(f'divisor is None with rule="{rule}"; give the number of samples of all nodes together')
        if cover and fraction < 1:
            found.add(
                f"cover is given beside a fraction of {fraction:g}, and a node that is not asked cannot take its noise "
                "back; leave one of them out"
            )
        found.report()
        self.rule, self.divisor, self.aggregation = rule, divisor, aggregation
        self.fraction, self.nodes, self.every, self.timeout = fraction, nodes, moments, timeout
        self.folder, self.draw = folder, np.random.default_rng(seed)
        self._bound, self._settings = bound, {"rate": rate, "momentum": momentum, "cover": cover}
        self.step, self.theta, self.velocity = 0, Vector(), Vector()
        self.last: int | None = None
        self._tokens: list[list[str]] = []
        self._moments: Curvature | None = None
        self._terms(2)  # checks rate, momentum and cover

    # --- state -------------------------------------------------------------------------------------------------------

    def resume(self, initial: Vector) -> ArrayRecord:
        """Return the weights to start with: those of the last update of this folder, or `initial`."""
        self.theta = {name: part.detach().clone().float() for name, part in initial.items()}
        self.velocity = {name: torch.zeros_like(part) for name, part in self.theta.items()}
        path = None if self.folder is None else self.folder / STATE
        if path is not None and path.is_file():
            self._read(path)
        return ArrayRecord(dict(self.theta))

    def _read(self, path: Path) -> None:
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                told = json.loads((file.metadata() or {})["about"])
                parts = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
            theta = {name.removeprefix("theta/"): part for name, part in parts.items() if name.startswith("theta/")}
            velocity = {name.removeprefix("v/"): part for name, part in parts.items() if name.startswith("v/")}
            check_alike(theta, self.theta, f"the state in {path}")
            check_alike(velocity, self.theta, f"the state in {path}")
            self.step, self._tokens = int(told["step"]), [[str(token) for token in each] for each in told["tokens"]]
        except (OSError, LookupError, ValueError, TypeError, safetensors.SafetensorError) as error:
            if isinstance(error, ForsakenError):
                raise
            raise DataError(f"the server's state {path} is damaged ({error})", remedy="restore it") from error
        self.theta, self.velocity = theta, velocity

    def _write(self) -> None:
        """Keep weights, velocity and the tokens that they hold, in one file: either all are new or none."""
        if self.folder is None:
            return
        make_folder(self.folder)
        told = {"step": self.step, "tokens": self._tokens}
        parts = {f"theta/{name}": part for name, part in self.theta.items()}
        parts |= {f"v/{name}": part for name, part in self.velocity.items()}
        content = safetensors.torch.save(parts, metadata={"about": json.dumps(told)})
        write_atomically(self.folder / STATE, content)

    # --- a round -----------------------------------------------------------------------------------------------------

    def announce(self, asked: int) -> Terms:
        """Return the terms of a round in which so many nodes are asked; the next update keeps to them."""
        self.terms = self._terms(asked)
        return self.terms

    def _terms(self, asked: int) -> Terms:
        clean = (self.step + 1) % _CLEAN == 0 or self.step + 1 == self.last
        settings = self._settings | ({"cover": 0.0} if clean else {})
        bound = (_REACH * norm(self.theta) or math.inf) if self._bound is None else self._bound
        return Terms(
            self.step,
            self.rule,
            float(asked if self.divisor is None else self.divisor),
            bound=bound,
            counted=tuple(token for tokens in self._tokens for token in tokens),
            horizon=_HORIZON,
            **settings,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Announce the terms of a round to the nodes that are asked."""
        if not self.theta:
            self.resume(read_vector(arrays))
        chosen = self._sample(grid)
        self.announce(len(chosen))
        content: dict[str, Any] = {
            "arrays": ArrayRecord(dict(self.theta)),
            "terms": terms_record(self.terms),
            "config": config,
        }
        if self.every and self.step % self.every == 0:
            self._moments = self._ask_moments(grid)
        if self._moments is not None:
            content |= curvature_record(self._moments)
        record = RecordDict(content)
        _log.info("round %d: %d nodes are asked, divisor %g", server_round, len(chosen), self.terms.divisor)
        return [Message(record, dst_node_id=node, message_type=MessageType.TRAIN) for node in chosen]

    def _sample(self, grid: Grid) -> list[int]:
        known = sorted(grid.get_node_ids())
        while len(known) < self.nodes:
            time.sleep(_POLL)
            known = sorted(grid.get_node_ids())
        count = max(self.nodes, round(self.fraction * len(known)))
        return [known[at] for at in sorted(self.draw.permutation(len(known))[:count])]

    def _ask_moments(self, grid: Grid) -> Curvature | None:
        record = RecordDict({"arrays": ArrayRecord(dict(self.theta))})
        asked = [
            Message(record, dst_node_id=node, message_type=f"{MessageType.QUERY}.moments")
            for node in sorted(grid.get_node_ids())
        ]
        found = []
        for reply in grid.send_and_receive(asked, timeout=self.timeout):
            if not reply.has_error():
                try:
                    found.append(read_curvature(reply.content))
                except (ValueError, LookupError) as error:
                    _log.warning("moments of node %d refused: %s", reply.metadata.src_node_id, error)
        return summed([each for each in found if each is not None], self.theta)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add up the usable uploads of a round and update the weights; the others are left out, and counted."""
        usable: list[tuple[Vector, float, str]] = []
        refused = shortened = 0
        for reply in replies:
            try:
                usable.append(self._usable(reply, {token for _, _, token in usable}))
            except (InputError, LookupError, TypeError, ValueError, RuntimeError) as error:
                refused += 1
                _log.warning("round %d: an upload of node %d is left out: %s", server_round, _source(reply), error)
        if not usable:
            return None, MetricRecord({"counted": 0, "refused": refused, "shortened": 0})
        for at, (upload, weight, token) in enumerate(usable):
            reach = self.terms.rate * weight / self.terms.divisor * norm(upload)
            if reach > self.terms.bound * _ROUNDING:
                usable[at] = {name: part * (self.terms.bound / reach) for name, part in upload.items()}, weight, token
                shortened += 1
        gradient = self._gradient([upload for upload, _, _ in usable], [weight for _, weight, _ in usable])
        self.update(gradient, [token for _, _, token in usable])
        told = {"counted": len(usable), "refused": refused, "shortened": shortened, "updates": self.step}
        return ArrayRecord(dict(self.theta)), MetricRecord(dict(told))

    def update(self, gradient: Vector, tokens: list[str]) -> None:
        """Make one update of the weights from g_t and keep it, with the tokens of the uploads that g_t is made of."""
        self.velocity = plus(gradient, self.velocity, self.terms.momentum)
        self.theta = plus(self.theta, self.velocity, -self.terms.rate)
        self.step += 1
        self._tokens = [*self._tokens, tokens][-_HORIZON:]
        self._write()

    def _usable(self, reply: Message, seen: set[str]) -> tuple[Vector, float, str]:
        """Return the upload of a reply, its weight and its token; raise an error for one that cannot be used."""
        if reply.has_error():
            raise InputError(f"the node reports an error ({reply.error.reason})")
        content = reply.content
        upload = read_vector(content.array_records["arrays"])
        check_alike(upload, self.theta, "the upload")
        if not all(bool(torch.isfinite(part).all()) for part in upload.values()):
            raise InputError("the upload holds NaN or infinite values")
        token, step = str(content.config_records["upload"]["token"]), content.config_records["upload"]["step"]
        if step != self.step:
            raise InputError(f"the upload is of step {step!r}", expected=str(self.step))
        if token in seen or any(token in tokens for tokens in self._tokens):
            raise InputError("the upload was counted already")
        samples = int(content.config_records["upload"]["samples"])  # type: ignore[arg-type]
        if not 0 < samples <= self.terms.divisor and self.rule == "weighted-mean":
            raise InputError(f"samples is {samples}", expected=f"a number from 1 to {self.terms.divisor:g}")
        return upload, self.terms.weight(samples), token

    def _gradient(self, uploads: Sequence[Vector], weights: Sequence[float]) -> Vector:
        """Return g_t of the uploads; the robust rules give an estimate of their mean."""
        if self.aggregation == "trimmed-mean":
            stacks = {name: np.stack([upload[name].numpy() for upload in uploads]) for name in self.theta}
            return {name: torch.from_numpy(trim_mean(stack, _TRIM)) for name, stack in stacks.items()}
        if self.aggregation == "krum":
            records = [RecordDict({"arrays": ArrayRecord(dict(upload))}) for upload in uploads]
            harmful = max(0, min(int(_TRIM * len(uploads)), len(uploads) - 3))
            (best,) = select_multikrum(records, num_malicious_nodes=harmful, num_nodes_to_select=1)
            return read_vector(best.array_records["arrays"])
        total = {name: torch.zeros_like(part) for name, part in self.theta.items()}
        for upload, weight in zip(uploads, weights, strict=True):
            total = plus(total, upload, weight / self.terms.divisor)
        return total

    # --- what this strategy leaves to others --------------------------------------------------------------------------

    def configure_evaluate(
        self,
        server_round: int,  # noqa: ARG002 (Flower's signature)
        arrays: ArrayRecord,  # noqa: ARG002
        config: ConfigRecord,  # noqa: ARG002
        grid: Grid,  # noqa: ARG002
    ) -> Iterable[Message]:
        """Ask no node to evaluate; `start` takes an `evaluate_fn` for the server."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:  # noqa: ARG002
        """Return nothing: no node evaluates."""
        return None

    def summary(self) -> None:
        """Log the settings."""
        told: dict[str, Any] = {"rule": self.rule, "aggregation": self.aggregation, **self._settings}
        _log.info("MacForget: %s; %d updates so far", told, self.step)


def _source(reply: Message) -> int:
    return reply.metadata.src_node_id
