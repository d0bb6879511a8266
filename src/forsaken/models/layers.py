"""What single layers of a model receive and return: hooks on their calls, and the patches that a convolution sees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import unfold


@contextmanager
def hooked(layers: Iterable[nn.Module], note: Callable[..., Tensor | None]) -> Iterator[None]:
    """Call ``note(layer, inputs, keywords, output)`` at every call of the layers inside the block.

    The model goes on with a copy of the tensor that `note` returns, by default of the output: what comes after the
    layer may write into its input, such as ``nn.ReLU(inplace=True)``, and must not change what was noted.
    """

    def hook(layer: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> Any:
        found = note(layer, given, keywords, output)
        found = output if found is None else found
        return found.clone() if isinstance(found, Tensor) else found

    handles = [layer.register_forward_hook(hook, with_kwargs=True) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def patches(layer: nn.Conv1d | nn.Conv2d, inputs: Tensor) -> Tensor:
    """Return what a convolution multiplies with its weight: n x entries of a patch x positions.

    The padding must be by numbers, with zeros.

    >>> import torch
    >>> patches(nn.Conv1d(1, 1, 2), torch.tensor([[[1.0, 2.0, 3.0]]])).tolist()
    [[[1.0, 2.0], [2.0, 3.0]]]
    """
    flat = isinstance(layer, nn.Conv1d)

    def both(value: Any, first: int) -> tuple[int, int]:
        return (first, *value) if flat else value

    return unfold(
        inputs.unsqueeze(2) if flat else inputs,
        both(layer.kernel_size, 1),
        dilation=both(layer.dilation, 1),
        padding=both(layer.padding, 0),
        stride=both(layer.stride, 1),
    )
