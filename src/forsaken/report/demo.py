"""The page of the demonstration, from its saved result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from sklearn.manifold import TSNE

from forsaken._files import write_atomically
from forsaken.errors import OutputError
from forsaken.report.figures import confidence_figure, curve_figure, map_figure, svg

RESULT, ARRAYS, REPORT = "result.json", "posteriors.npz", "report.html"
_PARTS = ("kept", "test", "forget")

Array = np.ndarray[Any, Any]


def write_report(folder: Path) -> Path:
    """Read a demonstration's result from `folder` and write report.html beside it."""
    result, arrays = _read(folder)
    page = render(result, arrays)
    return write_atomically(folder / REPORT, page.encode())


def render(result: Mapping[str, Any], arrays: Mapping[str, Array]) -> str:
    """Return the page as one self-contained HTML text."""
    before, after = _maps(arrays)
    confidence = {
        "before": arrays["before_forget"][:, 0],
        "after forgetting": arrays["after_forget"][:, 0],
        "retrained": arrays["retrained_forget"][:, 0],
    }
    pictures = {
        "map": svg(map_figure(before, after), "t-SNE of the three largest posteriors before and after"),
        "curve": svg(curve_figure(result["history"]), "objective over the iterations"),
        "confidence": svg(confidence_figure(confidence), "largest posteriors of the forget samples"),
    }
    environment = Environment(loader=PackageLoader("forsaken.report"), autoescape=True, undefined=StrictUndefined)
    page: str = environment.get_template("demo.html").render(r=result, pictures=pictures, rate=rate, share=_share)
    return page


def rate(value: float | None) -> str:
    """Return a rate for people; undefined where the oracle saw no member to begin with."""
    return "n/a" if value is None else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "n/a (nothing was memorised)" if value is None else f"{value:.0%}"


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    try:
        result = json.loads((folder / RESULT).read_bytes())
        with np.load(folder / ARRAYS, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise OutputError(f"cannot read the result in {folder}: {error}; run the demonstration again") from error
    return result, arrays


def _maps(arrays: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    # One map for both, so that what moved on the page moved in the model.
    points = [arrays[f"{when}_{part}"] for when in ("before", "after") for part in _PARTS]
    ends = np.cumsum([len(part) for part in points])[:-1]
    places = TSNE(init="pca", perplexity=30, random_state=0).fit_transform(np.concatenate(points))
    parts = np.split(places, ends)
    return dict(zip(_PARTS, parts[:3], strict=True)), dict(zip(_PARTS, parts[3:], strict=True))
