"""Trials: keys that cover every setting, numbers checked by hand, trained models that are kept and found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forsaken.auditing.inputs import AuditInputs
from forsaken.bench import trial as stages
from forsaken.bench import white_box
from forsaken.bench.networks import build
from forsaken.bench.rows import PEERS, ROWS, forget, settings_of
from forsaken.bench.scenarios.table import load_scenario, plan_named
from forsaken.bench.store import Store, content_hash, identity
from forsaken.bench.trial import Stage, staged, train_or_load
from forsaken.bench.trials import KINDS, Changes, Trial, judged, largest, measure_group, member_neighbours
from forsaken.data.samples import Samples
from forsaken.errors import SettingsError, UnknownNameError
from forsaken.models.logits import posteriors
from forsaken.models.weights import fingerprint
from forsaken.unlearning.forsaken.method import Forsaken
from forsaken.unlearning.gradient_ascent import GradientAscent
from forsaken.unlearning.methods import build as build_method

FEW = Changes(epochs=8)


@pytest.fixture(scope="module")
def stage() -> Stage:
    return staged(FEW.scenario("digits", 100))


def measured(*trials: Trial, store: Store | None = None) -> list[dict[str, Any]]:
    found = []
    for _, content in measure_group(list(trials), store):
        if isinstance(content, Exception):
            raise content
        found.append(content["numbers"])
    return found


def test_rows_beside_ensembles_share_the_originals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Trial("digits", 100, row, "truth", {"models": 4}, FEW) for row in ("forsaken", "fine-tune")]
    alone = [measured(row, store=Store(tmp_path / row.row))[0] for row in rows]
    trained, train = list[int](), AuditInputs.train

    def counted(self: AuditInputs, data: Any, of: Any, seeds: Any, **more: Any) -> Any:
        trained.extend(seeds)
        return train(self, data, of, seeds, **more)

    monkeypatch.setattr(AuditInputs, "train", counted)
    assert measured(*rows, store=Store(tmp_path / "together")) == alone
    assert all("u_lira_auc" in numbers for numbers in alone)
    assert len(trained) == len(set(trained)) == 4 + 8


def test_a_row_that_fails_beside_ensembles_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(GradientAscent, "run", broken)
    rows = [Trial("digits", 100, row, "truth", {"models": 4}, FEW) for row in ("gradient-ascent", "fine-tune")]
    failed, fine = (content for _, content in measure_group(rows, Store(tmp_path)))
    assert isinstance(failed, ZeroDivisionError)
    assert isinstance(fine, dict)
    assert "u_lira_auc" in fine["numbers"]


def test_every_setting_is_part_of_the_key() -> None:
    plain = Trial("digits", 0, "forsaken")
    others = [
        Trial("digits-pictures", 0, "forsaken"),
        Trial("digits", 1, "forsaken"),
        Trial("digits", 0, "paper"),
        Trial("digits", 0, "forsaken", kind="white-box"),
        Trial("digits", 0, "forsaken", settings={"iterations": 5}),
        Trial("digits", 0, "forsaken", changes=Changes(forget=20)),
        Trial("digits", 0, "forsaken", changes=Changes(epochs=20)),
        Trial("digits", 0, "forsaken", changes=Changes(rows=200)),
        Trial("digits", 0, "forsaken", changes=Changes(model="svm")),
        Trial("digits", 0, "forsaken", device="cuda"),
    ]
    assert len({trial.key for trial in (plain, *others)}) == len(others) + 1
    assert plain.key == Trial("digits", 0, "forsaken").key


def test_what_a_trial_only_says_again_is_not_part_of_the_key() -> None:
    plain = Trial("reuters-35-11", 0, "paper")
    plan = plan_named("reuters-35-11")
    again = Changes(forget=plan.sizes.forget, epochs=plan.recipe.epochs)
    assert Trial("reuters-35-11", 0, "paper", changes=again).key == plain.key
    usual = {name: getattr(Forsaken.paper().schedule, name) for name in ("iterations", "history")}
    assert Trial("reuters-35-11", 0, "paper", settings=usual).key == plain.key
    assert Trial("reuters-35-11", 0, "paper", settings={"iterations": usual["iterations"] + 1}).key != plain.key
    assert Trial("digits", 0, "sisa", settings={"shards": build_method("sisa", {}).shards}).key == (
        Trial("digits", 0, "sisa").key
    )


@pytest.mark.parametrize(("name", "penalty"), [("paper", 10.0), ("corrected-paper", 10.0), ("corrected", 0.001)])
def test_what_is_usual_is_what_is_usual_for_the_row(name: str, penalty: float) -> None:
    plain = Trial("poison-digits", 0, name, kind="poison").key
    assert Trial("poison-digits", 0, name, kind="poison", settings={"penalty": penalty}).key == plain
    assert Trial("poison-digits", 0, name, kind="poison", settings={"penalty": 0.5}).key != plain


def test_a_recipe_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from forsaken.bench.scenarios import table

    before = Trial("digits", 0, "forsaken").key
    plan = table.SCENARIOS["digits"]
    monkeypatch.setitem(table.SCENARIOS, "digits", replace(plan, recipe=replace(plan.recipe, learning_rate=1e-3)))
    assert Trial("digits", 0, "forsaken").key != before


def test_tuned_settings_are_the_nearest_tasks() -> None:
    assert settings_of("digits", "salun") == {"learning_rate": 0.0003, "epochs": 50}
    assert settings_of("imdb-id", "scrub") == settings_of("i-c", "scrub") == {"learning_rate": 0.003, "epochs": 50}
    assert settings_of("imdb-id", "fine-tune") == settings_of("reuters-35-11", "fine-tune")
    assert settings_of("digits", "sisa") == {"slices": 10}
    assert settings_of("reuters-id", "sisa") == {}
    assert settings_of("digits", "forsaken") == {}
    with pytest.raises(UnknownNameError, match="did you mean 'salun'"):
        settings_of("digits", "salunn")


def test_peers_are_every_method_that_is_not_the_papers() -> None:
    assert {ROWS[name].method for name in PEERS} == {
        "fine-tune",
        "gradient-ascent",
        "neggrad-plus",
        "l1-sparse",
        "salun",
        "scrub",
        "ssd",
        "bad-teacher",
        "msg",
        "ct",
    }


def test_numbers_are_those_computed_by_hand(stage: Stage) -> None:
    found = forget(stage, "paper", {"iterations": 3})
    numbers = judged(stage, found)
    scenario = stage.scenario
    outside = [row for row in range(len(scenario.kept)) if row not in set(scenario.retain_rows.tolist())]
    kept = Samples(scenario.kept.inputs[outside])

    def verdicts(model: Any, samples: Samples) -> Any:
        return stage.oracle.score_posteriors(posteriors(model, samples)) > stage.oracle.threshold

    before, after = verdicts(stage.target, scenario.forget), verdicts(found.model, scenario.forget)
    assert numbers["fr"] == pytest.approx(((~after).sum() - (~before).sum()) / before.sum())
    own, new = verdicts(stage.target, kept), verdicts(found.model, kept)
    assert numbers["cfr"] == pytest.approx((own.sum() - new.sum()) / own.sum())
    with torch.no_grad():
        logits = found.model(scenario.test.inputs).double()
    assert numbers["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, scenario.test.labels)))
    assert numbers["accuracy"] == pytest.approx(float((logits.argmax(1) == scenario.test.labels).double().mean()))
    assert numbers["memorised"] == before.sum()


def test_collateral_is_not_measured_on_samples_that_the_method_was_given(stage: Stage) -> None:
    many, few = (forget(stage, name, {"iterations": 1}) for name in ("forsaken-1000", "forsaken"))
    assert len(many.used) == len(stage.scenario.kept) // 2
    assert set(few.used) <= set(many.used)
    assert len(forget(stage, "fine-tune-all", {"epochs": 1}).used) == len(stage.scenario.retain_rows)


def test_the_target_and_the_retrained_model_are_rows_too(stage: Stage) -> None:
    before, retrained = measured(
        Trial("digits", 100, "before", changes=FEW), Trial("digits", 100, "retrained", changes=FEW)
    )
    assert before["fr"] == 0
    assert before["learnt"] == int(
        (stage.target(stage.scenario.forget.inputs).argmax(1) == stage.scenario.forget.labels).sum()
    )
    assert before["samples"]["forget"] == before["forgotten_samples"] == 40
    assert retrained["seconds"] == retrained["retrain_seconds"]
    assert retrained["accuracy_loss"] == pytest.approx(retrained["accuracy_before"] - retrained["accuracy"])


def test_a_method_that_cannot_do_it_is_an_answer() -> None:
    (numbers,) = measured(Trial("digits", 100, "ct", changes=FEW))
    assert "convolution" in numbers["refused"]


def test_references_move_the_model_towards_the_retrained_one() -> None:
    changes = Changes(epochs=60)
    names = ("before", "references", "retrained")
    before, ours, retrained = measured(*(Trial("digits", 100, name, changes=changes) for name in names))
    assert abs(ours["confidence"] - retrained["confidence"]) < 0.5 * abs(before["confidence"] - retrained["confidence"])
    assert ours["table_trainings"] == 4
    assert ours["seconds"] > ours["moments_seconds"] > 0


def test_fewer_rows_leave_the_forget_set_as_it_is() -> None:
    plain, short = load_scenario("digits", seed=3), Changes(rows=200).scenario("digits", 3)
    assert len(short.kept) == 200
    assert len(short.train) == 200 + len(plain.forget)
    assert torch.equal(short.forget.inputs, plain.forget.inputs)
    share = 200 / len(plain.kept)
    assert len(short.shadow_members) == round(share * len(plain.shadow_members))
    assert torch.equal(short.shadow_members.inputs[-40:], plain.shadow_members.inputs[-40:]), "its strangers stay"
    assert short.retain_rows.max() < 200
    with pytest.raises(SettingsError, match="at most the 504"):
        Changes(rows=9999).scenario("digits", 3)


def test_the_number_of_forgotten_samples_can_be_changed() -> None:
    assert len(Changes(forget=20).scenario("digits", 0).forget) == 20


@pytest.mark.parametrize("model", ["logistic-regression", "svm"])
def test_estimators_forget_too(model: str) -> None:
    (numbers,) = measured(Trial("digits", 100, "forsaken", changes=Changes(model=model)))
    assert numbers["accuracy"] > 0.8
    assert numbers["confidence"] < 1


def test_poison_tells_recall_and_what_came_back() -> None:
    rows = ("before", "retrained", "corrected", "corrected-paper")
    before, retrained, corrected, paper = measured(*(Trial("poison-digits", 100, row, kind="poison") for row in rows))
    assert retrained["restored"] == 1
    assert before["restored"] == 0
    cost = retrained["recall"] - before["recall"]
    assert corrected["restored"] == pytest.approx((corrected["recall"] - before["recall"]) / cost)
    assert paper["put_right"] > before["put_right"] == 0
    assert (paper["stopped"], paper["iterations"]) == ("iterations", 60), "the paper's schedule, to the true labels"
    (alone,) = measured(Trial("digits", 100, "before", changes=FEW))
    assert "recall" not in alone
    with pytest.raises(SettingsError, match="no poisoned labels"):
        measured(Trial("digits", 100, "before", kind="poison", changes=FEW))


def test_a_picture_has_a_point_for_every_sample(stage: Stage) -> None:
    trial = Trial("digits", 100, "paper", kind="picture", settings={"white_box": False}, changes=FEW)
    found = KINDS["picture"](stage, trial, None, lambda _: None)
    assert found["counts"] == {"member": 100, "test": 100, "forgotten": 40}
    points = np.array(found["points_after"])
    assert points.shape == (240, 2)
    assert points.min() == 0
    assert points.max() == 1
    assert "white_box_points_after" not in found


def test_largest_posteriors_come_first() -> None:
    assert largest(np.array([[0.1, 0.6, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1]])).tolist() == [
        [0.6, 0.2, 0.1],
        [0.4, 0.3, 0.2],
    ]
    assert largest(np.array([[0.3, 0.7]])).tolist() == [[0.7, 0.3]]


def test_neighbours_are_members_where_they_lie_among_members() -> None:
    members, others = np.full((6, 2), 0.0), np.full((6, 2), 5.0)
    near = np.array([[0.1, 0.0]])
    far = np.array([[4.9, 5.0]])
    assert member_neighbours(np.concatenate([members, others, near]), 6, 6, 1) == 1
    assert member_neighbours(np.concatenate([members, others, far]), 6, 6, 1) == 0


def test_white_box_numbers_follow_from_the_scores() -> None:
    halves = {name: np.array([0, 1, 0, 1]) for name in ("forget", "kept", "test", "strangers")}
    high, low = np.array([0.9, 0.8, 0.7, 0.6]), np.array([0.4, 0.3, 0.2, 0.1])
    before = {"forget": high, "kept": high, "test": low, "strangers": low}
    after = {
        "forget": np.array([0.9, 0.1, 0.1, 0.1]),
        "kept": np.array([0.9, 0.8, 0.7, 0.1]),
        "test": low,
        "strangers": low,
    }
    found = white_box.judged({"before": before, "after": after, "retrained": before}, halves, 0.5)
    assert found["memorised"] == 4
    assert found["fr"] == 0.75
    assert found["cfr"] == 0.25
    assert found["fr_retrained"] == 0
    assert found["auc_before"] == 1
    # One half: 0.9 and 0.1 against 0.4 and 0.2, two of four pairs; the other: 0.1 twice against 0.3 and 0.1, two ties.
    assert found["auc_after"] == pytest.approx((0.5 + 0.25) / 2)
    assert found["balanced_accuracy"] == 1


def test_white_box_is_for_strangers() -> None:
    stage = staged(Changes(epochs=1).scenario("poison-digits", 0))
    with pytest.raises(SettingsError, match="samples of the task itself"):
        white_box.compared(stage, stage.target)


def test_a_kept_network_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, scenario = Store(tmp_path / "store"), FEW.scenario("digits", 1)
    first = train_or_load(scenario, scenario.kept, seed=5, store=store)
    monkeypatch.setattr(stages, "fit", lambda *_, **__: pytest.fail("trained again"))
    again = train_or_load(scenario, scenario.kept, seed=5, store=store)
    assert fingerprint(again.model) == fingerprint(first.model)
    assert (again.seconds, again.processor_seconds) == (first.seconds, first.processor_seconds)
    assert not again.model.training


def test_a_network_of_other_data_seed_or_recipe_is_another(tmp_path: Path) -> None:
    store, scenario = Store(tmp_path), FEW.scenario("digits", 1)
    first = train_or_load(scenario, scenario.kept, seed=5, store=store)
    others = [
        train_or_load(scenario, scenario.train, seed=5, store=store),
        train_or_load(scenario, scenario.kept, seed=6, store=store),
        train_or_load(Changes(epochs=9).scenario("digits", 1), scenario.kept, seed=5, store=store),
    ]
    assert len({fingerprint(one.model) for one in (first, *others)}) == 4
    assert len(list(tmp_path.iterdir())) == 4


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    store, scenario = Store(tmp_path), FEW.scenario("digits", 1)
    first = train_or_load(scenario, scenario.kept, seed=5, store=store)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:1000])
    assert fingerprint(train_or_load(scenario, scenario.kept, seed=5, store=store).model) == fingerprint(first.model)
    assert store.get({"other": 1}, lambda: build(scenario.network)) is None


def test_content_hashes_tell_labels_and_order_apart() -> None:
    inputs, labels = torch.arange(6.0).view(3, 2), torch.tensor([0, 1, 2])
    plain = content_hash(Samples(inputs, labels))
    assert plain == content_hash(Samples(inputs.clone(), labels.clone()))
    assert (
        len(
            {
                plain,
                content_hash(Samples(inputs)),
                content_hash(Samples(inputs, labels.flip(0))),
                content_hash(Samples(inputs.flip(0), labels)),
            }
        )
        == 4
    )
    assert identity({"a": 1, "b": 2}) == identity({"b": 2, "a": 1})
