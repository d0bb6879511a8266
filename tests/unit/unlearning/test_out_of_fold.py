"""target="out-of-fold": each sample goes where a model put it that never saw it, and the result says so."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from conftest import Problem
from torch import Tensor

import forsaken
from forsaken import Curvature, Forsaken, Recipe, References
from forsaken.bench.networks import mlp
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError, NotHeldOutError, SettingsError, UnknownNameError
from forsaken.models.logits import centre
from forsaken.models.train import train
from forsaken.models.weights import fingerprint
from forsaken.unlearning.base import Request
from forsaken.unlearning.forsaken.objective import squared_logits
from forsaken.unlearning.forsaken.targets import CLAIMS, TARGETS, claim_of, find_target
from forsaken.unlearning.methods import METHODS, build


def fitted(problem: Problem, **named: Any) -> References:
    """Two folds of everything that the model learnt, strangers included."""
    x, y = (torch.cat(pair) for pair in zip(problem.kept, problem.forget, strict=True))

    def fit(rows: Any, steps: int | None, seed: int) -> torch.nn.Module:
        return train(lambda: mlp((20, 64, 32, 4)), Samples(x, y).rows(rows), Recipe(10, 32, 3e-3), seed=seed)

    return References.fit(fit, (x, y), folds=2, seed=1, **named)


@pytest.fixture(scope="module")
def table(problem: Problem) -> References:
    return fitted(problem)


@pytest.fixture(scope="module")
def curved(problem: Problem) -> References:
    """The same, with the curvature of the model and the spread on strangers that no model saw."""
    return fitted(problem, model=problem.model, unseen=problem.reference)


def said(model: torch.nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return centre(model(x))


def distance(model: torch.nn.Module, x: Tensor, goal: Tensor) -> float:
    return float((said(model, x) - centre(goal)).square().mean())


# --- where it leads --------------------------------------------------------------------------------------------------


def test_forgotten_samples_reach_what_the_references_said(problem: Problem, table: References) -> None:
    x, _ = problem.forget
    goal, before = table.logits(x), fingerprint(problem.model)
    weights = copy.deepcopy(problem.model.state_dict())
    result = forsaken.unlearn(problem.model, problem.forget, retain=problem.retain, references=table, iterations=150)
    was, now = distance(problem.model, x, goal), distance(result.model, x, goal)
    assert now < 0.02 * was
    assert float(torch.corrcoef(torch.stack([said(result.model, x).ravel(), centre(goal).ravel()]))[0, 1]) > 0.98
    assert fingerprint(problem.model) == before
    assert all(torch.equal(weights[name], value) for name, value in problem.model.state_dict().items())
    facts = result.details.facts
    assert facts["target"] == "out-of-fold"
    assert facts["references"] == table.about()
    assert (facts["references"]["rows"], facts["references"]["folds"], facts["references"]["claimed"]) == (220, 2, 0)
    assert facts["distance_before"] == pytest.approx(was, rel=1e-3)
    assert facts["distance_after"] == pytest.approx(now, rel=0.05, abs=1e-3)
    assert len(table) == 220, "unlearning reads the table; only forget changes it"


def test_each_sample_has_a_target_of_its_own() -> None:
    x = torch.tensor([[3.0, 0.0], [0.0, 3.0], [2.0, 2.5]])
    table = References.claimed(x, [[1.0, 0.0], [5.0, 1.0], [0.0, 0.5]])
    found = find_target("out-of-fold", squared_logits, Request.read(x[[2, 0]], references=table), x[[2, 0]], None)
    assert found.logits.tolist() == [[-0.25, 0.25], [0.5, -0.5]]
    assert found.before == pytest.approx((0.0 + 1.0) / 2), "(-0.25, 0.25) stays, (1.5, -1.5) is to go to (0.5, -0.5)"
    assert found.memorised
    assert found.bound is None
    there = find_target("out-of-fold", squared_logits, Request.read(x[[2]], references=table), x[[2]], None)
    assert not there.memorised, "what stands at its target is not memorised"


def test_it_needs_neither_references_of_the_other_kind_nor_labels(problem: Problem, table: References) -> None:
    x, _ = problem.forget
    result = forsaken.unlearn(problem.model, x, references=table, iterations=3)
    assert result.details.facts["target"] == "out-of-fold"
    assert result.details.facts["calibrated"] is None


def test_in_double_precision_too(problem64: Problem, table: References) -> None:
    result = forsaken.unlearn(problem64.model, problem64.forget, references=table, iterations=5)
    assert result.details.facts["target"] == "out-of-fold"
    assert next(result.model.parameters()).dtype == torch.float64


# --- by the curvature ------------------------------------------------------------------------------------------------


def test_with_a_curvature_the_forgotten_samples_alone_are_passed(problem: Problem, curved: References) -> None:
    x, _ = problem.forget
    result = forsaken.unlearn(problem.model, x, references=curved)
    facts = result.details.facts
    assert (result.stopped, facts["optimiser"], facts["target"]) == ("tolerance", "gauss-newton", "out-of-fold")
    assert facts["spread"] == curved.spread
    assert facts["references"]["curvature_rows"] == 220
    goal = centre(curved.logits(x))
    near = Forsaken().solver.tolerance * curved.spread * float(goal.square().mean().sqrt())
    assert facts["tolerance"] == pytest.approx(near, rel=1e-5)
    assert distance(result.model, x, goal) <= 1.01 * facts["tolerance"] ** 2 < distance(problem.model, x, goal)
    assert facts["distance_after"] == pytest.approx(distance(result.model, x, goal), rel=0.01)
    assert not any("has no curvature" in note for note in result.notes)


def test_it_ends_as_soon_as_the_samples_are_near_enough(problem: Problem, curved: References) -> None:
    found = forsaken.unlearn(problem.model, problem.forget, references=curved, tolerance=0.3)
    near = [step.distance**0.5 <= found.details.facts["tolerance"] for step in found.history]
    assert near[-1]
    assert not any(near[:-1])
    assert found.iterations < forsaken.unlearn(problem.model, problem.forget, references=curved).iterations


def test_without_a_curvature_a_note_says_what_it_would_bring(problem: Problem, table: References) -> None:
    found = forsaken.unlearn(problem.model, problem.forget, references=table, iterations=2)
    assert any(note.startswith("the table of references has no curvature") for note in found.notes)
    with pytest.raises(SettingsError, match="needs the curvature of what the model has learnt; give curvature="):
        forsaken.unlearn(problem.model, problem.forget, references=table, optimiser="gauss-newton")


def test_a_curvature_of_other_weights_is_refused(problem: Problem, curved: References) -> None:
    other = copy.deepcopy(problem.model)
    with torch.no_grad():
        next(other.parameters())[0, 0] += 1
    with pytest.raises(InputError, match="measured for other weights"):
        forsaken.unlearn(other, problem.forget, references=curved)
    found = forsaken.unlearn(other, problem.forget, references=curved, optimiser="owlqn", iterations=2)
    assert found.iterations == 2, "who does not go by it does not mind"


def test_one_request_after_another_by_the_same_table(problem: Problem) -> None:
    (x, _), mine = problem.forget, fitted(problem, model=problem.model)
    first = forsaken.unlearn(problem.model, x[:8], references=mine)
    mine.forget(x[:8], before=problem.model, after=first.model)
    assert mine.curvature is not None
    assert (mine.curvature.weights, mine.curvature.rows) == (fingerprint(first.model), 212)
    second = forsaken.unlearn(first.model, x[8:], references=mine)
    assert second.stopped == "tolerance"
    mine.forget(x[8:])
    assert mine.curvature is None, "it would hold what is forgotten"


# --- settings --------------------------------------------------------------------------------------------------------


def test_settings_for_references() -> None:
    usual, own = Forsaken(), Forsaken.out_of_fold()
    changed = {name for name, value in own.settings.items() if usual.settings[name] != value}
    assert changed == {"target"}
    assert own.target == "out-of-fold"
    assert Forsaken.out_of_fold(iterations=5, penalty=0.1) == Forsaken(target="out-of-fold", iterations=5, penalty=0.1)
    assert "out-of-fold" in TARGETS


def test_references_choose_the_settings_unless_told_otherwise() -> None:
    assert build("forsaken", {}, references=True) == Forsaken.out_of_fold()
    assert build("forsaken", {"penalty": 0.1}, references=True) == Forsaken.out_of_fold(penalty=0.1)
    assert build("forsaken", {"target": "out-of-fold"}, references=True) == Forsaken.out_of_fold()
    assert build("forsaken", {"target": "uniform"}, references=True) == Forsaken(target="uniform")
    assert build("forsaken", {}) == Forsaken()
    assert type(build("fine-tune", {}, references=True)) is METHODS["fine-tune"]
    with pytest.raises(UnknownNameError, match="penalty"):
        build("forsaken", {"penaltie": 0.1}, references=True)


def test_the_call_takes_them(problem: Problem, table: References) -> None:
    result = forsaken.unlearn(problem.model, problem.forget, references=table, iterations=2)
    assert "target='out-of-fold'" in result.method
    other = forsaken.unlearn(problem.model, problem.forget, references=table, iterations=2, penalty=2e-3)
    assert "penalty=0.002" in other.method


def test_a_target_that_is_named_wins_and_the_notes_say_so(problem: Problem, table: References) -> None:
    more = {"references": table, "iterations": 2, "retain": problem.retain}
    named = forsaken.unlearn(problem.model, problem.forget, target="uniform", **more)
    plain = forsaken.unlearn(problem.model, problem.forget, target="uniform", iterations=2, retain=problem.retain)
    assert fingerprint(named.model) == fingerprint(plain.model)
    assert "the references were not used: the target is uniform" in named.notes
    assert "references" not in named.details.facts
    given = forsaken.unlearn(problem.model, problem.forget, targets=torch.zeros(20, 4), **more)
    assert given.details.facts["target"] == "given"
    assert "the references were not used: the target is given" in given.notes
    used = forsaken.unlearn(problem.model, problem.forget, **more)
    assert not any("not used" in note for note in used.notes)


@pytest.mark.parametrize("make", [lambda **more: Forsaken(target="out-of-fold", **more), Forsaken.out_of_fold])
def test_there_is_nothing_to_calibrate_on(make: Any) -> None:
    with pytest.raises(
        SettingsError, match=r'stop="calibrated" needs reference samples .* target="out-of-fold" has none'
    ):
        make(stop="calibrated")


def test_calibration_is_refused_in_the_call(problem: Problem, table: References) -> None:
    with pytest.raises(SettingsError, match="calibrated"):
        forsaken.unlearn(problem.model, problem.forget, references=table, stop="calibrated")


# --- what is refused -------------------------------------------------------------------------------------------------


def test_no_references(problem: Problem) -> None:
    with pytest.raises(SettingsError, match=r"give references= .*forsaken.References.fit.* targets="):
        forsaken.unlearn(problem.model, problem.forget, target="out-of-fold")
    with pytest.raises(SettingsError, match="give references="):
        Forsaken.out_of_fold()(problem.model, problem.forget, problem.reference, problem.retain)


def test_samples_that_the_table_does_not_know(problem: Problem, table: References) -> None:
    x = torch.cat([problem.forget[0][:2], problem.test[0][:3]])
    with pytest.raises(NotHeldOutError, match="3 of 5 samples") as caught:
        forsaken.unlearn(problem.model, x, references=table)
    assert caught.value.rows == (2, 3, 4)
    assert isinstance(caught.value, ValueError)


def test_something_else_in_their_place(problem: Problem) -> None:
    with pytest.raises(InputError, match=r"references is of type Tensor.*go into reference="):
        forsaken.unlearn(problem.model, problem.forget, references=problem.reference)  # type: ignore[arg-type]


def test_a_table_of_other_classes(problem: Problem) -> None:
    x, _ = problem.forget
    table = References.claimed(x, torch.randn(20, 3))
    with pytest.raises(InputError, match="the references have 3 classes, the model has 4"):
        forsaken.unlearn(problem.model, x, references=table)


def test_a_table_of_probabilities(problem: Problem) -> None:
    x, _ = problem.forget
    table = References.claimed(x, torch.randn(20, 4).softmax(1))
    with pytest.raises(InputError, match="probabilities"):
        forsaken.unlearn(problem.model, x, references=table)


# --- what it claims --------------------------------------------------------------------------------------------------


def test_claims() -> None:
    proved, word = CLAIMS["out-of-fold"], CLAIMS["out-of-fold, claimed"]
    assert claim_of("Forsaken()", {"target": "out-of-fold"}) is proved
    assert claim_of("Forsaken()", {"target": "out-of-fold, claimed"}) is word
    assert "without that sample" in proved.shown
    assert "word" not in proved.not_shown
    assert "whoever handed them in says so" in word.not_shown
    assert "never saw" not in word.shown


def test_one_claimed_row_makes_the_result_a_claim(problem: Problem, table: References) -> None:
    x, _ = problem.forget
    word = References.claimed(x, table.logits(x))
    result = forsaken.unlearn(problem.model, x, references=word, iterations=2)
    assert result.details.facts["target"] == "out-of-fold, claimed"
    assert result.details.facts["references"]["claimed"] == 20
    old, new = x[:15], x[15:]

    def fit(rows: Any, steps: int | None, seed: int) -> torch.nn.Module:
        return problem.model

    mixed = References.claimed(old, table.logits(old)).extend(new, train=fit, old=old)
    names = [
        find_target(
            "out-of-fold",
            squared_logits,
            Request.read(part, references=mixed),
            said(problem.model, part),
            None,
        ).name
        for part in (new, old, x[14:])
    ]
    assert names == ["out-of-fold", "out-of-fold, claimed", "out-of-fold, claimed"]


class Shifty(torch.nn.Module):
    """Answers some inputs otherwise when gradients are asked for."""

    def __init__(self, model: torch.nn.Module, shy: torch.Tensor) -> None:
        super().__init__()
        self.model, self.shy = model, shy

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.model(x)
        if not torch.is_grad_enabled():
            return logits
        shy = (x[:, None, :] == self.shy[None]).all(2).any(1)
        return logits + 9 * shy[:, None] * torch.arange(logits.shape[1])


@pytest.mark.parametrize("optimiser", ["owlqn", "lbfgs"])
def test_anchors_that_answer_otherwise_are_found_out(problem: Problem, table: References, optimiser: str) -> None:
    shifty = Shifty(problem.model, problem.reference)
    method = Forsaken.out_of_fold(optimiser=optimiser)
    with pytest.raises(ModelError, match="answers differently"):
        method(shifty, problem.forget, problem.reference, problem.retain, references=table)


def test_forgotten_samples_that_answer_otherwise_are_found_out(problem: Problem, curved: References) -> None:
    shifty = Shifty(problem.model, problem.forget[0])
    curvature = Curvature.fit(shifty, torch.cat([problem.kept[0], problem.forget[0]]))
    with pytest.raises(ModelError, match="answers differently"):
        Forsaken.out_of_fold()(shifty, problem.forget, references=curved, curvature=curvature)
