"""An audit's result is a value that checks itself, and is the same after it was written and read."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from forsaken.auditing.result import Alarm, Audit, Conclusion, Curve, Divergence, Number, Spread
from forsaken.errors import InputError, OutputError

AUC = {
    "name": "u_lira_auc",
    "label": "AUC",
    "value": 0.5,
    "direction": "half",
    "n": 12,
    "unit": "pairs",
    "interval": (0.4, 0.6),
    "floor": (0.45, 0.55),
}
AUDIT = Audit(
    profile="full",
    claim=Conclusion(shown="shown", not_shown="not shown"),
    numbers=(Number(**AUC),),
    alarms=(
        Alarm(name="no-op", raised=False, told="moved"),
        Alarm(name="over-forgetting", raised=None, told="not known"),
    ),
    warnings=("few models",),
    cost={"seconds": 1.0},
    roc=(Curve(name="unlearned", fpr=(0.0, 1.0), tpr=(0.0, 1.0)),),
    margins=(Spread(row=3, unlearned=(1.0,), retrained=(2.0,)),),
    klom=(Divergence(part="forget", n=4, value=(1.0, 2.0), floor=(0.5, 1.0), ceiling=(3.0, 4.0)),),
    settings={},
    provenance={},
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    assert Audit.read(AUDIT.write(tmp_path / "audit.json")) == AUDIT


def test_another_schema_is_refused(tmp_path: Path) -> None:
    path = AUDIT.write(tmp_path / "audit.json")
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(OutputError, match=r"schema 99, expected .* schema 1; run forsaken audit again"):
        Audit.read(path)


def test_a_number_is_found_by_name_and_a_wrong_name_lists_the_right_ones() -> None:
    assert AUDIT["u_lira_auc"].value == 0.5
    with pytest.raises(InputError, match=r"no number 'auc'; it has u_lira_auc"):
        AUDIT["auc"]


def test_only_a_raised_alarm_counts() -> None:
    assert not AUDIT.alarmed
    assert AUDIT.model_copy(update={"alarms": (Alarm(name="no-op", raised=True, told="same"),)}).alarmed


@pytest.mark.parametrize(
    "change",
    [
        {"value": float("nan")},
        {"retrained": float("inf")},
        {"before": float("nan")},
        {"interval": (0.1, float("inf"))},
        {"interval": (0.6, 0.4)},
        {"direction": "up"},
    ],
)
def test_a_number_that_means_nothing_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Number(**AUC | change)


def test_there_is_no_interval_of_a_number_that_is_not_there() -> None:
    assert Number(**AUC | {"value": None}).interval is None
