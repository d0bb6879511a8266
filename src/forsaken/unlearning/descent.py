"""What methods made of gradient steps share: batches in a seeded order, an optimiser, a mode, a record of the run."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from forsaken._random import Purpose, generator, torch_seed
from forsaken.data.nest import Nest, length, map_nest
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError, NonFiniteError
from forsaken.models.logits import LogitModel, differentiable
from forsaken.models.train import Training
from forsaken.result import Step
from forsaken.types import Tick
from forsaken.unlearning.base import Details, Request, Unlearner
from forsaken.unlearning.forsaken.parameters import ParameterSpace, prepared
from forsaken.unlearning.settings import number, switch, whole

STAGE = "forget"
_TICK = 20  # steps between two signs of life


@dataclass(frozen=True, kw_only=True)
class Descent(Unlearner):
    """A method made of steps of stochastic gradient descent, with the settings that all such methods have.

    Parameters
    ----------
    learning_rate : float
        The size of a step. It decides everything: tune it.
    epochs, batch_size : int
        Passes over the data; samples in a step.
    momentum, weight_decay : float
        Of the optimiser.
    freeze_batch_norm : bool
        Whether batch-norm layers keep their statistics; if not, they see each batch's own, as in training.
    """

    learning_rate: float = number(0.01, "the size of a step; it decides everything, so tune it")
    epochs: int = whole(5, "passes over the data", least=1)
    batch_size: int = whole(64, "samples in a step", least=1)
    momentum: float = number(0.9, "of the optimiser", most=1.0)
    weight_decay: float = number(5e-4, "of the optimiser")
    freeze_batch_norm: bool = switch(False, "whether batch-norm layers keep their statistics")

    def optimiser(self, weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return the optimiser of a run, SGD."""
        return torch.optim.SGD(
            list(weights), lr=self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
        )

    def hint(self, details: Details) -> str:  # noqa: ARG002 (the answer is the same however it stopped)
        """Say which setting moves the weights."""
        return f"the steps were too small to change a number; raise learning_rate (it is {self.learning_rate:g})"


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples on the model's device: inputs, labels and a teacher's logits (no columns where unknown)."""

    inputs: Nest
    labels: Tensor
    taught: Tensor

    def __len__(self) -> int:
        return length(self.inputs)

    def rows(self, at: Tensor) -> Batch:
        """Return a copy of the samples at `at`: a model that works in place changes only its own batch."""
        return Batch(map_nest(lambda leaf: leaf[at], self.inputs), self.labels[at], self.taught[at])


class DescentRun:
    """One run of a `Descent`: the optimiser of the student, its batches, and the history of the losses.

    Attributes
    ----------
    weights : dict of str to Parameter
        The student's trainable parameters, which the optimiser holds.
    optimiser : Optimizer
        The method's own; hooks may be registered with it.
    history : list of Step
        One entry an epoch.
    """

    def __init__(self, method: Descent, student: nn.Module, request: Request) -> None:
        self.adapter = LogitModel(student, request.forward)
        self.weights = trainable(student)
        self.optimiser = method.optimiser(self.weights.values())
        self.history: list[Step] = []
        self._method, self._request, self._student = method, request, student
        self._mixes = not method.freeze_batch_norm and any(isinstance(each, _BatchNorm) for each in student.modules())
        # A generator of its own: the order does not depend on how much dropout draws.
        self._order = torch.Generator().manual_seed(request.seed)
        self._told: dict[str, list[Tensor]] = {}
        self._step = self._steps = 0

    def place(self, samples: Samples, taught: Tensor | None = None) -> Batch:
        """Return samples on the model's device, with a teacher's logits for each where there are any."""
        if self._mixes and min(len(samples), self._method.batch_size) == 1:
            raise InputError(
                "batch-norm has no statistics of a single sample; give more samples and a batch_size of at least 2, or "
                "freeze_batch_norm=True"
            )
        device = self.adapter.device
        unknown = torch.empty(len(samples), 0)
        labels, logits = (unknown if each is None else each for each in (samples.labels, taught))
        return Batch(self.adapter.place(samples.inputs), labels.to(device), logits.to(device))

    def logits(self, batch: Batch) -> Tensor:
        """Return the student's logits, in the mode that it trains in."""
        return differentiable(self.adapter(batch.inputs))

    def steps(self, *sets: Batch) -> int:
        """Return how many steps an epoch over sets takes that are read side by side."""
        return max(len(self._cuts(len(data))) for data in sets)

    def batches(self, data: Batch) -> Iterator[Batch]:
        """Return one epoch of batches, in a newly drawn order."""
        order = torch.randperm(len(data), generator=self._order).to(self.adapter.device)
        for rows in torch.split(order, self._cuts(len(data))):
            yield data.rows(rows)

    def in_order(self, data: Batch) -> Iterator[Batch]:
        """Return the batches in the data's own order: what is only measured draws nothing."""
        for rows in torch.split(torch.arange(len(data), device=self.adapter.device), self._cuts(len(data))):
            yield data.rows(rows)

    def pairs(self, one: Batch, two: Batch) -> Iterator[tuple[Batch, Batch]]:
        """Return one epoch of batches of two sets side by side; the smaller set starts again when it ends."""
        first, second = self._endless(one), self._endless(two)
        for _ in range(self.steps(one, two)):
            yield next(first), next(second)

    def epochs(self, steps: int) -> Iterator[int]:
        """Return the epochs' numbers from 0; each is checked, noted and told when its steps are done.

        Parameters
        ----------
        steps : int
            How many steps all of them take.
        """
        self._steps = steps
        for epoch in range(self._method.epochs):
            start = time.perf_counter()
            self._told = {}
            yield epoch
            self._close(epoch, start)

    def step(self, objective: Tensor, **told: Tensor) -> None:
        """Take one step down the objective; `told` (distance, anchor, penalty) goes into the history."""
        self.optimiser.zero_grad(set_to_none=True)
        objective.backward()  # type: ignore[no-untyped-call]
        for weight in self.weights.values():
            if weight.grad is not None and weight.grad.is_sparse:
                weight.grad = weight.grad.to_dense()
        self.optimiser.step()
        self.note(objective=objective, **told)
        self._step += 1
        if self._step % _TICK == 0:
            self._request.progress(Tick(STAGE, self._step, self._steps))

    def note(self, **told: Tensor) -> None:
        """Note losses; an epoch's entry in the history is their mean."""
        for name, value in told.items():
            self._told.setdefault(name, []).append(value.detach())

    def details(self, facts: Mapping[str, Any] | None = None, notes: tuple[str, ...] = (), passes: int = 0) -> Details:
        """Return the report of the finished run; `passes` are those over the data that no epoch counts."""
        sound = all(bool(torch.isfinite(each).all()) for each in _floats(self._student))
        first = map_nest(lambda leaf: leaf[:1], self._request.forget.inputs)
        with torch.no_grad():
            if not sound or not bool(torch.isfinite(self.adapter(self.adapter.place(first))).all()):
                raise NonFiniteError(f"the new weights or their answers are NaN or infinite; {self._remedy()}")
        count = len(self.history)
        told = {"steps": self._step, **(facts or {})}
        return Details("iterations", count, count + passes, tuple(self.history), None, told, notes)

    def _close(self, epoch: int, start: float) -> None:
        means = {name: float(torch.stack(values).mean()) for name, values in self._told.items()}
        for name, value in means.items():
            if not -float("inf") < value < float("inf"):
                raise NonFiniteError(f"the {name} is {value} in epoch {epoch + 1}; {self._remedy()}")
        self.history.append(
            Step(
                iteration=epoch + 1,
                objective=means["objective"],
                distance=means.get("distance", 0.0),
                anchor=means.get("anchor", 0.0),
                penalty=means.get("penalty", 0.0),
                density=0.0,
                step=self._method.learning_rate,
                seconds=time.perf_counter() - start,
            )
        )
        self._request.progress(Tick(STAGE, self._step, self._steps, f"epoch {epoch + 1} of {self._method.epochs}"))

    def _remedy(self) -> str:
        return f"lower learning_rate (it is {self._method.learning_rate:g})"

    def _cuts(self, count: int) -> list[int]:
        size = self._method.batch_size
        cuts = [size] * (count // size) + ([count % size] if count % size else [])
        if self._mixes and len(cuts) > 1 and cuts[-1] == 1:  # batch-norm has no statistics of a single sample
            cuts[-2:] = [size + 1]
        return cuts

    def _endless(self, data: Batch) -> Iterator[Batch]:
        while True:
            yield from self.batches(data)


@contextmanager
def descent_run(method: Descent, student: nn.Module, request: Request) -> Iterator[DescentRun]:
    """Put the student into training mode inside the block, and into evaluation mode after it.

    Everything drawn inside follows the request's seed, and torch's own generators are given back as they were.
    """
    on_gpu = any(p.is_cuda for p in student.parameters())
    cudnn = torch.backends.cudnn
    kernels = (
        cudnn.flags(enabled=cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=cudnn.allow_tf32)
        if on_gpu
        else nullcontext()
    )
    with torch_seed(request.seed), kernels:
        try:
            student.train()
            for module in student.modules():
                if method.freeze_batch_norm and isinstance(module, _BatchNorm):
                    module.eval()
            yield DescentRun(method, student, request)
        finally:
            student.eval()
            student.zero_grad(set_to_none=True)


def trainable(student: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that may change."""
    named = dict(student.named_parameters())
    free = {name: p for name, p in named.items() if p.requires_grad}
    if not free:
        raise ModelError(
            f"the model has no trainable parameter (all {len(named)} are frozen); "
            "set requires_grad on those that may change"
        )
    for name, p in free.items():
        if p.device.type == "cpu" and p.dtype in (torch.bfloat16, torch.float16):
            raise ModelError(
                f"parameter {name} is {p.dtype} on the CPU, where such products may be slow or crash the process; "
                "give model.float(), or move the model to a GPU"
            )
    return free


def _floats(student: nn.Module) -> Iterator[Tensor]:
    for value in student.state_dict().values():
        if isinstance(value, Tensor) and value.is_floating_point():
            yield value


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Return the mean of KL(teacher ‖ student) over samples, from the logits of both.

    >>> even, sure = torch.zeros(1, 2), torch.tensor([[0.0, 0.75]]).log_softmax(1)
    >>> divergence(even, even).item()
    0.0
    >>> bool(divergence(sure, even) > 0)
    True
    """
    return kl_div(student.log_softmax(1), teacher.log_softmax(1), reduction="batchmean", log_target=True)


def loss_gradient(
    student: nn.Module, request: Request, terms: list[tuple[float, Samples]], batch_size: int
) -> dict[str, Tensor]:
    """Return the gradient of Σ factor · CE(samples) by each trainable parameter, in evaluation mode.

    Parameters
    ----------
    student, request
        The model as it is, and how it is called.
    terms : list of (factor, Samples)
        The cross-entropy is the mean over each set, so the batch size plays no role.
    batch_size : int
        Samples in a pass.
    """
    space = ParameterSpace(LogitModel(student, request.forward))
    total = {name: torch.zeros_like(part) for name, part in space.parts.items()}
    with prepared(student):
        for factor, samples in terms:
            for part in samples.batches(batch_size):
                labels = part.labels.to(space.adapter.device)  # type: ignore[union-attr]
                logits = differentiable(space.logits(space.adapter.place(part.inputs)))
                loss = cross_entropy(logits, labels, reduction="sum") * (factor / len(samples))
                found = torch.autograd.grad(loss, list(space.parts.values()), allow_unused=True)
                for name, gradient in zip(total, found, strict=True):
                    if gradient is not None:
                        total[name] += gradient.to_dense() if gradient.is_sparse else gradient
    if not all(bool(torch.isfinite(each).all()) for each in total.values()):
        raise NonFiniteError("the gradient of the cross-entropy is NaN or infinite; check the model's weights")
    return {name: each.detach() for name, each in total.items()}


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


def kernels(student: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable kernels (channels x channels x spatial axes) by name; a shared one once."""
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for prefix, module in student.named_modules():
        weight = module._parameters.get("weight") if isinstance(module, _ConvNd) else None
        if weight is not None and weight.requires_grad and id(weight) not in seen:
            seen.add(id(weight))
            found[f"{prefix}.weight".removeprefix(".")] = weight
    if not found:
        raise ModelError(
            "the model has no trainable convolution, and this method works on nothing else (n/a on dense networks); "
            "use another method"
        )
    return found
