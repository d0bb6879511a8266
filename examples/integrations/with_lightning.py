"""Forget ten digits in a network that Lightning trained, by references that Lightning trains again."""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn

import forsaken
from forsaken.data.samples import Samples
from forsaken.integrations.trainings import LightningTraining


class Net(lightning.LightningModule):
    """Digits to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.layers(x)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimiser."""
        return torch.optim.Adam(self.parameters(), 0.01)


def trainer() -> lightning.Trainer:
    """Return a trainer that writes no files."""
    return lightning.Trainer(
        max_epochs=40, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip


def main() -> None:
    """Train, fit references, forget, and count the wrong labels before and after."""
    inputs, labels = load_digits(return_X_y=True)
    data = torch.tensor(inputs[:300] / 16, dtype=torch.float32), torch.tensor(labels[:300])
    wrong = (data[1][:10] + 1) % 10  # ten labels were wrong: these rows are to be forgotten
    data = data[0], torch.cat([wrong, data[1][10:]])
    training = LightningTraining(Net, trainer, batch_size=32)
    model = training(Samples(*data), seed=0)
    references = forsaken.References.fit(training.on(data), data, folds=2, seed=1, model=model)
    found = forsaken.unlearn(model, data[0][:10], references=references)
    for name, each in (("before", model), ("after", found.model)):
        given = (each(data[0][:10]).argmax(1) == wrong).sum()
        print(f"{name}: the wrong label is given for {given} of 10 digits")


if __name__ == "__main__":
    main()
