"""The pages of results say what the saved trials say, and what lies in the repository is made from its files."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from forsaken.bench.benchmarks import BENCHMARKS, Column, Line
from forsaken.bench.tables import Cell, ResultTable, TableLine, all_tables
from forsaken.bench.trials import write
from forsaken.report import results
from forsaken.report.results import as_markdown, cell_text, not_run, write_pages

ROOT = Path(__file__).parents[3]
TRIALS = ROOT / "benchmarks" / "results" / "trials"
ORIGIN = {"gpu": None, "processor": "a <fast> one", "cores": 2, "threads": 1, "versions": {"torch": "2"}}


def saved(folder: Path, name: str, scenario: str, row: str, numbers: dict[str, object]) -> None:
    one = BENCHMARKS[name]
    for line in one.lines_of(scenario):
        if line.row == row:
            trial = one.trial(scenario, line, 0)
            write(trial, folder, {"key": trial.key, "numbers": numbers, "provenance": ORIGIN})


def test_the_pages_of_the_repository_are_made_from_its_files(tmp_path: Path) -> None:
    for path in write_pages(TRIALS, tmp_path):
        assert path.read_text() == (ROOT / "docs" / path.relative_to(tmp_path)).read_text(), "run: forsaken bench pages"


def test_the_same_files_give_the_same_pages(tmp_path: Path) -> None:
    saved(tmp_path / "trials", "fr-ood", "i-c", "paper", {"fr": 0.9})
    first, again = ([path.read_bytes() for path in write_pages(tmp_path / "trials", tmp_path / name)] for name in "ab")
    assert first == again


def test_ours_stand_beside_the_papers(tmp_path: Path) -> None:
    saved(tmp_path, "fr-ood", "i-c", "paper", {"fr": 0.9, "memorised": 150, "confidence": 0.6})
    text, page = (path.read_text() for path in write_pages(tmp_path, tmp_path / "docs"))
    assert "| the paper's settings | 1 | 0.900 [0.985] | 150 [195] | 0.600 |" in text
    assert "<td>0.900 [0.985]</td>" in page
    assert "a &lt;fast&gt; one" in page, "what comes from files is escaped"
    assert "**not tested**" in text
    assert "`c10-t` (needs a GPU)" in text
    assert "`news-15-5` (not yet measured)" in text
    assert "`c10-s` (its data are not here)" in text
    assert "`i-c`, on a CPU: " in text
    assert "(8 of 9 rows are not yet measured)" in text


def test_a_page_asks_no_network_for_anything(tmp_path: Path) -> None:
    *_, page = (path.read_text() for path in write_pages(tmp_path, tmp_path / "docs"))
    assert "default-src &#39;none&#39;" in page
    assert not re.search(r'(src|href)="(?!#)', page)


def test_points_and_curves_are_drawn(tmp_path: Path) -> None:
    points = [[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]]
    counts = {"member": 1, "test": 1, "forgotten": 1}
    saved(
        tmp_path, "visualisation", "i-c", "paper", {"points_before": points, "points_after": points, "counts": counts}
    )
    one = BENCHMARKS["iterations"]
    for at, line in enumerate(line for line in one.lines_of("i-c") if line.row == "paper"):
        trial = one.trial("i-c", line, 0)
        numbers = {"fr": at / 10, "accuracy": 0.9, "seconds": float(at)}
        write(trial, tmp_path, {"key": trial.key, "numbers": numbers, "provenance": ORIGIN})
    *_, page = (path.read_text() for path in write_pages(tmp_path, tmp_path / "docs"))
    for style, name in (("dots kept", "members"), ("dots test", "test samples"), ("fill forget", "forgotten samples")):
        assert len(re.findall(f'<path class="{style}" d="M[0-9]', page)) == 4, "two pictures with a legend each"
        assert page.count(f"</svg> {name}</li>") == 2
    (seconds,) = re.findall(r"<figcaption>seconds by iterations</figcaption>.*?</figure>", page, re.DOTALL)
    assert seconds.count('class="line run0"') == 2, "the line and its mark in the legend"
    assert "</svg> the paper&#39;s settings</li>" in seconds
    assert seconds.count('class="spot line run0"') == 5 + 1, "what the paper prints, and the mark in the legend"
    assert "test accuracy by iterations" not in page, "a line that never moves is not drawn"


def test_every_row_of_a_sweep_has_its_line_in_the_unit_of_its_column(tmp_path: Path) -> None:
    one = BENCHMARKS["sisa-shards"]
    for line in one.lines_of("c10-t"):
        trial = one.trial("c10-t", line, 0, "cuda")
        shards = float(line.variation.partition("=")[2] or 0)
        numbers = {"fr": 0.9, "accuracy_loss": 0.01 * shards, "seconds": 1.0 + shards}
        write(trial, tmp_path, {"key": trial.key, "numbers": numbers, "provenance": ORIGIN | {"gpu": "an H200"}})
    text, page = (path.read_text() for path in write_pages(tmp_path, tmp_path / "docs"))
    (lost,) = re.findall(r"<figcaption>accuracy lost, points by shards</figcaption>.*?</figure>", page, re.DOTALL)
    assert [lost.count(f'class="line run{number}"') for number in range(7)] == [2] * 6 + [0], "one for each row"
    assert "</svg> retrained</li>" in lost
    assert ">10</text>" in lost, "ten points, not 0.1"
    assert "Measured on: an H200" in text


def test_an_axis_starts_at_zero_where_that_hides_nothing() -> None:
    assert results._range([0.2, 0.9]) == (0, 0.9)
    assert results._range([0.8, 0.9]) == (0.79, 0.91)
    assert results._range([-2, 3]) == (-2, 3)


def test_the_course_of_a_request_is_a_table_and_a_picture(tmp_path: Path) -> None:
    curve = [
        {"round": 0, "exposure": 20.0, "fr": None, "test_loss": 1.5},
        {"round": 1, "exposure": 10.0, "fr": 0.5, "test_loss": 1.25},
        {"round": 4, "exposure": 1.0, "fr": 1.0, "test_loss": 1.0},
    ]
    saved(tmp_path, "exposure", "ptb-canaries", "matched", {"exposure": 1.0, "curve": curve})
    saved(tmp_path, "exposure", "ptb-canaries", "retrained", {"exposure": 2.0, "test_loss": 1.25})
    text, page, picture = (path.read_text() for path in write_pages(tmp_path, tmp_path / "docs"))
    assert (tmp_path / "docs" / "images" / "canaries.svg").is_file()
    assert "| 0 | 20.00 |  | 1.5000 |\n| 1 | 10.00 | 0.500 | 1.2500 |\n| 4 | 1.00 | 1.000 | 1.0000 |" in text
    assert picture.strip() in page
    root = ET.fromstring(picture)
    lines, dashed = (root.findall(f"{{http://www.w3.org/2000/svg}}{name}") for name in ("polyline", "line"))
    spots = [[tuple(map(float, spot.split(","))) for spot in each.attrib["points"].split()] for each in lines]
    assert spots[0] == [(50, 40), (97.5, pytest.approx(113.7)), (240, 180)]
    assert spots[1] == [(357.5, 40 + 140), (500, 40)]
    assert [float(each.attrib["y1"]) for each in dashed] == [pytest.approx(172.6), 110]


def test_zero_has_no_sign() -> None:
    assert cell_text(Cell(-0.00001, None, None), Column("loss", "lost", 2, 100)) == "0.00"
    assert cell_text(Cell(None, None, 0.5), Column("fr", "FR")) == "[0.500]"
    assert cell_text(Cell(12345.6, None, None), Column("passes", "passes", 0)) == "12,346"


def test_a_refusal_and_what_was_not_run_are_told(tmp_path: Path) -> None:
    one = BENCHMARKS["membership"]
    cells = tuple(Cell(None) for _ in one.columns)
    line = TableLine("i-c", Line("before"), 0, cells, "it cannot", 3)
    partly = TableLine("digits", Line("before"), 2, cells, "Forsaken(stop='(none)') left every weight as it was", 1)
    table = ResultTable(one, (line, partly))
    assert "- i-c, before: refused on 3 of 3 seeds: it cannot" in as_markdown(table)
    assert "- digits, before: refused on 1 of 3 seeds: left every weight as it was" in as_markdown(table)
    assert not any("`i-c`" in text for text in not_run(table))
    assert all_tables(tmp_path)["membership"].measured == ()
