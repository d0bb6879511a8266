"""Pictures as SVG text. Colours are Okabe and Ito's, which colour-blind people can tell apart."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

Array = np.ndarray[Any, Any]

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#999999"


def svg(figure: Figure, title: str) -> str:
    """Return a figure as an inline SVG element with an accessible title; the same figure gives the same text."""
    buffer = io.StringIO()
    about = {"Date": None, "Creator": None, "Title": title}
    with mpl.rc_context({"svg.hashsalt": title}):
        figure.savefig(buffer, format="svg", metadata=about, bbox_inches="tight")
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def map_figure(before: Mapping[str, Array], after: Mapping[str, Array]) -> Figure:
    """Draw the t-SNE of the top posteriors before and after, on one common map.

    Parameters
    ----------
    before, after : dict of str to array, shape (n, 2)
        Positions of the kept, test and forget samples.
    """
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    styles = {"kept": (GREY, "o", 8), "test": (BLUE, "s", 8), "forget": (ORANGE, "^", 30)}
    names = {"kept": "kept training samples", "test": "test samples", "forget": "forgotten samples"}
    for axis, title, points in zip(axes, ("before", "after"), (before, after), strict=True):
        for part, (colour, marker, size) in styles.items():
            axis.scatter(*points[part].T, s=size, c=colour, marker=marker, label=names[part], linewidths=0, alpha=0.8)
        axis.set(title=title, xticks=[], yticks=[])
    axes[0].legend(loc="best", fontsize=8)
    return figure


def curve_figure(history: Sequence[Mapping[str, float]]) -> Figure:
    """Draw the objective and its parts over the iterations."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axis = figure.subplots()
    steps = [step["iteration"] for step in history]
    lines = {"objective": (GREY, "-"), "distance": (ORANGE, "-"), "anchor": (BLUE, "--"), "penalty": (GREEN, ":")}
    for name, (colour, style) in lines.items():
        axis.plot(steps, [step[name] for step in history], color=colour, linestyle=style, label=name)
    axis.set(xlabel="iteration", yscale="log")
    axis.legend(fontsize=8)
    return figure


def confidence_figure(confidence: Mapping[str, Array]) -> Figure:
    """Draw histograms of the forget samples' largest posterior, one panel a model."""
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    axes = figure.subplots(1, len(confidence), sharex=True, sharey=True)
    bins = np.linspace(0, 1, 21)
    colours = (ORANGE, GREEN, BLUE)
    for axis, colour, (name, values) in zip(axes, colours, confidence.items(), strict=True):
        axis.hist(values, bins=bins.tolist(), color=colour)
        axis.axvline(float(np.mean(values)), color="black", linestyle="--", linewidth=1)
        axis.set(title=f"{name} (mean {np.mean(values):.2f})", xlabel="largest posterior")
    axes[0].set_ylabel("forget samples")
    return figure
