"""Known answers of the methods that choose weights: SalUn, SSD, MSG and CT."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from forsaken._random import generator
from forsaken.bench.networks import mlp
from forsaken.errors import InputError, ModelError, NothingForgottenError
from forsaken.models.train import Training
from forsaken.models.weights import same_bits
from forsaken.recipe import Recipe
from forsaken.unlearning.ct import Ct
from forsaken.unlearning.msg import Msg, smallest
from forsaken.unlearning.salun import SalUn, largest, other_labels
from forsaken.unlearning.ssd import Ssd, dampening

DRAW = torch.Generator().manual_seed(5)
FORGET = torch.randn(6, 5, generator=DRAW), torch.randint(3, (6,), generator=DRAW)
RETAIN = torch.randn(8, 5, generator=DRAW), torch.randint(3, (8,), generator=DRAW)
PICTURES = torch.randn(6, 1, 6, 6, generator=DRAW), torch.randint(3, (6,), generator=DRAW)
KEPT = torch.randn(8, 1, 6, 6, generator=DRAW), torch.randint(3, (8,), generator=DRAW)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return mlp((5, 8, 3))


def convolutions() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU(), nn.Conv2d(4, 5, (1, 2)), nn.Flatten(),
            nn.Linear(60, 3),
        )  # fmt: skip


def gradients(model: nn.Module, *terms: tuple[float, tuple[Tensor, Tensor]]) -> list[Tensor]:
    total = sum(factor * cross_entropy(model(x), y) for factor, (x, y) in terms)
    return list(torch.autograd.grad(total, list(model.parameters())))  # type: ignore[arg-type]


# SalUn


def test_salun_s_other_half_is_bit_identical_after_ten_steps_with_decay_and_momentum() -> None:
    model = network()
    method = SalUn(epochs=10, learning_rate=0.1, momentum=0.9, weight_decay=0.1)
    result = method(model, FORGET, retain=RETAIN)
    assert result.details.facts["steps"] == 10
    flat = torch.cat([each.abs().flatten() for each in gradients(model, (1.0, FORGET))])
    was, now = (torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (model, result.model))
    order = flat.argsort(descending=True)
    half = round(0.5 * len(flat))
    assert bool(same_bits(was, now)[order[half:]].all())
    assert not bool((was == now)[order[:half]].any()), "every salient weight moved"
    assert result.details.facts == {"steps": 10, "salient": half, "weights": len(flat)}


def test_salun_s_other_half_has_no_momentum(monkeypatch) -> None:
    # momentum that gathers behind the mask would break loose wherever a weight is let go
    made: list[torch.optim.SGD] = []

    class Watched(torch.optim.SGD):
        def __init__(self, *given: Any, **settings: Any) -> None:
            super().__init__(*given, **settings)
            made.append(self)

    monkeypatch.setattr(torch.optim, "SGD", Watched)
    model = network()
    SalUn(epochs=3, weight_decay=0.1)(model, FORGET, retain=RETAIN)
    masks = largest(dict(zip("abcd", gradients(model, (1.0, FORGET)), strict=True)), 0.5).values()
    for state, mask in zip(made[0].state.values(), masks, strict=True):
        assert bool((state["momentum_buffer"][~mask] == 0).all())
        assert bool((state["momentum_buffer"][mask] != 0).all())


def test_salun_s_salient_half_moves_as_plain_sgd_would() -> None:
    model = network().double()
    forget, retain = ((x.double(), y) for x, y in (FORGET, RETAIN))
    result = SalUn(epochs=3, learning_rate=0.1, momentum=0.5, weight_decay=0.1, retain_weight=2.0)(
        model, forget, retain=retain, seed=4
    )
    confused = forget[0], other_labels(forget[1], 3, 4)
    masks = list(largest(dict(enumerate(gradients(model, (1.0, forget)))), 0.5).values())  # type: ignore[arg-type]
    plain = copy.deepcopy(model)
    speeds = [torch.zeros_like(p) for p in plain.parameters()]
    for _ in range(3):
        found = gradients(plain, (1.0, confused), (2.0, retain))
        with torch.no_grad():
            for weight, gradient, mask, speed in zip(plain.parameters(), found, masks, speeds, strict=True):
                speed.mul_(0.5).add_(mask * (gradient + 0.1 * weight))
                weight.sub_(0.1 * speed)
    for a, b in zip(result.model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_one_threshold_over_all_parameters() -> None:
    found = largest({"small": torch.tensor([0.1, -0.2]), "large": torch.tensor([[-5.0, 3.0]])}, 0.5)
    assert found["small"].tolist() == [False, False]
    assert found["large"].tolist() == [[True, True]]


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.25, 2), (0.5, 4), (1.0, 8)])
def test_ties_do_not_let_more_weights_through(share: float, count: int) -> None:
    zeros = {"a": torch.zeros(5), "b": torch.tensor([0.0, 2.0, 0.0])}
    found = largest(zeros, share)
    assert sum(int(part.sum()) for part in found.values()) == count
    assert bool(found["b"][1]) == (count > 0)


def test_random_labels_are_never_the_sample_s_own_and_all_others_occur() -> None:
    labels = torch.arange(4).repeat(500)
    drawn = other_labels(labels, 4, 0)
    assert not bool((drawn == labels).any())
    counts = torch.bincount(drawn[labels == 2], minlength=4).tolist()
    assert counts[2] == 0
    assert min(counts[0], counts[1], counts[3]) > 120
    assert torch.equal(drawn, other_labels(labels, 4, 0))
    assert not torch.equal(drawn, other_labels(labels, 4, 1))


# SSD


class TwoWeights(nn.Module):
    """Logits (a x_1, b x_2): the gradients of the cross-entropy are ((p_1 - y_1) x_1, (p_2 - y_2) x_2)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.tensor(value, dtype=torch.float64)) for value in (1.0, -2.0))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([self.a * x[:, 0], self.b * x[:, 1]], 1)


def test_ssd_scales_two_weights_by_hand() -> None:
    forget = torch.tensor([[3.0, 0.0], [1.0, 0.1]], dtype=torch.float64), torch.tensor([0, 1])
    retain = torch.tensor([[0.0, 1.0], [0.2, -1.0], [0.1, 2.0]], dtype=torch.float64), torch.tensor([0, 1, 0])

    def importance(data: tuple[Tensor, Tensor]) -> Tensor:
        logits = torch.stack([1.0 * data[0][:, 0], -2.0 * data[0][:, 1]], 1)
        error = logits.softmax(1) - torch.eye(2, dtype=torch.float64)[data[1]]
        return (error * data[0]).square().mean(0)

    on_forget, on_retain = importance(forget), importance(retain)
    on_all = (2 * on_forget + 3 * on_retain) / 5
    assert on_forget[0] > 1.5 * on_all[0]
    assert on_forget[1] < 1.5 * on_all[1]
    result = Ssd(alpha=1.5, damping=0.8)(TwoWeights(), forget, retain=retain)
    assert result.model.a.item() == pytest.approx(float(0.8 * on_all[0] / on_forget[0]))
    assert result.model.b.item() == -2.0
    assert result.details.facts["selected"] == 1
    assert result.details.facts["largest_ratio"] == pytest.approx(float((on_forget / on_all).max()))
    assert "2 forget samples" in result.notes[0]

    # 20 samples in all: the retain samples stand for 18
    wide = (2 * on_forget + 18 * on_retain) / 20
    result = Ssd(alpha=1.5, damping=0.8, training_samples=20)(TwoWeights(), forget, retain=retain)
    assert result.model.a.item() == pytest.approx(float(0.8 * wide[0] / on_forget[0]))
    assert "stand for the 18 training samples" in result.notes[0]


def test_ssd_takes_gradients_sample_by_sample() -> None:
    # the two forget samples' gradients cancel: a batch's gradient would be zero and select nothing
    forget = torch.tensor([[2.0, 0.0], [-2.0, 0.0]], dtype=torch.float64), torch.tensor([0, 0])
    model = TwoWeights()
    with torch.no_grad():
        model.a.zero_()
        model.a.add_(1e-9)
    batch = torch.autograd.grad(cross_entropy(model(forget[0]), forget[1]), model.a)[0]
    assert abs(float(batch)) < 1e-8
    retain = torch.tensor([[0.0, 1.0]] * 3, dtype=torch.float64), torch.tensor([0, 1, 0])
    assert Ssd(alpha=2.0)(model, forget, retain=retain).details.facts["selected"] == 1


def test_ssd_zeros_and_the_cap_at_one() -> None:
    chosen, factor = dampening(torch.tensor([0.0, 4.0, 4.0]), torch.tensor([0.0, 0.0, 2.0]), 1.0, 5.0)
    assert chosen.tolist() == [False, True, True]
    assert factor.tolist() == [1.0, 0.0, 1.0]


def test_ssd_that_selects_nothing_names_alpha() -> None:
    with pytest.raises(NothingForgottenError, match=r"alpha is 50, and the largest I_D / I_all is .*; lower alpha"):
        Ssd(alpha=50.0)(network(), FORGET, retain=RETAIN)
    with pytest.raises(NothingForgottenError, match="damping is 100, which leaves the chosen weights as they are"):
        Ssd(alpha=1.0, damping=100.0)(network(), FORGET, retain=RETAIN)


def test_ssd_refuses_fewer_training_samples_than_were_given() -> None:
    with pytest.raises(InputError, match="training_samples is 10, but there are 8 retain and 6 forget samples"):
        Ssd(training_samples=10)(network(), FORGET, retain=RETAIN)


# MSG


@pytest.mark.parametrize("count", [5, 6, 8])
def test_msg_redraws_the_smallest_and_repairs_the_rest_slowly(count: int) -> None:
    """With 8 kept and 6 forgotten, 6 of the kept are drawn for the gradient; the repair is on all."""
    model = convolutions()
    method = Msg(epochs=1, learning_rate=0.1, momentum=0.0, weight_decay=0.0, share=0.4, rest=0.25)
    kept = KEPT[0][:count], KEPT[1][:count]
    drawn = torch.from_numpy(generator(9, 23).permutation(count))[:6]
    assert len(drawn) == min(count, 6)
    result = method(model, PICTURES, retain=kept, seed=9)
    named = dict(model.named_parameters())
    found = dict(zip(named, gradients(model, (1.0, (kept[0][drawn], kept[1][drawn])), (-1.0, PICTURES)), strict=True))
    with torch.random.fork_rng():
        torch.manual_seed(int(generator(9, 24).integers(2**32)))
        fresh = copy.deepcopy(model)
        for module in fresh:
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    middle, chosen = copy.deepcopy(model), {}
    for name in ("0.weight", "2.weight", "4.weight"):
        count = round(0.4 * named[name].numel())
        rank = found[name].abs().flatten().argsort().argsort().view_as(found[name])
        chosen[name] = rank < count
        new = torch.where(chosen[name], fresh.get_parameter(name), named[name])
        middle.get_parameter(name).data.copy_(new)
    repair = dict(zip(named, gradients(middle, (1.0, kept)), strict=True))
    for name, weight in result.model.named_parameters():
        speed = torch.where(chosen[name], 1.0, 0.25) if name in chosen else torch.tensor(0.25)
        expected = middle.get_parameter(name) - 0.1 * speed * repair[name]
        assert torch.allclose(weight, expected, atol=1e-6), name
    assert result.details.facts["redrawn"] == sum(int(mask.sum()) for mask in chosen.values())


def test_smallest_takes_exactly_the_share_of_each() -> None:
    assert int(smallest(torch.zeros(10, 3), 0.3).sum()) == 9
    assert smallest(torch.tensor([-4.0, 0.1, 2.0]), 1 / 3).tolist() == [False, True, False]


def test_msg_draws_as_the_training_builds() -> None:
    def ones() -> nn.Module:
        model = convolutions()
        for each in model.parameters():
            nn.init.ones_(each)
        return model

    training = Training(ones, Recipe(1, 8, 1e-3))
    result = Msg(share=1.0, learning_rate=0.0)(convolutions(), PICTURES, retain=KEPT, training=training)
    assert bool((result.model[0].weight == 1).all())
    assert torch.equal(result.model[6].weight, convolutions()[6].weight)
    other = Training(network, Recipe(1, 8, 1e-3))
    with pytest.raises(ModelError, match=r"0\.weight cannot be drawn anew"):
        Msg()(convolutions(), PICTURES, retain=KEPT, training=other)


# CT


def test_ct_transposes_square_kernels_alone() -> None:
    model = convolutions()
    result = Ct(learning_rate=0.0)(model, PICTURES[0], retain=KEPT)
    assert torch.equal(result.model[0].weight, model[0].weight.transpose(2, 3))
    for at in (2, 4, 6):
        assert torch.equal(result.model[at].weight, model[at].weight)
    assert result.details.facts["transposed"] == 1
    assert result.details.facts["skipped"] == 2


def test_ct_turns_a_shared_kernel_once() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(1, 1, 3, padding=1), nn.Conv2d(1, 1, 3, padding=1)
            self.two.weight = self.one.weight
            self.out = nn.Linear(36, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.two(self.one(x)).flatten(1))

    model = Twice()
    result = Ct(learning_rate=0.0)(model, PICTURES[0], retain=KEPT)
    assert torch.equal(result.model.two.weight, model.one.weight.transpose(2, 3))


def test_ct_then_fine_tunes() -> None:
    model = convolutions()
    result = Ct(epochs=1, learning_rate=0.1, momentum=0.0, weight_decay=0.0)(model, PICTURES[0], retain=KEPT)
    turned = copy.deepcopy(model)
    turned[0].weight.data = turned[0].weight.data.transpose(2, 3).contiguous()
    found = gradients(turned, (1.0, KEPT))
    for weight, start, gradient in zip(result.model.parameters(), turned.parameters(), found, strict=True):
        assert torch.allclose(weight, start - 0.1 * gradient, atol=1e-6)


@pytest.mark.parametrize("kind", [Ct, Msg])
def test_dense_networks_have_nothing_to_work_on(kind: Any) -> None:
    with pytest.raises(ModelError, match="n/a on dense networks"):
        kind()(network(), FORGET, retain=RETAIN)


def test_ct_without_a_square_kernel() -> None:
    flat = nn.Sequential(nn.Conv1d(5, 3, 2), nn.Flatten())
    x, y = torch.randn(6, 5, 2), torch.tensor([0, 1, 2] * 2)
    with pytest.raises(ModelError, match=r"none of the model's 1 convolutions has a square kernel .*\(\(2,\)\)"):
        Ct()(flat, x[:3], retain=(x[3:], y[3:]))
