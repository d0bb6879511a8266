"""Known answers of the methods made of gradient steps: each objective against a few lines of plain torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from forsaken._random import generator
from forsaken.bench.networks import mlp
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError, NothingForgottenError, SettingsError
from forsaken.models.train import Training
from forsaken.recipe import Recipe
from forsaken.unlearning.bad_teacher import BadTeacher
from forsaken.unlearning.base import Request
from forsaken.unlearning.ct import Ct
from forsaken.unlearning.descent import descent_run, divergence, fresh
from forsaken.unlearning.do_nothing import DoNothing
from forsaken.unlearning.fine_tune import FineTune
from forsaken.unlearning.gradient_ascent import GradientAscent
from forsaken.unlearning.l1_sparse import L1Sparse
from forsaken.unlearning.msg import Msg
from forsaken.unlearning.neggrad_plus import NegGradPlus
from forsaken.unlearning.salun import SalUn
from forsaken.unlearning.scrub import Scrub
from forsaken.unlearning.ssd import Ssd

RATE, MOMENTUM, DECAY = 0.2, 0.7, 0.03
STEPS: dict[str, Any] = {"learning_rate": RATE, "momentum": MOMENTUM, "weight_decay": DECAY, "batch_size": 100}
DRAW = torch.Generator().manual_seed(3)
FORGET = torch.randn(7, 5, generator=DRAW, dtype=torch.float64), torch.randint(3, (7,), generator=DRAW)
RETAIN = torch.randn(9, 5, generator=DRAW, dtype=torch.float64), torch.randint(3, (9,), generator=DRAW)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return mlp((5, 6, 3)).double()


def descend(model: nn.Module, objectives: list[Callable[[nn.Module], Tensor]]) -> nn.Module:
    """SGD written out: v = m v + (g + w θ), θ = θ - r v, one step an objective."""
    model = copy.deepcopy(model)
    weights = list(model.parameters())
    speeds = [torch.zeros_like(weight) for weight in weights]
    for objective in objectives:
        gradients = torch.autograd.grad(objective(model), weights)
        with torch.no_grad():
            for weight, gradient, speed in zip(weights, gradients, speeds, strict=True):
                speed.mul_(MOMENTUM).add_(gradient + DECAY * weight)
                weight.sub_(RATE * speed)
    return model


def loss(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    logits = model(data[0])
    return -(logits - logits.logsumexp(1, keepdim=True))[torch.arange(len(data[1])), data[1]].mean()


def kl(p: Tensor, q: Tensor) -> Tensor:
    return (p.softmax(1) * (p.softmax(1).log() - q.softmax(1).log())).sum(1).mean()


def same(one: nn.Module, two: nn.Module) -> None:
    for (name, a), b in zip(one.named_parameters(), two.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12), name


def test_fine_tune_descends_on_retain_alone() -> None:
    result = FineTune(**STEPS, epochs=4)(network(), FORGET[0], retain=RETAIN)
    same(result.model, descend(network(), [lambda m: loss(m, RETAIN)] * 4))
    assert result.history[0].anchor == pytest.approx(loss(network(), RETAIN).item())
    assert result.history[-1].step == RATE


def test_gradient_ascent_ascends_on_forget_alone() -> None:
    result = GradientAscent(**STEPS, epochs=4)(network(), FORGET)
    same(result.model, descend(network(), [lambda m: -loss(m, FORGET)] * 4))
    distances = [step.distance for step in result.history]
    assert distances == sorted(distances)
    assert result.history[0].objective == pytest.approx(-loss(network(), FORGET).item())


def test_neggrad_plus_weighs_the_two() -> None:
    result = NegGradPlus(**STEPS, epochs=4, alpha=0.6)(network(), FORGET, retain=RETAIN)
    same(result.model, descend(network(), [lambda m: 0.6 * loss(m, RETAIN) - 0.4 * loss(m, FORGET)] * 4))


def test_l1_pull_falls_linearly_to_zero() -> None:
    result = L1Sparse(**STEPS, epochs=4, gamma=0.1)(network(), FORGET[0], retain=RETAIN)
    pulls = [0.1, 0.075, 0.05, 0.025]

    def with_pull(pull: float) -> Callable[[nn.Module], Tensor]:
        return lambda m: loss(m, RETAIN) + pull * sum(weight.abs().sum() for weight in m.parameters())

    same(result.model, descend(network(), [with_pull(pull) for pull in pulls]))
    size = sum(weight.abs().sum().item() for weight in network().parameters())
    assert result.history[0].penalty == pytest.approx(0.1 * size)


def test_scrub_ascends_then_descends_with_a_teacher_that_stays() -> None:
    teacher = network()
    before = copy.deepcopy(teacher.state_dict())
    result = Scrub(**STEPS, epochs=3, ascent_epochs=2, alpha=0.5, gamma=0.9)(teacher, FORGET[0], retain=RETAIN)
    on_forget, on_retain = teacher(FORGET[0]).detach(), teacher(RETAIN[0]).detach()

    def up(m: nn.Module) -> Tensor:
        return -kl(on_forget, m(FORGET[0]))

    def down(m: nn.Module) -> Tensor:
        return 0.9 * loss(m, RETAIN) + 0.5 * kl(on_retain, m(RETAIN[0]))

    same(result.model, descend(teacher, [up, down, up, down, down]))
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())
    assert result.history[-1].distance == pytest.approx(kl(on_forget, result.model(FORGET[0])).item())
    assert result.details.facts["steps"] == 5


def test_scrub_s_student_moves_without_weight_decay() -> None:
    # an optimiser that holds the teacher's weights would leave the student where it was
    result = Scrub(learning_rate=0.5, weight_decay=0.0)(network(), FORGET[0], retain=RETAIN)
    assert all(not torch.equal(a, b) for a, b in zip(result.model.parameters(), network().parameters(), strict=True))


def test_scrub_s_curve_leaves_the_model_alone() -> None:
    """D lies far off: were it measured in training mode, batch-norm's statistics would follow it there."""
    far = FORGET[0] + 5
    result = Scrub(learning_rate=1e-8, epochs=5, ascent_epochs=3)(normalised().eval(), far, retain=RETAIN)
    assert result.details.facts["steps"] == 8
    assert int(result.model[1].num_batches_tracked) == 8
    by_hand = normalised().train()
    for data in [far, RETAIN[0]] * 3 + [RETAIN[0]] * 2:
        by_hand(data)
    assert torch.allclose(result.model[1].running_mean, by_hand[1].running_mean, atol=1e-3)
    teacher = normalised().eval()(far).detach()
    assert result.history[-1].distance > 1e-3
    assert result.history[-1].distance == pytest.approx(kl(teacher, result.model(far)).item(), rel=1e-6)


def test_scrub_s_curve_draws_nothing() -> None:
    """Whatever is measured between, retain is read in the same order."""
    seen: list[Tensor] = []

    class Heard(nn.Sequential):
        def forward(self, inputs: Tensor) -> Tensor:
            if self.training:
                seen.append(inputs)
            return super().forward(inputs)

    Scrub(batch_size=4, epochs=4, ascent_epochs=1)(Heard(*network()), FORGET[0], retain=RETAIN, seed=6)
    order = torch.Generator().manual_seed(6)
    expected = [data[torch.randperm(len(data), generator=order)] for data in (FORGET[0], *[RETAIN[0]] * 4)]
    assert torch.equal(torch.cat(seen), torch.cat(expected))


def test_scrub_refuses_more_ascents_than_epochs() -> None:
    with pytest.raises(SettingsError, match=r"ascent_epochs is 6, expected at most epochs \(5\)"):
        Scrub(ascent_epochs=6)


def test_divergence_is_kl_of_the_teacher_first() -> None:
    p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
    assert float(divergence(p, q)) == pytest.approx(0.5108256)  # 0.5 ln(5/9) + 0.5 ln 5
    assert float(divergence(q, p)) == pytest.approx(0.3680642)  # 0.9 ln 1.8 + 0.1 ln 0.2


def redrawn(seed: int) -> nn.Module:
    model = network()
    with torch.random.fork_rng():
        torch.manual_seed(int(generator(seed, 24).integers(2**32)))
        for module in model:
            if isinstance(module, nn.Linear):
                module.reset_parameters()
    return model


def test_bad_teacher_follows_a_random_network_on_forget() -> None:
    original = network()
    result = BadTeacher(**STEPS, epochs=4)(original, FORGET[0], retain=RETAIN[0], seed=8)
    bad, good = redrawn(8)(FORGET[0]).detach(), original(RETAIN[0]).detach()
    same(result.model, descend(original, [lambda m: kl(bad, m(FORGET[0])) + kl(good, m(RETAIN[0]))] * 4))


def test_new_weights_are_not_those_that_the_model_began_with() -> None:
    training = Training(lambda: mlp((5, 6, 3)), Recipe(0, 8, 1e-3))
    data = Samples(RETAIN[0].float(), RETAIN[1])
    for seed in (0, 3):
        start = training.run(data, seed=seed)
        for given in (training, None):
            new, old = fresh(start, given, seed)
            again, _ = fresh(start, given, seed)
            assert not old
            for weight, same_draw, begun in zip(new.parameters(), again.parameters(), start.parameters(), strict=True):
                assert torch.equal(weight, same_draw)
                assert not bool((weight == begun).any())


def test_bad_teacher_takes_a_share_of_retain() -> None:
    result = BadTeacher(share=0.3)(network(), FORGET[0], retain=RETAIN[0])
    assert result.details.facts["retain_used"] == 3


class Scaled(nn.Module):
    """Has a parameter that nothing can reset."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = network(), nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.inner(x)


def test_bad_teacher_without_a_way_to_reset_wants_training() -> None:
    with pytest.raises(ModelError, match=r"1 parameters \(first: scale\) have no reset_parameters.*training=Training"):
        BadTeacher()(Scaled(), FORGET[0], retain=RETAIN[0])
    training = Training(Scaled, Recipe(1, 8, 1e-3))
    assert BadTeacher()(Scaled(), FORGET[0], retain=RETAIN[0], training=training).density == 1
    other = Training(lambda: mlp((5, 2)), Recipe(1, 8, 1e-3))
    with pytest.raises(ModelError, match="training builds a network of 2 classes, but the model has 3"):
        BadTeacher()(Scaled(), FORGET[0], retain=RETAIN[0], training=other)


def test_do_nothing_does_nothing() -> None:
    model = network()
    result = DoNothing()(model, FORGET[0])
    assert result.density == 0
    assert result.iterations == result.evaluations == 0
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), result.model.parameters(), strict=True))


@pytest.mark.parametrize("kind", [FineTune, GradientAscent, NegGradPlus, L1Sparse, SalUn, Scrub])
def test_steps_of_no_size_are_told(kind: Any) -> None:
    with pytest.raises(NothingForgottenError, match=r"raise learning_rate \(it is 0\)"):
        kind(learning_rate=0)(network(), FORGET, retain=RETAIN)


@pytest.mark.parametrize("kind", [FineTune, GradientAscent, NegGradPlus, L1Sparse, SalUn, Scrub, Ssd])
def test_estimators_in_estimators_out(kind: Any) -> None:
    x, y = torch.cat([FORGET[0], RETAIN[0]]).numpy(), torch.cat([FORGET[1], RETAIN[1]]).numpy()
    estimator = LogisticRegression().fit(x, y)
    before = estimator.coef_.copy()
    result = (Ssd(alpha=1.0) if kind is Ssd else kind())(estimator, (x[:7], y[:7]), retain=(x[7:], y[7:]))
    assert isinstance(result.model, LogisticRegression)
    assert (estimator.coef_ == before).all()
    assert (result.model.coef_ != before).any()


@pytest.mark.parametrize(("kind", "words"), [(BadTeacher, "reset"), (Msg, "no trainable conv"), (Ct, "n/a on dense")])
def test_estimators_that_lack_what_a_method_needs(kind: Any, words: str) -> None:
    x, y = RETAIN[0].numpy(), RETAIN[1].numpy()
    with pytest.raises(ModelError, match=words):
        kind()(LogisticRegression().fit(x, y), (x[:4], y[:4]), retain=(x[4:], y[4:]))


def test_frozen_weights_stay_and_a_frozen_model_is_an_error() -> None:
    model = network()
    model[0].weight.requires_grad_(False)
    result = NegGradPlus()(model, FORGET, retain=RETAIN)
    assert torch.equal(result.model[0].weight, model[0].weight)
    assert not torch.equal(result.model[2].weight, model[2].weight)
    with pytest.raises(ModelError, match="no trainable parameter"):
        NegGradPlus()(model.requires_grad_(False), FORGET, retain=RETAIN)


# The common course.


def normalised() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()


@pytest.mark.parametrize("frozen", [True, False])
def test_batch_norm_is_frozen_or_not(frozen: bool) -> None:
    result = NegGradPlus(freeze_batch_norm=frozen)(normalised(), FORGET, retain=RETAIN)
    fresh = normalised()[1]
    assert torch.equal(result.model[1].running_mean, fresh.running_mean) == frozen
    assert int(result.model[1].num_batches_tracked) == (0 if frozen else 10)
    assert not torch.equal(result.model[1].weight, fresh.weight), "its own weights train either way"


def test_a_last_batch_of_one_joins_the_one_before() -> None:
    result = FineTune(batch_size=4, epochs=1)(normalised(), FORGET, retain=RETAIN)
    assert result.details.facts["steps"] == 2
    assert FineTune(batch_size=4, epochs=1)(network(), FORGET, retain=RETAIN).details.facts["steps"] == 3
    with pytest.raises(InputError, match="freeze_batch_norm=True"):
        FineTune()(normalised(), FORGET, retain=(RETAIN[0][:1], RETAIN[1][:1]))
    with pytest.raises(InputError, match="batch_size of at least 2"):
        FineTune(batch_size=1)(normalised(), FORGET, retain=RETAIN)


def test_an_epoch_sees_the_larger_set_once_and_starts_the_smaller_again() -> None:
    student = network()
    request = Request.read(FORGET, retain=RETAIN)
    with descent_run(NegGradPlus(batch_size=2), student, request) as run:
        assert student.training
        forget, retain = run.place(request.forget.rows(range(3))), run.place(request.retain)  # type: ignore[arg-type]
        pairs = list(run.pairs(forget, retain))
        assert run.steps(forget, retain) == len(pairs) == 5
        seen = [tuple(row) for _, batch in pairs for row in batch.inputs.tolist()]  # type: ignore[union-attr]
        assert sorted(seen) == sorted(tuple(row) for row in RETAIN[0].tolist())
        small = [tuple(row) for batch, _ in pairs for row in batch.inputs.tolist()]  # type: ignore[union-attr]
        assert len(small) == 8  # 2, 1, 2, 1, 2
        assert set(small[:3]) == set(small[3:6]) == {tuple(row) for row in FORGET[0][:3].tolist()}
    assert not student.training


def test_batches_follow_the_seed() -> None:
    few = {"batch_size": 3, "epochs": 2}
    one, again, two = (FineTune(**few)(network(), FORGET, retain=RETAIN, seed=seed).model for seed in (0, 0, 1))
    assert torch.equal(one[0].weight, again[0].weight)
    assert not torch.equal(one[0].weight, two[0].weight)


def test_dropout_is_at_work_and_repeatable() -> None:
    def dropping(rate: float) -> nn.Module:
        return nn.Sequential(nn.Dropout(rate), *network())

    one, again, none = (FineTune()(dropping(rate), FORGET, retain=RETAIN).model for rate in (0.5, 0.5, 0.0))
    assert torch.equal(one[1].weight, again[1].weight)
    assert not torch.equal(one[1].weight, none[1].weight)


def test_a_model_that_works_in_place_reads_the_same_data_each_epoch() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.mul_(2.0))

    result = FineTune(**STEPS, epochs=4)(InPlace(), FORGET[0], retain=RETAIN)
    doubled = 2 * RETAIN[0], RETAIN[1]
    same(result.model.inner, descend(network(), [lambda m: cross_entropy(m(doubled[0]), doubled[1])] * 4))
