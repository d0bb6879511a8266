"""What a white-box oracle sees of each sample: loss, label, and outputs and gradients of the last layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError
from forsaken.models.logits import Forward, LinearModel, LogitModel, as_module, evaluation, predict_logits
from forsaken.oracles.gradients import TINY, Factors, factors, last_layers

Labels: TypeAlias = Literal["given", "predicted"]

_BATCH = 256
_BOUND = 2**32  # bytes of factors that are held at once


@dataclass(frozen=True, slots=True)
class Signals:
    """What is known of n samples, in float32, in an order that does not depend on how a model numbers its units.

    Attributes
    ----------
    numbers : Tensor
        n x (2 + layers): the logarithm of the loss, the margin φ = logit_y - logsumexp(other logits), and the
        logarithm of the norm of each layer's gradient.
    labels : Tensor
        n x classes, one-hot.
    outputs : tuple of Tensor
        Of the last layer the log-posteriors, the label's first and the others from large to small; of the one before
        its output, from large to small.
    gradients : tuple of Factors
        Of norm one, the last layer's first.
    """

    numbers: Tensor
    labels: Tensor
    outputs: tuple[Tensor, ...]
    gradients: tuple[Factors, ...]

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def vectors(self) -> tuple[Tensor, ...]:
        """All but the gradients."""
        return (self.numbers, self.labels, *self.outputs)

    def rows(self, index: Tensor) -> Signals:
        """Return the signals of the samples at `index`."""
        return self._mapped(lambda part: part[index])

    def to(self, device: torch.device) -> Signals:
        """Return the signals on another device."""
        return self._mapped(lambda part: part.to(device))

    def shapes(self) -> dict[str, list[Any]]:
        """Return the widths of the vectors and the rows and columns of the gradients."""
        sides = [[part.errors.shape[2], part.inputs.shape[2]] for part in self.gradients]
        return {"vectors": [part.shape[1] for part in self.vectors], "gradients": sides}

    def _mapped(self, act: Any) -> Signals:
        gradients = tuple(Factors(act(part.errors), act(part.inputs), part.bias) for part in self.gradients)
        return Signals(act(self.numbers), act(self.labels), tuple(act(part) for part in self.outputs), gradients)


def join_signals(parts: Sequence[Signals]) -> Signals:
    """Put the signals of several batches one after the other."""
    columns = zip(*(part.gradients for part in parts), strict=True)
    gradients = tuple(
        Factors(torch.cat([one.errors for one in column]), torch.cat([one.inputs for one in column]), column[0].bias)
        for column in columns
    )
    outputs = tuple(torch.cat(column) for column in zip(*(part.outputs for part in parts), strict=True))
    numbers, labels = torch.cat([part.numbers for part in parts]), torch.cat([part.labels for part in parts])
    return Signals(numbers, labels, outputs, gradients)


def signals(
    model: object, data: object, name: str, *, layers: int, labels: Labels, forward: Forward | None = None
) -> Signals:
    """Look at a model from inside, sample by sample; its weights, mode, gradients and hooks stay as they are.

    Parameters
    ----------
    model : Module or estimator
        Its last `layers` dense or convolutional layers are looked at; what lies between them is passed over.
    data : pair, Dataset, DataLoader, or inputs alone where the labels are predicted
        The samples; error messages call them `name`.
    layers : int
        How many of the last layers.
    labels : "given" or "predicted"
        Under which labels the loss is taken: the samples' own, or the model's own prediction.
    forward : callable, optional
        How to call a model whose output is not the logits themselves.
    """
    module = as_module(model)
    known = module.estimator.classes_ if isinstance(module, LinearModel) else None
    samples = Samples.read(data, name, labels=labels == "given", classes=known)
    logits = predict_logits(module, samples, forward=forward).double()
    wanted = _checked(samples, name, logits.shape[1]) if labels == "given" else logits.argmax(1)
    adapter = LogitModel(module, forward)
    with evaluation(adapter):
        chosen = last_layers(adapter, samples.rows([0]), layers)
        parts, start = [], 0
        for batch in samples.batches(_BATCH):
            rows = slice(start, start + len(batch))
            found, outputs = factors(adapter, chosen, Samples(batch.inputs, wanted[rows]))
            parts.append(_read(logits[rows], wanted[rows], found, outputs))
            start += len(batch)
            if start == len(batch):
                _check_size(parts[0], len(samples))
    return join_signals(parts)


def _read(logits: Tensor, labels: Tensor, found: Sequence[Factors], outputs: Sequence[Tensor]) -> Signals:
    log_posteriors = logits.log_softmax(1)
    own = logits.gather(1, labels[:, None])
    hidden = torch.ones_like(logits, dtype=torch.bool).scatter(1, labels[:, None], value=False)
    others = logits[hidden].view(len(logits), -1)
    margin = own[:, 0] - others.logsumexp(1)
    # loss = log(1 + exp(-φ)), of which the logarithm tends to -φ: exact where posteriors have long been rounded to one
    log_loss = torch.where(margin > 30, -margin, nn.functional.softplus(-margin.clamp(max=30)).log())
    norms = [part.norms().clamp(min=TINY).log() for part in found]
    rest = log_posteriors[hidden].view(len(logits), -1).sort(dim=1, descending=True).values
    first = torch.cat([log_posteriors.gather(1, labels[:, None]), rest], dim=1)
    shown = [first, *(part.sort(dim=1, descending=True).values for part in outputs[1:])]
    gradients = [part.scaled().ordered() for part in found]
    return Signals(
        torch.stack([log_loss, margin, *norms], dim=1).float(),
        nn.functional.one_hot(labels, logits.shape[1]).float(),
        tuple(part.float() for part in shown),
        tuple(Factors(part.errors.float(), part.inputs.float(), part.bias) for part in gradients),
    )


def _check_size(batch: Signals, count: int) -> None:
    held = sum(4 * (part.errors[0].numel() + part.inputs[0].numel()) for part in batch.gradients) * count
    if held > _BOUND:
        raise ModelError(
            f"the gradients of the last {len(batch.gradients)} layers take {held / 2**30:.1f} GiB for {count:,} "
            "samples; use layers=1, or fewer samples"
        )


def _checked(samples: Samples, name: str, classes: int) -> Tensor:
    if samples.labels is None:
        raise InputError(
            f"{name} has no labels, which the white-box oracle's loss needs; give {name}=(inputs, labels), or fit it "
            'with labels="predicted"'
        )
    outside = (samples.labels < 0) | (samples.labels >= classes)
    if bool(outside.any()):
        # the count alone: a label belongs to a record, and must not end up in a log
        raise InputError(
            f"{int(outside.sum())} of {len(samples)} labels of {name} are out of range, expected class numbers from 0 "
            f"to {classes - 1}, as the model has {classes} classes; correct them"
        )
    return samples.labels
