"""The signals of the white-box oracle against autograd, sample by sample, and against closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from forsaken.bench.networks import NewsConvolutions, TextConvolutions, mlp, small_convolutions, vgg16
from forsaken.data.samples import Samples
from forsaken.errors import ModelError
from forsaken.models.logits import LinearModel, LogitModel
from forsaken.oracles import signals as module
from forsaken.oracles.signals import factors, last_layers, signals


def news() -> nn.Module:
    return NewsConvolutions(torch.randn(30, 6), classes=4, channels=8, pools=(2, 2, 2))


class Twice(nn.Module):
    """One layer that is called two times, with an operation in place behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shared, self.last = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.shared(input=self.shared(self.first(inputs)).relu_()).relu_()
        return self.last(hidden)


class Words(nn.Module):
    """Logits are a mean over positions of a dense layer's output, as in taggers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.last = nn.Embedding(20, 5), nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.norm(self.words(tokens))).mean(1)


def whole_convolution() -> nn.Module:
    layers = [nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 2, dilation=2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], int]] = {
    "dense": (lambda: mlp((6, 8, 5, 3)), lambda: torch.randn(7, 6), 2),
    "no bias": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3, bias=False)), lambda: torch.randn(7, 6), 2),
    "one column": (lambda: nn.Linear(6, 1), lambda: torch.randn(7, 6), 1),
    "convolutions and dense": (
        lambda: small_convolutions(classes=3, channels=(4, 4)),
        lambda: torch.randn(7, 1, 8, 8),
        2,
    ),
    "vgg": (lambda: vgg16(3), lambda: torch.randint(256, (3, 3, 32, 32)).byte(), 2),
    "words and convolutions": (
        lambda: TextConvolutions(30, classes=3, dimensions=6, channels=4),
        lambda: torch.randint(30, (7, 9)),
        2,
    ),
    "frozen words": (news, lambda: torch.randint(30, (7, 40)), 2),
    "all convolutions": (whole_convolution, lambda: torch.randn(7, 2, 9, 9), 2),
    "called twice": (Twice, lambda: torch.randn(7, 6), 2),
    "a row a word": (Words, lambda: torch.randint(20, (7, 4)), 1),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_autograd_s_sample_by_sample(case: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        build, draw, count = CASES[case]
        network, inputs = build().double().eval(), draw()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    labels = torch.arange(len(inputs)) % (2 if case == "one column" else 3)
    adapter = LogitModel(network)
    layers = last_layers(adapter, Samples(inputs[:1]), count)
    found, _ = factors(adapter, layers, Samples(inputs, labels))
    assert len(found) == count
    for layer, part in zip(layers, found, strict=True):
        matrices = part.matrices()
        assert part.bias == (layer.bias is not None)
        weights: list[Any] = [layer.weight] if layer.bias is None else [layer.weight, layer.bias]
        for at in range(len(inputs)):
            loss = nn.functional.cross_entropy(adapter(inputs[at : at + 1]), labels[at : at + 1])
            expected = torch.autograd.grad(loss, weights)
            flat = torch.cat([one.reshape(len(one), -1) for one in expected], dim=1)
            assert torch.allclose(matrices[at], flat, atol=1e-6, rtol=1e-6)
            assert float(part.norms()[at]) == pytest.approx(float(flat.norm()), rel=1e-6, abs=1e-12)


def test_a_linear_estimator_s_gradients_in_closed_form() -> None:
    draw = np.random.default_rng(0)
    inputs, labels = draw.normal(size=(60, 4)), draw.integers(3, size=60)
    estimator = LogisticRegression().fit(inputs, labels)
    adapter = LogitModel(LinearModel(estimator))
    samples = Samples(torch.from_numpy(inputs), torch.from_numpy(labels))
    (found,), _ = factors(adapter, last_layers(adapter, samples, 1), samples)
    errors = estimator.predict_proba(inputs) - np.eye(3)[labels]
    expected = np.einsum("no,ni->noi", errors, np.c_[inputs, np.ones(60)])
    assert np.allclose(found.matrices().detach().numpy(), expected, atol=1e-12)


def test_sorting_only_changes_the_order() -> None:
    network = mlp((6, 5, 3)).double()
    samples = Samples(torch.randn(9, 6).double(), torch.arange(9) % 3)
    adapter = LogitModel(network)
    (found,), _ = factors(adapter, last_layers(adapter, samples, 1), samples)
    ordered, matrices = found.ordered().matrices(), found.matrices()
    for one, two in zip(ordered, matrices, strict=True):
        assert torch.allclose(one.flatten().sort().values, two.flatten().sort().values)
        # the bias stays in its own column, and the label's error, the only negative one, comes first
        assert torch.allclose(one[:, -1], two[:, -1].sort().values)
        assert bool((one[0, -1] < 0) & (one[1:, -1] > 0).all())
    assert torch.allclose(found.scaled().norms(), torch.ones(9, dtype=torch.float64))


def test_numbers_and_outputs_by_hand() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [0.0, 40.0, 1.0], [5.0, 0.0, 0.0]])
    model = nn.Linear(3, 3, bias=False)
    model.weight.data.copy_(torch.eye(3))
    found = signals(model, (logits, [1, 1, 2]), "samples", layers=1, labels="given")
    for at, (row, label) in enumerate(zip(logits.double().numpy(), [1, 1, 2], strict=True)):
        others = np.delete(row, label)
        margin = row[label] - np.log(np.exp(others).sum())
        log_posterior = row - np.log(np.exp(row).sum())
        assert float(found.numbers[at, 0]) == pytest.approx(math.log(math.log1p(math.exp(-margin))), rel=1e-5)
        assert float(found.numbers[at, 1]) == pytest.approx(margin, rel=1e-5)
        expected = [log_posterior[label], *sorted(np.delete(log_posterior, label), reverse=True)]
        assert np.allclose(found.outputs[0][at], expected, atol=1e-5)
    assert found.labels.argmax(1).tolist() == [1, 1, 2]
    assert found.shapes() == {"vectors": [3, 3, 3], "gradients": [[3, 3]]}


def test_the_loss_of_a_sample_learnt_by_heart_is_never_rounded_to_nothing() -> None:
    logits = torch.tensor([[90.0, 0.0], [60.0, 0.0], [20.0, 0.0]])
    model = nn.Linear(2, 2, bias=False)
    model.weight.data.copy_(torch.eye(2))
    found = signals(model, (logits, [0, 0, 0]), "samples", layers=1, labels="given")
    assert found.numbers[:, 0].tolist() == pytest.approx([-90.0, -60.0, -20.0], rel=1e-6)
    assert bool(torch.isfinite(found.numbers).all())


def test_predicted_labels_are_the_model_s_own() -> None:
    inputs, network = torch.randn(20, 6), mlp((6, 8, 3))
    told = network(inputs).argmax(1)
    given = signals(network, (inputs, told), "samples", layers=2, labels="given")
    predicted = signals(network, inputs, "samples", layers=2, labels="predicted")
    for one, two in zip(given.vectors, predicted.vectors, strict=True):
        assert torch.equal(one, two)


def test_batches_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = torch.randn(20, 6), torch.arange(20) % 3
    network = mlp((6, 8, 3)).double()
    whole = signals(network, pair, "samples", layers=2, labels="given")
    monkeypatch.setattr(module, "_BATCH", 3)
    parts = signals(network, pair, "samples", layers=2, labels="given")
    for one, two in zip(whole.vectors, parts.vectors, strict=True):
        assert torch.allclose(one, two, atol=1e-6)
    for first, second in zip(whole.gradients, parts.gradients, strict=True):
        assert torch.allclose(first.matrices(), second.matrices(), atol=1e-6)


def test_what_cannot_be_held_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BOUND", 1000)
    with pytest.raises(ModelError, match=r"last 1 layers take .* GiB for 50 samples; use layers=1, or fewer samples"):
        signals(mlp((6, 8, 3)), (torch.randn(50, 6), [0] * 50), "samples", layers=1, labels="given")


def test_layers_that_do_not_see_one_row_a_sample() -> None:
    class Stacked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(3, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.last(inputs.reshape(-1, 3)).view(len(inputs), -1, 2).mean(1)

    with pytest.raises(ModelError, match=r"first axis of the input of Linear is 8 for 4 samples.*black-box"):
        signals(Stacked(), (torch.randn(4, 6), [0] * 4), "samples", layers=1, labels="given")
