"""The page as text: whole, safe, and the same every time."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import bare, make_audit, make_certificate, make_result, not_memorised, save_run, without_oracle

from forsaken.jobs.certificate import Certificate
from forsaken.report.page import render, render_several, write_report
from forsaken.report.saved import read_run

EVIL = "</script><script>alert(1)</script>\"'><b>"


class Reader(HTMLParser):
    """Collects tags, headings and what a browser would fetch; notices tags that do not match."""

    VOID = frozenset({"meta", "input", "br", "link", "img", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def page_of(folder: Path, result: dict[str, Any], certificate: Certificate | None = None, audit: Any = None) -> str:
    return render(read_run(save_run(folder, result, certificate=certificate, audit=audit)))


def audited(folder: Path, audit: dict[str, Any] | None) -> str:
    return page_of(folder, make_result(), audit=audit)


def part(page: str, start: str, end: str) -> str:
    return page[page.index(start) : page.index(end, page.index(start))]


@pytest.fixture(autouse=True)
def quick_map(monkeypatch) -> None:
    # t-SNE's time is of no interest here
    monkeypatch.setattr("forsaken.report.figures._arranged", lambda points: (points[:, [0, -1]], True))


VARIANTS: dict[str, tuple[Any, ...]] = {
    "whole": (make_result(), make_certificate()),
    "unsigned": (make_result(), make_certificate(signed=False)),
    "quick": (make_result(), None, make_audit("quick")),
    "standard": (make_result(), None, make_audit("standard")),
    "full": (make_result(), None, make_audit("full")),
    "without an oracle": (without_oracle(make_result()),),
    "bare": (bare(make_result()),),
    "not memorised": (not_memorised(make_result()),),
    "one record": (make_result(1),),
    "two records, two classes": (make_result(2, classes=["a", "b"]),),
    "one class": (make_result(3, classes=["a"]),),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_page_is_well_formed_offline_and_labelled(tmp_path: Path, name: str) -> None:
    page = page_of(tmp_path, *VARIANTS[name])
    found = read(page)
    for tag, attributes in found.tags:
        assert tag not in ("link", "img", "iframe", "object", "base", "form")
        assert "src" not in attributes
        assert "style" not in attributes, "the content security policy forbids it"
        assert (attributes.get("href") or "#").startswith("#")
        assert not any(key.startswith("on") for key in attributes)
        if tag == "svg":
            assert attributes.get("aria-hidden") == "true" or attributes.get("aria-label")
        if tag == "th":
            assert attributes.get("scope") in ("row", "col")
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    named = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    targets = set(named)
    assert len(named) == len(targets)
    assert {a["href"][1:] for t, a in found.tags if t == "a" and a.get("href")} <= targets  # type: ignore[index]
    assert "None" not in re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)


def test_the_policy_names_exactly_the_page_s_own_style_and_script(tmp_path: Path) -> None:
    page = page_of(tmp_path, make_result())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    assert policy[1].startswith("default-src &#39;none&#39;")
    assert "unsafe" not in policy[1]
    for tag in ("style", "script"):
        (inner,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        wanted = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{wanted}&#39;" in policy[1]


@pytest.mark.parametrize("place", ["classes", "task", "warnings", "notes", "settings", "target", "layers", "advice"])
def test_user_text_is_escaped_everywhere(tmp_path: Path, place: str) -> None:
    evil, result = EVIL, make_result(3)
    change: dict[str, Any] = {
        "classes": [evil] * 4,
        "task": evil,
        "warnings": [evil],
        "notes": [evil],
        "settings": {evil: {evil: [evil]}, "name": evil},
        "target": dict.fromkeys(["target", "shown", "not_shown"], evil),
        "layers": [{"name": evil, "changed": 1, "total": 2}],
    }
    if place == "advice":
        result["chain"]["advice"] = [evil]
    else:
        result[place] = change[place]
    run = read_run(save_run(tmp_path / "<b>run", result))
    for page in (render(run), render_several([run, run])):
        assert page.count("<script>") == page.count("</script>") == 1
        assert "<b>run" not in page
        read(page)
    assert "&lt;/script&gt;&lt;script&gt;" in render(run)


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = save_run(tmp_path, make_result(), certificate=make_certificate())
    first = write_report(folder).read_bytes()
    assert write_report(folder).read_bytes() == first


def test_missing_numbers_have_a_reason(tmp_path: Path) -> None:
    page = page_of(tmp_path, bare(make_result()))
    for reason in ("no oracle", "no retrained model", "no test data"):
        assert f'n/a <span class="reason">{reason}</span>' in page
    assert "n/a: there were no test data with labels" in page
    assert "n/a: no iteration was made" in page
    assert "n/a: there is no certificate" in page
    assert "still looks like a member</label>" not in page
    assert 'id="chain"' not in page


def test_nothing_to_forget(tmp_path: Path) -> None:
    page = page_of(tmp_path, not_memorised(make_result()))
    assert "<h1>Nothing was changed, and nothing shows that the 12 records were not memorised</h1>" in page
    assert "No weight was changed." in page


def test_the_certificate(tmp_path: Path) -> None:
    signed = page_of(tmp_path, make_result(), make_certificate())
    stated = make_certificate().signature
    assert stated is not None
    assert f"<b>Signed</b> (Ed25519, by its own word with the key {stated.keyid})" in signed
    assert "Who wrote certificate.json was not checked" in signed
    assert f"<summary><code>{'b' * 16}…</code></summary><code>{'b' * 64}</code>" in signed
    unsigned = page_of(tmp_path, make_result(), make_certificate(signed=False))
    assert "<b>Not signed</b>: anyone could have written it." in unsigned


def test_the_table_holds_every_record(tmp_path: Path) -> None:
    result = make_result()
    page = page_of(tmp_path, result)
    body = page[page.index('id="records"') :]
    rows = re.findall(r"<tr data-b=.*?</tr>", body[: body.index("</table>")], re.DOTALL)
    assert len(rows) == 12
    assert sum(" data-m>" in row for row in rows) == 1
    for number, row in enumerate(rows):
        assert f'<th scope="row">{100 + number}</th>' in row
        assert f"<td>{result['samples']['score_after'][number]:.3f}</td>" in row


def test_several_runs(tmp_path: Path) -> None:
    results = {"a/same": make_result(), "b/same": without_oracle(make_result(5, seed=1)), "other": bare(make_result(2))}
    runs = [read_run(save_run(tmp_path / name, result)) for name, result in results.items()]
    page = render_several(runs)
    read(page)
    heads = re.findall(r'<th scope="col">([^<]+)</th>', page)
    assert heads == ["same (1)", "same (2)", "other"]
    assert page.count('<path class="line run') == 2 + 3  # two runs with iterations, three keys of the legend
    assert "12 → 1" in page
    assert page.count("A request to forget") == 3


def test_many_runs(tmp_path: Path) -> None:
    run = read_run(save_run(tmp_path, make_result(2)))
    assert "Only the first 8 runs are drawn" in render_several([run] * 9)


def test_text_that_is_no_unicode_is_still_written(tmp_path: Path) -> None:
    folder = save_run(tmp_path, make_result(2) | {"settings": {"odd": "\ud800"}})
    assert b"</html>" in write_report(folder).read_bytes()


def test_a_run_without_an_audit_shows_none(tmp_path: Path) -> None:
    page = re.sub(r"<(style|script)>.*?</\1>", "", audited(tmp_path, None), flags=re.DOTALL)
    assert "audit" not in page.lower()


def test_the_panel_comes_first_and_says_it_all(tmp_path: Path) -> None:
    page = audited(tmp_path, make_audit())
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
    panel = part(audited(tmp_path, make_audit(alarmed=False)), '<section id="audit"', "</section>")
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
    page = audited(tmp_path, make_audit(profile))
    assert ("told from retrained models" in page) == (profile == "full")
    assert all(f'id="{name}"' in page for name in there)
    assert not any(f'id="{name}"' in page for name in absent)
    assert page.count('<tr><th scope="row">U-LiRA, AUC') == (profile == "full")


def test_the_table_holds_every_number_with_all_its_parts(tmp_path: Path) -> None:
    table = part(audited(tmp_path, make_audit()), 'id="audited"', "</table>")
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
    page = audited(tmp_path, audit)
    assert "27 to 27" not in page
    assert "no spread" in part(page, 'id="audited"', "</table>")
    assert "every draw gave the same number, which is no sign of certainty" in page


def test_what_could_not_be_told_is_said_once(tmp_path: Path) -> None:
    audit = make_audit(alarmed=False)
    audit["alarms"][1]["told"] = "Not known: it takes a retrained model to tell."
    page = audited(tmp_path, audit)
    assert "Could not be told (no-op): it takes a retrained model to tell." in page
    assert "Not known" not in page


def test_only_so_many_curves_are_drawn(tmp_path: Path) -> None:
    audit = make_audit()
    audit["roc"] = [audit["roc"][0]] * 9
    page = audited(tmp_path, audit)
    assert "Only the first 8 of 9 curves are drawn" in page
    assert 'class="line run8"' not in page


def test_the_worst_records_carry_their_own_rows_and_are_few(tmp_path: Path) -> None:
    audit = make_audit()
    page = audited(tmp_path, audit)
    # the result's own rows start at 100
    assert re.findall(r"<figcaption>row (\d+)", page) == ["103", "100", "107"]
    audit["margins"] = [audit["margins"][0]] * 40
    page = audited(tmp_path, audit)
    assert page.count("<figcaption>row ") == 12
    assert "Shown are 12 of 40." in page


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


def test_the_page_begins_with_what_everybody_wants_to_know(tmp_path: Path) -> None:
    table = make_result() | {"request": {"case": "2026-<117>", "due": "2026-12-01"}}
    page = page_of(tmp_path / "audited", table, audit=make_audit("full"))
    places = [page.index(f'id="{name}"') for name in ("plain", "todo", "audit", "numbers", "settings", "glossary")]
    assert places == sorted(places)
    page = page_of(tmp_path / "certified", table, make_certificate())
    top = page[: page.index('id="plain"')]
    assert "<dd>2026-&lt;117&gt;</dd>" in top
    assert "<dd>2026-12-01</dd>" in top
    assert "<dd>model.safetensors</dd>" in top
