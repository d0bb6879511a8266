"""The page as text: whole, safe, and the same every time."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from report_runs import bare, make_certificate, make_result, not_memorised, save_run, without_oracle

from forsaken.jobs.certificate import Certificate
from forsaken.report.page import render, render_several, write_report
from forsaken.report.saved import read_run


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


def page_of(folder: Path, result: dict[str, Any], certificate: Certificate | None = None) -> str:
    return render(read_run(save_run(folder, result, certificate=certificate)))


VARIANTS = {
    "whole": (make_result(), make_certificate()),
    "unsigned": (make_result(), make_certificate(signed=False)),
    "without an oracle": (without_oracle(make_result()), None),
    "bare": (bare(make_result()), None),
    "not memorised": (not_memorised(make_result()), None),
    "one record": (make_result(1), None),
    "two records, two classes": (make_result(2, classes=["a", "b"]), None),
    "one class": (make_result(3, classes=["a"]), None),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_page_is_well_formed_offline_and_labelled(tmp_path: Path, name: str) -> None:
    result, certificate = VARIANTS[name]
    page = page_of(tmp_path, result, certificate)
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
    targets = {attributes.get("id") for _, attributes in found.tags}
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
    evil, result = "</script><script>alert(1)</script>\"'><b>", make_result(3)
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
        result["chain"]["links"][0] |= {"time": evil, "certificate": evil}
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
    assert "<h1>There was nothing to forget: the 12 records were not memorised</h1>" in page
    assert "No weight was changed." in page


def test_the_certificate(tmp_path: Path) -> None:
    signed = page_of(tmp_path, make_result(), make_certificate())
    stated = make_certificate().signature
    assert stated is not None
    assert f"<b>Signed</b> (Ed25519, by its own word with the key {stated.keyid})" in signed
    assert "This page does not check the signature" in signed
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
