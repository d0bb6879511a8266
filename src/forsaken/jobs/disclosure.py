"""What the files of a run may say about the forgotten records: numbers over many of them, rounded, and nothing of one.

Whoever holds candidate records and a model can compute what the model answers for each candidate. A saved confidence
with all its digits then confirms which candidates were forgotten, without the key of the records' hashes, and so does a
mean over a few records. Therefore nothing is kept for each record unless the job asks for it, and numbers over fewer
than `LEAST_RECORDS` records are left out. Shares of records (FR, how many are answered with their label) stay: they are
counts of yes and no.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any, TypeVar

import numpy as np

from forsaken.auditing.result import Audit, Number
from forsaken.result import Check, Part, Result, Step, Verdict
from forsaken.types import Array
from forsaken.verdict import LEAST_RECORDS

TOO_FEW = f"not kept for fewer than {LEAST_RECORDS} records"
_DIGITS = 3  # significant ones of a number over many records
_DIGITS_OF_FEW = 2  # of an attack's number over few
_BINS = 20  # of the pictures of posteriors
_DISTANCES = ("drift",)  # facts about weights, not about records

P = TypeVar("P", bound=Part)


def rounded(value: Any, digits: int = _DIGITS) -> Any:
    """Return plain values with every float rounded to so many significant digits.

    >>> rounded({"before": 0.99237, "n": 20, "ends": (0.12345, None)})
    {'before': 0.992, 'n': 20, 'ends': (0.123, None)}
    """
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: rounded(one, digits) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(rounded(one, digits) for one in value)
    return value


def without_records(result: Result) -> Result:
    """Return a result that says nothing about single records, and no mean over fewer than `LEAST_RECORDS` of them."""
    few = result.counts.forget < LEAST_RECORDS
    kept = {name: value for name, value in result.facts.items() if name in _DISTANCES}
    facts = {name: value for name, value in result.facts.items() if not few or not isinstance(value, float)}
    return result.model_copy(
        update={
            "samples": None,
            "forget_confidence": None if few else _coarse(result.forget_confidence),
            "forget_accuracy": _coarse(result.forget_accuracy),
            "separation": None if few else _coarse(result.separation),
            "history": [] if few else [Step(**rounded(asdict(step))) for step in result.history],
            "facts": {**rounded(facts), **kept},
            "verdict": _public(result.verdict, few),
        }
    )


def pooled(largest: Array) -> Array | None:
    """Return what a histogram shows of largest posteriors: sorted, and each moved to the middle of its bar.

    All values are then shifted together, so that their mean is the rounded mean of the posteriors. None for fewer than
    `LEAST_RECORDS` values.

    >>> pooled(np.array([0.98, 0.52] + [0.991] * 8)).round(3).tolist()
    [0.538, 0.988, 0.988, 0.988, 0.988, 0.988, 0.988, 0.988, 0.988, 0.988]
    """
    if len(largest) < LEAST_RECORDS:
        return None
    bars = np.sort(np.minimum((largest * _BINS).astype(np.int64), _BINS - 1))
    middles = (bars + 0.5) / _BINS
    inside = 0.49 / _BINS  # a shift must not move a value into the next bar
    shifted: Array = middles + np.clip(rounded(float(largest.mean())) - middles.mean(), -inside, inside)
    return shifted


def audit_without_records(audit: Audit, forgotten: int) -> Audit:
    """Return an audit without the margins of single records, its numbers rounded, and no mean over few records.

    The sentences of an audit tell no mean over few records (`forsaken.auditing.alarms`); here their digits become as
    few as those of its numbers. What a number is `about` decides: means over few records or their copies are left out,
    other facts about the records are rounded, and numbers over other samples stay as they are.
    """
    few = forgotten < LEAST_RECORDS
    changes = {
        "numbers": tuple(_published(number, forgotten) for number in audit.numbers),
        "klom": tuple(_coarse(part, _DIGITS_OF_FEW if few else _DIGITS) for part in audit.klom),
        "margins": (),
        "verdict": _public(audit.verdict, few),
    }
    if few:
        claim = {name: _short(text) for name, text in audit.claim.model_dump().items()}
        alarms = tuple(alarm.model_copy(update={"told": _short(alarm.told)}) for alarm in audit.alarms)
        changes |= {"roc": (), "claim": audit.claim.model_copy(update=claim), "alarms": alarms}
        changes["warnings"] = tuple(map(_short, audit.warnings))
    return audit.model_copy(update=changes)


def _short(text: str) -> str:
    """Return a text whose numbers have at most two digits after the point."""
    return re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.{_DIGITS_OF_FEW}f}", text)


def _public(verdict: Verdict, few: bool) -> Verdict:
    """Return a verdict with its checks rounded, or without them where they are about few records; its line stays."""
    checks = [] if few else [Check(**rounded(check.model_dump())) for check in verdict.checks]
    return verdict.model_copy(update={"checks": checks})


def _published(number: Number, forgotten: int) -> Number:
    if number.about == "others":
        return number
    if forgotten >= LEAST_RECORDS:
        return Number(**rounded(number.model_dump()))
    if number.about == "means":
        gone = {"value": None, "interval": None, "retrained": None, "before": None, "floor": None, "note": TOO_FEW}
        return number.model_copy(update=gone)
    note = None if number.note is None else _short(number.note)
    return Number(**rounded(number.model_dump() | {"note": note}, _DIGITS_OF_FEW))


def _coarse(part: P | None, digits: int = _DIGITS) -> P | None:
    return None if part is None else type(part)(**rounded(part.model_dump(), digits))
