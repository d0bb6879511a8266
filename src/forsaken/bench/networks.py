"""The models of the scenarios: the networks of the paper (its appendix Neural Networks), and how to train them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from torch import Tensor, nn

from forsaken.bench.scenarios.scenario import Scenario
from forsaken.data.nest import leaves
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError, UnknownNameError
from forsaken.models.train import Training
from forsaken.recipe import Network
from forsaken.types import Progress, Tick, silent


def mlp(sizes: Sequence[int], *, dropout: float = 0.0) -> nn.Sequential:
    """Return a perceptron with ReLU, and dropout after each hidden layer.

    ``mlp((10000, 512, 256, 46), dropout=0.5)`` is the paper's network for Reuters (Fig. network_Reuters, 5.26M).

    >>> sum(p.numel() for p in mlp((10000, 512, 256, 46)).parameters())
    5263662
    """
    layers: list[nn.Module] = []
    for at in range(len(sizes) - 1):
        layers.append(nn.Linear(sizes[at], sizes[at + 1]))
        if at < len(sizes) - 2:
            layers.append(nn.ReLU())
            if dropout:
                layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers)


class Pixels(nn.Module):
    """From bytes (n x channels x height x width, 0 to 255) to numbers around zero, in the network's dtype."""

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        shape = (len(mean), 1, 1)
        self.register_buffer("mean", 255 * torch.tensor(mean).view(shape))
        self.register_buffer("scale", 1 / (255 * torch.tensor(deviation).view(shape)))

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the scaled pixels."""
        return (pixels.to(self.mean.dtype) - self.mean) * self.scale


# Channels of the thirteen convolutions; 0 halves the picture (Simonyan and Zisserman 2015, configuration D).
_VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
_MEAN, _DEVIATION = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10's training pictures


def vgg16(classes: int, *, batch_norm: bool = True) -> nn.Sequential:
    """Return VGG-16 for 32 x 32 pictures: thirteen convolutions and one dense layer, from bytes to logits.

    >>> sum(p.numel() for p in vgg16(100).parameters())
    14774436
    >>> sum(p.numel() for p in vgg16(10, batch_norm=False).parameters())
    14719818
    """
    layers: list[nn.Module] = [Pixels(_MEAN, _DEVIATION)]
    width = 3
    for channels in _VGG16:
        if channels == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        convolution = nn.Conv2d(width, channels, 3, padding=1)
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
        layers += [convolution, *([nn.BatchNorm2d(channels)] if batch_norm else []), nn.ReLU()]
        width = channels
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, classes))


class Convolution(nn.Conv1d):
    """A one-dimensional convolution, done as a two-dimensional one with the channels last: twice as fast on a CPU."""

    def forward(self, rows: Tensor) -> Tensor:
        """Return what `nn.Conv1d` returns (n x channels x length)."""
        flat = rows.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        weight = self.weight.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        return nn.functional.conv2d(flat, weight, self.bias).squeeze(2)


def small_convolutions(*, classes: int, size: int = 8, channels: tuple[int, int] = (32, 64)) -> nn.Module:
    """Return two convolutions and two dense layers for grey pictures of `size` x `size`, as small as digits are.

    >>> small_convolutions(classes=8)(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 8])
    """
    first, second = channels
    return nn.Sequential(
        nn.Conv2d(1, first, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(first, second, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * (size // 2) ** 2, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def small_colour_convolutions(*, classes: int) -> nn.Module:
    """Return two convolutions and two dense layers for 32 x 32 pictures at half their size: a CPU trains it in seconds.

    >>> sum(p.numel() for p in small_colour_convolutions(classes=10).parameters())
    151882
    """
    return nn.Sequential(
        Pixels(_MEAN, _DEVIATION),
        nn.AvgPool2d(2),
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


class TextConvolutions(nn.Module):
    """Parallel convolutions of several widths over word embeddings, the largest answer of each, one dense layer.

    With 25,002 words, 100 dimensions and 100 channels of width 3, 4 and 5 it is the paper's network for IMDB
    (Fig. network_IMDB, 2.62M).

    >>> sum(p.numel() for p in TextConvolutions(25002, classes=2).parameters())
    2621102
    """

    def __init__(
        self,
        words: int,
        *,
        classes: int,
        dimensions: int = 100,
        channels: int = 100,
        widths: Sequence[int] = (3, 4, 5),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, dimensions, padding_idx=0)
        self.convolutions = nn.ModuleList(Convolution(dimensions, channels, width) for width in widths)
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(channels * len(widths), classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of token numbers (n x length)."""
        embedded = self.embedding(tokens).transpose(1, 2)
        found = [convolution(embedded).relu().amax(2) for convolution in self.convolutions]
        logits: Tensor = self.dense(self.dropout(torch.cat(found, dim=1)))
        return logits


class NewsConvolutions(nn.Module):
    """Three convolutions of width 5 over frozen word vectors, and two dense layers.

    1,000 words become 996, 199, 195, 39, 35 and 1: the paper's network for News (Fig. network_news, 0.247M
    without the frozen vectors).

    >>> net = NewsConvolutions(torch.zeros(50, 100), classes=20)
    >>> sum(p.numel() for p in net.parameters() if p.requires_grad)
    247316
    """

    def __init__(
        self, vectors: Tensor, *, classes: int, channels: int = 128, pools: Sequence[int] = (5, 5, 35)
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(vectors), vectors.shape[1], _weight=vectors.clone(), _freeze=True)
        layers: list[nn.Module] = []
        width = vectors.shape[1]
        for pool in pools:
            layers += [Convolution(width, channels, 5), nn.MaxPool1d(pool), nn.ReLU()]
            width = channels
        self.layers = nn.Sequential(*layers, nn.Flatten())
        self.head = nn.Sequential(nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, classes))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of token numbers (n x 1000)."""
        logits: Tensor = self.head(self.layers(self.embedding(tokens).transpose(1, 2)))
        return logits


class LanguageModel(nn.Module):
    """A two-layer LSTM that predicts each next word (for Penn TreeBank).

    200 units and dropout between the layers are the small and the regularised settings of Zaremba et al. (2014);
    the paper names none.
    """

    def __init__(self, words: int, *, units: int = 200, layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, units)
        self.lstm = nn.LSTM(units, units, layers, batch_first=True, dropout=dropout)
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(units, words)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (n x length x words) of the word after each of the tokens (n x length)."""
        states, _ = self.lstm(self.dropout(self.embedding(tokens)))
        logits: Tensor = self.dense(self.dropout(states))
        return logits


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "language-model": LanguageModel,
    "mlp": mlp,
    "news-convolutions": NewsConvolutions,
    "small-colour-convolutions": small_colour_convolutions,
    "small-convolutions": small_convolutions,
    "text-convolutions": TextConvolutions,
    "vgg16": vgg16,
}


def build(network: Network, given: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Build a network with fresh weights.

    Parameters
    ----------
    network : Network
        Its name and settings.
    given : mapping, optional
        Tensors that the network takes beside its settings, such as frozen word vectors.
    """
    if network.name not in NETWORKS:
        raise UnknownNameError("network", network.name, NETWORKS)
    arguments: dict[str, Any] = {**network.settings, **(given or {})}
    try:
        return NETWORKS[network.name](**arguments)
    except TypeError as error:
        raise ModelError(f"cannot build {network}: {error}") from error


# Weakly regularised, since the experiments rest on what a model memorises. The dual solver does not converge on them.
ESTIMATORS: dict[str, Callable[[int], Any]] = {
    "logistic-regression": lambda seed: LogisticRegression(C=100.0, max_iter=1000, random_state=seed),
    "svm": lambda seed: LinearSVC(C=10.0, dual=False, max_iter=5000, random_state=seed),
}


def parameter_count(scenario: Scenario) -> int:
    """Return how many trainable parameters the scenario's model has."""
    if scenario.network.name in ESTIMATORS:
        width = sum(leaf[0].numel() for leaf in leaves(scenario.kept.inputs))
        columns = 1 if scenario.classes == 2 else scenario.classes
        return columns * (width + 1)
    network = build(scenario.network, scenario.given)
    return sum(weight.numel() for weight in network.parameters() if weight.requires_grad)


def training_of(scenario: Scenario, device: str | torch.device = "cpu") -> Training:
    """Return how the scenario's network is trained, for methods that train again."""
    return Training(lambda: build(scenario.network, scenario.given), scenario.recipe, device)


def fit(
    scenario: Scenario,
    data: Samples,
    *,
    seed: int,
    device: str | torch.device = "cpu",
    progress: Progress = silent,
    stage: str = "train",
) -> Any:
    """Train the scenario's model on `data`; the same seed gives the same weights.

    Parameters
    ----------
    scenario : Scenario
        Says which model, and how it is trained.
    data : Samples
        Inputs and labels: the scenario's `train`, `kept` or `shadow_members`, or rows of them.
    seed : int
        Decides initial weights, order and dropout.
    device : str or device
        Where to train a network; "auto" is the first GPU, or the CPU.
    progress, stage
        What is called at each step of the training, and the name of the training for it.

    Returns
    -------
    Module or estimator
        A network in evaluation mode, or a fitted scikit-learn estimator.
    """
    name = scenario.network.name
    if name not in ESTIMATORS:
        return training_of(scenario, device).run(data, seed=seed, progress=progress, stage=stage)
    if data.labels is None:
        raise InputError("training needs labels; give (inputs, labels)")
    progress(Tick(stage, 0, 1))
    (inputs,) = leaves(data.inputs)
    estimator = ESTIMATORS[name](seed).fit(inputs.flatten(1).numpy(), data.labels.numpy())
    progress(Tick(stage, 1, 1))
    return estimator
