"""The numbers of a run from posteriors that are made up, so that every number is known."""

from __future__ import annotations

import numpy as np
import pytest

from forsaken import ShadowOracle
from forsaken.auditing.judgement import accuracy_by_class, judge, rates
from forsaken.result import ByClass

SURE, UNSURE, WRONG = [0.98, 0.01, 0.01], [0.4, 0.3, 0.3], [0.01, 0.98, 0.01]


@pytest.fixture(scope="module")
def oracle() -> ShadowOracle:
    """It takes confident answers for members."""
    return ShadowOracle.fit_posteriors(np.array([SURE, WRONG] * 40), np.array([UNSURE] * 80))


def rows(*parts: tuple[list[float], int]) -> np.ndarray:
    return np.concatenate([np.tile(row, (count, 1)) for row, count in parts])


BEFORE = {
    "forget": rows((SURE, 8), (UNSURE, 2)),
    "kept": rows((SURE, 4)),
    "test": rows((SURE, 3), (WRONG, 1)),
    "reference": rows((UNSURE, 5)),
}
AFTER = BEFORE | {"forget": rows((SURE, 2), (UNSURE, 8)), "kept": rows((SURE, 3), (UNSURE, 1))}
RETRAINED = BEFORE | {"forget": rows((UNSURE, 10)), "test": rows((SURE, 4))}
LABELS = np.array([0, 0, 0, 0])


def test_every_number_beside_the_model_before_and_a_retrained_one(oracle: ShadowOracle) -> None:
    found = judge(
        BEFORE,
        AFTER,
        RETRAINED,
        oracle=oracle,
        test_labels=LABELS,
        forget_labels=np.zeros(10, dtype=int),
        retrain_seconds=2.0,
    )
    assert (found.memorised_before, found.kept_members_before) == (8, 4)
    assert found.fr == (8 - 2) / 8
    assert found.cfr == 1 / 4
    assert (found.accuracy_before, found.accuracy_after) == (0.75, 0.75)
    assert (found.retrain.fr, found.retrain.cfr, found.retrain.accuracy, found.retrain.seconds) == (1, 0, 1, 2)
    assert found.forget_confidence.after == pytest.approx((2 * 0.98 + 8 * 0.4) / 10)
    assert found.forget_confidence.retrained == pytest.approx(0.4)
    assert found.forget_accuracy.before == 1
    assert found.by_class == ByClass(support=[4, 0, 0], before=[0.75, None, None], after=[0.75, None, None])
    # 8 of 10 stand above all references before, 2 after, none when retrained; ties count half
    apart = found.separation
    assert (apart.against, apart.n) == ("reference", 5)
    assert (apart.before, apart.after, apart.retrained) == (0.9, 0.6, 0.5)
    assert apart.spread.before == pytest.approx(BEFORE["forget"].max(1).std())
    assert apart.spread_of_others == 0


def test_what_cannot_be_known_is_none() -> None:
    found = judge({"forget": BEFORE["forget"]}, {"forget": AFTER["forget"]})
    unknown = {name for name, value in found if value is None}
    assert unknown == set(dict(found)) - {"forget_confidence"}
    assert found.forget_confidence.retrained is None


def test_test_samples_are_compared_with_where_there_are_no_references() -> None:
    parts = ("forget", "test")
    found = judge({name: BEFORE[name] for name in parts}, {name: AFTER[name] for name in parts})
    assert (found.separation.against, found.separation.n) == ("test", 4)


def test_there_is_no_rate_where_nothing_was_memorised(oracle: ShadowOracle) -> None:
    assert rates(oracle, RETRAINED, AFTER, None).fr is None


def test_classes_without_a_sample_have_no_accuracy() -> None:
    assert accuracy_by_class(np.empty(0, dtype=int), np.empty((0, 2)), np.empty((0, 2))) is None
