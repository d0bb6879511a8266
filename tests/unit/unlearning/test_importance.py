"""ω layer by layer, against gradients taken sample by sample."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from forsaken.bench.networks import NewsConvolutions, TextConvolutions, small_convolutions
from forsaken.data.samples import Samples
from forsaken.models.logits import LogitModel
from forsaken.unlearning.forsaken import importance as place
from forsaken.unlearning.forsaken.importance import LOSSES, LayerRules, importance, scaled
from forsaken.unlearning.forsaken.parameters import ParameterSpace, choose, prepared


def deep() -> nn.Module:
    inner = nn.Sequential(nn.Linear(8, 6), nn.Tanh())
    return nn.Sequential(nn.Linear(20, 8), nn.ReLU(inplace=True), nn.Dropout(0.5), inner, nn.Linear(6, 3))


class Residual(nn.Module):
    """A layer beside which its input goes on, and functions that write into what they get."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu_()
        return self.last((x + self.second(x).mul_(2)).mean((2, 3)))


def grouped() -> nn.Module:
    strided = nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2, bias=False)
    return nn.Sequential(strided, nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(72, 3))


def vectors() -> Tensor:
    return torch.randn(15, 6)


FLAT, PICTURES, WORDS = "rows of numbers", "pictures", "texts"
NETS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "deep": (FLAT, deep),
    "one layer": (FLAT, lambda: nn.Linear(20, 4)),
    "one column": (FLAT, lambda: nn.Sequential(nn.Linear(20, 5), nn.GELU(), nn.Linear(5, 1))),
    "no bias": (FLAT, lambda: nn.Sequential(nn.Linear(20, 7, bias=False), nn.Sigmoid(), nn.Linear(7, 3))),
    "normed": (FLAT, lambda: nn.Sequential(nn.LayerNorm(20), nn.Linear(20, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))),
    "sequences": (
        FLAT,
        lambda: nn.Sequential(
            nn.Unflatten(1, (4, 5)), nn.Linear(5, 6), nn.LayerNorm(6), nn.Tanh(), nn.Flatten(), nn.Linear(24, 3)
        ),
    ),
    "convolutions": (PICTURES, lambda: nn.Sequential(nn.Conv2d(4, 1, 1), small_convolutions(classes=3, size=6))),
    "grouped, strided, dilated": (PICTURES, grouped),
    "residual": (PICTURES, lambda: nn.Sequential(nn.Conv2d(4, 2, 1), Residual())),
    "film reviews": (WORDS, lambda: TextConvolutions(15, classes=2, dimensions=6, channels=4)),
    "newsgroups": (WORDS, lambda: NewsConvolutions(vectors(), classes=3, channels=4, pools=(2, 2, 3))),
    "one table": (WORDS, lambda: nn.Sequential(nn.Embedding(15, 4), nn.Flatten(), nn.Linear(160, 3))),
}


def case(make: Callable[[], nn.Module], kind: str = FLAT) -> tuple[nn.Module, Samples]:
    torch.manual_seed(0)
    net = make().double()
    inputs = {
        FLAT: torch.randn(30, 20, dtype=torch.float64),
        PICTURES: torch.randn(12, 4, 6, 6, dtype=torch.float64),
        WORDS: torch.randint(15, (12, 40)),
    }[kind]
    net(inputs)  # batch norms have seen something
    return net.eval(), Samples(inputs, torch.randint(2, (len(inputs),)))


def known(net: nn.Module, samples: Samples) -> bool:
    assert samples.labels is not None
    return LayerRules(ParameterSpace(LogitModel(net)), LOSSES["logits"]).agree(samples.inputs, samples.labels)


def one_by_one(net: nn.Module, samples: Samples, kind: str, of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the mean over samples of `of` of the whole gradient, by autograd on single samples."""
    chosen = [weight for weight in net.parameters() if weight.requires_grad]
    total: list[Tensor] = [torch.zeros_like(weight) for weight in chosen]
    adapter = LogitModel(net)
    for at in range(len(samples)):
        one = samples.rows([at])
        value = LOSSES[kind](adapter(one.inputs), one.labels)
        found = torch.autograd.grad(value, chosen, allow_unused=True)
        total = [old if new is None else old + of(new) for old, new in zip(total, found, strict=True)]
    return torch.cat([part.reshape(-1) for part in total]) / len(samples)


@pytest.mark.parametrize("of", [Tensor.abs, Tensor.square])
@pytest.mark.parametrize("kind", sorted(LOSSES))
@pytest.mark.parametrize("name", sorted(NETS))
def test_the_same_as_sample_by_sample(name: str, kind: str, of: Callable[[Tensor], Tensor]) -> None:
    net, samples = case(NETS[name][1], NETS[name][0])
    assert known(net, samples)
    found = importance(ParameterSpace(LogitModel(net)), samples, kind, lambda tick: None, of=of)
    assert torch.allclose(found, one_by_one(net, samples, kind, of), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ["grouped, strided, dilated", "sequences", "film reviews"])
def test_few_samples_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, samples = case(NETS[name][1], NETS[name][0])
    whole = importance(ParameterSpace(LogitModel(net)), samples, "logits", lambda tick: None)
    monkeypatch.setattr(place, "_CHUNK_NUMBERS", 1)
    assert torch.allclose(importance(ParameterSpace(LogitModel(net)), samples, "logits", lambda tick: None), whole)


def test_some_parameters_alone_and_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    net, samples = case(deep)
    monkeypatch.setattr(place, "_ROWS", 7)
    space = ParameterSpace(LogitModel(net), choose(net, ["0.weight", "4.bias"]))
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


class Centred(nn.Module):
    """A sample's answer depends on the others."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Lent(nn.Module):
    """A layer's weight is used beside the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(20, 20)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu() @ self.layer.weight


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
    layer = net[0]
    layer.forward = lambda x: 2 * nn.functional.linear(x, layer.weight, layer.bias)
    return net


def hooked() -> nn.Module:
    net = deep()
    net[0].register_forward_hook(lambda module, given, output: 2 * output)
    return net


def padded() -> nn.Module:
    around = nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular")
    return nn.Sequential(nn.Unflatten(1, (1, 20)), around, nn.Flatten(), nn.Linear(40, 3))


@pytest.mark.parametrize(
    "make",
    [tied, twice, shared_bias, tempered, patched, hooked, Lent, padded],
    ids=["tied", "twice", "shared bias", "parameter of nobody", "patched", "hooked", "lent", "padded in circles"],
)
def test_other_models_are_taken_sample_by_sample(make: Callable[[], nn.Module]) -> None:
    net, samples = case(make)
    assert not known(net, samples)
    expected = one_by_one(net, samples, "logits", Tensor.abs)
    space = ParameterSpace(LogitModel(net))
    with prepared(net):
        found = importance(space, samples, "logits", lambda tick: None)
    assert torch.allclose(found, expected)


def small() -> nn.Module:
    net = nn.Sequential(nn.Linear(20, 3), Centred(), nn.Linear(3, 3))
    with torch.no_grad():
        net[2].weight.mul_(1e-3)
    return net


@pytest.mark.parametrize("make", [small, lambda: nn.Sequential(nn.Linear(20, 3), Centred(), nn.Linear(3, 3))])
def test_samples_that_depend_on_each_other_are_taken_one_by_one(make: Callable[[], nn.Module]) -> None:
    net, samples = case(make)
    assert not known(net, samples)


class Called(nn.Module):
    """Layers whose first axis is not the samples, in the ways that people write."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.layer, self.last = how, nn.Linear(5, 6), nn.Linear(6, 3)
        self.place, self.norm = nn.Embedding(4, 5), nn.LayerNorm(5)

    def forward(self, x: Tensor) -> Tensor:
        parts = x.unflatten(1, (4, 5))
        if self.how == "places as samples":
            found = self.layer(parts.reshape(-1, 5)).view(-1, 4, 6)
        elif self.how == "places first":
            found = self.layer(self.norm(parts.transpose(0, 1))).transpose(0, 1)
        elif self.how == "place embedded":
            found = self.layer(parts + self.place(torch.arange(4)))
        else:
            found = self.layer(torch.cat([parts, parts.flip(1)]))
            found = found[: len(x)] + found[len(x) :]
        return self.last(found.tanh().mean(1))


@pytest.mark.parametrize("count", [30, 4])
@pytest.mark.parametrize("how", ["places as samples", "places first", "place embedded", "two views"])
def test_layers_that_see_no_samples_are_taken_sample_by_sample(how: str, count: int) -> None:
    net, samples = case(lambda: Called(how))
    samples = samples.rows(range(count))  # with four, as many places as samples
    extra = {"place embedded": "place.", "places first": "norm."}.get(how, "layer.")
    used = [name for name, _ in net.named_parameters() if name.startswith(("layer.", "last.", extra))]
    space = ParameterSpace(LogitModel(net), choose(net, used))
    expected = _kept(net, used, one_by_one(net, samples, "logits", Tensor.abs))
    assert torch.allclose(importance(space, samples, "logits", lambda tick: None), expected)


def _kept(net: nn.Module, used: list[str], flat: Tensor) -> Tensor:
    names = [name for name, _ in net.named_parameters()]
    return torch.cat([part.reshape(-1) for name, part in zip(names, _parts(net, flat), strict=True) if name in used])


class Routed(nn.Module):
    """A sample with a large number goes through the first layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(20, 20), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(x).tanh()
        if (x[:, 0] > 50).any():
            found = torch.where(x[:, :1] > 50, self.layer(found), found)
        return self.last(found)


def test_samples_that_go_another_way_are_taken_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    net, samples = case(Routed)
    monkeypatch.setattr(place, "_ROWS", 10)
    samples.inputs[15, 0] = 100
    ticks: list[int] = []
    found = importance(ParameterSpace(LogitModel(net)), samples, "logits", lambda tick: ticks.append(tick.done))
    assert ticks[0] == 10, "the first ten layer by layer"
    assert torch.allclose(found, one_by_one(net, samples, "logits", Tensor.abs))


class Greedy(nn.Linear):
    """Memory for eight samples."""

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 8:
            raise torch.OutOfMemoryError
        return super().forward(x)


def test_fewer_samples_at_once_where_memory_ends() -> None:
    net, samples = case(lambda: nn.Sequential(nn.Linear(20, 3)))
    expected = one_by_one(net, samples, "logits", Tensor.abs)
    net[0].__class__ = Greedy
    ticks: list[int] = []
    found = importance(ParameterSpace(LogitModel(net)), samples, "logits", lambda tick: ticks.append(tick.done))
    assert ticks == [8, 16, 24, 30]
    assert torch.allclose(found, expected)


class Pair(nn.Linear):
    """A layer with an answer of its own kind."""

    def forward(self, x: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return super().forward(x), None


class Taking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Pair(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


def test_layers_with_other_answers() -> None:
    net, samples = case(Taking)
    assert not known(net, samples)


def test_nothing_is_left_on_the_model() -> None:
    net, samples = case(deep)
    known(net, samples)
    assert not any(module._forward_hooks for module in net.modules())
    net, samples = case(twice)
    assert not known(net, samples), "it ended with an error"
    assert not any(module._forward_hooks for module in net.modules())


def test_half_precision_does_not_overflow() -> None:
    net, samples = case(lambda: nn.Linear(20, 4))
    assert samples.labels is not None
    with torch.no_grad():
        net.weight.mul_(60)
    space = ParameterSpace(LogitModel(net))
    exact = LayerRules(space, LOSSES["logits"]).sums(samples.inputs, samples.labels, Tensor.abs)
    space.dtypes = dict.fromkeys(space.dtypes, torch.bfloat16)
    rough = LayerRules(space, LOSSES["logits"]).sums(samples.inputs.bfloat16(), samples.labels, Tensor.abs)
    assert all(one.dtype == torch.float64 for one in rough), "sums are in the optimiser's precision"
    assert all(torch.allclose(one, other, rtol=0.1) for one, other in zip(rough, exact, strict=True))


def test_scaled_importance() -> None:
    torch.testing.assert_close(scaled(torch.tensor([1.0, 3.0])), torch.tensor([0.51, 1.51]))
    torch.testing.assert_close(scaled(torch.tensor([1.0, 3.0]), 4, 0.5), torch.tensor([1.5, 3.5]))
    assert torch.equal(scaled(torch.zeros(3)), torch.ones(3))
