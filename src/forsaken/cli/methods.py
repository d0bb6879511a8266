"""`forsaken methods`: which methods there are, and what each takes."""

from __future__ import annotations

import inspect
import re
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from forsaken.cli.console import AsJson, emit, print_table, say
from forsaken.errors import UnknownNameError

app = typer.Typer(no_args_is_help=True, help="The unlearning methods: list them, and see what each needs.")

# numpydoc: a section lasts to the next title, which is a line with dashes below it
_NOTES = re.compile(r"^Notes\n-{5}\n(.*?)(?=^\S[^\n]*\n-{3,}$|\Z)", re.MULTILINE | re.DOTALL)


@app.command("list")
def list_methods(as_json: AsJson = False) -> None:
    """Show every method: what it does, and what it needs.

    Example: forsaken methods list
    """
    from forsaken.unlearning.methods import METHODS

    rows = [_facts(name) for name in METHODS]
    if as_json:
        emit(rows)
        return
    shown = Table(title="unlearning methods")
    for title in ("name", "what it does", "needs", "at training time"):
        shown.add_column(title, overflow="fold", no_wrap=title == "name")
    for row in rows:
        upfront = "[yellow]yes[/]" if row["upfront"] else "no"
        shown.add_row(row["name"], escape(row["summary"]), escape(", ".join(row["needs"])), upfront)
    print_table(shown)
    say("more about one: forsaken methods show NAME")


@app.command("show")
def show(name: Annotated[str, typer.Argument(help="A method by name.")], as_json: AsJson = False) -> None:
    r"""Explain a method: the data it needs and uses, its settings with defaults and ranges, its paper, and notes.

    The settings are those of \[method] in a job file, and of forsaken.unlearn.

    Example: forsaken methods show forsaken
    """
    from forsaken.unlearning.methods import METHODS

    if name not in METHODS:
        raise UnknownNameError("method", name, METHODS)
    facts = _facts(name)
    if as_json:
        emit(facts)
        return
    say(f"[bold]{name}[/]: {escape(facts['summary'])}", markup=True)
    told = {
        "needs": ", ".join(facts["needs"]),
        "uses, where given": ", ".join(facts["uses"]) or "nothing else",
        "at training time": facts["upfront"] or "nothing: it takes any trained model",
        "paper": facts["paper"],
    }
    for title, text in told.items():
        say(f"{title}: {text}")
    for at, paragraph in enumerate(facts["notes"]):
        say(("" if at else "notes: ") + paragraph)
    if not facts["settings"]:
        say("settings: none")
        return
    shown = Table(title=f"settings of {name}")
    for title in ("setting", "default", "values", "meaning"):
        shown.add_column(title, overflow="fold", no_wrap=title == "setting")
    for setting in facts["settings"]:
        shown.add_row(
            setting["name"], escape(_default(setting["default"])), escape(setting["values"]), escape(setting["about"])
        )
    print_table(shown)


def _facts(name: str) -> dict[str, Any]:
    from forsaken.unlearning.methods import METHODS
    from forsaken.unlearning.settings import describe

    method = METHODS[name]
    about = method.about
    return {
        "name": name,
        "summary": about.summary,
        "needs": list(about.needs),
        "uses": list(about.uses),
        "upfront": about.upfront,
        "paper": about.paper,
        "notes": _notes(method),
        "changes_weights": method.changes_weights,
        "settings": describe(method),
    }


def _notes(method: type) -> list[str]:
    """Return the paragraphs of a class's Notes, without line breaks; what a method promises stands there."""
    found = _NOTES.search(inspect.getdoc(method) or "")
    paragraphs = found.group(1).strip().split("\n\n") if found else []
    return [" ".join(each.split()).replace("``", "`") for each in paragraphs]


def _default(value: object) -> str:
    """Write a default as it would stand in a job file; a setting without one can be left out."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
