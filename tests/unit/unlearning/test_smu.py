"""SMU: what is recorded while a model trains, and what its subtraction does to the weights."""

from __future__ import annotations

import copy
import gc
import itertools
import re
import weakref
from typing import Any

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from forsaken import Recipe, Tick, Training
from forsaken.bench.networks import mlp
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError, NonFiniteError
from forsaken.models import train as loop
from forsaken.models.logits import accuracy
from forsaken.unlearning import smu
from forsaken.unlearning.smu import Recorder, Smu, record_of

WATCHED = torch.tensor([3, 11, 12, 29])
REST = torch.tensor([row for row in range(30) if row not in (3, 11, 12, 29)])


def make_data(dtype: torch.dtype = torch.float64) -> Samples:
    draw = torch.Generator().manual_seed(7)
    return Samples(torch.randn(30, 5, generator=draw, dtype=dtype), torch.randint(3, (30,), generator=draw))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)).double()


RECIPES = {
    "sgd": Recipe(3, 7, 0.05, optimiser="sgd"),
    "sgd, decay, clip, one-cycle": Recipe(3, 7, 0.1, 0.02, "sgd", "one-cycle", clip=0.3),
    "adam": Recipe(3, 7, 0.02),
    "adam, decay, clip, one-cycle": Recipe(3, 7, 0.02, 0.05, "adam", "one-cycle", clip=0.3),
}


@pytest.fixture(params=RECIPES)
def recipe(request) -> Recipe:
    return RECIPES[request.param]


def plain_sgd(weights: list[torch.Tensor], recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=recipe.learning_rate)


def prepare(training: Training, data: Samples | None = None, **more: Any) -> Any:
    return Smu().prepare(training, data or make_data(), **({"seed": 1, "watched": WATCHED} | more))


def test_one_epoch_of_plain_sgd_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is the sum over the steps of lr/|B| times the watched rows' gradients, and it is subtracted whole."""
    monkeypatch.setattr(loop, "optimiser_of", plain_sgd)
    data, rate, size = make_data(), 0.3, 8
    training = Training(lambda: nn.Linear(5, 3).double(), Recipe(1, size, rate, optimiser="sgd"))
    with torch.random.fork_rng():
        torch.manual_seed(1)
        layer = nn.Linear(5, 3).double()
        weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
        order = torch.randperm(30)
    moved = torch.zeros(3, 5, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for at in range(0, 30, size):
        rows = order[at : at + size]
        x, y = data.inputs[rows], data.labels[rows]
        wrong = ((x @ weight.T + bias).softmax(1) - torch.eye(3, dtype=torch.float64)[y]) / len(rows)
        mine = torch.isin(rows, WATCHED)[:, None] * wrong
        moved[0].add_(rate * mine.T @ x)
        moved[1].add_(rate * mine.sum(0))
        weight, bias = weight - rate * wrong.T @ x, bias - rate * wrong.sum(0)

    ready = prepare(training, data)
    torch.testing.assert_close(ready.model.weight.detach(), weight)
    record = record_of(ready.model)
    torch.testing.assert_close(record.parts["weight"], -moved[0])
    torch.testing.assert_close(record.parts["bias"], -moved[1])
    result = Smu(learning_rate=0.0)(ready.model, data.rows(WATCHED), retain=data.rows(REST))
    torch.testing.assert_close(result.model.weight.detach(), weight + moved[0])
    torch.testing.assert_close(result.model.bias.detach(), bias + moved[1])


def test_the_last_epoch_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes its part of the record out and then descends on the remaining data."""
    monkeypatch.setattr(loop, "optimiser_of", plain_sgd)
    data, size = make_data(), 8
    ready = prepare(Training(lambda: nn.Linear(5, 3).double(), Recipe(2, size, 0.3, optimiser="sgd")), data)
    weight, bias = ready.model.weight.detach().clone(), ready.model.bias.detach().clone()
    parts, kept = record_of(ready.model).parts, data.rows(REST)
    result = Smu(learning_rate=0.1)(ready.model, data.rows(WATCHED), retain=kept, seed=4)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        order = torch.randperm(26)
    losses = 0.0
    for at in range(0, 26, size):
        weight, bias = weight - parts["weight"] / 4, bias - parts["bias"] / 4
        x, y = kept.inputs[order[at : at + size]], kept.labels[order[at : at + size]]
        posterior = (x @ weight.T + bias).softmax(1)
        losses += float(-posterior[torch.arange(len(y)), y].log().sum())
        wrong = (posterior - torch.eye(3, dtype=torch.float64)[y]) / len(y)
        weight, bias = weight - 0.1 * wrong.T @ x, bias - 0.1 * wrong.sum(0)
    torch.testing.assert_close(result.model.weight.detach(), weight)
    torch.testing.assert_close(result.model.bias.detach(), bias)
    (step,) = result.history
    forgotten = nn.functional.cross_entropy(data.inputs[WATCHED] @ weight.T + bias, data.labels[WATCHED])
    assert step.objective == step.anchor == pytest.approx(losses / 26, rel=1e-5)
    assert step.distance == pytest.approx(float(forgotten), rel=1e-5)
    assert (step.step, result.iterations, result.evaluations, result.stopped) == (0.1, 1, 4, "iterations")


def recorded(recipe: Recipe, rows: Tensor, start: bool = False) -> tuple[nn.Module, dict[str, Tensor]]:
    """Train with an eye on `rows`; with `start`, what the initial weights became is counted in."""
    data, mine = make_data(), torch.zeros(30, dtype=torch.bool)
    mine[rows] = True
    recorder = Recorder(mine, recipe.clip)

    def build() -> nn.Module:
        net = network()
        if start:
            recorder._total = {name: weight.detach().clone() for name, weight in net.named_parameters()}
        return net

    trained = loop.train(build, data, recipe, seed=1, observer=recorder)
    recorder.detach()
    return trained, recorder.parts(trained)


def test_share_and_rest_are_the_whole(recipe: Recipe) -> None:
    """θ = R of the watched rows + R of the others and of the start: with dropout, batch-norm, decay, clipping."""
    model, share = recorded(recipe, WATCHED)
    again, rest = recorded(recipe, REST, start=True)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, again.get_parameter(name))
        # Adam magnifies the rounding of the first bias, whose gradient is nothing else: batch-norm cancels it
        torch.testing.assert_close(share[name] + rest[name], weight.detach(), rtol=0, atol=1e-8)
    assert all(float(share[name].abs().max()) > 1e-3 for name in ("0.weight", "4.weight", "4.bias"))


def test_clipping_takes_hold_in_these_tests() -> None:
    """Otherwise the test above would say nothing of it."""
    free, bound = (recorded(Recipe(3, 7, 0.1, 0, "sgd", clip=clip), WATCHED)[1] for clip in (None, 0.3))
    assert not torch.allclose(free["4.weight"], bound["4.weight"], rtol=0.05)


def test_training_is_the_same_bit_for_bit(recipe: Recipe) -> None:
    training = Training(network, recipe)
    state = torch.random.get_rng_state()
    model = prepare(training).model
    assert torch.equal(torch.random.get_rng_state(), state)
    plain = training.run(make_data(), seed=1)
    assert list(model.state_dict()) == list(plain.state_dict())
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert type(model) is type(plain)
    assert not model.training


def test_nothing_is_left_on_the_network() -> None:
    recipe = RECIPES["adam, decay, clip, one-cycle"]
    model = prepare(Training(network, recipe)).model
    assert not model._forward_hooks
    assert not any(weight._post_accumulate_grad_hooks for weight in model.parameters())
    with torch.no_grad():
        assert model(make_data().inputs).shape == (30, 3)


def test_no_graph_is_kept_alive() -> None:
    """The hook on the logits holds the recorder, which must let the logits go."""
    seen: list[weakref.ref[Tensor]] = []

    class Seen(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            logits = super().forward(inputs)
            seen.append(weakref.ref(logits))
            return logits

    gc.collect()
    gc.disable()
    try:
        prepare(Training(lambda: Seen(5, 3).double(), Recipe(4, 5, 0.1)))
        alive = sum(each() is not None for each in seen)
    finally:
        gc.enable()
    assert (len(seen), alive) == (24, 0)


def test_cost_is_a_vector_of_the_model_s_size() -> None:
    ready = prepare(Training(lambda: nn.Linear(5, 3), RECIPES["adam"]), make_data(torch.float32))
    assert ready.cost.bytes == ready.cost.unbounded_bytes == 18 * 4 + 4 * 16
    assert ready.cost.seconds > 0


def test_a_frozen_weight_stays(recipe: Recipe) -> None:
    def build() -> nn.Module:
        net = network()
        net[0].weight.requires_grad_(False)
        return net

    model = prepare(Training(build, recipe)).model
    assert "0.weight" not in record_of(model).parts
    data = make_data()
    result = Smu()(model, data.rows(WATCHED), retain=data.rows(REST))
    assert torch.equal(result.model[0].weight, model[0].weight)
    assert not torch.equal(result.model[4].weight, model[4].weight)


def test_the_record_travels_with_copies_and_is_spent_by_a_request(recipe: Recipe) -> None:
    data, model = make_data(), prepare(Training(network, recipe)).model
    twin = copy.deepcopy(model)
    for name, part in record_of(model).parts.items():
        assert torch.equal(record_of(twin).parts[name], part)
    before = copy.deepcopy(model.state_dict())
    first, second = (Smu()(each, data.rows(WATCHED), retain=data.rows(REST), seed=3) for each in (model, twin))
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)
        assert a.grad is None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    record_of(model)
    with pytest.raises(InputError, match="no record of its training, or one that is spent"):
        Smu()(first.model, data.rows(WATCHED), retain=data.rows(REST))
    assert any("record is spent" in note for note in first.notes)
    assert any("batch-norm" in note for note in first.notes)


def test_the_rate_is_the_recipe_s_by_default(recipe: Recipe) -> None:
    data, model = make_data(), prepare(Training(network, recipe)).model
    own, same, other = (
        Smu(learning_rate=rate)(model, data.rows(WATCHED), retain=data.rows(REST))
        for rate in (None, recipe.learning_rate, recipe.learning_rate / 2)
    )
    assert own.history[0].step == own.details.facts["learning_rate"] == recipe.learning_rate
    assert torch.equal(own.model[0].weight, same.model[0].weight)
    assert not torch.equal(own.model[0].weight, other.model[0].weight)


def test_order_and_dtype_of_the_samples_play_no_role() -> None:
    data = make_data(torch.float32)
    model = prepare(Training(lambda: nn.Linear(5, 3), RECIPES["adam"]), data).model
    forget, retain = data.rows(WATCHED.flip(0)), data.rows(REST)
    result = Smu()(model, forget.inputs.double().numpy(), retain=(retain.inputs.double(), retain.labels))
    assert result.details.facts["steps"] == 4
    assert result.notes == ("the record is spent, and left out of the new model; the one handed over still carries it",)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


@pytest.mark.parametrize(("rows", "steps"), [(48, 3), (49, 3), (50, 4)])
def test_the_whole_record_is_taken_out_however_batches_fall(rows: int, steps: int) -> None:
    """Batch-norm lets a last batch of one join the others: 49 rows in batches of 16 are three steps."""
    draw = torch.Generator().manual_seed(0)
    data = Samples(torch.randn(60, 5, generator=draw).double(), torch.randint(3, (60,), generator=draw))
    watched = torch.arange(60 - rows)
    model = prepare(Training(network, Recipe(20, 16, 1e-2)), data, watched=watched).model
    forget, retain = data.rows(watched), data.rows(range(60 - rows, 60))
    result = Smu(learning_rate=1e-12)(model, forget, retain=retain)
    moved = flat(model) - flat(result.model)
    torch.testing.assert_close(moved, torch.cat([part.flatten() for part in record_of(model).parts.values()]))
    assert float(moved.norm()) == pytest.approx(result.details.facts["record_norm"], rel=1e-6)
    assert (result.details.facts["steps"], result.evaluations, len(result.history)) == (steps, steps, 1)


def by_parts(model: nn.Module, inputs: Tensor) -> Tensor:
    return nn.Sequential(*model)(inputs)


def twice(model: nn.Module, inputs: Tensor) -> Tensor:
    return (model(inputs) + model(inputs)) / 2


def left_in_evaluation(model: nn.Module, inputs: Tensor) -> Tensor:
    return model.eval()(inputs)


@pytest.mark.parametrize("forward", [None, by_parts, twice, left_in_evaluation])
def test_the_record_is_taken_out_once_however_the_model_is_called(forward: Any) -> None:
    data, model = make_data(), prepare(Training(network, RECIPES["adam"])).model
    result = Smu(learning_rate=1e-12)(model, data.rows(WATCHED), retain=data.rows(REST), forward=forward)
    moved = flat(model) - flat(result.model)
    torch.testing.assert_close(moved, torch.cat([part.flatten() for part in record_of(model).parts.values()]))
    assert float(moved.norm()) > 0.01


def test_a_record_that_is_not_taken_out_whole_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    data, model = make_data(), prepare(Training(network, RECIPES["adam"])).model
    monkeypatch.setattr(smu, "steps_of", lambda *_: 5)
    with pytest.raises(ModelError, match=r"4 of 5 parts of the record were taken out .*report this as a bug"):
        Smu()(model, data.rows(WATCHED), retain=data.rows(REST))


def test_forgets_and_keeps(problem) -> None:
    """On the shared problem: less sure of the labels learnt by heart, and still right about the others."""
    data = Samples(torch.cat([problem.kept[0], problem.forget[0]]), torch.cat([problem.kept[1], problem.forget[1]]))
    training = Training(lambda: mlp((20, 64, 32, 4)), Recipe(150, 32, 3e-3))
    ticks: list[Tick] = []
    model = prepare(training, data, seed=0, watched=torch.arange(200, 220), progress=ticks.append).model
    assert torch.equal(model[-1].weight, problem.model[-1].weight)
    assert (ticks[-1].done, ticks[-1].total) == (1050, 1050)
    ticks.clear()
    result = Smu()(model, problem.forget, retain=problem.kept, progress=ticks.append)
    assert [(tick.stage, tick.done, tick.total) for tick in ticks] == [("subtract", 7, 7)]
    x, learnt = problem.forget
    before, after = (m(x).softmax(1)[torch.arange(20), learnt].mean() for m in (model, result.model))
    assert after < before - 0.1
    assert accuracy(model, problem.kept) > 0.95
    assert accuracy(result.model, problem.kept) > 0.75, "four classes: a ruined model would have 0.25"


@pytest.mark.parametrize(
    ("watched", "words"),
    [
        (None, "must know before the training which rows .*weakness"),
        (torch.tensor([0, 30]), "watched runs from 0 to 30, expected rows of the data, 0 to 29"),
        (torch.tensor([-1]), "watched runs from -1 to -1"),
        (torch.tensor([], dtype=torch.long), "watched names 0 of 30 rows"),
        (torch.arange(30), "watched names 30 of 30 rows"),
        (torch.zeros(30, dtype=torch.bool), r"torch.bool, expected row numbers .*mask.nonzero\(\)"),
        (torch.tensor([[1]]), r"watched is \(1, 1\)"),
    ],
)
def test_watched_rows_that_cannot_be(watched: Tensor | None, words: str) -> None:
    with pytest.raises(InputError, match=words):
        prepare(Training(network, RECIPES["adam"]), watched=watched)


def test_training_data_need_labels() -> None:
    with pytest.raises(InputError, match="training needs labels"):
        prepare(Training(network, RECIPES["adam"]), Samples(make_data().inputs))


@pytest.mark.parametrize(
    ("forget", "words"),
    [
        (WATCHED[:3], "forget leaves out 1 of the 4 samples that smu watched; it keeps one sum"),
        (torch.tensor([3, 11, 12, 29, 0]), "1 of 5 forget samples were not watched"),
        (torch.tensor([3, 3, 11, 12, 29]), "1 of 5 forget samples were not watched"),
    ],
)
def test_requests_that_are_not_what_was_watched(forget: Tensor, words: str) -> None:
    data, model = make_data(), prepare(Training(network, RECIPES["adam"])).model
    rest = [row for row in range(30) if row not in forget.tolist()]
    with pytest.raises(InputError, match=words):
        Smu()(model, data.rows(forget), retain=data.rows(rest))


def test_what_a_request_must_give() -> None:
    data, model = make_data(), prepare(Training(network, RECIPES["adam"])).model
    forget, retain = data.rows(WATCHED), data.rows(REST)
    with pytest.raises(InputError, match="retain is None; give all of the remaining training data"):
        Smu()(model, forget)
    with pytest.raises(InputError, match=re.escape("retain has no labels; give retain=(")):
        Smu()(model, forget, retain=retain.inputs)
    with pytest.raises(InputError, match=r"26 of 26 labels of retain are out of range, .* 0 to 2"):
        Smu()(model, forget, retain=(retain.inputs, retain.labels + 3))
    with pytest.raises(InputError, match=r"shape \(4,\), but smu watched samples of shape \(5,\)"):
        Smu()(model, forget.inputs[:, :4], retain=(retain.inputs[:, :4], retain.labels))
    with pytest.raises(InputError, match=r"carries no record .*Smu\(\).prepare"):
        Smu()(network(), forget, retain=retain)
    estimator = LogisticRegression().fit(data.inputs.numpy(), data.labels.numpy())
    with pytest.raises(ModelError, match="LogisticRegression is fitted as a whole"):
        Smu()(estimator, forget.inputs, retain=retain)
    few = Smu()(model, forget, retain=retain.rows(range(10)))
    assert "retain has 10 samples, but 26 remain of the training data" in few.notes


@pytest.mark.parametrize("size", [7, 26])
def test_a_run_that_diverges_names_the_rate(size: int) -> None:
    data = make_data(torch.float32)
    training = Training(lambda: mlp((5, 8, 8, 3)), Recipe(2, size, 0.01))
    with pytest.raises(NonFiniteError, match=r"lower learning_rate, 1e\+30"):
        Smu(learning_rate=1e30)(prepare(training, data).model, data.rows(WATCHED), retain=data.rows(REST))


def test_cancelling_leaves_the_model_as_it_was() -> None:
    class StopError(Exception):
        pass

    def stop(_: Tick) -> None:
        raise StopError

    data, model = make_data(), prepare(Training(network, RECIPES["adam"])).model
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(StopError):
        Smu()(model, data.rows(WATCHED), retain=data.rows(REST), progress=stop)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert record_of(model).parts
    with pytest.raises(StopError):
        prepare(Training(network, RECIPES["adam"]), progress=stop)


def test_every_pair_of_recipes_records_another_share() -> None:
    """The record follows the optimiser and its settings."""
    found = [recorded(recipe, WATCHED)[1]["4.weight"] for recipe in RECIPES.values()]
    for one, two in itertools.combinations(found, 2):
        assert not torch.allclose(one, two, rtol=1e-2)


def test_augmentation_changes_the_inputs_alone() -> None:
    """The record is that of the watched row, and the training the same, whatever the recipe makes of the inputs."""
    bags = Samples((make_data().inputs > 0).float(), make_data().labels)
    training = Training(lambda: nn.Linear(bags.inputs.shape[1], 3), Recipe(3, 7, 0.1, augmentation="word-dropout"))  # type: ignore[union-attr]
    prepared = [Smu().prepare(training, bags, seed=1, watched=torch.tensor([row])).model for row in (0, 5)]
    plain = training.run(bags, seed=1)
    assert all(torch.equal(model.weight, plain.weight) for model in prepared)
    records = [record_of(model).parts["weight"] for model in prepared]
    mine = [bags.inputs[row] == 0 for row in (0, 5)]  # type: ignore[index]
    assert all(not part[:, absent].any() for part, absent in zip(records, mine, strict=True))
