"""Forsaken as a whole, on a small problem that a network knows by heart."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

import forsaken
from forsaken import Forsaken
from forsaken.data.samples import Samples
from forsaken.models.logits import LogitModel, accuracy, predict_logits
from forsaken.unlearning.forsaken.importance import importance
from forsaken.unlearning.forsaken.objective import Anchors, Objective
from forsaken.unlearning.forsaken.optimisers import Schedule
from forsaken.unlearning.forsaken.parameters import ParameterSpace


def mu_of(result, model) -> torch.Tensor:
    old, new = (torch.nn.utils.parameters_to_vector(m.parameters()) for m in (model, result.model))
    return (old - new).detach()


def run(problem, method=None, **more):
    method = method or Forsaken()
    return method(problem.model, problem.forget, problem.reference, problem.retain, **more)


def test_forgets_and_keeps(problem) -> None:
    result = run(problem)
    before, after = (predict_logits(m, problem.forget).softmax(1).amax(1).mean() for m in (problem.model, result.model))
    reference = predict_logits(problem.model, problem.reference).softmax(1).amax(1).mean()
    assert before > 0.99
    assert abs(after - reference) < 0.5 * abs(before - reference), "much nearer to the non-members than before"
    assert accuracy(result.model, problem.test) > accuracy(problem.model, problem.test) - 0.03
    assert result.history[-1].distance < 0.2 * result.details.facts["distance_before"]
    assert result.iterations == len(result.history) <= 60
    assert result.seconds > 0


def test_call_and_class_give_the_same_bits(problem) -> None:
    a = forsaken.unlearn(problem.model, problem.forget, problem.reference, problem.retain, seed=3, power=0.5)
    b = run(problem, Forsaken(power=0.5), seed=3)
    assert torch.equal(mu_of(a, problem.model), mu_of(b, problem.model))


def test_same_seed_same_bits_and_the_seed_matters(problem) -> None:
    method = Forsaken(anchor_references=30)
    first, again, other = (mu_of(run(problem, method, seed=seed), problem.model) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other), "which references anchor is drawn"


@pytest.mark.parametrize("distance", ["logits", "kl"])
@pytest.mark.parametrize("batch_size", [7, 64])
def test_microbatches_equal_one_batch_in_float64(problem64, distance: str, batch_size: int) -> None:
    whole = mu_of(run(problem64, Forsaken(distance=distance)), problem64.model)
    parts = mu_of(run(problem64, Forsaken(distance=distance, batch_size=batch_size)), problem64.model)
    assert torch.linalg.vector_norm(parts - whole) <= 1e-6 * torch.linalg.vector_norm(whole)


def test_mask_is_sparse_and_exact(problem) -> None:
    result = run(problem, Forsaken(penalty_share=0.02))
    changed = sum(
        int((a != b).sum()) for a, b in zip(problem.model.parameters(), result.model.parameters(), strict=True)
    )
    total = sum(p.numel() for p in problem.model.parameters())
    assert len(result.mask) == changed
    assert result.mask.density == changed / total
    assert 0 < result.mask.density < 0.5


def test_more_penalty_means_fewer_changes(problem) -> None:
    densities = [run(problem, Forsaken(penalty_share=share)).mask.density for share in (0.0, 0.01, 0.1, 0.5)]
    assert densities == sorted(densities, reverse=True)
    assert densities[0] > 5 * densities[-1]


def test_penalty_share_is_the_penalty_it_names(problem) -> None:
    relative = run(problem, Forsaken(penalty_share=0.01))
    facts = relative.details.facts
    assert facts["penalty"] == pytest.approx(0.01 * facts["penalty_max"])
    absolute = run(problem, Forsaken(penalty=facts["penalty"]))
    assert torch.equal(mu_of(relative, problem.model), mu_of(absolute, problem.model))


def test_penalty_max_is_where_nothing_moves(problem) -> None:
    largest = run(problem).details.facts["penalty_max"]
    assert len(run(problem, Forsaken(penalty=0.95 * largest)).mask) > 0
    with pytest.raises(forsaken.errors.NothingForgottenError, match="λ_max"):
        run(problem, Forsaken(penalty=1.05 * largest))


def test_coordinates_and_weights_are_one_penalty(problem64) -> None:
    """In the rescaled coordinates λ‖ν‖₁ is λ Σ (ω/mean ω + 0.01)^p |μ|: both forms have one minimum."""
    linear = torch.nn.Linear(20, 4).double()  # convex, so that there is one minimum to find
    with torch.no_grad():
        linear.weight.copy_(3 * torch.randn(4, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    shared = {"target": "uniform", "penalty": 0.1, "iterations": 2000, "stop": "none"}
    rescaled, weighted = (
        method(linear, problem64.forget, None, problem64.retain)
        for method in (
            Forsaken(power=1.0, weights="none", **shared),
            Forsaken(power=0.0, weights="importance", **shared),
        )
    )
    assert rescaled.history[-1].objective == pytest.approx(weighted.history[-1].objective, rel=1e-6)
    torch.testing.assert_close(mu_of(rescaled, linear), mu_of(weighted, linear), atol=1e-4, rtol=0)


def test_parameters_may_be_chosen(problem) -> None:
    result = run(problem, Forsaken(parameters="2.*"))
    for (name, old), new in zip(problem.model.named_parameters(), result.model.parameters(), strict=True):
        assert torch.equal(old, new) != name.startswith("2."), name
    assert result.mask.trainable == sum(p.numel() for p in problem.model.parameters())


def test_without_retain_the_references_stand_in(problem) -> None:
    result = Forsaken()(problem.model, problem.forget, problem.reference)
    assert result.details.facts["importance_from"] == "reference"
    assert "references" in result.notes[0]


def test_without_anything_nothing_is_held(problem) -> None:
    result = Forsaken(target="uniform")(problem.model, problem.forget)
    assert result.details.facts["importance_from"] == "none"
    assert result.details.facts["anchors"] == 0
    assert "nothing holds" in result.notes[0]


def test_targets_sample_by_sample(problem) -> None:
    wanted = predict_logits(problem.model, problem.reference[:20])
    result = Forsaken(penalty=0.0, iterations=200)(
        problem.model, problem.forget, None, problem.retain, targets=wanted.numpy()
    )
    now, want = (z - z.mean(1, keepdim=True) for z in (predict_logits(result.model, problem.forget), wanted))
    assert float((now - want).square().mean()) < 0.05 * result.details.facts["distance_before"]
    assert result.details.facts["target"] == "given"


def test_stop_converged_stops_where_it_settled(problem) -> None:
    result = run(problem, Forsaken(penalty_share=0.2, iterations=2000))
    assert result.stopped == "converged"
    late = [step.objective for step in result.history[-6:]]
    assert abs(late[0] - late[-1]) < 1e-4 * late[-1]
    onward = run(problem, Forsaken(penalty_share=0.2, iterations=result.iterations + 3, stop="none"))
    assert onward.stopped != "converged"


def test_stop_calibrated_stops_at_the_bound(problem) -> None:
    result = run(problem, Forsaken(stop="calibrated"))
    bound = result.details.facts["calibrated"]
    assert result.stopped == "calibrated"
    assert result.history[-1].distance <= bound
    assert all(step.distance > bound for step in result.history[:-1])


def test_paper_configuration() -> None:
    flat = {"weights": "importance-raw", "power": 0.0, "anchor": 0.0, "anchor_references": 0, "iterations": 60}
    same = Forsaken(distance="kl", penalty=10.0, importance="loss", optimiser="lbfgs", stop="none", **flat)
    assert Forsaken.paper() == same


def test_paper_penalty_is_the_sum_over_raw_importance(problem) -> None:
    result = run(problem, Forsaken.paper())
    space = ParameterSpace(LogitModel(problem.model))
    omega = importance(space, Samples(*problem.retain), "loss", lambda tick: None)
    mu = mu_of(result, problem.model)
    assert result.history[-1].penalty == pytest.approx(float(10 * (omega * mu.abs()).sum()), rel=1e-2)


def test_one_gradient_in_microbatches_float32(problem) -> None:
    x, _ = problem.kept
    gradients = []
    for size in (None, 16):
        space = ParameterSpace(LogitModel(problem.model))
        target = torch.zeros(len(x), 4, dtype=torch.float64)
        f = Objective(
            space, torch.ones(space.size), Samples(x), target, None, None, distance="logits", beta=0.0, batch_size=size
        )
        gradients.append(torch.empty(space.size))
        f(gradients[-1])
    whole, parts = gradients
    assert torch.linalg.vector_norm(parts - whole) <= 1e-5 * torch.linalg.vector_norm(whole)


@pytest.mark.parametrize(
    "given",
    [{"iterations": 7, "anchor": 0.5}, {"schedule": {"iterations": 7}, "anchors": {"weight": 0.5}},
     {"schedule": Schedule(iterations=7), "anchors": Anchors(weight=0.5, references=9), "anchor_references": 300}],
)  # fmt: skip
def test_settings_of_a_group_may_be_given_one_by_one_as_a_table_or_as_a_value(given) -> None:
    found = Forsaken(**given)
    assert found == Forsaken(schedule=Schedule(iterations=7), anchors=Anchors(weight=0.5))
    assert (found.settings["iterations"], found.settings["anchor"], found.settings["stop"]) == (7, 0.5, "converged")
    assert Forsaken(**found.settings) == found
    assert dataclasses.replace(found, history=3).schedule == Schedule(iterations=7, history=3)


def test_a_setting_that_is_given_twice_is_told() -> None:
    with pytest.raises(forsaken.errors.SettingsError, match="iterations is given twice, alone and in schedule"):
        Forsaken(schedule={"iterations": 3}, iterations=5)


def test_a_wrong_group_is_told() -> None:
    with pytest.raises(forsaken.errors.SettingsError, match=r"setting of schedule 'iteration'; did you mean"):
        Forsaken(schedule={"iteration": 3})
    with pytest.raises(
        forsaken.errors.SettingsError, match=r"schedule is 3, expected a table of its settings, or Schedule\(...\)"
    ):
        Forsaken(schedule=3, stop="none")
    with pytest.raises(forsaken.errors.SettingsError, match=r"(?s)2 problems.*damping is 0.*iterations is 0"):
        Forsaken(solver={"damping": 0}, iterations=0)
    with pytest.raises(forsaken.errors.SettingsError, match=r"(?s)3 problems.*'roudns'.*penalty is -1.*damping is 0"):
        Forsaken(solver={"roudns": 3, "damping": 0}, penalty=-1)


def test_settings_are_json(problem) -> None:
    assert json.loads(json.dumps(Forsaken(parameters=("a", "b")).settings))["parameters"] == ["a", "b"]
    first, again = (Forsaken(parameters=lambda name, p: True).settings["parameters"] for _ in range(2))
    assert "lambda" in first
    assert first == again, "no address of memory in it"
    assert Forsaken(parameters=["a"]) == Forsaken(parameters=("a",))


def test_progress_is_told_and_can_cancel(problem) -> None:
    ticks = []
    result = run(problem, Forsaken(stop="none", iterations=8), progress=ticks.append)
    steps = [tick.done for tick in ticks if tick.stage == "forget"]
    assert steps == list(range(1, result.iterations + 1))

    class EnoughError(Exception):
        pass

    def cancel(tick):
        if tick.stage == "forget" and tick.done == 3:
            raise EnoughError

    before = [p.clone() for p in problem.model.parameters()]
    with pytest.raises(EnoughError):
        run(problem, progress=cancel)
    assert all(torch.equal(a, b) for a, b in zip(before, problem.model.parameters(), strict=True))


def test_a_loader_with_a_generator_of_its_own_gives_the_same_bits(problem) -> None:
    from torch.utils.data import DataLoader, TensorDataset

    own = torch.Generator().manual_seed(9)
    loader = DataLoader(TensorDataset(*problem.forget), batch_size=8, shuffle=True, generator=own)
    state = own.get_state()
    first, again = (Forsaken(iterations=5)(problem.model, loader, problem.reference, problem.retain) for _ in range(2))
    assert torch.equal(mu_of(first, problem.model), mu_of(again, problem.model))
    assert torch.equal(own.get_state(), state)


@pytest.mark.parametrize("kinds", [(torch.float64, torch.float32), (torch.float32, torch.float64)])
def test_overlap_is_found_across_dtypes(problem, kinds) -> None:
    forget, retain = (problem.forget[0][:5].to(kind) for kind in kinds)
    with pytest.raises(forsaken.errors.OverlapError) as caught:
        Forsaken()(problem.model, forget, problem.reference, retain)
    assert caught.value.rows == (0, 1, 2, 3, 4)


def test_a_misspelt_setting_of_the_class_is_helped() -> None:
    with pytest.raises(forsaken.errors.UnknownNameError, match="did you mean 'penalty'"):
        Forsaken(penality=3)
    with pytest.raises(forsaken.errors.SettingsError, match="belongs to the call"):
        Forsaken(seed=0)
    assert dataclasses.replace(Forsaken.paper(), iterations=5).schedule == Schedule(iterations=5, stop="none")


def test_probabilities_are_not_taken_for_logits(problem) -> None:
    softened = torch.nn.Sequential(problem.model, torch.nn.Softmax(1))
    with pytest.raises(forsaken.errors.ModelError, match="softmax"):
        Forsaken()(softened, problem.forget, problem.reference, problem.retain)
    targets = problem.model(problem.reference[:20]).softmax(1)
    with pytest.raises(forsaken.errors.InputError, match="logarithm"):
        Forsaken()(problem.model, problem.forget, None, problem.retain, targets=targets)


def test_a_result_is_told_in_a_line(problem) -> None:
    told = repr(run(problem, Forsaken(iterations=3)))
    assert "3 iterations" in told
    assert "density" in told


def test_the_size_of_the_change_is_reported(problem) -> None:
    result = run(problem)
    assert result.details.facts["mu_max"] == pytest.approx(float(mu_of(result, problem.model).abs().max()), rel=1e-3)
