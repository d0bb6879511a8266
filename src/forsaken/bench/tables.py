"""From saved trials to tables: means over seeds with intervals, the paper's numbers beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from forsaken.bench.benchmarks import BENCHMARKS, Benchmark, Line, needs_gpu, usual_seeds
from forsaken.bench.paper import paper_numbers
from forsaken.bench.trials import read

DEVICES = ("cuda", "cpu")
MACHINE = "machine"


@dataclass(frozen=True, slots=True)
class Cell:
    """One number of a table.

    Attributes
    ----------
    mean : float or None
        Over the seeds; None where no seed has the number.
    interval : (float, float) or None
        Its 95 % interval by Student's t; None for fewer than two seeds.
    paper : float or None
        What the paper reports.
    n, seeds : int
        How many seeds have the number, and how many were measured, those included on which the method refused.
    """

    mean: float | None
    interval: tuple[float, float] | None = None
    paper: float | None = None
    n: int = 0
    seeds: int = 0


@dataclass(frozen=True, slots=True)
class TableLine:
    """One line of a table.

    Attributes
    ----------
    n : int
        Seeds with numbers.
    cells : tuple of Cell
        By column.
    reasons : tuple of str
        Why the method could not do it, or what it ruined, for each seed on which it refused. A mean over the other
        seeds is one over those on which the method worked.
    runs : tuple of mapping
        The numbers, seed by seed, and the processor or GPU on which they were measured (`MACHINE`).
    device : str
        "cpu" or "cuda": the same for all lines of a scenario.
    """

    scenario: str
    line: Line
    n: int
    cells: tuple[Cell, ...]
    reasons: tuple[str, ...] = ()
    runs: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    device: str = "cpu"

    @property
    def refused(self) -> str:
        """The first reason; empty where the method never refused."""
        return self.reasons[0] if self.reasons else ""

    @property
    def refusals(self) -> int:
        """On how many seeds the method refused."""
        return len(self.reasons)

    @property
    def label(self) -> str:
        """The name of the line for people."""
        return self.line.label

    @property
    def machines(self) -> frozenset[str]:
        """The processors or GPUs on which it was measured."""
        return frozenset(run[MACHINE] for run in self.runs)

    def cell(self, name: str, machine: str = "") -> Cell:
        """Return any number of the trials, whether or not the table shows it; of one machine alone if it is named."""
        if not machine:
            return _cell(self.runs, name, None, self.n + self.refusals)
        runs = tuple(run for run in self.runs if run[MACHINE] == machine)
        return _cell(runs, name, None, len(runs))


@dataclass(frozen=True, slots=True)
class ResultTable:
    """A benchmark with its numbers; lines without a measured or printed number are left out.

    `not_shown` counts, for each scenario, the trials on the device that the table does not show.
    """

    benchmark: Benchmark
    lines: tuple[TableLine, ...]
    not_shown: Mapping[str, int] = field(default_factory=dict)

    @property
    def measured(self) -> tuple[TableLine, ...]:
        """The lines with at least one seed."""
        return tuple(line for line in self.lines if line.n)

    def to_dict(self) -> dict[str, Any]:
        """Return the table, ready for JSON."""
        return {
            "name": self.benchmark.name,
            "title": self.benchmark.title,
            "paper": self.benchmark.source,
            "note": self.benchmark.note,
            "not_shown": dict(self.not_shown),
            "lines": [
                {
                    "scenario": one.scenario,
                    "row": one.line.row,
                    "variation": one.line.variation,
                    "n": one.n,
                    "device": one.device,
                    "machines": sorted(one.machines),
                    "refused": one.refused,
                    "refusals": one.refusals,
                    **{
                        column.name: {
                            "mean": cell.mean,
                            "interval": cell.interval,
                            "n": cell.n,
                            "paper": cell.paper,
                        }
                        for column, cell in zip(self.benchmark.columns, one.cells, strict=True)
                    },
                }
                for one in self.lines
            ],
        }


def gather(benchmark: Benchmark, folder: Path) -> ResultTable:
    """Read the saved trials of a benchmark."""
    lines, not_shown = [], {}
    for scenario in benchmark.scenarios:
        device, measured, not_shown[scenario] = _measured(benchmark, scenario, folder)
        for line, contents in zip(benchmark.lines_of(scenario), measured, strict=True):
            runs = tuple(_derived(one, device) for one in contents if "refused" not in one["numbers"])
            refusals = [one["numbers"]["refused"] for one in contents if "refused" in one["numbers"]]
            theirs = paper_numbers(scenario, line.row, line.variation)
            cells = tuple(
                _cell(runs, column.name, theirs.get(column.name), len(contents)) for column in benchmark.columns
            )
            if contents or any(cell.paper is not None for cell in cells):
                lines.append(TableLine(scenario, line, len(runs), cells, tuple(refusals), runs, device))
    return ResultTable(benchmark, tuple(lines), {name: count for name, count in not_shown.items() if count})


def progress_of(benchmark: Benchmark, folder: Path) -> dict[str, int]:
    """Return how many trials of the reported seeds there are, and how many are done."""
    total = done = 0
    for scenario in benchmark.scenarios:
        _, measured, _ = _measured(benchmark, scenario, folder)
        total += len(usual_seeds(scenario)) * len(measured)
        done += sum(map(len, measured))
    return {"trials": total, "done": done}


def all_tables(folder: Path, names: Iterable[str] = BENCHMARKS) -> dict[str, ResultTable]:
    """Return the tables of benchmarks, by name."""
    return {name: gather(BENCHMARKS[name], folder) for name in names}


def _measured(benchmark: Benchmark, scenario: str, folder: Path) -> tuple[str, list[list[dict[str, Any]]], int]:
    """Return a device, what was measured on it for the seeds of each line of a scenario, and how much on the other.

    It is the device with the most trials, so that the lines of a table can be compared; of equals a GPU for networks
    that need one, and else the CPU.
    """

    def saved(device: str, line: Line) -> list[dict[str, Any]]:
        if not (folder / scenario).is_dir():
            return []
        trials = (benchmark.trial(scenario, line, seed, device) for seed in usual_seeds(scenario))
        return [content for trial in trials if (content := read(trial, folder)) is not None]

    devices = DEVICES if needs_gpu(scenario) else DEVICES[::-1]
    found = {device: [saved(device, line) for line in benchmark.lines_of(scenario)] for device in devices}
    counts = {device: sum(map(len, measured)) for device, measured in found.items()}
    device = max(counts, key=counts.__getitem__)
    return device, found[device], sum(counts.values()) - counts[device]


def _machine(provenance: Mapping[str, Any], device: str) -> str:
    name, threads = provenance["gpu" if device == "cuda" else "processor"], provenance["threads"]
    told = f"{provenance['cores']} cores, {threads} thread{'' if threads == 1 else 's'}"
    return f"{name} ({told}, torch {provenance['versions'].get('torch', '?')})"


def is_time(name: str) -> bool:
    """Return whether a number depends on the machine that it was measured on.

    >>> is_time("retrain_seconds"), is_time("fr")
    (True, False)
    """
    return name == "speedup" or name.endswith("seconds")


def _derived(content: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Return the numbers of a trial, its machine, the seconds to compare with other trials', and their ratio.

    On a CPU they are the processor's, which other programs beside a trial hardly lengthen. A GPU works whether or not
    the processor waits, so that only the clock tells its time. The ratio is that of retraining to the request.
    """
    numbers = content["numbers"]
    found = {**numbers, MACHINE: _machine(content["provenance"], device)}
    if "accuracy" in found:
        found.setdefault("test_accuracy", found["accuracy"])
    start = "" if device == "cuda" else "processor_"
    own, again = numbers.get(f"{start}seconds"), numbers.get(f"retrain_{start}seconds")
    found |= {"compared_seconds": own, "retrain_compared_seconds": again}
    if own and again:
        found["speedup"] = again / own
    return found


def _cell(runs: tuple[Mapping[str, Any], ...], name: str, theirs: float | None, seeds: int) -> Cell:
    values = [float(run[name]) for run in runs if run.get(name) is not None]
    if not values:
        return Cell(None, None, theirs, 0, seeds)
    return Cell(float(np.mean(values)), interval_of(values), theirs, len(values), seeds)


def interval_of(values: list[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean by Student's t; None for a single value.

    >>> low, high = interval_of([1.0, 2.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    if len(values) < 2:
        return None
    half = float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values)))
    return float(np.mean(values)) - half, float(np.mean(values)) + half
