"""Running trials: those that are not saved yet, group by group, on any engine; and what that will take."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from forsaken._files import make_folder
from forsaken._untrusted import UnreadableError, parse_json
from forsaken.bench.datasets.store import dataset_named, presence
from forsaken.bench.networks import ESTIMATORS, build, parameter_count
from forsaken.bench.rows import FOLDS, row_named
from forsaken.bench.scenarios.scenario import Scenario
from forsaken.bench.scenarios.table import plan_named
from forsaken.bench.sequences import MODELS, REFIT, REQUESTS
from forsaken.bench.store import Store
from forsaken.bench.trials import Changes, Trial, measure_group, read, write
from forsaken.engine import check_engine, fan_out
from forsaken.errors import ForsakenError, OutputError
from forsaken.models.train import steps_of, train
from forsaken.provenance import PACKAGE
from forsaken.types import Progress, Tick, silent

STAGE = "trials"
_STEPS = 6  # of a training whose time is not known yet
_FILE = 4_000  # bytes of a saved trial
# What a row takes beside the three trainings of its group, in trainings, where it was never measured.
_TRAININGS = {
    "smu": 1.5,
    "sisa": 2.5,
    "sisa-dp": 2.5,
    "sisa-dp-sgd": 6.0,
    "suspects": FOLDS,
    "relabelled": 1.0,
    "matched": 2.5,
}
_SHORT = 0.2  # trainings that any other row takes
_Seconds = dict[tuple[str, str, str, str], list[float]]  # of trials, by device, scenario, kind and row


def missing_data(scenario: str) -> list[str]:
    """Return the datasets of a scenario that are not in the data folder."""
    return [name for name in plan_named(scenario).datasets if presence(dataset_named(name)) == "no"]


def unfinished(trials: Iterable[Trial], folder: Path, *, anew: bool = False) -> list[Trial]:
    """Return the trials that have no saved result, or with `anew` all of them, each once."""
    once = {trial.key: trial for trial in trials}.values()
    return [trial for trial in once if anew or read(trial, folder) is None]


def groups_of(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Return trials that share trained models together, groups in the order of their first trial."""
    found: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in trials:
        found.setdefault(trial.group, []).append(trial)
    return list(found.values())


def parts_of(group: Sequence[Trial]) -> list[list[Trial]]:
    """Cut a group into parts that can run side by side; the first one trains the models that all of them share.

    A row that takes trainings of its own is one part, with all that is measured of it. So are the rows that are
    compared with ensembles, since all of them make the same originals forget, and each number of folds whose worth is
    measured. The models of requests in a row are not in the store, and each part would train them again: such a group
    stays whole.
    """
    parts: dict[str, list[Trial]] = {}
    for trial in group:
        studied = {"sequence": "sequence", "truth": "truth", "worth": trial.key}.get(trial.kind)
        parts.setdefault(studied or (trial.row if _trainings(trial) >= 1 else ""), []).append(trial)
    short = [parts.pop("")] if "" in parts else []
    return [*short, *parts.values()]


def run_trials(
    trials: Sequence[Trial],
    folder: Path,
    store: Path,
    *,
    engine: str = "local",
    workers: int | None = None,
    gpus: float = 0.0,
    anew: bool = False,
    progress: Progress = silent,
) -> int:
    """Measure trials and save each as soon as it is known; return how many were measured.

    Parameters
    ----------
    trials : sequence of Trial
        What to measure; those that are saved already are left out.
    folder : Path
        Where results are saved, one file a trial.
    store : Path
        Where trained models are kept, so that no later trial trains them again.
    engine, workers, gpus
        See `forsaken.engine.fan_out`. An item is a group of trials that share their trained models. Processes cut
        groups up (`parts_of`): first come the shared models and the short trials, then the long ones.
    anew : bool
        Whether saved trials are measured again. Each is replaced when its new numbers are there, so that a run that is
        stopped loses none. Trained models of the store are used unless the code that trains them has changed.
    progress : callable
        Called with the share of all trials that is done, and for what is under way.

    Raises
    ------
    ForsakenError
        At the end, where trials failed: which, and why. All others are measured and saved.
    """
    # A worker may run in another folder of this machine.
    folder, store = folder.absolute(), store.absolute()
    wanted = unfinished(trials, folder, anew=anew)
    groups, done, failed = groups_of(wanted), 0, list[str]()

    def told(number: int) -> None:
        nonlocal done
        done += number
        progress(Tick(STAGE, done, len(wanted)))

    told(0)
    check_engine(engine)
    if groups:  # now, and not after hours of training
        make_folder(folder)
        make_folder(store)
    if engine == "local":
        for group in groups:
            failed += _measure(group, folder, store, progress, lambda: told(1)).failed
    else:

        def side_by_side(group: list[Trial]) -> _Found:
            torch.set_num_threads(1)  # as many threads as cores in each of many workers would slow all of them down
            return _measure(group, folder, store, silent, lambda: None)

        # Only processes of this machine are sure to find each other's models in the store.
        parts = [parts_of(group) if engine == "processes" else [group] for group in groups]
        first, later = [own[0] for own in parts], [part for own in parts for part in own[1:]]
        for stage, items in (("groups of trials", first), ("long trials", later)):
            if not items:
                continue

            def received(at: int, found: _Found, items: list[list[Trial]] = items) -> None:
                # A worker saves where it runs; on a cluster that may be another disk, so it is saved here as well.
                for number, content in found.contents.items():
                    write(items[at][number], folder, content)
                told(len(found.contents))
                failed.extend(found.failed)

            try:
                fan_out(
                    side_by_side,
                    items,
                    engine=engine,
                    workers=workers,
                    gpus=gpus,
                    progress=progress,
                    stage=stage,
                    received=received,
                )
            except OutputError:
                raise
            except ForsakenError as error:  # a process died, or Ray could not go on
                failed.append(str(error))
    if failed:
        raise ForsakenError(
            f"{done} of {len(wanted)} trials are measured and saved, the others failed; the same command tries them "
            "again:\n" + "\n".join(failed)
        )
    return done


@dataclass(frozen=True, slots=True)
class _Found:
    """What was measured of the trials of a group, by number, and the errors of the others."""

    contents: dict[int, dict[str, Any]]
    failed: list[str]


def _measure(group: list[Trial], folder: Path, store: Path, progress: Progress, tell: Callable[[], None]) -> _Found:
    """Measure and save the trials of a group. An error costs its own trial, and not the hours of work on the others."""
    found, commit = _Found({}, []), commit_of(PACKAGE)

    def fail(what: str, error: Exception) -> None:
        reason = str(error) if isinstance(error, ForsakenError) else f"{type(error).__name__}: {error}"
        found.failed.append(f"{group[0].scenario}, seed {group[0].seed}{what}: {reason}")

    try:
        for at, (trial, measured) in enumerate(measure_group(group, Store(store), progress)):
            if isinstance(measured, Exception):
                fail(f", {trial.kind} of {trial.row}", measured)
                continue
            found.contents[at] = measured | {"commit": commit}
            write(trial, folder, found.contents[at])
            tell()
    except OutputError:  # nothing can be saved, so there is no use in going on
        raise
    except Exception as error:  # noqa: BLE001 (the models of the group cannot be trained; it is told at the end)
        fail("", error)
    return found


@cache
def commit_of(folder: Path) -> str | None:
    """Return the commit of the repository that a folder is in, with a "+" where files differ from it; None for none."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True)  # noqa: S603, S607
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.CalledProcessError):  # no git, or an installed package
        return None


@dataclass(frozen=True, slots=True)
class Cost:
    """What one group of trials will take.

    Attributes
    ----------
    scenario, seed, trials
        Which group, and how many of its trials are not done.
    seconds : float
        By trials of the same kind that were measured before, or by a few steps of training on this machine.
    bytes : int
        Of the results and of the trained models that are kept.
    """

    scenario: str
    seed: int
    trials: int
    seconds: float
    bytes: int


def expected_costs(
    trials: Sequence[Trial], folder: Path, *, anew: bool = False, progress: Progress = silent
) -> list[Cost]:
    """Return what it will take to measure the trials that are not saved yet (with `anew`, all), group by group."""
    saved = _saved(folder)
    known: dict[tuple[str, str | None], tuple[float, int]] = {}
    found = []
    groups = groups_of(unfinished(trials, folder, anew=anew))
    for at, group in enumerate(groups):
        progress(Tick("estimate", at, len(groups)))
        first = group[0]
        task = first.scenario, first.changes.model
        if task not in known:
            known[task] = _training_of(first, saved)
        full, parameters = known[task]
        plan, own = plan_named(first.scenario), first.changes.plan(first.scenario)
        training = full * own.recipe.epochs / plan.recipe.epochs
        seconds = _shared(first) * training + sum(_row_seconds(trial, training, saved) for trial in group)
        kept = 0 if own.network.name in ESTIMATORS else 4 * parameters * (3 + any(t.row == "references" for t in group))
        found.append(Cost(first.scenario, first.seed, len(group), seconds, kept + _FILE * len(group)))
    progress(Tick("estimate", len(groups), max(1, len(groups))))
    return found


def _shared(trial: Trial) -> int:
    """Return how many trainings the trials of a group share."""
    return {"sequence": 3 * MODELS, "worth": 2 * int(trial.settings.get("models", 0))}.get(trial.kind, 3)


def _row_seconds(trial: Trial, training: float, saved: _Seconds) -> float:
    before = saved.get((trial.device, trial.scenario, trial.kind, trial.row))
    if before and not trial.changes.told() and trial.kind not in _STUDIES:
        return mean(before)
    return training * _STUDIES.get(trial.kind, _trainings)(trial)


def _trainings(trial: Trial) -> float:
    if trial.row in ("before", "retrained"):
        return 0.0
    if trial.row in ("references", "grouped"):
        return FOLDS + _SHORT
    return _TRAININGS.get(trial.row, _SHORT)


def _truth_trainings(trial: Trial) -> float:
    references = row_named(trial.row).preset == "out-of-fold"
    return int(trial.settings.get("models", 16)) * (4 + references)


def _worth_trainings(trial: Trial) -> float:
    folds, models, tables, wholes = (int(trial.settings[name]) for name in ("folds", "models", "tables", "wholes"))
    return models + tables * (folds + wholes)


def _sequence_trainings(trial: Trial) -> float:
    if not trial.settings:  # models that are there already
        return 0.0
    tables = REQUESTS // REFIT if trial.settings["order"] == "row, refit" else 1
    return MODELS * (tables * FOLDS + REQUESTS * _SHORT)


# Trainings of the kinds that need many models, which their settings decide.
_STUDIES = {"sequence": _sequence_trainings, "truth": _truth_trainings, "worth": _worth_trainings}


def _saved(folder: Path) -> _Seconds:
    """Return the seconds of all saved trials, and under the row "" those of one training."""
    found: _Seconds = {}
    for path in sorted(folder.glob("*/*.json")):
        try:
            content = parse_json(path.read_bytes())
            what = content["trial"]
            if what["changes"]:
                continue
            place = what["device"], what["scenario"]
            found.setdefault((*place, what["kind"], what["row"]), []).append(content["trial_seconds"])
            trained = content["numbers"].get("train_seconds")
        except (OSError, UnreadableError, KeyError, TypeError):
            continue
        if trained is not None:
            found.setdefault((*place, "", ""), []).append(trained)
    return found


def _training_of(trial: Trial, saved: _Seconds) -> tuple[float, int]:
    """Return the seconds of one training of the scenario with all its epochs, and its parameters."""
    scenario = Changes(model=trial.changes.model).scenario(trial.scenario, trial.seed)
    parameters = parameter_count(scenario)
    before = None if trial.changes.model else saved.get((trial.device, trial.scenario, "", ""))
    return (mean(before) if before else _timed(scenario, trial.device)), parameters


def _timed(scenario: Scenario, device: str) -> float:
    """Return what a training should take, from a few steps of one; estimators of scikit-learn take seconds."""
    if scenario.network.name in ESTIMATORS:
        return 10.0

    def make() -> Any:
        return build(scenario.network, scenario.given)

    train(make, scenario.train, scenario.recipe, seed=0, device=device, steps=1)  # the first step takes longer
    start = time.perf_counter()
    train(make, scenario.train, scenario.recipe, seed=0, device=device, steps=_STEPS)
    each = (time.perf_counter() - start) / _STEPS
    return each * scenario.recipe.epochs * steps_of(len(scenario.train), scenario.recipe, make())
