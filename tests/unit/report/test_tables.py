"""Tables: every number with its reason, and never rounded to what it is not."""

from __future__ import annotations

from report_runs import make_result, typed

from forsaken.auditing.result import Number
from forsaken.report.tables import audit_cost, audit_row, figure, grouped, numbers, pairs
from forsaken.result import LayerChange


def test_parameters_of_a_transformer_are_grouped() -> None:
    layers = [
        LayerChange(name=f"encoder.layer.{n}.{part}.{kind}", changed=n, total=100)
        for n in range(12)
        for part in ("attention.query", "attention.key", "attention.value", "dense", "norm", "out")
        for kind in ("weight", "bias")
    ]
    found = grouped(layers)
    assert 12 <= len(found) <= 40
    assert sum(group.changed for group in found) == sum(layer.changed for layer in layers)
    assert sum(group.total for group in found) == 14_400
    assert grouped(layers[:4]) == layers[:4]


def test_the_table_of_numbers_never_rounds_up_to_one() -> None:
    rows = {row.name: [cell.text for cell in row.cells] for row in numbers(typed(make_result() | {"fr": 0.9996}))}
    assert rows["Forgetting rate (FR)"] == ["0", ">0.999", "0.900"]
    assert rows["Time"] == ["", "1.25 s", "5.00 s"]


def test_long_settings_are_cut() -> None:
    assert pairs({"ids": list(range(2000))})[0][1].endswith("…")
    assert pairs({"none": None, "empty": {}}) == [("none", "not set"), ("empty", "{}")]


def test_near_half_is_said_where_the_range_misses() -> None:
    number = Number(name="auc", label="AUC", value=0.52, direction="half", n=12, unit="pairs", floor=(0.49, 0.51))
    assert audit_row(number).cells[-1].reason == "the value lies outside, but within 0.03 of 0.5"
    other = number.model_copy(update={"direction": "lower"})
    assert audit_row(other).cells[-1].reason == "the value lies outside"


def test_numbers_are_never_rounded_to_what_they_are_not() -> None:
    assert [figure(value) for value in (0, 1, 0.99999, 4e-4, -0.25, 37.0, 1e300)] == [
        "0", "1.000", ">0.999", "<0.001", "-0.250", "37", "1e+300",
    ]  # fmt: skip


def test_the_cost_is_told_whatever_its_names() -> None:
    assert audit_cost({}) == ""
    assert audit_cost({"told": "no training", "seconds": 0}) == "no training"
    told = audit_cost(
        {"seconds": 3.0, "unlearning_seconds": 7320, "models": 4, "device": "cpu", "odd": None, "many": 10**400}
    )
    assert (
        told == "in all: 3.00 s; unlearning: 2 h 2 min; models: 4; device: cpu; odd: not told; many: 1" + 78 * "0" + "…"
    )
