"""What every unlearning method is: settings in the constructor, data in the call, judgement here."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, asdict, dataclass, field, fields, is_dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, final

import numpy as np
import torch
from torch import nn

from forsaken._checks import Problems
from forsaken._html import bullets, paragraph, table
from forsaken._random import checked_seed
from forsaken.data.samples import Samples, check_labels, shuffles
from forsaken.errors import InputError, MaskError, ModelError, NothingForgottenError, SettingsError, UnknownNameError
from forsaken.models.logits import Forward, LinearModel, as_given, as_module, copied, evaluation, predict_logits
from forsaken.models.train import Training
from forsaken.models.weights import changed_share, same_state
from forsaken.progress import reporter
from forsaken.references.curvature import Curvature
from forsaken.references.table import References
from forsaken.result import Step
from forsaken.sets import Sets
from forsaken.types import Progress, silent
from forsaken.unlearning.forsaken.mask import Mask
from forsaken.unlearning.settings import check, listed
from forsaken.unlearning.stops import STOPS, checked_stops, stop_accuracy_loss, stop_strange_inputs

M = TypeVar("M")
_OF_THE_CALL = (
    "allow",
    "curvature",
    "forget",
    "forward",
    "progress",
    "reference",
    "references",
    "retain",
    "seed",
    "targets",
    "training",
)


@dataclass(frozen=True, slots=True)
class Details:
    """What a method reports of its run.

    Attributes
    ----------
    stopped : str
        Why it stopped: iterations, converged, calibrated, tolerance, line-search or not-memorised.
    iterations, evaluations : int
        Steps taken; forward and backward passes over the request's data.
    history : tuple of Step
        One entry an iteration.
    mask : Mask, optional
        What changed, where a method is made of it.
    facts : dict
        Numbers and names worth knowing, JSON-ready; `Forsaken` documents its own.
    notes : tuple of str
        Sentences for people: what was assumed or done in place of something that was not given.
    """

    stopped: str
    iterations: int
    evaluations: int
    history: tuple[Step, ...]
    mask: Mask | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Unlearned(Generic[M]):
    """The result of a request: a new model of the same class, and how it came about.

    Attributes
    ----------
    model : Module or estimator
        The model that forgot, in the mode and on the device of the one handed over.
    seconds : float
        The method's own time, targets and importance included, with synchronised clocks.
    method : str
        The method with its settings.
    density : float
        The share of the trainable parameters that changed, bit for bit.
    details : Details
        What the method reported; `mask`, `history`, `iterations`, `evaluations`, `stopped` and `notes` are short-cuts.
    """

    model: M
    seconds: float
    method: str
    details: Details
    density: float

    def __repr__(self) -> str:
        told = "".join(f"; {note}" for note in self.notes)
        changed = f"density {self.density:.4f}" if self.details.mask is None else repr(self.details.mask)
        return f"Unlearned({self.stopped}, {self.iterations} iterations, {self.seconds:.2f} s, {changed}{told})"

    def _repr_html_(self) -> str:
        """Return the result as a notebook shows it."""
        rows = [
            ("method", self.method.partition("(")[0]),
            ("stopped", self.stopped),
            ("iterations", self.iterations),
            ("seconds", f"{self.seconds:.2f}"),
            ("share of weights changed", f"{self.density:.3f}"),
        ]
        hint = "What was forgotten is not known yet: forsaken.audit(model, result.model, forget, ...) measures it."
        return table("A request to forget", rows) + bullets(self.notes) + paragraph(hint)

    @property
    def mask(self) -> Mask:
        """What changed. As sensitive as the memory itself: it can restore it."""
        if self.details.mask is None:
            raise MaskError(f"{self.method} keeps no mask, since it changes weights freely; compare the two models")
        return self.details.mask

    @property
    def history(self) -> tuple[Step, ...]:
        """One entry an iteration."""
        return self.details.history

    @property
    def iterations(self) -> int:
        """How many iterations were made."""
        return self.details.iterations

    @property
    def evaluations(self) -> int:
        """How many forward and backward passes were made."""
        return self.details.evaluations

    @property
    def stopped(self) -> str:
        """Why it stopped."""
        return self.details.stopped

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, in sentences."""
        return self.details.notes


@dataclass(frozen=True, slots=True)
class About:
    """What a method is, for lists and for those who choose one.

    Attributes
    ----------
    summary, paper : str
        What it does in a line; where it comes from.
    needs, uses : tuple of str
        The sets that it must have, and those that it uses where they are given.
    upfront : str
        What it needs from the time of training; empty for a method that takes any trained model.
    """

    summary: str
    paper: str
    needs: tuple[str, ...]
    uses: tuple[str, ...] = ()
    upfront: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Request(Sets):
    """The samples of one request (see `Sets`), and everything else that a method may use.

    Attributes
    ----------
    targets : object
        Logits for D, sample by sample, or None.
    references : References or None
        What models that never saw a sample say about it.
    curvature : Curvature or None
        By how much each direction of weights changes the answers on the training data; the references' by default.
    training : Training or None
        How the model came about, for methods that train again.
    forward : callable or None
        How to call the model.
    seed : int
        Decides everything that is drawn.
    progress : callable
        Called after each step.
    """

    targets: object = None
    references: References | None = None
    curvature: Curvature | None = None
    training: Training | None = None
    forward: Forward | None = None
    seed: int = 0
    progress: Progress = silent

    @classmethod
    def read(
        cls,
        forget: object,
        reference: object = None,
        retain: object = None,
        *,
        targets: object = None,
        references: References | None = None,
        curvature: Curvature | None = None,
        training: Training | None = None,
        forward: Forward | None = None,
        seed: int = 0,
        progress: Progress = silent,
        classes: np.ndarray[Any, Any] | None = None,
        reference_labels: bool = True,
    ) -> Request:
        """Read what a user hands over; see `Samples.read` for what it may be.

        References may be unrelated public data with labels of their own, so theirs are read only if `reference_labels`.
        """
        start = checked_seed(seed)
        if references is not None and not isinstance(references, References):
            raise InputError(
                f"references is of type {type(references).__name__}, expected a table that forsaken.References.fit "
                "made; samples that the model never saw go into reference="
            )
        if curvature is not None and not isinstance(curvature, Curvature):
            raise InputError(
                f"curvature is of type {type(curvature).__name__}, expected what forsaken.Curvature.fit made of the "
                "model and its training data"
            )
        if targets is not None and shuffles(forget):
            raise InputError(
                "targets follow the order of the forget samples, but their loader shuffles; give a loader with "
                "shuffle=False, or a Dataset"
            )

        def samples(data: object, name: str) -> Samples:
            used = reference_labels or name != "reference"
            return Samples.read(data, name, labels=used, classes=classes, seed=start)

        return cls(
            forget=samples(forget, "forget"),
            reference=None if reference is None else samples(reference, "reference"),
            retain=None if retain is None else samples(retain, "retain"),
            targets=targets,
            references=references,
            curvature=references.curvature if curvature is None and references is not None else curvature,
            training=training,
            forward=forward,
            seed=start,
            progress=progress,
        )


def class_count(student: nn.Module, request: Request) -> int:
    """Return how many classes the model has, from its answer to one sample."""
    return predict_logits(student, request.forget.rows([0]), forward=request.forward).shape[1]


def labelled(request: Request, name: str, classes: int) -> Samples:
    """Return the set of a role with labels, each of which must be one of the model's `classes`."""
    found = request.need(name, labels=True)
    check_labels(found, name, classes)
    return found


def setting_parameters(owner: type[Unlearner]) -> list[Parameter]:
    """Return what the constructor of a method takes, in the order of `Unlearner.names`, with types and defaults."""
    own = {each.name: each for each in fields(cast("Any", owner))}
    inner = {name: _entry(own[where].default, entry) for name, (where, entry) in owner.flat.items()}
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for name, each in {**own, **inner}.items()
    ]


def _entry(group: Any, name: str) -> Field[Any]:
    return next(each for each in fields(group) if each.name == name)


class _Constructor:
    """The signature of a method's constructor, for help() and completion: `Unlearner.__new__` takes any keyword."""

    def __get__(self, method: Unlearner | None, owner: type[Unlearner]) -> Signature:
        if method is not None or not is_dataclass(owner):
            raise AttributeError("__signature__")  # a method itself is called with data, as __call__ says
        return Signature(setting_parameters(owner))


class Unlearner(ABC):
    """An unlearning method. Subclasses take settings in the constructor and implement `run`."""

    __signature__ = _Constructor()
    about: ClassVar[About]
    changes_weights: ClassVar[bool] = True
    keeps_mask: ClassVar[bool] = False
    flat: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Settings inside a group that may also be given by a name of their own: the group and the entry of each."""

    @classmethod
    def names(cls) -> list[str]:
        """Return the names that the constructor takes: the settings, and the flat names of those inside groups."""
        return [*(each.name for each in fields(cls)), *cls.flat] if is_dataclass(cls) else []

    def __post_init__(self) -> None:
        """Check every setting by what its field says, and raise all problems together."""
        self.check_settings(Problems(type(self).__name__))

    def check_settings(self, found: Problems) -> None:
        """Add every wrong setting to the problems `found` so far, and raise all of them together."""
        check(self, found)
        self.problems(found)
        found.report()

    def problems(self, found: Problems) -> None:  # noqa: B027 (most methods have no such settings)
        """Note what is wrong with settings that depend on each other."""

    def __new__(cls, *_: object, **settings: object) -> Self:
        """Refuse settings that the method does not have, with the nearest that it has."""
        known = cls.names()
        for name in settings:
            if name in _OF_THE_CALL:
                raise SettingsError(f"{name} belongs to the call: {cls.__name__}(...)(model, forget, ..., {name}=...)")
            if name not in known:
                raise UnknownNameError(f"setting of {cls.__name__}", name, known)
        return super().__new__(cls)

    @abstractmethod
    def run(self, student: nn.Module, request: Request) -> Details:
        """Make `student`, a copy in evaluation mode, forget; report how it went."""

    @final
    def __call__(
        self,
        model: M,
        forget: object,
        reference: object = None,
        retain: object = None,
        *,
        targets: object = None,
        references: References | None = None,
        curvature: Curvature | None = None,
        training: Training | None = None,
        forward: Forward | None = None,
        seed: int = 0,
        progress: bool | Progress = False,
        allow: Sequence[str] = STOPS,
    ) -> Unlearned[M]:
        """Return a new model that has forgotten; the caller's model is never touched. See `forsaken.unlearn`.

        Called by itself, a method is stopped by nothing (`allow`): studies want to see damage, not to be spared it.
        """
        allowed, module = checked_stops(allow), as_module(model)
        _check_model(module)
        classes = module.estimator.classes_ if isinstance(module, LinearModel) else None
        with reporter(progress) as report:
            request = Request.read(
                forget,
                reference,
                retain,
                targets=targets,
                references=references,
                curvature=curvature,
                training=training,
                forward=forward,
                seed=seed,
                progress=report,
                classes=classes,
                reference_labels=self.needs_reference_labels(retain=retain is not None, targets=targets is not None),
            )
            beside = {name: part for name in ("retain", "reference") if (part := request.get(name)) is not None}
            stop_strange_inputs(request.forget, beside, allowed)
            student = copied(module)
            # torch loads parts of itself when they are first used; that second is not the method's.
            torch.func.grad(torch.sum)(torch.zeros(1))
            torch.func.jvp(torch.sum, (torch.zeros(1),), (torch.zeros(1),))
            with evaluation(student), stopwatch(student) as clock:
                details = self.run(student, request)
        if self.changes_weights and details.stopped != "not-memorised" and same_state(student, module):
            raise NothingForgottenError(
                f"{self!r} left every weight as it was, although the samples are memorised; {self.hint(details)}"
            )
        if request.retain is not None and request.retain.labels is not None and "accuracy-loss" not in allowed:
            labels = request.retain.labels.cpu()
            old, new = (  # of copies, since a call may change a model: a counter, or an embedding with max_norm
                (predict_logits(copied(each), request.retain, forward=forward).argmax(1) == labels).numpy()
                for each in (module, student)
            )
            stop_accuracy_loss(old, new, "retain samples")
        density = changed_share(module, student)
        return Unlearned(as_given(student), clock.seconds, repr(self), details, density)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name, JSON-ready; those inside a group by their flat names."""

        def told(value: Any) -> Any:
            if isinstance(value, Unlearner):
                return {"method": type(value).__qualname__, **value.settings}
            return getattr(value, "__qualname__", type(value).__name__) if callable(value) else value

        return {name: told(value) for name, _, value in listed(self)} if is_dataclass(self) else {}

    def needs_reference_labels(self, *, retain: bool, targets: bool) -> bool:  # noqa: ARG002 (for those who need them)
        """Return whether the references' labels are of use, given which of `retain` and `targets` there are."""
        return False

    def hint(self, details: Details) -> str:
        """Say what a user could change when nothing was forgotten."""
        return f"it stopped because of {details.stopped!r}: report this as a bug"


@dataclass(frozen=True, slots=True)
class Cost:
    """What a method pays before the first request, beyond training the model once.

    Attributes
    ----------
    seconds : float
        Of training, everything included that the method does during it.
    bytes : int
        What it keeps on disk or in memory until a request comes.
    unbounded_bytes : int
        What it would keep without a bound on the space.
    """

    seconds: float
    bytes: int
    unbounded_bytes: int

    def to_dict(self) -> dict[str, float | int]:
        """Return the numbers by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PreparedModel:
    """A model that a method trained so that it can forget later; hand `model` to the method with the request."""

    model: nn.Module
    cost: Cost


class UpfrontUnlearner(Unlearner):
    """A method that has to be there when the model is trained. `about.upfront` says what for."""

    @abstractmethod
    def prepare(
        self,
        training: Training,
        data: Samples,
        *,
        seed: int,
        folder: Path | None = None,
        watched: torch.Tensor | None = None,
        progress: Progress = silent,
    ) -> PreparedModel:
        """Train the model in the method's own run.

        Parameters
        ----------
        training : Training
            The network, the recipe and the device.
        data : Samples
            The training data, with labels.
        seed : int
            Decides everything that is drawn.
        folder : Path, optional
            Where the method may keep files; a method that needs one says so.
        watched : int tensor, optional
            Rows that may have to be forgotten, for a method that must know them beforehand.
        progress : callable
            Called after each step.
        """


class Clock:
    """Seconds that `stopwatch` measured."""

    seconds: float = 0.0


@contextmanager
def stopwatch(model: nn.Module) -> Iterator[Clock]:
    """Measure the seconds of a block, waiting for the model's device at both ends."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    clock = Clock()
    start = now()
    yield clock
    clock.seconds = now() - start


def _check_model(module: nn.Module) -> None:
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):
        raise ModelError("the model has lazy parameters that are not initialised; call it on a batch and train it")
    if any(isinstance(each, torch.jit.ScriptModule) for each in module.modules()):
        raise ModelError(
            "the model is a scripted or traced module (torch.jit), whose copies have weights that cannot be trained; "
            "give the module that it was made from, with load_state_dict(scripted.state_dict())"
        )
    devices = {p.device for p in module.parameters()}
    if len(devices) > 1:
        raise ModelError(f"the model lies on several devices ({sorted(map(str, devices))}); put it on one")
    if torch.device("meta") in devices:
        raise ModelError("the model's weights are on the meta device; load them first")
    for name, child in module.named_modules():
        if isinstance(child, nn.modules.batchnorm._BatchNorm) and not child.track_running_stats:
            raise ModelError(
                f"{name or 'the model'} is a batch-norm without running statistics: a sample's posterior would depend "
                "on the samples beside it; train with track_running_stats=True"
            )
    for name, p in module.named_parameters():
        if not bool(torch.isfinite(p).all()):
            raise InputError(f"parameter {name} holds NaN or infinite weights; load an intact checkpoint")
