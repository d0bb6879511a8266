"""ω of a perceptron from products of magnitudes, against gradients taken sample by sample."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from forsaken.data.samples import Samples
from forsaken.models.logits import LogitModel
from forsaken.unlearning.forsaken import importance as place
from forsaken.unlearning.forsaken.importance import LOSSES, importance
from forsaken.unlearning.forsaken.perceptron import layers, perceptron_importance
from forsaken.unlearning.forsaken.space import ParameterSpace, prepared


def deep() -> nn.Module:
    inner = nn.Sequential(nn.Linear(8, 6), nn.Tanh())
    return nn.Sequential(nn.Linear(20, 8), nn.ReLU(inplace=True), nn.Dropout(0.5), inner, nn.Linear(6, 3))


NETS: dict[str, Callable[[], nn.Module]] = {
    "deep": deep,
    "one layer": lambda: nn.Linear(20, 4),
    "one column": lambda: nn.Sequential(nn.Linear(20, 5), nn.GELU(), nn.Linear(5, 1)),
    "no bias": lambda: nn.Sequential(nn.Linear(20, 7, bias=False), nn.Sigmoid(), nn.Linear(7, 3)),
}


def case(make: Callable[[], nn.Module], seed: int = 0) -> tuple[nn.Module, Samples]:
    torch.manual_seed(seed)
    return make().double().eval(), Samples(torch.randn(30, 20, dtype=torch.float64), torch.randint(2, (30,)))


def one_by_one(net: nn.Module, samples: Samples, kind: str, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the mean over samples of `of` of the whole gradient, by autograd on single samples."""
    total: list[Tensor] = [torch.zeros_like(weight) for weight in net.parameters()]
    adapter = LogitModel(net)
    for at in range(len(samples)):
        one = samples.rows([at])
        value = LOSSES[kind](adapter(one.inputs), one.labels)
        found = torch.autograd.grad(value, list(net.parameters()), allow_unused=True)
        total = [old if new is None else old + of(new) for old, new in zip(total, found, strict=True)]
    return torch.cat([part.reshape(-1) for part in total]) / len(samples)


@pytest.mark.parametrize("of", [Tensor.abs, Tensor.square])
@pytest.mark.parametrize("kind", sorted(LOSSES))
@pytest.mark.parametrize("name", sorted(NETS))
def test_the_same_as_sample_by_sample(name: str, kind: str, of: Callable[[Tensor], Tensor]) -> None:
    net, samples = case(NETS[name])
    space = ParameterSpace(LogitModel(net))
    assert perceptron_importance(space, samples.inputs, samples.labels, LOSSES[kind], of) is not None
    found = importance(space, samples, kind, lambda tick: None, of=of)
    assert torch.allclose(found, one_by_one(net, samples, kind, of), rtol=1e-12, atol=1e-15)


def test_some_parameters_alone_and_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    net, samples = case(deep)
    monkeypatch.setattr(place, "_ROWS", 7)
    space = ParameterSpace(LogitModel(net), ["0.weight", "4.bias"])
    ticks = []
    found = importance(space, samples, "logits", ticks.append)
    whole = dict(
        zip(dict(net.named_parameters()), _parts(net, one_by_one(net, samples, "logits", Tensor.abs)), strict=True)
    )
    assert torch.allclose(found, torch.cat([whole["0.weight"].reshape(-1), whole["4.bias"]]))
    assert [tick.done for tick in ticks] == [7, 14, 21, 28, 30]


def _parts(net: nn.Module, flat: Tensor) -> list[Tensor]:
    return [
        part.view_as(w)
        for part, w in zip(flat.split([w.numel() for w in net.parameters()]), net.parameters(), strict=True)
    ]


class Own(nn.Module):
    """Nobody knows what it does."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(0)


def tied() -> nn.Module:
    one, two = nn.Linear(20, 20), nn.Linear(20, 20)
    two.weight = one.weight
    return nn.Sequential(one, nn.ReLU(), two)


def twice() -> nn.Module:
    one = nn.Linear(20, 20)
    return nn.Sequential(one, nn.ReLU(), one)


def shared_bias() -> nn.Module:
    one, two = nn.Linear(20, 20), nn.Linear(20, 20)
    two.bias = one.bias
    return nn.Sequential(one, nn.ReLU(), two)


def tempered() -> nn.Module:
    net = deep()
    net.temperature = nn.Parameter(torch.ones(1))
    return net


def patched() -> nn.Module:
    net = deep()
    net[1].forward = torch.sin
    return net


def hooked() -> nn.Module:
    net = deep()
    net[0].register_forward_hook(lambda *_: None)
    return net


@pytest.mark.parametrize(
    "make",
    [
        tied,
        twice,
        shared_bias,
        tempered,
        patched,
        hooked,
        lambda: nn.Sequential(nn.Linear(20, 3), Own()),
        lambda: nn.Sequential(nn.LayerNorm(20), nn.Linear(20, 3)),
    ],
    ids=["tied", "twice", "shared bias", "parameter of nobody", "patched", "hooked", "unknown", "normed"],
)
def test_other_models_are_taken_sample_by_sample(make: Callable[[], nn.Module]) -> None:
    net, samples = case(make)
    space = ParameterSpace(LogitModel(net))
    assert perceptron_importance(space, samples.inputs, samples.labels, LOSSES["logits"], Tensor.abs) is None
    expected = one_by_one(net, samples, "logits", Tensor.abs)
    with prepared(net):
        found = importance(space, samples, "logits", lambda tick: None)
    assert torch.allclose(found, expected)


def test_layers_in_their_order() -> None:
    found = layers(deep())
    assert found is not None
    assert [name for name, _ in found] == ["0", "1", "2", "3.0", "3.1", "4"]
    assert layers(nn.Sequential(nn.Conv1d(1, 1, 1))) is None


def test_half_precision_does_not_overflow() -> None:
    net, samples = case(lambda: nn.Linear(20, 4))
    with torch.no_grad():
        net.weight.mul_(60)
    space = ParameterSpace(LogitModel(net))
    exact = perceptron_importance(space, samples.inputs, samples.labels, LOSSES["logits"], Tensor.abs)
    space.dtypes = dict.fromkeys(space.dtypes, torch.bfloat16)
    rough = perceptron_importance(space, samples.inputs.bfloat16(), samples.labels, LOSSES["logits"], Tensor.abs)
    assert exact is not None
    assert rough is not None
    assert all(one.dtype == torch.float64 for one in rough), "sums are in the optimiser's precision"
    assert all(torch.allclose(one, other, rtol=0.1) for one, other in zip(rough, exact, strict=True))
