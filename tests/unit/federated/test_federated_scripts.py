"""What the federated benchmarks compute, against cases that are known."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import benchmark_scripts
import numpy as np
import pytest
import torch

from forsaken.data.samples import Samples
from forsaken.federated.scaling import norm, plus


@pytest.fixture
def federated() -> Iterator[ModuleType]:
    with benchmark_scripts.script("federated") as found:
        yield found


@pytest.mark.parametrize("split", ["iid", "dirichlet"])
def test_every_row_is_one_client_s(federated: ModuleType, split: str) -> None:
    labels = np.repeat(np.arange(5), 200)
    parts = federated.partition(labels, split, np.random.default_rng(0))
    assert len(parts) == 10
    assert sorted(np.concatenate(parts)) == list(range(1000))
    uneven = np.std([np.mean(labels[part] == 0) for part in parts])
    assert uneven < 0.06 if split == "iid" else uneven > 0.15


def test_the_eraser_goes_as_far_as_the_stored_updates_in_the_direction_of_the_calibration(
    federated: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(federated, "WORDS", 6)
    monkeypatch.setattr(federated, "HIDDEN", 4)
    draw = torch.Generator().manual_seed(0)
    data = Samples(torch.rand(40, 6, generator=draw), torch.randint(35, (40,), generator=draw))
    start = federated.initial(0)
    stored = [{0: {name: torch.full_like(part, 0.5) for name, part in start.items()}}]
    found = federated.eraser([data], start, stored, seed=1)
    moved = plus(start, found, -1.0)
    assert norm(moved) == pytest.approx(federated.INTERVAL * norm(stored[0][0]), rel=1e-4)
    assert not torch.allclose(moved["0.weight"], moved["0.weight"].mean() * torch.ones(4, 6)), "not the old direction"


def test_the_detector_s_features_and_classifier_tell_what_differs() -> None:
    with benchmark_scripts.script("federated_detector") as detector:
        draw = np.random.default_rng(0)

        def upload(size: float) -> dict[str, torch.Tensor]:
            return {"w": torch.from_numpy(size * draw.standard_normal((4, 6))), "b": torch.from_numpy(draw.random(4))}

        rows, truths, starts = {"same": [], "longer": []}, [], []
        for number in range(60):
            chosen = draw.integers(5)
            truth = [bool(at == chosen) for at in range(5)]
            truths.append(truth)
            starts.append(number % 10)
            for name, size in (("same", 1.0), ("longer", 3.0)):
                some = [upload(size if forgets else 1.0) for forgets in truth]
                rows[name].append([detector.features(each, some[0], some[1]) for each in some])
        assert detector.detected(rows["longer"], truths, starts) > 0.95
        assert 0.3 < detector.detected(rows["same"], truths, starts) < 0.68
        plain = {"w": torch.tensor([[3.0, 0.0], [0.0, 4.0]])}
        found = detector.features(plain, plain, {"w": -plain["w"]})
        assert found[0] == pytest.approx(np.log(5.0))
        assert (found[1], found[2]) == pytest.approx((1.0, -1.0))
        assert found[8] == pytest.approx(4 / 5), "the largest singular value, of the norm"


def test_the_script_s_mask_forms(federated: ModuleType) -> None:
    with benchmark_scripts.script("federated_detector") as detector:
        own, mask = {"w": torch.tensor([3.0, 0.0])}, {"w": torch.tensor([0.0, 2.0])}
        exact = detector.with_mask(own, mask, detector.Form(0.1, 10.0, added=False))
        added = detector.with_mask(own, mask, detector.Form(0.1, 10.0))
        clipped = detector.with_mask(own, mask, detector.Form(0.1, None))
        assert exact["w"].tolist() == [0.0, 20.0]
        assert added["w"].tolist() == [3.0, 20.0]
        assert norm(clipped) == pytest.approx(3.0)
