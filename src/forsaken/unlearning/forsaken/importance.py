"""ω: how much each parameter matters to the samples that are to be kept (Eq. penalty_omega).

ω_d = mean over D_0 of |∂ loss(x) / ∂θ_d|, the absolute value *inside* the mean: gradients are taken sample by
sample. A batch gradient would let samples cancel each other and depend on the batch size.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.func import grad, vmap

from forsaken.data.nest import map_nest
from forsaken.data.samples import Samples
from forsaken.errors import InputError, NonFiniteError
from forsaken.types import Progress, Tick
from forsaken.unlearning.forsaken.by_layer import UNKNOWN, ByLayer
from forsaken.unlearning.forsaken.space import ParameterSpace, at_once
from forsaken.unlearning.forsaken.targets import centre

_CHUNK_NUMBERS = 2**25  # gradient entries held at once: 128 MiB in float32
_ROWS = 256  # samples in a pass, where layers have rules


def logit_energy(logits: Tensor, label: Tensor) -> Tensor:  # noqa: ARG001 (one signature for all losses)
    """½ Σ c(z)², c subtracts the mean over the classes. It does not vanish on memorised samples."""
    return 0.5 * centre(logits).square().sum()


def cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Return the paper's loss; nearly zero, and so are its gradients, on samples known by heart."""
    return torch.nn.functional.cross_entropy(logits, label)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"logits": logit_energy, "loss": cross_entropy}


def importance(
    space: ParameterSpace,
    samples: Samples,
    kind: str,
    progress: Progress,
    *,
    of: Callable[[Tensor], Tensor] = Tensor.abs,
    batch_size: int | None = None,
) -> Tensor:
    """Return ω, shape (d,), from per-sample gradients at the current θ.

    Parameters
    ----------
    space : ParameterSpace
        The parameters; the model must be in evaluation mode.
    samples : Samples
        D_0, with labels for ``kind="loss"``.
    kind : {"logits", "loss"}
        Whose gradient: of the logits' energy, or of the cross-entropy as in the paper.
    progress : callable
        Told about the samples done.
    of : callable
        What of each sample's gradient is averaged, entry by entry: its magnitude, or its square.
    batch_size : int, optional
        The most samples in a pass, where layers have rules.

    Notes
    -----
    Gradients of several samples at once need (samples x d) numbers, so they are taken in chunks. Layers that
    `torch.func.vmap` cannot batch (recurrent ones, for example) are taken sample by sample, with the same result.
    Where all layers have a rule, one pass over many samples does (`by_layer`).
    """
    loss = LOSSES[kind]
    labels = samples.labels
    if labels is None:
        if kind == "loss":
            raise InputError(
                'importance="loss" needs labels of the retain samples; give retain=(inputs, labels), '
                'or importance="logits"'
            )
        labels = torch.zeros(len(samples), dtype=torch.long)
    adapter = space.adapter
    labels = labels.to(adapter.device)
    detached = {name: part.detach() for name, part in space.parts.items()}

    def one(parts: dict[str, Tensor], inputs: object, label: Tensor) -> Tensor:
        single = map_nest(lambda leaf: leaf.unsqueeze(0), inputs)  # type: ignore[arg-type]
        return loss(space.logits(single, parts), label.unsqueeze(0))

    total = torch.zeros(space.size, dtype=space.dtype, device=adapter.device)
    done = 0
    for sums, count in _layer_by_layer(space, samples, labels, loss, of, batch_size):
        _add(total, space, sums)
        done += count
        progress(Tick("importance", done, len(samples)))

    together = vmap(grad(one), in_dims=(None, 0, 0))
    size = max(1, min(len(samples), _CHUNK_NUMBERS // max(1, space.size)))
    batched = size > 1
    while done < len(samples):
        part = samples.rows(range(done, min(done + (size if batched else 1), len(samples))))
        inputs, label = space.place(part.inputs), labels[done : done + len(part)]
        if batched:
            try:
                with warnings.catch_warnings():
                    # vmap tells its own developers where it loops inside; a user cannot act on it
                    warnings.filterwarnings("ignore", message="There is a performance drop")
                    gradients = together(detached, inputs, label)
            except RuntimeError:  # vmap knows no rule for a layer; what is truly wrong shows again below
                batched = False
                continue
            _add(total, space, [of(gradients[name]).sum(0) for name in space.parts])
        else:
            leaves = list(space.parts.values())
            value = loss(space.logits(inputs), label)
            found = torch.autograd.grad(value, leaves, allow_unused=True)
            _add(
                total,
                space,
                [None if g is None else of(g.to_dense() if g.is_sparse else g) for g in found],
            )
        done += len(part)
        progress(Tick("importance", done, len(samples)))
    omega = total / len(samples)
    if not bool(torch.isfinite(omega).all()):
        raise NonFiniteError("the importance of some parameters is NaN or infinite; check the model's weights")
    return omega


def _layer_by_layer(
    space: ParameterSpace,
    samples: Samples,
    labels: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    of: Callable[[Tensor], Tensor],
    batch_size: int | None,
) -> Iterator[tuple[list[Tensor], int]]:
    """Yield the sums over the first samples, and how many they are, until a model or a sample has no rule."""
    layers, rows = ByLayer(space, loss), min(_ROWS, batch_size or at_once(space, samples) or _ROWS)
    done = 0
    while done < len(samples):
        part = samples.rows(range(done, min(done + rows, len(samples))))
        inputs, label = space.place(part.inputs), labels[done : done + len(part)]
        if done == 0 and not layers.knows(inputs, label):
            return
        try:
            sums = layers.sums(inputs, label, of)
        except torch.OutOfMemoryError:
            if rows == 1:
                return
            rows //= 2
            continue
        except UNKNOWN:  # these samples go another way through the model than those before them
            return
        yield sums, len(part)
        done += len(part)


def _add(total: Tensor, space: ParameterSpace, gradients: Sequence[Tensor | None]) -> None:
    for cut, gradient in zip(space.slices.values(), gradients, strict=True):
        if gradient is not None:
            total[cut] += gradient.reshape(-1)


def scaled(omega: Tensor, count: int | None = None, floor: float = 0.01) -> Tensor:
    """Return ω / mean ω + floor: on the scale of 1 whatever the model, and nowhere zero; 1 where ω is all zero.

    The mean is over `count` parameters where that is more than there are entries: ω is zero at the others.
    """
    mean = omega.sum() / (omega.numel() if count is None else count)
    return torch.where(mean > 0, omega / mean.clamp_min(torch.finfo(omega.dtype).tiny) + floor, torch.ones_like(omega))
