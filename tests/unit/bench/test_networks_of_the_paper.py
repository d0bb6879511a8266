"""The networks have the sizes that the paper's tables give, and compute what their parts say."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from forsaken.bench.networks import (
    NETWORKS,
    Convolution,
    LanguageModel,
    NewsConvolutions,
    TextConvolutions,
    build,
    vgg16,
)
from forsaken.errors import ModelError, UnknownNameError
from forsaken.recipe import Network


def trainable(network: nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters() if weight.requires_grad)


@pytest.mark.parametrize(
    ("network", "millions"),
    [
        (Network("vgg16", {"classes": 100}), "14.77"),
        (Network("text-convolutions", {"words": 25_002, "classes": 2}), "2.62"),
        (Network("mlp", {"sizes": (10_000, 512, 256, 46)}), "5.26"),
        (Network("news-convolutions", {"vectors": torch.zeros(7, 100), "classes": 20}), "0.25"),
    ],
    ids=str,
)
def test_sizes_are_the_paper_s(network: Network, millions: str) -> None:
    assert f"{trainable(build(network)) / 1e6:.2f}" == millions


def test_vgg_maps_bytes_to_logits() -> None:
    pictures = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8)
    for batch_norm in (True, False):
        network = vgg16(7, batch_norm=batch_norm).eval()
        assert network(pictures).shape == (3, 7)
        assert sum(isinstance(part, nn.Conv2d) for part in network.modules()) == 13
        assert any(isinstance(part, nn.BatchNorm2d) for part in network.modules()) == batch_norm


def test_pixels_are_centred_and_scaled() -> None:
    pixels = vgg16(2)[0]
    white = pixels(torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)).flatten()
    assert torch.allclose(white, (1 - torch.tensor([0.4914, 0.4822, 0.4465])) / torch.tensor([0.2470, 0.2435, 0.2616]))
    assert vgg16(2).double()(torch.zeros(1, 3, 32, 32, dtype=torch.uint8)).dtype == torch.float64


@pytest.mark.parametrize("width", [3, 5])
def test_a_convolution_is_torch_s(width: int) -> None:
    ours = Convolution(6, 4, width)
    theirs = nn.Conv1d(6, 4, width)
    theirs.load_state_dict(ours.state_dict())
    rows = torch.randn(2, 6, 11, requires_grad=True)
    assert torch.allclose(ours(rows), theirs(rows), atol=1e-6)
    a = torch.autograd.grad(ours(rows).square().sum(), [rows, *ours.parameters()])
    b = torch.autograd.grad(theirs(rows).square().sum(), [rows, *theirs.parameters()])
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in zip(a, b, strict=True))


def test_text_convolutions_take_the_largest_answer_of_each_channel() -> None:
    network = TextConvolutions(9, classes=2, dimensions=4, channels=3, widths=(2,)).eval()
    tokens = torch.tensor([[2, 3, 4, 5]])
    embedded = network.embedding(tokens)[0]
    weight, bias = network.convolutions[0].weight, network.convolutions[0].bias
    answers = torch.stack([(weight * embedded[at : at + 2].T).sum((1, 2)) + bias for at in range(3)])
    expected = network.dense(answers.relu().amax(0))
    assert torch.allclose(network(tokens)[0], expected, atol=1e-6)


def test_news_reads_a_thousand_words_down_to_one_place() -> None:
    vectors = torch.randn(30, 100)
    network = NewsConvolutions(vectors, classes=5).eval()
    tokens = torch.randint(30, (2, 1000))
    inner = network.layers(network.embedding(tokens).transpose(1, 2))
    assert inner.shape == (2, 128)
    assert network(tokens).shape == (2, 5)
    assert torch.equal(network.embedding.weight, vectors)
    assert not network.embedding.weight.requires_grad
    network.embedding.weight.data.zero_()
    assert vectors.any(), "the network has a copy of its own"


def test_a_language_model_never_looks_ahead() -> None:
    network = LanguageModel(20, units=8).eval()
    tokens = torch.randint(20, (1, 6))
    changed = tokens.clone()
    changed[0, 4] = (changed[0, 4] + 1) % 20
    before, after = network(tokens), network(changed)
    assert before.shape == (1, 6, 20)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.equal(before[:, 4], after[:, 4])
    assert network.lstm.num_layers == 2


def test_unknown_names_and_settings_are_errors() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'vgg16'"):
        build(Network("vgg-16"))
    with pytest.raises(ModelError, match="cannot build mlp"):
        build(Network("mlp", {"size": (1, 2)}))
    with pytest.raises(ModelError, match="vectors"):
        build(Network("news-convolutions", {"classes": 3}))
    assert sorted(NETWORKS) == list(NETWORKS)
