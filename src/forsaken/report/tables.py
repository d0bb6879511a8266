"""The rows of a page's tables, from a checked result."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forsaken.report.saved import Run
from forsaken.report.words import AGAINST, MEMBER, STOPPED, clipped, duration, members, method, records, why_none

Result = Mapping[str, Any]

_MOST_LAYERS = 40  # bars that one look can take in
MOST_SAMPLES = 5000  # rows of the table: 3 MB hold no more than twice as many
_LONG = 200  # characters of a setting


@dataclass(frozen=True, slots=True)
class Cell:
    """A number for people, or why there is none."""

    text: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity: its name, what it means, and its values side by side."""

    name: str
    meaning: str
    cells: tuple[Cell, ...]


EMPTY = Cell("")


def numbers(result: Result) -> list[Row]:
    """Return the quantities before, after and of the retrained model."""
    retrain = result["retrain"]
    yardstick = Cell("n/a", "no retrained model")
    judged, tests = result["counts"]["kept_judged"], result["counts"]["test"]

    def beside(name: str, why: str) -> Cell:
        return yardstick if retrain is None else _cell(retrain[name], why)

    def was(value: float | None) -> Cell:
        return EMPTY if value is None else Cell("0")

    no_fr, no_cfr, no_accuracy = (why_none(result, name) for name in ("fr", "cfr", "accuracy"))
    sure, apart = result["forget_confidence"], result["separation"]
    rows = [
        Row(
            "Forgetting rate (FR)",
            "of the records that looked like members, the share that no longer does (net); the aim is the retrained",
            (was(result["fr"]), _cell(result["fr"], no_fr), beside("fr", no_fr)),
        ),
        Row(
            "Collateral forgetting rate (CFR)",
            f"the same net share of {judged:,} training records that were to be kept; lower is better"
            if judged
            else "the same net share of training records that were to be kept; lower is better",
            (was(result["cfr"]), _cell(result["cfr"], no_cfr), beside("cfr", no_cfr)),
        ),
        Row(
            "Test accuracy",
            f"on {tests:,} samples" if tests else "there were no test data",
            (
                _cell(result["accuracy_before"], no_accuracy),
                _cell(result["accuracy_after"], no_accuracy),
                beside("accuracy", no_accuracy),
            ),
        ),
        Row(
            "Confidence on the records",
            "their mean largest posterior; the aim is the retrained value",
            (Cell(f"{sure['before']:.3f}"), Cell(f"{sure['after']:.3f}"), _cell(sure["retrained"], yardstick.reason)),
        ),
    ]
    true = result["forget_accuracy"]
    if true is not None and result["target"]["target"] == "corrected":
        shares = (Cell(f"{true['before']:.3f}"), Cell(f"{true['after']:.3f}"))
        last = _cell(true["retrained"], yardstick.reason)
        rows.append(Row("Records with their true class", "share answered as their labels say", (*shares, last)))
    if apart is not None:
        meaning = (
            f"AUC of the confidence, records against {apart['n']:,} {AGAINST[apart['against']]} never trained on; "
        )
        cells = (Cell(f"{apart['before']:.3f}"), Cell(f"{apart['after']:.3f}"))
        last = _cell(apart["retrained"], yardstick.reason)
        rows.append(Row("Told apart by confidence", f"{meaning}0.5: no threshold tells them apart", (*cells, last)))
    slow = yardstick if retrain is None or retrain["seconds"] is None else Cell(duration(retrain["seconds"]))
    rows.append(Row("Time", "of the computation itself", (EMPTY, Cell(duration(result["seconds"])), slow)))
    density = Cell(f"{result['mask_density']:.3f}")
    rows.append(Row("Weights changed", "share of the trainable weights", (EMPTY, density, EMPTY)))
    return rows


def classes(result: Result) -> list[dict[str, Any]]:
    """Return the test accuracy of each class that has test samples."""
    table = result["by_class"]
    columns = zip(result["classes"], table["support"], table["before"], table["after"], strict=True) if table else ()
    return [
        {"name": clipped(name, 60), "support": support, "before": before, "after": after}
        for name, support, before, after in columns
        if before is not None and after is not None
    ]


def lowest(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return where the lines of the accuracies start: a tenth at or below all of them, so that changes can be seen.

    >>> lowest([{"before": 0.97, "after": 0.93}])
    0.9
    """
    least: float = min(min(row["before"], row["after"]) for row in rows)
    return min(math.floor(10 * least + 1e-9), 9) / 10


def samples(result: Result) -> Iterator[dict[str, Any]]:
    """Yield one row a forgotten sample; of very many, those that still look most like members."""
    table, names = result["samples"], [clipped(name, 60) for name in result["classes"]]
    for number in shown_samples(result):
        row = table["row"][number]
        was, now = table["class_before"][number], table["class_after"][number]
        yield {
            "row": row,
            "hash": table["hash"][number] if table["hash"] else None,
            "was": was,
            "now": now,
            "class_before": names[was],
            "class_after": names[now],
            "confidence_before": table["confidence_before"][number],
            "confidence_after": table["confidence_after"][number],
            "score_before": table["score_before"][number],
            "score_after": table["score_after"][number],
            "member": table["score_after"][number] > MEMBER,
        }


def shown_samples(result: Result) -> list[int]:
    """Return which samples the page has room for: all, or those with the highest scores after, in their order."""
    scores = result["samples"]["score_after"]
    order = sorted(range(len(scores)), key=lambda number: (-scores[number], number))
    return sorted(order[:MOST_SAMPLES])


def tip(result: Result, number: int, when: str) -> str:
    """Return what the map says of a forgotten sample."""
    table = result["samples"]
    name = clipped(result["classes"][table[f"class_{when}"][number]], 40)
    said = f"row {table['row'][number]} {when}: class {name}, confidence {table[f'confidence_{when}'][number]:.3f}"
    if table["score"] == "oracle":
        said += f", membership score {table[f'score_{when}'][number]:.3f}"
    return said


def grouped(layers: Sequence[Mapping[str, Any]], most: int = _MOST_LAYERS) -> list[dict[str, Any]]:
    """Return the parameters, joined by the parts of their dotted names until there are at most `most` groups.

    >>> parts = [{"name": f"block.{n}.{kind}", "changed": n, "total": 4} for n in (0, 1) for kind in ("weight", "bias")]
    >>> [(group["name"], group["changed"], group["total"]) for group in grouped(parts, most=3)]
    [('block.0', 0, 8), ('block.1', 2, 8)]
    """
    deepest = max((layer["name"].count(".") + 1 for layer in layers), default=1)
    found: dict[str, dict[str, Any]] = {}
    for depth in range(deepest, 0, -1):
        found = {}
        for layer in layers:
            name = ".".join(layer["name"].split(".")[:depth])
            group = found.setdefault(name, {"name": name, "changed": 0, "total": 0, "parameters": 0})
            group["changed"] += layer["changed"]
            group["total"] += layer["total"]
            group["parameters"] += 1
        if len(found) <= most:
            break
    return list(found.values())


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
            found.append((name, clipped(_text(value), _LONG)))
    return found


def comparison(runs: Sequence[Run]) -> list[Row]:
    """Return the quantities of several runs, one cell a run."""
    results = [run.result for run in runs]

    def row(name: str, meaning: str, *cells: Cell) -> Row:
        return Row(name, meaning, cells)

    def retrained(result: Result, name: str) -> Cell:
        if result["retrain"] is None:
            return Cell("n/a", "no retrained model")
        return _cell(result["retrain"][name], why_none(result, name))

    def taken(result: Result) -> Cell:
        before, after = members(result, "before"), members(result, "after")
        return Cell("n/a", "no oracle") if before is None else Cell(f"{before:,} → {after:,}")

    def accuracy(result: Result) -> Cell:
        before, after = result["accuracy_before"], result["accuracy_after"]
        if before is None or after is None:
            return Cell("n/a", why_none(result, "accuracy"))
        return Cell(f"{before:.3f} → {after:.3f}")

    def apart(result: Result) -> Cell:
        found = result["separation"]
        if found is None:
            return Cell("n/a", "no samples never trained on")
        return Cell(
            f"{found['before']:.3f} → {found['after']:.3f}", f"against {found['n']:,} {AGAINST[found['against']]}"
        )

    def quality(result: Result) -> Cell:
        return _cell((result["oracle"] or {}).get("balanced_accuracy"), why_none(result, "oracle"))

    def sure(result: Result) -> Cell:
        found = result["forget_confidence"]
        return Cell(f"{found['before']:.3f} → {found['after']:.3f}")

    fr, cfr = (
        "share of the memorised records no longer taken for members",
        "the same of records to keep; lower is better",
    )
    return [
        row("What", "", *(Cell(clipped(r["task"], 60), f"{records(r)}, seed {r['seed']}") for r in results)),
        row("Method", "", *(Cell(clipped(method(r), 40)) for r in results)),
        row("Target", "what the records are moved to", *(Cell(clipped(r["target"]["target"], 40)) for r in results)),
        row("Taken for members", "by the oracle, before → after", *map(taken, results)),
        row("Forgetting rate (FR)", fr, *(_cell(r["fr"], why_none(r, "fr")) for r in results)),
        row("FR, retrained", "the yardstick", *(retrained(r, "fr") for r in results)),
        row("Collateral rate (CFR)", cfr, *(_cell(r["cfr"], why_none(r, "cfr")) for r in results)),
        row("CFR, retrained", "the yardstick", *(retrained(r, "cfr") for r in results)),
        row("Test accuracy", "before → after", *map(accuracy, results)),
        row("Confidence on the records", "before → after", *map(sure, results)),
        row("Told apart by confidence", "AUC, 0.5: cannot be told apart", *map(apart, results)),
        row("Oracle's balanced accuracy", "a coin: 0.5", *map(quality, results)),
        row("Weights changed", "share of the trainable weights", *(Cell(f"{r['mask_density']:.3f}") for r in results)),
        row("Time", "", *(Cell(duration(r["seconds"])) for r in results)),
        row("Stopped", "", *(Cell(r["stopped"], STOPPED[r["stopped"]]) for r in results)),
    ]


def _text(value: object) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _cell(value: float | None, why: str) -> Cell:
    if value is None:
        return Cell("n/a", why)
    return Cell(">0.999" if 0.9995 <= value < 1 else f"{value:.3f}")
