"""The pictures of an audit: ROC curves, margins of the worst samples, KLoM beside its floor and ceiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from forsaken.report.figures import LINES
from forsaken.report.svg import Frame, hover, line, line_ticks, log_ticks, picture, short
from forsaken.report.words import clipped
from forsaken.types import Array

LEAST = 1e-3  # where both axes of a ROC curve start
MARKED = (0.001, 0.01, 0.1)  # false positive rates at which a curve tells its value
_COLUMNS = 241  # of a ROC curve: 80 a decade, finer than the eye
_BINS = 20
_CLIP = 100.0  # as KLoM clips margins
_NARROW = 1e-6  # a range of margins too small to divide
_MODELS = {"unlearned": "after", "retrained": "retrained", "before": "forget"}


def roc_picture(curves: Sequence[Mapping[str, Any]]) -> Markup:
    """Draw ROC curves on logarithmic axes, beside the diagonal of a guess; at most as many as can be told apart."""
    frame = Frame(420, 380, (LEAST, 1), (LEAST, 1), log=True, log_across=True, left=56, bottom=40)
    grid = np.logspace(np.log10(LEAST), 0, _COLUMNS)
    ticks = log_ticks(LEAST, 1)
    parts = [frame.axes("false positive rate", "true positive rate", ticks, short)]
    upright = Markup('<path class="grid" d="M{} {}V{}"/>')
    parts += [upright.format(frame.x(tick), frame.top, frame.y(LEAST)) for tick in ticks[1:]]
    diagonal = line([(frame.x(LEAST), frame.y(LEAST)), (frame.x(1), frame.y(1))], "guess")
    parts.append(hover(diagonal, "a guess: both rates are the same"))
    told = []
    for number, curve in enumerate(curves[:LINES]):
        name, rates = clipped(curve["name"], 60), reached(curve, grid)
        # zero has no place on the axis: what lies below the lowest line is drawn on it
        points = [(frame.x(x), frame.y(max(y, LEAST))) for x, y in zip(grid.tolist(), rates.tolist(), strict=True)]
        parts.append(hover(line(points, f"run{number}"), name))
        for at, rate in zip(MARKED, reached(curve, np.array(MARKED)).tolist(), strict=True):
            dot = Markup('<circle class="spot line run{}" cx="{}" cy="{}" r="3.5"/>')
            spot = dot.format(number, frame.x(at), frame.y(max(rate, LEAST)))
            parts.append(hover(spot, f"{name}: TPR {rate:.3f} at FPR {at:g}"))
        told.append(f"{name}: true positive rate {reached(curve, np.array([0.01]))[0]:.3f} at 1 % false positives")
    return picture(frame.width, frame.height, f"ROC curves on logarithmic axes. {'; '.join(told)}", parts)


def reached(curve: Mapping[str, Any], rates: Array) -> Array:
    """Return the largest true positive rate that costs no more than each false positive rate.

    >>> reached({"fpr": [0, 0.1, 1], "tpr": [0.2, 0.5, 1]}, np.array([0.05, 0.1, 0.5]))
    array([0.2, 0.5, 0.5])
    """
    fpr, tpr = np.asarray(curve["fpr"], dtype=np.float64), np.asarray(curve["tpr"], dtype=np.float64)
    # a logarithmic grid misses round rates by a rounding error
    last = np.searchsorted(fpr, rates * (1 + 1e-9), side="right")
    found: Array = np.append(0.0, tpr)[last]
    return found


def margin_picture(spread: Mapping[str, Any], name: str) -> Markup:
    """Draw the margins of one sample: unlearned filled, retrained as an outline, before faint."""
    margins = {model: np.clip(spread[model], -_CLIP, _CLIP) for model in _MODELS if len(spread[model])}
    low, high = (float(end([end(part) for part in margins.values()])) for end in (np.min, np.max))
    if high - low < _NARROW:
        low, high = low - 0.5, high + 0.5
    counts = {model: _counts(part, low, high) for model, part in margins.items()}
    shares = {model: part / part.sum() for model, part in counts.items()}
    tallest = max(float(part.max()) for part in shares.values())
    frame = Frame(220, 130, (low, high), (0, tallest), left=8, right=8, top=8, bottom=24)
    edges = np.linspace(low, high, _BINS + 1).tolist()
    base = frame.height - frame.bottom
    parts = [Markup('<path class="axis" d="M{} {}H{}"/>').format(frame.left, base, frame.width - frame.right)]
    for tick in line_ticks(low, high, 4):
        text = Markup('<text class="mid" x="{}" y="{}">{}</text>')
        parts.append(Markup('<path class="axis" d="M{} {}v4"/>').format(frame.x(tick), base))
        parts.append(text.format(frame.x(tick), base + 17, short(tick)))
    for model in ("before", "unlearned", "retrained"):
        if model in shares:
            kind = "stairs" if model == "retrained" else "fill" if model == "unlearned" else "fill faint"
            steps = _stairs(frame, edges, shares[model].tolist())
            parts.append(Markup('<path class="{} {}" d="{}"/>').format(kind, _MODELS[model], steps))
    for at in range(_BINS):
        held = [f"{model} {int(part[at])} of {int(part.sum())}" for model, part in counts.items() if part[at]]
        if held:
            x, wide = frame.x(edges[at]), frame.x(edges[at + 1]) - frame.x(edges[at])
            column = Markup('<rect class="touch" x="{}" y="{}" width="{:.1f}" height="{}"/>')
            told = f"margin {edges[at]:.2f} to {edges[at + 1]:.2f}: {', '.join(held)}"
            parts.append(hover(column.format(x, frame.top, wide, base - frame.top), told))
    means = ", ".join(f"{model} {part.mean():.2f} ({len(part)} models)" for model, part in margins.items())
    return picture(frame.width, frame.height, f"Margins of {name}; means: {means}", parts)


def klom_picture(found: Sequence[Mapping[str, Any]]) -> Markup:
    """Draw the mean and the 95th percentile of KLoM on each set, between a floor and a ceiling."""
    pairs = ("value", "floor", "ceiling")
    every = [number for each in found for name in pairs for number in each[name]]
    high = max(1.05 * max(every), 1e-3)
    frame = Frame(560, 44 + 74 * len(found), (min(0.0, *every), high), (0, 1), left=76, right=16)
    base = frame.height - frame.bottom
    parts = [Markup('<path class="axis" d="M{} {}H{}"/>').format(frame.left, base, frame.width - frame.right)]
    for tick in line_ticks(*frame.across, 6):
        parts.append(Markup('<path class="grid" d="M{} {}V{}"/>').format(frame.x(tick), frame.top, base))
        parts.append(Markup('<text class="mid" x="{}" y="{}">{}</text>').format(frame.x(tick), base + 16, short(tick)))
    parts.append(Markup('<text class="mid" x="{}" y="{}">KLoM</text>').format(318, frame.height - 2))
    told = []
    for number, each in enumerate(found):
        top = frame.top + 74 * number
        parts.append(
            Markup('<text class="strong" x="0" y="{}">{} ({:,})</text>').format(top + 12, each["part"], each["n"])
        )
        for row, name in enumerate(("mean", "95 %")):
            value, floor, ceiling = (each[pair][row] for pair in pairs)
            line_of = f"unlearned {value:.3g}, floor {floor:.3g}, ceiling {ceiling:.3g}"
            y = top + 30 + 24 * row
            parts.append(Markup('<text class="end" x="68" y="{}">{}</text>').format(y + 4, name))
            parts.append(hover(_marks(frame, y, value, floor, ceiling), f"{each['part']}, {name}: {line_of}"))
            told.append(f"{each['part']}, {'mean' if row == 0 else '95th percentile'}: {line_of}")
    return picture(frame.width, frame.height, f"KLoM. {'; '.join(told)}", parts)


def _marks(frame: Frame, y: float, value: float, floor: float, ceiling: float) -> Markup:
    now, low, high = (frame.x(mark) for mark in (value, floor, ceiling))
    left, right = min(low, high), max(low, high)
    band = Markup('<rect class="empty" x="{}" y="{}" width="{:.1f}" height="8"/>').format(left, y - 4, right - left)
    bars = Markup('<path class="stop retrained" d="M{} {}v16"/><path class="stop forget" d="M{} {}v16"/>')
    diamond = Markup('<path class="fill after" d="M{} {}l6 6-6 6-6-6z"/>').format(now, y - 6)
    return band + bars.format(low, y - 8, high, y - 8) + diamond


def _counts(values: Array, low: float, high: float) -> Array:
    # the last bin is closed, as in KLoM: the largest value belongs to it
    places = np.minimum(((values - low) / (high - low) * _BINS).astype(np.int64), _BINS - 1)
    found: Array = np.bincount(places, minlength=_BINS)
    return found


def _stairs(frame: Frame, edges: Sequence[float], shares: Sequence[float]) -> str:
    steps = "".join(f"V{frame.y(share):g}H{frame.x(edge):g}" for share, edge in zip(shares, edges[1:], strict=True))
    return f"M{frame.x(edges[0]):g} {frame.y(0):g}{steps}V{frame.y(0):g}"
