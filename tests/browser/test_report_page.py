"""The page in a real browser: quiet, offline, sortable, readable on a phone, in the dark and on paper."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_runs import make_audit, make_certificate, make_result, save_run, without_oracle

from forsaken.report.page import render_several, write_page, write_report
from forsaken.report.saved import read_run

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LARGEST = 3_000_000


def chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("FORSAKEN_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = chromium()
    if path is None:
        pytest.skip("no Chromium on this machine; name one with FORSAKEN_CHROMIUM")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    whole, less = save_run(folder / "whole", make_result(), certificate=make_certificate()), folder / "less"
    save_run(less, without_oracle(make_result(3)) | {"job": None})
    audited = save_run(folder / "audited", make_result() | {"job": None}, audit=make_audit())
    several = write_page(folder / "several.html", render_several([read_run(run) for run in (whole, less, audited)]))
    return {"several": several} | {run.name: write_report(run) for run in (whole, less, audited)}


@pytest.fixture
def opened(browser) -> Iterator[Any]:
    """Opens pages, and fails the test if one of them complained or asked for anything but itself."""
    contexts, complaints, asked = [], [], []

    def opener(path: Path, **settings: Any) -> Any:
        contexts.append(browser.new_context(**({"viewport": {"width": 1200, "height": 800}} | settings)))
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.resolve().as_uri())
        return page

    yield opener
    for context in contexts:
        context.close()
    assert complaints == []
    assert len(asked) == len(contexts)
    assert all(url.startswith("file://") and url.endswith(".html") for url in asked)


def column(page: Any, place: int) -> list[str]:
    cells = page.locator(f"#records tbody tr:not([hidden]) > :nth-child({place})")
    return [text.strip() for text in cells.all_text_contents()]


@pytest.mark.parametrize("name", ["whole", "less", "audited", "several"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_opens_quietly_and_offline(opened, pages, name: str, scheme: str) -> None:
    page = opened(pages[name], color_scheme=scheme, offline=True)
    assert page.locator("h1").count() == 1
    assert page.locator("script").count() == 1, "the script in a class name is text"
    assert page.evaluate("document.querySelectorAll('svg[role=img]').length") > 0


def test_sorts_by_numbers(opened, pages) -> None:
    page = opened(pages["whole"])
    head = page.locator("#records th", has_text="score after")
    given = [float(text) for text in column(page, 8)]
    assert given != sorted(given)
    head.locator("button").click()
    assert [float(text) for text in column(page, 8)] == sorted(given)
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").click()
    assert [float(text) for text in column(page, 8)] == sorted(given, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"


def test_sorts_by_text_and_with_the_keyboard(opened, pages) -> None:
    page = opened(pages["whole"])
    first, second = (page.locator("#records th", has_text=name) for name in ("class before", "row"))
    first.locator("button").focus()
    page.keyboard.press("Enter")
    assert column(page, 3) == sorted(column(page, 3))
    second.locator("button").focus()
    page.keyboard.press("Space")
    assert column(page, 1) == [str(row) for row in range(100, 112)]
    assert first.get_attribute("aria-sort") == "none"
    assert second.get_attribute("aria-sort") == "ascending"


def test_filters(opened, pages) -> None:
    page, result = opened(pages["whole"]), make_result()
    table = result["samples"]
    page.locator("#find").fill("107")
    assert column(page, 1) == ["107"]
    assert page.locator("#count").text_content() == "1 of 12 records shown"
    page.locator("#find").fill("")
    page.locator("#class").select_option("2")
    wanted = [n for n in range(12) if 2 in (table["class_before"][n], table["class_after"][n])]
    assert 0 < len(wanted) < 12
    assert column(page, 1) == [str(100 + n) for n in wanted]
    page.locator("#class").select_option("")
    page.locator("#member").check()
    assert column(page, 1) == [str(100 + n) for n in range(12) if table["score_after"][n] > 0.5]
    page.locator("#member").uncheck()
    assert len(column(page, 1)) == 12
    assert page.locator("#count").text_content() == "12 records"


def test_hover_says_which_record_and_lights_its_twin(opened, pages) -> None:
    page = opened(pages["whole"])
    tip = page.locator("#tip")
    assert tip.is_hidden()
    point = page.locator(".map .point").first
    point.scroll_into_view_if_needed()
    number, text = point.get_attribute("data-i"), point.get_attribute("data-tip")
    # another triangle may lie on top of this one, and a real pointer would hit that
    point.dispatch_event("pointermove", {"clientX": 300, "clientY": 300})
    assert tip.is_visible()
    assert tip.text_content() == text
    assert text.startswith("row 100 before: class ")
    assert "membership score 0." in text
    assert page.locator(f'.point.lit[data-i="{number}"]').count() == 2
    point.dispatch_event("pointerleave")
    assert tip.is_hidden()
    assert page.locator(".point.lit").count() == 0


def test_a_real_pointer_shows_a_tip(opened, pages) -> None:
    page = opened(pages["less"])
    page.locator(".map .point").last.hover()
    assert page.locator("#tip").is_visible()
    assert page.locator("#tip").text_content().startswith("row 102 after: class ")


@pytest.mark.parametrize("name", ["whole", "less", "audited", "several"])
def test_fits_a_phone(opened, pages, name: str) -> None:
    page = opened(pages[name], viewport={"width": 360, "height": 740})
    page.locator("details").evaluate_all("parts => parts.forEach(part => { part.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.mouse.wheel(300, 0)
    assert page.evaluate("window.scrollX") == 0


def background(page: Any) -> list[int]:
    found = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return [int(part) for part in found.removeprefix("rgb(").removesuffix(")").split(",")]


def test_light_and_dark(opened, pages) -> None:
    light, dark = (opened(pages["whole"], color_scheme=scheme) for scheme in ("light", "dark"))
    assert min(background(light)) > 200
    assert max(background(dark)) < 60
    for page in (light, dark):
        first = background(page)
        page.locator("#theme").click()
        assert (min(background(page)) > 200) != (min(first) > 200)
        page.locator("#theme").click()
        assert background(page) == first


def test_text_stands_out_in_both_themes(opened, pages) -> None:
    contrast = """element => {
        const light = colour => {
            const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255)
                .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
            return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
        };
        let under = element;
        while (getComputedStyle(under).backgroundColor === 'rgba(0, 0, 0, 0)') { under = under.parentElement; }
        const both = [light(getComputedStyle(element).color), light(getComputedStyle(under).backgroundColor)];
        return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
    }"""
    for scheme in ("light", "dark"):
        page = opened(pages["whole"], color_scheme=scheme)
        for kind in ("h1", ".soft", ".reason", "nav a", "summary", "caption", ".warnings li", "#theme"):
            assert page.locator(kind).first.evaluate(contrast) >= 4.5, (scheme, kind)
        page = opened(pages["audited"], color_scheme=scheme)
        for kind in (".alarm", "#audit li", "#audit .soft", "#audited .reason"):
            assert page.locator(kind).first.evaluate(contrast) >= 4.5, (scheme, kind)


def audited_column(page: Any, place: int) -> list[str]:
    return [
        " ".join(text.split()) for text in page.locator(f"#audited tbody tr > :nth-child({place})").all_text_contents()
    ]


def test_the_audit_s_numbers_sort_and_those_without_a_value_stay_last(opened, pages) -> None:
    page = opened(pages["audited"])
    value = page.locator("#audited thead th", has_text="value").locator("button")
    value.click()
    assert audited_column(page, 2) == ["0.520", "0.610", "0.900", "0.917", "n/a"]
    value.click()
    assert audited_column(page, 2) == ["0.917", "0.900", "0.610", "0.520", "n/a"]
    page.locator("#audited thead th").nth(4).locator("button").click()
    assert audited_column(page, 5) == ["0 samples", "12 samples", "12 samples", "384 pairs", "2,000 samples"]


def test_the_audit_is_seen_in_the_dark_on_a_phone_and_on_paper(opened, pages) -> None:
    for settings in ({"color_scheme": "dark"}, {"viewport": {"width": 360, "height": 740}}):
        page = opened(pages["audited"], **settings)
        for name in ("#audit .alarm", "#audit-roc svg[role=img]", "#audit-klom svg[role=img]"):
            assert page.locator(name).is_visible(), name
        small = page.locator(".small svg[role=img]")
        assert small.count() == 3
        assert all(box["width"] >= 120 for box in (small.nth(at).bounding_box() for at in range(3)))
        page.emulate_media(media="print")
        assert page.locator("#audit .alarm").is_visible()
        assert page.locator("#audited tbody tr").last.is_visible()


def test_a_phone_shows_the_retrained_model_beside_the_value(opened, pages) -> None:
    page = opened(pages["audited"], viewport={"width": 360, "height": 740})
    heads = page.locator("#audited thead th")
    assert [heads.nth(at).text_content().strip() for at in (1, 2)] == ["value", "retrained"]
    box = heads.nth(2).bounding_box()
    assert box["x"] + box["width"] <= 360, "no swipe is needed"


def test_print_is_light_and_has_no_controls(opened, pages) -> None:
    page = opened(pages["whole"], color_scheme="dark")
    assert page.locator("#find").is_visible()
    page.emulate_media(media="print")
    for control in ("#find", "#class", "#member", "#theme", "nav"):
        assert page.locator(control).is_hidden(), control
    assert background(page) == [255, 255, 255]
    assert page.locator("#records tbody tr").last.is_visible()
    box = page.locator(".box.tall").first
    assert box.evaluate("part => getComputedStyle(part).maxHeight") == "none"


def test_reads_without_scripts(opened, pages) -> None:
    page = opened(pages["whole"], java_script_enabled=False)
    assert page.locator("#find").is_hidden()
    assert page.locator("#records tbody tr").count() == 12
    assert page.locator("h1").is_visible()


def test_two_thousand_records(opened, tmp_path: Path, monkeypatch) -> None:
    # t-SNE's own time is of no interest here; where the points lie, neither
    monkeypatch.setattr("forsaken.report.figures._arranged", lambda points: (points[:, :2], True))
    result = make_result(2000)
    result["layers"] = [{"name": f"layer.{n}.weight", "changed": n, "total": 300} for n in range(200)]
    path = write_report(save_run(tmp_path, result))
    assert path.stat().st_size <= LARGEST
    page = opened(path)
    assert page.locator("#records tbody tr").count() == 2000
    assert page.locator(".map .point").count() == 2 * 300
    page.locator("#records th", has_text="score after").locator("button").click()
    assert column(page, 8)[-1] == "0.750"
    page.locator("#find").fill("cat")
    assert 0 < len(column(page, 1)) < 2000
    page.emulate_media(media="print")
    assert page.locator(".print-only").is_visible()
