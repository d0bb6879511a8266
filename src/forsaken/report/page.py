"""The page of a run, and of several runs side by side: one file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from forsaken._files import write_atomically
from forsaken.jobs.disclosure import TOO_FEW
from forsaken.jobs.output import REPORT
from forsaken.report import figures, tables, words
from forsaken.report.saved import Run, read_run, verdict_of

_PROFILES = {
    "quick": "one shadow model's verdict; it can find a failure, and proves little",
    "standard": "attacks with a few shadow models; stronger, and still not sample by sample against retraining",
    "full": "sample by sample against an ensemble of retrained models, the strongest test there is here",
}
_TOLD_FROM = {
    "quick": "",
    "standard": "LiRA, the forgotten records told from samples that were never seen",
    "full": "U-LiRA, each told from retrained models, over all pairs of a record and a model",
}
# What the templates call by name.
_CALLED: tuple[Callable[..., Any], ...] = (
    figures.accuracy_picture,
    figures.drift_picture,
    figures.histograms,
    figures.klom_picture,
    figures.margin_picture,
    figures.objective_curve,
    figures.objective_curves,
    figures.roc_picture,
    tables.audit_cost,
    tables.classes,
    tables.comparison,
    tables.grouped,
    tables.lowest,
    tables.numbers,
    tables.pairs,
    tables.shown_samples,
    words.changed,
    words.clipped,
    words.counted,
    words.heading,
    words.left_to_do,
    words.percent,
    words.plain,
    words.summary,
    verdict_of,
)
_SHARED: dict[str, Any] = {each.__name__: each for each in _CALLED} | {
    "LINES": figures.LINES,
    "SPREADS": figures.SPREADS,
    "MAX_SAMPLES": tables.MAX_SAMPLES,
    "MEMBER": words.MEMBER,
    "STOPPED": words.STOPPED,
    "GLOSSARY": words.GLOSSARY,
    "PROFILES": _PROFILES,
    "TOLD_FROM": _TOLD_FROM,
    "TOO_FEW": TOO_FEW,
}


def write_report(folder: Path, record_key: bytes | None = None) -> Path:
    """Read the run in `folder` and write report.html beside its result; see `read_run` for the key."""
    return write_page(folder / REPORT, render(read_run(folder, record_key=record_key)))


def write_page(path: Path, page: str) -> Path:
    """Write a page in one step."""
    return write_atomically(path, page.encode("utf-8", "replace"))


def render(run: Run) -> str:
    """Return the page of one run as one self-contained HTML text; the same run gives the same text."""
    # Without the answers for each record there is nothing to arrange.
    spots = None if run.result.samples is None else figures.Map.of(run.arrays)
    return filled("run.html", run=run, r=run.result, map=spots, tip=partial(tables.tip, run.result))


def render_several(runs: Sequence[Run]) -> str:
    """Return a page with several runs side by side."""
    # Folders of different places may share a name, and a column must be told from the next.
    plain = [words.clipped(run.name, 40) for run in runs]
    names = [name if plain.count(name) == 1 else f"{name} ({at})" for at, name in enumerate(plain, 1)]
    return filled("several.html", names=names, runs=runs, results=[run.result for run in runs])


def filled(template: str, **content: Any) -> str:
    """Return a template of the package filled in: one page that needs nothing else."""
    environment = Environment(
        loader=PackageLoader("forsaken.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"tidy": _tidy, "audit_row": tables.audit_row}
    environment.globals |= _SHARED
    style, script = _source("page.css"), _source("page.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    )
    page: str = environment.get_template(template).render(
        style=Markup(style),  # noqa: S704 (the package's own file)
        script=Markup(script),  # noqa: S704 (the package's own file)
        policy=policy,
        **content,
    )
    return page


def _tidy(text: str) -> str:
    # a number and its sign stay on one line
    return text.replace(" %", "\u00a0%")


def _source(name: str) -> str:
    return resources.files("forsaken.report").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
