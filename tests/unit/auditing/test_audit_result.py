"""An audit's result is a value: it keeps itself in JSON, and takes no number that means nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forsaken.auditing.result import Alarm, Audit, Claim, Curve, Divergence, Number, Spread
from forsaken.errors import InputError

AUDIT = Audit(
    profile="full",
    claim=Claim("shown", "not shown"),
    numbers=(Number("u_lira_auc", "AUC", 0.5, "half", 12, "pairs", interval=(0.4, 0.6), floor=(0.45, 0.55)),),
    alarms=(Alarm("no-op", False, "moved"), Alarm("over-forgetting", None, "not known")),
    warnings=("few models",),
    cost={"seconds": 1.0},
    roc=(Curve("unlearned", (0.0, 1.0), (0.0, 1.0)),),
    margins=(Spread(3, (1.0,), (2.0,)),),
    klom=(Divergence("forget", 4, (1.0, 2.0), (0.5, 1.0), (3.0, 4.0)),),
)


def test_the_json_form_gives_the_same_audit_back():
    assert Audit.from_dict(json.loads(AUDIT.to_json())) == AUDIT


def test_a_number_is_found_by_name_and_a_wrong_name_lists_the_right_ones():
    assert AUDIT["u_lira_auc"].value == 0.5
    with pytest.raises(InputError, match=r"no number 'auc'; it has u_lira_auc"):
        AUDIT["auc"]


def test_only_a_raised_alarm_counts():
    assert not AUDIT.alarmed
    assert replace(AUDIT, alarms=(Alarm("no-op", True, "same weights"),)).alarmed


@pytest.mark.parametrize("field", ["value", "retrained", "before"])
def test_a_number_that_is_not_finite_is_refused(field):
    with pytest.raises(InputError, match="not finite"):
        replace(AUDIT["u_lira_auc"], **{field: float("nan")})


def test_an_infinite_interval_is_refused():
    with pytest.raises(InputError, match="not finite"):
        replace(AUDIT["u_lira_auc"], interval=(0.1, float("inf")))


@pytest.mark.parametrize("change", [{"schema": 99}, {"kind": "forsaken.result"}])
def test_another_schema_or_kind_is_refused(change):
    with pytest.raises(InputError, match="not an audit of schema 1"):
        Audit.from_dict({**AUDIT.to_dict(), **change})


def test_a_damaged_audit_is_refused():
    content = AUDIT.to_dict()
    del content["alarms"]
    with pytest.raises(InputError, match="damaged"):
        Audit.from_dict(content)


def test_there_is_no_interval_of_a_number_that_is_not_there():
    assert replace(AUDIT["u_lira_auc"], value=None).interval is None
