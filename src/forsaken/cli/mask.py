"""`forsaken mask`: look at a mask, apply it, undo it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from forsaken._files import draft_of
from forsaken.cli.console import AsJson, emit, opened_job, print_table, say
from forsaken.errors import OutputError

app = typer.Typer(
    no_args_is_help=True,
    help="Masks: look at one, apply it, undo it. A mask is as sensitive as the memory itself: it can restore it.",
)

MaskFile = Annotated[Path, typer.Argument(help="A mask that a job with mask = true wrote.")]
JobFile = Annotated[Path, typer.Argument(help="The job file that describes the model.")]
Out = Annotated[Path, typer.Option(help="Where to write the weights.")]
Given = Annotated[Path | None, typer.Option("--weights", help="The weights to take, in place of the job's own.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file if it is there.")]


@app.command("show")
def show(mask: MaskFile, as_json: AsJson = False) -> None:
    """Show what a mask changes: which parameters, how many entries, by how much.

    Example: forsaken mask show forgotten/mask.safetensors
    """
    from forsaken.unlearning.forsaken.mask import Mask

    found = Mask.load(mask)
    parts = [
        {
            "name": name,
            "changed": part.index.numel(),
            "largest": float(part.mu.abs().max()) if part.mu.numel() else 0.0,
        }
        for name, part in found.entries.items()
    ]
    facts: dict[str, Any] = {
        "changed": len(found),
        "trainable": found.trainable,
        "density": found.density,
        "revertible": found.revertible,
        "base": found.base,
        "new": found.new,
        "settings": dict(found.settings),
        "parameters": parts,
    }
    if as_json:
        emit(facts)
        return
    undo = "can be undone" if found.revertible else "cannot be undone"
    shown = Table(title=f"{len(found):,} of {found.trainable:,} weights ({found.density:.2%}), {undo}")
    for name in ("parameter", "changed", "largest change"):
        shown.add_column(name, justify="left" if name == "parameter" else "right")
    for part in parts:
        shown.add_row(escape(str(part["name"])), f"{part['changed']:,}", f"{part['largest']:.3g}")
    print_table(shown)


@app.command("apply")
def apply(
    mask: MaskFile, job: JobFile, out: Out, weights: Given = None, force: Force = False, as_json: AsJson = False
) -> None:
    """Apply a mask to the weights that it was made for.

    Example: forsaken mask apply forgotten/mask.safetensors forsaken.toml --out new.safetensors
    """
    _change(mask, job, out, weights, force, as_json, undo=False)


@app.command("revert")
def revert(
    mask: MaskFile, job: JobFile, out: Out, weights: Given = None, force: Force = False, as_json: AsJson = False
) -> None:
    """Restore exactly the weights before forgetting, and with them the memory.

    Example: forsaken mask revert forgotten/mask.safetensors forsaken.toml --weights forgotten/model.safetensors
    --out old.safetensors
    """
    _change(mask, job, out, weights, force, as_json, undo=True)


def _change(mask: Path, job: Path, out: Path, weights: Path | None, force: bool, as_json: bool, *, undo: bool) -> None:
    from forsaken.jobs.formats import load_model
    from forsaken.unlearning.forsaken.mask import Mask

    found = Mask.load(mask)
    with opened_job(job) as read:
        source = read.resolve(read.model.weights) if weights is None else weights
        _check_goal(out, [source, mask, job], force)
        loaded = load_model(read, source)
        model = found.revert(loaded.model) if undo else found.apply(loaded.model)
        with draft_of(out) as draft:
            loaded.write(model, draft)
    if as_json:
        emit({"weights": str(out), "changed": len(found)})
    else:
        say(f"{len(found):,} weights {'restored' if undo else 'changed'}: {out}")


def _check_goal(out: Path, inputs: list[Path], force: bool) -> None:
    if any(out.resolve() == path.resolve() for path in inputs):
        raise OutputError(f"{out} is read here and would be overwritten; give another file with --out")
    if not out.parent.is_dir():
        raise OutputError(f"there is no folder {out.parent} to write to; make it first")
    if out.is_dir():
        raise OutputError(f"{out} is a folder, which is not replaced; give another name with --out")
    if os.path.lexists(out) and not force:
        raise OutputError(f"{out} is there already; give another file with --out, or overwrite it with --force")
