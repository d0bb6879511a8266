"""`forsaken scenarios`: the experiments by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from forsaken.cli.console import Terminal
from forsaken.errors import DataNotFoundError
from forsaken.progress import bars

if TYPE_CHECKING:
    from forsaken.bench.scenarios.scenario import Plan

app = typer.Typer(no_args_is_help=True, help="The scenarios: list them, and see what one consists of.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

_WORDS = {
    "train_accuracy": "training accuracy",
    "test_accuracy": "test accuracy",
    "memorised": "memorised of 200 (BT)",
    "oracle_accuracy": "oracle's accuracy",
    "oracle_precision": "oracle's precision",
    "oracle_recall": "oracle's recall",
    "parameters": "parameters",
    "fr": "forgetting rate (FR)",
    "retrained_fr": "FR of full retraining",
}


@app.command("list")
def list_scenarios(as_json: AsJson = False) -> None:
    """Show every scenario, and whether its data are there.

    Example: forsaken scenarios list
    """
    from forsaken.bench.scenarios.table import SCENARIOS

    if as_json:
        typer.echo(json.dumps([_facts(plan) for plan in SCENARIOS.values()]))
        return
    shown = Table(title="scenarios")
    for name in ("name", "what is learnt and what is forgotten", "datasets", "here"):
        shown.add_column(name)
    for plan in SCENARIOS.values():
        here = _presence(plan)
        colour = f"[green]{here}[/]" if here == "yes" else here
        shown.add_row(plan.name, plan.summary, ", ".join(plan.datasets) or "built in", colour)
    Terminal().print(shown)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A scenario by name.")],
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Decides the split.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Explain a scenario: its sets, network and recipe, and what the paper reports for it.

    Where its data are there, they are loaded and split, and the sizes are those of this very seed.

    Example: forsaken scenarios show reuters-35-11
    """
    from forsaken.bench.datasets.store import dataset_named, presence
    from forsaken.bench.networks import parameter_count
    from forsaken.bench.scenarios.table import load_scenario, plan_named

    plan = plan_named(name)
    facts = _facts(plan)
    missing = [dataset for dataset in plan.datasets if presence(dataset_named(dataset)) == "no"]
    advice = f"its data are not here; run: forsaken datasets get {' '.join(missing)}"
    if not missing:
        try:
            with bars() as progress:
                scenario = load_scenario(name, seed=seed, progress=progress)
            facts |= {"seed": seed, "samples": scenario.sizes(), "trainable_parameters": parameter_count(scenario)}
            advice = ""
        except DataNotFoundError as error:
            advice = str(error)
    if as_json:
        typer.echo(json.dumps(facts))
        return
    console = Terminal()
    console.print(f"[bold]{plan.name}[/]: {plan.summary}", highlight=False, soft_wrap=True)
    if plan.note:
        console.print(plan.note, highlight=False, soft_wrap=True, markup=False)
    console.print(_table(plan, facts))
    if advice:
        console.print(advice, highlight=False, soft_wrap=True, markup=False)


def _table(plan: Plan, facts: dict[str, Any]) -> Table:
    shown = Table(show_header=False)
    shown.add_column(overflow="fold")
    shown.add_column(overflow="fold")
    shown.add_row("datasets", ", ".join(plan.datasets) or "built in")
    shown.add_row("classes", str(plan.classes))
    for name, count in facts.get("samples", {}).items():
        shown.add_row(f"samples: {name.replace('_', ' ')}", f"{count:,}")
    shown.add_row("network", str(plan.network))
    if "trainable_parameters" in facts:
        shown.add_row("trainable parameters", f"{facts['trainable_parameters']:,}")
    settings = (f"{key.replace('_', ' ')} {value}" for key, value in plan.recipe.to_dict().items() if value is not None)
    shown.add_row("recipe", ", ".join(settings))
    for key, value in facts.get("paper", {}).items():
        shown.add_row(f"paper: {_WORDS[key]}", f"{value:,.0f}" if value > 1 else f"{value:.4g}")
    return shown


def _facts(plan: Plan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "summary": plan.summary,
        "note": plan.note,
        "datasets": list(plan.datasets),
        "here": _presence(plan),
        "classes": plan.classes,
        "forget": plan.sizes.forget,
        "reference": plan.sizes.reference,
        "network": str(plan.network),
        "recipe": plan.recipe.to_dict(),
        "paper": _reported(plan.name),
    }


def _reported(name: str) -> dict[str, float]:
    """Return what the paper reports for a scenario, by the names of `_WORDS`."""
    from forsaken.bench.paper import paper_numbers

    found, own, retrained = (paper_numbers(name, row) for row in ("before", "paper", "retrained"))
    rates = {"fr": own.get("fr"), "retrained_fr": retrained.get("fr")}
    return {key: value for key in _WORDS if (value := {**found, **rates}.get(key)) is not None}


def _presence(plan: Plan) -> str:
    from forsaken.bench.datasets.store import dataset_named, presence

    found = {presence(dataset_named(name)) for name in plan.datasets}
    if found <= {"yes"}:
        return "yes"
    return "no" if "no" in found else "part"
