"""Trainings by Hugging Face `Trainer`, Lightning and skorch, as functions that train a model like the user's again.

References and audits train models on parts of the data. Each class here wraps a training that is there already, so that
its loop need not be written again: an object is called with samples and a seed, as `forsaken.audit(training=)` takes
it, and `on(data)` is what `forsaken.References.fit` takes. Seeds decide everything that is drawn, initial weights too.
"""

from __future__ import annotations

import copy
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn
from torch.utils.data import DataLoader, Dataset

from forsaken._random import torch_seed
from forsaken.data.nest import Nest, map_nest
from forsaken.data.samples import Samples
from forsaken.errors import ForsakenError, InputError
from forsaken.types import Array


class WrappedTraining(ABC):
    """A training of another library."""

    @abstractmethod
    def run(self, samples: Samples, seed: int) -> nn.Module:
        """Train a new model on labelled samples; torch is seeded already."""

    def __call__(self, samples: Samples, seed: int) -> nn.Module:
        """Return a new model, in evaluation mode on the CPU, that was trained on labelled samples."""
        if samples.labels is None:
            raise InputError("training needs labels; give (inputs, labels)")
        with torch_seed(seed):
            return self.run(samples, seed).cpu().eval()

    def on(self, data: object) -> Callable[[Array, int | None, int], nn.Module]:
        """Return a function that trains on some rows of `data`, a pair (inputs, labels), to the training's own end."""
        samples = Samples.read(data, "the training data")

        def train(rows: Array, steps: int | None, seed: int) -> nn.Module:  # noqa: ARG001 (to its own end)
            return self(samples.rows(rows), seed)

        return train


@dataclass(frozen=True, slots=True)
class TrainerTraining(WrappedTraining):
    """A training by `transformers.Trainer` (the extra "trainer").

    Attributes
    ----------
    build : callable
        Returns a model as it was before the training, such as
        ``lambda: AutoModelForSequenceClassification.from_pretrained(folder)``.
    arguments : TrainingArguments
        As for the original training. Seeds are set, and nothing is saved, evaluated or reported.
    settings : mapping
        Further arguments of `Trainer`, such as ``{"callbacks": [...]}``.
    """

    build: Callable[[], Any]
    arguments: Any
    settings: Mapping[str, Any] = field(default_factory=dict)

    def run(self, samples: Samples, seed: int) -> nn.Module:
        """Train a new model. See `WrappedTraining.run`."""
        try:
            from transformers import Trainer  # noqa: PLC0415 (optional, and slow to import)
        except ImportError as error:
            raise _missing("transformers", "trainer") from error
        model: nn.Module = self.build()
        arguments = copy.deepcopy(self.arguments)
        arguments.seed = arguments.data_seed = seed
        arguments.save_strategy = arguments.eval_strategy = "no"
        arguments.report_to, arguments.disable_tqdm = [], True
        with tempfile.TemporaryDirectory() as place:
            arguments.output_dir = place
            rows = _Rows(samples, str(getattr(model, "main_input_name", "input_ids")))
            Trainer(model=model, args=arguments, train_dataset=rows, **self.settings).train()
        return model


@dataclass(frozen=True, slots=True)
class LightningTraining(WrappedTraining):
    """A training by Lightning (the extra "lightning").

    Attributes
    ----------
    build : callable
        Returns a new `LightningModule`, whose `forward` returns logits.
    trainer : callable
        Returns a new `lightning.Trainer`; give it ``logger=False, enable_checkpointing=False``, or every training
        writes files.
    batch_size : int
        Samples a step; every epoch has a new order.
    """

    build: Callable[[], Any]
    trainer: Callable[[], Any]
    batch_size: int

    def run(self, samples: Samples, seed: int) -> nn.Module:  # noqa: ARG002 (torch is seeded)
        """Train a new model. See `WrappedTraining.run`."""
        model: nn.Module = self.build()
        loader: DataLoader[Any] = DataLoader(_Pairs(samples), batch_size=self.batch_size, shuffle=True)
        self.trainer().fit(model, loader)
        return model


@dataclass(frozen=True, slots=True)
class SkorchTraining(WrappedTraining):
    """A training by skorch (the extra "skorch").

    Attributes
    ----------
    net : NeuralNetClassifier
        Fitted or not: it is cloned. Its module must return logits, as for ``criterion=nn.CrossEntropyLoss``; for a
        module of posteriors give ``forward=lambda model, x: model(x).log()`` to Forsaken.
    """

    net: Any

    def run(self, samples: Samples, seed: int) -> nn.Module:  # noqa: ARG002 (torch is seeded)
        """Train a new model. See `WrappedTraining.run`."""
        from sklearn.base import clone  # noqa: PLC0415

        labels = np.asarray(samples.labels)
        module: nn.Module = clone(self.net).fit(samples.inputs, labels).module_
        return module


@dataclass(frozen=True, slots=True)
class _Pairs(Dataset[Any]):
    """Samples as pairs (inputs, label)."""

    samples: Samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, at: int) -> tuple[Nest, Any]:
        inputs = map_nest(lambda leaf: leaf[at], self.samples.inputs)
        return inputs, None if self.samples.labels is None else self.samples.labels[at]


@dataclass(frozen=True, slots=True)
class _Rows(Dataset[Any]):
    """Samples as the tables that `Trainer` takes: the model's arguments by name, and "labels"."""

    samples: Samples
    name: str

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, at: int) -> dict[str, Any]:
        inputs, label = _Pairs(self.samples)[at]
        return {**(inputs if isinstance(inputs, dict) else {self.name: inputs}), "labels": label}


def _missing(library: str, extra: str) -> ForsakenError:
    return ForsakenError(f"this training needs {library}", remedy=f"pip install 'forsaken[{extra}]'")
