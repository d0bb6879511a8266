"""Black box and white box beside each other: halves that do not meet, and numbers by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import forsaken
from forsaken.bench import white_box
from forsaken.data.samples import Samples


def test_strangers_get_labels_and_are_as_many_as_are_forgotten() -> None:
    scenario = forsaken.load_scenario("digits", seed=3)
    sets, again = white_box._sets_of(scenario), white_box._sets_of(scenario)
    assert scenario.reference.labels is None
    assert len(sets["strangers"]) == len(sets["forget"]) == len(scenario.forget)
    labels = sets["strangers"].labels
    assert torch.equal(labels, again["strangers"].labels)
    assert int(labels.min()) >= 0
    assert int(labels.max()) < scenario.classes
    assert len(sets["kept"]) == len(scenario.kept) - len(scenario.retain)


def test_every_sample_is_judged_by_an_oracle_that_never_saw_it(monkeypatch: pytest.MonkeyPatch) -> None:
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

    monkeypatch.setattr(white_box, "WhiteBoxOracle", Oracle)
    folds = white_box._halves(sets, 0)
    scores = white_box._crossed(sets, folds, None, {"before": None})["before"]
    for name, part in sets.items():
        assert np.array_equal(scores[name], part.inputs[:, 0].numpy()), "each sample got its own score"
    assert len(fits) == 2
    assert {len(one["in"]) for one in fits} == {13, 14}, "3 of the forget set, and as many kept as test samples"
    assert {0.0, 1.0, 2.0, 3.0, 4.0, 5.0} <= fits[0]["in"] | fits[1]["in"]
    assert not (fits[0]["in"] | fits[0]["out"]) & (fits[1]["in"] | fits[1]["out"])


def test_numbers_by_hand() -> None:
    high, low = 0.9, 0.1
    before = {
        "forget": np.array([high, high, high, low]),
        "kept": np.array([high, high, low, high]),
        "test": np.array([low, low, low, high]),
        "strangers": np.array([low, low, low, low]),
    }
    after = before | {"forget": np.array([low, low, high, low]), "kept": np.array([high, low, low, high])}
    folds = {name: np.array([0, 0, 1, 1]) for name in before}
    found = white_box.judged({"before": before, "after": after, "retrained": before}, folds, 0.5)
    assert found["memorised"] == 3
    assert found["fr"] == pytest.approx(2 / 3)
    assert found["cfr"] == pytest.approx(1 / 3)
    assert (found["fr_retrained"], found["cfr_retrained"]) == (0, 0)
    assert found["balanced_accuracy"] == pytest.approx((6 / 8 + 7 / 8) / 2)
    assert found["auc_before"] == pytest.approx((1.0 + 0.75) / 2)
    assert found["auc_after"] == pytest.approx((0.5 + 0.75) / 2)


def test_a_rate_that_is_undefined_is_no_number() -> None:
    nothing = {name: np.zeros(4) for name in ("forget", "kept", "test", "strangers")}
    folds = {name: np.array([0, 0, 1, 1]) for name in nothing}
    found = white_box.judged({"before": nothing, "after": nothing, "retrained": nothing}, folds, 0.5)
    assert found["fr"] is found["cfr_retrained"] is None
