"""What the white-box oracle sees of each sample: loss, label, and outputs and gradients of the last layers.

The gradients are exact, and come from one pass over a batch. For one sample, the gradient of a dense layer's weights is
the outer product of the error at the layer's output and the layer's input; that of a convolution is the sum of such
products over its positions. A hook on the layer sees both factors, so that the matrices are never formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from forsaken.data.samples import Samples, check_labels
from forsaken.errors import InputError, ModelError
from forsaken.models.layers import hooked, patches
from forsaken.models.logits import Forward, LinearModel, LogitModel, as_module, evaluation, predict_logits

_TINY = 1e-30  # under every norm that is not zero


@dataclass(frozen=True, slots=True)
class GradientFactors:
    """Per-sample gradients of one layer's weights (and bias, as a last column), as sums of outer products.

    Attributes
    ----------
    errors : Tensor
        n x positions x outputs: the loss's gradient at the layer's output.
    inputs : Tensor
        n x positions x inputs: what the layer saw; a last column of ones stands for the bias.
    bias : bool
        Whether that column is there.
    """

    errors: Tensor
    inputs: Tensor
    bias: bool

    def matrices(self) -> Tensor:
        """Return the gradients themselves (n x outputs x inputs).

        >>> GradientFactors(torch.tensor([[[2.0, -2.0]]]), torch.tensor([[[3.0, 1.0]]]), bias=True).matrices().tolist()
        [[[6.0, 2.0], [-6.0, -2.0]]]
        """
        return torch.einsum("npo,npi->noi", self.errors, self.inputs)

    def norms(self) -> Tensor:
        """Return the norm of each sample's gradient.

        >>> GradientFactors(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[2.0]]]), bias=False).norms().tolist()
        [10.0]
        """
        products = (self.errors @ self.errors.mT) * (self.inputs @ self.inputs.mT)
        return products.sum((1, 2)).clamp(min=0).sqrt()

    def ordered(self) -> GradientFactors:
        """Sort each sample's rows by their error and its columns by their input.

        Hidden units have no order of their own: another training, and even a symmetry of the same weights, numbers
        them anew. Sorted, the gradients of one model can be compared with those of another.
        """
        rows = self.errors.sum(1).argsort(dim=1)
        weights = self.inputs[..., :-1] if self.bias else self.inputs
        columns = weights.sum(1).argsort(dim=1, descending=True)
        inputs = _sorted(weights, columns)
        if self.bias:
            inputs = torch.cat([inputs, self.inputs[..., -1:]], dim=2)
        return GradientFactors(_sorted(self.errors, rows), inputs, self.bias)

    def scaled(self) -> GradientFactors:
        """Scale each gradient to norm one; the size of over-trained models' gradients spans many powers of ten."""
        return GradientFactors(self.errors / self.norms().clamp(min=_TINY)[:, None, None], self.inputs, self.bias)


def last_layers(adapter: LogitModel, samples: Samples, count: int) -> list[nn.Module]:
    """Return the last `count` dense or convolutional layers that a pass calls, the last one first."""
    called: list[nn.Module] = []
    readable = [module for module in adapter.modules() if _readable(module)]
    with torch.no_grad(), hooked(readable, lambda module, *_: called.append(module)):
        adapter(adapter.place(samples.inputs))
    found = list(dict.fromkeys(reversed(called)))
    if len(found) < count:
        raise ModelError(
            f"the white-box oracle looks at the last {count} dense or convolutional layers, but the model calls "
            f"{len(found)} of them (nn.Linear, nn.Conv1d and nn.Conv2d without groups, linear estimators); "
            + ("use layers=1" if found else "use a black-box oracle, or a model that ends in one")
        )
    return found[:count]


def factors(
    adapter: LogitModel, layers: Sequence[nn.Module], samples: Samples
) -> tuple[list[GradientFactors], list[Tensor]]:
    """Return the per-sample gradients of the loss at `layers`, the last one first, and those layers' outputs.

    Parameters
    ----------
    adapter : LogitModel
        In evaluation mode, where no sample's logits depend on another's.
    layers : sequence of Module
        From the last to the first.
    samples : Samples
        One batch with labels.
    """
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []

    def see(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> Tensor:
        # The graph begins at the first of these layers: earlier layers need no gradient, and frozen weights have none.
        told = output if seen else output.detach().requires_grad_()
        given = args[0] if args else kwargs["input"]
        seen.append((module, given.detach().clone(), told))
        return told

    with torch.enable_grad(), hooked(layers, see):
        logits = adapter(adapter.place(samples.inputs)).cpu().double()
        if not logits.requires_grad:
            raise ModelError(
                "the model's output is cut off from its last layer; leave no_grad and detach out of forward"
            )
        loss = nn.functional.cross_entropy(logits, samples.labels, reduction="sum")  # type: ignore[arg-type]
        errors = torch.autograd.grad(loss, [told for _, _, told in seen], materialize_grads=True)
    found, outputs = [], []
    for layer in layers:
        calls = [
            _positions(layer, given, error, len(samples))
            for (module, given, _), error in zip(seen, errors, strict=True)
            if module is layer
        ]
        inputs, wrong = (torch.cat(column, dim=1).cpu().double() for column in zip(*calls, strict=True))
        bias = layer.bias is not None
        if bias:
            inputs = torch.cat([inputs, torch.ones_like(inputs[..., :1])], dim=2)
        found.append(GradientFactors(wrong, inputs, bias))
        outputs.append(
            torch.cat([told.detach().flatten(1).cpu() for module, _, told in seen if module is layer], dim=1)
        )
    return found, outputs


def _positions(layer: Any, given: Tensor, error: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return a layer's input and the error at its output as n x positions x width."""
    if len(given) != count or len(error) != count:
        raise ModelError(
            f"the first axis of the input of {type(layer).__name__} is {len(given)} for {count} samples; the white-box "
            "oracle needs layers that see one row a sample: use layers=1, or a black-box oracle"
        )
    if isinstance(layer, nn.Conv1d | nn.Conv2d):
        return patches(layer, given).mT, error.flatten(2).mT
    return given.reshape(count, -1, given.shape[-1]), error.reshape(count, -1, error.shape[-1])


def _readable(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return isinstance(module, nn.Linear | LinearModel)


def _sorted(values: Tensor, order: Tensor) -> Tensor:
    return values.gather(2, order[:, None].expand(-1, values.shape[1], -1))


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
    gradients : tuple of GradientFactors
        Of norm one, the last layer's first.
    """

    numbers: Tensor
    labels: Tensor
    outputs: tuple[Tensor, ...]
    gradients: tuple[GradientFactors, ...]

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
        gradients = tuple(GradientFactors(act(part.errors), act(part.inputs), part.bias) for part in self.gradients)
        return Signals(act(self.numbers), act(self.labels), tuple(act(part) for part in self.outputs), gradients)


def join_signals(parts: Sequence[Signals]) -> Signals:
    """Put the signals of several batches one after the other."""
    columns = zip(*(part.gradients for part in parts), strict=True)
    gradients = tuple(
        GradientFactors(
            torch.cat([one.errors for one in column]), torch.cat([one.inputs for one in column]), column[0].bias
        )
        for column in columns
    )
    outputs = tuple(torch.cat(column) for column in zip(*(part.outputs for part in parts), strict=True))
    numbers, labels = torch.cat([part.numbers for part in parts]), torch.cat([part.labels for part in parts])
    return Signals(numbers, labels, outputs, gradients)


def signals(
    model: object, data: object, name: str, *, layers: int, labels: Labels, forward: Forward | None = None
) -> Signals:
    """Return the signals of each sample under a model, whose weights, mode, gradients and hooks are not changed.

    Parameters
    ----------
    model : Module or estimator
        The signals are of its last `layers` dense or convolutional layers; other layers between them are skipped.
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


def _read(logits: Tensor, labels: Tensor, found: Sequence[GradientFactors], outputs: Sequence[Tensor]) -> Signals:
    log_posteriors = logits.log_softmax(1)
    own = logits.gather(1, labels[:, None])
    hidden = torch.ones_like(logits, dtype=torch.bool).scatter(1, labels[:, None], value=False)
    others = logits[hidden].view(len(logits), -1)
    margin = own[:, 0] - others.logsumexp(1)
    # loss = log(1 + exp(-φ)), of which the logarithm tends to -φ: exact where posteriors have long been rounded to one
    log_loss = torch.where(margin > 30, -margin, nn.functional.softplus(-margin.clamp(max=30)).log())
    norms = [part.norms().clamp(min=_TINY).log() for part in found]
    rest = log_posteriors[hidden].view(len(logits), -1).sort(dim=1, descending=True).values
    first = torch.cat([log_posteriors.gather(1, labels[:, None]), rest], dim=1)
    shown = [first, *(part.sort(dim=1, descending=True).values for part in outputs[1:])]
    gradients = [part.scaled().ordered() for part in found]
    return Signals(
        torch.stack([log_loss, margin, *norms], dim=1).float(),
        nn.functional.one_hot(labels, logits.shape[1]).float(),
        tuple(part.float() for part in shown),
        tuple(GradientFactors(part.errors.float(), part.inputs.float(), part.bias) for part in gradients),
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
    check_labels(samples, name, classes)
    return samples.labels
