"""The comparison of both oracles: halves that do not meet, numbers by hand, files that know their settings."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import forsaken
from forsaken.data.samples import Samples

FOLDER = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    known = {name: sys.modules.pop(name, None) for name in ("common", "oracles")}
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("oracles")
    finally:
        sys.path.remove(str(FOLDER))
        for name, module in known.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def test_strangers_get_labels_and_are_as_many_as_are_forgotten(benchmark: ModuleType) -> None:
    scenario = forsaken.load_scenario("digits", seed=3)
    sets, again = benchmark.sets_of(scenario), benchmark.sets_of(scenario)
    assert scenario.reference.labels is None
    assert len(sets["strangers"]) == len(sets["forget"]) == len(scenario.forget)
    labels = sets["strangers"].labels
    assert torch.equal(labels, again["strangers"].labels)
    assert int(labels.min()) >= 0
    assert int(labels.max()) < scenario.classes
    assert len(sets["kept"]) == len(scenario.kept) - len(scenario.retain)


def test_every_sample_is_judged_by_an_oracle_that_never_saw_it(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"forget": 6, "kept": 40, "test": 21, "strangers": 6}
    sets, start = {}, 0
    for name, size in sizes.items():
        sets[name] = Samples(torch.arange(start, start + size).float()[:, None], torch.zeros(size, dtype=torch.long))
        start += size
    fits: list[dict[str, set[float]]] = []

    class Oracle:
        threshold = 0.5

        def __init__(self, known: set[float]) -> None:
            self.known = known

        @classmethod
        def fit(cls, model: object, *, members: Samples, nonmembers: Samples, **settings: Any) -> Oracle:
            given = {name: set(part.inputs[:, 0].tolist()) for name, part in (("in", members), ("out", nonmembers))}
            assert len(members) == len(nonmembers)
            fits.append(given)
            return cls(given["in"] | given["out"])

        def score(self, model: object, samples: Samples) -> np.ndarray:
            rows = samples.inputs[:, 0].tolist()
            assert not self.known & set(rows)
            return np.array(rows)

    monkeypatch.setattr(benchmark, "WhiteBoxOracle", Oracle)
    folds = benchmark.folds_of(sets, 0)
    scores = benchmark.crossed(sets, folds, None, {"before": None})["before"]
    for name, part in sets.items():
        assert np.array_equal(scores[name], part.inputs[:, 0].numpy()), "each sample got its own score"
    assert len(fits) == 2
    assert {len(one["in"]) for one in fits} == {13, 14}, "3 of the forget set, and as many kept as test samples"
    assert {0.0, 1.0, 2.0, 3.0, 4.0, 5.0} <= fits[0]["in"] | fits[1]["in"]
    assert not (fits[0]["in"] | fits[0]["out"]) & (fits[1]["in"] | fits[1]["out"])


def test_numbers_by_hand(benchmark: ModuleType) -> None:
    high, low = 0.9, 0.1
    before = {
        "forget": np.array([high, high, high, low]),
        "kept": np.array([high, high, low, high]),
        "test": np.array([low, low, low, high]),
        "strangers": np.array([low, low, low, low]),
    }
    after = before | {"forget": np.array([low, low, high, low]), "kept": np.array([high, low, low, high])}
    folds = {name: np.array([0, 0, 1, 1]) for name in before}
    found = benchmark.judged({"before": before, "after": after, "retrained": before}, folds, 0.5)
    assert found["memorised"] == 3
    assert found["fr_after"] == pytest.approx(2 / 3)
    assert found["cfr_after"] == pytest.approx(1 / 3)
    assert (found["fr_retrained"], found["cfr_retrained"]) == (0, 0)
    assert found["balanced_accuracy"] == pytest.approx((6 / 8 + 7 / 8) / 2)
    assert found["auc_task"] == pytest.approx((1.0 + 0.5) / 2)
    assert found["auc_forget_before"] == pytest.approx((1.0 + 0.75) / 2)
    assert found["auc_forget_after"] == pytest.approx((0.5 + 0.75) / 2)


def test_a_rate_that_is_undefined_is_no_number(benchmark: ModuleType) -> None:
    nothing = {name: np.zeros(4) for name in ("forget", "kept", "test", "strangers")}
    folds = {name: np.array([0, 0, 1, 1]) for name in nothing}
    found = benchmark.judged({"before": nothing, "after": nothing, "retrained": nothing}, folds, 0.5)
    assert found["fr_after"] is found["cfr_retrained"] is None


def test_a_file_is_only_taken_for_what_it_is(
    benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = {row: {"fr_after": 0.5} for row in (benchmark.BLACK, benchmark.WHITE, benchmark.PREDICTED)}
    calls: list[int] = []

    def measured(name: str, seed: int, device: str) -> dict[str, dict[str, float]]:
        calls.append(seed)
        return rows

    monkeypatch.setattr(benchmark, "measured", measured)
    monkeypatch.setattr(benchmark, "RESULTS", tmp_path / "results")
    arguments = ["oracles.py", "--scenario", "digits", "--seeds", "0-1", "--folder", str(tmp_path / "seeds")]
    monkeypatch.setattr(sys, "argv", [*arguments, "--phase", "run"])
    benchmark.main()
    assert calls == [0, 1]
    assert not (tmp_path / "results").exists()
    monkeypatch.setattr(sys, "argv", arguments)
    benchmark.main()
    assert calls == [0, 1], "what was measured is not measured again"
    content = json.loads((tmp_path / "results" / "oracles-digits.json").read_bytes())
    assert content["runs"][benchmark.WHITE] == [{"fr_after": 0.5}] * 2
    assert content["paper_fr"] is None
    monkeypatch.setattr(benchmark, "LAYERS", 2)
    with pytest.raises(SystemExit, match=r"digits-0.json was made with other settings"):
        benchmark.main()
