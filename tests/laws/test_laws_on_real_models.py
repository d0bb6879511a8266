"""The laws of an audit on networks that were really trained: the full profile on digits, 16 originals and 32 retrained.

The samples to forget are eights and nines under random labels, which a network can only know by heart.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from forsaken import Forsaken, load_scenario
from forsaken.auditing.ensembles import Ensembles
from forsaken.auditing.full import Full
from forsaken.auditing.measurements import Matrices
from forsaken.bench.audit import inputs_of
from forsaken.bench.networks import fit
from forsaken.metrics import at_floor, klom, klom_floor, u_lira, u_lira_floor, u_lira_intervals
from forsaken.unlearning.base import About, Details, Request, Unlearner

pytestmark = pytest.mark.slow

N = 16


@dataclass(frozen=True, kw_only=True)
class Destroy(Unlearner):
    """Forget everything."""

    about = About(summary="set every weight to zero", paper="none", needs=("forget",))

    def run(self, student: nn.Module, request: Request) -> Details:
        with torch.no_grad():
            for weight in student.parameters():
                weight.zero_()
        return Details("iterations", 1, 0, ())


@pytest.fixture(scope="module")
def measured() -> Matrices:
    torch.set_num_threads(2)
    scenario = load_scenario("digits", seed=0)
    case = inputs_of(scenario, fit(scenario, scenario.train, seed=1))
    methods = {"forsaken": Forsaken(), "destroyed": Destroy()}
    return Ensembles(case, methods, originals=N, retrained=2 * N).measure()


@pytest.mark.parametrize("part", ["forget", "retain", "test"])
def test_retrained_against_retrained_is_one_half_within_its_interval(measured: Matrices, part: str) -> None:
    models = measured.margins["retrained"][part]
    low, high = u_lira_intervals(models[:N], models[N:]).auc
    assert low <= 0.5 <= high
    # a standard deviation more on one side, and the same interval must not hold it
    moved = models[:N] + models.std(axis=0, ddof=1)
    assert u_lira_intervals(moved, models[N:]).auc[0] > 0.5


@pytest.mark.parametrize("part", ["forget", "retain", "test"])
def test_the_halves_as_they_were_trained_differ_no_more_than_any_others(measured: Matrices, part: str) -> None:
    # A test by permutation: it fails where the models trained first differ from those trained later.
    models = measured.margins["retrained"][part]
    floor, range_ = u_lira_floor(models), klom_floor(models)
    assert at_floor(u_lira(models[:N], models[N:]).auc, floor)
    assert range_.low <= klom(models[:N], models[N:]).mean() <= range_.high
    moved = models[:N] + models.std(axis=0, ddof=1)
    assert not at_floor(u_lira(moved, models[N:]).auc, floor)
    assert klom(moved, models[N:]).mean() > range_.high


def test_doing_nothing_on_memorised_mislabelled_samples_is_told(measured: Matrices) -> None:
    full = Full(measured, "forsaken")
    assert full.idle["forget"].auc > 0.95
    numbers = {number.name: number for number in full.numbers()}
    assert numbers["klom_forget_mean"].before > numbers["klom_forget_mean"].floor[1]
    assert numbers["klom_forget_mean"].before > 1.5 * numbers["klom_forget_mean"].retrained
    assert numbers["klom_forget_mean"].value <= numbers["klom_forget_mean"].before


def test_a_destroyed_model_does_not_win(measured: Matrices) -> None:
    ours, gone = (
        {number.name: number for number in Full(measured, name).numbers()} for name in ("forsaken", "destroyed")
    )
    assert gone["ensemble_accuracy_test"].value < 0.3
    assert gone["neurips_score"].value < 0.25 * gone["neurips_score"].retrained
    assert gone["u_lira_auc"].value > 0.95
    assert ours["ensemble_accuracy_test"].value > 0.95
