"""What the page says of an audit: its cost, its alarms, and its numbers with all that it takes to read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from forsaken.report.audit_figures import klom_picture, margin_picture, roc_picture
from forsaken.report.figures import LINES
from forsaken.report.words import clipped, duration

MOST_SPREADS = 12  # small pictures that one look can take in
_NEAR = 0.03  # of 0.5, within which an AUC counts as at the floor wherever the floor's range lies
_LARGE = 1e300  # a whole number beyond this is no float
_LONGEST = 1e12  # seconds
_LONG = 400  # characters of a note
_UNKNOWN = "Not known: "  # how an alarm begins that could not be told

PROFILES = {
    "quick": "one shadow model's verdict; it can find a failure, and proves little",
    "standard": "attacks with a few shadow models; stronger, and still not sample by sample against retraining",
    "full": "sample by sample against an ensemble of retrained models, the strongest test there is here",
}
TOLD_FROM = {
    "quick": "",
    "standard": "the forgotten records told from samples that were never seen",
    "full": "each told from retrained models, over all pairs of a record and a model",
}
DIRECTIONS = {
    "lower": "lower",
    "higher": "higher",
    "half": "0.5, less is no better",
    "retrained": "near the retrained",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell: its text, a word beneath it, and what it is sorted by (None: last)."""

    text: str
    key: float | None = None
    reason: str = ""


_SAME = Entry("no spread")  # an interval of no width, which looks like certainty and is none
_MISSING = Entry("n/a", None, "not given")  # what every number should have
_BLANK = Entry("")  # what only some numbers have


@dataclass(frozen=True, slots=True)
class Line:
    """One number of the table: its name and note, what is good, and its cells."""

    label: str
    note: str
    good: str
    value: Entry
    interval: Entry
    n: Entry
    retrained: Entry
    before: Entry
    floor: Entry


@dataclass(frozen=True, slots=True)
class Shown:
    """An audit, ready for the page: texts, lines of the table, and pictures where the profile has them."""

    profile: str
    cost: str
    loud: tuple[Mapping[str, Any], ...]
    quiet: tuple[Mapping[str, Any], ...]
    lines: tuple[Line, ...]
    roc: Markup | None
    curves: tuple[str, ...]
    told_from: str
    margins: tuple[tuple[int, Markup], ...]
    klom: Markup | None


def shown(audit: Mapping[str, Any], rows: Sequence[int]) -> Shown:
    """Return what the page shows of a checked audit; `rows` are the records' own rows, by place in the forget set."""
    worst = [(rows[spread["row"]], spread) for spread in audit["margins"][:MOST_SPREADS]]
    return Shown(
        profile=PROFILES[audit["profile"]],
        cost=cost_words(audit["cost"]),
        loud=tuple(alarm for alarm in audit["alarms"] if alarm["raised"]),
        quiet=tuple(_quiet(alarm) for alarm in audit["alarms"] if not alarm["raised"]),
        lines=tuple(map(_line, audit["numbers"])),
        roc=roc_picture(audit["roc"]) if audit["roc"] else None,
        curves=tuple(clipped(curve["name"], 60) for curve in audit["roc"][:LINES]),
        told_from=TOLD_FROM[audit["profile"]],
        margins=tuple((row, margin_picture(spread, f"row {row}")) for row, spread in worst),
        klom=klom_picture(audit["klom"]) if audit["klom"] else None,
    )


def cost_words(cost: Mapping[str, Any]) -> str:
    """Return what an audit cost as one line; whatever has seconds in its name, or lies under such a name, is a time.

    >>> cost_words({"told": "trains many models", "models": 48, "seconds_by_part": {"ensemble": 75.0, "attacks": 0.5}})
    'trains many models; models: 48; ensemble: 1 min 15 s; attacks: 0.50 s'
    """
    return "; ".join(_costs(cost, timed=False))


def _costs(cost: Mapping[str, Any], *, timed: bool) -> list[str]:
    found = []
    for key, value in cost.items():
        name, is_time = clipped(str(key).replace("_", " "), 60), timed or "seconds" in str(key)
        if isinstance(value, dict):
            found += _costs(value, timed=is_time)
        elif key == "told" and isinstance(value, str):
            found.append(clipped(value, _LONG))
        elif isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _LARGE:
            found.append(f"{name}: {clipped('not told' if value is None else str(value), 80)}")
        elif not is_time or not 0 <= value <= _LONGEST:
            found.append(f"{name}: {figure(value)}")
        elif value:  # what was not timed comes as nothing
            found.append(f"{'in all' if name == 'seconds' else name.replace(' seconds', '')}: {duration(value)}")
    return found


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


def _line(number: Mapping[str, Any]) -> Line:
    unit = clipped(number["unit"], 40)
    return Line(
        label=clipped(number["label"], 80),
        note=clipped(number["note"] or "", _LONG),
        good=DIRECTIONS[number["direction"]],
        value=Entry("n/a", None, "" if number["note"] else "undefined")
        if number["value"] is None
        else _entry(number["value"]),
        interval=_interval(number["interval"]),
        n=Entry(f"{number['n']:,}", number["n"], unit),
        retrained=_MISSING if number["retrained"] is None else _entry(number["retrained"]),
        before=_BLANK if number["before"] is None else _entry(number["before"]),
        floor=_range(number["floor"], _against(number)) if number["floor"] else _BLANK,
    )


def _entry(value: float) -> Entry:
    return Entry(figure(value), value)


def _range(ends: Sequence[float], reason: str = "") -> Entry:
    return Entry(f"{figure(ends[0])} to {figure(ends[1])}", ends[0], reason)


def _interval(ends: Sequence[float] | None) -> Entry:
    if not ends:
        return _MISSING
    return _SAME if ends[0] == ends[1] else _range(ends)


def _quiet(alarm: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an alarm that is silent; the page says by itself that it could not be told."""
    told = alarm["told"].removeprefix(_UNKNOWN) if alarm["raised"] is None else alarm["told"]
    return {**alarm, "told": told}


def _against(number: Mapping[str, Any]) -> str:
    value, floor = number["value"], number["floor"]
    if value is None or floor is None:
        return ""
    if floor[0] <= value <= floor[1]:
        return "the value lies inside"
    if number["direction"] == "half" and abs(value - 0.5) <= _NEAR:
        return f"the value lies outside, but within {_NEAR} of 0.5"
    return "the value lies outside"
