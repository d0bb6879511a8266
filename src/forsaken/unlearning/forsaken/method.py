"""Forsaken: mask gradients that make a trained classifier forget (Liu et al., "Learn to Forget", and beyond).

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
from forsaken.data.samples import Samples
from forsaken.errors import SettingsError
from forsaken.models.logits import LogitModel, predict_logits
from forsaken.unlearning.base import About, Details, Unlearner
from forsaken.unlearning.forsaken import aims
from forsaken.unlearning.forsaken.importance import LOSSES, importance, scaled
from forsaken.unlearning.forsaken.keepers import SOURCES, Keepers, keepers
from forsaken.unlearning.forsaken.lbfgs import lbfgs
from forsaken.unlearning.forsaken.lead import PLENTY, leading
from forsaken.unlearning.forsaken.narrow import narrowing
from forsaken.unlearning.forsaken.objective import DISTANCES, Objective, squared_logits
from forsaken.unlearning.forsaken.owlqn import owlqn
from forsaken.unlearning.forsaken.record import mask_of
from forsaken.unlearning.forsaken.search import Found
from forsaken.unlearning.forsaken.space import Filter, ParameterSpace, at_once, prepared
from forsaken.unlearning.forsaken.stopping import CHOSEN, STOPS, Watcher
from forsaken.unlearning.forsaken.targets import centre
from forsaken.unlearning.request import Request
from forsaken.unlearning.settings import choice, number, other, switch, whole

OPTIMISERS: dict[str, Callable[..., Found]] = {"lbfgs": lbfgs, "owlqn": owlqn}
WEIGHTS = ("importance", "importance-raw", "none")
_PENALTY = 1e-3


@dataclass(frozen=True, kw_only=True)
class Forsaken(Unlearner):
    """Forget by a sparse mask gradient. Call it with the data; see `forsaken.unlearn`.

    Parameters
    ----------
    target : {"class-mean", "corrected", "out-of-fold", "uniform"}
        Where the posteriors of the forgotten samples should go. "class-mean": the mean posterior of the references that
        the model puts into the same class. "corrected": that of the references of the sample's true class, for
        poisoned samples; references and forget samples come with true labels. "out-of-fold": for each sample what a
        model said that never saw it (``references=`` of the call); `out_of_fold` has the settings for it. "uniform":
        1/p in every class. Targets handed in sample by sample (``targets=`` of the call) come before it.
    distance : {"logits", "kl", "kl-reverse"}
        The mean squared distance of centred logits; KL(P ‖ posterior), the paper's; KL(posterior ‖ P).
    penalty : float
        λ. It multiplies a sum over parameters, while the distance is a mean; `facts` of the result tell λ_max, above
        which nothing moves, and λ / λ_max.
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
    let_go : float, optional
        How far a reference may have to move before it is let go, as a share of the forget samples' distance: held by
        c (1 − exp(−d/c)), not d. To hold what rests on their memory would keep it. By default all are held.
    importance_from : {"retain", "anchors"}
        Who speaks for ω: the retain samples, or the references that are held as well.
    importance : {"logits", "loss"}
        ω from the gradients of the logits' energy, or of the cross-entropy as in the paper, which needs labels.
    optimiser : {"owlqn", "lbfgs"}
        Orthant-wise L-BFGS, which leaves exact zeros; torch's L-BFGS, the paper's.
    iterations, history : int
        The most iterations T; the pairs m that the optimiser remembers.
    relax : bool
        When 1 % of the forget samples' distance is left, or after half of the iterations, only weights that have
        moved go on, without a penalty: it has chosen them by then, and would hold the samples off. For "owlqn".
    ease : bool
        λ falls by a tenth an iteration, to 30 % at last, as long as fewer weights have moved than 20 for each answer
        that is to be reached or held, and, with `relax`, after a quarter of the iterations. For "owlqn".
    at_most : float, optional
        The share of the weights that goes on after `relax`, at most: those that have moved farthest. In a small model
        it is more, 20 for each answer: fewer would cost accuracy.
    close : float, optional
        The share of the forget samples' distance that is close enough: it stops there, whatever `stop` says.
    stop : {"converged", "calibrated", "none"}
        Stop early when the objective settles (by less than 1e-4 of itself over 5 iterations); when the forgotten
        samples are as near to their targets as held-out references are to theirs; never.
    parameters : str, sequence of str, or callable, optional
        Which parameters may change: names or shell patterns such as "layer4.*", or ``f(name, parameter)``.
    leave_first : float
        The share of those parameters that may be left as it is in the layers that come first: what these say is then
        computed once, which saves most of the time on pictures. Small models (as for `at_most`) have none to spare.
    batch_size : int, optional
        Samples in a pass; by default all rows of numbers, of pictures and texts 64 on a CPU and 1,024 on a GPU.

    Notes
    -----
    Memory: about (2m + 8) numbers for each parameter that can move (all without a penalty) and 11 for every chosen one,
    the activations of one batch, and for the importance some 256 MiB. To save: `history`, `parameters`, `batch_size`.
    """

    keeps_mask: ClassVar[bool] = True
    about: ClassVar[About] = About(
        summary="a sparse mask gradient moves the forgotten samples to where non-members are",
        paper='Liu et al., "Learn to Forget: Machine Unlearning via Neuron Masking", and beyond it',
        needs=("forget", "reference (target class-mean or corrected)"),
        uses=("retain", "references (target out-of-fold)"),
    )

    target: str = choice("class-mean", "where the answers on the forgotten samples should go", aims.TARGETS)
    distance: str = choice("logits", "how far they are from there", DISTANCES)
    penalty: float = number(_PENALTY, "λ, how little may change")
    penalty_share: float | None = number(None, "λ as a share of the largest that moves anything")
    weights: str = choice("none", "weights of the L1 term", WEIGHTS)
    power: float = number(0.25, "p, the power of the importance in the coordinates")
    floor: float = number(0.01, "f, added to the importance over its mean", least=1e-6)
    anchor: float = number(1.0, "β, how strongly retain samples are held where they were")
    anchor_references: int = whole(300, "how many references, at most, are held as well")
    let_go: float | None = number(None, "how far a reference may have to move before it is let go", least=1e-6)
    importance_from: str = choice("retain", "who speaks for the importance of a weight", SOURCES)
    importance: str = choice("logits", "what the importance of a weight is measured by", LOSSES)
    optimiser: str = choice("owlqn", "exact zeros, or the paper's", OPTIMISERS)
    iterations: int = whole(60, "T, the most iterations", least=1)
    history: int = whole(10, "m, the pairs that the optimiser remembers", least=1)
    relax: bool = switch(False, "whether the penalty ends for weights that have moved, near the targets")
    ease: bool = switch(False, "whether λ falls as long as few weights have moved")
    at_most: float | None = number(None, "the share of the weights that goes on when the penalty ends", most=1.0)
    close: float | None = number(None, "the share of their distance that is close enough", most=0.5)
    stop: str = choice("converged", "when to stop before T", STOPS)
    parameters: Filter | None = other(
        None, "which weights may change", "names, patterns such as layer4.*, or a function"
    )
    leave_first: float = number(0.0, "the share of them, in the first layers, that is left as it is", most=0.9)
    batch_size: int | None = whole(None, "samples in a pass; by default all, of pictures and texts fewer", least=1)

    def problems(self, found: Problems) -> None:
        """Note what one setting alone does not show."""
        if self.stop == "calibrated" and self.target in (aims.OUT_OF_FOLD, "uniform"):
            found.add(f'stop="calibrated" needs reference samples to calibrate on, and target="{self.target}" has none')
        if self.penalty_share is not None and self.penalty != _PENALTY:
            found.add(f"penalty is {self.penalty!r} beside a penalty_share; give one of them (penalty_share=None)")
        for name in ("relax", "ease"):
            if getattr(self, name) and self.optimiser != "owlqn":
                found.add(f'{name}=True needs optimiser="owlqn", which keeps weights at zero, not "{self.optimiser}"')
        if self.at_most is not None and not self.relax:
            found.add(f"at_most is {self.at_most!r}, and only relax=True ends the penalty: give both or none")
        if self.importance == "loss" and self.importance_from == "anchors":
            found.add('importance="loss" needs labels, and anchors have none: give importance_from="retain"')

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
        """Return the configuration for references, with `changes`; settled by benchmarks/out_of_fold.py.

        Give retain and reference samples with it: nothing else holds the other samples in place.
        """
        place = {"importance_from": "anchors", "anchor_references": 500, "power": 1.0, "floor": 1.0, "let_go": 0.1}
        search = {"iterations": 160, "relax": True, "ease": True, "close": 3e-4, "leave_first": 0.15}
        share = {} if "penalty" in changes else {"penalty_share": 5e-3}
        most = {} if changes.get("relax") is False else {"at_most": 0.1}
        return cls(**{"target": aims.OUT_OF_FOLD, **place, **search, **share, **most, **changes})

    def needs_reference_labels(self, *, retain: bool, targets: bool) -> bool:
        """Return whether the target or the importance needs the references' labels."""
        return (self.target == "corrected" and not targets) or (self.importance == "loss" and not retain)

    def run(self, student: nn.Module, request: Request) -> Details:
        """Find μ and apply it to `student`. See `Unlearner.run`."""
        adapter = LogitModel(student, request.forward)
        kept = keepers(
            request,
            hold=self.anchor > 0,
            references=self.anchor_references,
            importance_from=self.importance_from,
        )
        seen = [part for part in (request.forget, kept.anchors) if part is not None]
        looked_at = seen if kept.guard is None else [*seen, kept.guard]
        space = ParameterSpace(
            adapter,
            self.parameters,
            lambda: narrowing(adapter, looked_at),
            lambda picked: leading(adapter, seen, picked, self.leave_first),
        )
        with prepared(student):
            return self._run(student, space, request, kept)

    def _run(self, student: nn.Module, space: ParameterSpace, request: Request, kept: Keepers) -> Details:
        def logits(samples: Samples) -> Tensor:
            return predict_logits(student, samples, forward=request.forward, batch_size=self.batch_size or 512)

        aim = aims.aim(self.target, DISTANCES[self.distance], request, logits)
        facts: dict[str, Any] = {"target": aim.name, "distance_before": aim.before, "calibrated": aim.bound}
        notes = list(aim.notes)
        if request.references is not None and aim.name in aims.BY_REFERENCES:
            facts["references"] = request.references.about()
        elif request.references is not None:
            notes.append(f"the references were not used: the target is {aim.name}")
        if not aim.memorised:
            notes.append(
                "nothing was changed: the forget samples are no nearer to memorised than the references are (for "
                'mislabelled samples with known true labels use target="corrected")'
            )
            mask = mask_of(space, torch.zeros_like(space.start), student, self.settings)
            return Details("not-memorised", 0, 0, (), mask, facts | {"distance_after": aim.before}, tuple(notes))

        if self.stop == "calibrated" and aim.bound is None:
            raise SettingsError('stop="calibrated" needs a target from at least two references to calibrate on')
        omega, anchors, flat = self._omega(space, kept.guard, request), kept.anchors, torch.ones_like(space.start)
        spread = flat if omega is None else scaled(omega, space.chosen, self.floor)
        scale = spread**-self.power
        weight = {"none": flat, "importance": spread, "importance-raw": flat if omega is None else omega}[self.weights]
        facts |= {
            "importance_from": "none" if omega is None else kept.source,
            "anchors": 0 if anchors is None else len(anchors),
            "left": space.left,
        }
        notes += kept.notes(importance=omega is not None)
        objective = Objective(
            space,
            scale,
            request.forget,
            aim.logits,
            anchors,
            None if anchors is None else centre(logits(anchors).double()),
            distance=self.distance,
            beta=self.anchor,
            batch_size=self.batch_size or at_once(space, request.forget),
            retained=kept.retained,
        )
        gradient = torch.empty_like(space.start)
        start = objective.begin(gradient, aim.before)
        if self.let_go is not None:  # from here on: anchors at rest, as they are now, weigh nothing either way
            way = float(squared_logits(logits(request.forget).double(), aim.logits).mean())
            objective.let_go = self.let_go * way if way > 0 else None
        largest = float((gradient.abs() / weight).masked_fill_(gradient == 0, 0).max())
        penalty = self._penalty(largest)
        bounded = math.isfinite(largest) and largest > 0
        facts |= {
            "penalty": penalty,
            "penalty_max": largest if bounded else None,
            "penalty_share": penalty / largest if bounded else None,
        }
        watcher = Watcher(
            self.stop,
            aim.bound,
            space.trainable,
            self.iterations,
            request.progress,
            close=None if self.close is None else self.close * start.distance,
            chosen=CHOSEN * start.distance if self.relax else None,
        )
        most = None if self.at_most is None else max(int(self.at_most * space.trainable), PLENTY * objective.answers)
        found = OPTIMISERS[self.optimiser](
            objective,
            start.value,
            gradient,
            weight * penalty,
            iterations=self.iterations,
            history=self.history,
            watch=watcher,
            **({"relax": math.ceil(self.iterations / 2), "most": most} if self.relax else {}),
            **({"plenty": PLENTY * objective.answers} if self.ease else {}),
        )
        mu, start_max = scale * found.nu, float(space.start.abs().max())
        facts |= {"mu_max": float(mu.abs().max()), "weight_max": start_max}
        facts |= {"relaxed_at": found.relaxed, "eased": found.eased}
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
        penalty, largest = details.facts["penalty"], details.facts["penalty_max"]
        if largest is not None and penalty >= largest:
            return f"the penalty λ is {penalty:.3g} and λ_max is {largest:.3g}; give one well below it"
        if details.stopped == "line-search":
            return f"no step lowered the objective with the penalty λ = {penalty:.3g}; try a smaller one, or float64"
        return "no chosen parameter has a gradient; choose others with parameters="
