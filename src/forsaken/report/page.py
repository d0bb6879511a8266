"""The page of a run, and of several runs side by side: one file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from forsaken._files import write_atomically
from forsaken.report import tables
from forsaken.report.audit import shown as shown_audit
from forsaken.report.figures import LINES, accuracy_picture, bar, curve, curves, drift_picture, dumbbell, histograms
from forsaken.report.places import panel, places
from forsaken.report.saved import REPORT, Run, read_run
from forsaken.report.words import AGAINST, STOPPED, clipped, counted, left_to_do, percent, summary

_TEMPLATES = "forsaken.report"


def write_report(folder: Path) -> Path:
    """Read the run in `folder` and write report.html beside its result."""
    return write_page(folder / REPORT, render(read_run(folder)))


def write_page(path: Path, page: str) -> Path:
    """Write a page in one step."""
    return write_atomically(path, page.encode("utf-8", "replace"))


def render(run: Run) -> str:
    """Return the page of one run as one self-contained HTML text; the same run gives the same text."""
    result = run.result
    spots = places(run.arrays)
    shown = spots.forgotten.tolist()
    audited = shown_audit(run.audit, result["samples"]["row"]) if run.audit else None
    sides = {"before": spots.before, "after": spots.after}
    maps = {
        when: panel(side, [tables.tip(result, number, when) for number in shown], shown, when)
        for when, side in sides.items()
    }
    return _filled(
        "run.html",
        run=run,
        r=result,
        said=summary(result),
        audited=audited,
        todo=left_to_do(result, run.certificate),
        maps=maps,
        spots=spots,
        found_panels=_panels(run),
        curve=curve(result["history"]),
        groups=tables.grouped(result["layers"]),
        drift=drift_picture(result["chain"]) if result["chain"] else None,
        accuracy=accuracy_picture(result["chain"]) if result["chain"] else None,
    )


def render_several(runs: Sequence[Run]) -> str:
    """Return a page with several runs side by side."""
    names = _names(runs)
    return _filled(
        "several.html",
        names=names,
        runs=list(zip(names, runs, [summary(run.result) for run in runs], map(_panels, runs), strict=True)),
        rows=tables.comparison(runs),
        curve=curves({name: run.result["history"] for name, run in zip(names[:LINES], runs[:LINES], strict=True)}),
        lines=LINES,
    )


def _panels(run: Run) -> list[dict[str, Any]]:
    arrays, result = run.arrays, run.result
    wanted = {
        "records, before": ("before_forget", "forget"),
        "records, after": ("after_forget", "after"),
        "records, retrained": ("retrained_forget", "retrained"),
    }
    unseen = next((part for part in _unseen(result) if len(arrays.get(f"after_{part}", ()))), None)
    if unseen:
        wanted[f"{AGAINST[unseen]}, after"] = (f"after_{unseen}", "unseen")
    found = {title: (arrays[name][:, 0], kind) for title, (name, kind) in wanted.items() if name in arrays}
    drawn = histograms({title: part for title, (part, _) in found.items()}, [kind for _, kind in found.values()])
    return [
        {"title": title, "mean": float(part.mean()), "count": len(part), "picture": picture, "unseen": kind == "unseen"}
        for (title, (part, kind)), picture in zip(found.items(), drawn, strict=True)
    ]


def _unseen(result: Mapping[str, Any]) -> tuple[str, str]:
    against = result["separation"]["against"] if result["separation"] else "reference"
    return (against, "test" if against == "reference" else "reference")


def _names(runs: Sequence[Run]) -> list[str]:
    # Folders of different places may share a name, and a column must be told from the next.
    plain = [clipped(run.name, 40) for run in runs]
    return [name if plain.count(name) == 1 else f"{name} ({at})" for at, name in enumerate(plain, 1)]


def _filled(template: str, **content: Any) -> str:
    environment = Environment(
        loader=PackageLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tidy"] = _tidy
    style, script = _source("page.css"), _source("page.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    page: str = environment.get_template(template).render(
        style=Markup(style),  # noqa: S704 (the package's own file)
        script=Markup(script),  # noqa: S704 (the package's own file)
        policy=policy,
        tables=tables,
        clipped=clipped,
        percent=percent,
        counted=counted,
        bar=bar,
        dumbbell=dumbbell,
        stopped=STOPPED,
        **content,
    )
    return page


def _tidy(text: str) -> str:
    # a number and its sign stay on one line
    return text.replace(" %", "\u00a0%")


def _source(name: str) -> str:
    return resources.files(_TEMPLATES).joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
