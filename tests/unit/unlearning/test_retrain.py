"""Retraining: the same weights as training on what remains, put where the model was."""

from __future__ import annotations

import copy

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from forsaken import Recipe, Tick, Training
from forsaken.bench.networks import mlp
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError, NonFiniteError, NothingForgottenError
from forsaken.models.train import train
from forsaken.unlearning.retrain import Retrain


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))


@pytest.fixture(scope="module")
def training() -> Training:
    return Training(network, Recipe(4, 32, 3e-3))


@pytest.fixture(scope="module")
def model(problem, training: Training) -> nn.Module:
    x, y = (torch.cat(pair) for pair in zip(problem.kept, problem.forget, strict=True))
    return training.run(Samples(x, y), seed=0)


def test_weights_are_those_of_training_on_what_remains(problem, model: nn.Module, training: Training) -> None:
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    result = Retrain()(model, problem.forget, retain=problem.kept, training=training, seed=5)
    plain = training.run(Samples(*problem.kept), seed=5).state_dict()
    assert list(result.model.state_dict()) == list(plain)
    for name, value in plain.items():
        assert torch.equal(result.model.state_dict()[name], value), name
        assert torch.equal(model.state_dict()[name], before[name])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not result.model._forward_hooks


def test_result_says_how(problem, model: nn.Module, training: Training) -> None:
    ticks: list[Tick] = []
    result = Retrain()(model, problem.forget, retain=problem.kept, training=training, progress=ticks.append)
    assert (result.iterations, result.evaluations, result.stopped) == (4, 28, "iterations")
    assert result.details.facts == {"samples": 200, "epochs": 4, "steps": 28}
    assert result.notes == ("trained anew on 200 samples; they must be all that remain of the training data",)
    assert {tick.stage for tick in ticks} == {"retrain"}
    assert (ticks[-1].done, ticks[-1].total) == (28, 28)
    assert all(0 < tick.done <= tick.total for tick in ticks)


def test_losses_of_each_epoch(problem, model: nn.Module) -> None:
    """Full batches without dropout: the epoch's loss is that of the weights before it, and D's of those after it."""

    def build() -> nn.Module:
        return mlp((20, 8, 4))

    recipe, kept = Recipe(3, 200, 0.05, schedule="one-cycle"), Samples(*problem.kept)
    result = Retrain()(build(), problem.forget, retain=problem.kept, training=Training(build, recipe), seed=2)
    x, y = problem.forget
    full = train(build, kept, recipe, seed=2, observer=(seen := Snapshots(kept)))
    assert [step.objective for step in result.history] == pytest.approx(seen.losses, rel=1e-5)
    assert [step.anchor for step in result.history] == [step.objective for step in result.history]
    with torch.no_grad():
        last = float(nn.functional.cross_entropy(full(x), y))
    assert result.history[-1].distance == pytest.approx(last, rel=1e-5)
    assert [step.step for step in result.history] == pytest.approx([0.05, 0.05, 0.025])
    assert [step.iteration for step in result.history] == [1, 2, 3]


def test_epochs_end_where_the_training_s_do(problem) -> None:
    """Batch-norm lets the 49th row join the third batch, and an epoch is three steps."""
    kept = Samples(*problem.kept).rows(range(49))
    training = Training(network, Recipe(4, 16, 3e-3))
    result = Retrain()(network(), problem.forget, retain=kept, training=training, seed=5)
    assert (len(result.history), result.iterations, result.evaluations) == (4, 4, 12)
    losses, heights = [], []

    class Heard(nn.Sequential):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            logits = super().forward(inputs)
            rows = [int((kept.inputs == row).all(1).nonzero()) for row in inputs]
            losses.append(float(nn.functional.cross_entropy(logits.detach(), kept.labels[rows], reduction="sum")))
            heights.append(len(rows))
            return logits

    train(lambda: Heard(*network()), kept, training.recipe, seed=5)
    assert heights == [16, 16, 17] * 4
    means = [sum(losses[at : at + 3]) / 49 for at in range(0, 12, 3)]
    assert [step.objective for step in result.history] == pytest.approx(means, rel=1e-5)


class Snapshots:
    """The loss on all data before each step."""

    def __init__(self, data: Samples) -> None:
        self.data, self.losses = data, []

    def before(self, network: nn.Module, rows: torch.Tensor, logits: torch.Tensor) -> None:
        with torch.no_grad():
            self.losses.append(float(nn.functional.cross_entropy(network(self.data.inputs), self.data.labels)))

    def after(self, network: nn.Module, rows: torch.Tensor, optimiser: torch.optim.Optimizer) -> None:
        pass


def test_without_labels_the_forgotten_are_told_against_what_was_learnt(problem, model, training: Training) -> None:
    x = problem.forget[0]
    result = Retrain()(model, x, retain=problem.kept, training=training)
    with torch.no_grad():
        expected = float(nn.functional.cross_entropy(result.model(x), model(x).argmax(1)))
    assert result.history[-1].distance == pytest.approx(expected, rel=1e-5)


def test_data_of_another_float_are_read_in_the_network_s(problem, model: nn.Module, training: Training) -> None:
    x, y = problem.kept
    wide = Retrain()(model, problem.forget[0].double(), retain=(x.double(), y), training=training)
    same = Retrain()(model, problem.forget[0], retain=(x, y), training=training)
    assert torch.equal(wide.model[0].weight, same.model[0].weight)


def test_a_model_of_another_float_keeps_it(problem64, training: Training) -> None:
    model = network().double()
    result = Retrain()(model, problem64.forget, retain=problem64.kept, training=training, seed=1)
    assert result.model[0].weight.dtype == torch.float64
    kept = Samples(problem64.kept[0].float(), problem64.kept[1])
    assert torch.equal(result.model[0].weight.float(), training.run(kept, seed=1)[0].weight)


def test_what_it_must_be_given(problem, model: nn.Module, training: Training) -> None:
    with pytest.raises(InputError, match=r"training is None; give for example training=forsaken.Training\(lambda"):
        Retrain()(model, problem.forget, retain=problem.kept)
    with pytest.raises(InputError, match="retain is None; give all of the remaining training data"):
        Retrain()(model, problem.forget, training=training)
    with pytest.raises(InputError, match=r"retain has no labels; give retain=\(inputs, labels\)"):
        Retrain()(model, problem.forget, retain=problem.kept[0], training=training)
    with pytest.raises(InputError, match="labels of retain are out of range, expected class numbers from 0 to 3"):
        Retrain()(model, problem.forget, retain=(problem.kept[0], problem.kept[1] + 1), training=training)


def test_another_network_is_told_before_the_training(problem, model: nn.Module, training: Training) -> None:
    def never(_: Tick) -> None:
        raise AssertionError("it trained")

    other = Training(lambda: mlp((20, 8, 4)), training.recipe)
    with pytest.raises(ModelError, match=r"0\.weight is of shape \(8, 20\) in the new one and of shape \(16, 20\)"):
        Retrain()(model, problem.forget, retain=problem.kept, training=other, progress=never)
    with pytest.raises(ModelError, match="missing"):
        Retrain()(model[0], problem.forget[0], retain=problem.kept, training=training, progress=never)


def test_estimators_are_sent_to_fit(problem, training: Training) -> None:
    estimator = LogisticRegression().fit(problem.kept[0].numpy(), problem.kept[1].numpy())
    with pytest.raises(ModelError, match="LogisticRegression is trained by its own fit"):
        Retrain()(estimator, problem.forget[0], retain=problem.kept, training=training)


def test_a_training_that_diverges_names_the_rate(problem, model: nn.Module) -> None:
    wild = Training(lambda: mlp((20, 8, 4)), Recipe(2, 50, 1e30))
    with pytest.raises(NonFiniteError, match=r"lower learning_rate of the training's recipe, 1e\+30"):
        Retrain()(mlp((20, 8, 4)), problem.forget, retain=problem.kept, training=wild)


def test_a_model_that_never_saw_them_is_not_passed_off_as_retrained(problem, training: Training) -> None:
    clean = training.run(Samples(*problem.kept), seed=3)
    with pytest.raises(NothingForgottenError, match="itself the one trained on `retain` with this seed"):
        Retrain()(clean, problem.forget, retain=problem.kept, training=training, seed=3)


def test_cancelling(problem, model: nn.Module, training: Training) -> None:
    class StopError(Exception):
        pass

    def stop(_: Tick) -> None:
        raise StopError

    before = copy.deepcopy(model.state_dict())
    with pytest.raises(StopError):
        Retrain()(model, problem.forget, retain=problem.kept, training=training, progress=stop)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Sum(nn.Linear):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {"scores": super().forward(left + right)}


def test_models_that_are_called_in_another_way(problem) -> None:
    """The sum of two named inputs, with zero for the second, is the plain model: weights and losses are the same."""

    def pair(part) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        return {"left": part[0], "right": torch.zeros_like(part[0])}, part[1]

    recipe = Recipe(2, 32, 1e-2)
    plain = Retrain()(
        nn.Linear(20, 4), problem.forget, retain=problem.kept, training=Training(lambda: nn.Linear(20, 4), recipe)
    )
    other = Retrain()(
        Sum(20, 4),
        pair(problem.forget),
        retain=pair(problem.kept),
        training=Training(lambda: Sum(20, 4), recipe),
        forward=lambda model, inputs: model(**inputs)["scores"],
    )
    assert torch.equal(plain.model.weight, other.model.weight)
    assert [(step.objective, step.distance) for step in plain.history] == [
        (step.objective, step.distance) for step in other.history
    ]


def test_one_output(problem) -> None:
    (x, y), (new, labels) = problem.kept, problem.forget
    training = Training(lambda: nn.Linear(20, 1), Recipe(3, 32, 1e-2))
    result = Retrain()(nn.Linear(20, 1), (new, labels % 2), retain=(x, y % 2), training=training)
    assert torch.equal(result.model.weight, training.run(Samples(x, y % 2), seed=0).weight)


def test_a_build_that_returns_the_model_itself(problem) -> None:
    model = nn.Linear(20, 4)
    before = model.weight.detach().clone()
    Retrain()(model, problem.forget, retain=problem.kept, training=Training(lambda: model, Recipe(1, 32, 1e-2)))
    assert torch.equal(model.weight, before)
