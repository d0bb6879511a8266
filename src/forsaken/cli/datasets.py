"""`forsaken datasets`: what there is, getting it, and checking it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from forsaken.cli.console import Terminal
from forsaken.progress import bars

if TYPE_CHECKING:
    from forsaken.bench.datasets.registry import Dataset

app = typer.Typer(no_args_is_help=True, help="The public datasets: list them, get them from their homes, check them.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command("list")
def list_datasets(as_json: AsJson = False) -> None:
    """Show every dataset, and whether it lies in the data folder.

    Example: forsaken datasets list
    """
    from forsaken.bench.datasets.registry import DATASETS
    from forsaken.bench.datasets.store import data_folder

    rows = [_facts(dataset) for dataset in DATASETS.values()]
    if as_json:
        typer.echo(json.dumps({"folder": str(data_folder()), "datasets": rows}))
        return
    shown = Table(title=f"datasets in {data_folder()}")
    for name in ("name", "what", "rows", "classes", "download", "here"):
        shown.add_column(name, justify="right" if name in ("rows", "classes", "download") else "left")
    for row in rows:
        size, here = f"{row['megabytes']:,.1f} MB", row["here"]
        colour = f"[green]{here}[/]" if here == "yes" else here
        shown.add_row(row["name"], row["title"], f"{row['rows']:,}", str(row["classes"] or ""), size, colour)
    Terminal().print(shown)


@app.command("get")
def get(
    names: Annotated[list[str], typer.Argument(help="Datasets by name.")],
    force: Annotated[bool, typer.Option(help="Get it again though it is there.")] = False,
    keep_originals: Annotated[bool, typer.Option(help="Keep the downloaded archives.")] = False,
    as_json: AsJson = False,
) -> None:
    """Download datasets from their homes, check them, and write them as Parquet into the data folder.

    The folder is the one that FORSAKEN_DATA names, or the platform's cache folder. An interrupted download goes on
    where it stopped.

    Example: forsaken datasets get imdb customer-review
    """
    from forsaken.bench.datasets.download import get_dataset
    from forsaken.bench.datasets.store import dataset_named

    chosen = [dataset_named(name) for name in dict.fromkeys(names)]
    found: dict[str, Any] = {}
    with bars() as progress:
        for dataset in chosen:
            paths = get_dataset(dataset.name, keep_originals=keep_originals, force=force, progress=progress)
            found[dataset.name] = [str(path) for path in paths]
    if as_json:
        typer.echo(json.dumps(found))
        return
    console = Terminal()
    for dataset in chosen:
        for path in found[dataset.name]:
            console.print(path, highlight=False, soft_wrap=True, markup=False)
        console.print(f"  {dataset.cite}\n  terms: {dataset.terms}", highlight=False, soft_wrap=True, markup=False)


@app.command("check")
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Datasets by name; all that are there by default.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look at the files of the data folder: checksums where they are known, rows, columns, labels.

    Exit code 1 where a file has a problem.

    Example: forsaken datasets check cifar10
    """
    from forsaken.bench.datasets.store import check_datasets, data_folder

    with bars() as progress:
        findings = list(check_datasets(names, progress))
    bad = any(finding.problem for finding in findings)
    if as_json:
        typer.echo(json.dumps({"folder": str(data_folder()), "files": [asdict(finding) for finding in findings]}))
    elif not findings:
        text = f"no dataset in {data_folder()}; get one with: forsaken datasets get NAME"
        Terminal().print(text, markup=False, soft_wrap=True)
    else:
        shown = Table(title=f"datasets in {data_folder()}")
        for name in ("dataset", "file", "rows", "state"):
            shown.add_column(name, justify="right" if name == "rows" else "left", overflow="fold")
        for finding in findings:
            state = f"[red]{escape(finding.problem)}[/]" if finding.problem else escape(f"good; {finding.note}")
            shown.add_row(finding.dataset, finding.file, f"{finding.rows:,}" if finding.rows else "", state)
        Terminal().print(shown)
    if bad:
        raise typer.Exit(1)


def _facts(dataset: Dataset) -> dict[str, Any]:
    from forsaken.bench.datasets.store import presence

    return {
        "name": dataset.name,
        "title": dataset.title,
        "kind": dataset.kind,
        "rows": sum(dataset.rows.values()),
        "splits": dict(dataset.rows),
        "classes": dataset.classes,
        "megabytes": round(sum(archive.megabytes for archive in dataset.archives), 1),
        "here": presence(dataset),
        "home": dataset.home,
        "cite": dataset.cite,
        "terms": dataset.terms,
    }
