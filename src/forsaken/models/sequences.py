"""Causal language models as classifiers: a sample is one position of a sequence, and its class is the token after it.

With the positions as samples (`positions`) and the call of the model as `forward` (`causal`), whatever works on a
classifier works on any model that maps tokens (n x length) to logits (n x length x vocabulary):

    forsaken.unlearn(model, positions(secrets, start=4), targets=..., curvature=..., forward=causal)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError
from forsaken.models.logits import predict_logits
from forsaken.types import Array

IGNORED = -100  # torch's label for a position that does not count


def positions(sequences: object, *, start: int = 0) -> Samples:
    """Return one sample for each position that is followed by a token: (the sequence, the position) and that token.

    Parameters
    ----------
    sequences : Samples or int tensor (n x length)
        Tokens. Samples with labels (n x length) name the token after each position, and -100 where a position does
        not count; otherwise it is the next token of the sequence, and the last position has none.
    start : int
        The first position that counts.

    Examples
    --------
    >>> found = positions(torch.tensor([[5, 6, 7]]), start=1)
    >>> found.inputs[0].tolist(), found.inputs[1].tolist(), found.labels.tolist()
    ([[5, 6]], [1], [7])
    """
    return _counted(sequences, start)[0]


def _counted(sequences: object, start: int) -> tuple[Samples, Tensor]:
    """Return the positions that count as samples, and how many each sequence has."""
    given = sequences if isinstance(sequences, Samples) else Samples(torch.as_tensor(np.asarray(sequences)))
    tokens, labels = given.inputs, given.labels
    if not isinstance(tokens, Tensor) or tokens.dim() != 2 or tokens.is_floating_point():
        raise InputError("the sequences are not rows of token numbers; give an int tensor (n x length)")
    if labels is None:
        tokens, labels = tokens[:, :-1], tokens[:, 1:]
    if labels.shape != tokens.shape:
        raise InputError(
            f"the labels have shape {tuple(labels.shape)}, expected the token after each of the {tuple(tokens.shape)} "
            "tokens; give one label for each"
        )
    counted = labels != IGNORED
    counted[:, :start] = False
    row, at = counted.nonzero(as_tuple=True)
    if not len(row):
        raise InputError(
            f"no position from {start} on is followed by a token (sequences of {tokens.shape[1]} tokens); give longer "
            "sequences or a smaller start"
        )
    return Samples((tokens[row][:, : int(at.max()) + 1], at), labels[row, at]), counted.sum(1)


def _of_one_format(sequences: object, start: int) -> tuple[Samples, int]:
    """Return the positions that count as samples, row by row equally many, and the number of sequences."""
    samples, counts = _counted(sequences, start)
    if int(counts.min()) < int(counts.max()):
        raise InputError(
            f"the sequences differ in how many positions count ({int(counts.min())} to {int(counts.max())}); give "
            "sequences of one format"
        )
    return samples, len(counts)


def causal(model: nn.Module, inputs: Any) -> Tensor:
    """Return the logits at the positions that `positions` made; neighbouring positions of one sequence share a pass."""
    tokens, at = inputs
    index = torch.zeros_like(at)
    if len(tokens) > 1:
        new = torch.cat([torch.ones_like(at[:1], dtype=torch.bool), (tokens[1:] != tokens[:-1]).any(1)])
        tokens, index = tokens[new], new.cumsum(0) - 1
    return sequence_logits(model, tokens)[index, at]


def sequence_logits(model: nn.Module, tokens: Tensor) -> Tensor:
    """Return the logits (n x length x vocabulary) of tokens (n x length): the model's output, or its first or `logits`.

    A sequence longer than the model's context is an error: most models would fail on it with a message of their own.
    """
    context = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if isinstance(context, int) and tokens.shape[1] > context:
        raise InputError(
            f"a sequence has {tokens.shape[1]} tokens, but the model's context is {context}; give shorter sequences",
            field="sequences",
        )
    output = model(tokens)
    output = getattr(output, "logits", output)
    if isinstance(output, tuple):
        output = output[0]
    if not isinstance(output, Tensor) or output.dim() != 3 or output.shape[:2] != tokens.shape:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ModelError(
            f"the model returned {shape} for {tuple(tokens.shape)} tokens, expected logits of shape (sequences, "
            "length, vocabulary); give a causal language model"
        )
    return output


def token_log_probabilities(model: nn.Module, sequences: object, *, start: int = 0, batch_size: int = 4096) -> Array:
    """Return log2 of the probability of each token that follows a position, a row a sequence (n x positions).

    All sequences need the same number of positions from `start` on.
    """
    samples, rows = _of_one_format(sequences, start)
    labels: Any = samples.labels
    logits = predict_logits(model, samples, forward=causal, batch_size=batch_size).double()
    if outside := int(((labels < 0) | (labels >= logits.shape[1])).sum()):
        raise InputError(
            f"{outside} of {len(labels)} tokens are not in the model's vocabulary, which has {logits.shape[1]} tokens; "
            "encode the sequences with the model's own vocabulary",
            field="sequences",
        )
    found = logits.log_softmax(1).gather(1, labels[:, None].cpu())[:, 0].numpy() / np.log(2)
    return np.asarray(found.reshape(rows, -1))


def matched_targets(model: nn.Module, unused: object, count: int, *, start: int = 0) -> Tensor:
    """Return targets for `count` sequences of a format: the model's logits on sequences of it that it never saw.

    Sequence i gets, position by position, the logits of the unused sequence i (from the first again where there are
    fewer). One sequence each and no mean over all: answers that are all alike would themselves be a trace.
    """
    samples, rows = _of_one_format(unused, start)
    logits = predict_logits(model, samples, forward=causal, batch_size=4096)
    each = logits.reshape(rows, -1, logits.shape[1])
    return each[torch.arange(count) % rows].flatten(0, 1)
