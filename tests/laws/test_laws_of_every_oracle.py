"""A law for every attack of an audit: samples learnt by heart give it an edge, under a retrained model they do not.

Evaluation.md, section 3. Shadow oracle, white-box oracle, LiRA and RMIA look at the same over-trained network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from forsaken import Recipe, ShadowOracle, Training
from forsaken.auditing.attacks import ShadowModels, white_box
from forsaken.auditing.inputs import AuditInputs
from forsaken.bench.networks import mlp
from forsaken.data.samples import Samples, join
from forsaken.metrics import separation
from forsaken.sets import Sets

if TYPE_CHECKING:
    from tests.conftest import Problem

TRAINING = Training(lambda: mlp((20, 64, 32, 4)), Recipe(150, 32, 3e-3))


def strangers(problem: Problem, start: int, stop: int) -> Samples:
    """Return samples like those that were learnt by heart, under random labels; rows are never asked for twice."""
    labels = torch.randint(4, (100,), generator=torch.Generator().manual_seed(0))
    return Samples(problem.reference[start:stop], labels[start:stop])


@pytest.fixture(scope="module")
def areas(problem: Problem) -> dict[str, tuple[float, float]]:
    """By attack: the AUC of forgotten samples against strangers, under the over-trained model and a retrained one."""
    kept, test, forget = (Samples(*pair) for pair in (problem.kept, problem.test, problem.forget))
    outside = strangers(problem, 60, 80)
    retrained = TRAINING.run(kept, seed=9)
    sets = Sets(forget, kept=kept, test=test, nonmembers=outside)
    case = AuditInputs(problem.model, problem.model, sets, retrained=(retrained,), training=TRAINING)
    numbers = ShadowModels.fit(case, 8).numbers()[0] + white_box(case)
    found = {number.name: (number.before, number.retrained) for number in numbers if number.name.endswith("_auc")}

    members = join([test, strangers(problem, 0, 20)])
    shadow = ShadowOracle.fit(
        TRAINING.run(members, seed=5), members=members, nonmembers=join([kept, strangers(problem, 20, 60)])
    )
    scores = [(shadow.score(model, forget), shadow.score(model, outside)) for model in (problem.model, retrained)]
    return {**found, "shadow_auc": (separation(*scores[0]), separation(*scores[1]))}


@pytest.mark.parametrize("attack", ["shadow_auc", "white_box_auc", "lira_auc", "rmia_auc"])
def test_an_over_trained_model_gives_the_attack_an_edge(areas: dict[str, tuple[float, float]], attack: str) -> None:
    over_trained, retrained = areas[attack]
    assert over_trained > 0.7
    # the edge is memory, and no difference between the two kinds of samples
    assert abs(retrained - 0.5) < over_trained - 0.5
