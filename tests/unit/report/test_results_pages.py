"""The pages of results say what the saved trials say, and what lies in the repository is made from its files."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from forsaken.bench.benchmarks import BENCHMARKS, Column, Line
from forsaken.bench.tables import Cell, ResultTable, TableLine, all_tables, gather
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


def test_only_a_row_without_a_variation_is_a_level_line(tmp_path: Path) -> None:
    one = BENCHMARKS["penalty"]
    heights = {"penalty=0": 0.9, "penalty=0.1": 0.8, "penalty=1": 0.7, "penalty=10 w": 0.2, "penalty=100 w": 0.1}
    for line in one.lines_of("i-c"):
        trial = one.trial("i-c", line, 0)
        numbers = {"fr": heights[line.variation], "accuracy_loss": 0.01, "cfr": 0.1}
        write(trial, tmp_path, {"key": trial.key, "numbers": numbers, "provenance": ORIGIN})
    (lines,) = (lines for _, lines in results._by_scenario(gather(one, tmp_path).measured))
    points = results._points(lines, ["paper"], [0.0, 0.1, 1.0], 0, 1.0, paper=False)
    assert points == {"paper": [(0.0, 0.9), (0.1, 0.8), (1.0, 0.7)]}, "the weighted penalties are no part of the line"
    plain = TableLine("i-c", Line("paper"), 1, (Cell(0.5),))
    assert results._points([plain], ["paper"], [0.0, 1.0], 0, 1.0, paper=False) == {"paper": [(0.0, 0.5), (1.0, 0.5)]}


def test_a_number_that_fewer_seeds_have_says_so(tmp_path: Path) -> None:
    one = BENCHMARKS["poison"]
    line = next(each for each in one.lines_of("poison-10") if each.row == "retrained")
    for seed, restored in enumerate((None, None, 1.0)):
        trial = one.trial("poison-10", line, seed)
        numbers = {"accuracy": 0.7, "recall": 0.6, "restored": restored}
        write(trial, tmp_path, {"key": trial.key, "numbers": numbers, "provenance": ORIGIN})
    text, page = (path.read_text() for path in write_pages(tmp_path, tmp_path / "docs"))
    row = "| retrained | 3 | 0.700 (0.700 to 0.700) | 0.600 (0.600 to 0.600) | 1.00 (n = 1) |"
    assert row in text
    assert "<td>1.00 (n = 1)</td>" in page


def test_a_table_says_which_device_and_processor_it_is_from(tmp_path: Path) -> None:
    one, times = BENCHMARKS["efficiency"], {"seconds": 2.0, "processor_seconds": 1.0, "retrain_processor_seconds": 9.0}
    places = (("paper", 0, "cpu", "one"), ("paper", 1, "cpu", "two"), ("paper", 0, "cuda", "one"))
    for row, seed, device, processor in places:
        trial = one.trial("i-c", next(each for each in one.lines_of("i-c") if each.row == row), seed, device)
        origin = ORIGIN | {"processor": processor, "gpu": "an H200"}
        write(trial, tmp_path, {"key": trial.key, "numbers": times, "provenance": origin})
    told = (
        "Timed on one (2 cores, 1 thread, torch 2) and two (2 cores, 1 thread, torch 2), different processors: their "
        "seconds cannot be compared. Seconds are by the clock, ratios to retraining by processor time; "
    )
    text, page = (path.read_text() for path in write_pages(tmp_path, tmp_path / "docs"))
    for shown in (text, page):
        assert "on a CPU (not shown: 1 trial on a GPU)" in shown
        assert told in shown
    assert results.times_of(gather(BENCHMARKS["cfr"], tmp_path), "i-c") == "", "no column is a time"


def test_a_finding_tells_its_doubts_and_what_was_not_measured(tmp_path: Path) -> None:
    saved(tmp_path, "fr-ood", "i-c", "paper", {"fr": 0.9})
    saved(tmp_path, "fr-ood", "i-c", "retrained", {"fr": 0.9})
    text, page = (path.read_text() for path in write_pages(tmp_path, tmp_path / "docs"))
    assert (
        "**confirmed where measured** (1 of 9 measured, 1 in doubt) | `i-c`: FR 0.900, retrained 0.900; a row" in text
    )
    assert "`c10-s`, `c10-m`, " in text
    assert "i-c: FR 0.900, retrained 0.900; a row with one seed" in page


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
    line = TableLine("i-c", Line("before"), 0, cells, ("it cannot",) * 3)
    partly = TableLine("digits", Line("before"), 2, cells, ("Forsaken(stop='(none)') left every weight as it was",))
    table = ResultTable(one, (line, partly))
    assert "- i-c, before: refused on 3 of 3 seeds: it cannot" in as_markdown(table)
    assert "- digits, before: refused on 1 of 3 seeds: left every weight as it was" in as_markdown(table)
    assert not any("`i-c`" in text for text in not_run(table))
    assert all_tables(tmp_path)["membership"].measured == ()
