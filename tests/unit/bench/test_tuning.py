"""How settings are chosen: distances by hand, grids, and a run that is stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from job_folders import forsaken

from forsaken.bench import tuning
from forsaken.bench.rows import ROWS, TUNED
from forsaken.bench.scenarios import table
from forsaken.bench.trials import read
from forsaken.bench.tuning import WORST, distance, gather, grid_of, trials_of
from forsaken.errors import SettingsError

RETRAINED = {"fr": 0.9, "cfr": 0.05, "accuracy": 0.8}


def test_distance_adds_what_differs_and_what_is_lost() -> None:
    assert distance("scrub", RETRAINED, RETRAINED) == 0
    assert distance("scrub", RETRAINED | {"accuracy": 0.99}, RETRAINED) == 0, "more accuracy is no distance"
    assert distance("smu", RETRAINED | {"own_fr": 0.5, "own_cfr": 0.05}, RETRAINED) == pytest.approx(0.4)
    assert distance("sisa-dp-sgd", {"fr": 0.0, "cfr": 0.0, "accuracy": 0.7}, RETRAINED) == pytest.approx(0.1)


def test_distance_of_what_is_undefined_is_the_worst() -> None:
    assert distance("scrub", RETRAINED | {"fr": None}, RETRAINED) == WORST
    assert distance("scrub", {"refused": "it ruined the model"}, RETRAINED) == WORST


def test_what_was_poisoned_is_judged_by_accuracy_and_recall() -> None:
    found, retrained = {"accuracy": 0.9, "recall": 0.7}, {"accuracy": 0.8, "recall": 0.9}
    assert distance("scrub-all", found, retrained) == pytest.approx(0.2)
    assert {trial.kind for trial in trials_of("poison-digits", "scrub-all")} == {"poison"}


def test_every_setting_that_was_chosen_is_on_the_grid() -> None:
    for task, rows in TUNED.items():
        for name, settings in rows.items():
            if ROWS[name].method == "forsaken" or task == "ptb-canaries":
                continue
            grid = grid_of(name)
            assert all(value in grid[key] for key, value in settings.items()), (task, name, settings)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.method in tuning.GRIDS])
def test_every_setting_of_every_row_is_a_trial_of_its_own(name: str) -> None:
    trials = trials_of("digits", name, [100])
    assert len({trial.key for trial in trials}) == len(trials)


def test_only_what_can_be_tuned_is() -> None:
    with pytest.raises(SettingsError, match="sisa has no settings"):
        grid_of("sisa")
    assert "epochs" in grid_of("scrub")
    assert "epochs" not in grid_of("scrub-all")


def test_a_tuning_finds_the_nearest_and_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tuning.GRIDS, "scrub", {"learning_rate": (0.0001, 0.001, 0.03)})
    plan = table.SCENARIOS["digits-id"]
    monkeypatch.setitem(table.SCENARIOS, "digits-id", replace(plan, recipe=replace(plan.recipe, epochs=10)))
    words = ("bench", "tune", "scrub-all", "--scenario", "digits-id", "--folder", tmp_path / "tuning")
    store = ("--store", tmp_path / "store")
    found = forsaken(*words, *store, "--json").json["scrub-all"]
    assert [one["distance"] for one in found] == sorted(one["distance"] for one in found)
    trials = trials_of("digits-id", "scrub-all")
    assert len(trials) == 8
    numbers = [read(trial, tmp_path / "tuning")["numbers"] for trial in trials]
    by_hand = [
        sum(distance("scrub-all", numbers[at + seed * 4], numbers[seed * 4]) for seed in (0, 1)) / 2 for at in (1, 2, 3)
    ]
    assert found[0]["distance"] == pytest.approx(min(by_hand))
    gone = trials[5].path(tmp_path / "tuning")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "tuning").rglob("*.json")}
    gone.unlink()
    assert len(gather("digits-id", "scrub-all", tmp_path / "tuning")) == 2, "a setting counts when all seeds have it"
    shown = forsaken(*words, *store)
    assert "nearest to the retrained model first" in " ".join(shown.out.split())
    changed = [path for path, time in times.items() if path.stat().st_mtime_ns != time]
    assert changed == [gone]
    assert "is at an end of the grid" in " ".join((shown.out + shown.err).split())


def test_canaries_are_refused_before_anything_is_trained() -> None:
    with pytest.raises(SettingsError, match="ptb-canaries is judged by exposure"):
        trials_of("ptb-canaries", "fine-tune")


def test_seeds_that_are_reported_are_refused(tmp_path: Path) -> None:
    ended = forsaken("bench", "tune", "scrub", "--scenario", "digits", "--seeds", "2,100", "--folder", tmp_path / "t")
    assert ended.code == 2
    assert "the tables report [2]" in " ".join(ended.err.split())
    assert not (tmp_path / "t").exists()
