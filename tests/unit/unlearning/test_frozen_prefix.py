"""A frozen prefix: the same result as choosing the other weights, and no prefix where there is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import forsaken
from forsaken import Curvature, Forsaken
from forsaken.bench.networks import NewsConvolutions, TextConvolutions, vgg16
from forsaken.data.samples import Samples
from forsaken.models.logits import LogitModel
from forsaken.unlearning.forsaken import parameters as place
from forsaken.unlearning.forsaken.parameters import FrozenPrefix, frozen_prefix

PICTURES = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))


def layers(*, inplace: bool = False) -> list[nn.Module]:
    torch.manual_seed(0)
    shrunk = [nn.ReLU(inplace=inplace), nn.MaxPool2d(2), nn.Flatten()]
    return [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), *shrunk, nn.Linear(64, 16), nn.Linear(16, 3)]


@pytest.fixture(autouse=True)
def few_are_plenty(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "papers" not in request.node.name:
        monkeypatch.setattr(place, "MIN_FREE", 1)


def network(*, inplace: bool = False) -> nn.Sequential:
    return nn.Sequential(*layers(inplace=inplace)).eval()


def of(model: nn.Module, inputs: Tensor = PICTURES, share: float = 0.3) -> FrozenPrefix | None:
    picked = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return frozen_prefix(LogitModel(model.eval()), [Samples(inputs)], picked, share)


class Written(nn.Module):
    """The same network with a forward pass of its own, `between` what the convolution says and the rest."""

    def __init__(self, between: Callable[[Written, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        parts = layers()
        self.first, self.rest, self.between = parts[0], nn.Sequential(*parts[2:]), between
        self.scale = nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.rest(self.between(self, self.first(inputs), inputs))
        return found


def test_the_layers_that_come_first() -> None:
    model = network()
    found = of(model)
    assert found is not None
    assert found.layers == tuple(model[:5]), "up to the first that has more weights than may be left"
    assert found.weights == {"0.weight", "0.bias", "1.weight", "1.bias"}


@pytest.mark.parametrize("share", [0.0, 0.01, 0.03])
def test_none_where_there_is_no_room_for_the_first(share: float) -> None:
    assert of(network(), share=share) is None


def test_all_of_the_weights_are_no_prefix() -> None:
    assert of(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.rand(4, 3), share=1.0) is None


def same_as_choosing(model: nn.Module, others: list[str], **more: Any) -> None:
    """Freezing the first layers must give what choosing the others gives."""
    curvature = Curvature.fit(model, PICTURES, forward=more.get("forward"))
    method, given = Forsaken(optimiser="gauss-newton", rounds=6), {"targets": TARGETS, "curvature": curvature, **more}
    frozen = dataclasses.replace(method, frozen_prefix=0.3)(model, PICTURES[:4], **given)
    plain = dataclasses.replace(method, frozen_prefix=0.0, parameters=others)(model, PICTURES[:4], **given)
    assert frozen.details.facts["left"] == sorted(curvature.names - set(others))
    assert plain.details.facts["left"] == []
    for name in ("distance_after", "sample_passes"):
        assert frozen.details.facts[name] == pytest.approx(plain.details.facts[name], rel=1e-3)
    for one, other in zip(frozen.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert frozen.details.facts["distance_after"] < 0.1 * frozen.details.facts["distance_before"]
    assert set(frozen.mask.entries) <= set(others)


@pytest.mark.parametrize("inplace", [False, True])
def test_the_same_as_choosing_the_other_weights(inplace: bool) -> None:
    model = network(inplace=inplace)
    same_as_choosing(model, [name for name, _ in model.named_parameters() if name[0] not in "01"])


def test_first_layers_are_not_computed_again() -> None:
    model, calls = network(), []
    model[0].register_forward_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    found = of(model)
    assert found is not None
    adapter, before = LogitModel(model), model[0].forward
    outputs = found.outputs(adapter, PICTURES)
    assert outputs is not None
    assert outputs[0].isnan().all()
    assert outputs[0].untyped_storage().nbytes() == 4, "what nobody looks at takes no room"
    expected = model(PICTURES)
    with torch.no_grad():
        model[0].weight.zero_()  # who computes it again would see this
    with found.giving(outputs):
        assert torch.equal(adapter(PICTURES), expected)
    assert model[0].forward == before
    assert not torch.equal(adapter(PICTURES), expected)


def test_a_model_with_a_forward_pass_of_its_own() -> None:
    found = of(Written(lambda _, said, __: said.relu()))
    assert found is not None
    assert found.weights == {"first.weight", "first.bias"}


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(lambda model, said, _: model.first(said[:, :1]), id="a layer is called twice"),
    ],
)
def test_no_prefix_where_more_than_the_last_output_counts(between: Callable[..., Tensor]) -> None:
    assert of(Written(between)) is None


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda model, said: said.mul_(2), id="twice as much"),
        pytest.param(lambda model, said: said.mul_(model.gain), id="times a weight that is one"),
        pytest.param(lambda model, said: said.add_(model.gain - 1), id="and a weight that is zero"),
    ],
)
def test_the_output_of_the_prefix_may_be_written_to(write: Callable[[Any, Tensor], Tensor]) -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            parts = layers()
            self.first, self.rest = nn.Sequential(parts[0], nn.MaxPool2d(2), nn.Flatten()), nn.Sequential(*parts[5:])
            self.gain = nn.Parameter(torch.ones(64))

        def forward(self, inputs: Tensor) -> Tensor:
            found: Tensor = self.rest(write(self, self.first(inputs)))
            return found

    model = Writing()
    same_as_choosing(model, [name for name, _ in model.named_parameters() if not name.startswith("first")])


def test_samples_that_go_another_way_pass_through_the_whole_model() -> None:
    """A prefix that holds for the two samples it is tried on need not hold for a batch."""
    model = network()
    others = [name for name, _ in model.named_parameters() if name[0] not in "01"]

    def one_by_one(each: nn.Module, inputs: Tensor) -> Tensor:
        return each(inputs) if len(inputs) < 3 else torch.cat([each(row[None]) for row in inputs])

    same_as_choosing(model, others, forward=one_by_one)
    seen: Tensor = model(PICTURES)

    def masked(each: nn.Module, inputs: Tensor) -> Tensor:  # looks at the first layer, where it must not
        first = each[0](inputs)
        found: Tensor = each[1:](first)
        return found if len(inputs) < 3 else found * first.isfinite().float().mean()

    assert torch.allclose(masked(model, PICTURES), seen)
    same_as_choosing(model, others, forward=masked)


def test_a_hook_of_the_users_own_is_not_applied_twice() -> None:
    model = network()
    model[4].register_forward_hook(lambda _, __, output: output * 1.004)
    assert of(model) is None


def test_a_layer_that_keeps_something_for_later_ends_the_prefix() -> None:
    class Keeping(nn.Module):
        kept: Tensor

        def forward(self, inputs: Tensor) -> Tensor:
            self.kept = inputs.mean()
            return inputs

    model = nn.Sequential(layers()[0], Keeping(), *layers()[1:]).eval()
    found = of(model)
    assert found is not None
    assert found.layers == (model[0],)


def test_a_model_that_minds_what_it_sees_has_no_prefix() -> None:
    class Minding(Written):
        def forward(self, inputs: Tensor) -> Tensor:
            said = self.first(inputs)
            if not bool(said.isfinite().all()):
                raise KeyError("not for a log")
            found: Tensor = self.rest(said)
            return found

    assert of(Minding(lambda _, said, __: said)) is None


def test_buffers_that_a_call_changes_are_given_back() -> None:
    class Counting(nn.Sequential):
        def forward(self, inputs: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(inputs)

    model = Counting(*layers()).eval()
    model.register_buffer("calls", torch.zeros(()))
    curvature = Curvature.fit(model, PICTURES)
    assert int(model.calls) == 0
    result = Forsaken(rounds=3)(model, PICTURES[:4], targets=TARGETS, curvature=curvature)
    assert result.details.facts["left"]
    assert int(result.model.calls) == 0
    assert torch.equal(result.mask.apply(model)(PICTURES), result.model(PICTURES))


def test_no_prefix_where_an_earlier_output_is_used_again() -> None:
    class Again(Written):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs) + self.kept.mean()

        def keep(self, said: Tensor) -> Tensor:
            self.kept = said
            return said

    assert of(Again(lambda model, said, _: model.keep(said))) is None


def test_a_weight_between_the_layers_ends_the_prefix_before_it() -> None:
    found = of(Written(lambda model, said, _: said * model.scale))
    assert found is None or found.weights == {"first.weight", "first.bias"}


def test_a_prefix_that_depends_on_another_weight_is_none() -> None:
    class Scaled(Written):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs * self.scale[0])

    assert of(Scaled(lambda _, said, __: said)) is None


def test_weights_that_are_shared_are_no_prefix() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 64), nn.Linear(64, 3))
    model[2].weight = model[0].weight
    assert of(model, torch.rand(5, 4)) is None


def test_what_would_not_fit_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "PREFIX_BYTES", 9 * 64 * 4)
    assert of(network()) is not None
    monkeypatch.setattr(place, "PREFIX_BYTES", 9 * 64 * 4 - 1)
    assert of(network()) is None


def test_a_small_model_has_no_layers_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    others = 64 * 16 + 16 + 16 * 3 + 3
    monkeypatch.setattr(place, "MIN_FREE", others / (9 * 3))
    assert of(network()) is not None
    monkeypatch.setattr(place, "MIN_FREE", others / (9 * 3) + 0.01)
    assert of(network()) is None


def test_the_papers_networks() -> None:
    pictures = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    found = of(vgg16(10), pictures)
    assert found is not None
    assert "25.weight" in found.weights
    assert "28.weight" not in found.weights
    words = torch.randint(0, 50, (3, 1000))
    assert of(NewsConvolutions(torch.randn(50, 100), classes=20), words.repeat(200, 1)) is None, "too small for so many"
    found = of(NewsConvolutions(torch.randn(50, 100), classes=20), words)
    assert found is not None
    assert found.weights == {"layers.0.weight", "layers.0.bias"}
    assert of(TextConvolutions(25002, classes=2), torch.randint(1, 50, (3, 40))) is None, "its words are most of it"


def test_buffers_and_modes_stay_as_they_were() -> None:
    model = network().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    curvature = Curvature.fit(model, PICTURES)
    result = forsaken.unlearn(model, PICTURES[:4], targets=TARGETS, curvature=curvature, frozen_prefix=0.3, rounds=2)
    assert result.details.facts["left"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert not any("forward" in vars(module) for module in (*model.modules(), *result.model.modules()))
