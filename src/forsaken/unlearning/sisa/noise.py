"""SISA-DP, read as noise on what is published: the Gaussian mechanism on each constituent's weights."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import log_ndtr
from torch import Tensor, nn

from forsaken._random import Purpose, generator
from forsaken.errors import ModelError
from forsaken.unlearning.base import About
from forsaken.unlearning.settings import choice, number
from forsaken.unlearning.sisa.method import EnsembleState, Sisa
from forsaken.unlearning.sisa.training import State, TrainedShard, new_network

BOUNDS = ("proven", "assumed")


@dataclass(frozen=True, kw_only=True)
class SisaDp(Sisa):
    """SISA whose published constituents carry Gaussian noise on their weights, at (ε, δ) each.

    The paper's comparison has SISA with "a DP based model publishing function" (after Neel et al., "Descent-to-Delete",
    2021) at ε = 16. Here the update of a constituent, its weights minus its initial weights, is cut to the norm `clip`
    and published with noise of the deviation that the analytic Gaussian mechanism asks for (Balle and Wang, "Improving
    the Gaussian Mechanism for Differential Privacy", 2018; the classic bound holds for ε <= 1 alone).

    Parameters
    ----------
    epsilon, delta : float
        What one publication of a constituent spends.
    clip : float
        The largest norm of a published update.
    sensitivity : {"proven", "assumed"}
        How far one sample may move a published update. "proven": 2·clip, since two cut updates are never further apart.
        "assumed": 2·clip / n for n samples in the shard, as if each had an equal share in the update.

    Notes
    -----
    What that guarantees for a network: with "proven", (ε, δ)-differential privacy of each publication, given how rows
    were assigned to shards, for replacing one row of its shard, whatever the recipe. It does not hold between data
    sets of n and n + 1 rows, since all rows are then assigned anew. A network with buffers that training moves,
    other than the running statistics of norm layers, is refused: they would be published without noise. But the
    clip is on the whole update, not on a sample's part in it, so at the defaults the noise has a deviation of
    0.69·clip on *every* weight and a norm of 0.69·clip·√d: a network of any size is lost in it. With "assumed" a
    network may survive, but nothing proves the assumption for one (for strongly convex losses a bound that falls
    with n is a theorem, and the one that the method was made for): then ε is a name for the amount of noise, not a
    guarantee. Shards are disjoint, so one ensemble spends (ε, δ); each later request publishes the touched shards
    again, and their samples have spent k·(ε, δ) after k publications, counted over this model and those that it
    came from. Requests made of one and the same model do not count each other; who publishes both results has spent
    more. Whoever knows the seed can take the noise off, so keep it secret. Checkpoints and data are without noise:
    do not publish.
    """

    about: ClassVar[About] = About(
        summary="SISA whose published weights are clipped and noised, at ε = 16",
        paper='Neel et al., "Descent-to-Delete", ALT 2021, as the paper reads it; noise by Balle and Wang, ICML 2018',
        needs=("forget (rows of the training data)",),
        upfront="trains the model itself, as an ensemble, and keeps checkpoints on disk",
    )

    epsilon: float = number(16.0, "ε that one publication of a constituent spends", least=1e-3, most=200.0)
    delta: float = number(1e-5, "δ that one publication of a constituent spends", least=1e-15, most=0.5)
    clip: float = number(10.0, "the largest norm of a published update", least=1e-9)
    sensitivity: str = choice("proven", "how far one sample may move an update: 2·clip, or a share of it", BOUNDS)

    def _deviation(self, rows: int) -> float:
        """Return the deviation of the noise on each weight of a constituent that `rows` samples were assigned to."""
        reach = 2 * self.clip / (1 if self.sensitivity == "proven" else max(1, rows))
        return reach * unit_deviation(self.epsilon, self.delta)

    def _publish(self, done: TrainedShard, ensemble_state: EnsembleState, seed: int) -> State:
        sharded, shard = ensemble_state.sharded, done.shard
        start = new_network(ensemble_state.trainer, sharded.start_seed(shard))
        # Noise that two publications share would cancel in their difference: it follows the rows that are left as well.
        left = hashlib.blake2b(
            b"".join(sharded.keys[at] for at in np.flatnonzero(sharded.shard == shard)), digest_size=8
        )
        purpose = (
            Purpose.PUBLISHED_NOISE,
            shard,
            len(ensemble_state.trainings[shard]),
            int.from_bytes(left.digest(), "big"),
        )
        deviation = self._deviation(int(sharded.assigned[shard].sum()))
        return published(start, done.state, self.clip, deviation, generator(seed, *purpose))

    def _facts_of_variant(self, ensemble_state: EnsembleState) -> dict[str, Any]:
        times = max(len(trainings) for trainings in ensemble_state.trainings)
        rows = int(ensemble_state.sharded.assigned.sum(1).min())
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "sensitivity": self.sensitivity,
            "noise_deviation": self._deviation(rows),
            "publications": times,
            "epsilon_spent": times * self.epsilon,
            "delta_spent": times * self.delta,
        }

    def _notes_of_variant(self, facts: Mapping[str, Any]) -> list[str]:
        spent = f"ε = {facts['epsilon_spent']:g}, δ = {facts['delta_spent']:g}"
        told = [f"samples of the shard published most often ({facts['publications']} times) have spent {spent}"]
        if self.sensitivity == "assumed":
            told.append("that holds only as far as each sample has an equal share in an update, which nothing proves")
        return told


def published(
    start: nn.Module, state: State, clip: float, deviation: float, draw: np.random.Generator
) -> dict[str, Tensor]:
    """Return a state whose update from `start` is cut to the norm `clip` and noised.

    The update is that of everything which data can move: trainable weights, and running statistics. Variances below
    zero become zero, which costs no privacy. A `ModelError` tells of any other entry that training moved.
    """
    was = start.state_dict()
    moved = _moved(start)
    names = {name for same in moved for name in same}
    # how many batches a norm layer has seen follows from the number of rows, which replacing one leaves as it is
    still = set(state) - names - set(_of_norms(start, "num_batches_tracked"))
    bare = sorted(name for name in still if not torch.equal(state[name].cpu(), was[name].cpu()))
    if bare:
        raise ModelError(
            f"training moves {', '.join(bare)}, which is no trainable weight and would be published without noise; use "
            "a network whose only moving buffers are running_mean and running_var of norm layers, or sisa"
        )
    updates = [state[same[0]].double() - was[same[0]].double().cpu() for same in moved]
    norm = math.sqrt(sum(float(update.square().sum()) for update in updates))
    scale = min(1.0, clip / norm) if norm else 1.0
    result = {name: value.clone() for name, value in state.items()}
    for same, update in zip(moved, updates, strict=True):
        noise = torch.from_numpy(np.asarray(draw.normal(0.0, deviation, tuple(update.shape))))
        noised = was[same[0]].double().cpu() + scale * update + noise
        if same[0].endswith("running_var"):
            noised = noised.clamp_min(0.0)
        for name in same:
            result[name] = noised.to(state[name].dtype)
    return result


def unit_deviation(epsilon: float, delta: float) -> float:
    """Return the least deviation of Gaussian noise that gives (ε, δ) at sensitivity 1 (Balle and Wang 2018, theorem 8).

    δ(σ) = Φ(1/(2σ) − εσ) − e^ε Φ(−1/(2σ) − εσ) falls with σ; its root is found between two values around it.

    >>> round(unit_deviation(1.0, 1e-5), 3), round(unit_deviation(16.0, 1e-5), 3)
    (3.731, 0.344)
    """
    low = high = 1.0
    while _delta(epsilon, low) < delta:
        low /= 2
    while _delta(epsilon, high) > delta:
        high *= 2
    root: float = brentq(lambda s: _delta(epsilon, s) - delta, low, high, xtol=1e-12, rtol=1e-12)
    return root * (1 + 1e-9)  # on the safe side of the root's own rounding


def _delta(epsilon: float, deviation: float) -> float:
    half, far = 1 / (2 * deviation), epsilon * deviation
    return float(math.exp(log_ndtr(half - far)) - math.exp(epsilon + log_ndtr(-half - far)))


def _moved(network: nn.Module) -> list[list[str]]:
    """Return the floating-point entries of a state that training moves, each with all names that it goes by."""
    names: dict[int, list[str]] = {}
    entries = network.state_dict(keep_vars=True)
    for name, value in entries.items():
        # tied weights are one tensor under several names; noise on one name alone would be overwritten by the next
        names.setdefault(id(value), []).append(name)
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    statistics = [entries[name] for name in _of_norms(network, "running_mean", "running_var")]
    return [names[id(value)] for value in (*trained, *statistics)]


def _of_norms(network: nn.Module, *kinds: str) -> list[str]:
    """Return the names of the norm layers' statistics of these kinds, in a state."""
    layers = [
        path
        for path, part in network.named_modules()
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats
    ]
    return [f"{path}.{kind}".lstrip(".") for path in layers for kind in kinds]
