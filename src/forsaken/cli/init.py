"""`forsaken init`: a job file to start from."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from forsaken._files import write_atomically
from forsaken.cli.console import JOB_FILE, emit, say
from forsaken.errors import OutputError

TEMPLATE = "template.toml"


def init(
    path: Annotated[Path, typer.Argument(help="The file to write, or the folder to write it to.")] = Path(JOB_FILE),
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of advice.")] = False,
) -> None:
    """Write a job file with every setting explained, to be filled in with your model and your data.

    Example: forsaken init
    """
    goal = _goal(path, force=force)
    write_atomically(goal, files("forsaken.jobs").joinpath(TEMPLATE).read_bytes())
    if as_json:
        emit({"job": str(goal)})
        return
    name = shlex.quote(str(goal))
    steps = (
        f"{goal}\n"
        "  1. open it and fill in your model and your data\n"
        f"  2. forsaken references fit {name}       (once: trains 4 to 8 models like yours, which pays after\n"
        "     some requests; without training data skip it: the file says how)\n"
        f"  3. forsaken unlearn {name} --dry-run"
    )
    say(steps)


def _goal(path: Path, *, force: bool) -> Path:
    try:
        goal = path / JOB_FILE if path.is_dir() else path
        if not goal.parent.is_dir():
            raise OutputError(f"cannot write {goal}: there is no folder {goal.parent}; make it first")
        if goal.is_dir():
            raise OutputError(f"{goal} is a folder, expected a file; name another file")
        if goal.exists() and not force:
            raise OutputError(f"{goal} is there already; name another file, or write over it with --force")
    except OSError as error:
        if isinstance(error, OutputError):
            raise
        raise OutputError(f"cannot write {path}: {error.strerror}; name another file") from error
    return goal
