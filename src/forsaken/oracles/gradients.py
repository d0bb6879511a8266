"""Exact per-sample gradients of a model's last layers, from one pass.

The gradient of a dense layer's weights is an outer product for one sample: the error at its output times its input. A
convolution's is the sum of such products over its positions. A hook on the layer sees both factors, so that the
matrices themselves need never be held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from forsaken.data.samples import Samples
from forsaken.errors import ModelError
from forsaken.models.logits import LinearModel, LogitModel

TINY = 1e-30  # under every norm that is not zero


@dataclass(frozen=True, slots=True)
class Factors:
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

        >>> Factors(torch.tensor([[[2.0, -2.0]]]), torch.tensor([[[3.0, 1.0]]]), bias=True).matrices().tolist()
        [[[6.0, 2.0], [-6.0, -2.0]]]
        """
        return torch.einsum("npo,npi->noi", self.errors, self.inputs)

    def norms(self) -> Tensor:
        """Return the norm of each sample's gradient.

        >>> Factors(torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[2.0]]]), bias=False).norms().tolist()
        [10.0]
        """
        products = (self.errors @ self.errors.mT) * (self.inputs @ self.inputs.mT)
        return products.sum((1, 2)).clamp(min=0).sqrt()

    def ordered(self) -> Factors:
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
        return Factors(_sorted(self.errors, rows), inputs, self.bias)

    def scaled(self) -> Factors:
        """Scale each gradient to norm one; the size of over-trained models' gradients spans many powers of ten."""
        return Factors(self.errors / self.norms().clamp(min=TINY)[:, None, None], self.inputs, self.bias)


def last_layers(adapter: LogitModel, samples: Samples, count: int) -> list[nn.Module]:
    """Return the last `count` dense or convolutional layers that a pass calls, the last one first."""
    called: list[nn.Module] = []
    readable = [module for module in adapter.modules() if _readable(module)]
    with torch.no_grad(), _hooked(readable, lambda module, *_: called.append(module)):
        adapter(adapter.place(samples.inputs))
    found = list(dict.fromkeys(reversed(called)))
    if len(found) < count:
        raise ModelError(
            f"the white-box oracle looks at the last {count} dense or convolutional layers, but the model calls "
            f"{len(found)} of them (nn.Linear, nn.Conv1d and nn.Conv2d without groups, linear estimators); "
            + ("use layers=1" if found else "use a black-box oracle, or a model that ends in one")
        )
    return found[:count]


def factors(adapter: LogitModel, layers: Sequence[nn.Module], samples: Samples) -> tuple[list[Factors], list[Tensor]]:
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
        # Nothing before the first of these layers needs a gradient, and a model whose weights are frozen has none.
        told = output if seen else output.detach().requires_grad_()
        given = args[0] if args else kwargs["input"]
        seen.append((module, given.detach().clone(), told))
        return told.clone()  # or an operation in place behind the layer would change what was seen

    with torch.enable_grad(), _hooked(layers, see):
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
        found.append(Factors(wrong, inputs, bias))
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
        flat, (padding, stride, dilation, kernel) = (
            given,
            (layer.padding, layer.stride, layer.dilation, layer.kernel_size),
        )
        if isinstance(layer, nn.Conv1d):
            flat, (padding, stride) = given.unsqueeze(2), ((0, *padding), (1, *stride))
            dilation, kernel = (1, *dilation), (1, *kernel)
        columns = nn.functional.unfold(flat, kernel, dilation, padding, stride)  # type: ignore[arg-type]
        return columns.mT, error.flatten(2).mT
    return given.reshape(count, -1, given.shape[-1]), error.reshape(count, -1, error.shape[-1])


def _readable(module: nn.Module) -> bool:
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return isinstance(module, nn.Linear | LinearModel)


@contextmanager
def _hooked(modules: Sequence[nn.Module], hook: Any) -> Iterator[None]:
    handles = [module.register_forward_hook(hook, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _sorted(values: Tensor, order: Tensor) -> Tensor:
    return values.gather(2, order[:, None].expand(-1, values.shape[1], -1))
