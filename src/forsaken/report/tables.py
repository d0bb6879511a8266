"""The rows of a page's tables, from a checked result and a checked audit."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forsaken.auditing.result import Number
from forsaken.jobs.disclosure import TOO_FEW
from forsaken.report.words import AGAINST, STOPPED, clipped, counted, duration, members, method, why_none, withheld
from forsaken.result import BeforeAfter, LayerChange, Result

MAX_SAMPLES = 5000  # rows of the table: 3 MB hold no more than twice as many
_MAX_LAYERS = 40  # bars that one look can take in
_LONG = 200  # characters of a setting
_LONG_NOTE = 400  # characters of a note of an audit
_NEAR = 0.03  # of 0.5, within which an AUC counts as at the floor wherever the floor's range lies


@dataclass(frozen=True, slots=True)
class Cell:
    """A number for people or why there is none, a word beneath it, and what it is sorted by (None: last)."""

    text: str
    reason: str = ""
    key: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity: its name, what it means, its values side by side, and for an audit which value is good."""

    name: str
    meaning: str
    cells: tuple[Cell, ...]
    good: str = ""


_EMPTY = Cell("")
_NO_YARDSTICK = Cell("n/a", "no retrained model")
_WITHHELD = Cell("n/a", TOO_FEW)


def numbers(result: Result) -> list[Row]:
    """Return the quantities before, after and of the retrained model."""

    def of_three(found: BeforeAfter | None) -> tuple[Cell, ...]:
        if found is None:
            return (_WITHHELD,) * 3
        return _cell(found.before), _cell(found.after), _cell(found.retrained, _NO_YARDSTICK.reason)

    def retrained(name: str) -> Cell:
        return _retrained(result, name)

    def rates(name: str, value: float | None) -> tuple[Cell, ...]:
        return (_EMPTY if value is None else Cell("0")), _cell(value, why_none(result, name)), retrained(name)

    judged, tests, apart = result.counts.kept_judged, result.counts.test, result.separation
    kept = f"{judged:,} training records" if judged else "training records"
    accuracy = [_cell(value, "no test data") for value in (result.accuracy_before, result.accuracy_after)]
    rows = [
        Row(
            "Forgetting rate (FR)",
            "of the records that looked like members, the share that no longer does (net); the aim is the retrained",
            rates("fr", result.fr),
        ),
        Row(
            "Collateral forgetting rate (CFR)",
            f"the same net share of {kept} that were to be kept; lower is better",
            rates("cfr", result.cfr),
        ),
        Row(
            "Test accuracy",
            f"on {tests:,} samples" if tests else "there were no test data",
            (*accuracy, retrained("accuracy")),
        ),
        Row(
            "Confidence on the records",
            "their mean largest posterior; the aim is the retrained value",
            of_three(result.forget_confidence),
        ),
    ]
    if result.forget_accuracy is not None and result.target.target == "corrected":
        meaning = "share answered as their labels say"
        rows.append(Row("Records with their true class", meaning, of_three(result.forget_accuracy)))
    if apart is not None:
        meaning = f"AUC of the confidence, records against {apart.n:,} {AGAINST[apart.against]} never trained on; "
        rows.append(Row("Told apart by confidence", f"{meaning}0.5: no threshold tells them apart", of_three(apart)))
    known = result.retrain is not None and result.retrain.seconds is not None
    slow = Cell(duration(result.retrain.seconds)) if known else _NO_YARDSTICK  # type: ignore[union-attr,arg-type]
    rows.append(Row("Time", "of the computation itself", (_EMPTY, Cell(duration(result.seconds)), slow)))
    rows.append(Row("Weights changed", "share of the trainable weights", (_EMPTY, _cell(result.mask_density), _EMPTY)))
    return rows


def comparison(results: Sequence[Result]) -> list[Row]:
    """Return the quantities of several runs, one cell a run."""

    def taken(result: Result) -> Cell:
        found = members(result)
        return Cell("n/a", "no oracle") if found is None else Cell(f"{found[0]:,} → {found[1]:,}")

    def accuracy(result: Result) -> Cell:
        before, after = result.accuracy_before, result.accuracy_after
        known = before is not None and after is not None
        return Cell(f"{before:.3f} → {after:.3f}") if known else Cell("n/a", "no test data")

    def apart(result: Result) -> Cell:
        found = result.separation
        if found is None:
            return _WITHHELD if withheld(result) else Cell("n/a", "no samples never trained on")
        return Cell(f"{found.before:.3f} → {found.after:.3f}", f"against {found.n:,} {AGAINST[found.against]}")

    def quality(result: Result) -> Cell:
        return _cell(result.oracle.balanced_accuracy if result.oracle else None, why_none(result, "oracle"))

    def confidence(result: Result) -> Cell:
        found = result.forget_confidence
        return _WITHHELD if found is None else Cell(f"{found.before:.3f} → {found.after:.3f}")

    def what(result: Result) -> Cell:
        return Cell(clipped(result.task, 60), f"{counted(result.counts.forget, 'record')}, seed {result.seed}")

    share = "share of the memorised records no longer taken for members"
    rows: list[tuple[str, str, Callable[[Result], Cell]]] = [
        ("What", "", what),
        ("Method", "", lambda r: Cell(clipped(method(r), 40))),
        ("Target", "what the records are moved to", lambda r: Cell(clipped(r.target.target, 40))),
        ("Taken for members", "by the oracle, before → after", taken),
        ("Forgetting rate (FR)", share, lambda r: _cell(r.fr, why_none(r, "fr"))),
        ("FR, retrained", "the yardstick", lambda r: _retrained(r, "fr")),
        (
            "Collateral rate (CFR)",
            "the same of records to keep; lower is better",
            lambda r: _cell(r.cfr, why_none(r, "cfr")),
        ),
        ("CFR, retrained", "the yardstick", lambda r: _retrained(r, "cfr")),
        ("Test accuracy", "before → after", accuracy),
        ("Confidence on the records", "before → after", confidence),
        ("Told apart by confidence", "AUC, 0.5: cannot be told apart", apart),
        ("Oracle's balanced accuracy", "a coin: 0.5", quality),
        ("Weights changed", "share of the trainable weights", lambda r: _cell(r.mask_density)),
        ("Time", "", lambda r: Cell(duration(r.seconds))),
        ("Stopped", "", lambda r: Cell(r.stopped, STOPPED[r.stopped])),
    ]
    return [Row(name, meaning, tuple(map(cell, results))) for name, meaning, cell in rows]


def _cell(value: float | None, why: str = "") -> Cell:
    if value is None:
        return Cell("n/a", why)
    return Cell(">0.999" if 0.9995 <= value < 1 else f"{value:.3f}")


def _retrained(result: Result, name: str) -> Cell:
    return _NO_YARDSTICK if result.retrain is None else _cell(getattr(result.retrain, name), why_none(result, name))


def classes(result: Result) -> list[tuple[str, int, float, float]]:
    """Return name, test samples and accuracies before and after of each class that has test samples."""
    table = result.by_class
    columns = zip(result.classes, table.support, table.before, table.after, strict=True) if table else ()
    return [
        (clipped(name, 60), support, before, after)
        for name, support, before, after in columns
        if before is not None and after is not None
    ]


def lowest(rows: Sequence[tuple[str, int, float, float]]) -> float:
    """Return where the lines of the accuracies start: a tenth at or below all of them, so that changes can be seen.

    >>> lowest([("cat", 20, 0.97, 0.93)])
    0.9
    """
    least = min(min(before, after) for _, _, before, after in rows)
    return min(math.floor(10 * least + 1e-9), 9) / 10


def shown_samples(result: Result) -> list[int]:
    """Return which samples the page has room for: all, or those with the highest scores after, in their order."""
    scores = [] if result.samples is None else result.samples.score_after
    order = sorted(range(len(scores)), key=lambda number: (-scores[number], number))
    return sorted(order[:MAX_SAMPLES])


def tip(result: Result, number: int, when: str) -> str:
    """Return what the map says of a forgotten sample "before" or "after"."""
    table = result.samples
    if table is None:
        return ""
    kind, confidence, score = (getattr(table, f"{name}_{when}")[number] for name in ("class", "confidence", "score"))
    said = f"row {table.row[number]} {when}: class {clipped(result.classes[kind], 40)}, confidence {confidence:.3f}"
    return f"{said}, membership score {score:.3f}" if table.score == "oracle" else said


def grouped(layers: Sequence[LayerChange], most: int = _MAX_LAYERS) -> list[LayerChange]:
    """Return the parameters, joined by the parts of their dotted names until there are at most `most` groups.

    >>> names = [f"block.{n}.{kind}" for n in (0, 1) for kind in ("weight", "bias")]
    >>> parts = [LayerChange(name=name, changed=int(name[6]), total=4) for name in names]
    >>> [(group.name, group.changed, group.total) for group in grouped(parts, most=3)]
    [('block.0', 0, 8), ('block.1', 2, 8)]
    """
    sums: dict[str, tuple[int, int]] = {}
    for depth in range(max((layer.name.count(".") + 1 for layer in layers), default=1), 0, -1):
        sums = {}
        for layer in layers:
            name = ".".join(layer.name.split(".")[:depth])
            changed, total = sums.get(name, (0, 0))
            sums[name] = (changed + layer.changed, total + layer.total)
        if len(sums) <= most:
            break
    return [LayerChange.model_construct(name=name, changed=part[0], total=part[1]) for name, part in sums.items()]


def pairs(table: Mapping[str, Any] | None, before: str = "") -> list[tuple[str, str]]:
    """Return a table of settings as names and texts; tables within it become dotted names.

    >>> pairs({"name": "forsaken", "data": {"size": [32, 32]}})
    [('name', 'forsaken'), ('data.size', '[32, 32]')]
    """
    found = []
    for key, value in (table or {}).items():
        name = f"{before}{clipped(str(key), 60)}"
        if isinstance(value, dict) and value:
            found += pairs(value, f"{name}.")
        else:
            plain = "not set" if value is None else value
            text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
            found.append((name, clipped(text, _LONG)))
    return found


def audit_row(number: Number) -> Row:
    """Return one number of an audit: its value, the retrained model's, interval, n, the value before, and the floor."""

    def entry(value: float | None, missing: Cell) -> Cell:
        return missing if value is None else Cell(figure(value), key=value)

    def span(ends: Sequence[float], reason: str = "") -> Cell:
        return Cell(f"{figure(ends[0])} to {figure(ends[1])}", reason, ends[0])

    not_given = Cell("n/a", "not given")
    interval = span(number.interval) if number.interval else not_given
    if number.interval and number.interval[0] == number.interval[1]:
        interval = Cell("no spread")  # an interval of no width looks like certainty and is none
    good = {"half": "0.5, less is no better", "retrained": "near the retrained"}
    cells = (
        entry(number.value, Cell("n/a", "" if number.note else "undefined")),
        entry(number.retrained, not_given),
        interval,
        Cell(f"{number.n:,}", clipped(number.unit, 40), number.n),
        entry(number.before, _EMPTY),
        span(number.floor, _against_floor(number)) if number.floor else _EMPTY,
    )
    note = clipped(number.note or "", _LONG_NOTE)
    return Row(clipped(number.label, 80), note, cells, good.get(number.direction, number.direction))


def _against_floor(number: Number) -> str:
    value, floor = number.value, number.floor
    if value is None or floor is None:
        return ""
    if floor[0] <= value <= floor[1]:
        return "the value lies inside"
    near = number.direction == "half" and abs(value - 0.5) <= _NEAR
    return f"the value lies outside, but within {_NEAR} of 0.5" if near else "the value lies outside"


def figure(value: float) -> str:
    """Return a number with as many digits as help, never 0 or 1 for one that is not.

    >>> figure(0.61249), figure(0.99991), figure(0.0001), figure(-0.0001), figure(12), figure(1520.4), figure(1.0)
    ('0.612', '>0.999', '<0.001', '>-0.001', '12', '1,520', '1.000')
    """
    if value == 0:
        return "0"
    if 0.9995 <= value < 1:
        return ">0.999"
    if abs(value) < 0.0005:
        return "<0.001" if value > 0 else ">-0.001"
    if abs(value) >= 1e7:
        return f"{value:.3g}"
    if abs(value) >= 1000 or (abs(value) >= 2 and value == round(value)):
        return f"{value:,.0f}"
    return f"{value:.3f}"


def audit_cost(cost: Mapping[str, Any], *, timed: bool = False) -> str:
    """Return what an audit cost as one line; whatever has seconds in its name, or lies under such a name, is a time.

    >>> audit_cost({"told": "trains many models", "models": 48, "seconds_by_part": {"ensemble": 75.0, "attacks": 0.5}})
    'trains many models; models: 48; ensemble: 1 min 15 s; attacks: 0.50 s'
    """
    found = []
    for key, value in cost.items():
        name, is_time = clipped(str(key).replace("_", " "), 60), timed or "seconds" in str(key)
        if isinstance(value, dict):
            found.append(audit_cost(value, timed=is_time))
        elif key == "told" and isinstance(value, str):
            found.append(clipped(value, _LONG_NOTE))
        elif isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
            found.append(f"{name}: {clipped('not told' if value is None else str(value), 80)}")
        elif not is_time or not 0 <= value <= 1e12:
            found.append(f"{name}: {figure(value)}")
        elif value:  # what was not timed comes as nothing
            found.append(f"{'in all' if name == 'seconds' else name.replace(' seconds', '')}: {duration(value)}")
    return "; ".join(filter(None, found))
