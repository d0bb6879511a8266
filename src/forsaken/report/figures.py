"""The pictures of a page: histograms, curves, bars, the chain of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from forsaken.report.svg import Frame, line, line_ticks, picture, short
from forsaken.types import Array

_BINS = 20
LINES = 8  # that the style sheet can tell apart in one picture
_MOST_POINTS = 400  # of a curve; more would not show
_PARTS = ("objective", "distance", "anchor", "penalty")


def histograms(panels: Mapping[str, Array], kinds: Sequence[str]) -> list[Markup]:
    """Draw the largest posteriors of several sets, one picture each, all on one scale.

    Parameters
    ----------
    panels : dict of str to array, shape (n,)
        By title.
    kinds : list of str
        The style of each.
    """
    edges = np.linspace(0, 1, _BINS + 1)
    shares = {name: np.histogram(np.clip(values, 0, 1), edges)[0] / len(values) for name, values in panels.items()}
    frame = Frame(300, 190, (0, 1), (0, max(float(part.max()) for part in shares.values())), top=14)
    drawn = []
    for (name, values), kind in zip(panels.items(), kinds, strict=True):
        mean, base, parts = float(values.mean()), frame.y(0), []
        for start, share in zip(edges, shares[name], strict=False):
            if share:
                x, y = frame.x(float(start)), frame.y(float(share))
                bar = Markup('<rect class="fill {}" x="{}" y="{}" width="11.5" height="{}"/>')
                parts.append(bar.format(kind, x, y, round(base - y, 1)))
        parts.insert(0, frame.axes("largest posterior", "share of samples", (0, 0.25, 0.5, 0.75, 1), short))
        parts.append(line([(frame.x(mean), frame.top), (frame.x(mean), base)], "mean"))
        label = f"Histogram, {name}: the mean largest posterior of {len(values):,} samples is {mean:.2f}"
        drawn.append(picture(frame.width, frame.height, label, parts))
    return drawn


def curve(history: Sequence[Mapping[str, Any]]) -> Markup:
    """Draw the objective and its parts over the iterations of one run."""
    lines = {name: _points(history, name) for name in _PARTS}
    ends = [points[-1][1] for points in lines.values() if points][:1]
    label = f"The objective and its parts over {len(history)} iterations" + (
        f"; it ends at {ends[0]:.3g}" if ends else ""
    )
    return _lines(lines, _PARTS, label, "value, logarithmic")


def curves(histories: Mapping[str, Sequence[Mapping[str, Any]]]) -> Markup:
    """Draw the objectives of several runs into one picture, each relative to its own first value."""
    lines = {}
    for name, history in histories.items():
        points = _points(history, "objective")
        first = points[0][1] if points else 0
        lines[name] = [(at, value / first) for at, value in points] if first > 0 else []
    kinds = [f"run{number}" for number in range(len(lines))]
    return _lines(lines, kinds, f"The objectives of {len(lines)} runs over the iterations", "relative objective")


def bar(share: float, kind: str = "forget") -> Markup:
    """Draw a share as a bar; the number itself stands beside it on the page."""
    full = Markup('<rect class="empty" width="100" height="10"/>')
    part = Markup('<rect class="fill {}" width="{:.1f}" height="10"/>').format(kind, 100 * min(share, 1))
    box = Markup('<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">{}</svg>')
    return box.format(full + part)


def dumbbell(before: float, after: float, low: float) -> Markup:
    """Draw a value before (ring) and after (filled diamond) on a line from `low` to 1."""
    was, now = (round(8 + 184 * (min(value, 1) - low) / (1 - low), 1) for value in (before, after))
    parts = (
        Markup('<path class="grid" d="M8 7H192"/><path class="axis" d="M{} 7H{}"/>').format(was, now),
        Markup('<circle class="ring" cx="{}" cy="7" r="4.2"/>').format(was),
        Markup('<path class="fill after" d="M{} 2.4l4.6 4.6-4.6 4.6-4.6-4.6z"/>').format(now),
    )
    box = Markup('<svg class="dumbbell" viewBox="0 0 200 14" aria-hidden="true">{}</svg>')
    return box.format(Markup("").join(parts))


def drift_picture(chain: Mapping[str, Any]) -> Markup:
    """Draw the drift over the requests, added up, and the user's bound."""
    sums = np.cumsum([link["drift"] for link in chain["links"]]).tolist()
    bound = chain["max_drift"]
    label = f"Drift after {len(sums)} requests: {sums[-1]:.3g}" + (
        "" if bound is None else f"; the bound is {bound:.3g}"
    )
    return _requests(chain, [0.0, *sums], bound, label, "drift, added up")


def accuracy_picture(chain: Mapping[str, Any]) -> Markup | None:
    """Draw the accuracy over the requests, and the least that the user wants; None where it is not known."""
    links = chain["links"]
    values = [links[0]["accuracy_before"], *(link["accuracy_after"] for link in links)]
    if any(value is None for value in values):
        return None
    bound = None if chain["max_accuracy_loss"] is None else values[0] - chain["max_accuracy_loss"]
    label = f"Test accuracy over {len(links)} requests: from {values[0]:.3f} to {values[-1]:.3f}"
    label += "" if bound is None else f"; the bound is {bound:.3f}"
    return _requests(chain, values, bound, label, "test accuracy", zero=False)


def _requests(
    chain: Mapping[str, Any], values: list[float], bound: float | None, label: str, beside: str, *, zero: bool = True
) -> Markup:
    every = values if bound is None else [*values, bound]
    room = (max(every) - min(every)) * 0.1 or 0.01
    low = 0.0 if zero else min(every) - room
    frame = Frame(400, 220, (0, len(values) - 1), (low, max(every) + room), left=56)
    names = ["start", *(str(link["number"]) for link in chain["links"])]
    ticks = [tick for tick in line_ticks(0, len(values) - 1, 8) if tick == int(tick)]
    points = [(frame.x(at), frame.y(value)) for at, value in enumerate(values)]
    parts = [frame.axes("request", beside, ticks, lambda tick: names[int(tick)])]
    if bound is not None:
        parts.append(line([(frame.left, frame.y(bound)), (frame.width - frame.right, frame.y(bound))], "bound"))
    parts.append(line(points, "run0"))
    parts += [Markup('<circle class="fill after" cx="{}" cy="{}" r="3.5"/>').format(x, y) for x, y in points[:100]]
    return picture(frame.width, frame.height, label, parts)


def _points(history: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    known = [(step["iteration"], step[name]) for step in history if step[name] is not None]
    apart = -(-len(known) // _MOST_POINTS) or 1
    return known[::apart] + (known[-1:] if (len(known) - 1) % apart else [])


def _lines(lines: Mapping[str, Sequence[tuple[int, float]]], kinds: Sequence[str], label: str, beside: str) -> Markup:
    values = [value for points in lines.values() for _, value in points if value > 0]
    steps = [at for points in lines.values() for at, _ in points]
    if not values:
        return Markup("")
    low, high = min(values), max(values)
    low = max(low, high * 1e-8)  # a part that starts at almost nothing would flatten all the others
    frame = Frame(560, 280, (min(steps), max(steps)), (low, high if high > low else low * 10), log=True, left=54)
    ticks = [tick for tick in line_ticks(min(steps), max(steps), 8) if tick == int(tick)]
    parts = [frame.axes("iteration", beside, ticks, short)]
    for points, kind in zip(lines.values(), kinds, strict=True):
        # the axis is logarithmic, and zero has no place on it
        parts.append(line([(frame.x(at), frame.y(value)) for at, value in points if value >= low], kind))
    return picture(frame.width, frame.height, label, parts)
