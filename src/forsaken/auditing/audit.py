"""`forsaken.audit`: how well a model forgot, by one of three profiles."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from forsaken._checks import Problems
from forsaken._random import checked_seed
from forsaken.auditing.alarms import (
    aim_left,
    checks_of,
    like_the_ensemble,
    no_op,
    over_forgetting,
    under_forgetting,
)
from forsaken.auditing.attacks import LEAST_SAMPLES, ShadowModels, white_box
from forsaken.auditing.before_after import before_after
from forsaken.auditing.ensembles import Ensembles
from forsaken.auditing.full import NEIGHBOURS, Full
from forsaken.auditing.held_out import HeldOut
from forsaken.auditing.inputs import AuditInputs, Caveat, Train, classes_of, overlaps
from forsaken.auditing.measurements import BEFORE, RETRAINED
from forsaken.auditing.neighbours import AUTO, neighbours_of
from forsaken.auditing.quick import Quick
from forsaken.auditing.relearning import relearn_time
from forsaken.auditing.result import PROFILES, Audit, Curve, Divergence, Number, Profile, Spread
from forsaken.auditing.words import conclusion, cost_of
from forsaken.data.samples import Samples
from forsaken.errors import SettingsError, UnknownNameError
from forsaken.metrics import FEW
from forsaken.models.augment import View
from forsaken.models.logits import Forward
from forsaken.models.train import Training
from forsaken.oracles.shadow import ShadowOracle
from forsaken.progress import reporter
from forsaken.provenance import provenance
from forsaken.references.table import References
from forsaken.sets import ROLES, Sets
from forsaken.types import Array, Progress
from forsaken.unlearning.base import Unlearner
from forsaken.unlearning.forsaken.targets import OUT_OF_FOLD
from forsaken.unlearning.methods import build
from forsaken.verdict import YARDSTICKS, Evidence, decide

SHADOWS = 8  # shadow models of the profile standard


def audit(
    before: object,
    after: object,
    forget: object,
    *,
    profile: Profile = "quick",
    kept: object = None,
    retain: object = None,
    test: object = None,
    reference: object = None,
    nonmembers: object = None,
    retrained: object = None,
    oracle: ShadowOracle | None = None,
    training: Training | Train | None = None,
    method: str | Unlearner | None = None,
    references: References | HeldOut | None = None,
    curvature: bool = False,
    neighbours: str | View | None = AUTO,
    models: int | None = None,
    folder: Path | str | None = None,
    secret: bytes | None = None,
    engine: str = "local",
    workers: int | None = None,
    device: str | torch.device | None = None,
    forward: Forward | None = None,
    seed: int = 0,
    progress: bool | Progress = False,
    remedies: Mapping[str, str] | None = None,
) -> Audit:
    """Measure how well a model forgot. The models are not changed.

    Parameters
    ----------
    before, after : Module or estimator
        The model that learnt the samples, and the model that is claimed to have forgotten them.
    forget : inputs, or pair (inputs, labels)
        The samples that were to be forgotten; with the labels that were learnt for "standard" and "full".
    profile : str
        "quick": no training; FR and CFR by `oracle`, accuracy, confidence. "standard": attacks with a few shadow
        models (RMIA, LiRA), a white-box oracle, relearn time. "full": an ensemble of originals that `method` makes
        forget, against twice as many retrained models: U-LiRA, KLoM, the NeurIPS-2023 score.
    kept : pair (inputs, labels)
        Training samples that were to be kept and that the method did not use: all of them for "standard" and "full".
    retain : pair (inputs, labels)
        The training samples that the method used.
    test : pair (inputs, labels)
        Samples of the task that no model was trained on.
    reference : inputs, optional
        The reference samples that the method was given; "full" gives them to it again.
    nonmembers : pair (inputs, labels), optional
        Samples like the forgotten ones that no model was trained on. By default test samples take their place, which
        is right where the forgotten samples are of the task themselves.
    retrained : model or sequence of models, optional
        Models trained without the forgotten samples. Every number is shown beside theirs.
    oracle : ShadowOracle, optional
        For FR and CFR.
    training : Training, or callable (samples, seed) -> model
        How models like these are trained, for "standard" and "full". What a callable trains is not cached.
    method : str or Unlearner
        The method that made the model forget, which "full" repeats on other originals: a name of `forsaken.METHODS`
        for its defaults (with `references`, "forsaken" goes by them, as in `forsaken.unlearn`), or an instance with its
        settings.
    references : References, optional
        The table that the method was given, with the forgotten rows still in it. "full" makes references for every
        original in the same way, which costs up to as many trainings for each original as the table has folds.
    curvature : bool
        Whether the method was given a `Curvature` of the training data without references: "full" measures that of
        every original.
    neighbours : str, callable or None
        How altered copies of the forgotten samples are made, which are attacked as well: a name of
        `forsaken.models.augment.AUGMENTATIONS`, or a function ``(inputs, generator) -> inputs``. "auto": by the
        augmentation of the recipe; without one texts lose a fifth of their words, and other samples have no neighbours.
    models : int, optional
        How many shadow models ("standard", 8) or originals ("full", 16) to train.
    folder : path, optional
        Where "full" keeps the measurements of each model, so that it resumes after a kill.
    secret : bytes, optional
        Seals the measurements in `folder`: those that were not written with this key are refused.
    engine, workers
        Where "full" trains: "local", "processes", "ray" or "ray://host:port"; see `forsaken.engine.fan_out`.
    device : str, optional
        Where to train; by default the device of the audited model.
    forward : callable, optional
        How to call a model whose output is not the logits themselves.
    seed : int
        Decides which models are trained, and every draw.
    progress : bool or callable
        True shows a bar; a function is called with each `Tick`.
    remedies : mapping of str to str, optional
        What the warnings advise, by the name of the argument that they are about; for callers whose users do not see
        these arguments. By default the advice is in terms of the arguments.
    """
    if profile not in PROFILES:
        raise UnknownNameError("profile", profile, PROFILES)
    chosen = build(method, {}, references=references is not None) if isinstance(method, str) else method
    _check(oracle, training, chosen, models, folder)
    classes = classes_of(before)
    given = {"kept": kept, "retain": retain, "test": test, "reference": reference, "nonmembers": nonmembers}
    sets = Sets(
        Samples.read(forget, "forget", classes=classes),
        **{
            name: None if value is None else Samples.read(value, name, classes=classes) for name, value in given.items()
        },
    )
    several = isinstance(retrained, Sequence) and not isinstance(retrained, nn.Sequential)
    inputs = AuditInputs(
        before,
        after,
        sets,
        retrained=() if retrained is None else tuple(retrained) if several else (retrained,),  # type: ignore[arg-type]
        oracle=oracle,
        training=training,
        method=chosen,
        curvature=curvature,
        forward=forward,
        seed=checked_seed(seed),
        neighbours=neighbours_of(sets.forget, neighbours, training, checked_seed(seed)),
    )
    held_out = _held_out(references, chosen, sets) if profile == "full" else None
    with reporter(progress) as told:
        run = _AuditRun(inputs, told, inputs.device if device is None else device)
        if profile == "standard":
            run.standard(SHADOWS if models is None else models)
        elif profile == "full":
            place = None if folder is None else Path(folder)
            run.full(FEW if models is None else models, held_out, place, secret, engine, workers)
        return run.audit(profile, {} if remedies is None else remedies)


@dataclass
class _AuditRun:
    """An audit in progress: each part adds what it found, and `audit` puts everything together."""

    inputs: AuditInputs
    progress: Progress
    device: str | torch.device
    numbers: list[Number] = field(default_factory=list)
    caveats: list[Caveat] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    roc: list[Curve] = field(default_factory=list)
    spreads: list[Spread] = field(default_factory=list)
    klom: list[Divergence] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    margins: tuple[Array, Array] | None = None  # of the model after, and of the retrained models of an ensemble

    def __post_init__(self) -> None:
        with self._timed("judging"):
            self.quick = Quick(self.inputs)
        self.caveats += map(Caveat, overlaps(self.inputs.sets))

    def standard(self, count: int) -> None:
        """Attack with shadow models and with a white-box oracle, and measure the relearn time."""
        inputs = self.inputs
        with self._timed("references"):
            shadows = ShadowModels.fit(inputs, count, device=self.device, progress=self.progress)
        numbers, self.roc = shadows.numbers()
        self.numbers += numbers
        if inputs.sets.nonmembers is None:
            self.caveats.append(
                Caveat(
                    "test samples stand in for samples like the forgotten ones that were never seen, which is right "
                    "only where the forgotten samples are like them",
                    "nonmembers",
                    "give nonmembers= otherwise",
                )
            )
        if len(shadows.candidates) >= 2 * LEAST_SAMPLES:
            with self._timed("white_box"):
                self.numbers += white_box(inputs, self.progress)
        else:
            self.caveats.append(Caveat(f"the white-box oracle is left out: it takes {LEAST_SAMPLES} forgotten samples"))
        if isinstance(inputs.training, Training) and classes_of(inputs.after) is None:
            with self._timed("relearning"):
                self.numbers.append(relearn_time(inputs, inputs.training.recipe, self.progress))
        else:
            self.caveats.append(Caveat("relearn time is left out: it is for networks that are trained by a recipe"))
        self.cost["models"] = self.settings["references"] = count

    def full(
        self,
        count: int,
        held_out: HeldOut | None,
        folder: Path | None,
        secret: bytes | None,
        engine: str,
        workers: int | None,
    ) -> None:
        """Attack an ensemble of unlearned originals with twice as many retrained models."""
        inputs, name = self.inputs, "unlearned"
        if inputs.method is None:
            raise SettingsError(
                "the profile full repeats the unlearning on other originals, and method is None",
                field="method",
                remedy='give what made the model forget: method=forsaken.METHODS["forsaken"](...), with the settings '
                "that it was run with",
            )
        ensembles = Ensembles(
            inputs,
            {name: inputs.method},
            originals=count,
            retrained=2 * count,
            references={} if held_out is None else {name: held_out},
            besides={} if inputs.neighbours is None else {NEIGHBOURS: inputs.neighbours},
            folder=folder,
            secret=secret,
            device=self.device,
        )
        self.cost["models_of_an_earlier_run"] = 3 * count - len(ensembles.missing())
        with self._timed("ensemble"):
            matrices = ensembles.measure(engine=engine, workers=workers, progress=self.progress)
        with self._timed("attacks"):
            full = Full(matrices, name, seed=inputs.seed)
        self.numbers += full.numbers()
        self.caveats += full.caveats()
        self.roc, self.spreads, self.klom = full.curves(), full.worst(), full.klom()
        before, after = (inputs.margins(model, ensembles.views["forget"]) for model in (inputs.before, inputs.after))
        self.margins = after, matrices.margins[RETRAINED]["forget"]
        for which, margins, group in (("before", before, BEFORE), ("after", after, name)):
            if not like_the_ensemble(margins, matrices.margins[group]["forget"]):
                self.doubts.append(
                    f"The model {which} is not like those that this training{' and method' if group == name else ''} "
                    "make, so these numbers are not about it: are recipe, method and settings the same?"
                )
        self.cost |= {
            "models": 3 * count,
            "references": ensembles.reference_count(),
            "training_seconds_a_model": float(matrices.seconds[RETRAINED].mean()),
            "unlearning_seconds_a_model": float(matrices.seconds[name].mean()),
        }
        self.settings |= {"originals": count, "retrained": 2 * count, "watched": ensembles.watched, "engine": engine}

    def audit(self, profile: Profile, remedies: Mapping[str, str]) -> Audit:
        """Return what was found, with the alarms and the numbers of the quick profile."""
        inputs, quick = self.inputs, self.quick
        known = self.margins or ()
        over, within_band = over_forgetting(inputs, quick, *known)
        checks, moved = checks_of(inputs, quick, self.numbers, *known), aim_left(quick)
        idle, under = no_op(inputs, quick), under_forgetting(checks, moved, len(inputs.sets.forget))
        alarms = (idle, over, under)
        weak = self.cost.get("models", 3 * FEW) < 3 * FEW and profile == "full"
        evidence = Evidence(
            checks,
            yardstick=self._yardstick(profile),
            unchanged=idle.told if idle.raised else "",
            moved_away=moved,
            alarm=f"Too much was forgotten. {over.told}" if over.raised else "",
            doubt=" ".join(self.doubts) or (f"With fewer than {FEW} originals the attack is weak." if weak else ""),
            remedy=remedies.get("retrained", YARDSTICKS),
            records=len(inputs.sets.forget),
        )
        numbers = (*self.numbers, *within_band, *quick.numbers(), *before_after(inputs))
        caveats = [*self.caveats, *quick.caveats(ensemble=profile == "full")]
        method, training = inputs.method, inputs.training
        references = str(self.cost.get("references") or "")
        return Audit(
            profile=profile,
            claim=conclusion(profile, numbers, alarms, self.doubts),
            numbers=numbers,
            alarms=alarms,
            warnings=(*self.doubts, *(caveat.text(remedies) for caveat in caveats)),
            cost={
                "told": cost_of(profile, self.cost.get("models", 0), references),
                **self.cost,
                "seconds_by_part": self.seconds,
                "seconds": sum(self.seconds.values()),
            },
            roc=tuple(self.roc),
            margins=tuple(self.spreads),
            klom=tuple(self.klom),
            settings=self.settings
            | {
                "seed": inputs.seed,
                "method": None if method is None else {"class": type(method).__name__, **method.settings},
                "counts": {role: len(part) for role in ROLES if (part := inputs.sets.get(role)) is not None},
                "recipe": training.recipe.to_dict() if isinstance(training, Training) else None,
                "device": str(self.device),
            },
            provenance=provenance(),
            verdict=decide(evidence),
        )

    def _yardstick(self, profile: Profile) -> str:
        """Return in words which models that never saw the samples the numbers stand beside; empty where none do."""
        count = self.settings["retrained"] if profile == "full" else len(self.inputs.retrained)
        return {0: "", 1: "a retrained model"}.get(count, f"{count} retrained models")

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def _held_out(references: object, method: Unlearner | None, sets: Sets) -> HeldOut | None:
    """Return how the references of the originals are made; None for a method that uses none."""
    if method is None or (getattr(method, "target", None) != OUT_OF_FOLD and "references" not in method.about.needs):
        if method is not None and references is not None:
            raise SettingsError(
                f"references were given, and {method!r} does not go by them, so the audit would be of another method",
                field="method",
                remedy='give method="forsaken", which goes by them as forsaken.unlearn does, or leave references out',
            )
        return None
    if isinstance(references, HeldOut):
        return references
    if not isinstance(references, References):
        raise SettingsError(
            "the method goes by references, and every original of the ensemble needs references of its own",
            field="references",
            remedy="give references=, the table that the method was given",
        )
    return HeldOut.of(references, sets)


def _check(oracle: object, training: object, method: object, models: object, folder: Path | str | None) -> None:
    """Raise every problem with these arguments at once, before any work is done."""
    found = Problems("audit")
    if models is not None:
        found.whole("models", models, least=4)
    if oracle is not None and not isinstance(oracle, ShadowOracle):
        found.add(f"oracle is a {type(oracle).__name__}, expected a ShadowOracle", field="oracle")
    if training is not None and not callable(training) and not isinstance(training, Training):
        found.add(
            f"training is a {type(training).__name__}, expected a Training, or a function (samples, seed) -> model",
            field="training",
        )
    if method is not None and not isinstance(method, Unlearner):
        found.add(f"method is {method!r}, expected a name of forsaken.METHODS or one of its classes, made")
    if folder is not None and Path(folder).is_file():
        found.add(f"folder is {folder}, which is a file; name a folder, or one that is to be made", field="folder")
    found.report()
