"""The benchmark of the baselines: how settings are chosen, what a cache is worth, what the guide shows of its files."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from forsaken.unlearning.methods import METHODS

ROOT = Path(__file__).parents[2]
TASKS = ("reuters-35-11", "digits", "digits-pictures")


@pytest.fixture(scope="module")
def scripts() -> Iterator[dict[str, ModuleType]]:
    names = ("common", "baselines", "tables")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        yield {name: importlib.import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name)


@pytest.fixture
def script(scripts: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    def train(*_: object, **__: object) -> None:
        pytest.fail("a stage was trained")

    monkeypatch.setattr(scripts["baselines"], "prepare", train)
    return scripts["baselines"]


@pytest.fixture
def tables(scripts: dict[str, ModuleType]) -> ModuleType:
    return scripts["tables"]


def found(fr: float | None, cfr: float | None, accuracy: float) -> dict[str, Any]:
    return {"fr": fr, "cfr": cfr, "accuracy": accuracy}


def test_distance_adds_what_differs_and_what_is_lost(script: ModuleType) -> None:
    yardstick = found(0.9, 0.05, 0.8)
    assert script.distance("scrub", yardstick, yardstick) == 0
    assert script.distance("scrub", found(1.0, 0.0, 0.7), yardstick) == pytest.approx(0.1 + 0.05 + 0.1)
    assert script.distance("scrub", found(0.9, 0.05, 0.99), yardstick) == 0, "more accuracy is no distance"


def test_distance_of_what_is_undefined_is_the_worst(script: ModuleType) -> None:
    yardstick = found(0.9, 0.0, 0.8)
    assert script.distance("scrub", found(None, 0.0, 0.8), yardstick) == script.WORST
    assert script.distance("scrub", found(0.9, None, 0.8), yardstick) == script.WORST
    assert script.distance("sisa-dp-sgd", found(None, None, 0.5), yardstick) == pytest.approx(0.3)


def test_choices_are_the_whole_grid_and_more_epochs_where_retain_samples_are_few(script: ModuleType) -> None:
    rates = len(script.RATES)
    few, whole = list(script.choices("fine-tune", False)), list(script.choices("fine-tune", True))
    assert len(few) == 2 * rates
    assert {one["epochs"] for one in few} == {5, 50}
    assert [one["learning_rate"] for one in whole] == list(script.RATES)
    assert all(set(one) == {"learning_rate"} for one in whole)
    assert len(list(script.choices("neggrad-plus", True))) == 2 * rates
    assert list(script.choices("ssd", False)) == list(script.choices("ssd", True)), "no training, so no epochs"
    assert list(script.choices("retrain", False)) == [{}]


def test_chosen_is_the_best_over_all_seeds_not_over_the_first(script: ModuleType) -> None:
    def tried(*distances: float) -> dict[str, list[dict[str, Any]]]:
        return {"ct": [{"settings": {"learning_rate": at}, "distance": far} for at, far in enumerate(distances)]}

    assert script.chosen([tried(0.1, 0.2, 0.9)]) == {"ct": {"learning_rate": 0}}
    assert script.chosen([tried(0.1, 0.2, 0.9), tried(0.9, 0.2, 0.1)]) == {"ct": {"learning_rate": 1}}
    assert script.chosen([tried(0.5, 0.2, 0.2)]) == {"ct": {"learning_rate": 1}}, "the first of equals"


def test_edges_are_the_ends_of_the_grid_that_was_tried(script: ModuleType) -> None:
    best = {
        "fine-tune": {"learning_rate": 0.1, "epochs": 50},
        "scrub": {"learning_rate": 3.0, "epochs": 5},
        "scrub, all kept": {"learning_rate": 0.03},
        "l1-sparse, all kept": {"learning_rate": 0.003, "gamma": 1e-4},
    }
    assert set(script.edges(best)) == {
        "fine-tune: epochs 50",
        "scrub: learning_rate 3.0",
        "scrub: epochs 5",
        "l1-sparse, all kept: learning_rate 0.003",
    }


def test_rows_have_names_of_their_own_and_every_method(script: ModuleType) -> None:
    rows = list(script.rows())
    names = [row for row, _, _ in rows]
    assert len(set(names)) == len(names)
    by_references = {"oracle-matching"}  # benchmarks/out_of_fold.py compares it, where every original has references
    assert {name for _, name, _ in rows} == set(METHODS) - by_references
    assert [row for row, _, whole in rows if whole] == [f"{name}, all kept" for name in script.PEERS]
    assert (script.BARE, "sisa", False) in rows
    assert script.own("digits", script.BARE) == {"slices": 10, "space": 0}
    assert script.own("reuters-35-11", "sisa") == {}


def test_identity_changes_with_grid_device_and_recipe(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [script.identity("digits", "cpu")]
    assert script.identity("digits", "cpu") == seen[0]
    seen += [script.identity("digits", "cuda"), script.identity("digits-pictures", "cpu")]
    with monkeypatch.context() as patch:
        patch.setitem(script.GRIDS, "ct", {"learning_rate": (1.0,)})
        seen.append(script.identity("digits", "cpu"))
    with monkeypatch.context() as patch:
        patch.setattr(script, "EPOCHS", (5, 50, 500))
        seen.append(script.identity("digits", "cpu"))
    plan = script.SCENARIOS["digits"]
    longer = dataclasses.replace(plan, recipe=dataclasses.replace(plan.recipe, epochs=plan.recipe.epochs + 1))
    with monkeypatch.context() as patch:
        patch.setattr(script, "SCENARIOS", {"digits": longer})
        seen.append(script.identity("digits", "cpu"))
    assert len(set(seen)) == len(seen)
    assert script.identity("digits", "cpu") == seen[0]


def save(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_a_tuning_is_read_back_only_under_its_own_identity(script: ModuleType, tmp_path: Path) -> None:
    tried = [{"settings": {"learning_rate": 0.1}, "distance": 0.5, "numbers": {}}]
    path = tmp_path / "tune-digits-100" / "smu.json"
    save(path, {"identity": script.identity("digits", "cpu"), "tried": tried})
    assert script.tuned(tmp_path, "digits", 100, "cpu", {"smu"}) == {"smu": tried}
    save(path, {"identity": script.identity("digits", "cuda"), "tried": tried})
    with pytest.raises(SystemExit, match=r"smu\.json was made with other grids or on another device; delete it"):
        script.tuned(tmp_path, "digits", 100, "cpu", {"smu"})


def test_a_run_is_read_back_only_with_its_own_settings(script: ModuleType, tmp_path: Path) -> None:
    path, known = tmp_path / "run-digits-0" / "smu.json", script.identity("digits", "cpu")
    best, other = {"smu": {"learning_rate": 0.1}}, {"smu": {"learning_rate": 0.2}}
    save(path, {"identity": known, "best": best["smu"], "numbers": {"fr": 0.5}})
    assert script.reported(tmp_path, "digits", 0, best, "cpu", {"smu"}) == {"smu": {"fr": 0.5}}
    refused = pytest.raises(SystemExit, match=r"smu\.json was run with other settings or on another device; delete it")
    with refused:
        script.reported(tmp_path, "digits", 0, other, "cpu", {"smu"})
    save(path, {"identity": "another", "best": best["smu"], "numbers": {"fr": 0.5}})
    with refused:
        script.reported(tmp_path, "digits", 0, best, "cpu", {"smu"})


def test_machines_tell_which_rows_are_from_elsewhere(script: ModuleType, tmp_path: Path) -> None:
    for row, cores, time in (("smu", 16, "b"), ("ct", 16, "c"), ("ssd", 2, "a")):
        save(tmp_path / "run-digits-3" / f"{row}.json", {"provenance": {"cores": cores, "time": time}})
    assert script.machines(tmp_path, "digits", [3]) == [
        {"cores": 16, "from": "b", "to": "c", "rows": "all others"},
        {"cores": 2, "from": "a", "to": "a", "rows": {"3": ["ssd"]}},
    ]


def test_the_tuning_table_has_both_seeds_and_the_choice(script: ModuleType) -> None:
    def seed(fr: float | None) -> dict[str, list[dict[str, Any]]]:
        return {"ct": [{"settings": {"learning_rate": 1.0}, "distance": 0.12345, "numbers": found(fr, 0.0, 0.5)}]}

    line = script.tuning_table([seed(0.25), seed(None)], {"ct": {"learning_rate": 1.0}})["ct"][0]
    assert line == {
        "settings": {"learning_rate": 1.0},
        "distance": [0.1235, 0.1235],
        "fr": [0.25, None],
        "cfr": [0.0, 0.0],
        "accuracy": [0.5, 0.5],
        "chosen": True,
    }


@pytest.mark.parametrize("task", TASKS)
def test_the_saved_choice_is_the_nearest_of_the_saved_tuning(script: ModuleType, tables: ModuleType, task: str) -> None:
    result, tuning = tables.read(task), tables.read(task, "baselines-tuning")
    assert result["tuned_on"] == tuning["tuned_on"] == [100, 101]
    assert not set(result["tuned_on"]) & set(result["seeds"])
    for row, settings in result["settings"].items():
        lines = tuning["tried"][row]
        (taken,) = [line for line in lines if line.get("chosen")]
        assert taken["settings"] == settings
        assert sum(taken["distance"]) <= min(sum(line["distance"]) for line in lines) + 2e-4, "rounded to four digits"
        name, _, rest = row.partition(",")
        assert len(lines) == len(list(script.choices(name, bool(rest))))
    assert result["at_the_edge_of_their_grid"] == script.edges(result["settings"])
    assert (tables.RESULTS / f"baselines-tuning-{task}.json").stat().st_size < 300_000


@pytest.mark.parametrize("task", TASKS)
def test_the_guide_shows_the_tables_of_the_files(tables: ModuleType, task: str) -> None:
    guide = (ROOT / "benchmarks/notes/baselines.md").read_text()
    assert tables.table(task) in guide
    assert tables.sisa_table() in guide


def test_a_table_shows_no_rate_of_a_model_without_memory(tables: ModuleType) -> None:
    runs = [
        found(1.0, 1.0, 0.04)
        | {"accuracy_loss": 0.0, "accuracy_loss_beside_plain_training": 0.8, "memorised_before": 9}
    ]
    assert tables.rates("sisa-dp", runs) == ("n/a: nothing was memorised", "")
    works = [runs[0] | {"accuracy": 0.84, "accuracy_loss_beside_plain_training": 0.0}]
    assert tables.rates("scrub", works) == ("1.000", "1.000")
    assert tables.rates("scrub", [works[0] | {"memorised_before": 0}]) == ("n/a: nothing was memorised", "")


def test_a_cell_counts_the_seeds_that_have_a_number(tables: ModuleType) -> None:
    runs = [{"fr": 0.25}, {"fr": None}, {"fr": 0.75}]
    assert tables.cell(runs, "fr", 2) == "0.50 ± 0.35 (n = 2)"
    assert tables.cell([{"fr": -0.0001}, {"fr": 0.0}], "fr", 3) == "0.000 ± 0.000"
    assert tables.cell([{"fr": None}], "fr", 3) == "n/a: nothing was memorised"
