"""The parameters that may change, seen as one flat vector θ."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from forsaken.data.nest import Nest
from forsaken.data.samples import Samples
from forsaken.errors import ModelError, SettingsError
from forsaken.models.logits import LogitModel
from forsaken.unlearning.forsaken.first_layer import FirstLayer
from forsaken.unlearning.forsaken.narrow import Narrow
from forsaken.unlearning.forsaken.prefix import FrozenPrefix

_AT_ONCE, _MANY = {"cpu": 64}, 1024  # pictures or texts in a pass

Filter: TypeAlias = str | Sequence[str] | Callable[[str, nn.Parameter], bool]


class ParameterSpace:
    """The chosen parameters of a model, as views of one vector of d numbers.

    The model's own parameters are left alone; `logits` runs the model with θ in their place.

    Attributes
    ----------
    theta : Tensor, shape (d,)
        The current point. Writing to it moves every view in `parts`.
    start : Tensor, shape (d,)
        θ_0, the weights as they were handed over.
    parts : dict of str to Tensor
        Views of `theta` in the parameters' shapes (see `turned`), leaves of the gradient.
    trainable : int
        The number of trainable numbers in the whole model, chosen or not.
    chosen : int
        The number of chosen ones, with those that no sample at hand uses.
    narrow : Narrow, FirstLayer or None
        Which columns of the first weight take part, where not all do, or in which coordinates it moves; `place` turns
        inputs into what that takes.
    prefix : FrozenPrefix or None
        The first layers, where they are left as they are; their weights, `left`, are not among the chosen.
    """

    def __init__(
        self,
        adapter: LogitModel,
        chosen: Filter | None = None,
        narrow: Callable[[], Narrow | FirstLayer | None] = lambda: None,
        prefix: Callable[[dict[str, nn.Parameter]], FrozenPrefix | None] = lambda _: None,
    ) -> None:
        named = dict(adapter.model.named_parameters())
        free = {name: p for name, p in named.items() if p.requires_grad}
        if not free:
            raise ModelError(
                f"the model has no trainable parameter (all {len(named)} are frozen); "
                "set requires_grad on those that may change"
            )
        picked = choose(free, named, chosen)
        self.adapter = adapter
        self._buffers = {name: buffer.clone() for name, buffer in adapter.model.named_buffers()}
        self.prefix = prefix(picked)
        self.restore_buffers()  # as a trial of the prefix may have changed them
        if self.prefix is not None:
            picked = {name: p for name, p in picked.items() if name not in self.prefix.weights}
        self.chosen = sum(p.numel() for p in picked.values())
        self.left = [] if self.prefix is None else sorted(self.prefix.weights)
        found = narrow()
        self.narrow = found if found is not None and found.name in picked else None
        if isinstance(self.narrow, FirstLayer):
            picked = {name: p for name, p in picked.items() if name not in self.narrow.left_out}
        values = {name: self._cut(name, p.detach()) for name, p in picked.items()}
        self._last = _pictures(adapter.model)
        self.trainable = sum(p.numel() for p in free.values())
        self.dtypes = {name: p.dtype for name, p in picked.items()}
        self.dtype = _working_dtype(picked)
        self.start = torch.cat([value.reshape(-1).to(self.dtype) for value in values.values()])
        self.theta = self.start.clone()
        self.parts: dict[str, Tensor] = {}
        self.slices: dict[str, slice] = {}
        offset = 0
        for name, value in values.items():
            self.slices[name] = slice(offset, offset + value.numel())
            offset += value.numel()
            self.parts[name] = self.theta[self.slices[name]].view(value.shape).detach().requires_grad_(True)

    @property
    def size(self) -> int:
        """The number d of chosen numbers."""
        return self.start.numel()

    def place(self, inputs: Nest) -> Nest:
        """Move inputs to the model's device, for `logits`."""
        if self.narrow is not None and isinstance(inputs, Tensor):
            inputs = self.narrow.inputs(inputs)
        return self.adapter.place(inputs)

    def thinned(self, placed: Nest) -> Nest:
        """Return placed inputs without their zeros, where that is faster; for `logits` alone."""
        return self.narrow.thinned(placed) if self.narrow is not None and isinstance(placed, Tensor) else placed

    def changes(self, mu: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Return, by parameter, the flat positions where a vector like θ is not zero, and its values there."""
        for name, cut in self.slices.items():
            if isinstance(self.narrow, FirstLayer) and self.narrow.name == name:
                for own, (places, values) in self.narrow.entries(mu[cut].view(self.parts[name].shape)).items():
                    yield own, places, values
                continue
            inside = mu[cut].nonzero()[:, 0]
            values = mu[cut][inside]
            if isinstance(self.narrow, Narrow) and self.narrow.name == name:
                inside = self.narrow.positions(inside, self.adapter.model.get_parameter(name).numel())
            yield name, inside, values

    def turned(self, name: str, part: Tensor) -> Tensor:
        """Reshape a part to what its layer takes, or a matrix of that shape back to the part's."""
        return part if self.narrow is None or self.narrow.name != name else self.narrow.turned(part)

    def _cut(self, name: str, value: Tensor) -> Tensor:
        return self.narrow.cut(value) if self.narrow is not None and self.narrow.name == name else value

    def prefix_outputs(self, inputs: Nest) -> tuple[Tensor, ...] | None:
        """Return what comes out of the first layers for placed inputs; None where they are not left as they are."""
        return None if self.prefix is None else self.prefix.outputs(lambda: self.logits(inputs))

    def logits(
        self, inputs: Nest, parts: dict[str, Tensor] | None = None, prefixed: tuple[Tensor, ...] | None = None
    ) -> Tensor:
        """Return the logits (samples x classes) at `parts`, by default θ; `prefixed`: their `prefix_outputs`."""
        weights = self.parts if parts is None else parts
        cast = {f"model.{name}": self.turned(name, part).to(self.dtypes[name]) for name, part in weights.items()}
        for name in self._last.intersection(weights):
            cast[f"model.{name}"] = cast[f"model.{name}"].contiguous(memory_format=torch.channels_last)
        with nullcontext() if self.prefix is None or prefixed is None else self.prefix.giving(prefixed):
            output: Tensor = functional_call(self.adapter, cast, (inputs,))
        return output

    def restore_buffers(self) -> None:
        """Give the model's buffers back as they were; a forward pass may have written to them."""
        with torch.no_grad():
            for name, buffer in self.adapter.model.named_buffers():
                buffer.copy_(self._buffers[name])


def choose(
    free: dict[str, nn.Parameter], named: dict[str, nn.Parameter], chosen: Filter | None
) -> dict[str, nn.Parameter]:
    """Return the trainable parameters that a filter chooses: names, shell patterns or a predicate."""
    if chosen is None:
        return free
    if callable(chosen):
        try:
            picked = {name: p for name, p in free.items() if chosen(name, p)}
        except TypeError as error:
            raise SettingsError(f"parameters= is called as f(name, parameter), but {error}") from error
        if not picked:
            raise SettingsError(f"parameters= chose none of {_few(free)}; at least one must be free to change")
        return picked
    patterns = [chosen] if isinstance(chosen, str) else chosen
    if not isinstance(patterns, list | tuple) or not all(isinstance(at, str) for at in patterns):
        raise SettingsError(f"parameters is {chosen!r}, expected names, patterns such as 'layer4.*', or a function")
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in free):
            frozen = any(fnmatch.fnmatchcase(name, pattern) for name in named)
            reason = "names only frozen parameters" if frozen else "names no parameter"
            raise SettingsError(f"parameters={pattern!r} {reason} (free to change: {_few(free)})")
    if not patterns:
        raise SettingsError("parameters= is empty; leave it out to let every trainable parameter change")
    return {name: p for name, p in free.items() if any(fnmatch.fnmatchcase(name, at) for at in patterns)}


def _pictures(model: nn.Module) -> set[str]:
    """Return the weights of plain two-dimensional convolutions: on a GPU they are faster with the channels last."""
    return {
        f"{name}.weight" if name else "weight"
        for name, module in model.named_modules()
        if type(module) is nn.Conv2d and "forward" not in vars(module) and module.weight.is_cuda
    }


def at_once(space: ParameterSpace, samples: Samples) -> int | None:
    """Return how many samples to pass at once where the user does not say: all, but fewer pictures or texts.

    Their layers make much of little: on a GPU it must fit into memory, and what a CPU makes of few samples stays in
    its cache.
    """
    inputs = samples.inputs
    rows = isinstance(inputs, Tensor) and inputs.dim() == 2 and inputs.is_floating_point()
    return None if rows else _AT_ONCE.get(space.adapter.device.type, _MANY)


def _few(named: dict[str, nn.Parameter], most: int = 8) -> str:
    names = list(named)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _working_dtype(picked: dict[str, nn.Parameter]) -> torch.dtype:
    for name, p in picked.items():
        if not p.is_floating_point():
            raise ModelError(f"parameter {name} has dtype {p.dtype}, expected floating point")
        if p.device.type == "cpu" and p.dtype in (torch.bfloat16, torch.float16):
            raise ModelError(
                f"parameter {name} is {p.dtype} on the CPU, where such products may be slow or crash the process; "
                "give model.float(), or move the model to a GPU"
            )
    return torch.float64 if any(p.dtype == torch.float64 for p in picked.values()) else torch.float32


@contextmanager
def prepared(student: nn.Module) -> Iterator[None]:
    """Freeze the copy's own parameters (θ takes their place), and choose kernels that can do what is asked."""
    flags = [(p, p.requires_grad) for p in student.parameters()]
    on_gpu = any(p.device.type == "cuda" for p, _ in flags)
    recurrent = any(isinstance(module, nn.RNNBase) for module in student.modules())
    cudnn = torch.backends.cudnn
    # cuDNN has no backward pass for recurrent layers in evaluation mode; the native kernels have.
    kernels = (
        cudnn.flags(
            enabled=cudnn.enabled and not recurrent,
            benchmark=False,
            deterministic=True,
            allow_tf32=cudnn.allow_tf32,
        )
        if on_gpu
        else nullcontext()
    )
    try:
        for p, _ in flags:
            p.requires_grad_(False)
        with kernels:
            yield
    finally:
        for p, flag in flags:
            p.requires_grad_(flag)
