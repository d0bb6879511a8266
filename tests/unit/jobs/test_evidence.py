"""What the verdict on a run rests on: beside references a good outcome may still show nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from forsaken.jobs.run import OutOfFold, evidence_of
from forsaken.verdict import decide

LABELS = np.arange(200) % 2


def answers(right: float) -> np.ndarray[Any, Any]:
    """Return posteriors of the test samples, of which a share is right."""
    shown = np.where(np.arange(200) < 200 * right, LABELS, 1 - LABELS)
    return np.where(np.arange(2) == shown[:, None], 0.9, 0.1)


def verdict(*, after: float = 0.9, worth: float | None = 0.6, claimed: bool = False, retrained: bool = False) -> Any:
    """Judge 40 samples that the model before was sure of, and the references and the model after are not."""
    sure, unsure = np.tile([0.99, 0.01], (40, 1)), np.tile([0.6, 0.4], (40, 1))
    shown = {"before": {"forget": sure, "test": answers(0.9)}, "after": {"forget": unsure, "test": answers(after)}}
    if retrained:
        shown["retrained"] = {"forget": unsure, "test": answers(after)}
    run: Any = SimpleNamespace(details=SimpleNamespace(facts={}), density=0.1, stopped="tolerance")
    found: Any = SimpleNamespace(separation=None)
    told = OutOfFold(unsure, 0.5, claimed, worth)
    return decide(
        evidence_of(run, found, shown, None, method="forsaken", learnt=None, test_labels=LABELS, references=told)
    )


def test_answers_like_the_references_are_forgotten() -> None:
    assert verdict().word == "forgotten"
    assert verdict(worth=None).word == "forgotten"
    assert verdict(after=0.89).word == "forgotten", "a point is allowed"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"worth": 0.97}, "from retrained ones with an AUC of about 0.97"),
        ({"after": 0.8}, "The test accuracy fell by 10.0 points"),
        ({"claimed": True}, "handed in"),
    ],
)
def test_why_answers_like_the_references_show_nothing(changed: dict[str, Any], told: str) -> None:
    found = verdict(**changed)
    assert found.word == "not shown"
    assert told in found.line


def test_a_retrained_model_that_lost_as_much_settles_it() -> None:
    assert verdict(after=0.8, retrained=True).word == "forgotten"
