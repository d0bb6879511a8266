"""Forsaken: mask gradients that make a trained classifier forget (Liu et al., "Learn to Forget", and beyond).

With the curvature of what the model has learnt (`gauss_newton`):

    minimise ½ μᵀMμ   subject to   c(f(D)) = t                θ = θ_0 − μ

Without it (`objective`), the paper's way, with samples that hold the others in place:

    minimise over ν:   dist(D) + β · anchor(D_0) + λ Σ w|ν|        θ = θ_0 − s ⊙ ν,   s = (ω / mean ω + f)^(−p)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from forsaken._checks import Problems
from forsaken.data.samples import Samples, join
from forsaken.errors import SettingsError
from forsaken.models.logits import LogitModel, predict_logits
from forsaken.references.curvature import Curvature
from forsaken.unlearning.base import About, Details, Request, Unlearner
from forsaken.unlearning.forsaken import aims
from forsaken.unlearning.forsaken.first_layer import first_layer
from forsaken.unlearning.forsaken.gauss_newton import Linearised, Metric, Solver
from forsaken.unlearning.forsaken.importance import LOSSES, importance, scaled
from forsaken.unlearning.forsaken.keepers import Keepers, keepers
from forsaken.unlearning.forsaken.lbfgs import lbfgs
from forsaken.unlearning.forsaken.narrow import narrowing
from forsaken.unlearning.forsaken.objective import DISTANCES, Objective
from forsaken.unlearning.forsaken.owlqn import owlqn
from forsaken.unlearning.forsaken.prefix import frozen_prefix
from forsaken.unlearning.forsaken.record import mask_of
from forsaken.unlearning.forsaken.search import Found
from forsaken.unlearning.forsaken.space import Filter, ParameterSpace, at_once, choose, prepared
from forsaken.unlearning.forsaken.stopping import STOPS, Watcher
from forsaken.unlearning.forsaken.targets import centre
from forsaken.unlearning.settings import choice, number, other, whole

GAUSS_NEWTON = "gauss-newton"
OPTIMISERS: dict[str, Callable[..., Found]] = {"lbfgs": lbfgs, "owlqn": owlqn}
_OPTIMISERS = ("auto", GAUSS_NEWTON, *OPTIMISERS)
WEIGHTS = ("importance", "importance-raw", "none")
_PENALTY = 1e-3
_VIEWS = 4.0  # how much less near to their targets views may stay than samples: attackers do not know them
_SPREAD = 0.5  # of models that never saw a sample, where nobody measured it: the share of their logits' size


@dataclass(frozen=True, kw_only=True)
class Forsaken(Unlearner):
    """Forget by a mask gradient. Call it with the data; see `forsaken.unlearn`.

    Parameters
    ----------
    target : {"class-mean", "corrected", "out-of-fold", "uniform"}
        Where the posteriors of the forgotten samples should go. "class-mean": the mean posterior of the references that
        the model puts into the same class. "corrected": that of the references of the sample's true class, for
        poisoned samples; references and forget samples come with true labels. "out-of-fold": for each sample what a
        model said that never saw it (``references=`` of the call). "uniform": 1/p in every class. Targets handed in
        sample by sample (``targets=`` of the call) come before it.
    optimiser : {"auto", "gauss-newton", "owlqn", "lbfgs"}
        "gauss-newton" needs the curvature of what the model has learnt (``references=`` or ``curvature=`` of the call)
        and passes the forgotten samples alone. "owlqn", orthant-wise L-BFGS, leaves exact zeros, and retain and
        reference samples hold the others in place. "lbfgs": torch's, the paper's. "auto": "gauss-newton" where the
        curvature is at hand, or else "owlqn".
    damping : float
        Of "gauss-newton": the share of the mean eigenvalue that is added to every eigenvalue of the curvature.
    tolerance : float
        Of "gauss-newton": how near to its target is near enough, as a share of how far two models that never saw a
        sample lie from each other. Nearer than that no attack can tell.
    rounds, steps : int
        Of "gauss-newton": the most linearisations, and the most steps of the linear solver in each.
    frozen_prefix : float
        Of "gauss-newton": the share of the parameters that may stay as they are in the layers that come first, whose
        outputs are then computed once. Small models have none to spare.
    views : int, optional
        Of "gauss-newton": how many of the views that the references know of are forgotten with each sample; by default
        all.
    distance : {"logits", "kl", "kl-reverse"}
        The mean squared distance of centred logits; KL(P ‖ posterior), the paper's; KL(posterior ‖ P). "gauss-newton"
        goes by "logits".
    penalty : float
        λ of "owlqn" and "lbfgs". It multiplies a sum over parameters, while the distance is a mean; `facts` of the
        result tell λ_max, above which nothing moves, and λ / λ_max.
    penalty_share : float, optional
        λ as a share of λ_max, in place of `penalty`: λ_max differs a hundredfold between networks. The default λ is
        0.0016 and 0.0028 of λ_max in `benchmarks/results/defaults-*.json`.
    weights : {"none", "importance", "importance-raw"}
        w, the weights of the L1 term: 1; ω / mean ω + f; ω itself, as the paper has it.
    power, floor : float
        p, the power of ω in the coordinates, where 0 switches them off; f, below which ω is not told from zero.
    anchor : float
        β, how strongly retain samples are held where they were.
    anchor_references : int
        How many references, at most, are held as well. They are non-members, so they cost no training data.
    importance : {"logits", "loss"}
        ω from the gradients of the logits' energy, or of the cross-entropy as in the paper, which needs labels.
    iterations, history : int
        The most iterations T; the pairs m that "owlqn" and "lbfgs" remember.
    stop : {"converged", "calibrated", "none"}
        Stop early when the objective settles (by less than 1e-4 of itself over 5 iterations); when the forgotten
        samples are as near to their targets as held-out references are to theirs; never.
    parameters : str, sequence of str, or callable, optional
        Which parameters may change: names or shell patterns such as "layer4.*", or ``f(name, parameter)``.
    batch_size : int, optional
        Samples in a pass; by default all rows of numbers, of pictures and texts 64 on a CPU and 1,024 on a GPU.

    Notes
    -----
    Memory of "gauss-newton": about 6 numbers for each parameter that moves, the curvature's factors, and the
    activations of up to 2,048 samples. Of the others: about (2m + 8) numbers for each parameter that can move (all
    without a penalty) and 11 for every chosen one, the activations of one batch, and for the importance some 256 MiB.
    To save: `history`, `parameters`, `batch_size`.
    """

    keeps_mask: ClassVar[bool] = True
    about: ClassVar[About] = About(
        summary="a mask gradient moves the forgotten samples to where non-members are",
        paper='Liu et al., "Learn to Forget: Machine Unlearning via Neuron Masking", and beyond it',
        needs=("forget", "reference (target class-mean or corrected)"),
        uses=("retain", "references (target out-of-fold)", "curvature"),
    )

    target: str = choice("class-mean", "where the answers on the forgotten samples should go", aims.TARGETS)
    optimiser: str = choice(
        "auto", "by the curvature, with exact zeros, or the paper's", ("auto", GAUSS_NEWTON, *OPTIMISERS)
    )
    damping: float = number(0.1, "what is added to the curvature, as a share of its mean", least=1e-6)
    tolerance: float = number(0.02, "how near is near enough, as a share of what unseen samples differ by")
    rounds: int = whole(30, "the most linearisations", least=1)
    steps: int = whole(20, "the most steps of the linear solver in each", least=1)
    frozen_prefix: float = number(0.3, "the share of the weights, in the first layers, that may stay", most=0.9)
    views: int | None = whole(None, "how many of the references' views are forgotten too; by default all")
    distance: str = choice("logits", "how far they are from there", DISTANCES)
    penalty: float = number(_PENALTY, "λ, how little may change")
    penalty_share: float | None = number(None, "λ as a share of the largest that moves anything")
    weights: str = choice("none", "weights of the L1 term", WEIGHTS)
    power: float = number(0.25, "p, the power of the importance in the coordinates")
    floor: float = number(0.01, "f, added to the importance over its mean", least=1e-6)
    anchor: float = number(1.0, "β, how strongly retain samples are held where they were")
    anchor_references: int = whole(300, "how many references, at most, are held as well")
    importance: str = choice("logits", "what the importance of a weight is measured by", LOSSES)
    iterations: int = whole(60, "T, the most iterations", least=1)
    history: int = whole(10, "m, the pairs that the optimiser remembers", least=1)
    stop: str = choice("converged", "when to stop before T", STOPS)
    parameters: Filter | None = other(
        None, "which weights may change", "names, patterns such as layer4.*, or a function"
    )
    batch_size: int | None = whole(None, "samples in a pass; by default all, of pictures and texts fewer", least=1)

    def problems(self, found: Problems) -> None:
        """Note what one setting alone does not show."""
        if self.stop == "calibrated" and self.target in (aims.OUT_OF_FOLD, "uniform"):
            found.add(f'stop="calibrated" needs reference samples to calibrate on, and target="{self.target}" has none')
        if self.penalty_share is not None and self.penalty != _PENALTY:
            found.add(f"penalty is {self.penalty!r} beside a penalty_share; give one of them (penalty_share=None)")
        if self.optimiser == GAUSS_NEWTON and self.distance != "logits":
            found.add(f'optimiser="{GAUSS_NEWTON}" goes by distance="logits", not "{self.distance}"')

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.parameters, list):
            object.__setattr__(self, "parameters", tuple(self.parameters))

    @classmethod
    def paper(cls) -> Forsaken:
        """Return the paper's configuration: Eq. g_op_problem_improved_improved with L-BFGS, λ = 10 and T = 60."""
        return cls(
            target="class-mean",
            distance="kl",
            penalty=10.0,
            weights="importance-raw",
            power=0.0,
            anchor=0.0,
            anchor_references=0,
            importance="loss",
            optimiser="lbfgs",
            iterations=60,
            stop="none",
        )

    @classmethod
    def out_of_fold(cls, **changes: Any) -> Forsaken:
        """Return the configuration for references, with `changes`."""
        return cls(**{"target": aims.OUT_OF_FOLD, **changes})

    def needs_reference_labels(self, *, retain: bool, targets: bool) -> bool:
        """Return whether the target or the importance needs the references' labels."""
        return (self.target == "corrected" and not targets) or (self.importance == "loss" and not retain)

    def run(self, student: nn.Module, request: Request) -> Details:
        """Find μ and apply it to `student`. See `Unlearner.run`."""
        adapter, curvature = LogitModel(student, request.forward), request.curvature
        if self.optimiser == GAUSS_NEWTON and curvature is None:
            raise SettingsError(
                f'optimiser="{GAUSS_NEWTON}" needs the curvature of what the model has learnt',
                field="curvature",
                remedy="give curvature= (made once by forsaken.Curvature.fit), or references= fitted with model=",
            )
        if curvature is not None and self.optimiser in ("auto", GAUSS_NEWTON) and self.distance == "logits":
            base = curvature.check(student)
            return self._by_curvature(student, adapter, request, curvature, base)
        kept = keepers(request, hold=self.anchor > 0, references=self.anchor_references)
        seen = [part for part in (request.forget, kept.anchors, kept.guard) if part is not None]
        space = ParameterSpace(adapter, self.parameters, lambda: narrowing(adapter, seen))
        with prepared(student):
            return self._by_samples(student, space, request, kept)

    def _aim(self, student: nn.Module, request: Request) -> tuple[aims.Aim, dict[str, Any], list[str]]:
        buffers = {name: buffer.clone() for name, buffer in student.named_buffers()}
        aim = aims.aim(
            self.target, DISTANCES[self.distance], request, lambda part: self._logits(student, request, part)
        )
        for name, buffer in student.named_buffers():
            buffer.copy_(buffers[name])  # a call may have written to them
        facts: dict[str, Any] = {"target": aim.name, "distance_before": aim.before, "calibrated": aim.bound}
        notes = list(aim.notes)
        if request.references is not None and aim.name in aims.BY_REFERENCES:
            facts["references"] = request.references.about()
        elif request.references is not None:
            notes.append(f"the references were not used: the target is {aim.name}")
        if self.stop == "calibrated" and aim.bound is None and aim.memorised:
            raise SettingsError('stop="calibrated" needs a target from at least two references to calibrate on')
        return aim, facts, notes

    def _logits(self, student: nn.Module, request: Request, samples: Samples) -> Tensor:
        return predict_logits(student, samples, forward=request.forward, batch_size=self.batch_size or 512)

    def _unchanged(
        self, space: ParameterSpace, student: nn.Module, aim: aims.Aim, facts: dict[str, Any], notes: list[str]
    ) -> Details:
        notes.append(
            "nothing was changed: the forget samples are no nearer to memorised than the references are (for "
            'mislabelled samples with known true labels use target="corrected")'
        )
        mask = mask_of(space, torch.zeros_like(space.start), student, self.settings)
        return Details("not-memorised", 0, 0, (), mask, facts | {"distance_after": aim.before}, tuple(notes))

    def _by_curvature(
        self, student: nn.Module, adapter: LogitModel, request: Request, curvature: Curvature, base: str
    ) -> Details:
        aim, facts, notes = self._aim(student, request)
        parts, target = [Samples(request.forget.inputs)], aim.logits
        if request.references is not None and aim.name in aims.BY_REFERENCES and aim.memorised:
            views = None if self.views == 0 else request.references.views_of(request.forget)
            used = 0 if views is None else len(views[0]) if self.views is None else self.views * len(request.forget)
            if views is not None and used:
                parts.append(views[0].rows(range(min(used, len(views[0])))))
                target = torch.cat([target, centre(views[1][:used].double())])
        named = dict(student.named_parameters())
        free = {name: weight for name, weight in named.items() if weight.requires_grad}
        chosen = frozenset(choose(free, named, self.parameters)) & curvature.names
        if not chosen:
            raise SettingsError(
                f"no parameter that parameters= chooses has a curvature: norm layers have none (known: "
                f"{', '.join(sorted(curvature.names)[:8])})"
            )
        space = ParameterSpace(
            adapter,
            lambda name, _: name in chosen,
            lambda: first_layer(adapter, parts, curvature, self.damping, chosen),
            lambda picked: frozen_prefix(adapter, parts, picked, self.frozen_prefix),
        )
        facts |= {
            "optimiser": GAUSS_NEWTON,
            "left": space.left,
            "views": len(parts) - 1 and len(target) // len(request.forget) - 1,
        }
        spread = None if request.references is None else request.references.spread
        extent = float(target.square().mean().sqrt()) or math.sqrt(aim.before)  # uniform targets are zero
        enough = self.tolerance * (_SPREAD if spread is None else spread) * extent
        with prepared(student):
            if not aim.memorised or math.sqrt(aim.before) <= enough:
                return self._unchanged(space, student, aim, facts, notes)
            watcher = Watcher(self.stop, aim.bound, space.trainable, self.rounds, request.progress)
            metric, count = Metric(space, curvature, self.damping), len(request.forget)
            solver = Solver(space, metric, self.steps, count, watcher, self.rounds, aim.before)
            size = self.batch_size or at_once(space, request.forget)
            passed, way, stopped = 0.0, "forward", "tolerance"
            # Views first, less closely, with the samples among them; then the samples alone.
            for some, share in ((parts, _VIEWS), (parts[:1], 1.0)) if len(parts) > 1 else ((parts, 1.0),):
                rows = join(some)
                placed = [space.place(part.inputs) for part in rows.batches(size)]
                linear = Linearised(space, [(inputs, space.prefix_outputs(inputs)) for inputs in placed])
                stopped = solver.run(linear, target[: len(rows)], share * enough)
                passed, way = passed + linear.passed, linear.way
            moved = space.start - space.theta
            mask, history = mask_of(space, moved, student, self.settings, base), tuple(watcher.history)
        facts |= {
            "distance_after": history[-1].distance if history else aim.before,
            "tolerance": enough,
            "spread": spread,
            "sample_passes": passed,
            "jacobian": way,
            "mask_bytes": mask.bytes,
            "model_bytes": sum(weight.nbytes for weight in student.parameters()),
        }
        return Details(stopped, solver.done, round(passed / len(target)), history, mask, facts, tuple(notes))

    def _by_samples(self, student: nn.Module, space: ParameterSpace, request: Request, kept: Keepers) -> Details:
        aim, facts, notes = self._aim(student, request)
        if not aim.memorised:
            return self._unchanged(space, student, aim, facts, notes)
        if request.references is not None and aim.name in aims.BY_REFERENCES and self.optimiser == "auto":
            notes.append(
                "the table of references has no curvature, so that retain and reference samples held the others in "
                "place; fit it with model= for less damage in less time"
            )
        omega, anchors, flat = self._omega(space, kept.guard, request), kept.anchors, torch.ones_like(space.start)
        spread = flat if omega is None else scaled(omega, space.chosen, self.floor)
        scale = spread**-self.power
        weight = {"none": flat, "importance": spread, "importance-raw": flat if omega is None else omega}[self.weights]
        facts |= {
            "importance_from": "none" if omega is None else kept.source,
            "anchors": 0 if anchors is None else len(anchors),
        }
        notes += kept.notes(importance=omega is not None)
        objective = Objective(
            space,
            scale,
            request.forget,
            aim.logits,
            anchors,
            None if anchors is None else centre(self._logits(student, request, anchors).double()),
            distance=self.distance,
            beta=self.anchor,
            batch_size=self.batch_size or at_once(space, request.forget),
        )
        gradient = torch.empty_like(space.start)
        start = objective.begin(gradient, aim.before)
        largest = float((gradient.abs() / weight).masked_fill_(gradient == 0, 0).max())
        penalty = self._penalty(largest)
        bounded = math.isfinite(largest) and largest > 0
        facts |= {
            "penalty": penalty,
            "penalty_max": largest if bounded else None,
            "penalty_share": penalty / largest if bounded else None,
        }
        watcher = Watcher(self.stop, aim.bound, space.trainable, self.iterations, request.progress)
        optimise = OPTIMISERS["owlqn" if self.optimiser == "auto" else self.optimiser]
        found = optimise(
            objective,
            start.value,
            gradient,
            weight * penalty,
            iterations=self.iterations,
            history=self.history,
            watch=watcher,
        )
        mu, start_max = scale * found.nu, float(space.start.abs().max())
        facts |= {"mu_max": float(mu.abs().max()), "weight_max": start_max}
        mask, history = mask_of(space, mu, student, self.settings), tuple(watcher.history)
        facts["distance_after"] = history[-1].distance if history else start.distance
        return Details(found.stopped, found.iterations, objective.evaluations, history, mask, facts, tuple(notes))

    def _omega(self, space: ParameterSpace, guard: Samples | None, request: Request) -> Tensor | None:
        if guard is None or (self.power == 0 and self.weights == "none"):
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

    def hint(self, details: Details) -> str:
        """Say how the penalty stands to the largest that moves anything."""
        if details.facts.get("optimiser") == GAUSS_NEWTON:
            return "no step brought the samples nearer to their targets; let more weights change (parameters=)"
        penalty, largest = details.facts["penalty"], details.facts["penalty_max"]
        if largest is not None and penalty >= largest:
            return f"the penalty λ is {penalty:.3g} and λ_max is {largest:.3g}; give one well below it"
        if details.stopped == "line-search":
            return f"no step lowered the objective with the penalty λ = {penalty:.3g}; try a smaller one, or float64"
        return "no chosen parameter has a gradient; choose others with parameters="
