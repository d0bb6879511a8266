"""The entry point of the command line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

import forsaken
from forsaken.cli import datasets, demo, scenarios
from forsaken.errors import ForsakenError

app = typer.Typer(
    name="forsaken",
    help="Make a trained classifier forget given samples, and measure how well it did.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.add_typer(datasets.app, name="datasets")
app.add_typer(scenarios.app, name="scenarios")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(forsaken.__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Make a trained classifier forget given samples, and measure how well it did."""


def main() -> None:
    """Run the command line; an error that was foreseen is one message and exit code 2, never a traceback."""
    try:
        app()
    except ForsakenError as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
