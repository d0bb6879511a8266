"""What an audit works on: the models before and after, the data, and how models like these are trained."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn

from forsaken.data.duplicates import content_keys
from forsaken.data.samples import Samples, check_labels
from forsaken.errors import InputError, SettingsError
from forsaken.metrics import margins
from forsaken.models.ensemble import train_many
from forsaken.models.logits import Forward, LinearModel, LogitModel, as_module, called_plainly, predict_logits
from forsaken.models.train import Training
from forsaken.oracles.shadow import ShadowOracle, top_posteriors
from forsaken.sets import Sets
from forsaken.types import Array, Progress, Tick, silent
from forsaken.unlearning.base import Unlearner

Train: TypeAlias = Callable[[Samples, int], Any]
"""A user's training function: from labelled samples and a seed to a model like the audited one."""


@dataclass(frozen=True, slots=True)
class Caveat:
    """What makes a number of the audit weaker than it looks.

    Attributes
    ----------
    problem : str
        What is weak, and why.
    field : str
        The argument of `forsaken.audit` that would help; empty where none would.
    remedy : str
        What to do, in terms of that argument.
    """

    problem: str
    field: str = ""
    remedy: str = ""

    def text(self, remedies: Mapping[str, str]) -> str:
        """Return the caveat as a sentence; `remedies` replaces the remedy of a field by the caller's own words."""
        remedy = remedies.get(self.field, self.remedy)
        return f"{self.problem}; {remedy}" if remedy else self.problem


class Answers(NamedTuple):
    """How a model answers labelled samples.

    Attributes
    ----------
    margins : float64 array, shape (n,)
        The log-odds of each sample's label (`forsaken.metrics.margins`).
    right : bool array, shape (n,)
        Whether the largest logit is that of the label.
    top : array, shape (n, at most 3)
        The largest posteriors, sorted: the features of a black-box oracle.
    """

    margins: Array
    right: Array
    top: Array


@dataclass(frozen=True)
class AuditInputs:
    """One model that forgot, with everything that an audit may use.

    Attributes
    ----------
    before, after : Module or estimator
        The model that learnt the forgotten samples, and the model that is claimed to have forgotten them.
    sets : Sets
        The data by role.
    retrained : tuple
        Models that were trained without the forgotten samples.
    oracle : ShadowOracle or None
        Judges membership from posteriors.
    training : Training, callable or None
        How models like these are trained.
    method : Unlearner or None
        The method that made the model forget; the full profile repeats it on other originals.
    curvature : bool
        Whether the method was given the curvature of the training data, and no references.
    neighbours : Samples or None
        Altered copies of the forgotten samples, with their labels.
    """

    before: Any
    after: Any
    sets: Sets
    retrained: tuple[Any, ...] = ()
    oracle: ShadowOracle | None = None
    training: Training | Train | None = None
    method: Unlearner | None = None
    curvature: bool = False
    forward: Forward | None = None
    seed: int = 0
    neighbours: Samples | None = None

    @property
    def device(self) -> str:
        """The device of the audited model."""
        return next((str(weight.device) for weight in as_module(self.after).parameters()), "cpu")

    def need_training(self) -> Training | Train:
        """Return how models are trained, or raise a `SettingsError` that asks for it."""
        if self.training is None:
            raise SettingsError(
                "this profile trains models of its own, and training is None",
                field="training",
                remedy="give how the audited model was trained: training=forsaken.Training(build, "
                "forsaken.Recipe(...)), or a function (samples, seed) -> model",
            )
        return self.training

    def build(self, training: Training) -> Callable[[], nn.Module]:
        """Return a function that builds a network which takes a tensor and returns logits."""
        return called_plainly(training.build, self.sets.forget, self.forward)

    def train(
        self,
        data: Samples,
        rows: Sequence[Any],
        seeds: Sequence[int],
        *,
        device: str | torch.device,
        stage: str,
        progress: Progress = silent,
        at_once: int | None = None,
        steps: int | None = None,
    ) -> Iterator[Any]:
        """Train models like the audited one: number i learns the samples at `rows[i]`, by `seeds[i]`.

        Networks are trained many at a time, and `steps` replaces the epochs of their recipe. A user's training
        function trains one model after the other and ignores `steps`.
        """
        training = self.need_training()
        if not isinstance(training, Training):
            for at, (part, seed) in enumerate(zip(rows, seeds, strict=True)):
                progress(Tick(stage, at, len(seeds)))
                yield training(data.rows(part), seed)
            progress(Tick(stage, len(seeds), len(seeds)))
            return
        for chunk in train_many(
            self.build(training),
            data,
            training.recipe,
            rows=rows,
            seeds=seeds,
            device=device,
            at_once=at_once,
            steps=steps,
            progress=progress,
            stage=stage,
        ):
            yield from (model.model if isinstance(model, LogitModel) else model for model in chunk)

    def answers(self, model: Any, samples: Samples) -> Answers:
        """Return how a model answers labelled samples."""
        logits = predict_logits(model, Samples(samples.inputs), forward=self.forward).double()
        labels = labels_of(samples)
        check_labels(samples, "the audited samples", logits.shape[1])
        found, top = logits.numpy(), top_posteriors(logits.softmax(1).numpy())
        return Answers(np.asarray(margins(found, labels)), np.asarray(found.argmax(1) == labels), top)

    def margins(self, model: Any, samples: Samples) -> Array:
        """Return a model's margins of labelled samples."""
        return self.answers(model, samples).margins


def comparison(sets: Sets, draw: np.random.Generator) -> tuple[Samples, Samples]:
    """Return as many samples as are forgotten that no model was trained on, and the test samples apart from them.

    Where no non-members are given, test samples take their place, and the second set is the rest of the test samples:
    the samples that an attack is judged on must not be among those that it learns from.
    """
    count = len(sets.forget)
    test = sets.need("test", labels=True)
    if sets.nonmembers is not None:
        return some(sets.need("nonmembers", labels=True), count, draw), test
    order = draw.permutation(len(test))
    if len(test) <= count:
        raise InputError(
            f"test holds {len(test)} samples, and as many as are forgotten ({count}) are taken from it to compare "
            "with, so none is left",
            field="nonmembers",
            remedy="give nonmembers=(inputs, labels), or more test samples",
        )
    return test.rows(np.sort(order[:count])), test.rows(np.sort(order[count:]))


def overlaps(sets: Sets) -> list[str]:
    """Return a warning for each pair of sets that share samples and must not.

    Real data hold copies, so a few shared samples are a warning. A forget set that lies in the remaining data as a
    whole is an error, since no model would be retrained without it.
    """
    found = []
    for name in ("kept", "retain"):
        part = sets.get(name)
        if part is None:
            continue
        same = _shared(sets.forget, part)
        if same == len(sets.forget):
            raise InputError(
                f"all {same} forget samples are in {name}, so models retrained on it would learn them; give "
                f"{name} without them"
            )
        if same:
            found.append(f"{same} of {len(sets.forget)} forget samples are also in {name}: retrained models learn them")
    for name in ("kept", "retain", "forget"):
        for other in ("test", "nonmembers"):
            part, outside = sets.get(name), sets.get(other)
            if part is not None and outside is not None and (known := _shared(outside, part)):
                found.append(f"{known} of {len(outside)} {other} samples are also in {name}: they are no non-members")
    return found


def _shared(samples: Samples, others: Samples) -> int:
    ours, theirs = content_keys(Samples(samples.inputs), Samples(others.inputs))
    known = set(theirs)
    return sum(key in known for key in ours)


def labels_of(samples: Samples) -> Array:
    """Return the labels of labelled samples as an array."""
    if samples.labels is None:
        raise InputError("the samples have no labels; give (inputs, labels)")
    return samples.labels.numpy()


def classes_of(model: Any) -> Array | None:
    """Return the class labels of an estimator, in the order of its logits; None for a network."""
    module = as_module(model)
    return np.asarray(module.estimator.classes_) if isinstance(module, LinearModel) else None


def some(samples: Samples, most: int, draw: np.random.Generator) -> Samples:
    """Return at most so many samples, drawn at random and kept in order."""
    if len(samples) <= most:
        return samples
    return samples.rows(np.sort(draw.permutation(len(samples))[:most]))
