"""The paper's findings, one by one, against our numbers: confirmed, not confirmed, mixed, or not tested.

A claim speaks of places: scenarios, and for some claims one row of each. What is said of a place is an `Evidence`: the
comparisons that the claim stands on, and those without which it says nothing there. It is there that every check gets
its verdict, and that a reader is told of doubts: intervals that overlap, single seeds, rows that were left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from scipy import stats

from forsaken.bench.benchmarks import BENCHMARKS, BUILT_IN, ID, METHODS, OOD
from forsaken.bench.exposure import NEGLIGIBLE
from forsaken.bench.paper import ITERATIONS, PENALTIES, SHARDS, SIZES
from forsaken.bench.rows import BEFORE, PAPER, RETRAINED
from forsaken.bench.scenarios.table import plan_named
from forsaken.bench.tables import Cell, ResultTable, TableLine

_NEAR = 0.03  # of FR or accuracy, within which two methods count as equal
_LITTLE = 0.005  # of accuracy or FR: half a point is nothing in the paper's own comparisons
_MODEST = 0.06  # of FR: how far SISA's is from the paper's method in the paper's table of shards
_TENS = 10  # iterations, from which "tens of iterations" begin
_SAME_TIME = 1.25  # times as long, below which a request counts as taking as long as another
_LARGER = 2.0  # times as many training rows, from which a training set is clearly larger
_POISON_COST = 0.02  # of recall, below which a poison did nothing that could be undone
_FORGOTTEN = 0.5  # FR, from which most of what was memorised is forgotten
_EXTRACTED = 0.05  # of the canaries that were found before, below which extraction does not succeed
_NOT_MEASURED, _REFUSED, _RUINED = "not measured", "refused", "ruined"
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


_Key = tuple[str, str, str, str]  # benchmark, scenario, row and variation


class _NotMeasuredError(Exception):
    """A number that a claim needs is missing; the message says which, and why."""


def _of(cell: Cell) -> float:
    if cell.mean is None:
        raise _NotMeasuredError(_NOT_MEASURED)
    return cell.mean


@dataclass(frozen=True, slots=True)
class Above:
    """That one mean lies above another by more than `by`.

    The seeds of two rows share their splits and trainings, so that intervals that overlap do not prove equality.

    >>> Above(Cell(0.9, (0.8, 1.0)), Cell(0.7, (0.6, 0.75))).doubts
    ()
    >>> Above(Cell(0.9, (0.8, 1.0)), Cell(0.7, (0.55, 0.85))).doubts
    ('the intervals overlap',)
    >>> Above(Cell(0.9), Cell(0.7, (0.55, 0.85))).doubts
    ('a row with one seed',)
    """

    high: Cell
    low: Cell
    by: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the means say so."""
        return _of(self.high) - _of(self.low) > self.by

    @property
    def doubts(self) -> tuple[str, ...]:
        """What a reader must know before trusting it."""
        high, low, found = self.high.interval, self.low.interval, []
        if high is None or low is None:
            found.append("a row with one seed")
        elif low[0] + self.by <= high[1] and high[0] <= low[1] + self.by:
            found.append("the intervals overlap")
        found += [
            f"a number that {one.n} of {one.seeds} seeds have" for one in (self.high, self.low) if one.n < one.seeds
        ]
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one scenario says about a finding.

    Attributes
    ----------
    text : str
        The numbers in words; without any steps, why there are none.
    steps : tuple of Above
        Comparisons that all have to hold.
    needs : mapping of str to Above
        Comparisons without which the steps say nothing about the claim, by what is the case where they fail.
    left_out : str
        What the claim speaks of that is not in the comparison.
    only_more : bool
        Whether what is left out could only add steps: one that fails then settles the claim without it.
    """

    scenario: str
    text: str
    steps: tuple[Above, ...] = ()
    needs: Mapping[str, Above] = field(default_factory=dict)
    left_out: str = ""
    only_more: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        """Why the steps say nothing about the claim; empty where they do."""
        return tuple(what for what, step in self.needs.items() if not step.holds)

    @property
    def holds(self) -> bool | None:
        """Whether the claim holds; None for no evidence."""
        return all(step.holds for step in self.steps) if self.steps and not self.missing else None

    @property
    def doubts(self) -> tuple[str, ...]:
        """What leaves the verdict open. One step that fails beyond doubt settles it, whatever the others do."""
        if self.holds is None:
            return ()
        failed = [step for step in self.steps if not step.holds]
        settled = any(not step.doubts for step in failed)
        deciding = [] if settled else failed or self.steps
        found = [doubt for step in (*deciding, *self.needs.values()) for doubt in step.doubts]
        open_to = [] if not self.left_out or (settled and self.only_more) else [self.left_out]
        return tuple(dict.fromkeys((*found, *open_to)))

    @property
    def told(self) -> str:
        """The numbers in words, and what a reader must know of them."""
        absent = [f"{_NOT_MEASURED}: {what}" for what in self.missing]
        more = [self.left_out] if self.holds is not None and self.left_out else []
        return "; ".join(dict.fromkeys((self.text, *absent, *self.doubts, *more)))


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim of the paper, in our words, and what our numbers say.

    Attributes
    ----------
    claim, section : str
        What the paper says, and where.
    evidence : tuple of Evidence
        One for each place that the claim speaks of.
    """

    claim: str
    section: str
    evidence: tuple[Evidence, ...]

    @property
    def judged(self) -> tuple[Evidence, ...]:
        """The evidence for or against the claim."""
        return tuple(one for one in self.evidence if one.holds is not None)

    @property
    def absent(self) -> dict[str, list[str]]:
        """The scenarios without evidence, by the reason."""
        found: dict[str, list[str]] = {}
        for one in self.evidence:
            if one.holds is None:
                found.setdefault(one.told, []).append(one.scenario)
        return {why: list(dict.fromkeys(names)) for why, names in found.items()}

    @property
    def verdict(self) -> str:
        """One of "confirmed", "confirmed where measured", "not confirmed", "mixed" and "not tested"."""
        held = [one.holds for one in self.judged]
        if not held:
            return "not tested"
        if all(held):
            return "confirmed" if len(held) == len(self.evidence) else "confirmed where measured"
        return "mixed" if any(held) else "not confirmed"

    @property
    def coverage(self) -> str:
        """How much of what the claim speaks of was measured, and how much of that is open to doubt."""
        doubtful = sum(bool(one.doubts) for one in self.judged)
        told = f"{len(self.judged)} of {len(self.evidence)} measured"
        return f"{told}, {doubtful} in doubt" if doubtful else told


class _Numbers:
    """Cells by benchmark, scenario, row and variation."""

    def __init__(self, tables: Mapping[str, ResultTable]) -> None:
        self._lines = {
            (name, line.scenario, line.line.row, line.line.variation): line
            for name, table in tables.items()
            for line in table.lines
        }

    def knows(self, scenario: str) -> bool:
        """Return whether anything of a scenario was measured."""
        return any(line.scenario == scenario and (line.n or line.refused) for line in self._lines.values())

    def find(self, benchmark: str, scenario: str, row: str, number: str, variation: str = "") -> Cell | None:
        """Return a number that was measured, or None."""
        line = self._lines.get((benchmark, scenario, row, variation))
        found = None if line is None else line.cell(number)
        return None if found is None or found.mean is None else found

    def cell(self, benchmark: str, scenario: str, row: str, number: str, variation: str = "") -> Cell:
        """Return a number that the claim needs."""
        found = self.find(benchmark, scenario, row, number, variation)
        if found is None:
            raise _NotMeasuredError(_told({variation or row: self._why(benchmark, scenario, row, variation)}))
        return found

    def working(
        self, benchmark: str, scenario: str, number: str, rows: Iterable[str], variation: str = ""
    ) -> tuple[dict[str, Cell], dict[str, str]]:
        """Return the cells of rows by models that still work, and why each of the other rows has none.

        A ruined model answers by chance: its FR, its CFR and its loss of accuracy say nothing about the method that the
        paper speaks of.
        """
        cells, without = {}, {}
        for row in rows:
            found = self.find(benchmark, scenario, row, number, variation)
            if found is None:
                without[row] = self._why(benchmark, scenario, row, variation)
            elif _is_ruined(self._lines[benchmark, scenario, row, variation]):
                without[row] = _RUINED
            else:
                cells[row] = found
        return cells, without

    def all_of(
        self, benchmark: str, scenario: str, number: str, rows: Iterable[str], variation: str = ""
    ) -> dict[str, Cell]:
        """Return the cells of rows that the claim needs, by models that still work."""
        cells, without = self.working(benchmark, scenario, number, rows, variation)
        if without:
            raise _NotMeasuredError(_told(without))
        return cells

    def others(
        self, benchmark: str, scenario: str, number: str, rows: Iterable[str], variation: str = ""
    ) -> tuple[dict[str, Cell], str]:
        """Return the cells of rows that another is compared with, and in words which are left out.

        Each must have been measured, and one must work.
        """
        cells, without = self.working(benchmark, scenario, number, rows, variation)
        if _NOT_MEASURED in without.values() or not cells:
            raise _NotMeasuredError(_told(without))
        return cells, _left_out(without)

    def varied(
        self, benchmark: str, scenario: str, row: str, number: str, *, working: bool = False
    ) -> tuple[dict[str, Cell], dict[str, str]]:
        """Return the cells of the variations of a row, in the order of the table, and why each other has none."""
        cells, without = {}, {}
        for line in BENCHMARKS[benchmark].lines_of(scenario):
            if line.row == row and line.variation:
                found = self.find(benchmark, scenario, row, number, line.variation)
                if found is None:
                    without[line.variation] = self._why(benchmark, scenario, row, line.variation)
                elif working and _is_ruined(self._lines[benchmark, scenario, row, line.variation]):
                    without[line.variation] = _RUINED
                else:
                    cells[line.variation] = found
        return cells, without

    def timed(self, number: str, *keys: _Key) -> tuple[list[Cell], str]:
        """Return times that can be compared: those of one machine. Where there are more, it is named, in words."""
        for benchmark, scenario, row, variation in keys:
            self.cell(benchmark, scenario, row, number, variation)
        lines = [self._lines[key] for key in keys]
        shared = frozenset.intersection(*(line.machines for line in lines))
        if not shared:
            raise _NotMeasuredError(f"{_NOT_MEASURED}: times on one and the same machine")
        best = max(sorted(shared), key=lambda machine: sum(line.cell(number, machine).n for line in lines))
        alone = f" ({best.partition(' (')[0]} alone)" if any(len(line.machines) > 1 for line in lines) else ""
        return [line.cell(number, best) for line in lines], alone

    def nothing(self, benchmark: str, scenario: str, row: str, variation: str = "") -> Cell | None:
        """Return an FR and a loss of accuracy of zero where every seed left the model as it was, and else None."""
        line = self._lines.get((benchmark, scenario, row, variation))
        if line is None or line.n or not line.reasons or not all(_LEFT in why for why in line.reasons):
            return None
        return Cell(0.0, (0.0, 0.0) if line.refusals > 1 else None, n=line.refusals, seeds=line.refusals)

    def _why(self, benchmark: str, scenario: str, row: str, variation: str) -> str:
        line = self._lines.get((benchmark, scenario, row, variation))
        return _REFUSED if line is not None and line.refused and not line.n else _NOT_MEASURED


def _is_ruined(line: TableLine) -> bool:
    """Return whether a model lost more than half of the accuracy that it had beyond chance."""
    before, after, chance = line.cell("accuracy_before"), line.cell("accuracy"), 1 / plan_named(line.scenario).classes
    return before.mean is not None and after.mean is not None and after.mean - chance < (before.mean - chance) / 2


def _told(without: Mapping[str, str]) -> str:
    """Return why numbers are missing, in words.

    >>> _told({"smu": "not measured", "sisa": "not measured", "sisa-dp": "ruined"})
    'not measured: smu, sisa; ruined: sisa-dp'
    """
    reasons = dict.fromkeys(without.values())
    return "; ".join(f"{why}: {', '.join(name for name in without if without[name] == why)}" for why in reasons)


def _count(variation: str) -> int:
    """Return the number that a variation names.

    >>> _count("forget=50")
    50
    """
    return int(variation.partition("=")[2])


def _left_out(without: Mapping[str, str]) -> str:
    return f"left out ({_told(without)})" if without else ""


def _exactly(value: float) -> Cell:
    """Return a bound, with which a cell is compared."""
    return Cell(value, (value, value))


def _times(cell: Cell, factor: float) -> Cell:
    interval = None if cell.interval is None else (factor * cell.interval[0], factor * cell.interval[1])
    return Cell(factor * _of(cell), interval, n=cell.n, seeds=cell.seeds)


def _near(first: Cell, second: Cell, within: float = _NEAR) -> tuple[Above, Above]:
    return Above(first, second, -within), Above(second, first, -within)


def _forgot(rate: Cell) -> dict[str, Above]:
    return {"too little was forgotten": Above(rate, _exactly(_FORGOTTEN))}


def _of_the_paper(benchmark: str) -> tuple[str, ...]:
    """Return the scenarios of a benchmark without those of the built-in digits, of which the paper says nothing."""
    return tuple(name for name in BENCHMARKS[benchmark].scenarios if name not in _NOT_OF_THE_PAPER)


def _rows(cells: Mapping[str, Cell], digits: int = 3, scale: float = 1.0) -> str:
    return ", ".join(f"{row} {scale * _of(cell):.{digits}f}" for row, cell in cells.items())


Place = tuple[str, ...]
_Judge = Callable[..., Evidence]


def _memorised(numbers: _Numbers, scenario: str) -> Evidence:
    count, size = numbers.cell("networks", scenario, BEFORE, "memorised"), plan_named(scenario).sizes.forget
    rate = numbers.find("fr-ood", scenario, RETRAINED, "fr")
    text = f"{_of(count):.0f} of {size} strangers look memorised"
    text += "" if rate is None else f"; {100 * (1 - _of(rate)):.0f} % as many do after retraining"
    return Evidence(scenario, text, (Above(count, _exactly(size / 2)),))


def _learnt(numbers: _Numbers, scenario: str) -> Evidence:
    count, size = numbers.cell("networks", scenario, BEFORE, "learnt"), plan_named(scenario).sizes.forget
    text = f"{_of(count):.0f} of {size} get the labels that they came with"
    return Evidence(scenario, text, (Above(count, _exactly(size / 2)),))


def _harmless(numbers: _Numbers, scenario: str) -> Evidence:
    before, without = (numbers.cell("networks", scenario, row, "test_accuracy") for row in (BEFORE, RETRAINED))
    learnt = numbers.cell("networks", scenario, BEFORE, "learnt")
    text = f"test accuracy {_of(before):.3f} with strangers, {_of(without):.3f} without"
    needs = {"strangers were not learnt": Above(learnt, _exactly(plan_named(scenario).sizes.forget / 2))}
    return Evidence(scenario, text, (Above(before, without, -_NEAR),), needs)


def _near_retraining(numbers: _Numbers, scenario: str, benchmark: str) -> Evidence:
    nothing = numbers.nothing(benchmark, scenario, PAPER)
    if nothing is not None:
        return Evidence(scenario, f"the paper's settings {_LEFT}", (Above(nothing, _exactly(_LITTLE)),))
    found = numbers.all_of(benchmark, scenario, "fr", (PAPER, RETRAINED))
    own, goal = found[PAPER], found[RETRAINED]
    text = f"FR {_of(own):.3f}, retrained {_of(goal):.3f}"
    text += " (forgotten further than by retraining)" if _of(own) > _of(goal) + _NEAR else ""
    return Evidence(scenario, text, (Above(own, goal, -_NEAR), Above(own, _exactly(_LITTLE))))


def _not_all(numbers: _Numbers, scenario: str, benchmark: str) -> Evidence:
    rate = numbers.cell(benchmark, scenario, RETRAINED, "fr")
    return Evidence(scenario, f"retrained FR {_of(rate):.3f}", (Above(_exactly(1 - _LITTLE), rate),))


def _lower_rate_inside(numbers: _Numbers, inside: str, outside: str, row: str) -> Evidence:
    own = numbers.all_of("fr-id", inside, "fr", (row,))[row]
    strangers = numbers.all_of("fr-ood", outside, "fr", (row,))[row]
    text = f"{row}: FR {_of(own):.3f} for samples of the task, {_of(strangers):.3f} for strangers"
    return Evidence(inside, text, (Above(strangers, own),))


def _more_lost_inside(numbers: _Numbers, inside: str, outside: str, row: str) -> Evidence:
    own, strangers = (numbers.cell("performance-drop", name, row, "accuracy_loss") for name in (inside, outside))
    text = f"{row}: points {100 * _of(own):.1f} for samples of the task, {100 * _of(strangers):.1f} for strangers"
    return Evidence(inside, text, (Above(own, strangers),))


def _extreme(number: str, label: str, row: str, rows: tuple[str, ...], *, lowest: bool) -> _Judge:
    """Return a check that a row has the lowest number, or the highest, of those whose models still work."""

    def judge(numbers: _Numbers, scenario: str, benchmark: str) -> Evidence:
        own = numbers.all_of(benchmark, scenario, number, (row,))
        others, left_out = numbers.others(benchmark, scenario, number, [one for one in rows if one != row])
        steps = tuple(Above(other, own[row]) if lowest else Above(own[row], other) for other in others.values())
        found = {name: (own | others)[name] for name in rows if name in own | others}
        return Evidence(scenario, f"{label}: {_rows(found)}", steps, left_out=left_out, only_more=True)

    return judge


def _noise(numbers: _Numbers, scenario: str, benchmark: str) -> Evidence:
    rows = ("sisa", "sisa-dp")
    rate = numbers.all_of(benchmark, scenario, "fr", rows)
    lost = numbers.all_of("performance-drop", scenario, "accuracy_loss", rows)
    text = f"FR: {_rows(rate)}; points of accuracy lost: {_rows(lost, 1, 100)}"
    return Evidence(scenario, text, tuple(Above(found["sisa-dp"], found["sisa"]) for found in (rate, lost)))


def _least_loss(numbers: _Numbers, scenario: str) -> Evidence:
    own = numbers.cell("performance-drop", scenario, PAPER, "accuracy_loss")
    others, left_out = numbers.others("performance-drop", scenario, "accuracy_loss", _THEIRS)
    text = f"points of accuracy lost: {_rows({PAPER: own} | others, 1, 100)}"
    steps = tuple(Above(other, own) for other in others.values())
    return Evidence(scenario, text, steps, left_out=left_out, only_more=True)


def _cfr_and_accuracy(numbers: _Numbers, scenario: str) -> Evidence:
    rates, without = numbers.working("cfr", scenario, "cfr", METHODS)
    lost = {row: numbers.cell("performance-drop", scenario, row, "accuracy_loss") for row in rates}
    pairs = [(_of(rates[row]), _of(lost[row])) for row in rates]
    if len(pairs) < 5:
        raise _NotMeasuredError(_told(without))
    found = stats.spearmanr(*zip(*pairs, strict=True))
    rank = float(found.statistic)
    if np.isnan(rank):
        raise _NotMeasuredError(f"{_NOT_MEASURED}: all rows are alike")
    half = 1.96 * np.sqrt(1.06 / (len(pairs) - 3))  # Fieller's variance of the rank correlation's arctanh
    middle = np.arctanh(np.clip(rank, -1 + 1e-9, 1 - 1e-9))
    seeds = min(cell.n for cell in (*rates.values(), *lost.values()))
    interval = None if seeds < 2 else (float(np.tanh(middle - half)), float(np.tanh(middle + half)))
    text = f"rank correlation {rank:.2f} over {len(pairs)} rows, ours among them (p = {found.pvalue:.3f})"
    step = Above(Cell(rank, interval), _exactly(0.5))
    return Evidence(scenario, text, (step,), left_out=_left_out(without))


def _hundreds(numbers: _Numbers, scenario: str) -> Evidence:
    times = numbers.cell("efficiency", scenario, PAPER, "speedup")
    return Evidence(scenario, f"{_of(times):.1f} times faster than retraining", (Above(times, _exactly(50)),))


def _sisa_time(numbers: _Numbers, scenario: str, row: str) -> Evidence:
    # Noise that ruins a model does not change how long its training takes.
    times = numbers.cell("efficiency", scenario, row, "speedup")
    text = f"{row}: {1 / _of(times):.1f} times as long as retraining"
    return Evidence(scenario, text, (Above(times, _exactly(2 / 3)), Above(_exactly(3 / 2), times)))


def _smu_time(numbers: _Numbers, scenario: str) -> Evidence:
    keys = (("efficiency", scenario, row, "") for row in (PAPER, "smu"))
    (own, smu), alone = numbers.timed("compared_seconds", *keys)
    return Evidence(scenario, f"seconds: {_rows({PAPER: own, 'smu': smu}, 2)}{alone}", (Above(smu, own),))


def _sizes(numbers: _Numbers, scenario: str, benchmark: str) -> Evidence:
    few, many = "forget=100", "forget=300"
    rate, right = (
        {name: numbers.cell(benchmark, scenario, PAPER, number, name) for name in (few, many)}
        for number in ("fr", "accuracy")
    )
    text = f"100 to 300 samples: FR {_of(rate[few]):.3f} to {_of(rate[many]):.3f}, "
    text += f"accuracy {_of(right[few]):.3f} to {_of(right[many]):.3f}"
    steps = Above(rate[many], rate[few], -_MODEST), Above(right[many], right[few], -_NEAR)
    return Evidence(scenario, text, steps, _forgot(rate[few]))


def _sizes_beside(numbers: _Numbers, scenario: str, benchmark: str) -> Evidence:
    steps: list[Above] = []
    gaps, leads, without, ruined, failed = [], [], {}, {}, {}
    for name in dict.fromkeys(line.variation for line in BENCHMARKS[benchmark].lines_of(scenario)):
        why = numbers.working(benchmark, scenario, "fr", (PAPER,), name)[1].get(PAPER)
        if why in (_REFUSED, _RUINED):
            failed[name] = why
            steps.append(Above(_exactly(0.0), _exactly(1.0)))
            continue
        try:
            rate = numbers.all_of(benchmark, scenario, "fr", (PAPER, RETRAINED), name)
            right = numbers.cell(benchmark, scenario, PAPER, "accuracy", name)
            others, left_out = numbers.others(benchmark, scenario, "accuracy", _THEIRS, name)
        except _NotMeasuredError as error:
            without[name] = _NOT_MEASURED if _NOT_MEASURED in str(error) else str(error)
            continue
        ruined[left_out] = True
        steps += [Above(rate[PAPER], rate[RETRAINED], -_NEAR), *(Above(right, other) for other in others.values())]
        gaps.append(_of(rate[PAPER]) - _of(rate[RETRAINED]))
        leads.append(_of(right) - max(map(_of, others.values())))
    if len(gaps) < 3 and not failed:
        raise _NotMeasuredError(_told(without))
    told = [f"{PAPER} {_told(failed)}"] if failed else []
    if gaps:
        text = f"{len(gaps)} sizes: FR at worst {min(gaps):+.3f} beside retraining, accuracy at worst "
        told.append(f"{text}{100 * min(leads):+.1f} points beside the best of SMU, SISA and SISA-DP")
    left_out = "; ".join(filter(None, (*ruined, _left_out(without))))
    return Evidence(scenario, "; ".join(told), tuple(steps), left_out=left_out, only_more=True)


def _shards(numbers: _Numbers, scenario: str, row: str) -> Evidence:
    own = numbers.all_of("sisa-shards", scenario, "fr", (PAPER,))[PAPER]
    rate, without = numbers.varied("sisa-shards", scenario, row, "fr", working=True)
    lost, _ = numbers.varied("sisa-shards", scenario, row, "accuracy_loss", working=True)
    first, last = (f"shards={count}" for count in (SHARDS[0], SHARDS[-1]))
    if not {first, last} <= rate.keys() & lost.keys():
        raise _NotMeasuredError(f"{row}, {_told(without)}")
    lowest, highest = (end(map(_of, rate.values())) for end in (min, max))
    text = f"{row}, {SHARDS[0]} to {SHARDS[-1]} shards: FR {lowest:.3f} to {highest:.3f} beside {_of(own):.3f}, points "
    text += f"of accuracy lost {100 * _of(lost[first]):.1f} to {100 * _of(lost[last]):.1f}"
    steps = [step for one in rate.values() for step in _near(one, own, _MODEST)]
    more = Above(lost[last], lost[first], _LITTLE)
    return Evidence(scenario, text, (*steps, more), _forgot(own), _left_out(without), only_more=True)


def _linear(benchmark: str, counts: tuple[int, ...]) -> _Judge:
    """Return a check that seconds grow in proportion to a count, over the counts that the paper has.

    From the least count to the largest they must grow by half to one and a half times what proportion would give.
    """

    def judge(numbers: _Numbers, scenario: str) -> Evidence:
        found, without = numbers.varied(benchmark, scenario, PAPER, "compared_seconds")
        known = [name for name in found if _count(name) in counts]
        if len(known) < 3:
            raise _NotMeasuredError(_told(without))
        keys = ((benchmark, scenario, PAPER, name) for name in (known[0], known[-1]))
        (short, long), alone = numbers.timed("compared_seconds", *keys)
        low, high = _count(known[0]), _count(known[-1])
        more = high / low - 1
        text = f"{high / low:.1f} times as many ({low} to {high}) take {_of(long) / _of(short):.1f} times as long"
        steps = Above(long, _times(short, 1 + 0.5 * more)), Above(_times(short, 1 + 1.5 * more), long)
        missing = {name: why for name, why in without.items() if _count(name) in counts}
        return Evidence(scenario, text + alone, steps, left_out=_left_out(missing))

    return judge


def _independent(numbers: _Numbers, scenario: str, other: str = "") -> Evidence:
    """Compare a request with one on a clearly larger training set, which takes clearly longer to retrain on."""
    keys: list[_Key] = [("efficiency", other, PAPER, ""), ("big-dataset", scenario, PAPER, "")]
    if not other:
        found, without = numbers.varied("big-dataset", scenario, PAPER, "compared_seconds")
        if len(found) < 2:
            raise _NotMeasuredError(_told(without))
        keys = [("big-dataset", scenario, PAPER, end(found, key=_count)) for end in (min, max)]
    few, many = (numbers.cell(*key[:3], "training_rows", key[3]) for key in keys)
    (least, most), alone = numbers.timed("compared_seconds", *keys)
    (before, after), _ = numbers.timed("retrain_compared_seconds", *keys)
    text = f"{_of(few):,.0f} rows{f' ({other})' if other else ''} and {_of(many):,.0f}: a request {_of(least):.2f} s "
    text += f"and {_of(most):.2f} s, retraining {_of(before):.1f} s and {_of(after):.1f} s{alone}"
    needs = {
        f"{_of(many):,.0f} training rows are not clearly more than {_of(few):,.0f}": Above(many, _times(few, _LARGER)),
        "retraining does not take longer on the larger set": Above(after, before),
    }
    return Evidence(scenario, text, (Above(_times(least, _SAME_TIME), most),), needs)


def _tens(numbers: _Numbers, scenario: str) -> Evidence:
    rate, without = numbers.varied("iterations", scenario, PAPER, "fr")
    early = [name for name in rate if _count(name) < _TENS]
    if len(rate) < 5 or not 0 < len(early) < len(rate):
        raise _NotMeasuredError(_told(without))
    best = max(rate.values(), key=_of)
    first = min((name for name in rate if _of(rate[name]) >= _of(best) - _NEAR), key=_count)
    text = f"the best FR is {_of(best):.3f}; {_count(first)} iterations reach {_of(rate[first]):.3f}"
    steps = tuple(Above(best, rate[name], _NEAR) for name in early)
    return Evidence(scenario, text, steps, _forgot(best), _left_out(without))


def _past_the_best(numbers: _Numbers, scenario: str) -> Evidence:
    first, last = (f"iterations={count}" for count in (ITERATIONS[0], ITERATIONS[-1]))
    rate, right = (
        {name: numbers.cell("iterations", scenario, PAPER, number, name) for name in (first, last)}
        for number in ("fr", "accuracy")
    )
    text = f"{ITERATIONS[0]} to {ITERATIONS[-1]} iterations: FR {_of(rate[first]):.3f} to {_of(rate[last]):.3f}, "
    text += f"accuracy {_of(right[first]):.3f} to {_of(right[last]):.3f}"
    steps = (*_near(rate[first], rate[last]), Above(right[first], right[last], _LITTLE))
    return Evidence(scenario, text, steps, _forgot(rate[first]))


_ByPenalty = Mapping[str, Cell]


def _penalty(steps: Callable[[_ByPenalty, _ByPenalty], tuple[Above, ...]], *forgotten: str) -> _Judge:
    """Return a check of FR and accuracy loss by penalty, which needs that the model forgot at some of the penalties."""

    def judge(numbers: _Numbers, scenario: str) -> Evidence:
        blocked = {
            name: nothing
            for name in PENALTIES
            if (nothing := numbers.nothing("penalty", scenario, PAPER, f"penalty={name}")) is not None
        }
        rate, lost = (
            {
                name: blocked.get(name) or numbers.cell("penalty", scenario, PAPER, number, f"penalty={name}")
                for name in PENALTIES
            }
            for number in ("fr", "accuracy_loss")
        )
        told = [f"λ {name}: FR {_of(rate[name]):.2f}, {100 * _of(lost[name]):.1f} points" for name in PENALTIES]
        told += [f"nothing changed at λ {', λ '.join(blocked)}"] if blocked else []
        needs = {f"too little was forgotten at λ {name}": Above(rate[name], _exactly(_FORGOTTEN)) for name in forgotten}
        return Evidence(scenario, "; ".join(told), steps(rate, lost), needs)

    return judge


def _weighted_protects(rate: _ByPenalty, lost: _ByPenalty) -> tuple[Above, ...]:
    return Above(rate["10 w"], rate["0"], -_NEAR), Above(lost["0"], lost["10 w"], _LITTLE)


def _high_blocks(rate: _ByPenalty, lost: _ByPenalty) -> tuple[Above, ...]:
    return Above(rate["10 w"], rate["100 w"], _NEAR), Above(lost["10 w"], lost["100 w"])


def _both_fall(rate: _ByPenalty, lost: _ByPenalty) -> tuple[Above, ...]:
    """Both fall from the least to the largest λ, with and without weights, and do not rise on the way."""
    fall = [
        Above(found[low], found[high], least)
        for found, least in ((rate, _NEAR), (lost, _LITTLE))
        for low, high in (("0", "1"), ("10 w", "100 w"))
    ]
    way = [
        Above(found[low], found[high], -_LITTLE) for found in (rate, lost) for low, high in pairwise(("0", "0.1", "1"))
    ]
    return (*fall, *way)


def _overtraining(numbers: _Numbers, scenario: str) -> Evidence:
    rate, without = numbers.varied("overtraining", scenario, PAPER, "fr")
    known, _ = numbers.varied("overtraining", scenario, PAPER, "memorised")
    stages = sorted(rate.keys() & known.keys(), key=_count)
    if len(stages) < 2:
        raise _NotMeasuredError(_told(without))
    told = [f"epochs {_count(at)}: FR {_of(rate[at]):.3f} of {_of(known[at]):.0f} memorised" for at in stages]
    most, least = rate[stages[-1]], rate[stages[0]]
    steps = Above(most, least, _LITTLE), Above(least, most, -_MODEST)
    return Evidence(scenario, ", ".join(told), steps, left_out=_left_out(without))


def _white_box(numbers: _Numbers, scenario: str) -> Evidence:
    black, white = (numbers.cell("white-box", scenario, PAPER, f"{kind}_box_fr") for kind in ("black", "white"))
    text = f"FR {_of(black):.3f} by black box, {_of(white):.3f} by white box"
    goal = numbers.find("white-box", scenario, PAPER, "white_box_fr_retrained")
    text += "" if goal is None else f" (retrained {_of(goal):.3f})"
    return Evidence(scenario, text, _near(black, white), _forgot(black))


def _other_models(numbers: _Numbers, scenario: str, model: str) -> Evidence:
    variation = f"model={model}"
    rate, lost = (numbers.cell("expansion", scenario, PAPER, number, variation) for number in ("fr", "accuracy_loss"))
    text = f"{model}: FR {_of(rate):.3f}, {100 * _of(lost):.1f} points of accuracy lost"
    goal = numbers.find("expansion", scenario, RETRAINED, "fr", variation)
    text += "" if goal is None else f" (retrained FR {_of(goal):.3f})"
    return Evidence(scenario, text, (Above(rate, _exactly(0.9)), Above(_exactly(0.07), lost)))


def _pictures(oracle: str) -> _Judge:
    """Return a check of the share of members among neighbours; one half is where no set is nearer."""

    def judge(numbers: _Numbers, scenario: str) -> Evidence:
        before, after, aim = (
            numbers.cell("visualisation", scenario, PAPER, f"{oracle}member_neighbours_{model}")
            for model in ("before", "after", "retrained")
        )
        text = f"members among the neighbours: {_of(before):.2f} before, {_of(after):.2f} after, "
        half = _exactly(0.5)
        steps = Above(before, half), Above(half, after), Above(before, after, _NEAR)
        return Evidence(scenario, f"{text}{_of(aim):.2f} retrained", steps)

    return judge


def _poison_cost(numbers: _Numbers, scenario: str) -> Evidence:
    recall, right = (
        {row: numbers.cell("poison", scenario, row, number) for row in (BEFORE, RETRAINED)}
        for number in ("recall", "accuracy")
    )
    costs = [_of(found[RETRAINED]) - _of(found[BEFORE]) for found in (recall, right)]
    text = f"{100 * costs[0]:.1f} points of recall, {100 * costs[1]:.1f} of accuracy"
    least = max(_POISON_COST, 2 * costs[1])
    return Evidence(scenario, text, (Above(recall[RETRAINED], recall[BEFORE], least),))


def _poison(column: str, *, better: bool) -> _Judge:
    """Return a check that a correction of the labels makes recall or accuracy better, or does not."""

    def judge(numbers: _Numbers, scenario: str, row: str) -> Evidence:
        before, goal = (numbers.cell("poison", scenario, name, column) for name in (BEFORE, RETRAINED))
        after = numbers.all_of("poison", scenario, column, (row,))[row]
        text = f"{row}: {column} {_of(before):.3f} to {_of(after):.3f} (retrained {_of(goal):.3f})"
        if better:
            needs = {"the poison cost no recall that could come back": Above(goal, before, _POISON_COST)}
            return Evidence(scenario, text, (Above(after, before, _LITTLE),), needs)
        own, start = (numbers.cell("poison", scenario, name, "put_right") for name in (row, BEFORE))
        return Evidence(
            scenario, text, (Above(before, after, -_LITTLE),), {"no label was put right": Above(own, start)}
        )

    return judge


def _poison_others(numbers: _Numbers, scenario: str, row: str) -> Evidence:
    steps, gains = [], []
    for column in ("recall", "accuracy"):
        before = numbers.cell("poison", scenario, row, f"{column}_before")  # of the poisoned model that it starts from
        after = numbers.all_of("poison", scenario, column, (row,))[row]
        gains.append(_of(after) - _of(before))
        steps.append(Above(before, after, -_LITTLE))
    text = f"{row}: {100 * gains[0]:+.1f} points of recall, {100 * gains[1]:+.1f} of accuracy"
    least = steps[int(np.argmin(gains))]  # an improvement is one of both, so the lesser of the two decides
    return Evidence(scenario, text, (least,))


def _exposure(numbers: _Numbers, scenario: str, row: str) -> Evidence:
    rate = numbers.cell("exposure", scenario, row, "fr")
    (before, after, goal), (found, left, _) = (
        [numbers.cell("exposure", scenario, name, number) for name in (BEFORE, row, RETRAINED)]
        for number in ("exposure", "beam_found")
    )
    text = f"{row}: exposure {_of(before):.1f} to {_of(after):.1f} bits at an FR of {_of(rate):.2f}, retrained "
    text += f"{_of(goal):.1f}; a beam finds {_of(found):.0f} canaries and {_of(left):.0f}"
    least = _exactly(NEGLIGIBLE)
    steps = (*_forgot(rate).values(), Above(least, after), Above(_times(found, _EXTRACTED), left))
    needs = {
        "canaries were not exposed": Above(before, least),
        "extraction found no canary": Above(found, _exactly(0)),
    }
    return Evidence(scenario, text, steps, needs)


@dataclass(frozen=True, slots=True)
class _Claim:
    """What the paper says, where, and how it is checked.

    Attributes
    ----------
    places : tuple of Place
        What it speaks of: a scenario and the judge's other arguments.
    ours : str
        A row of ours in place of the paper's method, the last argument: told beside it, and without a vote.
    """

    text: str
    section: str
    judge: _Judge
    places: tuple[Place, ...]
    ours: str = ""


def _places(scenarios: Iterable[str], *more: str) -> tuple[Place, ...]:
    if not more:
        return tuple((scenario,) for scenario in scenarios)
    return tuple((scenario, one) for scenario in scenarios for one in more)


_RATES = (*_places(OOD, "fr-ood"), *_places(ID, "fr-id"))
_SIZED = tuple(place for name in ("sizes-ood", "sizes-id") for place in _places(_of_the_paper(name), name))
_INSIDE = tuple((inside, outside) for outside, inside in _PAIRS)
_BIG = BENCHMARKS["big-dataset"]
_GROWN = tuple(name for name in _of_the_paper("big-dataset") if any(line.variation for line in _BIG.lines_of(name)))
_FR, _ITERATION, _OF_CFR = "Forgetting Rate", "Training Iteration of Generator", "Catastrophic Forgetting Rate"
_BY_SIZE, _WHITE = "Comparison with Different Unlearning Sizes", "White-box Membership Oracle"
_CLAIMS: tuple[_Claim, ...] = (
    _Claim(
        "Most strangers are memorised, though they have nothing to do with the task.",
        "Performance Comparison",
        _memorised,
        _places(OOD),
    ),
    _Claim(
        "Most strangers are answered with the labels that they came with.",
        "Performance Comparison",
        _learnt,
        _places(OOD),
    ),
    _Claim(
        "Strangers hardly cost the target accuracy (3 points at most).",
        "Performance Comparison",
        _harmless,
        _places(OOD),
    ),
    _Claim(
        "The paper's method has an FR near retraining's or above it, on strangers.",
        _FR,
        _near_retraining,
        _places(OOD, "fr-ood"),
    ),
    _Claim("The same on samples of the task.", _FR, _near_retraining, _places(ID, "fr-id")),
    _Claim("Retraining itself does not reach an FR of 100 %.", _FR, _not_all, _RATES),
    _Claim(
        "Samples of the task are harder to forget than strangers: FR is lower.",
        _FR,
        _lower_rate_inside,
        tuple((*pair, row) for pair in _INSIDE for row in (PAPER, RETRAINED)),
    ),
    _Claim(
        "SMU has the lowest FR of all methods.",
        _FR,
        _extreme("fr", "FR", "smu", (PAPER, *_THEIRS, RETRAINED), lowest=True),
        _RATES,
    ),
    _Claim("SISA-DP has a higher FR than SISA, and loses more accuracy.", _FR, _noise, _RATES),
    _Claim(
        "Of all methods but retraining, the paper's loses the least accuracy.",
        "Performance Drops",
        _least_loss,
        _places((*OOD, *ID)),
    ),
    _Claim(
        "Its accuracy drops more for samples of the task than for strangers.",
        "Performance Drops",
        _more_lost_inside,
        tuple((*pair, PAPER) for pair in _INSIDE),
    ),
    _Claim(
        "The paper's method has the lowest CFR (its own table has SISA's lower on I.C.).",
        _OF_CFR,
        _extreme("cfr", "CFR", PAPER, (PAPER, *_THEIRS), lowest=True),
        _places(OOD, "cfr"),
    ),
    _Claim(
        "SMU has the highest CFR.",
        _OF_CFR,
        _extreme("cfr", "CFR", "smu", (PAPER, *_THEIRS), lowest=False),
        _places(OOD, "cfr"),
    ),
    _Claim("A higher CFR goes with a larger loss of accuracy.", _OF_CFR, _cfr_and_accuracy, _places(OOD)),
    _Claim("It is 68 to 158 times faster than retraining (50 times counts).", "Efficiency", _hundreds, _places(OOD)),
    _Claim(
        "SISA and SISA-DP take about as long as retraining.",
        "Efficiency",
        _sisa_time,
        _places(OOD, "sisa", "sisa-dp"),
    ),
    _Claim("SMU takes longer than the paper's method.", "Efficiency", _smu_time, _places(OOD)),
    _Claim("With more samples to forget, FR and accuracy fall only a little.", _BY_SIZE, _sizes, _SIZED),
    _Claim(
        "At every size its FR is near retraining's, and its accuracy above SMU's, SISA's and SISA-DP's.",
        _BY_SIZE,
        _sizes_beside,
        _SIZED,
    ),
    _Claim(
        "SISA's and SISA-DP's FR is near the paper's method's, but with more shards they lose more accuracy.",
        "Elaborate Comparison with SISA",
        _shards,
        _places(_of_the_paper("sisa-shards"), "sisa", "sisa-dp"),
    ),
    _Claim("Its FR is at its best after tens of iterations.", _ITERATION, _tens, _places(_of_the_paper("iterations"))),
    _Claim(
        "Past the best point, more iterations leave FR as it is and cost accuracy.",
        _ITERATION,
        _past_the_best,
        _places(_of_the_paper("iterations")),
    ),
    _Claim(
        "Its time grows linearly with the iterations.",
        _ITERATION,
        _linear("iterations", ITERATIONS),
        _places(_of_the_paper("iterations")),
    ),
    _Claim(
        "Its time grows linearly with the samples to forget.",
        "Efficiency Analysis",
        _linear("running-time", SIZES),
        _places(_of_the_paper("running-time")),
    ),
    _Claim(
        "Its time does not depend on the size of the training set.",
        "Big Dataset",
        _independent,
        (*_places(_GROWN), ("tiny-90", "c10-t")),
    ),
    _Claim(
        "The weighted penalty (λ = 10) keeps the FR of no penalty, and loses less accuracy.",
        "Penalty",
        _penalty(_weighted_protects, "0"),
        _places(_of_the_paper("penalty")),
    ),
    _Claim(
        "At λ = 100 the penalty blocks the forgetting, and accuracy is kept.",
        "Penalty",
        _penalty(_high_blocks, "10 w"),
        _places(_of_the_paper("penalty")),
    ),
    _Claim(
        "FR and the loss of accuracy fall as λ grows, with and without weights.",
        "Penalty",
        _penalty(_both_fall, "0", "10 w"),
        _places(_of_the_paper("penalty")),
    ),
    _Claim(
        "A less overtrained model is forgotten a little worse.",
        "Overtraining",
        _overtraining,
        _places(_of_the_paper("overtraining")),
    ),
    _Claim(
        "In a picture, the forgotten samples lie among members, and then among test samples.",
        "Visualization",
        _pictures(""),
        _places(_of_the_paper("visualisation")),
    ),
    _Claim("A white-box oracle finds about the same FR.", _WHITE, _white_box, _places(OOD)),
    _Claim(
        "The picture of the white box shows the same.",
        _WHITE,
        _pictures("white_box_"),
        _places(_of_the_paper("visualisation")),
    ),
    _Claim(
        "Poisoned labels cost much more recall of their class than accuracy (8.4 points, 1).",
        "Poison Data",
        _poison_cost,
        _places(_of_the_paper("poison")),
    ),
    _Claim(
        "Correcting poisoned labels brings recall back.",
        "Poison Data",
        _poison("recall", better=True),
        _places(_of_the_paper("poison"), "corrected-paper"),
        "corrected",
    ),
    _Claim(
        "Correcting poisoned labels does not improve accuracy.",
        "Poison Data",
        _poison("accuracy", better=False),
        _places(_of_the_paper("poison"), "corrected-paper"),
        "corrected",
    ),
    _Claim(
        "SMU, SISA and SISA-DP do not improve the poisoned model.",
        "Poison Data",
        _poison_others,
        _places(_of_the_paper("poison"), *_THEIRS),
    ),
    _Claim(
        "As FR rises, the exposure of canaries falls below 10 bits, where extraction does not succeed.",
        "Unintended Memorization Exposure",
        _exposure,
        _places(BENCHMARKS["exposure"].scenarios, PAPER),
        "matched",
    ),
    _Claim(
        "It works on logistic regression and support vector machines too.",
        "Expansion to Other Models",
        _other_models,
        _places(_of_the_paper("expansion"), "logistic-regression", "svm"),
    ),
)


def findings(tables: Mapping[str, ResultTable]) -> list[Finding]:
    """Check every claim against the tables of all benchmarks."""
    numbers = _Numbers(tables)
    return [
        Finding(claim.text, claim.section, tuple(_evidence(claim, numbers, place) for place in claim.places))
        for claim in _CLAIMS
    ]


def _evidence(claim: _Claim, numbers: _Numbers, place: Place) -> Evidence:
    try:
        found = claim.judge(numbers, *place)
    except _NotMeasuredError as error:
        found = Evidence(place[0], str(error) if numbers.knows(place[0]) else _NOT_MEASURED)
    if claim.ours and place[-1] != claim.ours:
        beside = _evidence(claim, numbers, (*place[:-1], claim.ours))
        found = replace(found, text=f"{found.text}; beside it ours, {beside.text}" if beside.steps else found.text)
    return found
