"""Forsaken on Reuters: 35 topics kept, 200 newswires on others forgotten, beside the paper's settings and retraining.

usage: FORSAKEN_DATA=<folder> python benchmarks/reuters.py [--seeds 0-4]

A seed is a split, three trainings and an oracle. The settings were fixed on seeds 100-101 (benchmarks/defaults.py).
Writes benchmarks/results/reuters-35-11.json.
"""

from __future__ import annotations

import argparse

from common import RESULTS, add_seeds, summary, trial_rows, write_result

from forsaken import Forsaken

METHODS = {"forsaken": Forsaken(), "paper": Forsaken.paper()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_seeds(parser, "0-4")
    options = parser.parse_args()
    rows = trial_rows("reuters-35-11", options.seeds, METHODS)
    print(summary(rows))
    settings = {name: method.settings for name, method in METHODS.items()}
    write_result(RESULTS / "reuters-35-11.json", options.seeds, rows, settings=settings)


if __name__ == "__main__":
    main()
