"""A network of the same kind with new weights."""

from __future__ import annotations

import copy

import torch
from torch import nn

from forsaken._random import Purpose, generator, torch_seed
from forsaken.models.train import Training

_RESETS = ("reset_parameters", "_reset_parameters")  # the second is that of torch's attention and transformers


def fresh(student: nn.Module, training: Training | None, seed: int) -> tuple[nn.Module, set[str]]:
    """Return a network like `student` with weights drawn anew, and the names of the parameters that are still the old.

    Parameters
    ----------
    student : Module
        Gives the architecture, the device and the dtypes; it is left alone.
    training : Training, optional
        Builds a new network. Without it a copy's modules draw their weights again with their own `reset_parameters`;
        frozen modules, such as given word vectors, keep theirs.
    seed : int
        Decides the weights.

    Returns
    -------
    Module
        In evaluation mode.
    set of str
        Trainable parameters that nothing could reset.
    """
    # Not the bare seed: a model trained with the same one would get back the very weights that it began with.
    with torch_seed(int(generator(seed, Purpose.FRESH_WEIGHTS).integers(2**32))):
        if training is not None:
            like = next(student.parameters())
            return training.build().to(device=like.device, dtype=like.dtype).eval(), set()
        twin = copy.deepcopy(student)
        old: set[str] = set()
        for prefix, module in twin.named_modules():
            own = {name: p for name, p in module.named_parameters(recurse=False) if p.requires_grad}
            reset = next((getattr(module, name) for name in _RESETS if callable(getattr(module, name, None))), None)
            if own and reset is not None:
                with torch.no_grad():
                    reset()
            elif own:
                old |= {f"{prefix}.{name}".removeprefix(".") for name in own}
    return twin.eval(), old
