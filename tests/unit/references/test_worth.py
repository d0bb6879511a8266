"""What references are worth, in worlds where it is known: models whose answers are sums over their rows, and noise."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from reference_case import KEY, drawn, hebb
from safetensors import safe_open
from torch import Tensor, nn

from forsaken import References
from forsaken.errors import SettingsError
from forsaken.metrics import likelihood_ratio_auc, margins, u_lira
from forsaken.references.rows import assign_folds
from forsaken.references.worth import Worth, _freedom, _unusual, worth_of

ROWS, SAMPLES, LIFT = 320, 400, 6.0


class World:
    """Models of two classes: the margin of a sample is a sum over the rows that a model learnt, and noise of its seed.

    The influences of all rows on a sample sum to zero, as gradients do at an optimum; `bias` is a shift for each row
    that is lacking.
    """

    def __init__(self, sigma: float, data: float, bias: float = 0.0, seed: int = 0) -> None:
        self.draw = np.random.default_rng(seed)
        self.sigma, self.bias = sigma, bias
        influences = self.draw.normal(size=(ROWS, SAMPLES))
        influences -= influences.mean(axis=0)
        # of a model that lacks a quarter of the rows the standard deviation is to be `data`
        self.influences = influences * data / math.sqrt(ROWS * 0.25 * 0.75)

    def margin(self, rows: Any) -> np.ndarray[Any, Any]:
        lacking = 1 - len(rows) / ROWS
        noise = self.draw.normal(0.0, self.sigma, SAMPLES)
        return LIFT + self.influences[rows].sum(axis=0) - 4 * self.bias * lacking + noise

    def logits(self, rows: Any) -> Tensor:
        half = torch.from_numpy(self.margin(rows)) / 2
        return torch.stack([half, -half], dim=1)

    def worth(self, folds: int, seed: int = 0, wholes: int = 2, some: int | None = None) -> Worth:
        fold = assign_folds(range(ROWS), None, folds=folds, seed=seed)
        said = [self.logits(np.flatnonzero(fold != at)) for at in range(folds)[:some]]
        return worth_of(said, [self.logits(np.arange(ROWS)) for _ in range(wholes)], count=folds)


@pytest.mark.parametrize(
    ("sigma", "data", "bias"), [(0.4, 0.9, 0.0), (0.4, 0.4, 0.3), (0.5, 0.0, 0.0), (0.3, 0.3, 0.6)]
)
def test_the_estimate_finds_what_the_world_was_made_with(sigma: float, data: float, bias: float) -> None:
    found = World(sigma, data, bias).worth(4)
    assert found.sigma == pytest.approx(sigma, rel=0.1)
    assert found.data == pytest.approx(data, abs=0.12 * max(sigma, data))
    assert found.shift == pytest.approx(bias, abs=0.35 * sigma)
    assert found.auc == pytest.approx(likelihood_ratio_auc(bias, math.hypot(sigma, data), sigma), abs=0.03)
    assert found.low <= found.auc <= found.high
    assert found.high - found.low < 0.2
    assert (found.folds, found.samples, found.pairs) == (4, SAMPLES, 1)


@pytest.mark.parametrize("folds", [2, 4, 8])
def test_it_is_what_many_models_measure(folds: int) -> None:
    world = World(0.4, 0.9)
    references, retrained = [], []
    for at in range(64):
        fold = assign_folds(range(ROWS), None, folds=folds, seed=100 + at)
        references.append(world.margin(np.flatnonzero(fold != 0)))
        retrained.append(world.margin(np.arange(ROWS)))
    measured = u_lira(np.stack(references), np.stack(retrained)).auc
    estimates = [world.worth(folds, seed).auc for seed in range(4)]
    assert np.mean(estimates) == pytest.approx(measured, abs=0.02)
    assert max(estimates) - min(estimates) < 0.06


@pytest.mark.parametrize("folds", [4, 8])
def test_a_group_that_moves_everything_counts_for_the_rows_of_its_own_fold_alone(folds: int) -> None:
    """The model without that group answers unlike all others, and so do models that are retrained without it."""
    world = World(0.4, 0.5)
    moved = 1.5 * world.draw.normal(size=SAMPLES)
    held = np.arange(16)  # the group
    groups = [*[-1] * len(held), *range(len(held), ROWS)]

    def margin(rows: Any) -> np.ndarray[Any, Any]:
        return world.margin(rows) + (moved if held[0] in rows else 0.0)

    def logits(rows: Any) -> Tensor:
        half = torch.from_numpy(margin(rows)) / 2
        return torch.stack([half, -half], dim=1)

    fold = assign_folds(range(ROWS), groups, folds=folds, seed=1)
    kept = [np.flatnonzero(fold != at) for at in range(folds)]
    said = [logits(rows) for rows in kept]
    found = worth_of(said, [logits(np.arange(ROWS)) for _ in range(3)], count=folds)
    assert found.group == pytest.approx(1.5, rel=0.15)
    assert world.worth(folds).group == 0, "nothing is unusual without it"
    any_row: list[Any] = []
    own, lacking, retrained = [], [], []
    for at in range(64):
        fold = assign_folds(range(ROWS), groups, folds=folds, seed=100 + at)
        any_row.append(margin(np.flatnonzero(fold != fold[world.draw.integers(16, ROWS)])))
        own.append(margin(np.flatnonzero(fold != fold[0])))
        lacking.append(margin(np.arange(16, ROWS)))
        retrained.append(margin(np.arange(ROWS)))
    measured = u_lira(np.stack(any_row), np.stack(retrained)).auc
    assert found.auc == pytest.approx(measured, abs=0.05), "a row drawn at random"
    measured = u_lira(np.stack(own), np.stack(lacking)).auc
    assert found.at(folds, request=16 / ROWS) == pytest.approx(measured, abs=0.05), "the group itself"


def test_one_number_of_folds_tells_about_another() -> None:
    world = World(0.4, 0.9, 0.2)
    four, sixteen = world.worth(4), world.worth(16)
    assert four.at(4) == pytest.approx(four.auc, abs=1e-9)
    assert four.at(16) == pytest.approx(sixteen.auc, abs=0.03)
    assert sixteen.at(4) == pytest.approx(four.auc, abs=0.04)
    assert four.at(4, request=0.25) < 0.5 + 1e-9, "who forgets a whole fold is compared with models that lack it too"
    assert four.at(8, request=1 / 16) == pytest.approx(four.at(16), abs=1e-9)


@pytest.mark.parametrize(("folds", "forgotten"), [(2, 64), (4, 0), (4, 32), (4, 96), (8, 96)])
def test_references_age_as_rows_are_forgotten(folds: int, forgotten: int) -> None:
    """Retrained models lack all rows of earlier requests, and a fold model those of its own fold alone."""
    world = World(0.4, 0.4)
    estimate = np.mean([world.worth(folds, seed).after(forgotten / ROWS) for seed in range(4)])
    left = world.draw.permutation(ROWS)[forgotten:]
    references, retrained = [], []
    for at in range(64):
        fold = assign_folds(range(ROWS), None, folds=folds, seed=100 + at)
        references.append(world.margin(np.flatnonzero(fold != 0)))
        retrained.append(world.margin(left))
    measured = u_lira(np.stack(references), np.stack(retrained)).auc
    assert estimate == pytest.approx(measured, abs=0.03)


def test_some_of_the_folds_do_for_a_first_look() -> None:
    looks = [World(0.4, 0.9, 0.3, seed).worth(4, seed, some=2) for seed in range(12)]
    assert np.mean([each.auc for each in looks]) == pytest.approx(World(0.4, 0.9, 0.3).worth(4).auc, abs=0.02)


def test_the_folds_that_are_needed_are_the_first_below_the_goal() -> None:
    found = World(0.4, 0.6).worth(4)
    need = found.folds_needed
    assert need is not None
    assert found.at(need) < 0.55 <= found.at(need - 1)
    assert Worth(0.9, 0.9, 0.9, 0.1, 90.0, 0.0, 0.0, 4, 100, 1).folds_needed is None
    assert Worth(0.5, 0.5, 0.5, 0.4, 0.0, 0.0, 0.0, 4, 100, 1).folds_needed == 2
    assert found.about()["folds_needed"] == need


def test_the_interval_knows_that_samples_move_together() -> None:
    """The margins of all samples hang on eight numbers of a model: a pair of models is worth few samples."""
    draw = np.random.default_rng(5)
    loads = draw.normal(size=(8, SAMPLES))

    def said(spread: float) -> Tensor:
        half = torch.from_numpy(LIFT + spread * draw.normal(size=8) @ loads) / 2
        return torch.stack([half, -half], dim=1)

    found = [worth_of([said(0.4) for _ in range(4)], [said(0.4), said(0.4)], count=4) for _ in range(40)]
    held = np.mean([each.low <= 0.52 for each in found])
    assert held >= 0.9, "nothing tells these models apart"
    assert np.mean([each.high - each.low for each in found]) > 0.08
    one = World(0.4, 0.9).worth(4, wholes=3)
    assert one.high - one.low < 0.08, "independent samples are worth what they are"


def test_how_many_independent_samples_a_model_is_worth() -> None:
    draw = np.random.default_rng(2)
    loads = draw.normal(size=(8, SAMPLES))
    known = np.trace(loads @ loads.T) ** 2 / ((loads @ loads.T) ** 2).sum()
    found, alarms = [], 0
    for _ in range(100):
        folds, wholes = draw.normal(size=(4, 8)) @ loads, 5.0 + draw.normal(size=(2, 8)) @ loads
        found.append(_freedom((wholes, 3 * folds)))
        alarms += _unusual(folds, wholes) is not None
    assert np.median(found) == pytest.approx(known, rel=0.15)
    assert alarms <= 6, "no fold is unlike the others"
    independent = draw.normal(size=(20, 50))
    assert 35 < _freedom((independent[:5], independent[5:])) <= 50
    still = np.ones((2, 50))
    assert _freedom((still, independent[:9])) > 35, "models that a seed does not move say nothing about it"
    assert _freedom((still, still)) == 50


def test_a_shift_counts_though_it_is_small_beside_the_spread_of_the_seeds() -> None:
    """Models that learnt less are less certain of all samples; a seed moves single samples more than their mean."""
    found = World(1.5, 0.3, 0.6).worth(4)
    assert np.mean([World(1.5, 0.3, 0.6, at).worth(4).shift for at in range(6)]) == pytest.approx(0.6, abs=0.1)
    assert World(1.5, 0.3).worth(4).shift == 0
    assert found.at(2) - found.auc > 0.03, "a model that lacks twice as much is shifted twice as far"


def test_a_target_that_was_trained_in_another_way_is_no_sign_of_good_references() -> None:
    """Its distance would pass for that of two seeds, beside which nothing else stands out."""
    world = World(0.3, 0.3)
    fold = assign_folds(range(ROWS), None, folds=4, seed=0)
    folds = [world.logits(np.flatnonzero(fold != at)) for at in range(4)]
    target, other = world.logits(np.arange(ROWS)), world.logits(np.arange(ROWS))
    strange = torch.from_numpy(np.random.default_rng(8).normal(size=SAMPLES))
    own = target + torch.stack([strange, -strange], dim=1)
    found, plain = worth_of(folds, [own, other], count=4), worth_of(folds, [target, other], count=4)
    assert found.sigma < 1.7 * plain.sigma
    assert min(found.auc, found.high) > 0.8 > plain.high


def test_seeds_that_make_no_difference_are_no_reason_to_divide_by_zero() -> None:
    still = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    assert worth_of([still, still], [still, still], count=2).auc == 0.5
    far = worth_of([still, 9 * still], [still, still], count=2)
    assert 0.9 < far.auc <= 1.0


@pytest.mark.parametrize("lacking", ["a fold", "a second model", "a target", "samples"])
def test_where_there_is_nothing_to_compare_there_is_no_estimate(lacking: str) -> None:
    one = torch.randn(1 if lacking == "samples" else 9, 3)
    wholes = {"a second model": 1, "a target": 0}.get(lacking, 2)
    assert worth_of([one] if lacking == "a fold" else [one, one], [one] * wholes, count=2) is None


# --- in a table ------------------------------------------------------------------------------------------------------


def noisy(x: Tensor, y: Tensor, noise: float, log: list[Any] | None = None) -> Any:
    """Return how to train: the weights of `hebb`, and noise that follows the seed."""
    plain = hebb(x, y, log)

    def train(rows: Any, steps: int | None, seed: int) -> nn.Module:
        model = plain(rows, steps, seed)
        draw = torch.Generator().manual_seed(seed)
        model.weight.data += noise * torch.randn(model.weight.shape, generator=draw)
        return model

    return train


def fitted(
    folds: Any, noise: float = 1.0, log: list[Any] | None = None, *, unseen_rows: int = 60, **more: Any
) -> References:
    data, unseen = drawn(48), drawn(unseen_rows, seed=3)[0]
    train = noisy(*data, noise, log)
    target = noisy(*data, noise)(range(48), None, 999)
    return References.fit(train, data, folds, key=KEY, model=target, unseen=unseen, **more)


@pytest.mark.parametrize(
    ("folds", "second", "count"), [(4, None, 5), (12, None, 13), (2, None, 2), (2, True, 3), (4, False, 4)]
)
def test_one_more_model_learns_everything(folds: int, second: bool | None, count: int) -> None:
    log: list[Any] = []
    table = fitted(folds, log=log, second=second)
    assert table.origin.costs.trainings == len(log) == count
    assert (table.worth is None) == (count == folds)
    assert [rows for rows, *_ in log[folds:]] == [list(range(48))] * (count - folds)
    assert len({seed for *_, seed in log}) == count
    assert table.about()["worth"] == (None if table.worth is None else table.worth.about())


def test_what_learnt_everything_is_not_kept_with_the_fold_models() -> None:
    table = fitted(4, keep_models=True)
    assert table.origin.costs.trainings == 5
    assert len(table.fold_models.models) == 4


def test_a_second_model_replaces_the_training() -> None:
    log: list[Any] = []
    data = drawn(48)
    table = fitted(4, log=log, second=noisy(*data, 1.0)(range(48), None, 7))
    assert len(log) == 4
    assert table.worth.pairs == 1


def test_the_estimate_comes_from_the_models_that_gave_the_logits() -> None:
    data, unseen = drawn(48), drawn(60, seed=3)[0]
    log: list[Any] = []
    table = fitted(4, log=log)
    train = noisy(*data, 1.0)
    said = [train(rows, steps, seed)(unseen).detach() for rows, steps, seed in log]
    target = train(range(48), None, 999)(unseen).detach()
    assert table.worth == worth_of(said[:4], [target, said[4]], count=4)
    likeliest = torch.stack([*said, target]).double().mean(0).argmax(1).numpy()
    own = margins(torch.stack([target, said[4]]).double().numpy(), likeliest)
    assert table.worth.sigma == pytest.approx(math.sqrt(((own[0] - own[1]) ** 2).mean() / 2), rel=1e-6)


def test_a_table_says_when_it_is_used_up() -> None:
    table = fitted(4, noise=0.5, unseen_rows=400)
    assert table.worth_now == pytest.approx(table.worth.auc)
    assert not table.refit_due
    x = drawn(48)[0]
    due = []
    for at in range(0, 24, 4):
        table.forget(x[at : at + 4])
        due.append(table.refit_due)
    assert table.worth_now == table.worth.after(0.5) > table.worth.at(4) + 0.02
    assert due == sorted(due)
    assert due[-1]
    assert table.about()["refit_due"]


def test_auto_is_content_with_four_folds_where_seeds_differ_more_than_data() -> None:
    found = [fitted("auto", noise=30.0, budget=16, seed=seed) for seed in range(20)]
    content = [table for table in found if table.origin.folds == 4]
    assert len(content) >= 10, "fifteen weights tell σ badly: the other tables ask for more folds than they need"
    assert {(table.origin.budget, table.origin.costs.trainings) for table in content} == {(16, 5)}
    assert np.median([table.worth.auc for table in found]) < 0.55


def test_auto_asks_for_more_where_four_are_too_few() -> None:
    log: list[Any] = []
    table = fitted("auto", noise=0.5, log=log, budget=16)
    assert (table.origin.folds, len(log)) == (13, 16), "two of four folds, one model of everything, thirteen folds"
    assert table.origin.costs.trainings == 16
    assert (table.worth.folds, table.worth.pairs) == (13, 1)
    assert table.worth.auc > 0.55, "thirteen are too few as well"
    assert len(set(table.entries.fold.tolist())) == 13
    for at, (rows, *_) in enumerate(log[3:]):
        assert sorted(rows + np.flatnonzero(table.entries.fold == at).tolist()) == list(range(48))


def test_auto_keeps_within_a_small_budget() -> None:
    for budget in (3, 4, 5, 6):
        log: list[Any] = []
        table = fitted("auto", noise=0.5, log=log, budget=budget)
        assert len(log) <= budget
        assert table.origin.folds == min(4, budget - 1)


def test_auto_never_asks_for_more_folds_than_there_are_groups() -> None:
    groups = [at % 6 for at in range(48)]
    found = {fitted("auto", noise=0.5, budget=30, groups=groups, seed=seed).origin.folds for seed in range(6)}
    assert found == {4, 6}, "four where two more would gain too little"


@pytest.mark.parametrize("wrong", [{"budget": 2}, {"budget": True}, {"second": False}, {"folds": 4, "budget": 9}])
def test_a_budget_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="auto"):
        fitted(**{"folds": "auto"} | wrong)


def test_auto_needs_samples_to_choose_by() -> None:
    data = drawn(24)
    with pytest.raises(SettingsError, match="unseen="):
        References.fit(hebb(*data), data, "auto")


def test_an_auto_fit_that_was_killed_goes_on(tmp_path: Path) -> None:
    log: list[Any] = []
    data, unseen = drawn(48), drawn(60, seed=3)[0]
    plain = noisy(*data, 0.5)

    def killed(rows: Any, steps: int | None, seed: int) -> nn.Module:
        log.append(seed)
        if len(log) in (2, 6):
            raise KeyboardInterrupt
        return plain(rows, steps, seed)

    how: dict[str, Any] = {"key": KEY, "model": plain(range(48), None, 999), "unseen": unseen, "budget": 12}
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            References.fit(killed, data, "auto", folder=tmp_path, **how)
    found = References.fit(killed, data, "auto", folder=tmp_path, **how)
    whole = References.fit(plain, data, "auto", **how)
    assert torch.equal(found.entries.logits, whole.entries.logits)
    assert found.worth == whole.worth
    assert len(log) == 2 + whole.origin.costs.trainings, "nothing but what was killed is trained twice"


def test_a_shift_of_an_older_file_counts_as_it_did(tmp_path: Path) -> None:
    table = fitted(4, noise=0.5)
    for shift, counted in ((0.2, 0.0), (0.5, math.sqrt(0.5**2 - (0.3**2 + 0.4**2) / 2))):
        table.worth = replace(table.worth, sigma=0.3, data=0.4, shift=shift)
        path = table.save(tmp_path / "table")
        assert References.load(path).worth.shift == shift
        with safe_open(path, framework="pt") as file:
            about = file.metadata()
        tensors, told = safetensors.torch.load_file(path), json.loads(about["about"])
        assert told["schema"] == 4
        path.write_bytes(safetensors.torch.save(tensors, about | {"about": json.dumps(told | {"schema": 3})}))
        assert References.load(path).worth.shift == pytest.approx(counted)


def test_the_estimate_is_kept_in_the_file(tmp_path: Path) -> None:
    table = fitted("auto", budget=6)
    again = References.load(table.save(tmp_path / "table"))
    assert again.worth == table.worth
    assert again.about() == table.about()
