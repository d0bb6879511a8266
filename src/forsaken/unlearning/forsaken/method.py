"""Forsaken: mask gradients that make a trained classifier forget (Liu et al., "Learn to Forget", and beyond).

With the curvature of what the model has learnt (`gauss_newton`):

    minimise ½ μᵀMμ   subject to   c(f(D)) = t                θ = θ_0 − μ

Without it (`objective`, `optimisers`), the paper's way, with anchors D_0 that hold the other answers in place:

    minimise over ν:   dist(D) + β · anchor(D_0) + λ Σ w|ν|        θ = θ_0 − s ⊙ ν,   s = (ω / mean ω + f)^(−p)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict, Unpack

import torch
from torch import Tensor, nn

from forsaken._checks import Problems
from forsaken.data.samples import Samples, join
from forsaken.errors import SettingsError
from forsaken.models.logits import LogitModel, centre, predict_logits
from forsaken.references.curvature import Curvature
from forsaken.unlearning.base import About, Details, Request, Unlearner
from forsaken.unlearning.forsaken.gauss_newton import Linearised, Metric, Solver, bring_to_targets
from forsaken.unlearning.forsaken.importance import LOSSES, Scaling, importance, scaled
from forsaken.unlearning.forsaken.mask import record
from forsaken.unlearning.forsaken.objective import DISTANCES, Anchors, Kept, Objective
from forsaken.unlearning.forsaken.optimisers import Found, Schedule, Watcher, lbfgs, owlqn
from forsaken.unlearning.forsaken.parameters import (
    Filter,
    ParameterSpace,
    choose,
    default_batch_size,
    frozen_prefix,
    input_span,
    kept_buffers,
    prepared,
    used_columns,
)
from forsaken.unlearning.forsaken.targets import (
    BY_REFERENCES,
    OUT_OF_FOLD,
    TARGETS,
    Target,
    find_target,
    needs_reference,
)
from forsaken.unlearning.settings import choice, group, grouped, number, other, whole

GAUSS_NEWTON = "gauss-newton"
OPTIMISERS: dict[str, Callable[..., Found]] = {"lbfgs": lbfgs, "owlqn": owlqn}
_PENALTY = 1e-3
_LOOSER = 4.0  # the tolerance for views, which attackers do not know, and retain samples, over that for samples
SMALL = 20  # weights for each answer that a network has learnt; with fewer the curvature alone holds too little
_SPREAD = 0.5  # distance of two models that never saw a sample, over their logits' size, where it was not measured


class Settings(TypedDict, total=False):
    """Every setting of `Forsaken` with its type, for editors and type checkers; what they mean is told there."""

    target: str
    optimiser: str
    distance: str
    penalty: float
    penalty_share: float | None
    importance: str
    scaling: Scaling | Mapping[str, Any]
    anchors: Anchors | Mapping[str, Any]
    solver: Solver | Mapping[str, Any]
    schedule: Schedule | Mapping[str, Any]
    parameters: Filter | None
    batch_size: int | None
    power: float
    floor: float
    weights: str
    anchor: float
    anchor_references: int
    damping: float
    tolerance: float
    rounds: int
    steps: int
    frozen_prefix: float
    views: int | None
    iterations: int
    history: int
    stop: str


@dataclass(frozen=True, kw_only=True, init=False)
class Forsaken(Unlearner):
    """Forget by a mask gradient. Call it with the data; see `forsaken.unlearn`.

    Parameters
    ----------
    target : {"class-mean", "corrected", "out-of-fold", "uniform"}
        Where the posteriors of the forgotten samples should go. "class-mean": the mean posterior of the references that
        the model puts into the same class. "corrected": that of the references of the sample's true class, for
        poisoned samples; references and forget samples need true labels. "out-of-fold": for each sample what a model
        answered that never saw it (``references=`` of the call). "uniform": 1/p in every class. Targets handed in
        sample by sample (``targets=`` of the call) come before it.
    optimiser : {"auto", "gauss-newton", "owlqn", "lbfgs"}
        "gauss-newton" needs the curvature of what the model has learnt (``references=`` or ``curvature=`` of the call)
        and passes the forgotten samples alone. "owlqn", orthant-wise L-BFGS, leaves exact zeros, and retain and
        reference samples hold the other answers in place. "lbfgs": torch's, the paper's. "auto": "gauss-newton" with
        a curvature, or else "owlqn".
    distance : {"logits", "kl", "kl-reverse"}
        The mean squared distance of centred logits; KL(P ‖ posterior), the paper's; KL(posterior ‖ P). "gauss-newton"
        takes "logits" alone.
    penalty : float
        λ of "owlqn" and "lbfgs". It multiplies a sum over parameters, while the distance is a mean. The result's facts
        hold λ_max, above which nothing moves, and λ / λ_max.
    penalty_share : float, optional
        λ as a share of λ_max, in place of `penalty`: λ_max differs a hundredfold between networks. The default λ is
        0.0016 and 0.0028 of λ_max in `benchmarks/results/defaults-*.json`.
    importance : {"logits", "loss"}
        How ω is measured: from the gradients of the logits' energy, or of the cross-entropy as in the paper, which
        needs labels.
    scaling : Scaling
        How ω is used: `power`, `floor`, `weights`.
    anchors : Anchors
        The samples that are held in place: `weight` (flat name `anchor`), `references` (`anchor_references`).
    solver : Solver
        Of "gauss-newton": `damping`, `tolerance`, `rounds`, `steps`, `frozen_prefix`, `views`.
    schedule : Schedule
        Of "owlqn" and "lbfgs": `iterations`, `history`; of all optimisers: `stop`.
    parameters : str, sequence of str, or callable, optional
        Which parameters may change: names or shell patterns such as "layer4.*", or ``f(name, parameter)``.
    batch_size : int, optional
        Samples in a pass; by default all rows of numbers, and of images and texts 64 on a CPU and 1,024 on a GPU.
    **flat
        A setting inside a group by its own name (`Forsaken.flat`): ``iterations=30`` is
        ``schedule=Schedule(iterations=30)``, and ``schedule={"iterations": 30}``.

    Notes
    -----
    Memory of "gauss-newton": about 17 numbers for each parameter that moves (benchmarks/memory.py), the curvature's
    factors, and the activations of up to 2,048 samples. Of the others: about (2m + 8) numbers for each parameter that
    can move (all without a penalty) and 11 for every chosen one, the activations of one batch, and for the importance
    some 256 MiB.
    To save: `history`, `parameters`, `batch_size`.
    """

    keeps_mask: ClassVar[bool] = True
    about: ClassVar[About] = About(
        summary="a mask gradient moves the forgotten samples to where non-members are",
        paper='Liu et al., "Learn to Forget: Machine Unlearning via Neuron Masking", and beyond it',
        needs=("forget", "reference (target class-mean or corrected)"),
        uses=("retain", "references (target out-of-fold)", "curvature"),
    )
    flat: ClassVar[Mapping[str, tuple[str, str]]] = {
        "power": ("scaling", "power"),
        "floor": ("scaling", "floor"),
        "weights": ("scaling", "weights"),
        "anchor": ("anchors", "weight"),
        "anchor_references": ("anchors", "references"),
        "damping": ("solver", "damping"),
        "tolerance": ("solver", "tolerance"),
        "rounds": ("solver", "rounds"),
        "steps": ("solver", "steps"),
        "frozen_prefix": ("solver", "frozen_prefix"),
        "views": ("solver", "views"),
        "iterations": ("schedule", "iterations"),
        "history": ("schedule", "history"),
        "stop": ("schedule", "stop"),
    }

    target: str = choice("class-mean", "where the answers on the forgotten samples should go", TARGETS)
    optimiser: str = choice(
        "auto", "by the curvature, with exact zeros, or the paper's", ("auto", GAUSS_NEWTON, *OPTIMISERS)
    )
    distance: str = choice("logits", "how far they are from there", DISTANCES)
    penalty: float = number(_PENALTY, "λ, how little may change")
    penalty_share: float | None = number(None, "λ as a share of the largest that moves anything")
    importance: str = choice("logits", "what the importance of a weight is measured by", LOSSES)
    scaling: Scaling = group(Scaling(), "how the importance is used")
    anchors: Anchors = group(Anchors(), "the samples that are held in place")
    solver: Solver = group(Solver(), "of gauss-newton")
    schedule: Schedule = group(Schedule(), "of owlqn and lbfgs")
    parameters: Filter | None = other(
        None, "which weights may change", "names, patterns such as layer4.*, or a function"
    )
    batch_size: int | None = whole(None, "samples in a pass; by default all, of pictures and texts fewer", least=1)

    def __init__(self, **settings: Unpack[Settings]) -> None:
        found = Problems(type(self).__name__)
        for name, value in grouped(type(self), dict(settings), self.flat, found).items():
            object.__setattr__(self, name, tuple(value) if name == "parameters" and isinstance(value, list) else value)
        self.check_settings(found)

    def problems(self, found: Problems) -> None:
        """Note settings that contradict each other."""
        stop = getattr(self.schedule, "stop", None)
        if stop == "calibrated" and self.target in (OUT_OF_FOLD, "uniform"):
            found.add(f'stop="calibrated" needs reference samples to calibrate on, and target="{self.target}" has none')
        if self.penalty_share is not None and self.penalty != _PENALTY:
            found.add(f"penalty is {self.penalty!r} beside a penalty_share; give one of them (penalty_share=None)")
        if self.optimiser == GAUSS_NEWTON and self.distance != "logits":
            found.add(f'optimiser="{GAUSS_NEWTON}" goes by distance="logits", not "{self.distance}"')

    @classmethod
    def paper(cls, **changes: Any) -> Forsaken:
        """Return the settings of the paper with `changes`: L-BFGS, λ = 10 and T = 60."""
        plain = {
            "target": "class-mean",
            "optimiser": "lbfgs",
            "distance": "kl",
            "penalty": 10.0,
            "importance": "loss",
            "power": 0.0,
            "weights": "importance-raw",
            "anchor": 0.0,
            "anchor_references": 0,
            "iterations": 60,
            "stop": "none",
        }
        return cls(**{**plain, **changes})

    @classmethod
    def out_of_fold(cls, **changes: Any) -> Forsaken:
        """Return the configuration for references, with `changes`."""
        return cls(**{"target": OUT_OF_FOLD, **changes})

    def needs_reference_labels(self, *, retain: bool, targets: bool) -> bool:
        """Return whether the target or the importance needs the references' labels."""
        return (self.target == "corrected" and not targets) or (self.importance == "loss" and not retain)

    def run(self, student: nn.Module, request: Request) -> Details:
        """Find μ and apply it to `student`. See `Unlearner.run`."""
        curvature = request.curvature
        if self.optimiser == GAUSS_NEWTON and curvature is None:
            raise SettingsError(
                f'optimiser="{GAUSS_NEWTON}" needs the curvature of what the model has learnt',
                field="curvature",
                remedy="give curvature= (made once by forsaken.Curvature.fit), or references= fitted with model=",
            )
        if curvature is not None and self.optimiser in ("auto", GAUSS_NEWTON) and self.distance == "logits":
            return self._by_curvature(student, request, curvature)
        return self._by_samples(student, request)

    def hint(self, details: Details) -> str:
        """Say which setting kept every weight as it was."""
        if details.facts.get("optimiser") == GAUSS_NEWTON:
            return "no step brought the samples nearer to their targets; let more weights change (parameters=)"
        penalty, largest = details.facts["penalty"], details.facts["penalty_max"]
        if largest is not None and penalty >= largest:
            return f"the penalty λ is {penalty:.3g} and λ_max is {largest:.3g}; give one well below it"
        if details.stopped == "line-search":
            return f"no step lowered the objective with the penalty λ = {penalty:.3g}; try a smaller one, or float64"
        return "no chosen parameter has a gradient; choose others with parameters="

    def _logits(self, student: nn.Module, request: Request, samples: Samples) -> Tensor:
        return predict_logits(student, samples, forward=request.forward, batch_size=self.batch_size or 512)

    def _target(self, student: nn.Module, request: Request) -> tuple[Target, dict[str, Any], list[str]]:
        """Return the target, and the first facts and notes of the result."""
        with kept_buffers(student):
            forget, reference = self._logits(student, request, request.forget), None
            if needs_reference(self.target, request) and request.reference is not None:
                reference = self._logits(student, request, request.reference)
        target = find_target(self.target, DISTANCES[self.distance], request, forget, reference)
        facts: dict[str, Any] = {"target": target.name, "distance_before": target.before, "calibrated": target.bound}
        notes = list(target.notes)
        if request.references is not None and target.name in BY_REFERENCES:
            facts["references"] = request.references.about()
        elif request.references is not None:
            notes.append(f"the references were not used: the target is {target.name}")
        if self.schedule.stop == "calibrated" and target.bound is None and target.memorised:
            raise SettingsError('stop="calibrated" needs a target from at least two references to calibrate on')
        return target, facts, notes

    def _unchanged(
        self, space: ParameterSpace, student: nn.Module, target: Target, facts: dict[str, Any], notes: list[str]
    ) -> Details:
        if target.name in BY_REFERENCES:
            notes.append("nothing was changed: the model answers the samples as the references do already")
        else:
            notes.append(
                "nothing was changed: on average the model knows the forget samples no better than samples that it "
                "never saw. This does not show that the samples are not memorised: references of models that never saw "
                "them (forsaken.References) or an audit can (for mislabelled samples with known true labels use "
                'target="corrected")'
            )
        mask = record(space, torch.zeros_like(space.start), student, self.settings)
        return Details("not-memorised", 0, 0, (), mask, facts | {"distance_after": target.before}, tuple(notes))

    # --- with a curvature --------------------------------------------------------------------------------------------

    def _by_curvature(self, student: nn.Module, request: Request, curvature: Curvature) -> Details:
        base, adapter, count = curvature.check(student), LogitModel(student, request.forward), len(request.forget)
        target, facts, notes = self._target(student, request)
        parts, wanted = self._with_views(request, target)
        spread = None if request.references is None else request.references.spread
        extent = float(wanted.square().mean().sqrt()) or math.sqrt(target.before)  # uniform targets are zero
        tolerance = self.solver.tolerance * (_SPREAD if spread is None else spread) * extent
        views, held = len(wanted) // count - 1, self._held(student, request, curvature, wanted.shape[1], notes)
        if held is not None:
            parts.append(held)
            with kept_buffers(student):
                wanted = torch.cat([wanted, centre(self._logits(student, request, held).double())])
        space = self._curved_space(adapter, parts, curvature)
        facts |= {
            "optimiser": GAUSS_NEWTON,
            "left": [] if space.prefix is None else sorted(space.prefix.weights),
            "views": views,
            "held": 0 if held is None else len(held),
        }
        if not target.memorised or math.sqrt(target.before) <= tolerance:
            return self._unchanged(space, student, target, facts, notes)
        with prepared(student):
            watcher = Watcher(self.schedule.stop, target.bound, space.trainable, self.solver.rounds, request.progress)
            metric = Metric(space, curvature, self.solver.damping)
            size = self.batch_size or default_batch_size(adapter, request.forget)
            passed, rounds = 0.0, 0
            # First everything, less closely; then the samples to forget alone.
            for some, times in ((parts, _LOOSER), (parts[:1], 1.0)) if len(parts) > 1 else ((parts, 1.0),):
                rows = join(some)
                placed = [space.place(part.inputs) for part in rows.batches(size)]
                linear = Linearised(space, [(inputs, space.prefix_outputs(inputs)) for inputs in placed])
                reached = bring_to_targets(
                    linear,
                    metric,
                    wanted[: len(rows)],
                    times * tolerance,
                    solver=self.solver,
                    forgotten=count,
                    watch=watcher,
                    done=rounds,
                    before=None if passed else target.before,
                )
                rounds, passed = reached.rounds, passed + linear.passed
        mask, history = record(space, space.start - space.theta, student, self.settings, base), tuple(watcher.history)
        facts |= {
            "distance_after": history[-1].distance if history else target.before,
            "tolerance": tolerance,
            "spread": spread,
            "sample_passes": passed,
            "jacobian": linear.way,
            "mask_bytes": mask.bytes,
            "model_bytes": sum(weight.nbytes for weight in student.parameters()),
        }
        return Details(reached.stopped, rounds, round(passed / len(wanted)), history, mask, facts, tuple(notes))

    def _with_views(self, request: Request, target: Target) -> tuple[list[Samples], Tensor]:
        """Return the samples to forget and, where references know of views, those; and the target logits of all."""
        forget, most = Samples(request.forget.inputs), self.solver.views
        by_references = request.references is not None and target.name in BY_REFERENCES and target.memorised
        views = request.references.views_of(request.forget) if by_references and most != 0 else None  # type: ignore[union-attr]
        if views is None:
            return [forget], target.logits
        used = len(views[0]) if most is None else min(most * len(forget), len(views[0]))
        return [forget, views[0].rows(range(used))], torch.cat([target.logits, centre(views[1][:used].double())])

    def _held(
        self, student: nn.Module, request: Request, curvature: Curvature, classes: int, notes: list[str]
    ) -> Samples | None:
        """Return the retain samples, whose answers are to stay, where the network is small for what it has learnt."""
        weights = sum(p.numel() for name, p in choose(student, self.parameters).items() if name in curvature.names)
        a_learnt_answer = weights / max(1.0, curvature.rows / curvature.share * classes)
        if a_learnt_answer >= SMALL:
            return None
        if request.retain is None:
            notes.append(
                f"the model has {a_learnt_answer:.1f} weights for each answer that it has learnt, and with fewer than "
                f"{SMALL} the curvature alone may not hold all that is to be kept; give retain= (a tenth of the "
                "training samples, say)"
            )
            return None
        return Samples(request.retain.inputs)

    def _curved_space(self, adapter: LogitModel, parts: list[Samples], curvature: Curvature) -> ParameterSpace:
        picked = {name: p for name, p in choose(adapter.model, self.parameters).items() if name in curvature.names}
        if not picked:
            raise SettingsError(
                f"no parameter that parameters= chooses has a curvature: norm layers have none (known: "
                f"{', '.join(sorted(curvature.names)[:8])})"
            )
        prefix = frozen_prefix(adapter, parts, picked, self.solver.frozen_prefix)
        if prefix is not None:
            picked = {name: p for name, p in picked.items() if name not in prefix.weights}
        first = input_span(adapter, parts, picked, curvature, self.solver.damping)
        return ParameterSpace(adapter, picked, first=first, prefix=prefix)

    # --- with anchors ------------------------------------------------------------------------------------------------

    def _by_samples(self, student: nn.Module, request: Request) -> Details:
        adapter, kept = LogitModel(student, request.forward), Kept.of(request, self.anchors)
        seen = [part for part in (request.forget, kept.anchors, kept.guard) if part is not None]
        picked = choose(student, self.parameters)
        space = ParameterSpace(adapter, picked, first=used_columns(adapter, seen, picked))
        with prepared(student):
            target, facts, notes = self._target(student, request)
            if not target.memorised:
                return self._unchanged(space, student, target, facts, notes)
            if request.references is not None and target.name in BY_REFERENCES and self.optimiser == "auto":
                notes.append(
                    "the table of references has no curvature, so retain and reference samples held the others in "
                    "place; fit it with model= for less damage in less time"
                )
            omega, flat = self._omega(space, kept.guard, request), torch.ones_like(space.start)
            spread = flat if omega is None else scaled(omega, space.chosen, self.scaling.floor)
            weights = {"none": flat, "importance": spread, "importance-raw": flat if omega is None else omega}
            scale, weight = spread**-self.scaling.power, weights[self.scaling.weights]
            notes += kept.notes(importance=omega is not None)
            objective = Objective(
                space,
                scale,
                request.forget,
                target.logits,
                kept.anchors,
                None if kept.anchors is None else centre(self._logits(student, request, kept.anchors).double()),
                distance=self.distance,
                beta=self.anchors.weight,
                batch_size=self.batch_size or default_batch_size(adapter, request.forget),
            )
            gradient = torch.empty_like(space.start)
            start = objective.begin(gradient, target.before)
            largest = float((gradient.abs() / weight).masked_fill_(gradient == 0, 0).max())
            penalty = self._penalty(largest)
            watcher = Watcher(
                self.schedule.stop, target.bound, space.trainable, self.schedule.iterations, request.progress
            )
            found = OPTIMISERS["owlqn" if self.optimiser == "auto" else self.optimiser](
                objective,
                start.value,
                gradient,
                weight * penalty,
                iterations=self.schedule.iterations,
                history=self.schedule.history,
                watch=watcher,
            )
        mu, bounded = scale * found.nu, math.isfinite(largest) and largest > 0
        mask, history = record(space, mu, student, self.settings), tuple(watcher.history)
        facts |= {
            "importance_from": "none" if omega is None else kept.source,
            "anchors": 0 if kept.anchors is None else len(kept.anchors),
            "penalty": penalty,
            "penalty_max": largest if bounded else None,
            "penalty_share": penalty / largest if bounded else None,
            "mu_max": float(mu.abs().max()),
            "weight_max": float(space.start.abs().max()),
            "distance_after": history[-1].distance if history else start.distance,
        }
        return Details(found.stopped, found.iterations, objective.evaluations, history, mask, facts, tuple(notes))

    def _omega(self, space: ParameterSpace, guard: Samples | None, request: Request) -> Tensor | None:
        if guard is None or (self.scaling.power == 0 and self.scaling.weights == "none"):
            return None
        return importance(space, guard, self.importance, request.progress, batch_size=self.batch_size)

    def _penalty(self, largest: float) -> float:
        if self.penalty_share is None:
            return self.penalty
        if not math.isfinite(largest):
            raise SettingsError(
                'penalty_share has no meaning: weights="importance-raw" has zeros, so λ_max is infinite; give penalty='
            )
        return self.penalty_share * largest
