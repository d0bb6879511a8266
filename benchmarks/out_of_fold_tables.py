"""The tables of docs/guide/references.md and notes/out-of-fold.md, and the README's picture, from the result files.

usage: python benchmarks/out_of_fold_tables.py

Writes each table between its marks, <!-- table: NAME --> and <!-- end -->, and docs/images/before-after.svg.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from common import MOVED, RESULTS, markdown

from forsaken.auditing.relearning import MOST

GUIDE = Path(__file__).parents[1] / "docs" / "guide"
NOTES = Path(__file__).parent / "notes"
PAGES = (GUIDE / "references.md", NOTES / "out-of-fold.md")
PICTURE = GUIDE.parent / "images" / "before-after.svg"
FOLDS = 4  # of the tables whose costs were measured (benchmarks/request_costs.py)
PEERS = ("salun", "neggrad-plus", "scrub")
NEIGHBOURS = ("near", "mirrored", "shifted")
SPLITS = (0, 1)


def tasks_of(kind: str) -> tuple[str, ...]:
    """Return the scenarios that have a result file of a kind of rows."""
    start, end = "out-of-fold-", f"-{kind}-0.json"
    names = (path.name.removeprefix(start).removesuffix(end) for path in RESULTS.glob(f"{start}*{end}"))
    return tuple(sorted(names))


TASKS, MEASURED = tasks_of("rivals"), tasks_of("confirm")
HEAD = (
    "row",
    "AUC, forgotten",
    "of the references",
    "AUC, neighbours",
    "AUC, kept",
    "AUC, test",
    "KLoM p95 / floor",
    "test accuracy",
    "FR",
    "CFR",
    "density",
    "sample passes",
    "seconds",
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
    retrained = table["retrained"]
    span = row.get("auc_interval")
    auc = shown(row["auc"]) + ("" if not span else f" ({span[0]:.2f} to {span[1]:.2f})")
    if name == "retrained":
        low, high = row["floor"]
        auc = f"{shown(row['auc'])} (floor {low:.2f} to {high:.2f})"
    near = [row[key] for key in ("auc_near", "auc_mirrored", "auc_shifted") if row.get(key) is not None]
    return (
        name,
        auc,
        shown(row["references_auc"]) if "references_auc" in row else "",
        " / ".join(shown(value) for value in near),
        shown(row["auc_retain"]),
        shown(row["auc_test"]),
        ratio(row, retrained, "klom_forget_p95"),
        shown(row["accuracy"]),
        shown(row["fr"], 2),
        shown(row["cfr"]),
        shown(row["density"], 2) if row.get("density") is not None else "",
        f"{row['passes']:,.0f}" if row.get("passes") else "",
        shown(row["seconds"], 2) if row.get("seconds") is not None else "",
    )


def content_of(task: str, kind: str = "confirm", split: int = 0) -> dict[str, Any]:
    """Return what a result file holds."""
    found: dict[str, Any] = json.loads((RESULTS / f"out-of-fold-{task}-{kind}-{split}.json").read_bytes())
    return found


def rows_of(task: str, kind: str = "confirm", split: int = 0) -> dict[str, dict[str, Any]]:
    """Return the rows of a result file."""
    found: dict[str, dict[str, Any]] = content_of(task, kind, split)["rows"]
    return found


def splits_of(task: str) -> list[dict[str, dict[str, Any]]]:
    """Return the rows of every split that a scenario was measured on."""
    return [rows_of(task, split=split) for split in SPLITS if _path(task, split).exists()]


def _path(task: str, split: int) -> Path:
    return RESULTS / f"out-of-fold-{task}-confirm-{split}.json"


def starting(rows: dict[str, Any], start: str) -> str:
    """Return the first row whose name starts so: rows without views, or with as many as the task's default."""
    return next(name for name in rows if name.startswith(start))


def practical(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the row that a user can have: four folds drawn before the request, the samples in one group."""
    return rows[starting(rows, "K = 4 by group")]


def table_of(task: str, kind: str, split: int = 0) -> str:
    """Return everything that was measured on a scenario."""
    rows = rows_of(task, kind, split)
    return markdown([HEAD, *(line(name, row, rows) for name, row in rows.items())])


def confirmed(task: str) -> str:
    """Return everything that was measured on a scenario, split by split."""
    parts = []
    for split in SPLITS:
        if not _path(task, split).exists():
            continue
        epochs = content_of(task, split=split)["options"].get("epochs")
        trained = "" if epochs is None else f", {epochs} epochs in place of the recipe's"
        file = f"[file](../results/{_path(task, split).name})"
        parts.append(f"Split {split}{trained} ({file}):\n\n{table_of(task, 'confirm', split)}")
    return "\n\n".join(parts)


def beside(values: list[str]) -> str:
    """Return the value of each split, one after the other."""
    return " / ".join(values)


def distances_of(tasks: tuple[str, ...] = MEASURED) -> str:
    """Return how far the practical row of each split is from its marks; a value beyond its mark is in bold."""
    lines: list[tuple[str, ...]] = [
        (
            "scenario, split",
            "forgotten: from its references (0.02)",
            "neighbours: above retrained (0.05; texts and digits 0.10)",
            "kept: above doing nothing (0.03)",
            "test: above doing nothing (0.03)",
            "accuracy: below retrained or doing nothing, points (0.3)",
            "CFR (0.08)",
        )
    ]

    def marked(value: float, mark: float, digits: int = 3) -> str:
        text = f"{value:.{digits}f}"
        return f"**{text}**" if round(value, digits) > mark else text

    for task in tasks:
        for split, rows in enumerate(splits_of(task)):
            mine, retrained, nothing = practical(rows), rows["retrained"], rows["do-nothing"]
            near = max(mine[f"auc_{name}"] - retrained[f"auc_{name}"] for name in NEIGHBOURS if f"auc_{name}" in mine)
            wide = 0.05 if "auc_mirrored" in mine else 0.10
            lost = 100 * (min(retrained["accuracy"], nothing["accuracy"]) - mine["accuracy"])
            lines.append(
                (
                    f"`{task}`, {split}",
                    marked(abs(mine["auc"] - mine["references_auc"]), 0.02),
                    marked(near, wide),
                    *(marked(mine[key] - nothing[key], 0.03) for key in ("auc_retain", "auc_test")),
                    marked(lost, 0.3, 1),
                    marked(mine["cfr"], 0.08),
                )
            )
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


def summary_of(tasks: tuple[str, ...] = MEASURED) -> str:
    """Return one line for each scenario: what is told of the forgotten samples, and what is kept, split by split."""
    lines: list[tuple[str, ...]] = [
        (
            "scenario",
            "floor",
            "doing nothing",
            "class-mean",
            "best peer",
            "**K = 4 by group** (its references)",
            "such references among 16 models (floor)",
            "all but D, an upper bound",
            "test accuracy (retrained)",
            "CFR",
        )
    ]
    for task in tasks:
        splits, others = splits_of(task), rows_of(task, "rivals") if task in TASKS else {}
        best = best_peer(others)
        peer = "none changed anything" if best is None else f"{others[best]['auc']:.2f} ({best})"
        mine, retrained = [practical(rows) for rows in splits], [rows["retrained"] for rows in splits]
        lines.append(
            (
                f"`{task}`",
                beside([span(row["floor"]) for row in retrained]),
                beside([shown(rows["do-nothing"]["auc"], 2) for rows in splits]),
                shown(others["class-mean"]["auc"], 2) if others else "",
                peer if others else "",
                beside([f"**{row['auc']:.3f}** ({row['references_auc']:.3f})" for row in mine]),
                _among_sixteen(others),
                beside([shown(rows[starting(rows, "all but D")]["auc"]) for rows in splits]),
                beside(
                    [
                        f"{row['accuracy']:.3f} ({other['accuracy']:.3f})"
                        for row, other in zip(mine, retrained, strict=True)
                    ]
                ),
                beside([shown(row["cfr"]) for row in mine]),
            )
        )
    return markdown(lines)


def _among_sixteen(rows: dict[str, dict[str, Any]]) -> str:
    """Return how well the references of K = 4 by group are told, whatever method goes by them, and the floor."""
    if not rows:
        return ""
    return f"{rows['anchors, K = 4 by group']['references_auc']:.3f} ({span(rows['retrained']['floor'])})"


def picture_of(tasks: tuple[str, ...] = MEASURED) -> str:
    """Return the AUC of U-LiRA as a picture: before, after by both targets, and where retrained models lie."""
    left, step, top, bottom = 170, 430, 46, 40
    height = top + 34 * len(tasks) + bottom

    def x(auc: float) -> str:
        return f"{left + step * (auc - 0.4) / 0.6:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {height}" role="img" aria-labelledby="t" '
        'font-family="system-ui, sans-serif" font-size="13">',
        '<title id="t">How well the strongest attack finds the forgotten samples: '
        + "; ".join(
            f"{task} {beside([shown(rows['do-nothing']['auc'], 2) for rows in splits])} before, "
            f"{beside([shown(practical(rows)['auc'], 2) for rows in splits])} after"
            for task, splits in ((task, splits_of(task)) for task in tasks)
        )
        + "</title>",
        "<style>text{fill:#24292f}.f{fill:#0072b2;opacity:.25}.g{stroke:#8c959f;stroke-width:1}.b{fill:#d55e00}"
        ".d{fill:none;stroke:#8a6d00;stroke-width:2}.a{fill:#00805d}"
        "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.f{fill:#56b4e9}.b{fill:#f0803c}.d{stroke:#e6c200}.a{fill:#2fc49a}}"
        "</style>",
    ]
    legend = [
        ("b", "before", 90),
        ("d", "class-mean", 190),
        ("a", "with references", 320),
        ("f", "retrained models", 475),
    ]
    for kind, name, here in legend:
        parts.append(_mark(kind, float(here), 16.0) + f'<text x="{here + 14}" y="20">{name}</text>')
    for at, task in enumerate(tasks):
        splits, y = splits_of(task), top + 34 * at + 12
        low = min(rows["retrained"]["floor"][0] for rows in splits)
        high = max(rows["retrained"]["floor"][1] for rows in splits)
        parts.append(f'<text x="{left - 14}" y="{y + 4}" text-anchor="end">{task}</text>')
        parts.append(f'<path class="g" d="M{left} {y}H{left + step}"/>')
        parts.append(f'<rect class="f" x="{x(low)}" y="{y - 12}" width="{step * (high - low) / 0.6:.1f}" height="24"/>')
        marks = [("b", rows["do-nothing"]["auc"]) for rows in splits]
        marks += [("d", rows_of(task, "rivals")["class-mean"]["auc"])] if task in TASKS else []
        marks += [("a", practical(rows)["auc"]) for rows in splits]
        parts += [_mark(kind, float(x(auc)), float(y)) for kind, auc in marks]
    y = top + 34 * len(tasks)
    parts += [
        f'<text x="{x(tick)}" y="{y + 14}" text-anchor="middle">{tick:g}</text>'
        for tick in (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    ]
    told = "AUC of U-LiRA on the forgotten samples: 0.5 is chance, 1 finds every one"
    parts.append(f'<text x="{left + step / 2:g}" y="{y + 32}" text-anchor="middle">{told}</text></svg>')
    return "\n".join(parts) + "\n"


def _mark(kind: str, x: float, y: float) -> str:
    """Return a mark: a disc, a ring, a diamond or a bar, so that none is told by its colour alone."""
    if kind == "f":
        return f'<rect class="f" x="{x - 8:g}" y="{y - 7:g}" width="16" height="14"/>'
    if kind == "a":
        return f'<path class="a" d="M{x:g} {y - 8:g}l8 8-8 8-8-8z"/>'
    return f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="{6 if kind == "b" else 9}"/>'


def best_peer(rows: dict[str, dict[str, Any]]) -> str | None:
    """Return the peer whose AUC is nearest to 0.5 among those that changed most models: who diverges changes none."""
    moved = [name for name, row in rows.items() if name.split(",")[0] in PEERS and row["density"] > MOVED]
    return min(moved, key=lambda name: abs(rows[name]["auc"] - 0.5), default=None)


def attacks_of() -> str:
    """Return what is told by sample and by the whole request, on neighbours, and by whoever has both models."""
    lines: list[tuple[str, ...]] = [
        (
            "scenario, seed",
            "row",
            "by sample (floor)",
            "**by the whole request** (floor)",
            "neighbours, by sample",
            "neighbours, by the whole request (floor)",
            "before and after: forgotten against kept (retrained)",
        )
    ]
    for path in sorted(RESULTS.glob("attacks-*.json")):
        content = json.loads(path.read_bytes())
        options, rows = content["options"], content["rows"]
        retrained = rows["retrained"]
        near = next(part for part in NEIGHBOURS if part in retrained)
        for name, row in sorted(rows.items(), key=lambda each: each[0] == "do-nothing"):  # what users can have first
            if name == "retrained" or name.endswith("3 views"):  # the notes have those
                continue
            both = row.get("before_after_change_kept")
            lines.append(
                (
                    f"`{options['task']}`, {options['seed']}",
                    name,
                    f"{row['forget']['auc']:.3f} ({span(retrained['forget']['floor'])})",
                    f"**{row['forget']['request']:.3f}** ({span(retrained['forget']['request_floor'])})",
                    shown(row[near]["auc"]),
                    f"{row[near]['request']:.3f} ({span(retrained[near]['request_floor'])})",
                    "" if both is None else f"{both['auc']:.3f} ({both['retrained']:.3f})",
                )
            )
    return markdown(lines)


def span(ends: list[float]) -> str:
    """Return a range as the table shows it."""
    return f"{ends[0]:.2f} to {ends[1]:.2f}"


def costs_of() -> str:
    """Return what a request costs as a share of retraining, in passes and in seconds, with and without views."""
    lines: list[tuple[str, ...]] = [
        ("scenario", "on", "retraining", "sample passes", "one request", "share", "with three views", "curvature, once")
    ]
    for path in sorted(RESULTS.glob("request-costs-*.json")):
        content = json.loads(path.read_bytes())
        mean = content["mean"]["request"]
        device = "H200" if path.stem.endswith("cuda") else f"{content['threads']} cores"
        epochs = "" if content.get("epochs") is None else f", {content['epochs']} epochs"
        passes = mean["sample_passes"]
        lines.append(
            (
                f"`{content['task']}`{epochs}",
                device,
                f"{mean['retrain_seconds']:.1f} s",
                f"{passes:,.0f} (1/{mean['retrain_passes'] / passes:.0f})",
                f"{mean['request_seconds']:.2f} s",
                f"1/{1 / mean['share_of_retraining']:.1f}",
                f"{mean['request_seconds_with_views']:.2f} s (1/{1 / mean['share_of_retraining_with_views']:.1f})",
                f"{mean['curvature_seconds']:.1f} s ({100 * mean['curvature_share_of_passes']:.1f} % of the passes)",
            )
        )
    return markdown(lines)


def alternatives_of(batches: tuple[int, ...] = (1, 10, 100)) -> str:
    """Return what each of N requests costs, as a share of one retraining, beside what a user could do in its place."""
    lines: list[tuple[str, ...]] = [
        ("scenario", "what is done", *(f"{count} request{'s' * (count > 1)}" for count in batches), "what it gives up")
    ]
    for path in sorted(RESULTS.glob("request-costs-*.json")):
        content = json.loads(path.read_bytes())
        mean, name = content["mean"]["request"], f"`{content['task']}`"
        training, curvature = (mean[f"{what}_seconds"] / mean["retrain_seconds"] for what in ("train", "curvature"))
        table = (FOLDS + 1) * training + curvature  # one more training tells what the references are worth
        shares = {
            f"Forsaken, table of {FOLDS} folds included": [
                table / count + mean["share_of_retraining"] for count in batches
            ],
            "retrain for every request": [1.0 for _ in batches],
            "retrain once for the batch": [1 / count for count in batches],
            "deploy the reference": [FOLDS * training / count for count in batches],
        }
        given_up = (
            "what the references are worth",
            "nothing",
            "requests wait until the batch is full",
            f"the deployed model lacks 1/{FOLDS} of the data, and serves requests of one fold only",
        )
        for (what, values), lost in zip(shares.items(), given_up, strict=True):
            lines.append((name, what, *(f"{value:.2f}" for value in values), lost))
    return markdown(lines)


def blocks() -> dict[str, str]:
    """Return every table of the pages, by the name that marks its place."""
    found = {
        "alternatives": alternatives_of(),
        "attacks": attacks_of(),
        "costs": costs_of(),
        "distances": distances_of(),
        "summary": summary_of(),
    }
    found |= {f"confirm {task}": confirmed(task) for task in MEASURED}
    for task in TASKS:
        found[f"rivals {task}"] = table_of(task, "rivals")
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
    PICTURE.write_text(picture_of())
    shown_there = "".join(page.read_text() for page in PAGES)
    missing = [name for name in tables if f"<!-- table: {name} -->" not in shown_there]
    print(f"{len(tables) - len(missing)} tables written; no place for: {', '.join(missing) or 'none'}")


if __name__ == "__main__":
    main()
