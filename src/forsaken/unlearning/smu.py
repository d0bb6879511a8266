"""SMU: write down what the samples did to the weights while the model trains, and subtract it later."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from forsaken.data.nest import as_kinds, leaves, row_keys, shape_of
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError
from forsaken.models.logits import LinearModel, LogitModel
from forsaken.models.train import Training, steps_of, train
from forsaken.recipe import Recipe
from forsaken.types import Progress, silent
from forsaken.unlearning.base import About, Cost, Details, PreparedModel, Request, UpfrontUnlearner, labelled
from forsaken.unlearning.retrain import LossLog, learnt
from forsaken.unlearning.settings import number

_NAME = "smu_record"


@dataclass(frozen=True, kw_only=True)
class Smu(UpfrontUnlearner):
    """Subtract the recorded updates of the forgotten samples in one more epoch over the others.

    Cao and Yang, "Towards Making Systems Forget with Machine Unlearning" (2015), keep sums that a model is made of, so
    that a sample's terms can be taken out again. Liu et al. apply it to networks: while the network trains, the share
    of every update that came from the samples' gradients is summed up; one more epoch over the remaining data then
    subtracts it, an equal part in each step.

    Parameters
    ----------
    learning_rate : float, optional
        Of that epoch, the same in every step; by default the recipe's highest.

    Notes
    -----
    The samples must be known *before* the training: `prepare` takes them as ``watched=``. That is its weakness. One sum
    is kept for all of them, since a sum a sample would take the size of the model for each, so a request must name all
    watched samples at once. What the sum leaves out: the later updates by other samples were computed at weights that
    the watched ones had moved, and the running statistics of batch-norm layers have seen them. Weight decay shrinks the
    record as it shrinks the weights.

    The model that `prepare` returns is the network itself, with the record as its attribute; a copy by `copy.deepcopy`
    keeps it, a state dict does not. ``Smu()(model, forget, retain=remaining)`` needs nothing else.
    """

    about: ClassVar[About] = About(
        summary="subtract the samples' share of every training update in one more epoch over the others",
        paper='Cao and Yang, "Towards Making Systems Forget with Machine Unlearning", 2015, as Liu et al. apply it',
        needs=("forget", "retain (all of the remaining training data, with labels)"),
        upfront="it must watch the training, and be told beforehand which samples may have to be forgotten; it keeps "
        "one vector of the model's size",
    )

    learning_rate: float | None = number(None, "of the one epoch that subtracts; the recipe's by default")

    def prepare(
        self,
        training: Training,
        data: Samples,
        *,
        seed: int,
        folder: Path | None = None,  # noqa: ARG002 (the record stays with the model)
        watched: Tensor | None = None,
        progress: Progress = silent,
    ) -> PreparedModel:
        """Train as `training.run` does, bit for bit, and record the share of the `watched` rows.

        See `UpfrontUnlearner.prepare`; `watched` is needed, and no folder is.
        """
        mine = _mask(watched, len(data))
        recorder = Recorder(mine, training.recipe.clip)
        start = time.perf_counter()
        try:
            trained = train(
                training.build,
                data,
                training.recipe,
                seed=seed,
                device=training.device,
                observer=recorder,
                progress=progress,
            )
        finally:
            recorder.detach()
        record = Record(
            parts=recorder.parts(trained),
            keys=tuple(row_keys(data.rows(mine.nonzero()[:, 0]).inputs)),
            kinds=tuple(leaf.dtype for leaf in leaves(data.inputs)),
            shape=shape_of(data.inputs),
            remaining=len(data) - int(mine.sum()),
            recipe=training.recipe,
        )
        seconds = time.perf_counter() - start  # the record is on the CPU by now, so a GPU has nothing left to do
        object.__setattr__(trained, _NAME, record)
        return PreparedModel(trained, Cost(seconds, record.bytes, record.bytes))

    def run(self, student: nn.Module, request: Request) -> Details:
        """Subtract the record from `student` in one more epoch. See `Unlearner.run`."""
        record = record_of(student)
        if request.retain is None:
            raise InputError(
                "smu trains one more epoch on retain, and retain is None; give all of the remaining training data: "
                "retain=(inputs, labels)"
            )
        _check_watched(record, request.forget)
        adapter = LogitModel(student, request.forward)
        known, classes = learnt(student, request)
        retain = labelled(request, "retain", classes)
        kept = Samples(adapter.place(retain.inputs), retain.labels)
        rate = record.recipe.learning_rate if self.learning_rate is None else self.learning_rate
        recipe = replace(record.recipe, epochs=1, schedule="constant", learning_rate=rate)
        forget = Samples(adapter.place(request.forget.inputs))
        log = LossLog(kept, forget, known, recipe)
        steps = steps_of(len(retain), recipe, student)
        with _subtracting(adapter, record, steps):
            trained = log.train(
                lambda: adapter, request, device=adapter.device, stage="subtract", rate=f"learning_rate, {rate:g}"
            )
        adapter.load_state_dict(trained.state_dict())
        history = log.history()
        student.zero_grad(set_to_none=True)
        delattr(student, _NAME)
        facts = {
            "learning_rate": rate,
            "steps": steps,
            "record_norm": _norm(record.parts.values()),
            "weight_norm": _norm(value.detach() for value in student.parameters()),
            "record_bytes": record.bytes,
        }
        return Details("iterations", len(history), log.steps, history, None, facts, _notes(record, request, student))

    def hint(self, details: Details) -> str:
        """Say why nothing moved."""
        return f"the record's norm is {details.facts['record_norm']:.3g}; give a learning_rate above 0"


def record_of(model: nn.Module) -> Record:
    """Return what `Smu.prepare` left on a model, or say that it was not there when the model was trained."""
    if isinstance(model, LinearModel):
        raise ModelError(
            f"smu records the steps of a training, and {type(model.estimator).__name__} is fitted as a whole; use "
            "another method, or fit it again without the samples"
        )
    record = getattr(model, _NAME, None)
    if not isinstance(record, Record):
        raise InputError(
            "the model carries no record of its training, or one that is spent: smu must be there when the model is "
            "trained, and serves one request; train it with Smu().prepare(training, data, seed=0, watched=rows).model"
        )
    return record


@contextmanager
def _subtracting(adapter: LogitModel, record: Record, steps: int) -> Iterator[None]:
    """Let each training step of the adapter, or of a copy, begin by subtracting one part in `steps` of the record.

    The training calls the adapter once a step. The adapter may call the model, or parts of it, any number of times.
    """
    weights = dict(adapter.model.named_parameters())
    for name, part in record.parts.items():
        if name not in weights or weights[name].shape != part.shape:
            raise ModelError(f"the record has a parameter {name} of shape {tuple(part.shape)} that the model has not")
    parts = {name: part.to(weights[name]) / steps for name, part in record.parts.items()}
    taken = 0

    def subtract(called: Any, _: object) -> None:
        nonlocal taken
        if called.training:
            taken += 1
            with torch.no_grad():
                for name, part in parts.items():
                    called.model.get_parameter(name).sub_(part)

    handle = adapter.register_forward_pre_hook(subtract)
    try:
        yield
    finally:
        handle.remove()
    if taken != steps:
        raise ModelError(f"{taken} of {steps} parts of the record were taken out of the weights; report this as a bug")


def _mask(watched: Tensor | None, count: int) -> Tensor:
    """Return which of `count` rows are watched."""
    if watched is None:
        raise InputError(
            "smu must know before the training which rows may have to be forgotten, and watched is None; give "
            "watched=torch.tensor([...]) (this is the method's weakness: requests that nobody foresaw need another)"
        )
    rows = torch.as_tensor(watched).cpu()
    if rows.dim() != 1 or rows.dtype not in (torch.int64, torch.int32, torch.int16):
        raise InputError(
            f"watched is {tuple(rows.shape)} of {rows.dtype}, expected row numbers in one dimension; of a mask give "
            "mask.nonzero()[:, 0]"
        )
    low, high = (int(rows.min()), int(rows.max())) if len(rows) else (0, -1)
    if low < 0 or high >= count:
        raise InputError(f"watched runs from {low} to {high}, expected rows of the data, 0 to {count - 1}")
    mine = torch.zeros(count, dtype=torch.bool)
    mine[rows.long()] = True
    if int(mine.sum()) in (0, count):
        raise InputError(f"watched names {int(mine.sum())} of {count} rows, expected at least one, and not all of them")
    return mine


def _check_watched(record: Record, forget: Samples) -> None:
    """Make sure that what is to be forgotten is what was recorded: one sum cannot be divided."""
    if shape_of(forget.inputs) != record.shape:
        raise InputError(
            f"a forget sample has shape {shape_of(forget.inputs)}, but smu watched samples of shape {record.shape}; "
            "give the very samples that it watched"
        )
    asked, kept = Counter(row_keys(as_kinds(forget.inputs, record.kinds))), Counter(record.keys)
    strange, left = (asked - kept).total(), (kept - asked).total()
    if strange:
        raise InputError(
            f"{strange} of {len(forget)} forget samples were not watched when the model was trained, so smu knows "
            "nothing of them; leave them out, or use a method that takes any trained model"
        )
    if left:
        raise InputError(
            f"forget leaves out {left} of the {len(record.keys)} samples that smu watched; it keeps one sum of all of "
            "them, which cannot be divided: ask for all of them at once"
        )


def _norm(parts: Iterable[Tensor]) -> float:
    return math.sqrt(sum(float(part.double().square().sum()) for part in parts))


def _notes(record: Record, request: Request, student: nn.Module) -> tuple[str, ...]:
    found = ["the record is spent, and left out of the new model; the one handed over still carries it"]
    given = 0 if request.retain is None else len(request.retain)
    if given != record.remaining:
        found.append(f"retain has {given:,} samples, but {record.remaining:,} remain of the training data")
    if any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in student.modules()):
        found.append(
            "running statistics of batch-norm layers are no part of the record; the last epoch only moves them"
        )
    return tuple(found)


_CLIP_GUARD = 1e-6  # torch's clip_grad_norm_ divides by the norm plus this


@dataclass(frozen=True, slots=True)
class Record:
    """R, and what is needed to use it.

    Attributes
    ----------
    parts : dict of tensors
        The watched rows' share of each trainable parameter, by name. As sensitive as the memory itself.
    keys : tuple of bytes
        Digests of the watched rows, to know them again; not the rows.
    kinds : tuple of dtypes
        Of the inputs, from left to right.
    shape : object
        Of one input.
    remaining : int
        How many rows of the training data were not watched.
    recipe : Recipe
        How the model was trained.
    """

    parts: dict[str, Tensor]
    keys: tuple[bytes, ...]
    kinds: tuple[torch.dtype, ...]
    shape: object
    remaining: int
    recipe: Recipe

    @property
    def bytes(self) -> int:
        """What it takes to keep."""
        return sum(part.numel() * part.element_size() for part in self.parts.values()) + sum(map(len, self.keys))


class Recorder:
    """An `Observer` that keeps R while a network trains.

    The watched rows' part of a gradient is the loss's own gradient at the logits, set to zero for all other rows and
    sent back through the same graph: the same dropout, the same batch statistics, one more backward pass for batches
    with watched rows, and no more forward passes. The training itself is the same, bit for bit.

    Parameters
    ----------
    watched : bool tensor, shape (n,)
        Which rows of the training data to watch.
    clip : float, optional
        The recipe's bound on the norm of a gradient.
    """

    def __init__(self, watched: Tensor, clip: float | None = None) -> None:
        self._watched, self._clip = watched, clip
        self._total: dict[str, Tensor] = {}
        self._momentum: dict[str, Tensor] = {}
        self._steps: Counter[str] = Counter()
        self._share: dict[str, Tensor] = {}
        self._norms: list[Tensor] = []
        self._named: dict[str, nn.Parameter] = {}
        self._batch: tuple[Tensor, Tensor] | None = None
        self._handles: list[RemovableHandle] = []

    def detach(self) -> None:
        """Leave the network without a trace of having been watched."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._batch = [], None

    def before(self, network: nn.Module, rows: Tensor, logits: Tensor) -> None:
        """Have `_divide` called with the gradient of these logits, if any of the rows is watched."""
        if not self._named:
            self._watched = self._watched.to(rows.device)
            self._named = {name: weight for name, weight in network.named_parameters() if weight.requires_grad}
            # The norm before clipping is gone once the gradients are clipped, so it is noted as they come in.
            heard = self._named.values() if self._clip is not None else ()
            self._handles = [weight.register_post_accumulate_grad_hook(self._note_norm) for weight in heard]  # type: ignore[no-untyped-call]
        mine = self._watched[rows]
        if logits.requires_grad and bool(mine.any()):
            self._batch = logits, mine
            logits.register_hook(self._divide)  # type: ignore[no-untyped-call]

    def _divide(self, gradient: Tensor) -> None:
        if self._batch is None:
            return
        logits, mine = self._batch
        # Reset first: the backward pass below calls this hook once more, and the graph must not be kept alive.
        self._batch = None
        mine = mine.view(-1, *[1] * (gradient.dim() - 1))
        weights = list(self._named.values())
        found = torch.autograd.grad(logits, weights, gradient * mine, retain_graph=True, allow_unused=True)
        self._share = {name: part for name, part in zip(self._named, found, strict=True) if part is not None}

    def _note_norm(self, weight: Tensor) -> None:
        if weight.grad is not None:
            self._norms.append(torch.linalg.vector_norm(weight.grad))

    @torch.no_grad()
    def after(self, network: nn.Module, rows: Tensor, optimiser: torch.optim.Optimizer) -> None:  # noqa: ARG002
        """Let R take its part of the step that the weights have just taken."""
        if self._clip is not None and self._norms:  # the share is clipped by the factor of the whole gradient
            norm = torch.linalg.vector_norm(torch.stack(self._norms))
            factor = (self._clip / (norm + _CLIP_GUARD)).clamp(max=1.0)
            self._share = {name: part * factor for name, part in self._share.items()}
        (group,) = optimiser.param_groups
        for name, weight in self._named.items():
            if weight.grad is None:
                continue
            self._steps[name] += 1
            total = self._total.setdefault(name, torch.zeros_like(weight))
            kept = self._momentum.setdefault(name, torch.zeros_like(weight))
            gradient = total * group["weight_decay"]
            if name in self._share:
                gradient += self._share[name]
            if isinstance(optimiser, torch.optim.Adam):
                (first, second), step = group["betas"], self._steps[name]
                kept.mul_(first).add_(gradient, alpha=1 - first)
                spread = (optimiser.state[weight]["exp_avg_sq"] / (1 - second**step)).sqrt_().add_(group["eps"])
                total.addcdiv_(kept, spread, value=-group["lr"] / (1 - first**step))
            else:
                kept.mul_(group["momentum"]).add_(gradient)
                move = gradient.add_(kept, alpha=group["momentum"]) if group["nesterov"] else kept
                total.sub_(move, alpha=group["lr"])
        self._share, self._norms = {}, []

    def parts(self, network: nn.Module) -> dict[str, Tensor]:
        """Return R, one tensor a trainable parameter of the network, on the CPU; zeros where no gradient reached."""
        return {
            name: self._total.get(name, torch.zeros_like(weight)).detach().cpu().contiguous()
            for name, weight in network.named_parameters()
            if weight.requires_grad
        }
