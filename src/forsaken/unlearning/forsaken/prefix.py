"""A frozen prefix: the first layers stay as they are, so that their outputs are computed once for all passes.

Convolutions that come first see the largest pictures: in VGG-16 the first seven hold an eighth of the weights and take
three fifths of the arithmetic.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from forsaken.data.nest import Nest
from forsaken.data.samples import Samples
from forsaken.models.logits import LogitModel

PLENTY = 20  # weights for each answer to be reached or held, below which a model has none to spare
_ROOM = 2**32  # bytes that may be kept
_TRIED = 2  # samples on which it is tried


@dataclass(frozen=True, slots=True)
class FrozenPrefix:
    """The first layers of a model.

    Attributes
    ----------
    layers : tuple of Module
        In the order in which they are called; each of them once.
    weights : frozenset of str
        The names of their weights.
    """

    layers: tuple[nn.Module, ...]
    weights: frozenset[str]

    def outputs(self, call: Callable[[], Tensor]) -> tuple[Tensor, ...] | None:
        """Return what each layer returns in a call of the model: of all but the last, the shape alone (see `nothing`).

        Only what the last of them says goes on; if the model looks at another, everything becomes NaN. None where
        these samples go another way: where a layer is not called just once, or the logits are others.
        """
        found: dict[nn.Module, Tensor] = {}
        calls: list[nn.Module] = []

        def note(layer: nn.Module, _: object, output: Tensor) -> None:
            found[layer] = output.detach().clone() if layer is self.layers[-1] else nothing(output)
            calls.append(layer)

        with torch.no_grad():
            with _hooked(self.layers, note):
                whole = call()
            if tuple(calls) != self.layers:
                return None
            outputs = tuple(found[layer] for layer in self.layers)
            with self.giving(outputs):
                short = call()
        slack = 1e-4 if whole.dtype in (torch.float32, torch.float64) else 1e-2
        same = short.shape == whole.shape and torch.allclose(short, whole, slack, slack * float(whole.abs().max()))
        return outputs if same else None

    @contextmanager
    def giving(self, outputs: tuple[Tensor, ...]) -> Iterator[None]:
        """Let the layers return these outputs, without computing them."""
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


def nothing(like: Tensor) -> Tensor:
    """Return a tensor of this shape that takes no memory and spoils whatever looks at it."""
    return torch.full((), math.nan, dtype=like.dtype, device=like.device).expand(like.shape)


def frozen_prefix(
    adapter: LogitModel, samples: Sequence[Samples], picked: Mapping[str, nn.Parameter], share: float
) -> FrozenPrefix | None:
    """Return the first layers that hold at most a share of the picked weights; None where there is no such prefix.

    Layers are modules without children. They are a prefix if each is called once, before every layer with other
    weights, if their output depends on no picked weight but their own, and if only the output of the last of them is
    used. That is tried on a few samples. The others must be plenty for what they have to do.

    Parameters
    ----------
    adapter : LogitModel
        The model, in evaluation mode.
    samples : sequence of Samples
        Those to be moved or held: what comes out must fit into memory for all of them.
    picked : dict of str to Parameter
        The weights that may change.
    share : float
        How many of them may be left as they are.
    """
    if not share or not samples:
        return None
    few = adapter.place(samples[0].rows(range(min(_TRIED, len(samples[0])))).inputs)
    try:
        layers, names = _within(adapter, few, picked, share * sum(p.numel() for p in picked.values()))
        if not names:
            return None
        prefix, count = FrozenPrefix(tuple(layers), frozenset(names)), sum(map(len, samples))
        others = sum(weight.numel() for name, weight in picked.items() if name not in prefix.weights)
        outputs = prefix.outputs(lambda: adapter(few))
        if outputs is None or not _independent(adapter, few, prefix, picked):
            return None
        tried = min(_TRIED, len(samples[0]))
        fits = outputs[-1].nbytes / tried * count <= _ROOM
        return prefix if fits and others >= PLENTY * count * adapter(few).shape[1] else None
    except Exception:  # noqa: BLE001 (a user's model may raise anything; what is truly wrong shows again elsewhere)
        return None


def _within(
    adapter: LogitModel, few: Nest, picked: Mapping[str, nn.Parameter], most: float
) -> tuple[list[nn.Module], list[str]]:
    """Return the layers that are called first and their picked weights, as many as there is room for."""
    calls: list[tuple[nn.Module, object]] = []
    single = [module for module in adapter.model.modules() if not any(module.children())]
    before = {layer: _state(layer) for layer in single}
    with torch.no_grad(), _hooked(single, lambda layer, _, output: calls.append((layer, output))):
        adapter(few)
    keeping = {layer for layer in single if _state(layer) != before[layer]}  # what they note would be old
    called = Counter(id(layer) for layer, _ in calls)
    owners = Counter(id(weight) for _, weight in adapter.model.named_parameters(remove_duplicate=False))
    known = {id(weight): name for name, weight in picked.items()}
    layers: list[nn.Module] = []
    names: list[str] = []
    used = 0
    for layer, output in calls:
        weights = [weight for weight in layer.parameters() if id(weight) in known]
        used += sum(weight.numel() for weight in weights)
        plain = isinstance(output, Tensor) and output.is_floating_point() and layer not in keeping
        if used > most or not plain or called[id(layer)] > 1 or any(owners[id(weight)] > 1 for weight in weights):
            break
        layers.append(layer)
        names += [known[id(weight)] for weight in weights]
    return layers, names


def _independent(adapter: LogitModel, few: Nest, prefix: FrozenPrefix, picked: Mapping[str, nn.Parameter]) -> bool:
    """Return whether the prefix depends on no picked weight but its own."""
    free: list[bool] = []
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        for name, weight in adapter.model.named_parameters():
            stack.callback(weight.requires_grad_, weight.requires_grad)
            weight.requires_grad_(name in picked and name not in prefix.weights)
        stack.enter_context(_hooked(prefix.layers, lambda _, __, output: free.append(output.requires_grad)))
        adapter(few)
    return not any(free)


@contextmanager
def _hooked(layers: Iterable[nn.Module], note: Callable[..., None]) -> Iterator[None]:
    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _constant(output: Tensor, *, copied: bool) -> Callable[..., Tensor]:
    return lambda *_, **__: output.clone() if copied else output  # what comes next may write into it


def _state(layer: nn.Module) -> dict[str, int]:
    return {name: id(value) for name, value in vars(layer).items()}
