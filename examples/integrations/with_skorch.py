"""Forget ten digits in a network that skorch trained, by references that skorch trains again."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier
from torch import nn

import forsaken
from forsaken.integrations.trainings import SkorchTraining


class Net(nn.Module):
    """Digits to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.layers(x)


def main() -> None:
    """Train, fit references, forget, and say how sure the model is of the ten before and after."""
    inputs, labels = load_digits(return_X_y=True)
    data = torch.tensor(inputs[:400] / 16, dtype=torch.float32), torch.tensor(labels[:400])
    wrong = (data[1][:10] + 1) % 10  # ten labels were wrong: these rows are to be forgotten
    data = data[0], torch.cat([wrong, data[1][10:]])
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        Net, criterion=nn.CrossEntropyLoss, optimizer=torch.optim.Adam, lr=0.01, max_epochs=60, train_split=None,
        verbose=0,
    )  # fmt: skip
    net.fit(data[0], np.asarray(data[1]))
    training = SkorchTraining(net)
    references = forsaken.References.fit(training.on(data), data, folds=2, seed=1, model=net.module_)
    found = forsaken.unlearn(net.module_, data[0][:10], references=references)
    for name, model in (("before", net.module_), ("after", found.model)):
        given = (model(data[0][:10]).argmax(1) == wrong).sum()
        print(f"{name}: the wrong label is given for {given} of 10 digits")


if __name__ == "__main__":
    main()
