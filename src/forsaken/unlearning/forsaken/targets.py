"""Where the logits of the forgotten samples should go, and what a result made with such a target can claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from forsaken._random import Purpose, generator
from forsaken.data.samples import Samples, check_labels
from forsaken.errors import InputError, ModelError, SettingsError
from forsaken.models.logits import centre
from forsaken.unlearning.base import Request

OUT_OF_FOLD = "out-of-fold"
CLAIMED = "out-of-fold, claimed"
BY_REFERENCES = (OUT_OF_FOLD, CLAIMED)
BY_SAMPLES = ("class-mean", "corrected")
TARGETS = (*BY_SAMPLES, OUT_OF_FOLD, "uniform")
_FLOOR = 1e-12  # the smallest posterior of a target
_NEGLIGIBLE = 1e-6  # distance below which a sample counts as being at its target
_MAX_CHANCE = 0.25  # share of the references' spread that counts as chance, at most, however few samples there are

Distance: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Target:
    """Where the forgotten samples D should go, and whether there is anything to forget.

    Attributes
    ----------
    name : str
        The target's name; "given" for targets handed in, `CLAIMED` for references of which some were handed in.
    logits : Tensor, shape (|D|, p), float64
        Centred target logits.
    memorised : bool
        Whether there is anything to forget: D is farther from its target than non-members are from theirs, or scores
        higher than they do (see `memorised`).
    before : float
        The mean distance of D to its target at the weights handed over.
    bound : float or None
        The mean distance of held-out references to their own target: how near a non-member is. None without references.
    notes : tuple of str
        What replaced something that was missing.
    """

    name: str
    logits: Tensor
    memorised: bool
    before: float
    bound: float | None = None
    notes: tuple[str, ...] = ()


def needs_reference(kind: str, request: Request) -> bool:
    """Return whether a target is made from the model's answers on reference samples."""
    return kind in BY_SAMPLES and request.targets is None


def find_target(kind: str, distance: Distance, request: Request, forget: Tensor, reference: Tensor | None) -> Target:
    """Return the target of a request.

    Parameters
    ----------
    kind : str
        A name of `TARGETS`; targets handed in with the request come before it.
    distance : callable
        The distance of logits to target logits, one number a sample.
    request : Request
        The data.
    forget : Tensor, shape (|D|, p)
        The model's logits for the samples to forget.
    reference : Tensor, shape (n, p), or None
        The model's logits for the reference samples, if `needs_reference`.
    """
    forget = forget.double()
    count, classes = forget.shape
    if look_like_posteriors(forget):
        raise ModelError(
            "the model returns probabilities (rows that sum to one), expected logits; leave the softmax out, or give "
            "forward=lambda model, inputs: model(inputs).log()"
        )
    _check_labels(request, classes)
    if request.targets is not None:
        return _by_logits("given", distance, forget, given(request.targets, count, classes))
    if kind == OUT_OF_FOLD:
        if request.references is None:
            raise SettingsError(
                f'target="{kind}" needs the logits of models that never saw the samples; give references= (made once '
                "by forsaken.References.fit), or hand in targets="
            )
        if request.references.classes != classes:
            raise InputError(
                f"the references have {request.references.classes} classes, the model has {classes}; give a table "
                "that was made with models like this one"
            )
        wanted = given(request.references.logits(request.forget), count, classes)
        claimed = request.references.claimed_among(request.forget)
        return _by_logits(CLAIMED if claimed else kind, distance, forget, wanted)
    if kind == "uniform":
        # The ideal non-member (Def. forgotten) has the posterior 1/p in every class, so the logits 0.
        return _by_logits(kind, distance, forget, torch.zeros(count, classes, dtype=torch.float64))
    if reference is None:
        raise SettingsError(
            f'target="{kind}" needs reference samples that the model was never trained on',
            field="reference",
            remedy='give reference=, hand in targets=, or use target="uniform"',
        )
    return _by_references(kind, distance, request, forget, reference.double())


def _by_logits(name: str, distance: Distance, forget: Tensor, wanted: Tensor) -> Target:
    before = float(distance(forget, wanted).mean())
    return Target(name, wanted, before > _NEGLIGIBLE, before)


def _by_references(kind: str, distance: Distance, request: Request, forget: Tensor, reference: Tensor) -> Target:
    posterior = reference.softmax(1)
    groups, chosen = _classes(kind, request, posterior, forget)
    rows, missing = class_rows(posterior, groups)
    wanted = target_logits(rows[chosen])
    unseen = sorted(set(chosen.tolist()) & set(missing))
    notes = [f"no reference falls into {len(unseen)} of the classes aimed at: the mean over all references stands in"]
    sign = 1 if kind == "class-mean" else -1  # a poisoned sample is memorised where its true class is unlikely
    before = float(distance(forget, wanted).mean())
    bound = _bound(distance, reference, groups, request.seed)
    farther = bound is None or before > bound
    known = farther or memorised(sign * margin(forget, chosen), sign * margin(reference, groups))
    return Target(kind, wanted, known, before, bound, tuple(notes) if unseen else ())


def _classes(kind: str, request: Request, posterior: Tensor, forget: Tensor) -> tuple[Tensor, Tensor]:
    """Return the class of each reference sample, and of each forget sample: predicted, or true for "corrected"."""
    if kind == "class-mean":
        return posterior.argmax(1), forget.argmax(1)
    if request.forget.labels is None or request.reference is None or request.reference.labels is None:
        raise InputError(
            'target="corrected" needs the true labels of forget and reference samples; give '
            "forget=(inputs, labels) and reference=(inputs, labels)"
        )
    return request.reference.labels.cpu(), request.forget.labels.cpu()


def _bound(distance: Distance, logits: Tensor, groups: Tensor, seed: int) -> float | None:
    """Return the mean distance of one half of the references to the targets made of the other half."""
    count = len(logits)
    if count < 2:
        return None
    order = torch.from_numpy(generator(seed, Purpose.CALIBRATION_HALVES).permutation(count))
    fitted, held = order[: count // 2], order[count // 2 :]
    rows, _ = class_rows(logits[fitted].softmax(1), groups[fitted])
    return float(distance(logits[held], target_logits(rows[groups[held]])).mean())


def _check_labels(request: Request, classes: int) -> None:
    for name in ("forget", "reference", "retain"):
        samples: Samples | None = request.get(name)
        if samples is not None:
            check_labels(samples, name, classes)


def target_logits(posterior: Tensor) -> Tensor:
    """Return log max(P, 1e-12), centred, in float64."""
    return centre(posterior.double().clamp_min(_FLOOR).log())


def class_rows(posterior: Tensor, classes: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """Average posteriors class by class.

    Parameters
    ----------
    posterior : Tensor, shape (n, p)
        The references' posteriors. They are averaged, not their logits.
    classes : Tensor, shape (n,)
        The class of each reference.

    Returns
    -------
    rows : Tensor, shape (p, p), float64
        Row c is the mean posterior of the references of class c, or of all references where class c has none.
    missing : tuple of int
        The classes without a reference.
    """
    p = posterior.shape[1]
    member = torch.nn.functional.one_hot(classes, p).double()
    counts = member.sum(0)
    sums = member.T @ posterior.double()
    overall = posterior.double().mean(0, keepdim=True)
    rows = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None], overall)
    return rows, tuple((counts == 0).nonzero()[:, 0].tolist())


def margin(logits: Tensor, classes: Tensor) -> Tensor:
    """Return z_c − logsumexp of the other logits, one number a sample: how sure the model is of class c.

    >>> margin(torch.tensor([[2.0, 0.0]]), torch.tensor([0]))
    tensor([2.])
    """
    own = torch.nn.functional.one_hot(classes, logits.shape[1]).bool()
    return logits[own] - logits.masked_fill(own, -torch.inf).logsumexp(1)


def memorised(forget: Tensor, reference: Tensor) -> bool:
    """Return whether the forget samples score higher than non-members do. Higher means memorised.

    They do not where their mean is at most the references' mean plus one standard error. That error counts up to a
    quarter of the references' spread, so that a single sample is not excused for being single. In doubt the answer is
    yes: to unlearn what was never learnt does little harm, to refuse to forget what was learnt does.

    Parameters
    ----------
    forget, reference : Tensor, shape (n,)
        Scores: the margin of the predicted class, or minus the margin of the true class for poisoned samples.
    """
    chance = min(_MAX_CHANCE, (1 / len(forget) + 1 / len(reference)) ** 0.5)
    spread = float(reference.std()) if len(reference) > 1 else 0.0
    return bool(float(forget.mean()) > float(reference.mean()) + chance * spread)


def look_like_posteriors(rows: Tensor) -> bool:
    """Return whether rows of "logits" are probabilities by mistake: all positive, all sums one, not all constant.

    >>> look_like_posteriors(torch.tensor([[0.2, 0.8]])), look_like_posteriors(torch.tensor([[-1.0, 2.0]]))
    (True, False)
    """
    sums = bool(((rows.sum(1) - 1).abs() < 1e-4).all())
    return sums and bool((rows > 0).all()) and bool((rows.amax(1) > rows.amin(1)).any())


def given(targets: object, count: int, classes: int) -> Tensor:
    """Check logits handed in sample by sample, and centre them."""
    try:
        logits = torch.as_tensor(targets).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"targets is of type {type(targets).__name__}, which is no array of numbers; expected logits of shape "
            f"({count}, {classes})"
        ) from error
    if logits.is_complex():
        raise InputError(f"targets has dtype {logits.dtype}, expected real logits; take their real part")
    logits = logits.double()
    if logits.dim() == 1:
        logits = logits.unsqueeze(1)
    if logits.dim() == 2 and logits.shape[1] == 1 and classes == 2:
        logits = torch.cat([-logits / 2, logits / 2], dim=1)
    if tuple(logits.shape) != (count, classes):
        raise InputError(
            f"targets has shape {tuple(logits.shape)}, expected ({count}, {classes}): one row of logits a forget "
            "sample, one column a class"
        )
    if not bool(torch.isfinite(logits).all()):
        raise InputError("targets holds NaN or infinite logits; clamp posteriors before taking their logarithm")
    if look_like_posteriors(logits):
        raise InputError("targets are probabilities (rows that sum to one), expected logits; give their logarithm")
    return centre(logits)


# --- claims ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """What a result with this target shows, where its numbers are good, and what it does not show: for reports."""

    target: str
    shown: str
    not_shown: str

    def to_dict(self) -> dict[str, str]:
        """Return the sentences by name."""
        return asdict(self)


_ATTACK = (
    "An attacker who compares sample by sample with models that never saw the sample can still tell that it was there."
)

_AIM = "The method aimed at this, and the numbers say how near it came:"

CLAIMS = {
    "class-mean": Claim(
        "class-mean",
        f"{_AIM} the forgotten samples are answered, on average, like samples of the same predicted class that the "
        "model never saw.",
        "They keep their predicted class, which a model that never saw them might not give them, and are more alike "
        f"than strangers are. {_ATTACK}",
    ),
    "corrected": Claim(
        "corrected",
        f"{_AIM} the forgotten samples are answered, on average, like clean samples of their true class.",
        f"That is a correction, not the answer of a model that never saw them. {_ATTACK}",
    ),
    "uniform": Claim(
        "uniform",
        f"{_AIM} the model no longer favours any class for the forgotten samples.",
        "A model that never saw them would hardly be so undecided, so the indecision itself gives them away. "
        f"{_ATTACK}",
    ),
    "out-of-fold": Claim(
        "out-of-fold",
        f"{_AIM} the model answers each forgotten sample like a reference model, which was trained in the same way "
        "without that sample, as retraining would.",
        "The reference model also lacked other rows, those of its fold, and had learnt what was forgotten since the "
        "table was made. forsaken audit measures whether attacks can tell the result from a retrained model.",
    ),
    "out-of-fold, claimed": Claim(
        "out-of-fold, claimed",
        f"{_AIM} the model answers each forgotten sample like the references that were handed in for it.",
        "Nothing here proves that the models behind these references never saw the samples: whoever handed them in "
        "says so.",
    ),
    "given": Claim(
        "given",
        f"{_AIM} the model answers each forgotten sample as the target says that was handed in for it.",
        "Nothing here proves that these targets come from a model that never saw the samples: whoever handed them in "
        "says so.",
    ),
}


def claim_of(method: str, facts: Mapping[str, object]) -> Claim:
    """Return what a run can claim: by its target, or for a method that has none by its name."""
    known = CLAIMS.get(str(facts.get("target")))
    return known or Claim(
        method,
        f"Nothing by itself: {method} has no measure of its own of how far it came.",
        f"That the model answers like one that was not trained on the samples: only a comparison with such a model "
        f"can show it. {_ATTACK}",
    )
