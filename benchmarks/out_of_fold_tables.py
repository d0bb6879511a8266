"""The tables of README.md, docs/guide/references.md and out-of-fold.md, from the result files: nothing is measured.

usage: python benchmarks/out_of_fold_tables.py

Writes each table between its marks, <!-- table: NAME --> and <!-- end -->.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from common import RESULTS
from tables import markdown

from forsaken.auditing.relearning import MOST

GUIDE = Path(__file__).parents[1] / "docs" / "guide"
PAGES = (GUIDE.parents[1] / "README.md", GUIDE / "references.md", GUIDE / "out-of-fold.md")
PEERS = ("salun", "neggrad-plus", "scrub")
TASKS = tuple(
    sorted(
        path.name.removeprefix("out-of-fold-").removesuffix("-confirm-0.json")
        for path in RESULTS.glob("out-of-fold-*-confirm-0.json")
    )
)
HEAD = (
    "row",
    "AUC, forgotten",
    "of the references",
    "TPR at 1 %",
    "KLoM p95 / floor",
    "AUC, kept",
    "AUC, test",
    "KLoM kept / nothing",
    "KLoM test / nothing",
    "test accuracy",
    "FR",
    "CFR",
    "density",
    "seconds",
)
LAMBDA = (
    "λ / λ_max",
    "AUC, forgotten",
    "AUC, test",
    "KLoM kept / nothing",
    "KLoM test / nothing",
    "test accuracy",
    "CFR",
    "density",
)

STANDARD = (
    ("rmia_auc", "RMIA, AUC", 2),
    ("lira_auc", "LiRA, AUC", 2),
    ("white_box_auc", "white box, AUC", 2),
    ("relearn_steps", "steps to learn them again", 0),
)


def shown(value: float | None, digits: int = 3) -> str:
    """Return a number as the table shows it."""
    return "n/a" if value is None else f"{value:.{digits}f}"


def ratio(row: dict[str, Any], other: dict[str, Any], key: str) -> str:
    """Return a number beside another row's."""
    if row.get(key) is None or not other.get(key):
        return "n/a"
    return f"{row[key] / other[key]:.2f}"


def line(name: str, row: dict[str, Any], table: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    """Return one row of the large table."""
    retrained, nothing = table["retrained"], table["do-nothing"]
    span = row.get("auc_interval")
    auc = shown(row["auc"]) + ("" if not span else f" ({span[0]:.2f} to {span[1]:.2f})")
    if name == "retrained":
        low, high = row["floor"]
        auc = f"{shown(row['auc'])} (floor {low:.2f} to {high:.2f})"
    return (
        name,
        auc,
        shown(row["references_auc"]) if "references_auc" in row else "",
        shown(row.get("tpr_1")),
        ratio(row, retrained, "klom_forget_p95"),
        shown(row["auc_retain"]),
        shown(row["auc_test"]),
        ratio(row, nothing, "klom_retain"),
        ratio(row, nothing, "klom_test"),
        shown(row["accuracy"]),
        shown(row["fr"], 2),
        shown(row["cfr"]),
        shown(row["density"], 2) if row.get("density") is not None else "",
        shown(row["seconds"], 2) if row.get("seconds") is not None else "",
    )


def rows_of(task: str, kind: str = "confirm") -> dict[str, dict[str, Any]]:
    """Return the rows of a result file."""
    found: dict[str, dict[str, Any]] = json.loads((RESULTS / f"out-of-fold-{task}-{kind}-0.json").read_bytes())["rows"]
    return found


def table_of(task: str) -> str:
    """Return everything that was measured on a scenario."""
    rows = rows_of(task)
    return markdown([HEAD, *(line(name, row, rows) for name, row in rows.items())])


def curve_of(task: str) -> str:
    """Return the trade over λ."""
    rows = rows_of(task, "curve")
    lines = [LAMBDA]
    for name, row in rows.items():
        if name.startswith("share "):
            keys = (
                name.removeprefix("share "),
                shown(row["auc"]),
                shown(row["auc_test"]),
                ratio(row, rows["do-nothing"], "klom_retain"),
                ratio(row, rows["do-nothing"], "klom_test"),
                shown(row["accuracy"]),
                shown(row["cfr"]),
                shown(row["density"], 2),
            )
            lines.append(keys)
    return markdown(lines)


def attacks_of(task: str) -> str:
    """Return U-LiRA on near neighbours of the forgotten samples, and after ten requests one after the other."""
    lines: list[tuple[str, ...]] = [("row", "AUC, forgotten", "of the references", "AUC, their near neighbours")]
    for name, row in rows_of(task, "attacks").items():
        own = shown(row["references_auc"]) if "references_auc" in row else ""
        lines.append((name, shown(row["auc"]), own, shown(row["auc_near"])))
    return markdown(lines)


def told(name: str, value: float | None, digits: int) -> str:
    """Return a number of the standard profile; who has not relearnt after all steps would have taken more."""
    return f"> {MOST}" if name == "relearn_steps" and (value is None or value >= MOST) else shown(value, digits)


def standard_of(task: str) -> str:
    """Return what a few references, a look at the weights and learning again tell of one model, seed by seed."""
    lines: list[tuple[str, ...]] = [("attack", "seed", "Forsaken", "doing nothing", "retrained")]
    files = sorted(RESULTS.glob(f"audit-{task}-forsaken-all-4-standard-8-*.json"))
    numbers = {}
    for path in files:
        content = json.loads(path.read_bytes())
        numbers[content["options"]["seed"]] = {one["name"]: one for one in content["audit"]["numbers"]}
    for name, label, digits in STANDARD:
        for seed, found in sorted(numbers.items()):
            one = found[name]
            values = (told(name, one[which], digits) for which in ("value", "before", "retrained"))
            lines.append((label, str(seed), *values))
    return markdown(lines)


def summary_of(tasks: tuple[str, ...] = TASKS) -> str:
    """Return one line for each scenario: what is told of the forgotten samples, and what is kept."""
    lines: list[tuple[str, ...]] = [
        (
            "scenario",
            "floor",
            "doing nothing",
            "class-mean",
            "best peer",
            "**all but D**",
            "**K = 4 by group** (its references)",
            "test accuracy (retrained)",
            "CFR",
            "density",
        )
    ]
    for task in tasks:
        rows = rows_of(task)
        best = min(
            (name for name in rows if name.split(",")[0] in PEERS), key=lambda name: abs(rows[name]["auc"] - 0.5)
        )
        ours, folds, retrained = rows["all but D"], rows["K = 4 by group"], rows["retrained"]
        low, high = retrained["floor"]
        lines.append(
            (
                f"`{task}`",
                f"{low:.2f} to {high:.2f}",
                shown(rows["do-nothing"]["auc"], 2),
                shown(rows["class-mean"]["auc"], 2),
                f"{rows[best]['auc']:.2f} ({best})",
                f"**{ours['auc']:.3f}**",
                f"**{folds['auc']:.3f}** ({folds['references_auc']:.3f})",
                f"{ours['accuracy']:.3f} ({retrained['accuracy']:.3f})",
                shown(ours["cfr"]),
                shown(ours["density"], 2),
            )
        )
    return markdown(lines)


def costs_of() -> str:
    """Return what a request costs as a share of retraining, alone and with its part of the table."""
    lines: list[tuple[str, ...]] = [
        ("scenario", "on", "one request", "retraining", "share", "with the table: 1 request", "10", "100", "pays from")
    ]
    for path in sorted(RESULTS.glob("request-costs-*.json")):
        content = json.loads(path.read_bytes())
        mean = content["mean"]["request"]
        device = "H200" if path.stem.endswith("cuda") else f"{content['threads']} cores"
        epochs = "" if content.get("epochs") is None else f", {content['epochs']} epochs"
        pays = max(run["break_even"] or 0 for run in content["runs"]["request"])
        lines.append(
            (
                f"`{content['task']}`{epochs}",
                device,
                f"{mean['request_seconds']:.1f} s",
                f"{mean['retrain_seconds']:.1f} s",
                f"1/{1 / mean['share_of_retraining']:.1f}",
                *(f"{mean[f'amortised_{count}']:.2f}" for count in (1, 10, 100)),
                f"request {pays}",
            )
        )
    return markdown(lines)


def blocks() -> dict[str, str]:
    """Return every table of the pages, by the name that marks its place."""
    found = {"summary": summary_of(), "costs": costs_of()}
    for task in TASKS:
        found[f"confirm {task}"] = table_of(task)
        if (RESULTS / f"out-of-fold-{task}-curve-0.json").exists():
            found[f"curve {task}"] = curve_of(task)
        if (RESULTS / f"out-of-fold-{task}-attacks-0.json").exists():
            found[f"attacks {task}"] = attacks_of(task)
        if any(RESULTS.glob(f"audit-{task}-forsaken-all-4-standard-8-*.json")):
            found[f"standard {task}"] = standard_of(task)
    return found


def filled(text: str, tables: dict[str, str]) -> str:
    """Return a page with every table put between its marks."""

    def table(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- table: {name} -->\n\n{tables[name]}\n\n<!-- end -->"

    return re.sub(r"<!-- table: (?P<name>[^>]*?) -->.*?<!-- end -->", table, text, flags=re.DOTALL)


def main() -> None:
    tables = blocks()
    for page in PAGES:
        text = page.read_text()
        page.write_text(filled(text, tables))
    shown_there = "".join(page.read_text() for page in PAGES)
    missing = [name for name in tables if f"<!-- table: {name} -->" not in shown_there]
    print(f"{len(tables) - len(missing)} tables written; no place for: {', '.join(missing) or 'none'}")


if __name__ == "__main__":
    main()
