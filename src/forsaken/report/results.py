"""The pages of results: every benchmark as a table, ours beside the paper's, and the paper's findings checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from forsaken._files import make_folder, write_atomically
from forsaken.bench.benchmarks import Column, needs_gpu
from forsaken.bench.findings import Finding, findings
from forsaken.bench.rows import RETRAINED
from forsaken.bench.scenarios.table import SCENARIOS
from forsaken.bench.tables import Cell, ResultTable, TableLine, all_tables
from forsaken.report.figures import Plot, element, line, line_ticks
from forsaken.report.page import filled

_KINDS = ("member", "test", "forgotten")
_SIDE = 240


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
    for _, picture in _rounds(tables["exposure"].measured):
        make_folder(docs / "images")
        written.append(write_atomically(docs / "images" / "canaries.svg", f"{picture}\n".encode()))
    return written


def cell_text(cell: Cell, column: Column) -> str:
    """Return a cell for people: the mean, its interval, and the paper's value in brackets.

    >>> cell_text(Cell(0.9, (0.88, 0.92), 0.9635), Column("fr", "FR"))
    '0.900 (0.880 to 0.920) [0.964]'
    >>> cell_text(Cell(None, None, None), Column("fr", "FR"))
    ''
    """

    def shown(value: float) -> str:
        text = f"{value * column.scale:,.{column.digits}f}"
        return text.lstrip("-") if float(text.replace(",", "")) == 0 else text

    parts = [] if cell.mean is None else [shown(cell.mean)]
    if cell.interval is not None:
        parts.append(f"({shown(cell.interval[0])} to {shown(cell.interval[1])})")
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
        found.append(f"`{scenario}`: {SCENARIOS[scenario].summary}")
        found.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
        found += _rounds_as_markdown(lines)
    refused = [
        f"`{each.scenario}`, {each.label}: {each.refused}" for each in table.lines if each.refused and not each.n
    ]
    if refused:
        found.append("Refused: " + " ".join(refused))
    missing = not_run(table)
    if missing:
        found.append(f"Not run here: {', '.join(missing)}.")
    return "\n\n".join(found)


def not_run(table: ResultTable) -> list[str]:
    """Return the scenarios of a benchmark without any trial, and why each was not run."""
    seen = {each.scenario for each in table.lines if each.n or each.refused}
    why = {True: "needs a GPU", False: "not yet measured"}
    return [f"`{name}` ({why[needs_gpu(name)]})" for name in table.benchmark.scenarios if name not in seen]


def page_markdown(tables: Mapping[str, ResultTable], checked: Sequence[Finding]) -> str:
    """Return the page of all results as Markdown."""
    parts = [
        "# Every table and figure, ours beside the paper's",
        "Made by `forsaken bench pages` from the files in `benchmarks/results/trials`, one for each trial, by "
        "`forsaken bench run NAME`. A number is the mean over n seeds (a seed is a split and all trainings), its 95 % "
        "interval by Student's t in round brackets, and the paper's value in square ones. *Forsaken with references* "
        "is what a user can have: four folds drawn before anybody knows the request, "
        "[made once](guide/references.md#what-a-request-costs). FR and CFR are the verdicts of one shadow oracle: read "
        "them beside the retrained model's, and see [what attacks say](numbers.md).",
        f"Measured on: {machines(tables)}.",
        "## The paper's findings",
        "\n".join(_finding_rows(checked)),
    ]
    parts += [as_markdown(table) for table in tables.values()]
    return "\n\n".join(parts) + "\n"


def machines(tables: Mapping[str, ResultTable]) -> str:
    """Return the hardware that trials were measured on, each once."""
    seen = {
        f"{one['gpu'] or one['processor']} ({one['cores']} cores, {one['threads']} threads, "
        f"torch {one['versions'].get('torch', '?')})"
        for table in tables.values()
        for one in table.provenance
    }
    return "; ".join(sorted(seen)) or "nothing yet"


def page_html(tables: Mapping[str, ResultTable], checked: Sequence[Finding]) -> str:
    """Return the page of all results as one self-contained HTML text."""
    return filled(
        "results.html",
        tables=[_shown(table) for table in tables.values()],
        findings=checked,
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
                "summary": SCENARIOS[scenario].summary,
                "rows": [_cells(line, one.columns) for line in lines],
                "pictures": _PICTURES.get(one.kind, lambda own: _curves(one.columns, own))(lines),
            }
            for scenario, lines in _by_scenario(table.measured)
        ],
        "not_run": [text.replace("`", "") for text in not_run(table)],
    }


def _by_scenario(lines: Sequence[TableLine]) -> list[tuple[str, list[TableLine]]]:
    return [(name, list(own)) for name, own in groupby(lines, key=lambda each: each.scenario)]


def _cells(line_: TableLine, columns: Sequence[Column]) -> tuple[str, ...]:
    return (
        line_.label,
        str(line_.n),
        *(cell_text(cell, column) for cell, column in zip(line_.cells, columns, strict=True)),
    )


def _finding_rows(checked: Sequence[Finding]) -> list[str]:
    rows = ["| the paper says | where | verdict | our numbers |", "| --- | --- | --- | --- |"]
    for one in checked:
        told = "<br>".join(f"`{each.scenario}`: {each.text}" for each in one.evidence)
        rows.append(f"| {one.claim} | {one.section} | **{one.verdict}** | {told} |")
    return rows


def _pictures(lines: Sequence[TableLine]) -> list[tuple[str, Markup]]:
    """Return the planes of t-SNE of the first seed: before, after and retrained, by posteriors and by the white box."""
    found = []
    for each in lines:
        run = each.runs[0]
        for start, name in (("points", "posteriors"), ("white_box_points", "white box")):
            for model in ("before", "after", "retrained"):
                if f"{start}_{model}" in run:
                    label = f"{each.label}: {model} ({name})"
                    found.append((label, _plane(run[f"{start}_{model}"], run["counts"], label)))
    return found


def _plane(points: Sequence[Sequence[float]], counts: Mapping[str, int], label: str) -> Markup:
    ends, dots, at = {}, [], 0
    for kind in _KINDS:
        ends[kind] = (at, at + counts[kind])
        at += counts[kind]
    for number, kind in enumerate(_KINDS):
        first, last = ends[kind]
        dots += [
            element("circle", f"point{number}", cx=10 + x * (_SIDE - 20), cy=10 + y * (_SIDE - 20), r=3)
            for x, y in points[first:last]
        ]
    return element("svg", "picture", *dots, viewBox=f"0 0 {_SIDE} {_SIDE}", role="img", aria_label=label)


def _curves(columns: Sequence[Column], lines: Sequence[TableLine]) -> list[tuple[str, Markup]]:
    """Return a picture for each column of a table whose lines vary one number, a line for each row."""
    varied = [each for each in lines if _varied(each) is not None]
    rows = list(dict.fromkeys(each.line.row for each in varied))[:4]
    numbers = sorted({value for each in varied if (value := _varied(each)) is not None})
    if len(numbers) < 3:
        return []
    found = []
    for at, column in enumerate(columns):
        points = {
            row: [
                (_varied(each) or 0.0, each.cells[at].mean or 0.0)
                for each in varied
                if each.line.row == row and each.cells[at].mean is not None
            ]
            for row in rows
        }
        heights = [y for own in points.values() for _, y in own]
        if not heights or max(heights) == min(heights):
            continue
        name = varied[0].line.variation.partition("=")[0]
        plot = Plot(420, 240, (numbers[0], numbers[-1]), (min(0.0, *heights), max(heights)))
        drawn = [
            line([(plot.x(x), plot.y(y)) for x, y in sorted(own)], f"run{number}")
            for number, own in enumerate(points.values())
        ]
        axes = plot.axes(name, column.label, line_ticks(numbers[0], numbers[-1]))
        legend = ", ".join(f"{_COLOURS[number]}: {row}" for number, row in enumerate(points))
        found.append((f"{column.label} by {name} ({legend})", plot.picture(column.label, [axes, *drawn])))
    return found


_COLOURS = ("solid", "long dashes", "short dashes", "dots")


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


def _rounds(lines: Sequence[TableLine]) -> list[tuple[str, Markup]]:
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
    return [
        (label, element("svg", "", *panels, font_family="sans-serif", font_size=11, aria_label=label, **more)),
    ]


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
