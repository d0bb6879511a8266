"""Lines of keys: every key that tomllib finds is located, on a line that has it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forsaken.jobs.configuration import Where, locate

NAMES = st.one_of(
    st.from_regex(r"[A-Za-z0-9_-]{1,6}", fullmatch=True),
    st.text(st.sampled_from("ab.=#[]{}, \"'\\é\t"), max_size=6),
)
TEXTS = st.text(st.sampled_from("ab=#[]{}, \"'\n"), max_size=12)
SCALARS = st.one_of(
    st.sampled_from(["1", "-2.5", "1e3", "true", "1979-05-27 07:32:00", "inf", "0x1f", "''", '""', "''''''", '""""""']),
    TEXTS.map(json.dumps),
    TEXTS.map(lambda text: '"""' + text.replace('"', '\\"') + '"""'),
    st.sampled_from(['"""a"""""', "'''a'''''", '"""\nb = 1\n[c]\n"""', "'''\n[d]\ne = 1\n'''", '"""\\"""="""']),
    TEXTS.filter(lambda text: "'" not in text).map(lambda text: f"'''{text}'''"),
)


def written(name: str, draw: st.DrawFn) -> str:
    forms = [json.dumps(name, ensure_ascii=draw(st.booleans()))]
    if re.fullmatch(r"[A-Za-z0-9_-]+", name):
        forms.append(name)
    if "'" not in name:
        forms.append(f"'{name}'")
    return draw(st.sampled_from(forms))


@st.composite
def values(draw: st.DrawFn, depth: int = 2) -> str:
    kind = draw(st.sampled_from(["scalar", "array", "table"] if depth else ["scalar"]))
    if kind == "scalar":
        return draw(SCALARS)
    if kind == "array":
        gap = draw(st.sampled_from(["", " ", "\n", " # a = 1 ]\n"]))
        inside = draw(st.lists(values(depth - 1), max_size=3))
        return "[" + "".join(f"{gap}{one}{gap}," for one in inside) + gap + "]"
    names = draw(st.lists(NAMES, max_size=3, unique=True))
    return "{" + ",".join(f" {written(name, draw)} = {draw(values(depth - 1))} " for name in names) + "}"


@st.composite
def documents(draw: st.DrawFn) -> str:
    lines: list[str] = []
    for table in draw(st.lists(st.lists(NAMES, min_size=1, max_size=3).map(tuple), max_size=4, unique=True)):
        lines.append(draw(st.sampled_from(["", "# x = 1", "  "])))
        lines.append(
            "[" + " . ".join(written(name, draw) for name in table) + "]" + draw(st.sampled_from(["", " # ]="]))
        )
        for names in draw(st.lists(st.lists(NAMES, min_size=1, max_size=2).map(tuple), max_size=4, unique=True)):
            key = ".".join(written(name, draw) for name in names)
            lines.append(f"{key} = {draw(values())}")
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines)


def paths(raw: Any, at: Where = ()) -> Iterator[Where]:
    if isinstance(raw, dict):
        for key, value in raw.items():
            yield (*at, key)
            yield from paths(value, (*at, key))
    elif isinstance(raw, list):
        for value in raw:
            yield from paths(value, at)


def has_name(line: str, name: str) -> bool:
    forms = (name, json.dumps(name), json.dumps(name, ensure_ascii=False))
    return any(form in line for form in forms)


@given(documents())
def test_every_key_that_tomllib_finds_is_located_where_it_stands(text: str) -> None:
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    found = locate(text)
    assert set(found) == set(paths(raw))
    lines = text.split("\n")
    for path, line in found.items():
        assert has_name(lines[line - 1], path[-1]), (path, line)


@pytest.mark.parametrize("text", [
    pytest.param('a = """\nb = 1\n"""\nc = 2', id="key in a long string"),
    pytest.param("a = '''\n[b]\n'''\nc = 2", id="table in a long literal"),
    pytest.param('a = [\n 1, # c = 3\n "]",\n]\nc = 2', id="array over lines"),
    pytest.param('# c = 1\n\n\na = "x # y"\nc = 2', id="comments"),
])  # fmt: skip
def test_what_only_looks_like_a_key_is_none(text: str) -> None:
    assert set(locate(text)) == {("a",), ("c",)}
    assert locate(text)[("c",)] == text.split("\n").index("c = 2") + 1


def test_tables_dotted_quoted_and_inline_keys() -> None:
    text = '[model]\nweights="w"\n\n["da ta".x]\n"a.b".c = 1\nt = { p = [\n1], q = { r = 2 } }\n[da]\n'
    assert locate(text) == {
        ("model",): 1,
        ("model", "weights"): 2,
        ("da ta",): 4,
        ("da ta", "x"): 4,
        ("da ta", "x", "a.b"): 5,
        ("da ta", "x", "a.b", "c"): 5,
        ("da ta", "x", "t"): 6,
        ("da ta", "x", "t", "p"): 6,
        ("da ta", "x", "t", "q"): 7,
        ("da ta", "x", "t", "q", "r"): 7,
        ("da",): 7 + 1,
    }


@pytest.mark.parametrize("quotes", ['"""', "'''"])
@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_long_string_may_end_in_quotes_of_its_own(quotes: str, more: int) -> None:
    mark = quotes[0]
    text = f"t = {{ a = {quotes}x{mark * more}{quotes}, b = {mark}y{mark} }}"
    assert tomllib.loads(text)["t"] == {"a": "x" + mark * more, "b": "y"}
    assert set(locate(text)) == {("t",), ("t", "a"), ("t", "b")}


def test_a_table_s_own_line_comes_before_that_of_a_longer_name() -> None:
    assert locate("[a.b]\nx = 1\n[a]\ny = 2\n")[("a",)] == 3


def test_an_array_of_tables_goes_by_its_own_name() -> None:
    assert locate("[[a]]\nx = 1\n[[a]]\ny = 2\n") == {("a",): 1, ("a", "x"): 2, ("a", "y"): 4}


def test_a_megabyte_takes_no_time() -> None:
    text = "ids = [" + "1, " * 300_000 + "]\nlast = 1"
    assert locate(text)[("last",)] == 2


def test_nesting_as_deep_as_tomllib_allows_is_scanned() -> None:
    text = "a = " + "[" * 300 + "]" * 300 + "\nb = 1"
    tomllib.loads(text)
    assert locate(text)[("b",)] == 2
