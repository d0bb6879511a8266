"""The tables of benchmarks/notes/audit.md, from the result files: nothing is measured here.

usage: python benchmarks/audit_tables.py
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from common import RESULTS, markdown

ORACLES = ("c10-t", "news-15-5", "i-c", "reuters-35-11")
AUDITS = {"reuters-35-11": "reuters-35-11-forsaken-full-64-cuda", "reuters-id": "reuters-id-forsaken-full-64-cuda"}
ORACLE_HEAD = (
    "scenario",
    "oracle",
    "FR in the paper",
    "FR",
    "FR of the retrained model",
    "CFR",
    "balanced accuracy",
    "AUC before",
    "AUC after",
    "AUC of the retrained model",
)
SHOWN = (
    ("u_lira_auc", "U-LiRA on forgotten samples, AUC"),
    ("u_lira_worst", "the tenth told best, AUC"),
    ("u_lira_tpr_1", "true positives at 1 % false ones"),
    ("u_lira_auc_retain", "U-LiRA on kept samples, AUC"),
    ("u_lira_auc_test", "U-LiRA on test samples, AUC"),
    ("klom_forget_mean", "KLoM on forgotten samples, mean"),
    ("klom_retain_mean", "KLoM on kept samples, mean"),
    ("klom_test_mean", "KLoM on test samples, mean"),
    ("neurips_score", "NeurIPS-2023 score"),
    ("ensemble_accuracy_test", "test accuracy"),
    ("within_band", "forgotten samples in the retrained models' band"),
    ("fr", "FR"),
)


def shown(values: list[float]) -> str:
    """Return mean and standard deviation."""
    return f"{np.mean(values):.2f}" + (f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else "")


def oracle_table() -> str:
    """Return what both oracles say, mean and standard deviation of the seeds."""
    lines: list[tuple[str, ...]] = [ORACLE_HEAD]
    for name in ORACLES:
        found = json.loads((RESULTS / f"oracles-{name}.json").read_bytes())
        for row, runs in found["runs"].items():
            paper = (found["paper_fr"] or {}).get(row)
            keys = ("fr_after", "fr_retrained", "cfr_after", "balanced_accuracy")
            areas = ("auc_forget_before", "auc_forget_after", "auc_forget_retrained")
            numbers = (shown([run[key] for run in runs if run.get(key) is not None]) for key in (*keys, *areas))
            lines.append((f"`{name}`", row, "" if paper is None else f"{paper:.2f}", *numbers))
    return markdown(lines)


def audit_table(name: str) -> str:
    """Return the numbers of a full audit."""
    found: dict[str, Any] = json.loads((RESULTS / f"audit-{AUDITS[name]}.json").read_bytes())["audit"]
    numbers = {number["name"]: number for number in found["numbers"]}
    lines: list[tuple[str, ...]] = [("number", "Forsaken", "doing nothing", "retrained (floor)")]
    for key, label in SHOWN:
        one = numbers[key]
        floor = "" if one["floor"] is None else " ({:.3f} to {:.3f})".format(*one["floor"])
        ours, before, usual = (
            "n/a" if one[which] is None else f"{one[which]:.3f}" for which in ("value", "before", "retrained")
        )
        lines.append((label, ours, before, f"{usual}{floor}"))
    return markdown(lines)


def main() -> None:
    print(oracle_table())
    for name in AUDITS:
        print(f"\n{name}\n\n{audit_table(name)}")


if __name__ == "__main__":
    main()
