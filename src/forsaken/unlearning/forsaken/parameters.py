"""The parameters that may change, as one flat vector θ, and three ways to work with less than the whole model.

Two of them shrink the weight of a first linear layer, which for bags of words is most of a model:

- `UsedColumns` leaves out the columns whose input feature is zero in every sample. Their gradient is zero at every θ,
  so they could not move. Zeros among the inputs that are left need not be multiplied either.
- `InputSpan` writes the displacement of the weight in coordinates of the span of the samples' inputs, for
  `gauss_newton`: as many columns as there are samples, in place of as many as there are features.

`FrozenPrefix` keeps the first layers as they are, so that their outputs are computed once for all passes.
"""

from __future__ import annotations

import fnmatch
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from forsaken.data.nest import Nest, leaves
from forsaken.data.samples import Samples
from forsaken.errors import ModelError, SettingsError
from forsaken.models.layers import hooked
from forsaken.models.logits import LinearModel, LogitModel
from forsaken.references.curvature import Curvature

MAX_USED = 0.75  # share of used columns above which leaving out the unused ones does not pay
MAX_FILLED = 0.1  # share of nonzero inputs below which a sparse product is faster than a dense one
MAX_SPAN = 0.5  # samples / used columns above which the coordinates of the span save nothing
SPAN_JITTER = 1e-6  # share of its mean diagonal added to the Gram matrix: two samples may be equal
MIN_FREE = 20  # parameters behind a frozen prefix for each logit to be moved; with fewer the model needs all of them
PREFIX_BYTES = 2**32  # memory that the outputs of a frozen prefix may take
_TRIED = 2  # samples on which a frozen prefix is tried
_BATCH, _BATCH_ON_GPU = 64, 1024  # images or texts in a pass

Filter: TypeAlias = str | Sequence[str] | Callable[[str, nn.Parameter], bool]
Parameters: TypeAlias = Mapping[str, nn.Parameter]


class ParameterSpace:
    """The chosen parameters of a model, as views of one vector of d numbers.

    The model's own parameters are left alone; `logits` runs the model with θ in their place.

    Parameters
    ----------
    adapter : LogitModel
        The model.
    picked : dict of str to Parameter, optional
        The parameters that may change (see `choose`), without those of `prefix`; by default every trainable one.
    first : UsedColumns or InputSpan, optional
        Another form of the first layer's weight, one of `picked`.
    prefix : FrozenPrefix, optional
        The layers whose outputs are computed once.

    Attributes
    ----------
    theta : Tensor, shape (d,)
        The current point. Writing to it in place moves every view in `parts`.
    start : Tensor, shape (d,)
        θ_0, the weights as they were handed over.
    parts : dict of str to Tensor
        Views of `theta` in the parameters' shapes (see `turned`), leaves of the gradient.
    slices : dict of str to slice
        Where each part lies in `theta`.
    trainable : int
        The number of trainable entries in the whole model, picked or not.
    chosen : int
        The number of picked entries, including those that `first` leaves out of θ.
    """

    def __init__(
        self,
        adapter: LogitModel,
        picked: Parameters | None = None,
        *,
        first: UsedColumns | InputSpan | None = None,
        prefix: FrozenPrefix | None = None,
    ) -> None:
        picked = choose(adapter.model) if picked is None else picked
        self.adapter, self.first, self.prefix = adapter, first, prefix
        self.trainable = sum(p.numel() for p in adapter.model.parameters() if p.requires_grad)
        self.chosen = sum(p.numel() for p in picked.values())
        if isinstance(first, InputSpan):
            picked = {name: p for name, p in picked.items() if name != first.bias}  # its coordinates hold the bias
        values = {
            name: first.part(p.detach()) if first is not None and first.name == name else p.detach()
            for name, p in picked.items()
        }
        self._channels_last = _convolutions_on_gpu(adapter.model)
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
        """The number d of entries of θ."""
        return self.start.numel()

    def place(self, inputs: Nest) -> Nest:
        """Move inputs to the model's device, in the form that `logits` takes."""
        if self.first is not None and isinstance(inputs, Tensor):
            inputs = self.first.inputs(inputs)
        return self.adapter.place(inputs)

    def sparse(self, placed: Nest) -> Nest:
        """Return placed inputs as a sparse matrix, where that is faster; for `logits` alone."""
        if isinstance(self.first, UsedColumns) and isinstance(placed, Tensor):
            return self.first.sparse_rows(placed)
        return placed

    def turned(self, name: str, part: Tensor) -> Tensor:
        """Return the matrix that a layer multiplies with, from its part of θ.

        With `UsedColumns` the same call turns such a matrix back into a part of θ.
        """
        return part if self.first is None or self.first.name != name else self.first.turned(part)

    def changes(self, mu: Tensor) -> Iterator[tuple[str, Tensor | None, Tensor]]:
        """Yield (parameter, flat positions, values) of a vector like θ; without positions, all entries in their order.

        Of a first layer that stands in fewer coordinates, only nonzero entries are yielded.
        """
        for name, cut in self.slices.items():
            if self.first is not None and self.first.name == name:
                part = mu[cut].view(self.parts[name].shape)
                yield from self.first.changes(part, self.adapter.model.get_parameter(name).numel())
            else:
                yield name, None, mu[cut]

    def prefix_outputs(self, inputs: Nest) -> tuple[Tensor, ...] | None:
        """Return the outputs of the frozen prefix for placed inputs, or None without a prefix that fits them."""
        return None if self.prefix is None else self.prefix.outputs(self.logits, inputs)

    def logits(
        self, inputs: Nest, parts: dict[str, Tensor] | None = None, prefixed: tuple[Tensor, ...] | None = None
    ) -> Tensor:
        """Return the logits (samples x classes) of placed inputs at `parts`, by default θ.

        `prefixed` are the inputs' `prefix_outputs`, where they are known: the prefix is then not computed again.
        """
        weights = self.parts if parts is None else parts
        cast = {f"model.{name}": self.turned(name, part).to(self.dtypes[name]) for name, part in weights.items()}
        for name in self._channels_last.intersection(weights):
            cast[f"model.{name}"] = cast[f"model.{name}"].contiguous(memory_format=torch.channels_last)
        with nullcontext() if self.prefix is None or prefixed is None else self.prefix.giving(prefixed):
            output: Tensor = functional_call(self.adapter, cast, (inputs,))
        return output


def choose(model: nn.Module, chosen: Filter | None = None) -> dict[str, nn.Parameter]:
    """Return the trainable parameters that a filter chooses: names, shell patterns or ``f(name, parameter)``."""
    named = dict(model.named_parameters())
    free = {name: p for name, p in named.items() if p.requires_grad}
    if not free:
        raise ModelError(
            f"the model has no trainable parameter (all {len(named)} are frozen); "
            "set requires_grad on those that may change"
        )
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


def default_batch_size(adapter: LogitModel, samples: Samples) -> int | None:
    """Return how many samples to pass at once where the user does not say; None for all.

    All rows of numbers are passed at once. Images and texts grow inside a network: on a GPU a batch of them must fit
    into memory, and on a CPU a small batch stays in its cache.
    """
    inputs = samples.inputs
    if isinstance(inputs, Tensor) and inputs.dim() == 2 and inputs.is_floating_point():
        return None
    return _BATCH if adapter.device.type == "cpu" else _BATCH_ON_GPU


def _convolutions_on_gpu(model: nn.Module) -> set[str]:
    """Return the weights of plain two-dimensional convolutions on a GPU: they are faster with the channels last."""
    return {
        f"{name}.weight" if name else "weight"
        for name, module in model.named_modules()
        if type(module) is nn.Conv2d and "forward" not in vars(module) and module.weight.is_cuda
    }


def _few(named: Parameters, most: int = 8) -> str:
    names = list(named)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _working_dtype(picked: Parameters) -> torch.dtype:
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
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Restore the model's buffers at the end: a forward pass may change them, even in evaluation mode."""
    before = [
        (module._buffers, name, buffer, None if buffer is None else buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    try:
        yield
    finally:
        for module in model.modules():
            module._buffers.clear()  # a call may register buffers, and put others in their place
        with torch.no_grad():
            for buffers, name, buffer, values in before:
                buffers[name] = buffer
                if buffer is not None and values is not None:
                    buffer.copy_(values)


@contextmanager
def prepared(student: nn.Module) -> Iterator[None]:
    """Freeze the model's own parameters while θ takes their place, choose deterministic kernels, and keep buffers."""
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
        with kernels, kept_buffers(student):
            yield
    finally:
        for p, flag in flags:
            p.requires_grad_(flag)


# --- a first linear layer with many columns --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UsedColumns:
    """The columns of the first layer's weight that some sample uses; the others are left out of θ.

    Attributes
    ----------
    name : str
        The weight.
    used : Tensor, shape (u,)
        Its used columns, in order.
    width : int
        How many columns there are in all.
    sparse : bool
        Whether the inputs are mostly zero within the used columns too. The part is then the transposed weight, since a
        sparse matrix is multiplied with the rows of the other factor.
    """

    name: str
    used: Tensor
    width: int
    sparse: bool = False

    def part(self, weight: Tensor) -> Tensor:
        """Return the used columns of the weight as a part of θ."""
        columns = self.inputs(weight)
        return columns.t().contiguous() if self.sparse else columns

    def inputs(self, inputs: Tensor) -> Tensor:
        """Return the used columns."""
        return inputs.index_select(-1, self.used.to(inputs.device))

    def sparse_rows(self, placed: Tensor) -> Tensor:
        """Return inputs as a sparse matrix, where they are mostly zero."""
        if not self.sparse:
            return placed
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            return placed.to_sparse_csr()

    def turned(self, part: Tensor) -> Tensor:
        """Return the used columns as the layer multiplies with them; the same act turns a gradient into a part."""
        return part.t() if self.sparse else part

    def changes(self, mu: Tensor, size: int) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Yield (weight, flat positions, values) of a change of the part, for a weight of `size` entries."""
        flat, used = mu.reshape(-1), self.used.to(mu.device)
        inside = flat.nonzero()[:, 0]
        if self.sparse:
            rows, columns = inside % (size // self.width), inside // (size // self.width)
        else:
            rows, columns = inside // len(used), inside % len(used)
        yield self.name, rows * self.width + used[columns], flat[inside]


def used_columns(adapter: LogitModel, samples: Sequence[Samples], picked: Parameters) -> UsedColumns | None:
    """Return which columns of a first linear layer some sample uses; None without such a layer or if most are used.

    The model must be that layer, or a plain `nn.Sequential` that begins with it, called with one matrix of floats.
    """
    found = _first_linear(adapter, picked)
    used = None if found is None or not samples else _used(found[1], samples)
    if found is None or used is None:
        return None
    count = int(used.sum())
    filled = sum(int((leaf != 0).sum()) for part in samples for leaf in leaves(part.inputs))
    sparse = adapter.device.type == "cpu" and filled <= MAX_FILLED * sum(map(len, samples)) * count
    if count == 0 or (count > MAX_USED * len(used) and not sparse):
        return None
    return UsedColumns(found[0], used.nonzero()[:, 0], len(used), sparse)


@dataclass(frozen=True, slots=True)
class InputSpan:
    """The weight and the bias of a first linear layer, in coordinates of the span of the samples' inputs.

    The gradient of a first linear layer W (out x in) on samples with inputs H (k x in) is always Bᵀ H. The smallest
    displacement in the metric A ⊗ G is therefore C L⁻¹ H (A + λ)⁻¹ for some C (out x k), where L Lᵀ = H (A + λ)⁻¹ Hᵀ:
    k columns in place of ten thousand words, and in these coordinates A is the identity. In them an input is a row of
    L; what the layer computed with its weight at θ_0 is a constant beside it.

    Attributes
    ----------
    name, bias : str, str or None
        The weight, and the bias that moves with it, where it may change.
    used : Tensor, shape (u,)
        The columns that some sample uses; the others stay as they are.
    basis : Tensor, shape (k, u), or (k, u + 1) with the bias last
        L⁻¹ H (A + λ)⁻¹: what one coordinate adds to the weight.
    weight : Tensor, shape (out, u)
        The used columns of the weight at θ_0.
    width : int
        The columns of the whole weight.
    """

    name: str
    bias: str | None
    used: Tensor
    basis: Tensor
    weight: Tensor
    width: int

    def part(self, weight: Tensor) -> Tensor:
        """Return C = 0, the part of θ at θ_0."""
        return weight.new_zeros(len(weight), len(self.basis))

    def inputs(self, inputs: Tensor) -> Tensor:
        """Return the inputs' coordinates, and beside them what the layer returns at θ_0 (without the bias)."""
        rows = inputs.to(self.basis.device, self.basis.dtype).index_select(1, self.used)
        full = rows if self.bias is None else torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
        return torch.cat([full @ self.basis.T, rows @ self.weight.T], 1)

    def turned(self, part: Tensor) -> Tensor:
        """Return [C, I]: the coordinates, and the identity for what the layer returned at θ_0."""
        eye = torch.eye(len(part), dtype=part.dtype, device=part.device)
        return torch.cat([part, eye], 1)

    def changes(self, mu: Tensor, size: int) -> Iterator[tuple[str, Tensor, Tensor]]:  # noqa: ARG002 (as UsedColumns)
        """Yield (parameter, flat positions, values) of a change C, for the weight and then for the bias."""
        change = mu @ self.basis.to(mu)
        out = torch.arange(len(mu), device=mu.device)
        positions = (out[:, None] * self.width + self.used.to(mu.device)[None, :]).reshape(-1)
        yield self.name, positions, change[:, : len(self.used)].reshape(-1)
        if self.bias is not None:
            yield self.bias, out, change[:, -1]


def input_span(
    adapter: LogitModel, samples: Sequence[Samples], picked: Parameters, curvature: Curvature, damping: float
) -> InputSpan | None:
    """Return coordinates for a first linear layer with far more used columns than samples; None without one.

    Parameters
    ----------
    adapter : LogitModel
        The model must be that layer, or a plain `nn.Sequential` that begins with it, called with one matrix.
    samples : sequence of Samples
        Every sample that will be passed.
    picked : dict of str to Parameter
        The parameters that may change.
    curvature, damping
        See `forsaken.unlearning.forsaken.gauss_newton.Metric`.
    """
    found = _first_linear(adapter, picked)
    if found is None or found[0] not in curvature.factors:
        return None
    name, layer = found
    counted = _used(layer, samples)
    if counted is None:
        return None
    used, rows = counted.nonzero()[:, 0], sum(map(len, samples))
    if not len(used) or rows > MAX_SPAN * len(used):
        return None
    bias = curvature.factors[name].bias
    bias = bias if bias in picked else None
    width, device = layer.weight.shape[1], adapter.device
    columns = used if bias is None else torch.cat([used, torch.tensor([width])])
    divide = curvature.divide_inputs(name, damping, device, columns.to(device))
    weight = layer.weight.detach()
    inputs = torch.cat([part.inputs.to(device, weight.dtype) for part in samples])[:, used.to(device)]  # type: ignore[union-attr]
    full = inputs if bias is None else torch.cat([inputs, inputs.new_ones(rows, 1)], 1)
    whitened = divide(full)  # H (A + λ)⁻¹
    gram = whitened @ full.T
    gram = (gram + gram.T) / 2
    gram.diagonal().add_(SPAN_JITTER * float(gram.diagonal().mean()))
    root, failed = torch.linalg.cholesky_ex(gram)
    if int(failed):
        return None
    basis = torch.linalg.solve_triangular(root, whitened, upper=False)
    return InputSpan(name, bias, used.to(device), basis, weight[:, used.to(device)], width)


def _first_linear(adapter: LogitModel, picked: Parameters) -> tuple[str, nn.Linear | LinearModel] | None:
    """Return the linear layer that alone sees the inputs, and the name of its weight, if that may change."""
    found = None if adapter.call is not None else _first_layer(adapter.model, "")
    if found is None:
        return None
    name, weight = f"{found[0]}weight", found[1].weight
    shared = sum(other is weight for _, other in adapter.model.named_parameters(remove_duplicate=False))
    return (name, found[1]) if shared == 1 and name in picked else None


def _first_layer(module: nn.Module, name: str) -> tuple[str, nn.Linear | LinearModel] | None:
    """Follow plain `nn.Sequential` modules to a first linear layer; return it and the start of its weights' names."""
    if any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)) or "forward" in vars(module):
        return None
    if type(module) is nn.Linear or type(module) is LinearModel:
        return name, module
    if type(module) is nn.Sequential and len(module):
        first = next(iter(module._modules))
        return _first_layer(module[0], f"{name}{first}.")
    return None


def _used(layer: nn.Linear | LinearModel, samples: Iterable[Samples]) -> Tensor | None:
    """Return for each column whether some sample uses it; None where the inputs are not matrices of floats."""
    used = torch.zeros(layer.weight.shape[1], dtype=torch.bool)
    for part in samples:
        rows = part.inputs
        if not isinstance(rows, Tensor) or rows.dim() != 2 or not rows.is_floating_point():
            return None
        if rows.shape[1] != len(used):
            return None
        used |= (rows != 0).any(0).cpu()
    return used


# --- a frozen prefix -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FrozenPrefix:
    """The first layers of a model, which stay as they are.

    Convolutions that come first see the largest images: in VGG-16 the first seven hold an eighth of the weights and
    take three fifths of the arithmetic.

    Attributes
    ----------
    layers : tuple of Module
        In the order in which they are called, each of them once.
    weights : frozenset of str
        The names of their weights.
    """

    layers: tuple[nn.Module, ...]
    weights: frozenset[str]

    def outputs(self, call: Callable[[Nest], Tensor], inputs: Nest) -> tuple[Tensor, ...] | None:
        """Return the output of each layer in ``call(inputs)``: the last layer's, and placeholders for the others.

        Only the last layer's output may go on into the model; a placeholder that is read turns the logits to NaN.
        None where these inputs take another path: a layer is not called exactly once, or the logits differ when the
        outputs are put in the layers' place.
        """
        found: dict[nn.Module, Tensor] = {}
        calls: list[nn.Module] = []

        def note(layer: nn.Module, _: object, __: object, output: Tensor) -> None:
            found[layer] = output.detach().clone() if layer is self.layers[-1] else _placeholder(output)
            calls.append(layer)

        with torch.no_grad():
            with hooked(self.layers, note):
                whole = call(inputs)
            if tuple(calls) != self.layers:
                return None
            outputs = tuple(found[layer] for layer in self.layers)
            with self.giving(outputs):
                short = call(inputs)
        slack = 1e-4 if whole.dtype in (torch.float32, torch.float64) else 1e-2
        same = short.shape == whole.shape and torch.allclose(short, whole, slack, slack * float(whole.abs().max()))
        return outputs if same else None

    @contextmanager
    def giving(self, outputs: tuple[Tensor, ...]) -> Iterator[None]:
        """Let the layers return these outputs without computing them."""
        before = [vars(layer).get("forward") for layer in self.layers]
        try:
            for layer, output in zip(self.layers, outputs, strict=True):
                vars(layer)["forward"] = _constant(output, copied=layer is self.layers[-1])
            yield
        finally:
            for layer, own in zip(self.layers, before, strict=True):
                if own is None:
                    vars(layer).pop("forward", None)
                else:
                    vars(layer)["forward"] = own


def frozen_prefix(
    adapter: LogitModel, samples: Sequence[Samples], picked: Parameters, share: float
) -> FrozenPrefix | None:
    """Return the first layers that hold at most a share of the picked parameters; None without such a prefix.

    Layers are modules without children. They are a prefix if each is called once, before every layer with other
    weights, if their output depends on no picked weight but their own, and if only the output of the last of them is
    used. All of that is tried on a few samples. The parameters behind the prefix must be many enough to move the
    samples (`MIN_FREE`).

    Parameters
    ----------
    adapter : LogitModel
        The model, in evaluation mode.
    samples : sequence of Samples
        Every sample that will be passed: the prefix's outputs for all of them must fit into `PREFIX_BYTES`.
    picked : dict of str to Parameter
        The parameters that may change.
    share : float
        The largest share of them that the prefix may hold; 0 for no prefix.
    """
    if not share or not samples:
        return None
    tried, count = min(_TRIED, len(samples[0])), sum(map(len, samples))
    few = adapter.place(samples[0].rows(range(tried)).inputs)
    # A model that is called in an unusual way may raise anything; a real fault shows again in the ordinary passes.
    with suppress(Exception), kept_buffers(adapter.model):
        layers, names = _first_layers(adapter, few, picked, share * sum(p.numel() for p in picked.values()))
        if not names:
            return None
        prefix = FrozenPrefix(tuple(layers), frozenset(names))
        outputs = prefix.outputs(adapter, few)
        if outputs is None or not _independent(adapter, few, prefix, picked):
            return None
        free = sum(weight.numel() for name, weight in picked.items() if name not in prefix.weights)
        fits = outputs[-1].nbytes / tried * count <= PREFIX_BYTES
        return prefix if fits and free >= MIN_FREE * count * adapter(few).shape[1] else None
    return None


def _first_layers(adapter: LogitModel, few: Nest, picked: Parameters, most: float) -> tuple[list[nn.Module], list[str]]:
    """Return the layers that are called first and their picked weights, with at most so many entries."""
    calls: list[tuple[nn.Module, object]] = []
    single = [module for module in adapter.model.modules() if not any(module.children())]
    before = {layer: _attributes(layer) for layer in single}
    with torch.no_grad(), hooked(single, lambda layer, _, __, output: calls.append((layer, output))):
        adapter(few)
    # A layer that stores something during a call must be called: what it stored would be out of date.
    storing = {layer for layer in single if _attributes(layer) != before[layer]}
    called = Counter(id(layer) for layer, _ in calls)
    owners = Counter(id(weight) for _, weight in adapter.model.named_parameters(remove_duplicate=False))
    known = {id(weight): name for name, weight in picked.items()}
    layers: list[nn.Module] = []
    names: list[str] = []
    used = 0
    for layer, output in calls:
        weights = [weight for weight in layer.parameters() if id(weight) in known]
        used += sum(weight.numel() for weight in weights)
        plain = isinstance(output, Tensor) and output.is_floating_point() and layer not in storing
        if used > most or not plain or called[id(layer)] > 1 or any(owners[id(weight)] > 1 for weight in weights):
            break
        layers.append(layer)
        names += [known[id(weight)] for weight in weights]
    return layers, names


def _independent(adapter: LogitModel, few: Nest, prefix: FrozenPrefix, picked: Parameters) -> bool:
    """Return whether the prefix's outputs depend on no picked weight but its own."""
    depends: list[bool] = []
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        for name, weight in adapter.model.named_parameters():
            stack.callback(weight.requires_grad_, weight.requires_grad)
            weight.requires_grad_(name in picked and name not in prefix.weights)
        stack.enter_context(hooked(prefix.layers, lambda *call: depends.append(call[-1].requires_grad)))
        adapter(few)
    return not any(depends)


def _constant(output: Tensor, *, copied: bool) -> Callable[..., Tensor]:
    return lambda *_, **__: output.clone() if copied else output  # the next layer may write into it


def _placeholder(like: Tensor) -> Tensor:
    """Return NaN in this shape, in the memory of one number."""
    return torch.full((), math.nan, dtype=like.dtype, device=like.device).expand(like.shape)


def _attributes(layer: nn.Module) -> dict[str, int]:
    return {name: id(value) for name, value in vars(layer).items()}
