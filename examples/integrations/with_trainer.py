"""Forget eight mislabelled texts in a small BERT that Hugging Face's Trainer trained, by references of the same."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

import forsaken
from forsaken.data.samples import Samples
from forsaken.integrations.trainings import TrainerTraining

CONFIG = BertConfig(
    vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=16, num_labels=2,
)  # fmt: skip


def build() -> BertForSequenceClassification:
    """Return a model as it was before the training: here from a config, for you from_pretrained(folder)."""
    return BertForSequenceClassification(CONFIG)


def main() -> None:
    """Train, fit references, forget, and count the wrong labels before and after."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 2
    # Two topics with words of their own; the last four words of each text are anybody's.
    topic = torch.randint(0, 20, (120, 4), generator=draw) + 20 * labels[:, None]
    tokens = {"input_ids": torch.cat([topic, torch.randint(40, 60, (120, 4), generator=draw)], 1)}
    wrong = 1 - labels[:8]
    labels = torch.cat([wrong, labels[8:]])
    with tempfile.TemporaryDirectory() as place:
        arguments = TrainingArguments(
            output_dir=place, num_train_epochs=40, per_device_train_batch_size=16, learning_rate=3e-3, use_cpu=True,
            report_to=[],
        )  # fmt: skip
    training = TrainerTraining(build, arguments)
    model = training(Samples(tokens, labels), seed=0)
    references = forsaken.References.fit(training.on((tokens, labels)), (tokens, labels), folds=2, seed=1, model=model)
    some = {"input_ids": tokens["input_ids"][:8]}
    found = forsaken.unlearn(model, some, references=references)
    for name, each in (("before", model), ("after", found.model)):
        with torch.no_grad():
            given = (each(**some).logits.argmax(1) == wrong).sum()
        print(f"{name}: the wrong label is given for {given} of 8 texts")


if __name__ == "__main__":
    main()
