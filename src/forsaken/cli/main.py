"""The entry point of the command line."""

from __future__ import annotations

import json
import signal
import sys
import warnings
from typing import Annotated, NoReturn

import typer
from rich.markup import escape

import forsaken
from forsaken.cli import (
    audit,
    bench,
    datasets,
    demo,
    env,
    federated,
    init,
    keys,
    mask,
    methods,
    references,
    report,
    scenarios,
    suspects,
    unlearn,
    verify,
)
from forsaken.cli.console import Terminal
from forsaken.cli.exits import MEANINGS, Exit
from forsaken.errors import ForsakenError, StoppedError

app = typer.Typer(
    name="forsaken",
    help="Make a trained classifier forget given samples, and measure how well it did.",
    epilog="Exit codes: " + "; ".join(f"{code:d} {meaning}" for code, meaning in MEANINGS.items()) + ".",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("init")(init.init)
app.command("unlearn")(unlearn.unlearn)
app.command("audit")(audit.audit)
app.command("verify")(verify.verify)
app.command("report")(report.report)
app.add_typer(references.app, name="references")
app.command("suspects")(suspects.suspects)
app.add_typer(methods.app, name="methods")
app.add_typer(mask.app, name="mask")
app.add_typer(keys.app, name="keys")
app.add_typer(datasets.app, name="datasets")
app.add_typer(scenarios.app, name="scenarios")
app.add_typer(bench.app, name="bench")
app.add_typer(federated.app, name="federated")
app.command("demo")(demo.demo)
app.command("env")(env.env)


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


class _Interrupted(BaseException):
    """A signal to stop: it unwinds like Ctrl-C, so that every block tidies up, and says which exit code it means."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


_STOPPED: list[int] = []  # the exit code of a signal that came: a library may swallow what is raised in its callbacks


def _stop(number: int, _: object) -> None:
    _STOPPED.append(128 + number)
    raise _Interrupted(128 + number)


def main() -> None:
    """Run the command line; an error that was foreseen is one message and exit code 2, never a traceback."""
    # torch tells its own developers about its exported programs
    warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg|torch")
    _STOPPED.clear()
    try:
        signal.signal(signal.SIGINT, _stop)
        signal.signal(signal.SIGTERM, _stop)
        app()
    except ForsakenError as error:
        if _STOPPED:
            _say_interrupted(_STOPPED[0])
        _tell(error)
        sys.exit(Exit.STOPPED if isinstance(error, StoppedError) else Exit.BAD_INPUT)
    except MemoryError:
        _tell(ForsakenError("there is not enough memory", remedy="end other programs, or use a machine with more"))
        sys.exit(Exit.BAD_INPUT)
    except SystemExit as ended:
        if ended.code == Exit.BAD_INPUT and _wants_json():  # wrong usage, which has been told on standard error
            typer.echo(json.dumps({"error": "wrong usage; --help shows the right one", "kind": "UsageError"}))
        raise
    except _Interrupted as told:
        _say_interrupted(told.code)


def _say_interrupted(code: int) -> NoReturn:
    Terminal(stderr=True).print("[bold red]interrupted[/]")
    sys.exit(code)


def _wants_json() -> bool:
    return "--json" in sys.argv[1:]


def _tell(error: ForsakenError) -> None:
    if _wants_json():
        typer.echo(json.dumps({"error": str(error), "kind": type(error).__name__}))
    Terminal(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)


if __name__ == "__main__":
    main()
