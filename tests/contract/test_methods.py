"""The contract of every method in the table."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import forsaken
from forsaken import METHODS, Unlearner
from forsaken.errors import EmptyError, NonFiniteError

# A row a method: its table name and settings. A method missing here fails `test_every_method_has_a_row`.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "forsaken": ("forsaken", {}),
    "forsaken, lbfgs": ("forsaken", {"optimiser": "lbfgs", "distance": "kl", "penalty": 1e-4}),
    "forsaken, uniform": ("forsaken", {"target": "uniform"}),
    "forsaken, corrected": ("forsaken", {"target": "corrected"}),
}


@pytest.fixture(params=ROWS)
def method(request) -> Unlearner:
    name, settings = ROWS[request.param]
    return METHODS[name](**settings)


def labelled_references(problem) -> tuple[torch.Tensor, torch.Tensor]:
    # true labels of strangers: what the model makes of them, so that "corrected" has rows to aim at
    return problem.reference, problem.model(problem.reference).argmax(1)


def call(method: Unlearner, problem, **more: Any) -> Any:
    wrong = (problem.forget[1] + 1) % 4  # the "true" labels differ from those that were learnt
    data = {"forget": (problem.forget[0], wrong), "reference": labelled_references(problem), "retain": problem.retain}
    return method(problem.model, **(data | more))


def test_every_method_has_a_row() -> None:
    assert {name for name, _ in ROWS.values()} == set(METHODS)


def test_caller_s_model_is_untouched(method: Unlearner, problem) -> None:
    before = copy.deepcopy(problem.model.state_dict())
    modes = [module.training for module in problem.model.modules()]
    result = call(method, problem)
    assert result.model is not problem.model
    for name, value in problem.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert modes == [module.training for module in problem.model.modules()]
    shared = {p.data_ptr() for p in problem.model.parameters()} & {p.data_ptr() for p in result.model.parameters()}
    assert not shared, "the new model shares no memory with the old one"


def test_deterministic_by_seed_and_leaves_global_randomness_alone(method: Unlearner, problem) -> None:
    state = torch.random.get_rng_state()
    first, second = call(method, problem, seed=5), call(method, problem, seed=5)
    assert torch.equal(torch.random.get_rng_state(), state)
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_weights_move(method: Unlearner, problem) -> None:
    result = call(method, problem)
    moved = any(
        not torch.equal(a, b) for a, b in zip(problem.model.parameters(), result.model.parameters(), strict=True)
    )
    assert moved == method.changes_weights
    assert all(bool(torch.isfinite(p).all()) for p in result.model.parameters())


def test_forgets(method: Unlearner, problem) -> None:
    result = call(method, problem)
    x, learnt = problem.forget
    before, after = (m(x).softmax(1)[torch.arange(20), learnt].mean() for m in (problem.model, result.model))
    assert after < before - 0.1, "less sure of the labels that were learnt"


def test_empty_forget_set_is_an_error(method: Unlearner, problem) -> None:
    with pytest.raises(EmptyError, match="forget is empty"):
        call(method, problem, forget=torch.zeros(0, 20))


def test_non_finite_loss_is_an_error(method: Unlearner, problem) -> None:
    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(20, 4)

        def forward(self, x):
            return self.layer(x) / 0.0

    with pytest.raises(NonFiniteError):
        method(Broken(), problem.forget, labelled_references(problem), problem.retain)


def test_result_says_how(method: Unlearner, problem) -> None:
    result = call(method, problem)
    assert result.method == repr(method)
    assert result.stopped in {"iterations", "converged", "calibrated", "line-search", "not-memorised"}
    assert [step.iteration for step in result.history] == list(range(1, result.iterations + 1))
    assert result.evaluations >= result.iterations
    assert result.seconds > 0


def test_progress_is_told(method: Unlearner, problem) -> None:
    ticks: list[forsaken.Tick] = []
    call(method, problem, progress=ticks.append)
    assert ticks
    assert all(0 < tick.done <= tick.total for tick in ticks)
