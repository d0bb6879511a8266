"""Fit the references of the node that will forget, on its own folds: python prepare.py FOLDER [NODE]."""

from __future__ import annotations

import sys
from pathlib import Path

from forsaken.bench.federated import fit_references

if __name__ == "__main__":
    folder, *number = sys.argv[1:]
    table = fit_references(Path(folder), int(number[0]) if number else 0)
    print(f"references for {len(table)} rows in {folder}")
