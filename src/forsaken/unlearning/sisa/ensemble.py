"""An ensemble that votes, and knows what each of its members was taught."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from forsaken.models.logits import as_logits
from forsaken.unlearning.sisa.shards import Ledger
from forsaken.unlearning.sisa.store import Checkpoint, Store
from forsaken.unlearning.sisa.training import Teacher


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Where an ensemble stands: everything that a request needs. Never changed; a request makes a new one.

    Attributes
    ----------
    method, settings : str, mapping
        Who prepared the ensemble, and how.
    ledger : Ledger
        The rows that it was trained on, with their shards and slices.
    teacher : Teacher
        How its members are trained.
    store : Store
        Where checkpoints go.
    keep : tuple of int
        After which slices one is kept.
    full_bytes : int
        What one after every slice would take.
    checkpoints : tuple of mappings
        For each shard, the checkpoints by slice.
    trainings : tuple of int
        For each shard, the stage that each of its trainings began with.
    """

    method: str
    settings: Mapping[str, Any]
    ledger: Ledger
    teacher: Teacher
    store: Store
    keep: tuple[int, ...]
    full_bytes: int
    checkpoints: tuple[Mapping[int, Checkpoint], ...]
    trainings: tuple[tuple[int, ...], ...]

    def __deepcopy__(self, memo: object) -> Standing:
        return self


class SisaEnsemble(nn.Module):
    """The constituents of SISA as one classifier: a majority vote, and the mean posterior of those who won it.

    The output is the logarithm of that posterior, so that its softmax is the posterior itself. Among classes with as
    many votes the one with the larger mean posterior over all constituents wins. A constituent whose samples have all
    been forgotten has no vote. Copies share the data and the checkpoint files, which are never overwritten.

    Attributes
    ----------
    constituents : ModuleList
        One network a shard.
    standing : Standing
        What a request needs.
    """

    def __init__(self, constituents: list[nn.Module], standing: Standing) -> None:
        super().__init__()
        self.constituents = nn.ModuleList(constituents)
        self.standing = standing

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """Return the logarithm of the posterior (samples x classes)."""
        voters = self.standing.ledger.voters
        outputs = [as_logits(net(*inputs, **named)) for at, net in enumerate(self.constituents) if at in voters]
        return vote(torch.stack(outputs))

    @property
    def bytes(self) -> int:
        """What its checkpoints take on disk."""
        return sum(each.bytes for each in self._files())

    def unused(self, successor: SisaEnsemble | None = None) -> list[Checkpoint]:
        """Return the checkpoints that a successor, which has forgotten more, does not use."""
        used = set() if successor is None else successor._files()
        return sorted(self._files() - used, key=lambda each: each.path)

    def discard(self, successor: SisaEnsemble | None = None) -> int:
        """Delete the checkpoints that `successor` does not use, and return how many bytes that freed.

        They were trained on samples that the successor has forgotten, so they remember them. This ensemble still
        predicts afterwards, but it cannot forget any more.
        """
        old = self.unused(successor)
        for each in old:
            each.path.unlink(missing_ok=True)
        for folder in {each.path.parent for each in old}:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
        return sum(each.bytes for each in old)

    def _files(self) -> set[Checkpoint]:
        return {each for shard in self.standing.checkpoints for each in shard.values()}


def vote(logits: Tensor) -> Tensor:
    """Return the logarithm of the winners' mean posterior.

    Parameters
    ----------
    logits : Tensor, shape (constituents, samples, classes)

    Returns
    -------
    Tensor, shape (samples, classes)

    >>> one, two = [2.0, 0.0], [0.0, 1.0]
    >>> vote(torch.tensor([[one], [one], [two]])).exp()
    tensor([[0.8808, 0.1192]])
    """
    logs = logits.log_softmax(2)
    votes = logits.argmax(2)
    counts = nn.functional.one_hot(votes, logits.shape[2]).sum(0)
    # votes are whole and a mean posterior is at most 1, so half of it decides ties and nothing else
    winner = (counts + 0.5 * logs.double().exp().mean(0)).argmax(1)
    won = (votes == winner).unsqueeze(2)
    # sums of logarithms stay finite where posteriors would round to zero
    total = logs.masked_fill(~won, -math.inf).logsumexp(0)
    return total - won.sum(0).to(total.dtype).log()
