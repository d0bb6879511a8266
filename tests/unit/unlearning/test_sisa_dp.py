"""SISA-DP in both readings: noise on what is published, and DP-SGD with Opacus's accountant."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch import nn

from forsaken._random import torch_seed
from forsaken.bench.networks import mlp
from forsaken.data.samples import Samples
from forsaken.errors import ModelError, SettingsError
from forsaken.models.train import Training
from forsaken.models.weights import fingerprint
from forsaken.recipe import Recipe
from forsaken.unlearning.sisa.dp_sgd import ORDERS, PrivateTrainer, SisaDpSgd, noise_for, private_plan, spent
from forsaken.unlearning.sisa.method import Sisa
from forsaken.unlearning.sisa.noise import SisaDp, published, unit_deviation
from forsaken.unlearning.sisa.shards import SliceStage

RECIPE = Recipe(epochs=4, batch_size=8, learning_rate=1e-2)


def samples(count: int = 60, seed: int = 0) -> Samples:
    draw = torch.Generator().manual_seed(seed)
    return Samples(torch.randn(count, 6, generator=draw), torch.randint(3, (count,), generator=draw))


DATA = samples()
TRAINING = Training(lambda: mlp((6, 300, 3)), RECIPE)


# The noise of the Gaussian mechanism


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (4.0, 1e-3), (16.0, 1e-5), (40.0, 1e-9)])
def test_deviation_against_the_integral_of_the_definition(epsilon: float, delta: float) -> None:
    sigma = unit_deviation(epsilon, delta)
    one, two = norm(1, sigma), norm(0, sigma)

    def excess(x: float) -> float:
        return max(0.0, float(one.pdf(x) - math.exp(epsilon) * two.pdf(x)))

    # the densities cross once; beyond that the first is the larger: δ is what it is larger by
    cross = sigma**2 * epsilon + 0.5
    found, _ = quad(excess, cross, cross + 12 * sigma, points=[cross + sigma], epsabs=delta * 1e-8, limit=500)
    assert found == pytest.approx(delta, rel=1e-4)


def test_deviation_is_below_the_classic_bound_where_that_holds() -> None:
    for epsilon in (0.2, 0.5, 1.0):
        classic = math.sqrt(2 * math.log(1.25 / 1e-5)) / epsilon
        assert 0.5 * classic < unit_deviation(epsilon, 1e-5) < classic


def test_an_update_is_cut_to_the_clip() -> None:
    start = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        start.weight.copy_(torch.tensor([[1.0, 1.0]]))
    draw = np.random.default_rng(0)
    far = published(start, {"weight": torch.tensor([[4.0, 5.0]])}, 1.0, 0.0, draw)  # an update of (3, 4)
    assert torch.allclose(far["weight"], torch.tensor([[1.6, 1.8]]))
    near = published(start, {"weight": torch.tensor([[1.3, 1.4]])}, 1.0, 0.0, draw)
    assert torch.allclose(near["weight"], torch.tensor([[1.3, 1.4]]))


def test_running_statistics_are_noised_and_stay_usable() -> None:
    start = nn.Sequential(nn.Linear(3, 400), nn.BatchNorm1d(400))
    state = {name: value.clone() for name, value in start.state_dict().items()}
    found = published(start, state, 1.0, 5.0, np.random.default_rng(0))
    assert float(found["1.running_mean"].std()) == pytest.approx(5.0, rel=0.15)
    assert float(found["1.running_var"].min()) == 0.0
    assert found["1.num_batches_tracked"] == state["1.num_batches_tracked"]


class Counting(nn.Module):
    """Remembers the mean of what it was shown, in a buffer of its own."""

    def __init__(self, buffer: torch.Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("shown", buffer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.shown += x.detach().mean(0).to(self.shown.dtype) if self.shown.is_floating_point() else len(x)
        return self.layer(x)


@pytest.mark.parametrize("kind", [torch.float32, torch.int64], ids=str)
def test_buffers_that_training_moves_are_refused_and_leave_no_file(tmp_path, kind: torch.dtype) -> None:
    training = Training(lambda: Counting(torch.zeros(6, dtype=kind)), RECIPE)
    with pytest.raises(ModelError, match=r"training moves shown, .* without noise; use a network .*or sisa"):
        SisaDp(shards=2, slices=2).prepare(training, DATA, seed=0, folder=tmp_path)
    assert not list(tmp_path.iterdir()), "checkpoints without noise"
    still = Training(lambda: nn.Sequential(mlp((6, 3)), nn.BatchNorm1d(3), nn.Hardtanh()), RECIPE)
    SisaDp(shards=2, slices=2).prepare(still, DATA, seed=0)


def test_tied_weights_are_noised_under_every_name() -> None:
    start = nn.Sequential(nn.Linear(50, 50, bias=False), nn.Linear(50, 50, bias=False))
    start[1].weight = start[0].weight
    state = {name: value.detach() + 0.01 for name, value in start.state_dict().items()}
    found = published(start, state, 1.0, 5.0, np.random.default_rng(0))
    assert torch.equal(found["0.weight"], found["1.weight"])
    # the update has the norm 0.01 · √2500 = 0.5, counted once, so nothing is cut
    noise = (found["1.weight"] - state["1.weight"]).detach()
    assert float(noise.std()) == pytest.approx(5.0, rel=0.05)


def update(model: nn.Module, shard: int, start: nn.Module) -> torch.Tensor:
    then = dict(start.named_parameters())
    return torch.cat([(p - then[name]).flatten() for name, p in model.constituents[shard].named_parameters()]).detach()


@pytest.mark.parametrize("sensitivity", ["proven", "assumed"])
def test_published_constituents_are_those_of_sisa_cut_and_noised(sensitivity: str) -> None:
    method = SisaDp(shards=3, slices=4, clip=0.5, sensitivity=sensitivity)
    noisy = method.prepare(TRAINING, DATA, seed=5).model
    plain = Sisa(shards=3, slices=4).prepare(TRAINING, DATA, seed=5).model
    sigma = 2 * 0.5 * unit_deviation(16.0, 1e-5) / (1 if sensitivity == "proven" else 20)
    for shard in range(3):
        with torch_seed(plain.ensemble_state.sharded.start_seed(shard)):
            start = mlp((6, 300, 3))
        raw = update(plain, shard, start)
        assert raw.norm() > 0.5
        noise = update(noisy, shard, start) - raw * 0.5 / raw.norm()
        assert float(noise.std()) == pytest.approx(sigma, rel=0.05)
        assert abs(float(noise.mean())) < 4 * sigma / math.sqrt(len(noise))
    facts = method(noisy, DATA.inputs[:1]).details.facts
    assert facts["noise_deviation"] == pytest.approx(sigma)


def test_requests_publish_anew_what_they_touch_and_count_it() -> None:
    method = SisaDp(shards=3, slices=4, epsilon=2.0)
    model = method.prepare(TRAINING, DATA, seed=5).model
    sharded = model.ensemble_state.sharded
    first = method(model, sharded.of(1).inputs[:1])
    for shard, same in ((0, True), (1, False), (2, True)):
        ours, theirs = first.model.constituents[shard], model.constituents[shard]
        assert (fingerprint(ours) == fingerprint(theirs)) == same
    second = method(first.model, sharded.of(1).inputs[1:2])
    assert (first.details.facts["epsilon_spent"], second.details.facts["epsilon_spent"]) == (4.0, 6.0)
    assert second.details.facts["delta_spent"] == pytest.approx(3e-5)
    assert any("(3 times) have spent ε = 6, δ = 3e-05" in note for note in second.notes)
    assert not any("nothing proves" in note for note in second.notes)


def test_two_requests_from_one_model_do_not_share_their_noise() -> None:
    # shared noise would cancel in the difference of two published models, and leave what it should hide
    method = SisaDp(shards=1, slices=4, space=0)
    model = method.prepare(TRAINING, DATA, seed=5).model
    one, two = (method(model, DATA.inputs[at : at + 1], seed=0).model for at in (0, 1))
    with torch_seed(model.ensemble_state.sharded.start_seed(0)):
        start = mlp((6, 300, 3))
    difference = update(one, 0, start) - update(two, 0, start)
    sigma = method(model, DATA.inputs[:1]).details.facts["noise_deviation"]
    assert float(difference.std()) == pytest.approx(math.sqrt(2) * sigma, rel=0.05)
    again = method(model, DATA.inputs[:1], seed=0).model
    assert fingerprint(again) == fingerprint(one), "and yet the seed decides everything"
    assert fingerprint(method(model, DATA.inputs[:1], seed=1).model) != fingerprint(one)


def test_an_assumed_sensitivity_is_told() -> None:
    method = SisaDp(shards=2, slices=2, sensitivity="assumed")
    model = method.prepare(TRAINING, DATA, seed=0).model
    assert any("which nothing proves" in note for note in method(model, DATA.inputs[:1]).notes)


def test_an_ensemble_is_its_own_method_s() -> None:
    model = Sisa(shards=2, slices=2).prepare(TRAINING, DATA, seed=0).model
    with pytest.raises(SettingsError, match="prepared by Sisa; SisaDp cannot"):
        SisaDp(shards=2, slices=2)(model, DATA.inputs[:1])


# DP-SGD

opacus = pytest.importorskip("opacus")


def private(shards: int = 2, **settings: float) -> SisaDpSgd:
    return SisaDpSgd(shards=shards, slices=4, **settings)


def test_epsilon_is_the_accountant_s_over_the_steps_that_were_taken(monkeypatch) -> None:
    from opacus.accountants import RDPAccountant
    from opacus.optimizers import DPOptimizerFastGradientClipping as Optimiser

    taken: list[tuple[int, float, int]] = []  # which optimiser, its noise, rows in sight
    real = Optimiser.step

    def step(self, closure=None):
        taken.append((id(self), self.noise_multiplier, self.seen))
        return real(self, closure)

    original = PrivateTrainer.train_stage

    def train_stage(self, network, data, stage, seed):
        Optimiser.seen = len(data)
        return original(self, network, data, stage, seed)

    monkeypatch.setattr(Optimiser, "step", step)
    monkeypatch.setattr(PrivateTrainer, "train_stage", train_stage)
    data = samples(64)
    method = private()
    model = method.prepare(Training(lambda: mlp((6, 3)), RECIPE), data, seed=1).model

    def by_hand(steps: list[tuple[int, float, int]]) -> float:
        accountant = RDPAccountant()
        for _, noise, rows in steps:  # 8 rows a slice, 8 a batch: chances of 1, 1/2, 2^(-6/4) and 1/4
            rate = {8: 1.0, 16: 0.5, 24: 2**-1.5, 32: 0.25}[rows]
            accountant.step(noise_multiplier=noise, sample_rate=rate)
        return accountant.get_epsilon(1e-5, alphas=list(ORDERS))

    half = len(taken) // 2
    assert [rows for _, _, rows in taken[:half]] == [rows for _, _, rows in taken[half:]], "two shards alike"
    prepared = taken[:half]
    assert method.epsilon_spent(model) == pytest.approx(by_hand(prepared), rel=1e-9)
    assert 15.5 < method.epsilon_spent(model) <= 16.0, "all stages together spend the budget, and no more"

    taken.clear()
    sharded = model.ensemble_state.sharded
    at = np.flatnonzero((sharded.shard == 0) & (sharded.slice == 3))[:1]
    result = method(model, sharded.data.rows(at).inputs)
    # one row fewer is in sight, but steps are drawn with the chances of before
    again = [(who, noise, rows + 1) for who, noise, rows in taken]
    assert {rows for _, _, rows in again} == {24, 32}
    expected = by_hand([*prepared, *again])
    assert result.details.facts["epsilon_spent"] == pytest.approx(expected, rel=1e-9)
    assert expected > 16.0
    assert any(f"have spent ε = {expected:.2f} at δ = 1e-05, not 16" in note for note in result.notes)


def test_opacus_s_own_orders_hardly_lower_epsilon() -> None:
    from opacus.accountants import RDPAccountant

    stages = private_plan((20, 40), (20, 40), 20, 16)
    noise = noise_for(stages, 16.0, 1e-5)
    accountant = RDPAccountant()
    accountant.history = [(noise, stage.rate, stage.steps) for stage in stages]
    assert 0.98 * spent(stages, noise, 1e-5) < accountant.get_epsilon(1e-5) <= spent(stages, noise, 1e-5)


def test_noise_agrees_with_opacus_where_the_rate_is_one() -> None:
    from opacus.accountants.utils import get_noise_multiplier

    stages = [SliceStage(100, 10, 300, 3000, 0.1)]
    theirs = get_noise_multiplier(
        target_epsilon=16.0, target_delta=1e-5, sample_rate=0.1, steps=300, accountant="rdp", alphas=list(ORDERS)
    )
    assert noise_for(stages, 16.0, 1e-5) == pytest.approx(theirs, rel=3e-3)
    assert spent(stages, noise_for(stages, 16.0, 1e-5), 1e-5) <= 16.0
    assert spent([], 1.0, 1e-5) == 0.0


def test_private_stages_pass_as_many_samples_as_plain_training() -> None:
    sizes = tuple(range(4, 401, 4))
    stages = private_plan(sizes, sizes, 40, 128)
    assert sum(stage.passes for stage in stages) == pytest.approx(40 * 400, rel=0.02)
    for stage in stages:
        assert min(128, stage.rows) <= stage.rate * stage.rows < 128 * 2**0.25 + 1e-9 or stage.rate == 1.0
    fewer = private_plan((*sizes[:50], *(size - 4 for size in sizes[50:])), sizes, 40, 128)
    assert [(s.rate, s.steps, s.batch) for s in fewer] == [(s.rate, s.steps, s.batch) for s in stages]


SGD = Training(lambda: nn.Linear(6, 3), Recipe(1, 8, 0.5, optimiser="sgd"))


def one_step(data: Samples, noise: float, *, clip: float = 0.3, rate: float = 1.0, seed: int = 3) -> nn.Module:
    with torch_seed(0):
        network = nn.Linear(data.inputs.shape[1], 3)
    return PrivateTrainer(SGD, noise, clip).train_stage(network, data, SliceStage(len(data), 8, 1, 8, rate), seed)


def test_a_step_clips_each_sample_by_hand() -> None:
    data = samples(8)
    with torch_seed(0):
        start = nn.Linear(6, 3)
    total, cut = [torch.zeros_like(p) for p in start.parameters()], 0
    for x, y in zip(data.inputs, data.labels, strict=True):
        loss = nn.functional.cross_entropy(start(x[None]), y[None])
        gradient = torch.autograd.grad(loss, list(start.parameters()))
        length = math.sqrt(sum(float(part.square().sum()) for part in gradient))
        cut += length > 0.3
        total = [old + part * min(1.0, 0.3 / length) for old, part in zip(total, gradient, strict=True)]
    assert cut > 0
    after = one_step(data, 0.0)
    for old, new, part in zip(start.parameters(), after.parameters(), total, strict=True):
        assert torch.allclose(new, old - 0.5 * 1.9 * part / 8, atol=1e-5)  # Nesterov's first step is 1 + 0.9


def test_one_sample_moves_a_step_by_no_more_than_the_clip() -> None:
    data = samples(9)
    wild = Samples(torch.cat([data.inputs[:8], 1e3 * data.inputs[8:]]), data.labels)
    with_it, without = one_step(wild, 0.0), one_step(Samples(data.inputs[:8], data.labels[:8]), 0.0)
    moved = math.sqrt(
        sum(
            float((a - b).detach().square().sum())
            for a, b in zip(with_it.parameters(), without.parameters(), strict=True)
        )
    )
    assert 0.9 < moved / (0.5 * 1.9 * 0.3 / 8) < 1.0 + 1e-4


@pytest.mark.parametrize("rate", [1.0, 1e-9], ids=["everybody", "nobody drawn"])
def test_noise_has_the_deviation_that_the_accountant_counts_on(rate: float) -> None:
    draw = torch.Generator().manual_seed(0)
    wide = Samples(torch.randn(8, 2000, generator=draw), torch.arange(8) % 3)
    noisy, plain = one_step(wide, 2.0, rate=rate), one_step(wide, 0.0, rate=rate)
    difference = (noisy.weight - plain.weight).detach() / (0.5 * 1.9)
    assert float(difference.std()) == pytest.approx(2.0 * 0.3 / 8, rel=0.05)
    other = one_step(wide, 2.0, rate=rate, seed=4)
    assert not torch.equal(other.weight, noisy.weight)


def test_forgetting_is_exact_with_private_training_too() -> None:
    training = Training(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 3)), RECIPE
    )
    kept, bare = private(), private(space=0)
    one, two = (method.prepare(training, DATA, seed=2).model for method in (kept, bare))
    assert fingerprint(one) == fingerprint(two)
    assert not any(isinstance(part, nn.BatchNorm1d) for part in one.modules()), "group-norm took its place"
    assert sum(isinstance(part, nn.GroupNorm) for part in one.modules()) == 2
    sharded = one.ensemble_state.sharded
    forget = sharded.data.rows(np.flatnonzero((sharded.shard == 1) & (sharded.slice == 4))[:2]).inputs
    first, second = kept(one, forget), bare(two, forget)
    assert fingerprint(first.model) == fingerprint(second.model), "from a checkpoint as from the beginning"
    assert first.details.facts["stages_retrained"] == 1
    assert second.details.facts["stages_retrained"] == 4
    assert second.details.facts["epsilon_spent"] > first.details.facts["epsilon_spent"], "more steps spend more"


def test_a_request_does_not_share_the_noise_of_the_training_before() -> None:
    # one step on everybody: the models differ by the noise of two steps, or by what the noise should have hidden
    draw = torch.Generator().manual_seed(0)
    wide = Samples(torch.randn(16, 2000, generator=draw), torch.arange(16) % 3)
    training = Training(lambda: nn.Linear(2000, 3), Recipe(1, 16, 0.5, optimiser="sgd"))
    method = SisaDpSgd(shards=1, slices=1, clip=0.3)
    model = method.prepare(training, wide, seed=1).model
    one, two = (method(model, wide.inputs[at : at + 1]) for at in (0, 1))
    assert model.ensemble_state.trainer.plan((16,), (16,)) == (SliceStage(16, 16, 1, 16, 1.0),)
    sigma = one.details.facts["noise_multiplier"] * 0.3 / 16 * 0.5 * 1.9  # Nesterov's first step is 1 + 0.9
    weights = [each.constituents[0].weight.detach() for each in (model, one.model, two.model)]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert float((weights[a] - weights[b]).std()) == pytest.approx(math.sqrt(2) * sigma, rel=0.05)
    again = method(model, wide.inputs[:1])
    assert fingerprint(again.model) == fingerprint(one.model)


def test_noise_and_draws_follow_the_rows_of_a_stage_and_of_those_before() -> None:
    method = private()
    model = method.prepare(Training(lambda: mlp((6, 3)), RECIPE), DATA, seed=1).model
    sharded, trainer = model.ensemble_state.sharded, model.ensemble_state.trainer
    gone = np.flatnonzero((sharded.shard == 0) & (sharded.slice == 3))[:1]
    before, after = ([trainer.seeds(books, shard) for shard in (0, 1)] for books in (sharded, sharded.without(gone)))
    assert [a == b for a, b in zip(before[0], after[0], strict=True)] == [True, True, False, False]
    assert before[1] == after[1]
    assert len({*before[0], *before[1], *after[0]}) == 4 + 4 + 2


def test_a_private_request_that_no_step_had_used_spends_nothing() -> None:
    method = SisaDpSgd(shards=1, slices=16)
    training = Training(lambda: mlp((6, 3)), Recipe(1, 64, 1e-2))
    model = method.prepare(training, samples(32), seed=0).model
    sizes = model.ensemble_state.sharded.sizes(0)
    assert model.ensemble_state.trainer.plan(sizes, sizes)[-1].steps == 0, "the last stage has no steps"
    result = method(model, model.ensemble_state.sharded.of(0).inputs[-1:])
    assert result.stopped == "not-memorised"
    assert result.details.facts["epsilon_spent"] == method.epsilon_spent(model) <= 16.0
    assert not any("have spent" in note for note in result.notes)


def test_private_training_leaves_no_trace_of_opacus_behind() -> None:
    network = one_step(samples(8), 1.0)
    assert not any(part._forward_hooks or part._backward_hooks for part in network.modules())
    assert all(weight.grad is None for weight in network.parameters())


def test_a_network_that_opacus_cannot_take_is_told() -> None:
    training = Training(
        lambda: nn.Sequential(nn.Linear(6, 3), nn.InstanceNorm1d(3, track_running_stats=True, affine=True)), RECIPE
    )
    with pytest.raises(ModelError, match=r"cannot be trained by DP-SGD .*use sisa or sisa-dp"):
        private().prepare(training, DATA, seed=0)


@pytest.mark.parametrize("ignored", [{"augmentation": "word-dropout"}, {"clip": 1.0}], ids=["augmentation", "clip"])
def test_what_private_training_would_ignore_is_refused(ignored: dict[str, object]) -> None:
    training = Training(TRAINING.build, replace(RECIPE, **ignored))  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=f"the recipe has {next(iter(ignored))}, which DP-SGD does not use"):
        SisaDpSgd(shards=1, slices=1).prepare(training, DATA, seed=0)


def test_without_opacus_the_remedy_is_told(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus.accountants", None)
    with pytest.raises(SettingsError, match=r"pip install 'forsaken\[dp\]'"):
        private().prepare(TRAINING, DATA, seed=0)
