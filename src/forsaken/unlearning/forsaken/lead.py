"""The first layers, left as they are: what comes out of them is computed once, and passes begin after them.

Convolutions that come first see the largest pictures: in VGG-16 they hold a fifth of the weights and take two thirds
of the time. What such layers say of a sample does not change while those after them do.
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
_ODD = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AttributeError)


@dataclass(frozen=True, slots=True)
class Lead:
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

    def outputs(self, call: Callable[[], object]) -> tuple[Tensor, ...]:
        """Return what each layer returns in a call of the model: of all but the last, the shape alone (see `nothing`).

        Only what the last of them says goes on; if the model looks at another, everything becomes NaN.
        """
        found: dict[nn.Module, Tensor] = {}

        def note(layer: nn.Module, _: object, output: Tensor) -> None:
            found[layer] = output.detach() if layer is self.layers[-1] else nothing(output)

        with torch.no_grad(), _hooked(self.layers, note):
            call()
        return tuple(found[layer] for layer in self.layers)

    @contextmanager
    def giving(self, outputs: tuple[Tensor, ...]) -> Iterator[None]:
        """Let the layers return these outputs, without computing them."""
        before = [vars(layer).get("forward") for layer in self.layers]
        try:
            for layer, output in zip(self.layers, outputs, strict=True):
                vars(layer)["forward"] = _constant(output)
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


def leading(
    adapter: LogitModel, samples: Sequence[Samples], picked: Mapping[str, nn.Parameter], share: float
) -> Lead | None:
    """Return the first layers that hold at most a share of the picked weights; None where there is no such lead.

    Layers are modules without children. They lead if each is called once, before every layer with other weights, if
    what they say depends on no picked weight but their own, and if only what the last of them says is used. That is
    tried on a few samples. The others must be plenty for what they have to do.

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
        lead, count = Lead(tuple(layers), frozenset(names)), sum(map(len, samples))
        others = sum(weight.numel() for name, weight in picked.items() if name not in lead.weights)
        outputs = lead.outputs(lambda: adapter(few))
        fits = outputs[-1].nbytes / len(outputs[-1]) * count <= _ROOM
        enough = others >= PLENTY * count * adapter(few).shape[1]
        return lead if fits and enough and _independent(adapter, few, lead, picked, outputs) else None
    except _ODD:  # a model of its own kind; what is truly wrong with it shows again elsewhere
        return None


def _within(
    adapter: LogitModel, few: Nest, picked: Mapping[str, nn.Parameter], most: float
) -> tuple[list[nn.Module], list[str]]:
    """Return the layers that are called first and their picked weights, as many as there is room for."""
    calls: list[tuple[nn.Module, object]] = []
    single = [module for module in adapter.model.modules() if not any(module.children())]
    with torch.no_grad(), _hooked(single, lambda layer, _, output: calls.append((layer, output))):
        adapter(few)
    called = Counter(id(layer) for layer, _ in calls)
    owners = Counter(id(weight) for _, weight in adapter.model.named_parameters(remove_duplicate=False))
    known = {id(weight): name for name, weight in picked.items()}
    layers: list[nn.Module] = []
    names: list[str] = []
    used = 0
    for layer, output in calls:
        weights = [weight for weight in layer.parameters() if id(weight) in known]
        used += sum(weight.numel() for weight in weights)
        plain = isinstance(output, Tensor) and output.is_floating_point() and output.dim() > 0
        if used > most or not plain or called[id(layer)] > 1 or any(owners[id(weight)] > 1 for weight in weights):
            break
        layers.append(layer)
        names += [known[id(weight)] for weight in weights]
    return layers, names


def _independent(
    adapter: LogitModel,
    few: Nest,
    lead: Lead,
    picked: Mapping[str, nn.Parameter],
    outputs: tuple[Tensor, ...],
) -> bool:
    """Return whether the lead hangs on no other weight, only its last layer is looked at, and nobody writes to it."""
    free: list[bool] = []
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        for name, weight in picked.items():
            stack.callback(weight.requires_grad_, weight.requires_grad)
            weight.requires_grad_(name not in lead.weights)
        stack.enter_context(_hooked(lead.layers, lambda _, __, output: free.append(output.requires_grad)))
        whole = adapter(few).detach()
    kept = outputs[-1].clone()
    with torch.no_grad(), lead.giving(outputs):
        short = adapter(few)
    close = torch.allclose(short, whole, rtol=1e-2, atol=1e-3 * float(whole.abs().max()))
    return not any(free) and close and torch.equal(kept, outputs[-1])


@contextmanager
def _hooked(layers: Iterable[nn.Module], note: Callable[..., None]) -> Iterator[None]:
    handles = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _constant(output: Tensor) -> Callable[..., Tensor]:
    return lambda *_, **__: output
