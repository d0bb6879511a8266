"""`forsaken bench`: every table and figure of the paper, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from forsaken.cli.console import AsJson, at_work, emit, note, print_table, say
from forsaken.errors import SettingsError, UnknownNameError

if TYPE_CHECKING:
    from forsaken.bench.trials import Trial

app = typer.Typer(no_args_is_help=True, help="The paper's tables and figures: list, run, and see ours beside them.")

RESULTS, STORE = Path("benchmarks/results/trials"), Path("runs/bench")
TUNING = Path("benchmarks/results/tuning")
Folder = Annotated[Path, typer.Option(help="Where results are, one file a trial.")]
Names = Annotated[list[str], typer.Argument(help="Benchmarks by name (see forsaken bench list), or all.")]


@app.command("list")
def list_benchmarks(folder: Folder = RESULTS, as_json: AsJson = False) -> None:
    """Show every benchmark, what of the paper it is, and how many of its trials are done.

    Example: forsaken bench list
    """
    from forsaken.bench.benchmarks import BENCHMARKS
    from forsaken.bench.tables import progress_of

    _check_folders(folder)
    facts: list[dict[str, Any]] = [
        {
            "name": one.name,
            "title": one.title,
            "paper": one.source,
            "scenarios": list(one.scenarios),
            **progress_of(one, folder),
        }
        for one in BENCHMARKS.values()
    ]
    if as_json:
        emit(facts)
        return
    shown = Table(title="benchmarks")
    for name in ("name", "what it shows", "in the paper", "trials done"):
        shown.add_column(name, overflow="fold")
    for one in facts:
        shown.add_row(one["name"], one["title"], one["paper"] or "beyond it", f"{one['done']} of {one['trials']}")
    print_table(shown)


@app.command("run")
def run(
    names: Names,
    seeds: Annotated[
        str | None,
        typer.Option(help="How many seeds (3: 0 to 2), or which: 0-4, 0,3,7. By default 5 on Reuters and 3 elsewhere."),
    ] = None,
    scenario: Annotated[list[str] | None, typer.Option(help="Only this scenario; more than once for several.")] = None,
    row: Annotated[list[str] | None, typer.Option(help="Only this row; more than once for several.")] = None,
    engine: Annotated[
        str,
        typer.Option(help="local: one after the other; processes: side by side; ray. Side by side each takes longer."),
    ] = "local",
    address: Annotated[str | None, typer.Option(help="A Ray cluster, as ray://host:port; with --engine ray.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="How many groups of trials at a time.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda; pictures need cuda.")] = "cpu",
    resume: Annotated[bool, typer.Option("--resume/--anew", help="Keep finished trials, or replace each.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how long it takes, and how much disk.")] = False,
    folder: Folder = RESULTS,
    store: Annotated[Path, typer.Option(help="Where trained models are kept between runs.")] = STORE,
    as_json: AsJson = False,
) -> None:
    """Measure what is not measured yet. A run that was stopped goes on where it was.

    Example: forsaken bench run fr-ood cfr --scenario reuters-35-11 --seeds 5
    """
    from forsaken.bench.running import expected_costs, unfinished

    _check_device(device)
    trials, left_out = _chosen(names, seeds, scenario or [], row or [], device)
    _check_folders(folder, store)
    if device == "cuda" and trials and (engine != "ray" or dry_run):
        _check_gpu()
    wanted = unfinished(trials, folder, anew=not resume)
    facts: dict[str, Any] = {"trials": len({trial.key for trial in trials}), "to_do": len(wanted), "left_out": left_out}
    if dry_run:
        with at_work() as progress:
            costs = expected_costs(trials, folder, anew=not resume, progress=progress)
        facts |= {
            "hours": round(sum(one.seconds for one in costs) / 3600, 2),
            "mebibytes": round(sum(one.bytes for one in costs) / 2**20, 1),
        }
    else:
        facts["measured"] = _measure(trials, folder, store, engine, address, workers, device, anew=not resume)
    if as_json:
        emit(facts)
        return
    if dry_run:
        say(
            f"{facts['to_do']} of {facts['trials']} trials to do: about {facts['hours']:.1f} hours on this machine, "
            f"{facts['mebibytes']:,.0f} MiB of disk"
        )
    else:
        say(f"measured {facts['measured']} trials; {facts['trials'] - facts['measured']} were there already")
    note(*(f"{name}: {why}" for name, why in left_out.items()))


@app.command("table")
def table(
    names: Names,
    folder: Folder = RESULTS,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown instead of a table.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show our numbers beside the paper's: the mean over seeds, its 95 % interval, and the paper's value.

    Example: forsaken bench table fr-ood
    """
    from forsaken.bench.benchmarks import benchmark_named
    from forsaken.bench.tables import gather
    from forsaken.report.results import as_markdown, cell_text, device_of, refusals, times_of

    chosen = [benchmark_named(name) for name in _names(names)]
    _check_results(folder)
    found = [gather(one, folder) for one in chosen]
    if as_json:
        emit([one.to_dict() for one in found])
        return
    for one in found:
        if markdown:
            say(as_markdown(one))
            continue
        shown = Table(title=f"{one.benchmark.name}: {one.benchmark.title}")
        for name in ("scenario", "row", "n", *(column.label for column in one.benchmark.columns)):
            shown.add_column(name, overflow="fold")
        for line in one.lines:
            pairs = zip(line.cells, one.benchmark.columns, strict=True)
            cells = [cell_text(cell, column, line.n) for cell, column in pairs]
            shown.add_row(line.scenario, line.label, str(line.n), *cells)
        print_table(shown)
        scenarios = dict.fromkeys(line.scenario for line in one.measured)
        note(*(f"{name}: measured {device_of(one, name)}. {times_of(one, name)}".rstrip() for name in scenarios))
        note(*refusals(one), *([one.benchmark.note] if one.benchmark.note else []))


@app.command("tune")
def tune(
    rows: Annotated[list[str], typer.Argument(help="Rows of other methods: scrub, fine-tune-all, smu, ...")],
    scenario: Annotated[str, typer.Option(help="On which scenario.")],
    seeds: Annotated[str, typer.Option(help="Which seeds; none that a table reports.")] = "100-101",
    engine: Annotated[str, typer.Option(help="local, processes or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="A Ray cluster, as ray://host:port; with --engine ray.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="How many seeds at a time.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    folder: Annotated[Path, typer.Option(help="Where what was tried is kept.")] = TUNING,
    store: Annotated[Path, typer.Option(help="Where trained models are kept between runs.")] = STORE,
    as_json: AsJson = False,
) -> None:
    """Try every setting of a method's grid, and show which comes nearest to the retrained model.

    Example: forsaken bench tune scrub scrub-all --scenario reuters-35-11
    """
    from forsaken.bench.benchmarks import usual_seeds
    from forsaken.bench.running import missing_data
    from forsaken.bench.scenarios.table import plan_named
    from forsaken.bench.tuning import edges, gather, trials_of

    plan_named(scenario)
    wanted = _seeds(seeds) or []
    reported = sorted(set(wanted) & set(usual_seeds(scenario)))
    if reported:
        raise SettingsError(f"seeds is {seeds!r}, but the tables report {reported}; expected others, such as 100-101")
    _check_device(device)
    _check_folders(folder, store)
    if missing := missing_data(scenario):
        raise SettingsError(f"the data of {scenario} are not here; run: forsaken datasets get {' '.join(missing)}")
    if device == "cuda" and engine != "ray":
        _check_gpu()
    trials = [trial for name in rows for trial in trials_of(scenario, name, wanted, device)]
    _measure(trials, folder, store, engine, address, workers, device)
    found = {name: gather(scenario, name, folder, wanted, device) for name in rows}
    if as_json:
        emit({name: [{"settings": one.settings, "distance": one.distance} for one in of] for name, of in found.items()})
        return
    for name, tried in found.items():
        shown = Table(title=f"{name} on {scenario}, seeds {seeds}: nearest to the retrained model first")
        for column in ("settings", "distance", "FR or recall", "CFR", "accuracy"):
            shown.add_column(column)
        for one in tried:
            told = ", ".join(f"{key} {value:g}" for key, value in one.settings.items())
            kinds = ("own_fr", "recall"), ("own_cfr",), ("accuracy",)
            shown.add_row(told, f"{one.distance:.3f}", *(_mean(one.numbers, names) for names in kinds))
        print_table(shown)
        if tried and (at := edges(name, tried[0].settings)):
            note(f"{name}: the best {' and '.join(at)} is at an end of the grid; a better one may lie beyond")


def _mean(numbers: Iterable[Mapping[str, Any]], names: Iterable[str]) -> str:
    found = [one[name] for one in numbers for name in names if one.get(name) is not None]
    return f"{sum(found) / len(found):.3f}" if found else "-"


@app.command("pages")
def pages(
    docs: Annotated[Path, typer.Option(help="Where results.md and results.html are written.")] = Path("docs"),
    folder: Folder = RESULTS,
    as_json: AsJson = False,
) -> None:
    """Write the pages of results from the saved trials; nothing is measured.

    Example: forsaken bench pages
    """
    from forsaken.report.results import write_pages

    _check_results(folder)
    written = write_pages(folder, docs)
    if as_json:
        emit({"written": [str(path) for path in written]})
        return
    for path in written:
        say(f"wrote {path}")


def _names(names: list[str]) -> list[str]:
    from forsaken.bench.benchmarks import BENCHMARKS

    return list(BENCHMARKS) if "all" in names else names


def _chosen(
    names: list[str], seeds: str | None, scenarios: list[str], rows: list[str], device: str
) -> tuple[list[Trial], dict[str, str]]:
    """Return the trials of the benchmarks, and why each scenario that is left out is."""
    from forsaken.bench.benchmarks import benchmark_named, needs_gpu
    from forsaken.bench.rows import row_named
    from forsaken.bench.running import missing_data
    from forsaken.bench.scenarios.table import plan_named

    for name in scenarios:
        plan_named(name)
    for name in rows:
        row_named(name)
    found, left_out = [], {}
    for one in (benchmark_named(name) for name in _names(names)):
        for scenario in one.scenarios:
            if scenarios and scenario not in scenarios:
                continue
            missing = missing_data(scenario)
            if missing:
                left_out[scenario] = f"not run, its data are not here; run: forsaken datasets get {' '.join(missing)}"
            elif device == "cpu" and needs_gpu(scenario) and scenario not in scenarios:
                left_out[scenario] = "not run, its network needs a GPU: give --device cuda, or name it with --scenario"
            else:
                found += one.trials(_seeds(seeds), device=device, only=(scenario,))
    if not found and not left_out:
        raise SettingsError(
            f"none of {', '.join(names)} has a trial on {', '.join(scenarios)}; forsaken bench list --json names the "
            "scenarios of each"
        )
    chosen = [trial for trial in found if not rows or trial.row in rows]
    if found and not chosen:
        known = ", ".join(dict.fromkeys(trial.row for trial in found))
        raise SettingsError(f"none of {', '.join(names)} has the row {', '.join(rows)}; expected one of {known}")
    return sorted(chosen, key=lambda trial: trial.seed), left_out


def _check_folders(*folders: Path) -> None:
    for folder in folders:
        if folder.exists() and not folder.is_dir():
            raise SettingsError(f"{folder} is a file, expected a folder; give another one")


def _check_results(folder: Path) -> None:
    """Refuse a wrong path: its empty tables would look like benchmarks that nobody ran, and replace good pages."""
    _check_folders(folder)
    if not any(folder.glob("*/*.json")):
        raise SettingsError(
            f"{folder} holds no results; give the folder of trials (--folder), or measure: forsaken bench run NAME"
        )


def _check_device(device: str) -> None:
    if device not in ("cpu", "cuda"):
        raise UnknownNameError("device", device, ("cpu", "cuda"))


def _check_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise SettingsError("device is 'cuda', and torch finds no GPU here; give --device cpu, or run it where one is")


def _seeds(text: str | None) -> list[int] | None:
    """Read "3" (0 to 2), "0-4" or "0,3,7"."""
    if text is None:
        return None
    try:
        if "-" in text:
            first, last = (int(part) for part in text.split("-"))
            found = list(range(first, last + 1))
        elif "," in text:
            found = [int(part) for part in text.split(",")]
        else:
            found = list(range(int(text)))
    except ValueError:
        found = []
    if not found or min(found) < 0:
        raise SettingsError(f"seeds is {text!r}, expected how many (3) or which (0-4, or 0,3,7)")
    return found


def _measure(
    trials: list[Trial],
    folder: Path,
    store: Path,
    engine: str,
    address: str | None,
    workers: int | None,
    device: str,
    *,
    anew: bool = False,
) -> int:
    """Measure trials with a progress bar; return how many were measured."""
    from forsaken.bench.running import run_trials

    with at_work() as progress:
        return run_trials(
            trials,
            folder,
            store,
            engine=_engine(engine, address),
            workers=workers,
            gpus=1.0 if device == "cuda" else 0.0,
            anew=anew,
            progress=progress,
        )


def _engine(engine: str, address: str | None) -> str:
    if address is None:
        return engine
    if engine != "ray":
        raise SettingsError(f"address is given, but engine is {engine!r}; expected --engine ray")
    return address
