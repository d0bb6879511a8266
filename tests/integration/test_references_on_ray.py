"""Cross-fitting on a real Ray: the same table as in this process, and what is done before a failure is kept."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import reference_case
import torch
from reference_case import CLASSES, KEY, WIDTH, apart, by_hand, drawn
from torch import nn

from forsaken import Recipe, References, Tick, Training
from forsaken.bench.networks import mlp

cloudpickle = pytest.importorskip("ray.cloudpickle")
for name in (__name__, reference_case.__name__):
    cloudpickle.register_pickle_by_value(sys.modules[name])  # Ray's workers cannot import a test
pytestmark = pytest.mark.slow

X, Y = drawn(22)


def hebb(rows: Any, steps: int | None, seed: int) -> nn.Module:
    return reference_case.hebb(X, Y)(rows, steps, seed)


def hebb_or_fail(marker: Path, rows: Any, steps: int | None, seed: int) -> nn.Module:
    """Note each training; fail, once the others are done, on what has not got row 0 while the marker is there."""
    if 0 not in rows and marker.exists():
        time.sleep(5)
        raise ValueError("no row 0")
    (marker.parent / f"trained-{seed}").touch()
    return hebb(rows, steps, seed)


class Failing:
    """A training whose settings travel with it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __call__(self, rows: Any, steps: int | None, seed: int) -> nn.Module:
        return hebb_or_fail(self.marker, rows, steps, seed)


@pytest.fixture(scope="module", autouse=True)
def ray():
    import os

    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


@pytest.mark.parametrize("keep_models", [False, True])
def test_ray_gives_the_same_table(keep_models: bool) -> None:
    ticks: list[Tick] = []
    more: Any = {"key": KEY, "keep_models": keep_models}
    here = References.fit(hebb, (X, Y), **more)
    there = References.fit(hebb, (X, Y), **more, engine="ray", workers=2, progress=ticks.append)
    assert torch.equal(here.logits(X), there.logits(X))
    torch.testing.assert_close(there.logits(X), by_hand(X, Y, apart(there.entries.fold)))
    assert [tick.done for tick in ticks] == [1, 2, 3, 4]
    assert len(there.models) == (4 if keep_models else 0)


def test_networks_trained_together_here_and_alone_there() -> None:
    training = Training(lambda: mlp(sizes=(WIDTH, 8, CLASSES)), Recipe(3, 8, 1e-2))
    here = References.fit(training, (X, Y), key=KEY)
    there = References.fit(training, (X, Y), key=KEY, engine="ray")
    torch.testing.assert_close(here.logits(X), there.logits(X), atol=1e-5, rtol=1e-4)
    assert here.origin.steps == there.origin.steps == 9


def test_a_fit_that_failed_on_ray_goes_on(tmp_path: Path) -> None:
    marker, folder = tmp_path / "marker", tmp_path / "fit"
    marker.touch()
    train = Failing(marker)
    with pytest.raises(ValueError, match="no row 0"):
        References.fit(train, (X, Y), folder=folder, engine="ray", workers=2)
    left = len(list(folder.glob("fold-*")))
    assert left == len(list(tmp_path.glob("trained-*"))) > 0
    marker.unlink()
    for each in tmp_path.glob("trained-*"):
        each.unlink()
    table = References.fit(train, (X, Y), folder=folder, engine="ray", workers=2)
    assert len(list(tmp_path.glob("trained-*"))) == 4 - left, "what was trained is not trained again"
    torch.testing.assert_close(table.logits(X), by_hand(X, Y, apart(table.entries.fold)))
    assert len(list(folder.glob("fold-*"))) >= 4, "they are the caller's, until the table is saved"
