"""Running statistics measured anew: known answers, and nothing else changed."""

from __future__ import annotations

import torch
from torch import nn

from forsaken.data.samples import Samples
from forsaken.models.batch_norm import measure_statistics, statistics_of
from forsaken.models.weights import fingerprint


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(),
        nn.LazyLinear(5), nn.BatchNorm1d(5),
    )  # fmt: skip


def trained() -> tuple[nn.Module, torch.Tensor]:
    model, pictures = network(), torch.randn(700, 3, 6, 6, generator=torch.Generator().manual_seed(1)) * 2 + 1
    for part in pictures.split(50):
        model.train()(part)
    return model.eval(), pictures


def test_the_first_layer_has_the_moments_of_the_samples() -> None:
    model, pictures = trained()
    assert measure_statistics(model, Samples(pictures)) == ["0", "2", "7"]
    flat = pictures.double().movedim(1, -1).reshape(-1, 3)
    first = model.get_submodule("0")
    torch.testing.assert_close(first.running_mean, flat.mean(0).float())
    torch.testing.assert_close(first.running_var, flat.var(0).float())


def test_one_batch_agrees_with_the_moments_of_each_layers_inputs() -> None:
    model, pictures = trained()
    some = pictures[:200]  # one batch, which later layers are normalised by
    measure_statistics(model, Samples(some))
    inside = some
    for name, layer in model.named_children():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            flat = inside.detach().double().movedim(1, -1).reshape(-1, layer.num_features)
            torch.testing.assert_close(layer.running_mean, flat.mean(0).float(), rtol=1e-4, atol=1e-5, msg=name)
            torch.testing.assert_close(layer.running_var, flat.var(0).float(), rtol=1e-3, atol=1e-5, msg=name)
            inside = nn.functional.batch_norm(inside, None, None, layer.weight, layer.bias, training=True)
        else:
            inside = layer(inside)


def test_samples_that_are_left_out_leave_no_trace_and_the_order_of_a_training_none() -> None:
    model, pictures = trained()
    other, _ = trained()
    for part in pictures[:100].split(20):
        other.train()(part * 100)  # a training that met something else last
    for each in (model, other.eval()):
        measure_statistics(each, Samples(pictures[100:]))
        for layer in ("0", "2", "7"):
            each.get_submodule(layer).num_batches_tracked.zero_()
    assert fingerprint(model) == fingerprint(other)


def test_the_order_of_the_rows_hardly_matters() -> None:
    (model, pictures), (other, _) = trained(), trained()
    pictures = torch.cat([pictures] * 3)
    measure_statistics(model, Samples(pictures))
    measure_statistics(other, Samples(pictures[torch.randperm(len(pictures))]))
    for name in ("0", "2", "7"):
        one, two = model.get_submodule(name), other.get_submodule(name)
        torch.testing.assert_close(one.running_mean, two.running_mean, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(one.running_var, two.running_var, rtol=2e-2, atol=2e-2)


def test_nothing_else_changes() -> None:
    model, pictures = trained()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    momenta = [layer.momentum for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    measure_statistics(model, Samples(pictures))
    for name, value in model.state_dict().items():
        assert name.endswith(("running_mean", "running_var")) or torch.equal(value, before[name])
    assert not any(module.training for module in model.modules())
    assert momenta == [0.1, 0.1, 0.1]


def test_a_model_without_statistics() -> None:
    plain = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    assert statistics_of(plain) == measure_statistics(plain, Samples(torch.randn(4, 2))) == []
