"""The paper's findings, one by one, against our numbers: confirmed, not confirmed, mixed, or not tested.

Verdicts compare means over seeds. Where two means were compared and their 95 % intervals overlap, or there is one seed
only, the text of the evidence says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from scipy import stats

from forsaken.bench.benchmarks import BENCHMARKS, BUILT_IN, ID, METHODS, OOD
from forsaken.bench.exposure import NEGLIGIBLE
from forsaken.bench.paper import ITERATIONS, PENALTIES, SHARDS, SIZES
from forsaken.bench.rows import BEFORE, PAPER, RETRAINED
from forsaken.bench.scenarios.table import plan_named
from forsaken.bench.tables import Cell, ResultTable

_NEAR = 0.03  # of FR or accuracy, within which two methods count as equal
_LITTLE = 0.005  # of accuracy or FR: half a point is nothing in the paper's own comparisons
_MODEST = 0.06  # of FR: how far SISA's is from the paper's method in the paper's table of shards
_TENS = 10  # iterations, from which "tens of iterations" begin
_SAME_TIME = 1.25  # times as long, below which a request counts as taking as long as another
_POISON_COST = 0.02  # of recall, below which a poison did nothing that could be undone
_RUIN = 0.25  # of accuracy lost, from which a model counts as ruined; SISA-DP's loses 0.16 in the paper
_LEFT = "left every weight as it was"
_THEIRS = ("smu", "sisa", "sisa-dp")
_NOT_OF_THE_PAPER = (BUILT_IN, "poison-digits")
_PAIRS = (
    ("c10-t", "cifar10-id"),
    ("c100-t", "cifar100-id"),
    ("i-c", "imdb-id"),
    ("reuters-35-11", "reuters-id"),
    ("reuters-35-11-keras", "reuters-id-keras"),
    ("news-15-5", "news-id"),
)


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
    """Cells by benchmark, scenario, row and variation."""

    def __init__(self, tables: Mapping[str, ResultTable]) -> None:
        self._tables = tables

    def cell(self, benchmark: str, scenario: str, row: str, column: str, variation: str = "") -> Cell | None:
        """Return a cell that was measured, or None."""
        for line in self._tables[benchmark].lines if benchmark in self._tables else ():
            if (line.scenario, line.line.row, line.line.variation) == (scenario, row, variation):
                names = [one.name for one in self._tables[benchmark].benchmark.columns]
                found = line.cells[names.index(column)]
                return None if found.mean is None else found
        return None

    def get(self, benchmark: str, scenario: str, row: str, column: str, variation: str = "") -> float | None:
        """Return a measured mean, or None."""
        found = self.cell(benchmark, scenario, row, column, variation)
        return None if found is None else found.mean

    def several(self, benchmark: str, scenario: str, column: str, rows: tuple[str, ...]) -> dict[str, float] | None:
        """Return the means of all rows, or None where one is missing."""
        found = {row: self.get(benchmark, scenario, row, column) for row in rows}
        return None if None in found.values() else {row: value for row, value in found.items() if value is not None}

    def variations(self, benchmark: str, scenario: str, row: str, column: str) -> dict[str, float]:
        """Return the means of all variations of a row that were measured, in the order of the table."""
        named = (line.variation for line in BENCHMARKS[benchmark].lines_of(scenario) if line.row == row)
        found = {name: self.get(benchmark, scenario, row, column, name) for name in named}
        return {name: value for name, value in found.items() if value is not None}

    def unchanged(self, benchmark: str, scenario: str, row: str) -> list[str]:
        """Return the variations of a row with which every seed left the model as it was."""
        lines = self._tables[benchmark].lines if benchmark in self._tables else ()
        return [
            line.line.variation
            for line in lines
            if (line.scenario, line.line.row, line.n) == (scenario, row, 0) and _LEFT in line.refused
        ]

    def ruined(self, scenario: str) -> list[str]:
        """Return the rows whose models lost so much accuracy that their confidence says nothing of memory."""
        lost = {row: self.get("performance-drop", scenario, row, "accuracy_loss") for row in _THEIRS}
        return [row for row, value in lost.items() if value is not None and value > _RUIN]

    def doubt(self, benchmark: str, scenario: str, column: str, *places: tuple[str, str]) -> str:
        """Return what a reader must know of a comparison between the first (row, variation) and the others."""
        cells = [found for place in places if (found := self.cell(benchmark, scenario, place[0], column, place[1]))]
        return doubt_between(*cells)


_Check = Callable[[_Numbers], Iterator[Evidence]]


def doubt_between(first: Cell, *others: Cell) -> str:
    """Return "" where the interval of the first mean is apart from all others, and else what is to be said.

    The seeds of two rows share their splits and trainings, so that intervals that overlap do not prove equality.

    >>> doubt_between(Cell(0.9, (0.8, 1.0)), Cell(0.7, (0.6, 0.75)))
    ''
    >>> doubt_between(Cell(0.9, (0.8, 1.0)), Cell(0.7, (0.55, 0.85)))
    '; the intervals overlap'
    >>> doubt_between(Cell(0.9), Cell(0.7, (0.55, 0.85)))
    '; a row with one seed'
    """
    intervals = [one.interval for one in (first, *others)]
    if any(one is None for one in intervals):
        return "; a row with one seed"
    (low, high), *rest = [one for one in intervals if one is not None]
    return "; the intervals overlap" if any(low <= end and start <= high for start, end in rest) else ""


def _of_the_paper(benchmark: str) -> tuple[str, ...]:
    """Return the scenarios of a benchmark without those of the built-in digits, of which the paper says nothing."""
    return tuple(name for name in BENCHMARKS[benchmark].scenarios if name not in _NOT_OF_THE_PAPER)


def _counted(numbers: Mapping[str, float]) -> dict[int, float]:
    """Return numbers by the count that their variations name.

    >>> _counted({"forget=50": 1.5})
    {50: 1.5}
    """
    return {int(name.partition("=")[2]): value for name, value in numbers.items()}


def _rows(numbers: Mapping[str, float], digits: int = 3, scale: float = 1.0) -> str:
    return ", ".join(f"{row} {scale * value:.{digits}f}" for row, value in numbers.items())


def _memorised(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in OOD:
        count = numbers.get("networks", scenario, BEFORE, "memorised")
        if count is not None:
            size, rate = plan_named(scenario).sizes.forget, numbers.get("fr-ood", scenario, RETRAINED, "fr")
            text = f"{count:.0f} of {size} strangers look memorised"
            if rate is not None:
                text += f"; {100 * (1 - rate):.0f} % as many do after retraining"
            yield Evidence(scenario, count > size / 2, text)


def _learnt(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in OOD:
        count = numbers.get("networks", scenario, BEFORE, "learnt")
        if count is not None:
            size = plan_named(scenario).sizes.forget
            yield Evidence(scenario, count > size / 2, f"{count:.0f} of {size} get the labels that they came with")


def _harmless(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in OOD:
        found = numbers.several("networks", scenario, "test_accuracy", (BEFORE, RETRAINED))
        if found is not None:
            text = f"test accuracy {found[BEFORE]:.3f} with strangers, {found[RETRAINED]:.3f} without"
            text += numbers.doubt("networks", scenario, "test_accuracy", (BEFORE, ""), (RETRAINED, ""))
            yield Evidence(scenario, found[RETRAINED] - found[BEFORE] <= _NEAR, text)


def _near_retraining(benchmark: str, scenarios: tuple[str, ...]) -> _Check:
    def check(numbers: _Numbers) -> Iterator[Evidence]:
        for scenario in scenarios:
            found = numbers.several(benchmark, scenario, "fr", (PAPER, RETRAINED))
            if found is not None:
                text = f"FR {found[PAPER]:.3f}, retrained {found[RETRAINED]:.3f}"
                text += " (forgotten further than by retraining)" if found[PAPER] > found[RETRAINED] + _NEAR else ""
                text += numbers.doubt(benchmark, scenario, "fr", (PAPER, ""), (RETRAINED, ""))
                yield Evidence(scenario, found[PAPER] >= found[RETRAINED] - _NEAR, text)
            elif numbers.unchanged(benchmark, scenario, PAPER):
                yield Evidence(scenario, holds=False, text=f"the paper's settings {_LEFT}")

    return check


def _not_all(numbers: _Numbers) -> Iterator[Evidence]:
    for benchmark, scenarios in (("fr-ood", OOD), ("fr-id", ID)):
        for scenario in scenarios:
            rate = numbers.get(benchmark, scenario, RETRAINED, "fr")
            if rate is not None:
                yield Evidence(scenario, rate < 1 - _LITTLE, f"retrained FR {rate:.3f}")


def _inside(benchmarks: tuple[str, str], column: str, rows: tuple[str, ...], *, more: bool) -> _Check:
    """Return a check that a number is larger (or smaller) for samples of the task than for strangers."""

    def check(numbers: _Numbers) -> Iterator[Evidence]:
        for outside, inside in _PAIRS:
            for row in rows:
                ood = numbers.cell(benchmarks[0], outside, row, column)
                own = numbers.cell(benchmarks[1], inside, row, column)
                if ood is not None and own is not None and ood.mean is not None and own.mean is not None:
                    holds = own.mean > ood.mean if more else own.mean < ood.mean
                    here, there = (f"{100 * one:.1f}" if more else f"{one:.3f}" for one in (own.mean, ood.mean))
                    text = f"{row}: {'points' if more else 'FR'} {here} for samples of the task, {there} for strangers"
                    yield Evidence(inside, holds, text + doubt_between(own, ood))

    return check


def _smu_worst(numbers: _Numbers) -> Iterator[Evidence]:
    rows = (PAPER, *_THEIRS, RETRAINED)
    for benchmark, scenarios in (("fr-ood", OOD), ("fr-id", ID)):
        for scenario in scenarios:
            found = numbers.several(benchmark, scenario, "fr", rows)
            if found is not None:
                yield _extreme(numbers, benchmark, scenario, ("fr", "FR"), found, "smu", min)


def _noise(numbers: _Numbers) -> Iterator[Evidence]:
    for benchmark, scenarios in (("fr-ood", OOD), ("fr-id", ID)):
        for scenario in scenarios:
            rate = numbers.several(benchmark, scenario, "fr", ("sisa", "sisa-dp"))
            lost = numbers.several("performance-drop", scenario, "accuracy_loss", ("sisa", "sisa-dp"))
            if rate is not None and lost is not None:
                text = f"FR: {_rows(rate)}; points of accuracy lost: {_rows(lost, 1, 100)}"
                text += numbers.doubt(benchmark, scenario, "fr", ("sisa", ""), ("sisa-dp", ""))
                holds = rate["sisa-dp"] > rate["sisa"] and lost["sisa-dp"] > lost["sisa"]
                yield Evidence(scenario, holds, text)


def _least_loss(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in (*OOD, *ID):
        found = numbers.several("performance-drop", scenario, "accuracy_loss", (PAPER, *_THEIRS))
        if found is not None:
            others = [(row, "") for row in _THEIRS]
            text = f"points of accuracy lost: {_rows(found, 1, 100)}"
            text += numbers.doubt("performance-drop", scenario, "accuracy_loss", (PAPER, ""), *others)
            yield Evidence(scenario, min(found[row] for row in _THEIRS) > found[PAPER], text)


def _extreme(
    numbers: _Numbers,
    benchmark: str,
    scenario: str,
    column: tuple[str, str],
    found: Mapping[str, float],
    row: str,
    end: Callable[..., str],
) -> Evidence:
    """Return whether a row has the lowest number (`end` is min) or the highest (max) of those that are not ruined."""
    ruined = [other for other in numbers.ruined(scenario) if other != row]
    sound = {other: value for other, value in found.items() if other not in ruined}
    text = f"{column[1]}: {_rows(found)}"
    text += f" (ruined, and left out: {', '.join(ruined)})" if ruined else ""
    text += numbers.doubt(benchmark, scenario, column[0], (row, ""), *((other, "") for other in sound if other != row))
    return Evidence(scenario, end(sound, key=sound.__getitem__) == row, text)


def _cfr(row: str, end: Callable[..., str]) -> _Check:
    def check(numbers: _Numbers) -> Iterator[Evidence]:
        for scenario in OOD:
            found = numbers.several("cfr", scenario, "cfr", (PAPER, *_THEIRS))
            if found is not None:
                yield _extreme(numbers, "cfr", scenario, ("cfr", "CFR"), found, row, end)

    return check


def _cfr_and_accuracy(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in OOD:
        pairs = [
            (rate, lost)
            for row in METHODS
            if row not in numbers.ruined(scenario)
            and (rate := numbers.get("cfr", scenario, row, "cfr")) is not None
            and (lost := numbers.get("performance-drop", scenario, row, "accuracy_loss")) is not None
        ]
        if len(pairs) >= 5:
            found = stats.spearmanr(*zip(*pairs, strict=True))
            text = f"rank correlation {found.statistic:.2f} over {len(pairs)} rows (p = {found.pvalue:.3f})"
            yield Evidence(scenario, bool(found.statistic > 0.5), text)


def _hundreds(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in OOD:
        times = numbers.get("efficiency", scenario, PAPER, "speedup")
        if times is not None:
            yield Evidence(scenario, times >= 50, f"{times:.1f} times faster than retraining")


def _sisa_time(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in OOD:
        for row in ("sisa", "sisa-dp"):
            times = numbers.get("efficiency", scenario, row, "speedup")
            if times is not None:
                text = f"{row}: {1 / times:.1f} times as long as retraining"
                yield Evidence(scenario, 2 / 3 <= times <= 3 / 2, text)


def _smu_time(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in OOD:
        found = numbers.several("efficiency", scenario, "seconds", (PAPER, "smu"))
        if found is not None:
            text = f"seconds: {_rows(found, 2)}"
            text += numbers.doubt("efficiency", scenario, "seconds", (PAPER, ""), ("smu", ""))
            yield Evidence(scenario, found["smu"] > found[PAPER], text)


def _sizes(numbers: _Numbers) -> Iterator[Evidence]:
    for benchmark in ("sizes-ood", "sizes-id"):
        for scenario in _of_the_paper(benchmark):
            rate, right = (
                _counted(numbers.variations(benchmark, scenario, PAPER, name)) for name in ("fr", "accuracy")
            )
            if {100, 300} <= rate.keys() & right.keys():
                text = f"100 to 300 samples: FR {rate[100]:.3f} to {rate[300]:.3f}, "
                text += f"accuracy {right[100]:.3f} to {right[300]:.3f}"
                holds = rate[100] - rate[300] <= _MODEST and right[100] - right[300] <= _NEAR
                yield Evidence(scenario, holds, text)


def _sizes_beside(numbers: _Numbers) -> Iterator[Evidence]:
    for benchmark in ("sizes-ood", "sizes-id"):
        for scenario in _of_the_paper(benchmark):
            rate, goal = (numbers.variations(benchmark, scenario, row, "fr") for row in (PAPER, RETRAINED))
            right, *others = (numbers.variations(benchmark, scenario, row, "accuracy") for row in (PAPER, *_THEIRS))
            shared = [name for name in rate if all(name in found for found in (goal, right, *others))]
            if len(shared) >= 3:
                gaps = [rate[name] - goal[name] for name in shared]
                leads = [right[name] - max(found[name] for found in others) for name in shared]
                text = f"{len(shared)} sizes: FR at worst {min(gaps):+.3f} beside retraining, accuracy at worst "
                text += f"{100 * min(leads):+.1f} points beside the best of SMU, SISA and SISA-DP"
                yield Evidence(scenario, min(gaps) >= -_NEAR and min(leads) > 0, text)


def _shards(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in _of_the_paper("sisa-shards"):
        own = numbers.get("sisa-shards", scenario, PAPER, "fr")
        for row in ("sisa", "sisa-dp"):
            rate, lost = (
                _counted(numbers.variations("sisa-shards", scenario, row, name)) for name in ("fr", "accuracy_loss")
            )
            if own is not None and {SHARDS[0], SHARDS[-1]} <= rate.keys() & lost.keys():
                first, last = SHARDS[0], SHARDS[-1]
                text = (
                    f"{row}, {first} to {last} shards: FR {min(rate.values()):.3f} to {max(rate.values()):.3f} beside "
                )
                text += f"{own:.3f}, points of accuracy lost {100 * lost[first]:.1f} to {100 * lost[last]:.1f}"
                near = all(abs(value - own) <= _MODEST for value in rate.values())
                yield Evidence(scenario, near and lost[last] > lost[first] + _LITTLE, text)


def _linear(benchmark: str, counts: tuple[int, ...]) -> _Check:
    """Return a check that seconds grow as a count does, over the counts that the paper has."""

    def check(numbers: _Numbers) -> Iterator[Evidence]:
        for scenario in _of_the_paper(benchmark):
            found = _counted(numbers.variations(benchmark, scenario, PAPER, "seconds"))
            known = [count for count in counts if found.get(count)]
            if len(known) >= 3:
                low, high = known[0], known[-1]
                times, longer = high / low, found[high] / found[low]
                text = f"{times:.1f} times as many ({low} to {high}) take {longer:.1f} times as long"
                yield Evidence(scenario, 0.5 <= longer / times <= 1.5, text)

    return check


def _independent(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in _of_the_paper("big-dataset"):
        found, again = (
            _counted({name: value for name, value in own.items() if name.startswith("rows=")})
            for own in (
                numbers.variations("big-dataset", scenario, PAPER, column) for column in ("seconds", "retrain_seconds")
            )
        )
        known = [count for count in found if found[count] and again.get(count)]
        if len(known) >= 2:
            low, high = min(known), max(known)
            text = f"{low:,} to {high:,} rows: a request {found[low]:.2f} to {found[high]:.2f} s, retraining "
            text += f"{again[low]:.1f} to {again[high]:.1f} s"
            yield Evidence(scenario, found[high] <= _SAME_TIME * found[low], text)
    large = numbers.get("big-dataset", "tiny-90", PAPER, "seconds")
    small = numbers.get("efficiency", "c10-t", PAPER, "seconds")
    if large and small:
        text = f"a request {large:.2f} s, {small:.2f} s on c10-t"
        yield Evidence("tiny-90", large <= _SAME_TIME * small, text)


def _tens(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in _of_the_paper("iterations"):
        rate = _counted(numbers.variations("iterations", scenario, PAPER, "fr"))
        if len(rate) >= 5 and min(rate) < _TENS <= max(rate):
            best = max(rate.values())
            first = min(count for count, value in rate.items() if value >= best - _NEAR)
            text = f"the best FR is {best:.3f}; {first} iterations reach {rate[first]:.3f}"
            yield Evidence(scenario, first >= _TENS, text)


def _past_the_best(numbers: _Numbers) -> Iterator[Evidence]:
    first, last = ITERATIONS[0], ITERATIONS[-1]
    for scenario in _of_the_paper("iterations"):
        rate, right = (_counted(numbers.variations("iterations", scenario, PAPER, name)) for name in ("fr", "accuracy"))
        if {first, last} <= rate.keys() & right.keys():
            text = f"{first} to {last} iterations: FR {rate[first]:.3f} to {rate[last]:.3f}, accuracy "
            text += f"{right[first]:.3f} to {right[last]:.3f}"
            places = [(PAPER, f"iterations={count}") for count in (first, last)]
            text += numbers.doubt("iterations", scenario, "accuracy", *places)
            holds = abs(rate[last] - rate[first]) <= _NEAR and right[last] < right[first] - _LITTLE
            yield Evidence(scenario, holds, text)


def _penalty(holds: Callable[[Mapping[str, float], Mapping[str, float]], bool]) -> _Check:
    """Return a check of FR and accuracy loss by penalty; where a penalty leaves the model as it was, both are zero."""

    def check(numbers: _Numbers) -> Iterator[Evidence]:
        for scenario in _of_the_paper("penalty"):
            blocked = dict.fromkeys(numbers.unchanged("penalty", scenario, PAPER), 0.0)
            rate, lost = (
                {
                    name.partition("=")[2]: value
                    for name, value in (blocked | numbers.variations("penalty", scenario, PAPER, column)).items()
                }
                for column in ("fr", "accuracy_loss")
            )
            if set(PENALTIES) <= rate.keys() & lost.keys():
                told = [f"λ {name}: FR {rate[name]:.2f}, {100 * lost[name]:.1f} points" for name in PENALTIES]
                told += [f"nothing changed at {', '.join(blocked).replace('penalty=', 'λ ')}"] if blocked else []
                yield Evidence(scenario, holds(rate, lost), "; ".join(told))

    return check


def _weighted_protects(rate: Mapping[str, float], lost: Mapping[str, float]) -> bool:
    return rate["10 w"] >= rate["0"] - _NEAR and lost["10 w"] < lost["0"] - _LITTLE


def _high_blocks(rate: Mapping[str, float], lost: Mapping[str, float]) -> bool:
    return rate["100 w"] < rate["10 w"] - _NEAR and lost["100 w"] < lost["10 w"]


def _both_fall(rate: Mapping[str, float], lost: Mapping[str, float]) -> bool:
    steps = [("0", "0.1"), ("0.1", "1"), ("10 w", "100 w")]
    return all(found[high] <= found[low] + _LITTLE for found in (rate, lost) for low, high in steps)


def _overtraining(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in _of_the_paper("overtraining"):
        rate, known = (
            _counted(numbers.variations("overtraining", scenario, PAPER, name)) for name in ("fr", "memorised")
        )
        stages = sorted(rate.keys() & known.keys())
        if len(stages) >= 2:
            first, last = stages[0], stages[-1]
            text = ", ".join(f"epochs {at}: FR {rate[at]:.3f} of {known[at]:.0f} memorised" for at in stages)
            places = [(PAPER, f"epochs={count}") for count in (first, last)]
            text += numbers.doubt("overtraining", scenario, "fr", *places)
            yield Evidence(scenario, rate[first] < rate[last] - _LITTLE, text)


def _white_box(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in OOD:
        black, white = (numbers.cell("white-box", scenario, PAPER, f"{kind}_box_fr") for kind in ("black", "white"))
        if black is not None and white is not None and black.mean is not None and white.mean is not None:
            text = f"FR {black.mean:.3f} by black box, {white.mean:.3f} by white box"
            goal = numbers.get("white-box", scenario, PAPER, "white_box_fr_retrained")
            text += "" if goal is None else f" (retrained {goal:.3f})"
            yield Evidence(scenario, abs(black.mean - white.mean) <= _NEAR, text + doubt_between(black, white))


def _other_models(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in _of_the_paper("expansion"):
        for model in ("logistic-regression", "svm"):
            rate = numbers.get("expansion", scenario, PAPER, "fr", f"model={model}")
            lost = numbers.get("expansion", scenario, PAPER, "accuracy_loss", f"model={model}")
            if rate is not None and lost is not None:
                text = f"{model}: FR {rate:.3f}, {100 * lost:.1f} points of accuracy lost"
                goal = numbers.get("expansion", scenario, RETRAINED, "fr", f"model={model}")
                text += "" if goal is None else f" (retrained FR {goal:.3f})"
                yield Evidence(scenario, rate >= 0.9 and lost <= 0.07, text)


def _pictures(oracle: str) -> _Check:
    """Return a check of the share of members among neighbours; one half is where no set is nearer."""

    def check(numbers: _Numbers) -> Iterator[Evidence]:
        for scenario in _of_the_paper("visualisation"):
            before, after, aim = (
                numbers.get("visualisation", scenario, PAPER, f"{oracle}member_neighbours_{model}")
                for model in ("before", "after", "retrained")
            )
            if before is not None and after is not None and aim is not None:
                text = f"members among the neighbours: {before:.2f} before, {after:.2f} after, {aim:.2f} retrained"
                yield Evidence(scenario, before > 0.5 > after and after < before - _NEAR, text)

    return check


def _poison_cost(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in _of_the_paper("poison"):
        recall, right = (
            numbers.several("poison", scenario, name, (BEFORE, RETRAINED)) for name in ("recall", "accuracy")
        )
        if recall is not None and right is not None:
            costs = recall[RETRAINED] - recall[BEFORE], right[RETRAINED] - right[BEFORE]
            text = f"{100 * costs[0]:.1f} points of recall, {100 * costs[1]:.1f} of accuracy"
            text += numbers.doubt("poison", scenario, "recall", (BEFORE, ""), (RETRAINED, ""))
            yield Evidence(scenario, costs[0] > _POISON_COST and costs[0] > 2 * costs[1], text)


def _poison(column: str, *, better: bool) -> _Check:
    """Return a check that the correction makes recall or accuracy better, or does not."""

    def check(numbers: _Numbers) -> Iterator[Evidence]:
        for scenario in _of_the_paper("poison"):
            found = numbers.several("poison", scenario, column, (BEFORE, "corrected"))
            if found is not None:
                text = f"{column} {found[BEFORE]:.3f} to {found['corrected']:.3f}"
                goal = numbers.get("poison", scenario, RETRAINED, column)
                text += "" if goal is None else f" (retrained {goal:.3f})"
                text += numbers.doubt("poison", scenario, column, (BEFORE, ""), ("corrected", ""))
                yield Evidence(scenario, (found["corrected"] > found[BEFORE] + _LITTLE) == better, text)

    return check


def _poison_others(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in _of_the_paper("poison"):
        for row in _THEIRS:
            recall, right = (
                numbers.several("poison", scenario, name, (BEFORE, row)) for name in ("recall", "accuracy")
            )
            if recall is not None and right is not None:
                gains = [found[row] - found[BEFORE] for found in (recall, right)]
                text = f"{row}: {100 * gains[0]:+.1f} points of recall, {100 * gains[1]:+.1f} of accuracy"
                yield Evidence(scenario, not (gains[0] > _LITTLE and gains[1] > _LITTLE), text)


def _exposure(numbers: _Numbers) -> Iterator[Evidence]:
    for scenario in BENCHMARKS["exposure"].scenarios:
        for row, name in ((PAPER, "the paper's settings"), ("matched", "our curvature")):
            bits = numbers.several("exposure", scenario, "exposure", (BEFORE, row, RETRAINED))
            rate = numbers.get("exposure", scenario, row, "fr")
            if bits is not None and rate is not None:
                text = (
                    f"{name}: exposure {bits[BEFORE]:.1f} to {bits[row]:.1f} bits at an FR of {rate:.2f}, retrained "
                    f"{bits[RETRAINED]:.1f}"
                )
                yield Evidence(scenario, bits[row] < NEGLIGIBLE < bits[BEFORE], text)


_FR, _ITERATION, _OF_CFR = "Forgetting Rate", "Training Iteration of Generator", "Catastrophic Forgetting Rate"
_CLAIMS: tuple[tuple[str, str, _Check], ...] = (
    (
        "Most strangers are memorised, though they have nothing to do with the task.",
        "Performance Comparison",
        _memorised,
    ),
    ("Most strangers are answered with the labels that they came with.", "Performance Comparison", _learnt),
    ("Strangers hardly cost the target accuracy (3 points at most).", "Performance Comparison", _harmless),
    (
        "The paper's method has an FR near retraining's or above it, on strangers.",
        _FR,
        _near_retraining("fr-ood", OOD),
    ),
    ("The same on samples of the task.", _FR, _near_retraining("fr-id", ID)),
    ("Retraining itself does not reach an FR of 100 %.", _FR, _not_all),
    (
        "Samples of the task are harder to forget than strangers: FR is lower.",
        _FR,
        _inside(("fr-ood", "fr-id"), "fr", (PAPER, RETRAINED), more=False),
    ),
    ("SMU has the lowest FR of all methods.", _FR, _smu_worst),
    ("SISA-DP has a higher FR than SISA, and loses more accuracy.", _FR, _noise),
    (
        "Of all methods but retraining, the paper's loses the least accuracy.",
        "Performance Drops",
        _least_loss,
    ),
    (
        "Its accuracy drops more for samples of the task than for strangers.",
        "Performance Drops",
        _inside(("performance-drop", "performance-drop"), "accuracy_loss", (PAPER,), more=True),
    ),
    ("The paper's method has the lowest CFR (its own table has SISA's lower on I.C.).", _OF_CFR, _cfr(PAPER, min)),
    ("SMU has the highest CFR.", _OF_CFR, _cfr("smu", max)),
    ("A higher CFR goes with a larger loss of accuracy.", _OF_CFR, _cfr_and_accuracy),
    ("It is 68 to 158 times faster than retraining (50 times counts).", "Efficiency", _hundreds),
    ("SISA and SISA-DP take about as long as retraining.", "Efficiency", _sisa_time),
    ("SMU takes longer than the paper's method.", "Efficiency", _smu_time),
    (
        "With more samples to forget, FR and accuracy fall only a little.",
        "Comparison with Different Unlearning Sizes",
        _sizes,
    ),
    (
        "At every size its FR is near retraining's, and its accuracy above SMU's, SISA's and SISA-DP's.",
        "Comparison with Different Unlearning Sizes",
        _sizes_beside,
    ),
    (
        "SISA's and SISA-DP's FR is near the paper's method's, but with more shards they lose more accuracy.",
        "Elaborate Comparison with SISA",
        _shards,
    ),
    ("Its FR is at its best after tens of iterations.", _ITERATION, _tens),
    ("Past the best point, more iterations leave FR as it is and cost accuracy.", _ITERATION, _past_the_best),
    ("Its time grows linearly with the iterations.", _ITERATION, _linear("iterations", ITERATIONS)),
    (
        "Its time grows linearly with the samples to forget.",
        "Efficiency Analysis",
        _linear("running-time", SIZES),
    ),
    ("Its time does not depend on the size of the training set.", "Big Dataset", _independent),
    (
        "The weighted penalty (λ = 10) keeps the FR of no penalty, and loses less accuracy.",
        "Penalty",
        _penalty(_weighted_protects),
    ),
    ("At λ = 100 the penalty blocks the forgetting, and accuracy is kept.", "Penalty", _penalty(_high_blocks)),
    ("FR and the loss of accuracy fall as λ grows, with and without weights.", "Penalty", _penalty(_both_fall)),
    ("A less overtrained model is forgotten a little worse.", "Overtraining", _overtraining),
    (
        "In a picture, the forgotten samples lie among members, and then among test samples.",
        "Visualization",
        _pictures(""),
    ),
    ("A white-box oracle finds about the same FR.", "White-box Membership Oracle", _white_box),
    ("The picture of the white box shows the same.", "White-box Membership Oracle", _pictures("white_box_")),
    (
        "Poisoned labels cost much more recall of their class than accuracy (8.4 points, 1).",
        "Poison Data",
        _poison_cost,
    ),
    ("Correcting poisoned labels brings recall back.", "Poison Data", _poison("recall", better=True)),
    ("Correcting poisoned labels does not improve accuracy.", "Poison Data", _poison("accuracy", better=False)),
    ("SMU, SISA and SISA-DP do not improve the poisoned model.", "Poison Data", _poison_others),
    (
        "As FR rises, the exposure of canaries falls below 10 bits, where extraction does not succeed.",
        "Unintended Memorization Exposure",
        _exposure,
    ),
    ("It works on logistic regression and support vector machines too.", "Expansion to Other Models", _other_models),
)


def findings(tables: Mapping[str, ResultTable]) -> list[Finding]:
    """Check every claim against the tables of all benchmarks."""
    numbers = _Numbers(tables)
    return [Finding(claim, section, tuple(check(numbers))) for claim, section, check in _CLAIMS]
