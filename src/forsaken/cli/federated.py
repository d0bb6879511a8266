"""`forsaken federated`: a node's operator files erasure requests and sees how far they are; a demonstration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from forsaken.cli.console import AsJson, emit, note, print_table, say
from forsaken.errors import SettingsError

app = typer.Typer(help=r"Forget in a federation on Flower (extra: forsaken\[federated]).", no_args_is_help=True)
NodeFolder = Annotated[Path, typer.Option("--node", help="The folder of a node, with its store of requests.")]
_MOST_ROWS = 10**8  # of a node; a slip of the finger must not fill the memory
# Flower and Ray report their use to their makers unless they are told not to.
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def read_rows(text: str) -> list[int]:
    """Return the row numbers of a text such as "0-9,12".

    >>> read_rows("0-3,12")
    [0, 1, 2, 3, 12]
    """
    found: list[int] = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        first, dash, last = part.partition("-")
        if not first.isascii() or not first.isdigit() or (dash and not (last.isascii() and last.isdigit())):
            raise SettingsError(field="rows", value=text, expected='row numbers from 0, such as "0-9,12"')
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers.stop > _MOST_ROWS:
            expected = f"the smaller number first, and numbers below {_MOST_ROWS:,}"
            raise SettingsError(field="rows", value=part, expected=expected)
        found += numbers
    return found


@app.command("request")
def request(
    node: NodeFolder,
    rows: Annotated[str, typer.Option(help="The node's rows to forget, numbered from 0: 0-9,12.")],
    as_json: AsJson = False,
) -> None:
    """File a request to forget rows of a node. The node does it in its next round; no one else is told.

    Example: forsaken federated request --node nodes/node-0 --rows 110-149
    """
    from forsaken.federated.store import Requests

    filed = Requests(node, existing=True).file(read_rows(rows))
    if as_json:
        emit(filed.to_dict())
    else:
        say(f"request {filed.id} is filed: {len(filed.rows)} rows, in the next round of this node")


@app.command("status")
def status(node: NodeFolder, as_json: AsJson = False) -> None:
    """Show how far the requests of a node are, and what happened to each.

    Example: forsaken federated status --node nodes/node-0
    """
    from forsaken.federated.store import Requests

    store = Requests(node, existing=True)
    found: list[dict[str, Any]] = [
        each.to_dict() | {"events": [f"{when} {what}" for when, what in store.events(each.id)]} for each in store.all()
    ]
    problem = store.fact("problem") or ""
    if as_json:
        emit({"requests": found, "problem": problem})
        return
    shown = Table(title=f"Requests of {node.name}")
    for name in ("request", "rows", "state", "times filed", "applied", "last"):
        shown.add_column(name, justify="left" if name in ("state", "last") else "right")
    for each in found:
        numbers = (each["request"], each["rows"], each["state"], each["attempt"], f"{each['applied']:.2f}")
        shown.add_row(*map(str, numbers), each["events"][-1])
    print_table(shown)
    note(*(f"request {each['request']}: {each['problem']}" for each in found if each["problem"]))
    if problem:
        note(f"the node left its last round out: {problem}")


@app.command("demo")
def demo(
    out: Annotated[Path, typer.Option(help="The folder for the nodes and the server.")] = Path("runs/federated"),
    as_json: AsJson = False,
) -> None:
    """Simulate three nodes on Ray: they learn digits, node 0 forgets 40 of its rows, all go on (about two minutes).

    Example: forsaken federated demo --out runs/federated
    """
    os.environ.update({name: os.environ.get(name, value) for name, value in _QUIET.items()})
    os.environ.setdefault("FLWR_HOME", str(out.resolve() / "flower"))
    import logging

    logging.getLogger("flwr").setLevel(logging.ERROR)
    from forsaken.bench.federated import NODES, ROUNDS, STRANGERS, build, fit_references, load_node, measure, rows_of
    from forsaken.federated.simulation import simulate
    from forsaken.federated.store import Requests

    if (out / "server").exists():
        raise SettingsError(f"{out} holds a demonstration already", field="out", remedy="give another --out")
    fit_references(out / "node-0", 0)
    config: dict[str, Any] = {"rounds": ROUNDS, "folder": str(out.resolve() / "server"), "nodes": NODES}
    config["nodes-folder"] = str(out.resolve())
    before = simulate(load_node, build, config, NODES, measure)
    count = len(rows_of(0))
    filed = Requests(out / "node-0", existing=True).file(range(count - STRANGERS, count))
    after = simulate(load_node, build, config | {"rounds": ROUNDS + 3}, NODES, measure)
    done = Requests(out / "node-0").get(filed.id)
    if as_json:
        emit({"before": before, "after": after, "request": done.to_dict()})
        return
    shown = Table(title=f"{STRANGERS} rows of node 0 forgotten (digits, {NODES} nodes, one run)")
    for name in ("", "before", "after"):
        shown.add_column(name, justify="left" if not name else "right")
    for name, value in before.items():
        shown.add_row(name.replace("-", " "), f"{value:.3f}", f"{after[name]:.3f}")
    print_table(shown)
    say(f"request {done.id}: {done.state}", f"see: forsaken federated status --node {out / 'node-0'}")
