"""The pictures of a page as inline SVG. The page's style sheet colours them, in its light and in its dark theme."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup
from threadpoolctl import threadpool_limits  # type: ignore[import-not-found,import-untyped,unused-ignore]

from forsaken.auditing.result import Curve, Divergence, Spread
from forsaken.report.words import AGAINST, clipped
from forsaken.result import ChainSummary, Result, Step
from forsaken.types import Array

LINES = 8  # that the style sheet can tell apart in one picture
SPREADS = 12  # small pictures that one look can take in
_BINS = 20
_MAX_POINTS = 400  # of a curve; more would not show
_MAX_DECADES = 6  # labels of a logarithmic axis
_LEAST_RATE = 1e-3  # where both axes of a ROC curve start
_MARKED_RATES = (0.001, 0.01, 0.1)  # false positive rates at which a curve tells its value
_COLUMNS = 241  # of a ROC curve: 80 a decade, finer than the eye
_MAX_MARGIN = 100.0  # as KLoM clips margins
_MAP_SAMPLES, _MAP_FORGOTTEN = 500, 300  # points before and after: t-SNE takes a second or two
_MAP_OTHERS = ("kept", "test", "reference")
_FEW = 5  # different points, below which there is nothing for t-SNE to arrange
_PERPLEXITY = 30.0


def element(name: str, kind: str = "", *content: object, **attributes: object) -> Markup:
    """Return an SVG element of the style `kind`; texts and attributes are escaped, and `data_i` stands for `data-i`.

    >>> print(element("text", "mid", "<b>", x=1.25))
    <text class="mid" x="1.2">&lt;b&gt;</text>
    """
    named = {"class": kind} | attributes if kind else attributes
    told = Markup("").join(
        Markup(' {}="{}"').format(key.replace("_", "-"), f"{round(value, 1):g}" if isinstance(value, float) else value)
        for key, value in named.items()
    )
    inside = Markup("").join(content)  # type: ignore[arg-type]
    return Markup("<{0}{1}>{2}</{0}>").format(name, told, inside) if inside else Markup("<{}{}/>").format(name, told)


def line(points: Iterable[tuple[float, float]], kind: str) -> Markup:
    """Return a line through points in the picture's units; `kind` names its colour and dashes in the style sheet."""
    path = "L".join(f"{x:g} {y:g}" for x, y in points)
    return element("path", f"line {kind}", d=f"M{path}") if path else Markup("")


def hover(text: str, *shapes: Markup) -> Markup:
    """Return shapes that tell a text when pointed at."""
    return element("g", "", element("title", "", text), *shapes)


@dataclass(frozen=True, slots=True)
class Plot:
    """A plane with axes: where a value lies, in the picture's units."""

    width: int
    height: int
    across: tuple[float, float]
    upward: tuple[float, float] = (0, 1)
    log_upward: bool = False
    log_across: bool = False
    left: int = 46
    right: int = 12
    top: int = 10
    bottom: int = 36

    @property
    def base(self) -> int:
        """Where the horizontal axis lies."""
        return self.height - self.bottom

    @property
    def end(self) -> int:
        """Where the horizontal axis ends."""
        return self.width - self.right

    def x(self, value: float) -> float:
        """Return how far right a value lies."""
        return round(self.left + (self.end - self.left) * _part(value, *self.across, log=self.log_across), 1)

    def y(self, value: float) -> float:
        """Return how far down a value lies."""
        return round(self.base - (self.base - self.top) * _part(value, *self.upward, log=self.log_upward), 1)

    def horizontal(
        self, ticks: Sequence[float], text: Callable[[float], str] | None = None, *, grid: bool = False
    ) -> Markup:
        """Draw the horizontal axis with numbers below it, and upright lines through the picture with `grid`."""
        parts = [element("path", "axis", d=f"M{self.left} {self.base}H{self.end}")]
        for tick in ticks:
            here = self.x(tick)
            parts.append(element("path", "axis", d=f"M{here:g} {self.base}v4"))
            parts.append(element("text", "mid", (text or short)(tick), x=here, y=self.base + 16))
            if grid:
                parts.append(element("path", "grid", d=f"M{here:g} {self.top}V{self.base}"))
        return Markup("").join(parts)

    def axes(
        self,
        title: str,
        beside: str,
        ticks: Sequence[float],
        text: Callable[[float], str] | None = None,
        *,
        grid: bool = False,
    ) -> Markup:
        """Draw both axes with their names; `ticks` are those of the horizontal one, written with `text`."""
        upright = element("path", "axis", d=f"M{self.left} {self.top}V{self.base}")
        parts = [self.horizontal(ticks, text, grid=grid), upright]
        for tick in log_ticks(*self.upward) if self.log_upward else line_ticks(*self.upward):
            here = self.y(tick)
            parts.append(element("path", "grid", d=f"M{self.left} {here:g}H{self.end}"))
            parts.append(element("text", "end", short(tick), x=self.left - 6, y=here + 4))
        parts.append(element("text", "mid", title, x=(self.left + self.end) / 2, y=self.height - 4))
        turned = f"translate(11 {(self.top + self.base) / 2:g}) rotate(-90)"
        parts.append(element("text", "mid", beside, transform=turned))
        return Markup("").join(parts)

    def picture(self, label: str, parts: Iterable[Markup], kind: str = "picture") -> Markup:
        """Return the whole picture; `label` tells its content to those who cannot see it."""
        return element("svg", kind, *parts, viewBox=f"0 0 {self.width} {self.height}", role="img", aria_label=label)


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
    apart = max(1, math.ceil((last - first + 1) / _MAX_DECADES))
    return [10.0**power for power in range(first, last + 1, apart)] or [low, high]


def short(value: float) -> str:
    """Return a number of an axis.

    >>> short(0.2), short(20000.0), short(1e-6)
    ('0.2', '20,000', '1e-06')
    """
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def _part(value: float, low: float, high: float, *, log: bool) -> float:
    if log:
        value, low, high = math.log10(value), math.log10(low), math.log10(high)
    return 0.5 if high <= low else (value - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Panel:
    """A histogram of largest posteriors with what its caption says."""

    title: str
    count: int
    mean: float
    unseen: bool
    picture: Markup


def histograms(result: Result, arrays: Mapping[str, Array]) -> list[Panel]:
    """Draw the largest posteriors of the records under each model, and of samples never trained on, on one scale."""
    wanted = {
        "records, before": ("before_forget", "forget"),
        "records, after": ("after_forget", "after"),
        "records, retrained": ("retrained_forget", "retrained"),
    }
    against = result.separation.against if result.separation else "reference"
    for unseen in (against, "test" if against == "reference" else "reference"):
        if len(arrays.get(f"after_{unseen}", ())):
            wanted[f"{AGAINST[unseen]}, after"] = (f"after_{unseen}", "unseen")
            break
    found = {title: (arrays[name][:, 0], kind) for title, (name, kind) in wanted.items() if name in arrays}
    if "records, before" not in found:
        return []  # too few records for a picture that says nothing about one of them
    edges = np.linspace(0, 1, _BINS + 1)
    shares = {title: np.histogram(np.clip(part, 0, 1), edges)[0] / len(part) for title, (part, _) in found.items()}
    plot = Plot(300, 190, (0, 1), (0, max(float(part.max()) for part in shares.values())), top=14)
    drawn = []
    for title, (values, kind) in found.items():
        mean = float(values.mean())
        parts = [plot.axes("largest posterior", "share of samples", (0, 0.25, 0.5, 0.75, 1))]
        for start, share in zip(edges.tolist(), shares[title].tolist(), strict=False):
            if share:
                top = plot.y(share)
                parts.append(
                    element("rect", f"fill {kind}", x=plot.x(start), y=top, width=11.5, height=plot.base - top)
                )
        parts.append(line([(plot.x(mean), plot.top), (plot.x(mean), plot.base)], "mean"))
        label = f"Histogram, {title}: the mean largest posterior of {len(values):,} samples is {mean:.2f}"
        drawn.append(Panel(title, len(values), mean, kind == "unseen", plot.picture(label, parts)))
    return drawn


def objective_curve(history: Sequence[Step]) -> Markup:
    """Draw the objective and its parts over the iterations of one run; empty where there is nothing to draw."""
    names = ("objective", "distance", "anchor", "penalty")
    lines = {name: [(step.iteration, float(getattr(step, name))) for step in history] for name in names}
    label = f"The objective and its parts over {len(history)} iterations"
    label += f"; it ends at {history[-1].objective:.3g}" if history else ""
    return _curves(lines, label, "value, logarithmic")


def objective_curves(runs: Sequence[Result]) -> Markup:
    """Draw the objectives of several runs into one picture, each relative to its own first value."""
    lines = {}
    for number, run in enumerate(runs[:LINES]):
        first = run.history[0].objective if run.history else 0
        lines[f"run{number}"] = [(step.iteration, step.objective / first) for step in run.history if first > 0]
    return _curves(lines, f"The objectives of {len(lines)} runs over the iterations", "relative objective")


def _curves(lines: Mapping[str, Sequence[tuple[int, float]]], label: str, beside: str) -> Markup:
    values = [value for points in lines.values() for _, value in points if value > 0]
    steps = [at for points in lines.values() for at, _ in points]
    if not values:
        return Markup("")
    low, high = min(values), max(values)
    low = max(low, high * 1e-8)  # a part that starts at almost nothing would flatten all the others
    plot = Plot(560, 280, (min(steps), max(steps)), (low, high if high > low else low * 10), log_upward=True, left=54)
    ticks = [tick for tick in line_ticks(min(steps), max(steps), 8) if tick == int(tick)]
    parts = [plot.axes("iteration", beside, ticks)]
    for kind, points in lines.items():
        apart = -(-len(points) // _MAX_POINTS) or 1
        fewer = [*points[::apart], *(points[-1:] if (len(points) - 1) % apart else [])]
        # the axis is logarithmic, and zero has no place on it
        parts.append(line([(plot.x(at), plot.y(value)) for at, value in fewer if value >= low], kind))
    return plot.picture(label, parts)


def drift_picture(chain: ChainSummary) -> Markup:
    """Draw the drift over the requests, added up, and the user's bound."""
    sums = np.cumsum([link.drift for link in chain.links]).tolist()
    label = f"Drift after {len(sums)} requests: {sums[-1]:.3g}"
    label += "" if chain.max_drift is None else f"; the bound is {chain.max_drift:.3g}"
    return _requests(chain, [0.0, *sums], chain.max_drift, label, "drift, added up")


def accuracy_picture(chain: ChainSummary) -> Markup | None:
    """Draw the accuracy over the requests, and the least that the user wants; None where it is not known."""
    known = [chain.links[0].accuracy_before, *(link.accuracy_after for link in chain.links)]
    values = [value for value in known if value is not None]
    if len(values) < len(known):
        return None
    bound = None if chain.max_accuracy_loss is None else values[0] - chain.max_accuracy_loss
    label = f"Test accuracy over {len(chain.links)} requests: from {values[0]:.3f} to {values[-1]:.3f}"
    label += "" if bound is None else f"; the bound is {bound:.3f}"
    return _requests(chain, values, bound, label, "test accuracy", zero=False)


def _requests(
    chain: ChainSummary, values: list[float], bound: float | None, label: str, beside: str, *, zero: bool = True
) -> Markup:
    every = values if bound is None else [*values, bound]
    room = (max(every) - min(every)) * 0.1 or 0.01
    low = 0.0 if zero else min(every) - room
    plot = Plot(400, 220, (0, len(values) - 1), (low, max(every) + room), left=56)
    names = ["start", *(str(link.number) for link in chain.links)]
    ticks = [tick for tick in line_ticks(0, len(values) - 1, 8) if tick == int(tick)]
    points = [(plot.x(at), plot.y(value)) for at, value in enumerate(values)]
    parts = [plot.axes("request", beside, ticks, lambda tick: names[int(tick)])]
    if bound is not None:
        parts.append(line([(plot.left, plot.y(bound)), (plot.end, plot.y(bound))], "bound"))
    parts.append(line(points, "run0"))
    parts += [element("circle", "fill after", cx=x, cy=y, r=3.5) for x, y in points[:100]]
    return plot.picture(label, parts)


def roc_picture(curves: Sequence[Curve]) -> Markup:
    """Draw ROC curves on logarithmic axes, beside the diagonal of a guess; at most as many as can be told apart."""
    plot = Plot(420, 380, (_LEAST_RATE, 1), (_LEAST_RATE, 1), log_upward=True, log_across=True, left=56, bottom=40)
    grid = np.logspace(math.log10(_LEAST_RATE), 0, _COLUMNS)
    parts = [plot.axes("false positive rate", "true positive rate", log_ticks(_LEAST_RATE, 1), grid=True)]
    diagonal = line([(plot.left, plot.base), (plot.end, plot.top)], "guess")
    parts.append(hover("a guess: both rates are the same", diagonal))
    told = []
    for number, curve in enumerate(curves[:LINES]):
        name = clipped(curve.name, 60)
        # zero has no place on the axis: what lies below the lowest line is drawn on it
        heights = np.maximum(reached(curve, grid), _LEAST_RATE)
        points = [(plot.x(x), plot.y(y)) for x, y in zip(grid.tolist(), heights.tolist(), strict=True)]
        parts.append(hover(name, line(points, f"run{number}")))
        rates = dict(zip(_MARKED_RATES, reached(curve, np.array(_MARKED_RATES)).tolist(), strict=True))
        for at, rate in rates.items():
            spot = element("circle", f"spot line run{number}", cx=plot.x(at), cy=plot.y(max(rate, _LEAST_RATE)), r=3.5)
            parts.append(hover(f"{name}: TPR {rate:.3f} at FPR {at:g}", spot))
        told.append(f"{name}: true positive rate {rates[0.01]:.3f} at 1 % false positives")
    return plot.picture(f"ROC curves on logarithmic axes. {'; '.join(told)}", parts)


def reached(curve: Curve, rates: Array) -> Array:
    """Return the largest true positive rate that costs no more than each false positive rate.

    >>> reached(Curve(name="", fpr=(0, 0.1, 1), tpr=(0.2, 0.5, 1)), np.array([0.05, 0.1, 0.5]))
    array([0.2, 0.5, 0.5])
    """
    # a logarithmic grid misses round rates by a rounding error
    last = np.searchsorted(np.asarray(curve.fpr, dtype=np.float64), rates * (1 + 1e-9), side="right")
    found: Array = np.array([0.0, *curve.tpr])[last]
    return found


def margin_picture(spread: Spread, name: str) -> Markup:
    """Draw the margins of one sample: unlearned filled, retrained as an outline, before faint."""
    drawn = {"before": spread.before, "unlearned": spread.unlearned, "retrained": spread.retrained}
    margins = {model: np.clip(part, -_MAX_MARGIN, _MAX_MARGIN) for model, part in drawn.items() if len(part)}
    every = np.concatenate(list(margins.values()))
    low, high = float(every.min()), float(every.max())
    if high - low < 1e-6:
        low, high = low - 0.5, high + 0.5
    # the last bin is closed, as in KLoM: the largest value belongs to it
    counts = {model: np.histogram(part, _BINS, (low, high))[0] for model, part in margins.items()}
    tallest = max(float(part.max() / part.sum()) for part in counts.values())
    plot = Plot(220, 130, (low, high), (0, tallest), left=8, right=8, top=8, bottom=24)
    edges = np.linspace(low, high, _BINS + 1).tolist()
    parts = [plot.horizontal(line_ticks(low, high, 4))]
    kinds = {"before": "fill faint forget", "unlearned": "fill after", "retrained": "stairs retrained"}
    for model, part in counts.items():
        ends = zip((part / part.sum()).tolist(), edges[1:], strict=True)
        stairs = "".join(f"V{plot.y(share):g}H{plot.x(edge):g}" for share, edge in ends)
        parts.append(element("path", kinds[model], d=f"M{plot.x(low):g} {plot.base}{stairs}V{plot.base}"))
    told = [model for model in ("unlearned", "retrained", "before") if model in counts]
    for at, (left, right) in enumerate(pairwise(edges)):
        held = [f"{model} {counts[model][at]} of {counts[model].sum()}" for model in told if counts[model][at]]
        if held:
            wide = plot.x(right) - plot.x(left)
            column = element("rect", "touch", x=plot.x(left), y=plot.top, width=wide, height=plot.base - plot.top)
            parts.append(hover(f"margin {left:.2f} to {right:.2f}: {', '.join(held)}", column))
    means = ", ".join(f"{model} {margins[model].mean():.2f} ({len(margins[model])} models)" for model in told)
    return plot.picture(f"Margins of {name}; means: {means}", parts)


def klom_picture(found: Sequence[Divergence]) -> Markup:
    """Draw the mean and the 95th percentile of KLoM on each set, between a floor and a ceiling."""
    every = [number for each in found for pair in (each.value, each.floor, each.ceiling) for number in pair]
    across = (min(0.0, *every), max(1.05 * max(every), 1e-3))
    plot = Plot(560, 44 + 74 * len(found), across, left=76, right=16)
    parts = [plot.horizontal(line_ticks(*across, 6), grid=True)]
    parts.append(element("text", "mid", "KLoM", x=318, y=plot.height - 2))
    told = []
    for number, each in enumerate(found):
        top = plot.top + 74 * number
        parts.append(element("text", "strong", f"{each.part} ({each.n:,})", x=0, y=top + 12))
        for row, name in enumerate(("mean", "95 %")):
            value, floor, ceiling = each.value[row], each.floor[row], each.ceiling[row]
            now, low, high = plot.x(value), plot.x(floor), plot.x(ceiling)
            text, y = f"unlearned {value:.3g}, floor {floor:.3g}, ceiling {ceiling:.3g}", top + 30 + 24 * row
            marks = (
                element("rect", "empty", x=min(low, high), y=y - 4, width=abs(high - low), height=8),
                element("path", "stop retrained", d=f"M{low:g} {y - 8}v16"),
                element("path", "stop forget", d=f"M{high:g} {y - 8}v16"),
                element("path", "fill after", d=f"M{now:g} {y - 6}l6 6-6 6-6-6z"),
            )
            parts.append(element("text", "end", name, x=68, y=y + 4))
            parts.append(hover(f"{each.part}, {name}: {text}", *marks))
            told.append(f"{each.part}, {'mean' if row == 0 else '95th percentile'}: {text}")
    return plot.picture(f"KLoM. {'; '.join(told)}", parts)


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """Positions of samples on one common map, so that what moved on the page moved in the model.

    Attributes
    ----------
    before, after : dict of str to array, shape (n, 2)
        By set: forget, and those of kept, test and reference that there are; all within 0 to 1.
    forgotten : list of int
        Which forget samples are shown.
    embedded : bool
        Whether t-SNE arranged them; otherwise the two largest posteriors are the axes.
    """

    before: Mapping[str, Array]
    after: Mapping[str, Array]
    forgotten: list[int]
    embedded: bool

    @classmethod
    def of(cls, arrays: Mapping[str, Array]) -> Map:
        """Arrange the samples of a run by their three largest posteriors; the same arrays give the same map."""
        rows = _chosen(arrays)
        points = [arrays[f"{when}_{part}"][chosen] for when in ("before", "after") for part, chosen in rows.items()]
        spots, embedded = _arranged(np.concatenate(points).astype(np.float64))
        parts = np.split(spots, np.cumsum([len(part) for part in points])[:-1])
        before, after = parts[: len(rows)], parts[len(rows) :]
        return cls(
            dict(zip(rows, before, strict=True)), dict(zip(rows, after, strict=True)), rows["forget"].tolist(), embedded
        )

    def picture(self, when: str, tip: Callable[[int, str], str]) -> Markup:
        """Draw the map "before" or "after"; pointing at a forget sample shows what `tip` says of its number."""
        spots = self.before if when == "before" else self.after
        plot = Plot(400, 340, (0, 1), left=10, right=10, top=10, bottom=10)
        parts = [element("rect", "plate", x=0.5, y=0.5, width=399, height=339, rx=6)]
        for name in _MAP_OTHERS:
            if name in spots:
                # "h0" with a round or square cap is a dot or a square; the plus sign is two strokes
                mark, shift = ("h6m-3-3v6", 3) if name == "reference" else ("h0", 0)
                path = "".join(f"M{plot.x(x) - shift:g} {plot.y(y):g}{mark}" for x, y in spots[name])
                parts.append(element("path", f"dots {name}", d=path))
        for (x, y), number in zip(spots["forget"], self.forgotten, strict=True):
            triangle = f"M{plot.x(x):g} {plot.y(y) - 6:g}l5 9h-10z"
            parts.append(element("path", "point", data_i=number, data_tip=tip(number, when), d=triangle))
        shown = ", ".join(f"{len(part):,} {name}" for name, part in spots.items())
        return plot.picture(f"Map of the samples {when} forgetting: {shown}", parts, "map")


def _chosen(arrays: Mapping[str, Array]) -> dict[str, Array]:
    draw = np.random.default_rng(0)
    rows = {"forget": _some(draw, len(arrays["before_forget"]), _MAP_FORGOTTEN)}
    others = [part for part in _MAP_OTHERS if {f"before_{part}", f"after_{part}"} <= arrays.keys()]
    sizes = {part: len(arrays[f"before_{part}"]) for part in others if len(arrays[f"before_{part}"])}
    room = _MAP_SAMPLES - len(rows["forget"])
    for done, part in enumerate(sorted(sizes, key=lambda name: (sizes[name], name))):
        # small sets first: what they leave free, the larger ones may use
        rows[part] = _some(draw, sizes[part], room // (len(sizes) - done))
        room -= len(rows[part])
    return rows


def _some(draw: np.random.Generator, size: int, most: int) -> Array:
    return np.sort(draw.choice(size, min(size, most), replace=False))


def _arranged(points: Array) -> tuple[Array, bool]:
    different = len(np.unique(points.round(9), axis=0))
    if different < _FEW or points.shape[1] < 2:
        second = points[:, 1] if points.shape[1] > 1 else np.zeros(len(points))
        return np.column_stack([points[:, 0], second]), False
    from sklearn.manifold import TSNE  # noqa: PLC0415 (slow to import, and few pages have a map)

    perplexity = min(_PERPLEXITY, (len(points) - 1) / 3)
    with threadpool_limits(1):  # several threads add up in any order, and the page would differ from run to run
        spots = TSNE(init="pca", perplexity=perplexity, max_iter=500, random_state=0).fit_transform(points)
    low, high = spots.min(0), spots.max(0)
    return (spots - low) / np.maximum(high - low, 1e-12), True
