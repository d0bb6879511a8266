"""The paper's findings, one by one, against our numbers: confirmed, not confirmed, or not tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from forsaken.bench.benchmarks import BENCHMARKS, BUILT_IN, ID, OOD
from forsaken.bench.exposure import NEGLIGIBLE
from forsaken.bench.rows import BEFORE, PAPER, RETRAINED
from forsaken.bench.tables import ResultTable

_NEAR = 0.03  # of FR, within which two methods count as equal
_LITTLE = 0.005  # of accuracy or FR: half a point is nothing in the paper's own comparisons


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one scenario says about a finding, with the numbers in words."""

    scenario: str
    holds: bool
    text: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim of the paper, in our words, and what our numbers say.

    Attributes
    ----------
    claim, section : str
        What the paper says, and where.
    evidence : tuple of Evidence
        One for each scenario that could be tested.
    """

    claim: str
    section: str
    evidence: tuple[Evidence, ...]

    @property
    def verdict(self) -> str:
        """One of "confirmed", "not confirmed", "mixed" and "not tested"."""
        if not self.evidence:
            return "not tested"
        held = [one.holds for one in self.evidence]
        return "confirmed" if all(held) else "mixed" if any(held) else "not confirmed"


class _Numbers:
    """Means by benchmark, scenario, row and variation."""

    def __init__(self, tables: Mapping[str, ResultTable]) -> None:
        self._tables = tables

    def get(self, benchmark: str, scenario: str, row: str, column: str, variation: str = "") -> float | None:
        """Return a measured mean, or None."""
        for line in self._tables[benchmark].lines if benchmark in self._tables else ():
            if (line.scenario, line.line.row, line.line.variation) == (scenario, row, variation):
                names = [one.name for one in self._tables[benchmark].benchmark.columns]
                return line.cells[names.index(column)].mean
        return None

    def several(self, benchmark: str, scenario: str, column: str, rows: tuple[str, ...]) -> dict[str, float] | None:
        """Return the means of all rows, or None where one is missing."""
        found = {row: self.get(benchmark, scenario, row, column) for row in rows}
        return None if None in found.values() else {row: value for row, value in found.items() if value is not None}

    def variations(self, benchmark: str, scenario: str, row: str, column: str) -> dict[str, float]:
        """Return the means of all variations of a row that were measured, in the order of the table."""
        named = (line.variation for line in BENCHMARKS[benchmark].lines_of(scenario) if line.row == row)
        found = {name: self.get(benchmark, scenario, row, column, name) for name in named}
        return {name: value for name, value in found.items() if value is not None}


def _of_the_paper(benchmark: str) -> tuple[str, ...]:
    """Return the scenarios of a benchmark without the built-in one, of which the paper says nothing."""
    return tuple(name for name in BENCHMARKS[benchmark].scenarios if name != BUILT_IN)


def _memorised(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in OOD:
        count = numbers.get("networks", scenario, BEFORE, "memorised")
        if count is not None:
            yield Evidence(scenario, count > 100, f"{count:.0f} of 200 strangers look memorised")


def _near_retraining(benchmark: str, scenarios: tuple[str, ...]) -> Callable[[_Numbers], Iterator[Evidence]]:
    def check(numbers: _Numbers) -> Iterator[Evidence]:
        for scenario in scenarios:
            found = numbers.several(benchmark, scenario, "fr", (PAPER, RETRAINED))
            if found is not None:
                text = f"FR {found[PAPER]:.3f}, retrained {found[RETRAINED]:.3f}"
                yield Evidence(scenario, found[PAPER] >= found[RETRAINED] - _NEAR, text)

    return check


def _not_all(numbers: _Numbers) -> Iterator[Evidence]:
    for benchmark, scenarios in (("fr-ood", OOD), ("fr-id", ID)):
        for scenario in scenarios:
            rate = numbers.get(benchmark, scenario, RETRAINED, "fr")
            if rate is not None:
                yield Evidence(scenario, rate < 1 - _LITTLE, f"retrained FR {rate:.3f}")


def _harder_inside(numbers: _Numbers) -> Iterator[Evidence]:
    for outside, inside in (("reuters-35-11", "reuters-id"), ("news-15-5", "news-id"), ("i-c", "imdb-id")):
        for row in (PAPER, RETRAINED):
            ood, own = numbers.get("fr-ood", outside, row, "fr"), numbers.get("fr-id", inside, row, "fr")
            if ood is not None and own is not None:
                yield Evidence(
                    inside, own < ood, f"{row}: FR {own:.3f} for the task's samples, {ood:.3f} for strangers"
                )


def _smu_worst(numbers: _Numbers) -> Iterator[Evidence]:
    rows = (PAPER, "smu", "sisa", "sisa-dp", RETRAINED)
    for benchmark, scenarios in (("fr-ood", OOD), ("fr-id", ID)):
        for scenario in scenarios:
            found = numbers.several(benchmark, scenario, "fr", rows)
            if found is not None:
                text = ", ".join(f"{row} {value:.3f}" for row, value in found.items())
                yield Evidence(scenario, min(found, key=lambda row: found[row]) == "smu", f"FR: {text}")


def _sisa_loses(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in (*OOD, *ID):
        found = numbers.several("performance-drop", scenario, "accuracy_loss", (PAPER, "sisa", "sisa-dp"))
        if found is not None:
            text = ", ".join(f"{row} {100 * value:.1f}" for row, value in found.items())
            holds = min(found["sisa"], found["sisa-dp"]) > found[PAPER]
            yield Evidence(scenario, holds, f"points of accuracy lost: {text}")


def _lowest_cfr(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in OOD:
        found = numbers.several("cfr", scenario, "cfr", (PAPER, "smu", "sisa", "sisa-dp"))
        if found is not None:
            text = ", ".join(f"{row} {value:.3f}" for row, value in found.items())
            yield Evidence(scenario, min(found, key=lambda row: found[row]) == PAPER, f"CFR: {text}")


def _hundreds(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in OOD:
        times = numbers.get("efficiency", scenario, PAPER, "speedup")
        if times is not None:
            yield Evidence(scenario, times >= 50, f"{times:.1f} times faster than retraining")


def _linear(benchmark: str) -> Callable[[_Numbers], Iterator[Evidence]]:
    def check(numbers: _Numbers) -> Iterator[Evidence]:
        for scenario in _of_the_paper(benchmark):
            found = numbers.variations(benchmark, scenario, PAPER, "seconds")
            counts = {int(name.partition("=")[2]): value for name, value in found.items()}
            if len(counts) < 3:
                continue
            low, high = min(counts), max(counts)
            ratio = (counts[high] / counts[low]) / (high / low)
            text = f"{high / low:.1f} times as many take {counts[high] / counts[low]:.1f} times as long"
            yield Evidence(scenario, 0.5 <= ratio <= 1.5, text)

    return check


def _independent(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in _of_the_paper("big-dataset"):
        found = numbers.variations("big-dataset", scenario, PAPER, "seconds")
        again = numbers.variations("big-dataset", scenario, PAPER, "retrain_seconds")
        names = [name for name in found if name.startswith("rows=")]
        if len(names) >= 2:
            first, last = names[0], names[-1]
            text = (
                f"{first.replace('=', ' ')} to {last.replace('=', ' ')}: a request {found[first]:.1f} to "
                f"{found[last]:.1f} s, retraining {again[first]:.1f} to {again[last]:.1f} s"
            )
            yield Evidence(scenario, found[last] / found[first] < 0.5 * again[last] / again[first], text)


def _penalty(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in _of_the_paper("penalty"):
        lost = numbers.variations("penalty", scenario, PAPER, "accuracy_loss")
        rate = numbers.variations("penalty", scenario, PAPER, "fr")
        if len(lost) == 5 and len(rate) >= 2:
            text = "; ".join(
                f"λ {name.partition('=')[2]}: FR {rate[name]:.2f}, {100 * value:.1f} points"
                for name, value in lost.items()
                if name in rate
            )
            yield Evidence(scenario, lost["penalty=100 w"] < lost["penalty=0"], text)


def _past_the_best(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in _of_the_paper("iterations"):
        rate = numbers.variations("iterations", scenario, PAPER, "fr")
        right = numbers.variations("iterations", scenario, PAPER, "accuracy")
        if {"iterations=20", "iterations=60"} <= rate.keys():
            early, late = "iterations=20", "iterations=60"
            text = (
                f"20 to 60 iterations: FR {rate[early]:.3f} to {rate[late]:.3f}, accuracy {right[early]:.3f} to "
                f"{right[late]:.3f}"
            )
            yield Evidence(scenario, rate[late] - rate[early] < _NEAR and right[late] < right[early], text)


def _overtraining(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in _of_the_paper("overtraining"):
        rate = numbers.variations("overtraining", scenario, PAPER, "fr")
        if len(rate) >= 2:
            first, last = next(iter(rate)), list(rate)[-1]
            text = ", ".join(f"{name.replace('=', ' ')}: FR {value:.3f}" for name, value in rate.items())
            yield Evidence(scenario, rate[first] < rate[last] - _LITTLE, text)


def _white_box(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in OOD:
        black, white = (numbers.get("white-box", scenario, PAPER, f"{kind}_box_fr") for kind in ("black", "white"))
        if black is not None and white is not None:
            yield Evidence(
                scenario, abs(black - white) <= _NEAR, f"FR {black:.3f} by black box, {white:.3f} by white box"
            )


def _other_models(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in _of_the_paper("expansion"):
        for model in ("logistic-regression", "svm"):
            rate = numbers.get("expansion", scenario, PAPER, "fr", f"model={model}")
            lost = numbers.get("expansion", scenario, PAPER, "accuracy_loss", f"model={model}")
            if rate is not None and lost is not None:
                text = f"{model}: FR {rate:.3f}, {100 * lost:.1f} points of accuracy lost"
                yield Evidence(scenario, rate >= 0.9 and lost <= 0.07, text)


def _pictures(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in _of_the_paper("visualisation"):
        before, after, aim = (
            numbers.get("visualisation", scenario, PAPER, f"member_neighbours_{model}")
            for model in ("before", "after", "retrained")
        )
        if before is not None and after is not None and aim is not None:
            text = f"members among the neighbours: {before:.2f} before, {after:.2f} after, {aim:.2f} retrained"
            yield Evidence(scenario, after < before, text)


def _poison(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in _of_the_paper("poison"):
        before = numbers.get("poison", scenario, BEFORE, "recall")
        after = numbers.get("poison", scenario, "corrected", "recall")
        lost = numbers.get("poison", scenario, "corrected", "accuracy_loss")
        if before is not None and after is not None and lost is not None:
            text = f"recall {before:.3f} to {after:.3f}, accuracy {-100 * lost:+.1f} points"
            yield Evidence(scenario, after > before + _LITTLE, text)


def _exposure(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in BENCHMARKS["exposure"].scenarios:
        bits = numbers.several("exposure", scenario, "exposure", (BEFORE, "matched", RETRAINED))
        rate = numbers.get("exposure", scenario, "matched", "fr")
        if bits is not None and rate is not None:
            text = (
                f"by our curvature, exposure {bits[BEFORE]:.1f} to {bits['matched']:.1f} bits at an FR of {rate:.2f}, "
                f"retrained {bits[RETRAINED]:.1f}"
            )
            yield Evidence(scenario, bits["matched"] < NEGLIGIBLE < bits[BEFORE], text)


_CLAIMS: tuple[tuple[str, str, Callable[[_Numbers], Iterator[Evidence]]], ...] = (
    (
        "Most strangers are memorised, though they have nothing to do with the task.",
        "Performance Comparison",
        _memorised,
    ),
    (
        "The paper's method has an FR near retraining's or above it, on strangers.",
        "Forgetting Rate",
        _near_retraining("fr-ood", OOD),
    ),
    ("The same on samples of the task.", "Forgetting Rate", _near_retraining("fr-id", ID)),
    ("Retraining itself does not reach an FR of 100 %.", "Forgetting Rate", _not_all),
    ("Samples of the task are harder to forget than strangers.", "Forgetting Rate", _harder_inside),
    ("SMU has the lowest FR of all methods.", "Forgetting Rate", _smu_worst),
    ("SISA and SISA-DP lose more accuracy than the paper's method.", "Performance Drops", _sisa_loses),
    ("The paper's method has the lowest CFR.", "Catastrophic Forgetting Rate", _lowest_cfr),
    ("It is tens to hundreds of times faster than retraining (67 to 158).", "Efficiency", _hundreds),
    ("Its time grows linearly with the iterations.", "Training Iteration of Generator", _linear("iterations")),
    ("Its time grows linearly with the samples to forget.", "Efficiency Analysis", _linear("running-time")),
    ("Its time does not depend on the size of the training set.", "Big Dataset", _independent),
    (
        "Past the best point, more iterations leave FR as it is and cost accuracy.",
        "Training Iteration of Generator",
        _past_the_best,
    ),
    ("The weighted penalty protects accuracy; at 100 it blocks the forgetting.", "Penalty", _penalty),
    ("A less overtrained model is forgotten a little worse.", "Overtraining", _overtraining),
    ("A white-box oracle finds about the same FR.", "White-box Membership Oracle", _white_box),
    ("It works on logistic regression and support vector machines too.", "Expansion to Other Models", _other_models),
    ("In a picture, the forgotten samples leave the members.", "Visualization", _pictures),
    ("Correcting poisoned labels brings recall back.", "Poison Data", _poison),
    (
        "As FR rises, the exposure of canaries falls below 10 bits, where extraction does not succeed.",
        "Unintended Memorization Exposure",
        _exposure,
    ),
)


def findings(tables: Mapping[str, ResultTable]) -> list[Finding]:
    """Check every claim against the tables of all benchmarks."""
    numbers = _Numbers(tables)
    return [Finding(claim, section, tuple(check(numbers))) for claim, section, check in _CLAIMS]
