"""forsaken.audit: three profiles, one result."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from audit_case import METHOD, Small
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import auc

import forsaken
from forsaken import METHODS, Audit, Recipe, Training
from forsaken.bench.networks import mlp
from forsaken.data.samples import Samples, join
from forsaken.errors import InputError, SettingsError
from forsaken.models.logits import LogitModel
from forsaken.report.page import _TOLD_FROM as TOLD_FROM
from forsaken.types import Tick

FAST = Recipe(20, 16, 1e-2)


def audit(trained: Small, **changes: object) -> Audit:
    given = {"training": trained.training, "retrained": trained.retrained, "oracle": trained.oracle, "method": METHOD}
    return forsaken.audit(trained.before, trained.after, trained.forget, **{**trained.sets, **given, **changes})


@pytest.fixture(scope="module")
def full(trained: Small) -> Audit:
    return audit(trained, profile="full", models=4)


def test_full_finds_that_the_originals_remember(full):
    assert full["u_lira_auc"].before > 0.9
    assert full["u_lira_auc"].floor[0] < 0.5 < full["u_lira_auc"].floor[1]
    assert full.cost["models"] == 12
    assert any("4 originals" in warning for warning in full.warnings)
    assert "U-LiRA" in full.claim.shown
    assert [alarm.name for alarm in full.alarms] == ["no-op", "over-forgetting", "under-forgetting"]
    assert Audit.model_validate_json(json.dumps(full.to_dict())) == full


def test_every_number_has_a_direction_an_n_and_an_interval_or_none_can_be_had(full):
    for number in full.numbers:
        assert number.n > 0
        assert number.interval is not None or number.note, number.name
        alone = number.name == "oracle_balanced_accuracy" or "shift" in number.name or number.value is None
        assert alone or number.retrained is not None, number.name


def test_a_method_that_does_nothing_is_no_better_than_the_originals(trained):
    idle = audit(replace(trained, after=trained.before), profile="full", models=4, method="do-nothing")
    assert idle["u_lira_auc"].value == idle["u_lira_auc"].before
    assert idle.alarmed
    assert "Nothing was forgotten" in idle.claim.shown


def test_standard_attacks_with_references_the_weights_and_time(trained):
    ticks: list[Tick] = []
    found = audit(trained, profile="standard", models=4, progress=ticks.append)
    # The curves are those of LiRA, as the page says.
    shown, idle = (next(curve for curve in found.roc if curve.name == name) for name in ("unlearned", "doing nothing"))
    assert auc(shown.fpr, shown.tpr) == pytest.approx(found["lira_auc"].value, abs=1e-3)
    assert auc(idle.fpr, idle.tpr) == pytest.approx(found["lira_auc"].before, abs=1e-3)
    assert "LiRA" in TOLD_FROM["standard"]
    names = {number.name for number in found.numbers}
    assert {"rmia_auc", "lira_auc", "white_box_auc", "white_box_fr", "relearn_steps", "fr", "accuracy"} <= names
    assert found["relearn_steps"].before == 0
    assert found["white_box_auc"].before > 0.6
    assert {tick.stage for tick in ticks} >= {"train shadow models", "relearn"}


def test_the_same_seed_gives_the_same_audit(trained, full):
    again = audit(trained, profile="full", models=4)
    assert [number.value for number in again.numbers] == [number.value for number in full.numbers]


def test_scikit_learn_models_are_audited_by_a_function_that_fits_them(trained):
    def fitted(data: Samples, seed: int) -> LogisticRegression:
        draw = np.random.default_rng(seed).permutation(len(data))[: int(0.9 * len(data))]
        return LogisticRegression(C=100, max_iter=500).fit(data.inputs.numpy()[draw], data.labels.numpy()[draw])

    whole = join([trained.kept, trained.retain, trained.forget])
    before = LogisticRegression(C=100, max_iter=500).fit(whole.inputs.numpy(), whole.labels.numpy())
    after = METHOD(before, trained.forget, trained.reference, trained.retain).model
    for profile in ("standard", "full"):
        found = forsaken.audit(
            before, after, trained.forget, **trained.sets, training=fitted, method=METHOD, profile=profile, models=4
        )
        assert len(found.numbers) > 5
    assert found["ensemble_accuracy_test"].retrained > 0.5


@pytest.mark.parametrize("profile", ["standard", "full"])
def test_without_a_training_that_is_told(trained, profile):
    with pytest.raises(SettingsError, match="training is None"):
        audit(trained, profile=profile, training=None, models=4)


@pytest.mark.parametrize(("missing", "profile"), [("kept", "full"), ("test", "full"), ("test", "standard")])
def test_a_set_that_is_needed_is_named(trained, missing, profile):
    with pytest.raises(InputError, match=f"{missing} is not given"):
        audit(trained, profile=profile, models=4, **{missing: None})


def test_labels_of_the_forgotten_samples_are_needed_where_margins_are(trained):
    with pytest.raises(InputError, match="forget has no labels"):
        audit(replace(trained, forget=Samples(trained.forget.inputs)), profile="full", models=4)


@pytest.mark.parametrize("models", [1, 3])
def test_too_few_models_are_refused_before_anything_is_trained(trained, models):
    def never(data: Samples, seed: int) -> object:
        raise AssertionError("trained")

    with pytest.raises((InputError, SettingsError), match=">= 4"):
        audit(trained, profile="full", models=models, training=never)


def test_a_method_is_a_name_or_an_unlearner(trained):
    with pytest.raises(SettingsError, match=r"expected a name of forsaken\.METHODS"):
        audit(trained, method=METHODS["scrub"])


def test_a_device_that_is_not_there_is_told(trained):
    with pytest.raises(SettingsError, match="device 'nowhere' cannot be used"):
        audit(trained, profile="full", models=4, device="nowhere")


def test_full_asks_which_method_made_the_model_forget(trained):
    with pytest.raises(SettingsError, match="method is None; give what made the model forget"):
        audit(trained, profile="full", models=4, method=None)


def test_labels_of_an_estimator_are_its_own(trained):
    names = np.array(["a", "b", "c"])
    labels = names[trained.kept.labels.numpy()]
    model = LogisticRegression(max_iter=500).fit(trained.kept.inputs.numpy(), labels)
    test = trained.test.inputs.numpy(), names[trained.test.labels.numpy()]
    found = forsaken.audit(model, model, trained.forget.inputs, test=test)
    assert found["accuracy"].value == pytest.approx(model.score(*test))


def test_a_model_that_the_method_did_not_make_is_told(trained):
    found = audit(replace(trained, after=trained.before), profile="full", models=6, method="retrain")
    assert any("The model after is not like those" in warning for warning in found.warnings)
    assert "not about it" in found.claim.shown


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"models": "8"}, "models is '8'"),
        ({"models": 4.0}, r"models is 4\.0"),
        ({"oracle": "x"}, "oracle is a str"),
        ({"training": "x"}, "training is a str"),
        ({"folder": __file__}, "which is a file"),
    ],
)
@pytest.mark.parametrize("profile", ["standard", "full"])
def test_wrong_arguments_are_refused_at_once(trained, profile, wrong, told):
    with pytest.raises(SettingsError, match=told):
        audit(trained, profile=profile, **wrong)


def test_few_forgotten_samples_leave_the_white_box_out(trained):
    few = replace(trained, forget=trained.forget.rows([0, 1, 2]), nonmembers=trained.nonmembers.rows([0, 1, 2]))
    found = audit(few, profile="standard", models=4)
    assert any("white-box oracle is left out" in warning for warning in found.warnings)
    assert "no better than chance." not in found.claim.shown


def test_without_non_members_it_is_told_that_test_samples_stand_in(trained):
    found = audit(trained, profile="standard", models=4, nonmembers=None)
    assert any("test samples stand in" in warning for warning in found.warnings)


def test_an_attack_that_cannot_tell_the_model_before_gives_no_number(trained):
    found = audit(replace(trained, before=trained.retrained), profile="standard", models=4)
    assert found["rmia_auc"].value is None
    assert "cannot tell the model before" in found["rmia_auc"].note


def test_a_binary_network_with_one_output_is_audited():
    draw = torch.Generator().manual_seed(0)

    def some(count: int) -> Samples:
        inputs = torch.randn(count, 6, generator=draw)
        return Samples(inputs, (inputs[:, 0] > 0).long())

    training = Training(lambda: mlp(sizes=(6, 32, 1)), FAST)
    wrapped = Training(lambda: LogitModel(training.build()), FAST)
    forget, kept, retain, test = some(12), some(60), some(8), some(40)
    before = wrapped.run(join([kept, retain, forget]), seed=0).model
    after = METHOD(before, forget, None, retain).model
    found = forsaken.audit(
        before,
        after,
        forget,
        kept=kept,
        retain=retain,
        test=test,
        training=training,
        method=METHOD,
        profile="full",
        models=4,
    )
    assert found["ensemble_accuracy_test"].retrained > 0.6
