"""Trainings of other libraries: by the seed, on the rows alone, and good for references and audits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import forsaken
from forsaken.data.samples import Samples
from forsaken.errors import InputError
from forsaken.integrations.trainings import LightningTraining, SkorchTraining, TrainerTraining, WrappedTraining
from forsaken.models.weights import fingerprint

DRAW = torch.Generator().manual_seed(0)
LABELS = torch.arange(48) % 3
INPUTS = torch.randn(3, 6, generator=DRAW)[LABELS] * 2 + torch.randn(48, 6, generator=DRAW)
TOKENS = {"input_ids": torch.randint(1, 40, (48, 5), generator=DRAW)}


def by_trainer(tmp_path: Any) -> tuple[WrappedTraining, Any]:
    transformers = pytest.importorskip("transformers", reason="the extra forsaken[trainer] is not installed")
    pytest.importorskip("accelerate", reason="the extra forsaken[trainer] is not installed")
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=8, num_labels=3,
    )  # fmt: skip
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "never"), num_train_epochs=8, per_device_train_batch_size=8, learning_rate=5e-3,
        use_cpu=True, report_to=[],
    )  # fmt: skip
    return TrainerTraining(lambda: transformers.BertForSequenceClassification(config), arguments), TOKENS


def by_skorch(_: Any) -> tuple[WrappedTraining, Any]:
    skorch = pytest.importorskip("skorch", reason="the extra forsaken[skorch] is not installed")
    net = skorch.NeuralNetClassifier(
        Plain, criterion=nn.CrossEntropyLoss, max_epochs=8, lr=0.2, train_split=None, verbose=0
    )
    return SkorchTraining(net), INPUTS


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def by_lightning(_: Any) -> tuple[WrappedTraining, Any]:
    lightning = pytest.importorskip("lightning", reason="the extra forsaken[lightning] is not installed")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = Plain()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.network(x)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 1e-2)

    def trainer() -> Any:
        return lightning.Trainer(
            max_epochs=8, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip

    return LightningTraining(Module, trainer, batch_size=8), INPUTS


ALL = pytest.mark.parametrize("make", [by_trainer, by_lightning, by_skorch])


@ALL
def test_a_seed_decides_everything(make: Any, tmp_path: Any) -> None:
    training, inputs = make(tmp_path)
    samples = Samples(inputs, LABELS)
    state = torch.get_rng_state()
    one, two, other = (fingerprint(training(samples, seed)) for seed in (1, 1, 2))
    assert one == two != other
    assert torch.equal(state, torch.get_rng_state())
    assert not (tmp_path / "never").exists()


@ALL
def test_it_learns_and_is_ready_to_be_asked(make: Any, tmp_path: Any) -> None:
    training, inputs = make(tmp_path)
    model = training(Samples(inputs, LABELS), 3)
    assert not model.training
    before = nn.functional.cross_entropy(torch.zeros(48, 3), LABELS)
    with torch.no_grad():
        found = model(**inputs).logits if isinstance(inputs, dict) else model(inputs)
    assert nn.functional.cross_entropy(found, LABELS) < before


@ALL
def test_references_without_a_loop_of_ones_own(make: Any, tmp_path: Any) -> None:
    training, inputs = make(tmp_path)
    model = training(Samples(inputs, LABELS), 3)
    references = forsaken.References.fit(training.on((inputs, LABELS)), (inputs, LABELS), folds=2, seed=5, model=model)
    some = {name: part[:4] for name, part in inputs.items()} if isinstance(inputs, dict) else inputs[:4]
    assert references.logits(some).shape == (4, 3)
    found = forsaken.unlearn(model, some, references=references)
    assert found.stopped


@ALL
def test_labels_are_needed(make: Any, tmp_path: Any) -> None:
    training, inputs = make(tmp_path)
    with pytest.raises(InputError, match="training needs labels"):
        training(Samples(inputs), 0)


def test_an_audit_by_skorch(tmp_path: Any) -> None:
    training, inputs = by_skorch(tmp_path)
    model = training(Samples(inputs, LABELS), 3)
    found = forsaken.audit(
        model, model, (inputs[:8], LABELS[:8]), profile="standard", kept=(inputs[8:36], LABELS[8:36]),
        test=(inputs[36:], LABELS[36:]), training=training, models=4, seed=1,
    )  # fmt: skip
    assert found.profile == "standard"
