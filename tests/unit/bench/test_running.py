"""Runs of trials: what is saved is never measured again, and a run that is stopped goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from forsaken.bench import running, trials
from forsaken.bench.running import Cost, expected_costs, groups_of, parts_of, run_trials, unfinished
from forsaken.bench.scenarios.scenario import Scenario
from forsaken.bench.trials import Changes, Trial, read
from forsaken.errors import ForsakenError, ModelError, NothingForgottenError, OutputError
from forsaken.types import Tick

FEW = Changes(epochs=2)
TRIALS = [Trial("digits", seed, row, changes=FEW) for seed in (100, 101) for row in ("before", "paper", "retrained")]


def numbers(trial: Trial, folder: Path) -> dict[str, object]:
    content = read(trial, folder)
    assert content is not None
    return {key: value for key, value in content["numbers"].items() if "seconds" not in key}


def test_trials_with_the_same_models_are_one_group() -> None:
    groups = groups_of([TRIALS[0], TRIALS[3], TRIALS[1]])
    assert groups == [[TRIALS[0], TRIALS[1]], [TRIALS[3]]]


def test_rows_that_train_are_parts_of_their_own_after_the_short_ones() -> None:
    rows = ("before", "smu", "references", "paper", "references")
    kinds = ("forget", "forget", "forget", "forget", "white-box")
    group = [Trial("digits", 0, row, kind) for row, kind in zip(rows, kinds, strict=True)]
    before, smu, references, paper, seen = group
    assert parts_of(group) == [[before, paper], [smu], [references, seen]]
    assert parts_of([smu, references]) == [[smu], [references]]
    truths = [Trial("digits", 0, row, "truth") for row in ("references", "paper")]
    assert parts_of([before, *truths, references]) == [[before], truths, [references]], "the same originals"
    folds = [Trial("digits", 0, "fold-models", "worth", {"folds": count}) for count in (2, 4)]
    assert parts_of(folds) == [[one] for one in folds], "the store holds what the judges say"
    canaries = [Trial("ptb-canaries", 0, row, "exposure") for row in ("before", "matched", "paper")]
    assert parts_of(canaries) == [[canaries[0], canaries[2]], [canaries[1]]]
    requests = [Trial("digits", 0, "references", "sequence", {"order": order}) for order in ("row", "group")]
    assert parts_of(requests) == [requests], "the store does not hold the originals"


def test_what_is_saved_is_not_measured_again(tmp_path: Path) -> None:
    results, store = tmp_path / "results", tmp_path / "store"
    assert run_trials([*TRIALS, TRIALS[0]], results, store) == len(TRIALS)
    times = {path: path.stat().st_mtime_ns for path in results.rglob("*.json")}
    assert len(times) == len(TRIALS)
    assert run_trials(TRIALS, results, store) == 0
    assert {path: path.stat().st_mtime_ns for path in results.rglob("*.json")} == times
    gone = TRIALS[4]
    before = numbers(gone, results)
    gone.path(results).unlink()
    assert unfinished(TRIALS, results) == [gone]
    assert run_trials(TRIALS, results, store) == 1
    assert numbers(gone, results) == before


def test_a_saved_trial_says_what_it_is_and_where_it_comes_from(tmp_path: Path) -> None:
    run_trials(TRIALS[:1], tmp_path / "results", tmp_path / "store")
    content = json.loads(TRIALS[0].path(tmp_path / "results").read_bytes())
    assert content["key"] == TRIALS[0].key
    assert content["trial"]["recipe"]["epochs"] == 2
    assert content["provenance"]["versions"]["torch"]
    assert content["provenance"]["source_sha256"]
    assert content["commit"] is None or len(content["commit"].rstrip("+")) == 40
    assert str(tmp_path) not in json.dumps(content)


def test_a_damaged_or_foreign_result_counts_as_missing(tmp_path: Path) -> None:
    path = TRIALS[0].path(tmp_path)
    path.parent.mkdir()
    for text in ("{", "[]", json.dumps({"key": "another", "numbers": {}})):
        path.write_text(text)
        assert unfinished(TRIALS[:1], tmp_path) == TRIALS[:1]


def test_a_run_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    results, store = tmp_path / "results", tmp_path / "store"

    def stop(tick: Tick) -> None:
        if tick.stage == running.STAGE and tick.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trials(TRIALS, results, store, progress=stop)
    saved = {path: path.stat().st_mtime_ns for path in results.rglob("*.json")}
    assert len(saved) == 2
    assert not list(results.rglob("*.draft"))
    assert run_trials(TRIALS, results, store) == len(TRIALS) - 2
    assert {path: path.stat().st_mtime_ns for path in saved} == saved
    whole = tmp_path / "whole"
    run_trials(TRIALS, whole, tmp_path / "other")
    assert [numbers(one, results) for one in TRIALS] == [numbers(one, whole) for one in TRIALS]


def test_measuring_anew_replaces_results_one_by_one(tmp_path: Path) -> None:
    results, store = tmp_path / "results", tmp_path / "store"
    run_trials(TRIALS[:3], results, store)
    old = [trial.path(results).stat().st_mtime_ns for trial in TRIALS[:3]]
    assert unfinished(TRIALS[:3], results, anew=True) == TRIALS[:3]
    assert [one.trials for one in expected_costs(TRIALS[:3], results, anew=True)] == [3]

    def stop(tick: Tick) -> None:
        if tick.stage == running.STAGE and tick.done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_trials(TRIALS[:3], results, store, anew=True, progress=stop)
    new = [trial.path(results).stat().st_mtime_ns for trial in TRIALS[:3]]
    assert [after > before for before, after in zip(old, new, strict=True)] == [True, False, False], "none is lost"
    assert run_trials(TRIALS[:3], results, store, anew=True) == 3


def test_progress_counts_all_trials(tmp_path: Path) -> None:
    ticks: list[Tick] = []
    run_trials(TRIALS[:3], tmp_path / "results", tmp_path / "store", progress=ticks.append)
    assert [(one.done, one.total) for one in ticks if one.stage == running.STAGE] == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_costs_fall_to_nothing_as_trials_are_done(tmp_path: Path) -> None:
    results = tmp_path / "results"
    costs = expected_costs(TRIALS, results)
    assert [(one.scenario, one.seed, one.trials) for one in costs] == [("digits", 100, 3), ("digits", 101, 3)]
    assert all(one.seconds > 0 and one.bytes > 3 * 4 * 149_000 for one in costs)
    run_trials(TRIALS[:3], results, tmp_path / "store")
    assert [one.seed for one in expected_costs(TRIALS, results)] == [101]
    run_trials(TRIALS, results, tmp_path / "store")
    assert expected_costs(TRIALS, results) == []


def test_costs_of_fewer_epochs_are_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_timed", lambda scenario, _: float(scenario.recipe.epochs))
    few = [Trial("digits", 0, "retrained", changes=Changes(epochs=count)) for count in (2, 20)]
    assert [one.seconds for one in expected_costs(few, tmp_path)] == pytest.approx([3 * 2, 3 * 20])


def test_costs_grow_with_trainings() -> None:
    def seconds(trial: Trial) -> float:
        return running._row_seconds(trial, 10.0, {})

    plain = Trial("digits", 0, "forsaken")
    assert seconds(plain) < seconds(Trial("digits", 0, "sisa")) < seconds(Trial("digits", 0, "forsaken", kind="truth"))
    assert seconds(Trial("digits", 0, "retrained")) == 0
    assert running._row_seconds(plain, 10.0, {("cpu", "digits", "forget", "forsaken"): [1.0, 3.0]}) == 2
    elsewhere = {("cuda", "digits", "forget", "forsaken"): [1.0, 3.0]}
    assert running._row_seconds(plain, 10.0, elsewhere) == seconds(plain), "a GPU's seconds say nothing of a CPU's"
    assert Cost("digits", 0, 1, 1.0, 1).bytes == 1


def test_a_trial_that_fails_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> dict[str, object]:
        raise ZeroDivisionError("a bug")

    monkeypatch.setitem(trials.KINDS, "broken", broken)
    bad = Trial("digits", 100, "before", kind="broken", changes=FEW)
    results = tmp_path / "results"
    with pytest.raises(ForsakenError, match=r"3 of 4 trials(.|\n)*broken of before: ZeroDivisionError: a bug"):
        run_trials([bad, TRIALS[0], TRIALS[1], TRIALS[3]], results, tmp_path / "store")
    assert unfinished([bad, *TRIALS], results) == [bad, TRIALS[2], TRIALS[4], TRIALS[5]]


def test_models_that_cannot_be_trained_cost_no_other_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = trials.staged

    def broken(scenario: Scenario, *given: object, **more: object) -> object:
        if scenario.seed == 100:
            raise MemoryError("no room")
        return staged(scenario, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(trials, "staged", broken)
    with pytest.raises(ForsakenError, match="seed 100: MemoryError: no room"):
        run_trials([TRIALS[0], TRIALS[3]], tmp_path / "results", tmp_path / "store")
    assert read(TRIALS[3], tmp_path / "results") is not None


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_refusal_is_saved_with_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, wrapped: bool) -> None:
    def refusing(*_: object) -> dict[str, object]:
        error = NothingForgottenError("all look unseen")
        if wrapped:
            raise ForsakenError(f"failed on an original: {error}") from error
        raise error

    monkeypatch.setitem(trials.KINDS, "refusing", refusing)
    trial = Trial("digits", 100, "before", kind="refusing", changes=FEW)
    assert run_trials([trial], tmp_path / "results", tmp_path / "store") == 1
    content = read(trial, tmp_path / "results")
    assert content is not None
    assert content["numbers"]["error"] == "NothingForgottenError"
    assert "all look unseen" in content["numbers"]["refused"]


@pytest.mark.parametrize("hidden", [False, True])
def test_a_gpu_that_is_full_says_nothing_about_a_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, hidden: bool
) -> None:
    def fill() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def full(*_: object) -> dict[str, object]:
        try:
            fill()
        except torch.OutOfMemoryError as error:
            raise ModelError("the model failed") from (None if hidden else error)
        return {}

    monkeypatch.setitem(trials.KINDS, "full", full)
    trial = Trial("digits", 100, "before", kind="full", changes=FEW)
    with pytest.raises(ForsakenError, match="the model failed"):
        run_trials([trial], tmp_path / "results", tmp_path / "store")
    assert read(trial, tmp_path / "results") is None


def test_a_process_that_dies_is_told_with_all_other_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(work: Any, items: list[list[Trial]], *, received: Any, **_: object) -> None:
        received(0, work(items[0]))
        raise ForsakenError("a process died while it worked")

    monkeypatch.setattr(running, "fan_out", dying)
    with pytest.raises(ForsakenError, match=r"2 of 4 trials(.|\n)*a process died"):
        run_trials([*TRIALS[:2], *TRIALS[3:5]], tmp_path / "results", tmp_path / "store", engine="processes")
    assert unfinished(TRIALS[:2], tmp_path / "results") == []


def test_a_disk_that_cannot_be_written_ends_the_run_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OutputError("no space left")

    monkeypatch.setattr(running, "write", full)
    with pytest.raises(OutputError, match="no space left"):
        run_trials([TRIALS[0], TRIALS[3]], tmp_path / "results", tmp_path / "store")


def test_processes_find_the_same_and_save_each_group_as_it_comes(tmp_path: Path) -> None:
    wanted = [*TRIALS, Trial("digits", 100, "smu", changes=FEW)]
    one = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run_trials(wanted, tmp_path / "local", tmp_path / "store-1")
    finally:
        torch.set_num_threads(one)
    seen: list[int] = []

    def watch(tick: Tick) -> None:
        if tick.stage == running.STAGE:
            seen.append(len(list((tmp_path / "side").rglob("*.json"))))

    run_trials(wanted, tmp_path / "side", tmp_path / "store-2", engine="processes", workers=2, progress=watch)
    assert seen[0] == 0
    assert seen[1] >= 3
    assert seen[-2] == 6
    assert seen[-1] == 7
    # The part that trains more found the models of the first one: neither trained any again.
    names = [{path.name for path in (tmp_path / store).iterdir()} for store in ("store-1", "store-2")]
    assert names[0] == names[1]
    assert [numbers(trial, tmp_path / "side") for trial in wanted] == [
        numbers(trial, tmp_path / "local") for trial in wanted
    ]
