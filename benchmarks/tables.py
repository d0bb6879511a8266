"""The tables of benchmarks/notes/baselines.md, from the result files: nothing is measured here.

usage: python benchmarks/tables.py [TASK ...] [--notes]

Prints a Markdown table for each task (by default all that baselines.py has measured), one of SISA's memory, and with
--notes the other numbers that the text quotes; those of SISA's steps need the datasets (FORSAKEN_DATA).
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
from baselines import BARE, YARDSTICK, distance
from common import RESULTS

from forsaken.bench.scenarios.table import SCENARIOS, load_scenario
from forsaken.unlearning.sisa.method import Sisa
from forsaken.unlearning.sisa.shards import assign_shards, plan
from forsaken.unlearning.sisa.training import kept_stages

TASKS = ("reuters-35-11", "digits", "digits-pictures")
HEAD = ("method", "FR", "CFR", "accuracy loss, points", "seconds", "of retraining's time")
SISA = ("sisa", "sisa-dp", "sisa-dp-sgd")
SISA_HEAD = ("task", "method", "accuracy", "memorised before", "FR before the request", "FR after it", "its own FR")
NOTHING = "n/a: nothing was memorised"
RUINED = 0.5  # of plain training's accuracy: verdicts on such a model tell of no memory

Runs = list[dict[str, Any]]


def read(task: str, kind: str = "baselines") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / f"{kind}-{task}.json").read_bytes())
    return content


def shown(values: list[float], digits: int) -> str:
    """Return mean and standard deviation; a mean that rounds to zero has no sign."""
    mean = f"{np.mean(values):.{digits}f}"
    mean = mean.lstrip("-") if float(mean) == 0 else mean
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def cell(runs: Runs, key: str, digits: int, scale: float = 1.0) -> str:
    """Return a number of all seeds, with their count where some have none."""
    found = [run[key] * scale for run in runs if run.get(key) is not None]
    if not found:
        return NOTHING
    return shown(found, digits) + (f" (n = {len(found)})" if len(found) < len(runs) else "")


def remembers(runs: Runs) -> bool:
    """Return whether the model before the request had a memory to lose: it works, and some verdict says member."""
    before = np.mean([run["accuracy"] + run["accuracy_loss"] for run in runs])
    plain = np.mean([run["accuracy"] + run["accuracy_loss_beside_plain_training"] for run in runs])
    return any(run["memorised_before"] for run in runs) and bool(before > RUINED * plain)


def rates(row: str, runs: Runs) -> tuple[str, str]:
    """Return FR and CFR; SISA's beside plain training, since its own memory is a handful of samples."""
    if not remembers(runs):
        return NOTHING, ""
    of = "_from_plain_training" if row.startswith("sisa") else ""
    return cell(runs, f"fr{of}", 3), cell(runs, f"cfr{of}", 3)


def markdown(lines: list[tuple[str, ...]]) -> str:
    head, *body = lines
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ("---",) * len(head), *body))


def table(task: str) -> str:
    """Return the table of a task."""
    found = read(task)
    lines: list[tuple[str, ...]] = [HEAD]
    for row, runs in found["runs"].items():
        ratio = "1" if row == YARDSTICK else cell(runs, "ratio_to_retraining", 3)
        loss, seconds = cell(runs, "accuracy_loss_beside_plain_training", 1, 100), cell(runs, "seconds", 2)
        lines.append((_label(row), *rates(row, runs), loss, seconds, ratio))
    lines += [(_label(row), "n/a: no convolutions", *[""] * 4) for row in found["not_applicable"] if "," not in row]
    return markdown(lines)


def _label(row: str) -> str:
    name, comma, rest = row.partition(",")
    return name if name == YARDSTICK else f"`{name}`{comma}{rest}"


def sisa_table() -> str:
    """Return what SISA's ensembles remember before a request, and what their FR is made of."""
    lines: list[tuple[str, ...]] = [SISA_HEAD]
    for task in TASKS:
        runs = read(task)["runs"]
        plain = [run["memorised_before"] for run in runs["do-nothing"]]
        lines.append(
            (task, "plain training", cell(runs["do-nothing"], "accuracy", 3), _counts(plain, task), "", "", "")
        )
        for row in SISA:
            mine, counts = runs[row], [run["memorised_before"] for run in runs[row]]
            told: tuple[str, ...] = (NOTHING, "", "")
            if remembers(mine):
                before = [1 - ours / all_ for ours, all_ in zip(counts, plain, strict=True)]
                told = shown(before, 3), cell(mine, "fr_from_plain_training", 3), cell(mine, "fr", 3)
            lines.append((task, f"`{row}`", cell(mine, "accuracy", 3), _counts(counts, task), *told))
    return markdown(lines)


def _counts(values: list[int], task: str) -> str:
    return f"{', '.join(map(str, values))} of {SCENARIOS[task].sizes.forget}"


def sisa_steps(task: str) -> str:
    """Return the steps of a request to SISA, as its plan says, beside those of retraining."""
    found = read(task)
    settings = Sisa(**found["sisa"])
    a_checkpoint = found["runs"]["sisa"][0]["upfront_unbounded_bytes"] // (settings.shards * settings.slices)
    lines = []
    for seed in found["seeds"]:
        scenario = load_scenario(task, seed=seed)
        epochs, batch = scenario.recipe.epochs, scenario.recipe.batch_size
        sharded = assign_shards(scenario.train, settings.shards, settings.slices, seed * 10 + 1)
        gone = sharded.find(scenario.forget)
        kept = kept_stages(sharded.slices, a_checkpoint, settings.space / settings.shards)
        every, needed = [], []
        for shard in np.unique(sharded.shard[gone]).tolist():
            first = sharded.slice[gone][sharded.shard[gone] == shard].min()
            stages = plan(sharded.without(gone).sizes(shard), epochs, batch)
            every += stages
            needed += stages[max((stage for stage in kept if stage < first), default=0) :]
        again = epochs * -(-len(scenario.kept) // batch)
        told = [
            f"{sum(one.steps for one in stages) / again:.2f} times the steps in {sum(one.steps > 0 for one in stages)}"
            for stages in (needed, every)
        ]
        constant = (scenario.test.labels == scenario.kept.labels.bincount().argmax()).float().mean()
        lines.append(
            f"  seed {seed}: retraining {again} steps; {told[0]} stages, without checkpoints {told[1]}; "
            f"one constant answer scores {constant:.3f}"
        )
    return "\n".join(lines)


def notes(task: str) -> str:
    """Return the numbers of the text."""
    found, tried = read(task), read(task, "baselines-tuning")["tried"]
    runs, yardstick = found["runs"], found["runs"][YARDSTICK]
    lines = [
        f"oracle's balanced accuracy {cell(yardstick, 'oracle_balanced_accuracy', 3)}: "
        + " ".join(f"{run['oracle_balanced_accuracy']:.3f}" for run in yardstick),
        "distance to the retrained model, mean over the seeds:",
        *(f"  {far:.3f} {row}" for far, row in sorted((nearness(task)[row], row) for row in nearness(task))),
        "upfront seconds, MB, MB without a bound; wall seconds of the request:",
    ]
    for row in ("smu", *SISA[:1], BARE, *SISA[1:]):
        mega = (cell(runs[row], key, 0, 1e-6) for key in ("upfront_bytes", "upfront_unbounded_bytes"))
        cost = cell(runs[row], "upfront_seconds", 1), *mega, cell(runs[row], "wall_seconds", 2)
        lines.append(f"  {row}: {'; '.join(cost)}")
    lines.append(
        f"the recipe's rate is {SCENARIOS[task].recipe.learning_rate}; SMU and SISA-DP-SGD on the tuning seeds:"
    )
    lines += [f"  {json.dumps(line)}" for row in ("smu", "sisa-dp-sgd") for line in tried[row]]
    lines += ["at the edge of their grid:", *(f"  {one}" for one in found["at_the_edge_of_their_grid"])]
    return "\n".join(lines)


def nearness(task: str) -> dict[str, float]:
    """Return how far each row with a memory is from the retrained model, by the measure of the tuning."""
    runs = read(task)["runs"]
    return {
        row: float(np.mean([distance("", one, yard) for one, yard in zip(mine, runs[YARDSTICK], strict=True)]))
        for row, mine in runs.items()
        if row != YARDSTICK and not row.startswith("sisa")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=TASKS)
    parser.add_argument("--notes", action="store_true", help="the numbers of the text in place of the tables")
    options = parser.parse_args()
    for task in options.tasks:
        print(f"\n{task}\n\n" + (f"{notes(task)}\n{sisa_steps(task)}" if options.notes else table(task)))
    if not options.notes:
        print(f"\nSISA\n\n{sisa_table()}")


if __name__ == "__main__":
    main()
