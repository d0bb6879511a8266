"""An audit's ensembles on a real Ray: the same margins as in this process, and kept as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from forsaken import METHODS, Recipe, Training
from forsaken.auditing.ensembles import Ensembles
from forsaken.auditing.inputs import AuditInputs
from forsaken.bench.networks import mlp
from forsaken.data.samples import Samples
from forsaken.sets import Sets

pytestmark = pytest.mark.slow


def ensembles(folder: Path | None) -> Ensembles:
    draw = torch.Generator().manual_seed(0)

    def some(count: int) -> Samples:
        return Samples(torch.randn(count, 6, generator=draw), torch.randint(3, (count,), generator=draw))

    sets = Sets(some(8), kept=some(40), retain=some(6), test=some(20))
    training = Training(lambda: mlp(sizes=(6, 16, 3)), Recipe(4, 16, 1e-2))
    model = training.run(sets.train, seed=0)
    method = METHODS["fine-tune"](learning_rate=0.1)
    case = AuditInputs(model, model, sets, training=training)
    return Ensembles(case, {"unlearned": method}, originals=3, retrained=4, folder=folder, at_once=2)


def test_ray_gives_the_same_margins_and_keeps_them(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    here, there = ensembles(None).measure(), ensembles(tmp_path).measure(engine="ray", workers=2)
    for who, sets in here.margins.items():
        for part, matrix in sets.items():
            assert np.allclose(matrix, there.margins[who][part], atol=1e-5)
    assert ensembles(tmp_path).missing() == []
