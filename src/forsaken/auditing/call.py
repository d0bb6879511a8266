"""`forsaken.audit`: how well a model forgot, by one of three profiles."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from forsaken._checks import Problems
from forsaken._random import checked_seed
from forsaken.auditing.alarms import like_the_ensemble, no_op, over_forgetting
from forsaken.auditing.case import Case, Train, as_models, classes_of, is_network
from forsaken.auditing.ensembles import Ensembles
from forsaken.auditing.full import Full, check_count
from forsaken.auditing.held_out import HeldOut
from forsaken.auditing.matrices import BEFORE, RETRAINED
from forsaken.auditing.overlaps import overlaps
from forsaken.auditing.quick import Quick
from forsaken.auditing.references import ReferenceModels
from forsaken.auditing.relearning import relearn_time
from forsaken.auditing.result import PROFILES, Audit, Profile
from forsaken.auditing.white import LEAST, white_box
from forsaken.auditing.words import claim, cost_of
from forsaken.data.samples import Samples
from forsaken.errors import SettingsError, UnknownNameError
from forsaken.metrics import FEW
from forsaken.models.logits import Forward
from forsaken.models.train import Training
from forsaken.oracles.shadow import ShadowOracle
from forsaken.progress import reporter
from forsaken.provenance import provenance
from forsaken.references.table import References
from forsaken.sets import ROLES, Sets
from forsaken.types import Progress
from forsaken.unlearning.base import Unlearner
from forsaken.unlearning.forsaken.targets import OUT_OF_FOLD
from forsaken.unlearning.methods import build

T = TypeVar("T")

REFERENCES = 8
_PARTS = ("numbers", "warnings", "roc", "margins", "klom")


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
    models: int | None = None,
    folder: Path | str | None = None,
    engine: str = "local",
    workers: int | None = None,
    device: str | torch.device | None = None,
    forward: Forward | None = None,
    seed: int = 0,
    progress: bool | Progress = False,
) -> Audit:
    """Measure how well a model forgot. No model that is handed over is changed.

    Parameters
    ----------
    before, after : Module or estimator
        The model that learnt the samples, and the one that is said to have forgotten them.
    forget : inputs, or pair (inputs, labels)
        What was to be forgotten; with the labels that were learnt for "standard" and "full".
    profile : str
        "quick": no training; FR and CFR by `oracle`, accuracy, confidence. "standard": attacks from a few reference
        models (RMIA, LiRA), a white-box oracle, relearn time. "full": an ensemble of originals that are made to
        forget by `method`, against twice as many retrained models: U-LiRA, KLoM, the NeurIPS-2023 score.
    kept : pair (inputs, labels)
        Training samples that were to be kept and that the method did not use: all of them for "standard" and "full".
    retain : pair (inputs, labels)
        The training samples that the method used.
    test : pair (inputs, labels)
        Samples of the task that no model was trained on.
    reference : inputs, optional
        What the method was given as references ("full" gives them to it again).
    nonmembers : pair (inputs, labels), optional
        Samples like the forgotten ones that no model was trained on. Without them the test samples stand in, which
        is right where the forgotten samples are of the task themselves.
    retrained : model or sequence of models, optional
        Trained without the forgotten samples. Their values stand beside every number.
    oracle : ShadowOracle, optional
        For FR and CFR.
    training : Training, or callable (samples, seed) -> model
        How models like these are trained, for "standard" and "full". What a callable trains is not cached.
    method : str or Unlearner
        What made the model forget, with its settings, to be repeated on other originals in "full": a name of
        `forsaken.METHODS` for its defaults, or one of its classes, made.
    references : References, optional
        The table that the method was given, with the forgotten rows still in it: in "full" every original gets
        references of its own that are made in the same way, which costs up to as many more trainings as the table has
        folds, for each.
    models : int, optional
        How many references ("standard", 8) or originals ("full", 16) to train.
    folder : path, optional
        Where "full" keeps what it measured of each model, so that it can go on after a kill.
    engine, workers
        Where "full" trains: "local", "ray" or "ray://host:port"; see `forsaken.engine.fan_out`.
    device : str, optional
        Where to train; by default where the audited model lies.
    forward : callable, optional
        How to call a model whose output is not the logits themselves.
    seed : int
        Decides which models are trained, and every draw.
    progress : bool or callable
        Show a bar, or tell a function of each `Tick`.
    """
    if profile not in PROFILES:
        raise UnknownNameError("profile", profile, PROFILES)
    given = {"kept": kept, "retain": retain, "test": test, "reference": reference, "nonmembers": nonmembers}
    classes = classes_of(before)
    sets = Sets(
        Samples.read(forget, "forget", classes=classes),
        **{
            name: None if value is None else Samples.read(value, name, classes=classes) for name, value in given.items()
        },
    )
    chosen = build(method, {}) if isinstance(method, str) else method
    if chosen is not None and not isinstance(chosen, Unlearner):
        raise SettingsError(f"method is {chosen!r}, expected a name of forsaken.METHODS or one of its classes, made")
    _check(oracle, training, models, folder)
    held_out = _held_out(references, chosen, sets, profile)
    case = Case(
        before,
        after,
        sets,
        retrained=as_models(retrained),
        oracle=oracle,
        training=training,
        method=chosen,
        forward=forward,
        seed=checked_seed(seed),
    )
    place = case.device if device is None else device
    with reporter(progress) as told:
        run = _Run(case, profile, told, device=place, held_out=held_out)
        if profile == "standard":
            run.standard(REFERENCES if models is None else models)
        elif profile == "full":
            kept_in = None if folder is None else Path(folder)
            run.full(FEW if models is None else models, kept_in, engine, workers)
        return run.audit()


@dataclass
class _Run:
    """An audit that is being made."""

    case: Case
    profile: Profile
    progress: Progress
    device: str | torch.device
    held_out: HeldOut | None = None
    found: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in _PARTS})
    cost: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    margins: tuple[Any, Any] = (None, None)
    doubts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.quick = self._timed("judging", lambda: Quick(self.case))
        self.found["warnings"] += overlaps(self.case.sets)

    def standard(self, count: int) -> None:
        """Attack with reference models, with a white-box oracle, and by learning the samples again."""
        case = self.case
        references = self._timed(
            "references", lambda: ReferenceModels.fit(case, count, device=self.device, progress=self.progress)
        )
        numbers, self.found["roc"] = references.numbers()
        self.found["numbers"] += numbers
        if case.sets.nonmembers is None:
            self.found["warnings"].append(
                "test samples stand in for samples like the forgotten ones that were never seen, which is right only "
                "where the forgotten samples are like them; give nonmembers= otherwise"
            )
        if len(references.candidates) >= 2 * LEAST:
            self.found["numbers"] += self._timed("white_box", lambda: white_box(case, self.progress))
        else:
            self.found["warnings"].append(f"the white-box oracle is left out: it takes {LEAST} forgotten samples")
        if is_network(case.after) and isinstance(case.training, Training):
            self.found["numbers"] += self._timed("relearning", lambda: relearn_time(case, self.progress))
        else:
            self.found["warnings"].append("relearn time is left out: it is for networks that are trained by a recipe")
        self.cost["models"] = self.settings["references"] = count

    def full(self, count: int, folder: Path | None, engine: str, workers: int | None) -> None:
        """Attack with an ensemble of originals and twice as many retrained models."""
        case = self.case
        name, method = "unlearned", case.method
        if method is None:
            raise SettingsError(
                "the profile full repeats the unlearning on other originals, and method is None; give what made the "
                'model forget: method=forsaken.METHODS["forsaken"](...), with the settings that it was run with'
            )
        check_count(count)
        ensembles = Ensembles(
            case,
            {name: method},
            originals=count,
            retrained=2 * count,
            references={} if self.held_out is None else {name: self.held_out},
            folder=folder,
            device=self.device,
        )
        self.cost["models_of_an_earlier_run"] = ensembles.kept()
        matrices = self._timed(
            "ensemble", lambda: ensembles.measure(engine=engine, workers=workers, progress=self.progress)
        )
        full = self._timed("attacks", lambda: Full(matrices, name, seed=case.seed))
        self.found["numbers"] += full.numbers()
        self.found["warnings"] += full.warnings()
        self.found["roc"], self.found["margins"], self.found["klom"] = full.curves(), full.worst(), full.klom()
        own = {
            who: case.margins(model, case.sets.need("forget", labels=True))
            for who, model in (("before", case.before), ("after", case.after))
        }
        self.margins = own["after"], matrices.margins[RETRAINED]["forget"]
        for who, ensemble in (("before", BEFORE), ("after", name)):
            if not like_the_ensemble(own[who], matrices.margins[ensemble]["forget"]):
                self.doubts.append(
                    f"The model {who} is not like those that this training{' and method' if who == 'after' else ''} "
                    "make, so that these numbers are not about it: are recipe, method and settings the same?"
                )
        self.cost |= {
            "models": 3 * count,
            "references": ensembles.reference_count(),
            "training_seconds_a_model": float(matrices.seconds[RETRAINED].mean()),
            "unlearning_seconds_a_model": float(matrices.seconds[name].mean()),
        }
        self.settings |= {"originals": count, "retrained": 2 * count, "watched": ensembles.watched, "engine": engine}

    def audit(self) -> Audit:
        """Return what was found."""
        case, quick, found = self.case, self.quick, self.found
        far, more = over_forgetting(case, quick, *self.margins)
        alarms = (no_op(case, quick), far)
        numbers = (*found["numbers"], *more, *quick.numbers())
        method = case.method
        self.settings |= {
            "seed": case.seed,
            "method": None if method is None else {"class": type(method).__name__, **method.settings},
            "counts": {name: len(part) for name in ROLES if (part := getattr(case.sets, name)) is not None},
            "recipe": case.training.recipe.to_dict() if isinstance(case.training, Training) else None,
            "device": str(self.device),
        }
        return Audit(
            profile=self.profile,
            claim=claim(self.profile, numbers, alarms, self.doubts),
            numbers=numbers,
            alarms=alarms,
            warnings=(*self.doubts, *found["warnings"], *quick.warnings(ensemble=self.profile == "full")),
            cost={
                "told": cost_of(self.profile, self.cost.get("models", 0), str(self.cost.get("references") or "")),
                **self.cost,
                "seconds": sum(self.cost.get("seconds_by_part", {}).values()),
            },
            roc=tuple(found["roc"]),
            margins=tuple(found["margins"]),
            klom=tuple(found["klom"]),
            settings=self.settings,
            provenance=provenance(),
        )

    def _timed(self, name: str, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = work()
        self.cost.setdefault("seconds_by_part", {})[name] = time.perf_counter() - start
        return result


def _held_out(references: object, method: Unlearner | None, sets: Sets, profile: Profile) -> HeldOut | None:
    """Return how the references of other originals are made, where the profile makes any."""
    by_references = getattr(method, "target", None) == OUT_OF_FOLD
    if profile != "full" or not by_references:
        return None
    if isinstance(references, HeldOut):
        return references
    if not isinstance(references, References):
        raise SettingsError(
            'the method goes by target="out-of-fold", and every original of the ensemble needs references of its own; '
            "give references=, the table that the method was given"
        )
    return HeldOut.of(references, sets)


def _check(oracle: object, training: object, models: object, folder: object) -> None:
    """Raise every problem with these arguments at once, before any work is done."""
    found = Problems("audit")
    if models is not None:
        found.whole("models", models, least=4)
    if oracle is not None and not isinstance(oracle, ShadowOracle):
        found.add(f"oracle is a {type(oracle).__name__}, expected a ShadowOracle")
    if training is not None and not callable(training) and not isinstance(training, Training):
        found.add(
            f"training is a {type(training).__name__}, expected a Training, or a function (samples, seed) -> model"
        )
    if folder is not None and Path(str(folder)).exists() and not Path(str(folder)).is_dir():
        found.add(f"folder is {folder}, which is a file; name a folder, or one that is to be made")
    found.report()
