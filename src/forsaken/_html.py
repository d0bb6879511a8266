"""Small pieces of HTML for notebooks. Every text is escaped; colours work on light and on dark pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

COLOURS = {"good": "#1a7f37", "bad": "#cf222e", "open": "#9a6700"}


def table(title: str, rows: Iterable[Sequence[object]], heads: Sequence[str] = ()) -> str:
    """Return a table; the first cell of a row is its name.

    >>> table("a & b", [("seconds", 1.5)]).removeprefix('<table><caption style="text-align:left;font-weight:bold">')
    'a &amp; b</caption><tr><th style="text-align:left">seconds</th><td>1.5</td></tr></table>'
    """
    caption = f'<caption style="text-align:left;font-weight:bold">{escape(title)}</caption>'
    head = f"<tr>{''.join(f'<th>{escape(each)}</th>' for each in heads)}</tr>" if heads else ""
    body = "".join(
        f'<tr><th style="text-align:left">{escape(str(name))}</th>'
        f"{''.join(f'<td>{escape(str(value))}</td>' for value in values)}</tr>"
        for name, *values in rows
    )
    return f"<table>{caption}{head}{body}</table>"


def paragraph(text: str, *, head: str = "", colour: str = "") -> str:
    """Return a paragraph with a bold head; `colour` is a key of `COLOURS`.

    >>> paragraph("1 < 2", head="So", colour="good")
    '<p><b style="color:#1a7f37">So</b> 1 &lt; 2</p>'
    """
    style = f' style="color:{COLOURS[colour]}"' if colour else ""
    return f"<p>{f'<b{style}>{escape(head)}</b> ' if head else ''}{escape(text)}</p>"


def bullets(texts: Iterable[str]) -> str:
    """Return a list of texts; nothing where there are none."""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""
