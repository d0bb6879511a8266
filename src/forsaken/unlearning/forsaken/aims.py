"""The aim of a request: a target for each forget sample, and whether there is anything to forget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from forsaken._random import generator
from forsaken.data.samples import Samples
from forsaken.errors import InputError, SettingsError
from forsaken.unlearning.forsaken import targets
from forsaken.unlearning.request import Request

TARGETS = ("class-mean", "corrected", "uniform")
_NEGLIGIBLE = 1e-6  # a distance at which a sample stands at its target, for want of references to compare with

Distance = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Aim:
    """Where the forget samples should go.

    Attributes
    ----------
    name : str
        The target's name; "given" for targets handed in.
    logits : Tensor, shape (|D|, p), float64
        Centred target logits.
    before : float
        The mean distance of D to its target at the weights handed over.
    bound : float or None
        The mean distance of held-out references to their own row: how near a non-member is. None without references.
    notes : tuple of str
        What was done in place of something missing.
    """

    name: str
    logits: Tensor
    before: float
    bound: float | None
    notes: tuple[str, ...] = ()

    @property
    def memorised(self) -> bool:
        """Whether D is farther from its target than non-members are from theirs."""
        return self.before > (_NEGLIGIBLE if self.bound is None else max(self.bound, _NEGLIGIBLE))


def aim(kind: str, distance: Distance, request: Request, logits: Callable[[Samples], Tensor]) -> Aim:
    """Return the aim of a request.

    Parameters
    ----------
    kind : str
        A name of `TARGETS`; targets handed in with the request come before it.
    distance : callable
        The distance of logits to target logits, one number a sample.
    request : Request
        The data.
    logits : callable
        The model's logits for samples.
    """
    now = logits(request.forget).double()
    count, classes = now.shape
    _check_labels(request, classes)
    if request.targets is not None:
        wanted = targets.given(request.targets, count, classes)
        return Aim("given", wanted, float(distance(now, wanted).mean()), None)
    if kind == "uniform":
        wanted = targets.uniform(count, classes)
        return Aim(kind, wanted, float(distance(now, wanted).mean()), None)
    if request.reference is None:
        raise SettingsError(
            f'target="{kind}" needs reference samples that the model was never trained on; give reference=, '
            'hand in targets=, or use target="uniform"'
        )
    posterior = logits(request.reference).double().softmax(1)
    groups, chosen = _groups(kind, request, posterior, now)
    found = targets.class_rows(posterior, groups)
    wanted = targets.target_logits(found.rows[chosen])
    unseen = sorted(set(chosen.tolist()) & set(found.missing))
    notes = [f"no reference falls into {len(unseen)} of the classes aimed at: the mean over all references stands in"]
    bound = _bound(distance, posterior, groups, request.seed)
    return Aim(kind, wanted, float(distance(now, wanted).mean()), bound, tuple(notes) if unseen else ())


def _groups(kind: str, request: Request, posterior: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class of each reference, and of each forget sample."""
    if kind == "class-mean":
        return posterior.argmax(1), now.argmax(1)
    if request.forget.labels is None or request.reference is None or request.reference.labels is None:
        raise InputError(
            'target="corrected" needs the true labels of forget and reference samples; give '
            "forget=(inputs, labels) and reference=(inputs, labels)"
        )
    return request.reference.labels.cpu(), request.forget.labels.cpu()


def _bound(distance: Distance, posterior: Tensor, groups: Tensor, seed: int) -> float | None:
    """Return the mean distance of one half of the references to the rows of the other half."""
    count = len(posterior)
    if count < 2:
        return None
    order = torch.from_numpy(generator(seed, 12).permutation(count))
    fitted, held = order[: count // 2], order[count // 2 :]
    rows = targets.class_rows(posterior[fitted], groups[fitted]).rows
    logits = posterior[held].clamp_min(1e-300).log()
    return float(distance(logits, targets.target_logits(rows[groups[held]])).mean())


def _check_labels(request: Request, classes: int) -> None:
    for name in ("forget", "reference", "retain"):
        samples: Samples | None = getattr(request, name)
        if samples is None or samples.labels is None:
            continue
        low, high = int(samples.labels.min()), int(samples.labels.max())
        if low < 0 or high >= classes:
            raise InputError(
                f"the labels of {name} run from {low} to {high}, but the model's {classes} classes are 0 to {classes - 1}"
            )
