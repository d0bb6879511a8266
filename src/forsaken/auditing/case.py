"""What an audit looks at: the model before and after, the data, and how such a model is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import nn

from forsaken.data.samples import Samples
from forsaken.errors import InputError, SettingsError
from forsaken.metrics import margins
from forsaken.models.logits import Forward, LinearModel, as_module, called_plainly, predict_logits
from forsaken.models.train import Training
from forsaken.oracles.shadow import ShadowOracle, top_posteriors
from forsaken.sets import Sets
from forsaken.types import Array
from forsaken.unlearning.base import Unlearner

Train: TypeAlias = Callable[[Samples, int], Any]
"""Trains a model like the audited one on samples, by a seed."""


def comparison(sets: Sets, draw: np.random.Generator) -> tuple[Samples, Samples]:
    """Return samples like the forgotten ones that no model was trained on, at most as many, and the test samples.

    Where no non-members are given, test samples stand in, and the second set is the rest of them: what an attack
    judges must be no part of what it learns from.
    """
    count = len(sets.forget)
    test = sets.need("test", labels=True)
    if sets.nonmembers is not None:
        return some(sets.need("nonmembers", labels=True), count, draw), test
    order = draw.permutation(len(test))
    if len(test) <= count:
        raise InputError(
            f"test holds {len(test)} samples, and as many as are forgotten ({count}) are taken from it to compare "
            "with, so that none is left",
            field="nonmembers",
            remedy="give nonmembers=(inputs, labels), or more test samples",
        )
    return test.rows(np.sort(order[:count])), test.rows(np.sort(order[count:]))


class Seen(NamedTuple):
    """How a model answers samples.

    Attributes
    ----------
    margins : float64 array, shape (n,)
        How far it is on the side of each sample's label.
    right : bool array, shape (n,)
        Where it answers with the label.
    top : array, shape (n, at most 3)
        Its largest posteriors, sorted: what an oracle sees.
    """

    margins: Array
    right: Array
    top: Array


@dataclass(frozen=True)
class Case:
    """One model that forgot, with all that an audit may use.

    Attributes
    ----------
    before, after : Module or estimator
        The model that learnt the forgotten samples, and the one that is said to have forgotten them.
    sets : Sets
        The data.
    retrained : tuple
        Models that were trained without the forgotten samples.
    oracle : ShadowOracle or None
        Who judges membership from posteriors.
    training : Training, callable or None
        How models like these are trained.
    method : Unlearner or None
        What made the model forget, to be repeated on other originals.
    """

    before: Any
    after: Any
    sets: Sets
    retrained: tuple[Any, ...] = ()
    oracle: ShadowOracle | None = None
    training: Training | Train | None = None
    method: Unlearner | None = None
    forward: Forward | None = None
    seed: int = 0

    @property
    def trained(self) -> Training | Train:
        """How to train, where that must be known."""
        if self.training is None:
            raise SettingsError(
                "this profile trains models of its own, and training is None; give how the audited model was trained: "
                "training=forsaken.Training(build, forsaken.Recipe(...)), or a function (samples, seed) -> model"
            )
        return self.training

    @property
    def network(self) -> Training:
        """How to train, where it must be a network that is trained by a recipe."""
        if not isinstance(self.trained, Training):
            raise SettingsError("this part of the audit needs training=forsaken.Training(build, recipe)")
        return self.trained

    @property
    def device(self) -> str:
        """Where the audited model lies."""
        return next((str(weight.device) for weight in as_module(self.after).parameters()), "cpu")

    def build(self, training: Training) -> Callable[[], nn.Module]:
        """Return what builds a network that is trained here: one that is called with a tensor and returns logits."""
        return called_plainly(training.build, self.sets.forget, self.forward)

    def seen(self, model: Any, samples: Samples) -> Seen:
        """Return how a model answers labelled samples."""
        logits = predict_logits(model, Samples(samples.inputs), forward=self.forward).double().numpy()
        labels = labels_of(samples)
        if labels.max(initial=0) >= logits.shape[1]:
            raise InputError(
                f"a label is {labels.max()}, but the model has {logits.shape[1]} classes; number them from 0"
            )
        return Seen(
            np.asarray(margins(logits, labels)),
            np.asarray(logits.argmax(1) == labels),
            top_posteriors(_softmax(logits)),
        )

    def margins(self, model: Any, samples: Samples) -> Array:
        """Return how far a model is on the side of each sample's label."""
        return self.seen(model, samples).margins


def _softmax(logits: Array) -> Array:
    return torch.from_numpy(logits).softmax(1).numpy()


def labels_of(samples: Samples) -> Array:
    """Return the labels of samples that have some."""
    if samples.labels is None:
        raise InputError("the samples have no labels; give (inputs, labels)")
    return samples.labels.numpy()


def classes_of(model: Any) -> Array | None:
    """Return the labels that an estimator knows, in the order of its logits; None for a network."""
    module = as_module(model)
    return np.asarray(module.estimator.classes_) if isinstance(module, LinearModel) else None


def is_network(model: Any) -> bool:
    """Return whether a model is a network, not an estimator's linear layer."""
    return not isinstance(as_module(model), LinearModel)


def some(samples: Samples, most: int, draw: np.random.Generator) -> Samples:
    """Return at most so many samples, drawn at random and kept in order."""
    if len(samples) <= most:
        return samples
    return samples.rows(np.sort(draw.permutation(len(samples))[:most]))


def as_models(retrained: object) -> tuple[Any, ...]:
    """Return the retrained models that were handed over: none, one or several."""
    if retrained is None:
        return ()
    if isinstance(retrained, Sequence) and not isinstance(retrained, nn.Sequential):
        return tuple(retrained)
    return (retrained,)
