"""The pages of results: every benchmark as a table, ours beside the paper's, and the paper's findings checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from forsaken._files import make_folder, write_atomically
from forsaken.bench.benchmarks import NOT_AT_HAND, Column, needs_gpu
from forsaken.bench.findings import Finding, findings
from forsaken.bench.rows import RETRAINED, row_named
from forsaken.bench.scenarios.table import SCENARIOS, plan_named
from forsaken.bench.tables import MACHINE, Cell, ResultTable, TableLine, all_tables, is_time
from forsaken.report.figures import LINES, Plot, element, line, line_ticks
from forsaken.report.page import filled

_SIDE = 240
_REPRESENTATION = re.compile(r"^\w+\(.*\) (?=left every weight)")  # of a method, with all its settings
# The kinds of points of a picture, in their order: name in a trial, what people read, style, and the mark's path.
_POINTS = (
    ("member", "members", "dots kept", "M{x:.1f} {y:.1f}h0"),
    ("test", "test samples", "dots test", "M{x:.1f} {y:.1f}h0"),
    ("forgotten", "forgotten samples", "fill forget", "M{x:.1f} {top:.1f}l4 7h-8z"),
)
VERDICTS = (
    "Each is what the paper says, whether or not it is good. A verdict compares means over seeds: confirmed where the "
    "claim holds in every place that it speaks of (a scenario, for some claims a scenario and a row), confirmed where "
    "measured if only some places were, mixed where it holds in some of them. A place is in doubt where the verdict "
    "rests on a single seed, on 95 % intervals that overlap (after allowing for the tolerance of the check) or hold "
    "the bound that they are compared with, on a number that not all seeds have, or on some of the rows alone. A "
    "ruined model, which lost more than half of its accuracy beyond chance, is no evidence. Times are compared on one "
    "machine."
)
_ON = {"cuda": "on a GPU", "cpu": "on a CPU"}


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture, what it shows, and its legend: a small mark and its meaning each."""

    label: str
    legend: tuple[tuple[Markup, str], ...]
    drawn: Markup


def write_pages(folder: Path, docs: Path) -> list[Path]:
    """Write results.md, results.html and the guide's picture of canaries into `docs` from the trials in `folder`.

    The paths are returned; there is no picture where no trial of canaries was measured.
    """
    tables = all_tables(folder)
    checked = findings(tables)
    make_folder(docs)
    written = [
        write_atomically(docs / "results.md", page_markdown(tables, checked).encode()),
        write_atomically(docs / "results.html", page_html(tables, checked).encode()),
    ]
    for picture in _rounds(tables["exposure"].measured):
        make_folder(docs / "images")
        written.append(write_atomically(docs / "images" / "canaries.svg", f"{picture.drawn}\n".encode()))
    return written


def cell_text(cell: Cell, column: Column, n: int | None = None) -> str:
    """Return a cell for people: the mean, its interval, its n if it is not the line's, the paper's value in brackets.

    >>> cell_text(Cell(0.9, (0.88, 0.92), 0.9635), Column("fr", "FR"))
    '0.900 (0.880 to 0.920) [0.964]'
    >>> cell_text(Cell(0.9, n=1), Column("fr", "FR"), n=3)
    '0.900 (n = 1)'
    >>> cell_text(Cell(None, None, None), Column("fr", "FR"))
    ''
    """

    def shown(value: float) -> str:
        text = f"{value * column.scale:,.{column.digits}f}"
        return text.lstrip("-") if float(text.replace(",", "")) == 0 else text

    parts = [] if cell.mean is None else [shown(cell.mean)]
    if cell.interval is not None:
        parts.append(f"({shown(cell.interval[0])} to {shown(cell.interval[1])})")
    if n not in (None, cell.n) and cell.mean is not None:
        parts.append(f"(n = {cell.n})")
    if cell.paper is not None:
        parts.append(f"[{shown(cell.paper)}]")
    return " ".join(parts)


def as_markdown(table: ResultTable) -> str:
    """Return a table as Markdown: a heading, what it is, and one table for each scenario that was measured."""
    one = table.benchmark
    found = [f"## {one.name}", f"{one.title[0].upper()}{one.title[1:]} ({one.source or 'beyond the paper'})."]
    if one.note:
        found.append(one.note)
    for scenario, lines in _by_scenario(table.measured):
        head = ("", "n", *(column.label for column in one.columns))
        rows = [head, ("---",) * len(head), *(_cells(line, one.columns) for line in lines)]
        found.append(f"`{scenario}`, {device_of(table, scenario)}: {_summary(table, scenario)}")
        found.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
        found += _rounds_as_markdown(lines)
    refused = refusals(table)
    if refused:
        found.append("\n".join(f"- {text}" for text in refused))
    missing = not_run(table)
    if missing:
        found.append(f"Not run here: {', '.join(missing)}.")
    return "\n\n".join(found)


def device_of(table: ResultTable, scenario: str) -> str:
    """Return on which device the trials of a scenario were measured that a table shows, and how many it does not."""
    (device,) = {each.device for each in table.measured if each.scenario == scenario}
    hidden = table.not_shown.get(scenario)
    other = _ON["cpu" if device == "cuda" else "cuda"]
    trials = f"{hidden} trial{'' if hidden == 1 else 's'}"
    return f"{_ON[device]} (not shown: {trials} {other})" if hidden else _ON[device]


def times_of(table: ResultTable, scenario: str) -> str:
    """Return where the times of a scenario were measured and how they can be compared; empty for a table without times.

    What else ran on the machine is not known: a run may measure several trials side by side.
    """
    names = [column.name for column in table.benchmark.columns if is_time(column.name)]
    lines = [each for each in table.measured if each.scenario == scenario]
    machines = sorted({run[MACHINE] for each in lines for run in each.runs if any(run.get(name) for name in names)})
    if not machines:
        return ""
    mixed = ", different processors: their seconds cannot be compared" if len(machines) > 1 else ""
    ratio = ", ratios to retraining by processor time" if lines[0].device == "cpu" and "speedup" in names else ""
    return (
        f"Timed on {' and '.join(machines)}{mixed}. Seconds are by the clock{ratio}; other trials may have run beside."
    )


def refusals(table: ResultTable) -> list[str]:
    """Return what each method refused to do, or ruined, and on how many seeds."""
    return [
        f"{each.scenario}, {each.label}: refused on {each.refusals} of {each.n + each.refusals} seeds: "
        f"{_REPRESENTATION.sub('', each.refused)}"
        for each in table.lines
        if each.refused
    ]


def not_run(table: ResultTable) -> list[str]:
    """Return the scenarios of a benchmark without any trial, and why each was not run."""
    seen = {each.scenario for each in table.lines if each.n or each.refused}

    def why(name: str) -> str:
        if NOT_AT_HAND & set(plan_named(name).datasets):
            return "its data are not here"
        return "needs a GPU" if needs_gpu(name) else "not yet measured"

    return [f"`{name}` ({why(name)})" for name in table.benchmark.scenarios if name not in seen]


def _summary(table: ResultTable, scenario: str) -> str:
    """Return what a scenario is, how many of its rows are not yet measured, and where its times come from."""
    every = len(table.benchmark.lines_of(scenario))
    done = sum(each.scenario == scenario and bool(each.n or each.refused) for each in table.lines)
    missing = f" ({every - done} of {every} rows are not yet measured)" if done < every else ""
    times = times_of(table, scenario)
    return f"{SCENARIOS[scenario].summary}{missing}{f'. {times}' if times else ''}"


def page_markdown(tables: Mapping[str, ResultTable], checked: Sequence[Finding]) -> str:
    """Return the page of all results as Markdown."""
    parts = [
        "# Every table and figure, ours beside the paper's",
        "Made by `forsaken bench pages` from the files in `benchmarks/results/trials`, one for each trial, by "
        "`forsaken bench run NAME`. A number is the mean over n seeds (a seed is a split and all trainings), its 95 % "
        "interval by Student's t in round brackets, and the paper's value in square ones. A number that fewer seeds "
        "have says so. *Forsaken with references* is what a user can have: four folds drawn before anybody knows the "
        "request, "
        "[made once](guide/references.md#what-a-request-costs). FR and CFR are the verdicts of one shadow oracle: read "
        "them beside the retrained model's, and see [what attacks say](numbers.md).",
        f"Measured on: {machines(tables)}.",
        "## The paper's findings",
        VERDICTS,
        "\n".join(_finding_rows(checked)),
    ]
    parts += [as_markdown(table) for table in tables.values()]
    return "\n\n".join(parts) + "\n"


def machines(tables: Mapping[str, ResultTable]) -> str:
    """Return the hardware that trials were measured on, each once."""
    found = {machine for table in tables.values() for each in table.lines for machine in each.machines}
    return "; ".join(sorted(found)) or "nothing yet"


def page_html(tables: Mapping[str, ResultTable], checked: Sequence[Finding]) -> str:
    """Return the page of all results as one self-contained HTML text."""
    return filled(
        "results.html",
        tables=[_shown(table) for table in tables.values()],
        findings=checked,
        verdicts=VERDICTS,
        machines=machines(tables),
    )


def _shown(table: ResultTable) -> dict[str, Any]:
    one = table.benchmark
    return {
        "name": one.name,
        "title": f"{one.title[0].upper()}{one.title[1:]}",
        "source": one.source or "beyond the paper",
        "note": one.note,
        "head": [column.label for column in one.columns],
        "parts": [
            {
                "scenario": scenario,
                "summary": _summary(table, scenario),
                "device": device_of(table, scenario),
                "rows": [_cells(line, one.columns) for line in lines],
                "pictures": _PICTURES.get(one.kind, lambda own: _curves(one.columns, own))(lines),
            }
            for scenario, lines in _by_scenario(table.measured)
        ],
        "refused": refusals(table),
        "not_run": [text.replace("`", "") for text in not_run(table)],
    }


def _by_scenario(lines: Sequence[TableLine]) -> list[tuple[str, list[TableLine]]]:
    return [(name, list(own)) for name, own in groupby(lines, key=lambda each: each.scenario)]


def _cells(line_: TableLine, columns: Sequence[Column]) -> tuple[str, ...]:
    return (
        line_.label,
        str(line_.n),
        *(cell_text(cell, column, line_.n) for cell, column in zip(line_.cells, columns, strict=True)),
    )


def _finding_rows(checked: Sequence[Finding]) -> list[str]:
    rows = ["| the paper says | where | verdict | our numbers |", "| --- | --- | --- | --- |"]
    for one in checked:
        told = [f"`{each.scenario}`: {each.told}" for each in one.judged]
        told += [f"{', '.join(f'`{name}`' for name in names)}: {why}" for why, names in one.absent.items()]
        rows.append(f"| {one.claim} | {one.section} | **{one.verdict}** ({one.coverage}) | {'<br>'.join(told)} |")
    return rows


def _pictures(lines: Sequence[TableLine]) -> list[Picture]:
    """Return the planes of t-SNE of the first seed: before, after and retrained, by posteriors and by the white box."""
    legend = tuple((_key("0 0 14 14", kind, mark.format(x=7, y=7, top=3)), name) for _, name, kind, mark in _POINTS)
    found = []
    for each in lines:
        run = each.runs[0]
        for start, name in (("points", "posteriors"), ("white_box_points", "white box")):
            for model in ("before", "after", "retrained"):
                if f"{start}_{model}" in run:
                    label = f"{each.label}: {model} ({name})"
                    found.append(Picture(label, legend, _plane(run[f"{start}_{model}"], run["counts"], label)))
    return found


def _plane(points: Sequence[Sequence[float]], counts: Mapping[str, int], label: str) -> Markup:
    dots, at = [], 0
    for name, _, kind, mark in _POINTS:
        for x, y in points[at : at + counts[name]]:
            right, down = 10 + x * (_SIDE - 20), 10 + y * (_SIDE - 20)
            dots.append(element("path", kind, d=mark.format(x=right, y=down, top=down - 4)))
        at += counts[name]
    return element("svg", "picture", *dots, viewBox=f"0 0 {_SIDE} {_SIDE}", role="img", aria_label=label)


def _key(box: str, kind: str, path: str) -> Markup:
    return element("svg", "key", element("path", kind, d=path), viewBox=box, aria_hidden="true")


def _curves(columns: Sequence[Column], lines: Sequence[TableLine]) -> list[Picture]:
    """Return a picture for each column of a table whose lines vary one number.

    Each row is a line; one that does not vary is level. Circles are what the paper prints.
    """
    varied = [each for each in lines if _varied(each) is not None]
    numbers = sorted({value for each in varied if (value := _varied(each)) is not None})
    if len(numbers) < 3:
        return []
    rows = list(dict.fromkeys(each.line.row for each in (*varied, *lines)))[:LINES]
    labels = {each.line.row: row_named(each.line.row).label for each in lines}
    name, found = varied[0].line.variation.partition("=")[0], []
    for at, column in enumerate(columns):
        ours, theirs = (_points(lines, rows, numbers, at, column.scale, paper=paper) for paper in (False, True))
        heights = [y for own in (*ours.values(), *theirs.values()) for _, y in own]
        if not any(ours.values()) or max(heights) == min(heights):
            continue
        plot = Plot(420, 240, (numbers[0], numbers[-1]), _range(heights))
        parts = [plot.axes(name, column.label, line_ticks(numbers[0], numbers[-1]))]
        legend = []
        for number, row in enumerate(rows):
            if ours[row]:
                parts.append(line([(plot.x(x), plot.y(y)) for x, y in ours[row]], f"run{number}"))
                legend.append((_key("0 0 30 10", f"line run{number}", "M0 5H30"), labels[row]))
            parts += [
                element("circle", f"spot line run{number}", cx=plot.x(x), cy=plot.y(y), r=3.5) for x, y in theirs[row]
            ]
        if any(theirs.values()):
            circle = element("circle", "spot line run0", cx=7.0, cy=7.0, r=3.5)
            key = element("svg", "key", circle, viewBox="0 0 14 14", aria_hidden="true")
            legend.append((key, "the paper's, in the colour of its row"))
        label = f"{column.label} by {name}"
        found.append(Picture(label, tuple(legend), plot.picture(label, parts)))
    return found


def _points(
    lines: Sequence[TableLine], rows: Iterable[str], numbers: Sequence[float], at: int, scale: float, *, paper: bool
) -> dict[str, list[tuple[float, float]]]:
    """Return the points of each row, our means or what the paper prints.

    A row that does not vary is a level line, with a point at either end.
    """
    found: dict[str, list[tuple[float, float]]] = {row: [] for row in rows}
    for each in lines:
        cell, here = each.cells[at], _varied(each)
        value = cell.paper if paper else cell.mean
        level = here is None and not each.line.variation and not paper
        if value is not None and each.line.row in found and (level or here is not None):
            places = (numbers[0], numbers[-1]) if here is None else (here,)
            found[each.line.row] += [(x, value * scale) for x in places]
    return {row: sorted(own) for row, own in found.items()}


def _range(heights: Sequence[float]) -> tuple[float, float]:
    """Return what an axis spans: from zero, unless that would hide how the heights differ.

    >>> _range([0.2, 0.9]), _range([0.8, 0.9])
    ((0.0, 0.9), (0.79, 0.91))
    """
    low, high = min(heights), max(heights)
    if low < high / 2:
        return min(0.0, low), high
    room = (high - low) / 10
    return round(low - room, 9), round(high + room, 9)


def _course(lines: Sequence[TableLine]) -> tuple[TableLine, Sequence[Mapping[str, float]]] | None:
    """Return the line whose first seed has a curve over the rounds of a request, and that curve; None without one."""
    return next(((each, each.runs[0]["curve"]) for each in lines if each.runs and "curve" in each.runs[0]), None)


def _rounds_as_markdown(lines: Sequence[TableLine]) -> list[str]:
    """Return what stands above a table of exposure, FR and test loss after some rounds of a request, and the table."""
    course = _course(lines)
    if course is None:
        return []
    head = ["| round | exposure | FR | test loss |", "| --- | --- | --- | --- |"]
    rows = [
        f"| {each['round']} | {each['exposure']:.2f} | {_rate(each['fr'])} | {each['test_loss']:.4f} |"
        for each in course[1]
    ]
    return [f"{course[0].label}, first seed, round by round:", "\n".join([*head, *rows])]


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _rounds(lines: Sequence[TableLine]) -> list[Picture]:
    """Return the picture of `_rounds_as_markdown`, dashed at the retrained model's level (Fig. language_elimination).

    It also stands alone, in the guide, so that it has its own colours.
    """
    course = _course(lines)
    if course is None:
        return []
    retrained = next((each.runs[0] for each in lines if each.line.row == RETRAINED and each.runs), {})
    label = "Exposure, FR and test loss of canaries, round by round; dashed: retrained"
    panels = []
    for at, (name, title) in enumerate(
        (("exposure", "exposure, bits"), ("fr", "FR"), ("test_loss", "test loss, nats"))
    ):
        points = [(each["round"], each[name]) for each in course[1] if each[name] is not None]
        if points:
            panels.append(_panel(50 + 260 * at, title, points, retrained.get(name)))
    more = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": "0 0 780 220", "role": "img"}
    drawn = element("svg", "", *panels, font_family="sans-serif", font_size=11, aria_label=label, **more)
    return [Picture(label, (), drawn)]


def _panel(left: int, title: str, points: Sequence[tuple[float, float]], level: float | None) -> Markup:
    """Return a line through points with a dashed one at `level`, and the least and largest value beside it."""
    values, last = [value for _, value in points] + ([] if level is None else [level]), points[-1][0]
    low, high = min(values), max(values)

    def y(value: float) -> float:
        return 180 - 140 * (value - low) / ((high - low) or 1)

    spots = [(left + 190 * step / (last or 1), y(value)) for step, value in points]
    blue, grey = "#5c6bc0", "#808080"
    parts = [element("text", "", title, x=left, y=22, font_weight="bold", fill=grey)]
    parts += [
        element("text", "", f"{value:.3g}", x=left - 6, y=y(value) + 4, text_anchor="end", fill=grey)
        for value in (low, high)
    ]
    parts.append(element("text", "", f"round 0 to {last}", x=left + 95, y=205, text_anchor="middle", fill=grey))
    if level is not None:
        ends = {"x1": left, "x2": left + 190, "y1": y(level), "y2": y(level)}
        told = element("title", "", f"retrained: {level:.3g}")
        parts.append(element("line", "", told, stroke=grey, stroke_dasharray="4", **ends))
    path = " ".join(f"{across:.1f},{down:.1f}" for across, down in spots)
    parts.append(element("polyline", "", points=path, fill="none", stroke=blue, stroke_width=2))
    parts += [element("circle", "", cx=across, cy=down, r=3, fill=blue) for across, down in spots]
    return Markup("").join(parts)


_PICTURES = {"picture": _pictures, "exposure": _rounds}


def _varied(each: TableLine) -> float | None:
    """Return the number that a line varies, or None."""
    text = each.line.variation.partition("=")[2]
    try:
        return float(text)
    except ValueError:
        return None
