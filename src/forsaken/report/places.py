"""The map: where the samples lie by the model's three largest posteriors, before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits  # type: ignore[import-not-found,import-untyped,unused-ignore]

from forsaken.report.svg import Frame, picture
from forsaken.types import Array

OTHERS = ("kept", "test", "reference")
MOST = 500  # samples, each a point before and a point after: t-SNE takes a second or two
MOST_FORGET = 300
_FEW = 5  # different points, below which there is nothing for t-SNE to arrange
_PERPLEXITY = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Positions on one common map, so that what moved on the page moved in the model.

    Attributes
    ----------
    before, after : dict of str to array, shape (n, 2)
        By set: forget, and those of kept, test and reference that there are; all within 0 to 1.
    forgotten : array of int
        Which forget samples are shown.
    embedded : bool
        Whether t-SNE arranged them; otherwise the two largest posteriors are the axes.
    """

    before: Mapping[str, Array]
    after: Mapping[str, Array]
    forgotten: Array
    embedded: bool


def places(arrays: Mapping[str, Array]) -> Places:
    """Arrange the samples of a run; the same arrays give the same map."""
    rows = _chosen(arrays)
    points = [arrays[f"{when}_{part}"][chosen] for when in ("before", "after") for part, chosen in rows.items()]
    spots, embedded = _arranged(np.concatenate(points).astype(np.float64))
    parts = np.split(spots, np.cumsum([len(part) for part in points])[:-1])
    names, half = list(rows), len(rows)
    before, after = dict(zip(names, parts[:half], strict=True)), dict(zip(names, parts[half:], strict=True))
    return Places(before, after, rows["forget"], embedded)


def panel(spots: Mapping[str, Array], tips: Sequence[str], forgotten: Sequence[int], when: str) -> Markup:
    """Draw one side of the map; hovering over a forget sample shows its tip.

    Parameters
    ----------
    spots : dict of str to array, shape (n, 2)
        One of `Places.before` and `Places.after`.
    tips : list of str
        What to say of each forget sample shown.
    forgotten : list of int
        Their numbers, which tie a point to its twin on the other side.
    when : str
        "before" or "after", for those who cannot see the picture.
    """
    frame = Frame(400, 340, (0, 1), (0, 1), left=10, right=10, top=10, bottom=10)
    parts = [Markup('<rect class="plate" x="0.5" y="0.5" width="399" height="339" rx="6"/>')]
    for name in OTHERS:
        if name in spots:
            # "h0" with a round or square cap is a dot or a square; the plus sign is two strokes
            mark = "h6m-3-3v6" if name == "reference" else "h0"
            shift = 3 if name == "reference" else 0
            path = "".join(f"M{frame.x(x) - shift:g} {frame.y(y):g}{mark}" for x, y in spots[name])
            parts.append(Markup('<path class="dots {}" d="{}"/>').format(name, path))
    triangle = Markup('<path class="point" data-i="{}" data-tip="{}" d="M{:g} {:g}l5 9h-10z"/>')
    for (x, y), tip, number in zip(spots["forget"], tips, forgotten, strict=True):
        parts.append(triangle.format(number, tip, frame.x(x), frame.y(y) - 6))
    shown = ", ".join(f"{len(part):,} {name}" for name, part in spots.items())
    return picture(frame.width, frame.height, f"Map of the samples {when} forgetting: {shown}", parts, "map")


def _chosen(arrays: Mapping[str, Array]) -> dict[str, Array]:
    draw = np.random.default_rng(0)
    rows = {"forget": _some(draw, len(arrays["before_forget"]), MOST_FORGET)}
    others = [part for part in OTHERS if {f"before_{part}", f"after_{part}"} <= arrays.keys()]
    sizes = {part: len(arrays[f"before_{part}"]) for part in others if len(arrays[f"before_{part}"])}
    room = MOST - len(rows["forget"])
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
    perplexity = min(_PERPLEXITY, (len(points) - 1) / 3)
    with threadpool_limits(1):  # several threads add up in any order, and the page would differ from run to run
        spots = TSNE(init="pca", perplexity=perplexity, max_iter=500, random_state=0).fit_transform(points)
    low, high = spots.min(0), spots.max(0)
    return (spots - low) / np.maximum(high - low, 1e-12), True
