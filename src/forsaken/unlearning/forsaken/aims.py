"""The aim of a request: a target for each forget sample, and whether there is anything to forget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from forsaken._random import Purpose, generator
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError, SettingsError
from forsaken.unlearning.base import Request
from forsaken.unlearning.forsaken import targets

OUT_OF_FOLD = "out-of-fold"
CLAIMED = "out-of-fold, claimed"
BY_REFERENCES = (OUT_OF_FOLD, CLAIMED)
TARGETS = ("class-mean", "corrected", OUT_OF_FOLD, "uniform")
_NEGLIGIBLE = 1e-6  # a distance at which a sample stands at its target, for want of references to compare with
_DOUBT = 0.25  # at most this share of the references' spread counts as chance, however few samples are to be forgotten

Distance = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Aim:
    """Where the forget samples should go.

    Attributes
    ----------
    name : str
        The target's name; "given" for targets handed in, `CLAIMED` for references of which some are.
    logits : Tensor, shape (|D|, p), float64
        Centred target logits.
    memorised : bool
        Whether there is anything to forget: D is farther from its target than non-members are from theirs, or scores
        higher than they do (see `memorised`).
    before : float
        The mean distance of D to its target at the weights handed over.
    bound : float or None
        The mean distance of held-out references to their own row: how near a non-member is. None without references.
    notes : tuple of str
        What was done in place of something missing.
    """

    name: str
    logits: Tensor
    memorised: bool
    before: float
    bound: float | None = None
    notes: tuple[str, ...] = ()


def margin(logits: Tensor, classes: Tensor) -> Tensor:
    """Return z_c − logsumexp of the other logits, one number a sample: how sure the model is of class c.

    >>> margin(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor([2.])
    """
    own = torch.nn.functional.one_hot(classes, logits.shape[1]).bool()
    return logits[own] - logits.masked_fill(own, -torch.inf).logsumexp(1)


def memorised(forget: Tensor, reference: Tensor) -> bool:
    """Return whether the forget samples score higher than non-members do. Higher means memorised.

    Not so where the mean over the forget samples is at most the references' mean plus one standard error (at most a
    quarter of the references' spread, so that a single sample is not excused for being single). Doubt goes towards
    forgetting: to unlearn what was never learnt does little harm, to refuse what was learnt does.

    Parameters
    ----------
    forget, reference : Tensor, shape (n,)
        Scores: the margin of the predicted class, or minus the margin of the true class for poisoned samples.
    """
    chance = min(_DOUBT, (1 / len(forget) + 1 / len(reference)) ** 0.5)
    spread = float(reference.std()) if len(reference) > 1 else 0.0
    return bool(float(forget.mean()) > float(reference.mean()) + chance * spread)


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
    if targets.look_like_posteriors(now):
        raise ModelError(
            "the model returns probabilities (rows that sum to one), expected logits; leave the softmax out, or give "
            "forward=lambda model, inputs: model(inputs).log()"
        )
    _check_labels(request, classes)
    if request.targets is not None:
        wanted = targets.given(request.targets, count, classes)
        return _without_references("given", distance, now, wanted)
    if kind == OUT_OF_FOLD:
        if request.references is None:
            raise SettingsError(
                f'target="{kind}" needs the logits of models that never saw the samples; give references= (made once '
                "by forsaken.References.fit), or hand in targets="
            )
        if request.references.classes != classes:
            raise InputError(
                f"the references tell {request.references.classes} classes apart, the model {classes}; give a table "
                "that was made with models like this one"
            )
        wanted = targets.given(request.references.logits(request.forget), count, classes)
        handed_in = request.references.claimed_among(request.forget)
        return _without_references(CLAIMED if handed_in else kind, distance, now, wanted)
    if kind == "uniform":
        wanted = targets.uniform(count, classes)
        return _without_references(kind, distance, now, wanted)
    if request.reference is None:
        raise SettingsError(
            f'target="{kind}" needs reference samples that the model was never trained on',
            field="reference",
            remedy='give reference=, hand in targets=, or use target="uniform"',
        )
    others = logits(request.reference).double()
    posterior = others.softmax(1)
    groups, chosen = _groups(kind, request, posterior, now)
    found = targets.class_rows(posterior, groups)
    wanted = targets.target_logits(found.rows[chosen])
    unseen = sorted(set(chosen.tolist()) & set(found.missing))
    notes = [f"no reference falls into {len(unseen)} of the classes aimed at: the mean over all references stands in"]
    sign = 1 if kind == "class-mean" else -1  # a poisoned sample is memorised where its true class is unlikely
    before = float(distance(now, wanted).mean())
    bound = _bound(distance, others, groups, request.seed)
    farther = bound is None or before > bound
    known = farther or memorised(sign * margin(now, chosen), sign * margin(others, groups))
    return Aim(kind, wanted, known, before, bound, tuple(notes) if unseen else ())


def _without_references(name: str, distance: Distance, now: Tensor, wanted: Tensor) -> Aim:
    before = float(distance(now, wanted).mean())
    return Aim(name, wanted, before > _NEGLIGIBLE, before)


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


def _bound(distance: Distance, logits: Tensor, groups: Tensor, seed: int) -> float | None:
    """Return the mean distance of one half of the references to the rows of the other half."""
    count = len(logits)
    if count < 2:
        return None
    order = torch.from_numpy(generator(seed, Purpose.CALIBRATION_HALVES).permutation(count))
    fitted, held = order[: count // 2], order[count // 2 :]
    rows = targets.class_rows(logits[fitted].softmax(1), groups[fitted]).rows
    return float(distance(logits[held], targets.target_logits(rows[groups[held]])).mean())


def _check_labels(request: Request, classes: int) -> None:
    for name in ("forget", "reference", "retain"):
        samples: Samples | None = getattr(request, name)
        if samples is None or samples.labels is None:
            continue
        low, high = int(samples.labels.min()), int(samples.labels.max())
        if low < 0 or high >= classes:
            raise InputError(
                f"the labels of {name} run from {low} to {high}, "
                f"but the model's {classes} classes are 0 to {classes - 1}"
            )
