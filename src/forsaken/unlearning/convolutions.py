"""The convolutions of a network, for methods that work on their kernels."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.conv import _ConvNd

from forsaken.errors import ModelError


def kernels(student: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable kernels (channels x channels x spatial axes) by name; a shared one once."""
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for prefix, module in student.named_modules():
        weight = module._parameters.get("weight") if isinstance(module, _ConvNd) else None
        if weight is not None and weight.requires_grad and id(weight) not in seen:
            seen.add(id(weight))
            found[f"{prefix}.weight".removeprefix(".")] = weight
    if not found:
        raise ModelError(
            "the model has no trainable convolution, and this method works on nothing else (n/a on dense networks); "
            "use another method"
        )
    return found
