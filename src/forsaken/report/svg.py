"""Small pictures as SVG text. Their colours come from the page's style sheet and follow its light and dark theme."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

_DECADES = 6  # the most labels of a logarithmic axis


@dataclass(frozen=True, slots=True)
class Frame:
    """A plane with axes: where a value lies, in the picture's units."""

    width: int
    height: int
    across: tuple[float, float]
    upward: tuple[float, float]
    log: bool = False
    log_across: bool = False
    left: int = 46
    right: int = 12
    top: int = 10
    bottom: int = 36

    def x(self, value: float) -> float:
        """Return how far right a value lies."""
        low, high = self.across
        if self.log_across:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return round(self.left + (self.width - self.left - self.right) * _part(value, low, high), 1)

    def y(self, value: float) -> float:
        """Return how far down a value lies."""
        low, high = self.upward
        if self.log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return round(self.height - self.bottom - (self.height - self.top - self.bottom) * _part(value, low, high), 1)

    def axes(self, title: str, beside: str, ticks: Sequence[float], text: Callable[[float], str]) -> Markup:
        """Draw both axes with their names; `ticks` are those of the horizontal one, written with `text`."""
        low, base = self.left, self.height - self.bottom
        parts = [Markup('<path class="axis" d="M{} {}V{}H{}"/>').format(low, self.top, base, self.width - self.right)]
        for tick in ticks:
            here = self.x(tick)
            parts.append(Markup('<path class="axis" d="M{} {}v4"/>').format(here, base))
            parts.append(Markup('<text class="mid" x="{}" y="{}">{}</text>').format(here, base + 16, text(tick)))
        for tick in log_ticks(*self.upward) if self.log else line_ticks(*self.upward):
            here = self.y(tick)
            parts.append(Markup('<path class="grid" d="M{} {}H{}"/>').format(low, here, self.width - self.right))
            parts.append(Markup('<text class="end" x="{}" y="{}">{}</text>').format(low - 6, here + 4, short(tick)))
        middle, halfway = (low + self.width - self.right) / 2, (self.top + base) / 2
        parts.append(Markup('<text class="mid" x="{}" y="{}">{}</text>').format(middle, self.height - 4, title))
        turned = Markup('<text class="mid" transform="translate(11 {}) rotate(-90)">{}</text>')
        parts.append(turned.format(halfway, beside))
        return Markup("").join(parts)


def picture(width: int, height: int, label: str, parts: Iterable[Markup], kind: str = "") -> Markup:
    """Return an inline SVG element that tells its content to those who cannot see it."""
    head = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}" class="{}">').format(width, height, label, kind)
    return head + Markup("").join(parts) + Markup("</svg>")


def line(points: Iterable[tuple[float, float]], kind: str) -> Markup:
    """Return a line through points in the picture's units; `kind` names its colour and dashes in the style sheet."""
    path = "L".join(f"{x:g} {y:g}" for x, y in points)
    return Markup('<path class="line {}" d="M{}"/>').format(kind, path) if path else Markup("")


def hover(shape: Markup, text: str) -> Markup:
    """Return shapes that tell a text when pointed at."""
    return Markup("<g><title>{}</title>{}</g>").format(text, shape)


def line_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers that divide a range.

    >>> line_ticks(0, 1)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> line_ticks(3, 60)
    [20.0, 40.0, 60.0]
    """
    if not low < high:
        return [low]
    raw = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * round_one for round_one in (1, 2, 5, 10) if unit * round_one >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return the powers of ten within a range, or its ends where there are none.

    >>> log_ticks(0.02, 300)
    [0.1, 1.0, 10.0, 100.0]
    """
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    apart = max(1, math.ceil((last - first + 1) / _DECADES))
    return [10.0**power for power in range(first, last + 1, apart)] or [low, high]


def short(value: float) -> str:
    """Return a number of an axis.

    >>> short(0.2), short(20000.0), short(1e-6)
    ('0.2', '20,000', '1e-06')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def _part(value: float, low: float, high: float) -> float:
    return 0.5 if high <= low else (value - low) / (high - low)
