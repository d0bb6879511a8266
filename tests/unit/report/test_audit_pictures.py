"""The audit on the page: panel, table and pictures, against numbers computed here."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import make_audit, make_result, save_run
from sklearn.metrics import roc_curve

from forsaken.report.audit import cost_words, figure, shown
from forsaken.report.audit_figures import klom_picture, margin_picture, reached, roc_picture
from forsaken.report.page import render, render_several, write_report
from forsaken.report.saved import read_run

EVIL = "</script><script>alert(1)</script>\"'><b>"


@pytest.fixture(autouse=True)
def quick_map(monkeypatch) -> None:
    # t-SNE's time is of no interest here
    monkeypatch.setattr("forsaken.report.places._arranged", lambda points: (points[:, :2], True))


def page_of(folder: Path, audit: dict[str, Any] | None) -> str:
    return render(read_run(save_run(folder, make_result(), audit=audit)))


def part(page: str, start: str, end: str) -> str:
    return page[page.index(start) : page.index(end, page.index(start))]


def test_a_run_without_an_audit_shows_none(tmp_path: Path) -> None:
    page = re.sub(r"<(style|script)>.*?</\1>", "", page_of(tmp_path, None), flags=re.DOTALL)
    assert "audit" not in page.lower()


def test_the_panel_comes_first_and_says_it_all(tmp_path: Path) -> None:
    page = page_of(tmp_path, make_audit())
    assert page.index("<h1>") < page.index('id="audit"') < page.index("What was done")
    panel = part(page, '<section id="audit"', "</section>")
    assert '<p class="alarm"><b>Alarm: over-forgetting.</b> 4 of 12 samples' in panel
    assert "Could not be told (no-op): There were no weights" in panel
    assert "<b>Shown:</b> No test here can tell" in panel
    assert "<b>Not shown:</b> What a stronger attack tells." in panel
    assert "16 models are few" in panel
    assert "Profile <b>full</b>" in panel
    assert "Its cost: trains models; models: 48; ensemble: 1 min 15 s; attacks: 0.50 s." in panel


def test_a_quiet_alarm_is_not_loud(tmp_path: Path) -> None:
    panel = part(page_of(tmp_path, make_audit(alarmed=False)), '<section id="audit"', "</section>")
    assert "Alarm:" not in panel
    assert "alarmed" not in panel
    assert "No alarm (over-forgetting): 4 of 12" in panel


@pytest.mark.parametrize(
    ("profile", "there", "absent"),
    [
        ("quick", [], ["audit-roc", "audit-klom", "audit-margins"]),
        ("standard", ["audit-roc"], ["audit-klom", "audit-margins"]),
        ("full", ["audit-roc", "audit-klom", "audit-margins"], []),
    ],
)
def test_each_profile_shows_what_it_has(tmp_path: Path, profile: str, there: list[str], absent: list[str]) -> None:
    page = page_of(tmp_path, make_audit(profile))
    assert ("told from retrained models" in page) == (profile == "full")
    assert all(f'id="{name}"' in page for name in there)
    assert not any(f'id="{name}"' in page for name in absent)
    assert page.count('<tr><th scope="row">U-LiRA, AUC') == (profile == "full")


def test_the_table_holds_every_number_with_all_its_parts(tmp_path: Path) -> None:
    table = part(page_of(tmp_path, make_audit()), 'id="audited"', "</table>")
    rows = {
        re.search(r'"row">([^<]*)', row)[1].strip(): row for row in re.findall(r"<tr><th scope=.row.*?</tr>", table)
    }  # type: ignore[index]
    assert len(rows) == 5
    texts = re.sub(r"<[^>]+>", " ", rows["U-LiRA, AUC"]).split()
    wanted = "U-LiRA, AUC 0.610 0.500 0.580 to 0.640 384 pairs 0.5, less is no better 0.980 0.470 to 0.530 the value "
    assert " ".join(texts) == f"{wanted}lies outside"
    assert "the value lies inside" in rows["RMIA, AUC"]
    assert 'data-v="2000">2,000' in rows["Test accuracy"]
    missing = rows["Collateral forgetting rate (CFR)"]
    assert "nothing to keep" in missing
    assert missing.count('data-v="">') == 5
    assert missing.count("n/a") == 3
    heads = re.findall(r'<th scope="col"[^>]*>([^<]*)', table)
    assert heads == ["number", "value", "retrained", "interval", "n", "good is", "before", "floor"]


def test_an_interval_of_no_width_does_not_look_like_certainty(tmp_path: Path) -> None:
    audit = make_audit()
    audit["numbers"][0] |= {"value": 27, "interval": [27, 27]}
    page = page_of(tmp_path, audit)
    assert "27 to 27" not in page
    assert "no spread" in part(page, 'id="audited"', "</table>")
    assert "every draw gave the same number, which is no sign of certainty" in page


def test_what_could_not_be_told_is_said_once(tmp_path: Path) -> None:
    audit = make_audit(alarmed=False)
    audit["alarms"][1]["told"] = "Not known: it takes a retrained model to tell."
    page = page_of(tmp_path, audit)
    assert "Could not be told (no-op): it takes a retrained model to tell." in page
    assert "Not known" not in page


def test_near_half_is_said_where_the_range_misses() -> None:
    audit = make_audit()
    audit["numbers"][0] |= {"value": 0.52, "floor": [0.49, 0.51]}
    assert shown(audit, range(12)).lines[0].floor.reason == "the value lies outside, but within 0.03 of 0.5"
    audit["numbers"][0] |= {"direction": "lower"}
    assert shown(audit, range(12)).lines[0].floor.reason == "the value lies outside"


def test_numbers_are_never_rounded_to_what_they_are_not() -> None:
    assert [figure(value) for value in (0, 1, 0.99999, 4e-4, -0.25, 37.0, 1e300)] == [
        "0", "1.000", ">0.999", "<0.001", "-0.250", "37", "1e+300",
    ]  # fmt: skip


def test_the_cost_is_told_whatever_its_names() -> None:
    assert cost_words({}) == ""
    assert cost_words({"told": "no training", "seconds": 0}) == "no training"
    told = cost_words(
        {"seconds": 3.0, "unlearning_seconds": 7320, "models": 4, "device": "cpu", "odd": None, "many": 10**400}
    )
    assert (
        told == "in all: 3.00 s; unlearning: 2 h 2 min; models: 4; device: cpu; odd: not told; many: 1" + 78 * "0" + "…"
    )


def test_a_rate_is_what_a_threshold_reaches() -> None:
    draw = np.random.default_rng(0)
    members, others = draw.normal(1, 1, 300), draw.normal(0, 1, 200)
    fpr, tpr, _ = roc_curve([1] * 300 + [0] * 200, np.concatenate([members, others]))
    rates = np.array([0.001, 0.01, 0.1, 0.5])
    scan = [
        max(np.mean(members >= at) for at in [*others, np.inf, *members] if np.mean(others >= at) <= rate)
        for rate in rates
    ]
    assert reached({"fpr": fpr, "tpr": tpr}, rates) == pytest.approx(scan)


def test_a_roc_curve_lies_where_its_rates_are() -> None:
    drawn = roc_picture([{"name": "mine", "fpr": [0.0, 0.01, 0.1, 1.0], "tpr": [0.0, 0.1, 0.9, 1.0]}])
    left, right, top, base = 56, 408, 10, 340
    spots = [
        tuple(map(float, spot)) for spot in re.findall(r'class="spot line run0" cx="([\d.]+)" cy="([\d.]+)"', drawn)
    ]
    third, high = (right - left) / 3, (base - top) / 3
    up = base - high * (np.log10(0.9) + 3)
    wanted = [(left, base), (left + third, base - 2 * high), (left + 2 * third, up)]
    assert np.allclose(spots, wanted, atol=0.1)
    assert f'class="line guess" d="M{left} {base}L{right} {top}"' in drawn
    path = re.search(r'class="line run0" d="M([^"]+)"', drawn)
    assert path
    points = [tuple(map(float, point.split())) for point in path[1].split("L")]
    assert points[0] == (left, base), "a rate of zero lies on the lower edge"
    assert points[-1] == (right, top)
    assert max(y for x, y in points if x < left + third - 1) == base, "nothing is reached before the first point"
    assert "<title>mine: TPR 0.900 at FPR 0.1</title>" in drawn
    assert "mine: true positive rate 0.100 at 1 % false positives" in drawn


def test_only_so_many_curves_are_drawn(tmp_path: Path) -> None:
    audit = make_audit()
    audit["roc"] = [audit["roc"][0]] * 9
    page = page_of(tmp_path, audit)
    assert "Only the first 8 of 9 curves are drawn" in page
    assert 'class="line run8"' not in page


def heights(path: str, base: float) -> list[float]:
    return [base - float(at) for at in re.findall(r"V([\d.]+)H", path)]


def test_margins_are_shares_in_common_bins_and_the_largest_counts() -> None:
    spread = {"row": 0, "unlearned": [0.0, 10.0, 10.0, 10.0], "retrained": [0.0, 0.0, 5.0, 5.0], "before": []}
    drawn = margin_picture(spread, "row 7")
    green, blue = (
        re.search(rf'class="{kind}" d="([^"]+)"', drawn)[1]  # type: ignore[index]
        for kind in ("fill after", "stairs retrained")
    )
    tall = 130 - 24 - 8
    assert np.flatnonzero(heights(green, 106)).tolist() == [0, 19]
    assert heights(green, 106)[19] == pytest.approx(tall, abs=0.1)
    assert heights(green, 106)[0] == pytest.approx(tall / 3, abs=0.1)
    assert np.flatnonzero(heights(blue, 106)).tolist() == [0, 10]
    assert heights(blue, 106)[10] == pytest.approx(tall * 0.5 / 0.75, abs=0.1)
    assert "faint" not in drawn
    assert "<title>margin 9.50 to 10.00: unlearned 3 of 4</title>" in drawn
    assert "<title>margin 0.00 to 0.50: unlearned 1 of 4, retrained 2 of 4</title>" in drawn
    assert "Margins of row 7; means: unlearned 7.50 (4 models), retrained 2.50 (4 models)" in drawn


@pytest.mark.parametrize("value", [0.0, 1e300, -1e300, 5e-324])
def test_margins_that_are_all_the_same(value: float) -> None:
    drawn = margin_picture({"row": 0, "unlearned": [value], "retrained": [value], "before": [value]}, "row 0")
    assert "nan" not in drawn
    assert "fill faint forget" in drawn


def test_the_worst_records_carry_their_own_rows_and_are_few(tmp_path: Path) -> None:
    audit = make_audit()
    page = page_of(tmp_path, audit)
    # the result's own rows start at 100
    assert re.findall(r"<figcaption>row (\d+)", page) == ["103", "100", "107"]
    audit["margins"] = [audit["margins"][0]] * 40
    page = page_of(tmp_path, audit)
    assert page.count("<figcaption>row ") == 12
    assert "Shown are 12 of 40." in page


def test_klom_lies_between_floor_and_ceiling() -> None:
    each = {"part": "forget", "n": 1200, "value": [2.0, 5.0], "floor": [1.0, 3.0], "ceiling": [8.0, 10.0]}
    drawn = klom_picture([each])
    wide = 560 - 76 - 16

    def at(value: float) -> float:
        return 76 + wide * value / 10.5

    for kind, mark in (("fill after", "value"), ("stop retrained", "floor"), ("stop forget", "ceiling")):
        found = [float(x) for x in re.findall(rf'class="{kind}" d="M([\d.]+) ', drawn)]
        assert np.allclose(found, [at(value) for value in each[mark]], atol=0.1), mark  # type: ignore[union-attr]
    assert "forget (1,200)" in drawn
    assert "<title>forget, mean: unlearned 2, floor 1, ceiling 8</title>" in drawn
    assert "forget, 95th percentile: unlearned 5, floor 3, ceiling 10" in drawn


def test_every_mark_can_be_nothing() -> None:
    zero = {"part": "test", "n": 0, "value": [0.0, 0.0], "floor": [0.0, 0.0], "ceiling": [0.0, 5e-324]}
    assert "nan" not in klom_picture([zero])


@pytest.mark.parametrize("place", ["claim", "numbers", "alarms", "warnings", "cost", "roc", "settings", "provenance"])
def test_an_audit_s_text_is_escaped_everywhere(tmp_path: Path, place: str) -> None:
    audit = make_audit()
    change: dict[str, Any] = {
        "claim": {"shown": EVIL, "not_shown": EVIL},
        "numbers": [audit["numbers"][0] | dict.fromkeys(["name", "label", "unit", "note"], EVIL)],
        "alarms": [{"name": name, "raised": name == "no-op", "told": EVIL} for name in ("no-op", "over-forgetting")],
        "warnings": [EVIL],
        "cost": {EVIL: EVIL},
        "roc": [audit["roc"][0] | {"name": EVIL}],
        "settings": {EVIL: EVIL},
        "provenance": {EVIL: EVIL},
    }
    run = read_run(save_run(tmp_path, make_result(), audit=audit | {place: change[place]}))
    for page in (render(run), render_several([run, run])):
        assert page.count("<script>") == page.count("</script>") == 1
    assert "&lt;/script&gt;&lt;script&gt;" in render(run).split('id="audit"')[1]


@pytest.mark.parametrize("profile", ["quick", "standard", "full"])
def test_the_page_is_well_formed_and_needs_no_network(tmp_path: Path, profile: str) -> None:
    stack: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found = dict(attrs)
            assert not {"src", "style", "onclick"} & found.keys()
            assert (found.get("href") or "#").startswith("#")
            if tag == "svg":
                assert found.get("aria-hidden") == "true" or found.get("aria-label")
            if tag not in ("meta", "input", "wbr"):
                stack.append(tag)

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert stack.pop() == tag

    page = page_of(tmp_path, make_audit(profile))
    Reader().feed(page)
    assert stack == []
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert "None" not in re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)


def test_several_runs_do_not_hide_an_alarm(tmp_path: Path) -> None:
    runs = [
        read_run(save_run(tmp_path / name, make_result(), audit=audit))
        for name, audit in (("a", make_audit()), ("b", None))
    ]
    page = render_several(runs)
    assert page.count("Audit (profile full).") == 1
    assert page.count("<b>Alarm: over-forgetting.</b>") == 1


def test_a_large_audit_stays_a_small_page(tmp_path: Path) -> None:
    audit, draw = make_audit(), np.random.default_rng(0)
    rates = np.sort(draw.random(20_000)).tolist()
    audit["roc"] = [{"name": f"curve {n}", "fpr": rates, "tpr": rates} for n in range(4)]
    spread = {model: draw.normal(size=500).tolist() for model in ("unlearned", "retrained", "before")}
    audit["margins"] = [spread | {"row": row % 12} for row in range(100)]
    without = write_report(save_run(tmp_path / "without", make_result())).stat().st_size
    assert write_report(save_run(tmp_path / "with", make_result(), audit=audit)).stat().st_size < without + 200_000
