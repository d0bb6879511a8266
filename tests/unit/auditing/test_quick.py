"""The quick profile: rates beside intervals, and no number where it would mean nothing."""

from __future__ import annotations

import numpy as np
import pytest
from audit_case import Small

import forsaken
from forsaken import ShadowOracle
from forsaken.auditing.inputs import AuditInputs
from forsaken.auditing.quick import Quick
from forsaken.auditing.result import Audit
from forsaken.data.samples import Samples, join
from forsaken.errors import InputError, OracleError, UnknownNameError
from forsaken.metrics import catastrophic_forgetting_rate, forgetting_rate
from forsaken.models.logits import accuracy
from forsaken.sets import Sets


def quick(trained: Small, **changes: object) -> Audit:
    given = {"kept": trained.kept, "test": trained.test, "retrained": trained.retrained, "oracle": trained.oracle}
    return forsaken.audit(trained.before, trained.after, trained.forget, **{**given, **changes})


def test_rates_are_those_of_the_oracle_s_verdicts_and_lie_in_their_intervals(trained):
    found = quick(trained)
    was, now, usual = (
        trained.oracle.is_member(model, trained.forget) for model in (trained.before, trained.after, trained.retrained)
    )
    assert found["fr"].value == forgetting_rate(was, now)
    assert found["fr"].retrained == forgetting_rate(was, usual)
    assert found["fr"].interval[0] <= found["fr"].value <= found["fr"].interval[1]
    kept = (trained.oracle.is_member(model, trained.kept) for model in (trained.before, trained.after))
    assert found["cfr"].value == catastrophic_forgetting_rate(*kept)
    assert found["fr"].n == 20
    assert found["cfr"].n == 120


def test_accuracy_and_confidence_stand_beside_before_and_retrained(trained):
    found = quick(trained)
    for name, part in (("accuracy", trained.test), ("forget_accuracy", trained.forget)):
        number = found[name]
        for value, model in (
            (number.value, trained.after),
            (number.before, trained.before),
            (number.retrained, trained.retrained),
        ):
            assert value == pytest.approx(accuracy(model, part))
    assert found["forget_confidence"].before > found["forget_confidence"].value


def test_without_an_oracle_there_are_no_rates_and_a_warning(trained):
    found = quick(trained, oracle=None)
    with pytest.raises(InputError, match="no number 'fr'"):
        found["fr"]
    assert any("no oracle" in warning for warning in found.warnings)
    assert "nothing is shown about membership" in found.claim.shown


def test_without_a_retrained_model_that_is_told(trained):
    assert any("no retrained model" in warning for warning in quick(trained, retrained=None).warnings)


def test_an_oracle_no_better_than_chance_gives_no_rate(trained):
    draw = np.random.default_rng(0)
    blind = ShadowOracle.fit_posteriors(draw.dirichlet(np.ones(3), 400), draw.dirichlet(np.ones(3), 400))
    found = quick(trained, oracle=blind, nonmembers=trained.nonmembers)
    assert found["fr"].value is None
    assert "no better than chance" in found["fr"].note
    assert any("no better than chance" in warning for warning in found.warnings)


def test_models_of_other_tasks_are_refused(trained):
    other = ShadowOracle.fit_posteriors(np.eye(5)[[0, 1, 2]], np.full((3, 5), 0.2))
    with pytest.raises(OracleError, match="the oracle's shadow had 5"):
        quick(trained, oracle=other)


def test_sets_of_other_shapes_are_refused(trained):
    with pytest.raises(InputError, match=r"a forget sample has shape .*20.* but a test sample has .*7"):
        quick(trained, test=(np.zeros((3, 7), dtype=np.float32), [0, 1, 2]))


def test_an_unknown_profile_is_told_with_the_nearest(trained):
    with pytest.raises(UnknownNameError, match="did you mean 'full'"):
        quick(trained, profile="ful")


def test_nothing_that_is_handed_over_changes(trained):
    before = [weight.clone() for weight in trained.after.parameters()]
    quick(trained)
    assert all(bool((one == two).all()) for one, two in zip(before, trained.after.parameters(), strict=True))


def test_moved_counts_what_is_seen_and_what_the_oracle_says(trained):
    same = Quick(AuditInputs(trained.before, trained.before, Sets(trained.forget), oracle=trained.oracle))
    assert same.moved(same.after) == (0, 0)
    ours = Quick(AuditInputs(trained.before, trained.after, Sets(trained.forget), oracle=trained.oracle))
    was, now = (trained.oracle.is_member(model, trained.forget) for model in (trained.before, trained.after))
    visible, judged = ours.moved(ours.after)
    assert visible == len(trained.forget)
    assert judged >= int((was != now).sum()) > 0
    alone = Quick(AuditInputs(trained.before, trained.after, Sets(trained.forget)))
    assert alone.moved(alone.after) == (len(trained.forget), len(trained.forget))


@pytest.mark.parametrize("shift", [7, -7])
@pytest.mark.parametrize("name", ["test", "kept"])
def test_labels_that_are_no_classes_are_refused(trained, name, shift):
    wrong = Samples(getattr(trained, name).inputs, getattr(trained, name).labels + shift)
    with pytest.raises(InputError, match=f"labels of {name} are out of range, .* the model has 3 classes"):
        quick(trained, **{name: wrong})


def test_an_oracle_that_nobody_can_check_is_told(trained):
    found = forsaken.audit(trained.before, trained.after, trained.forget, oracle=trained.oracle)
    assert any("quality of the oracle" in warning for warning in found.warnings)


def test_an_oracle_that_cannot_tell_samples_of_one_kind_gives_no_rate(trained):
    """It may tell members of the task, and yet know nothing where the forgetting rate is measured."""
    found = quick(trained, nonmembers=Samples(trained.forget.inputs + 1e-4, trained.forget.labels))
    assert found["fr"].value is None


def test_forgotten_samples_among_the_kept_ones_are_told_or_refused(trained):
    some = join([trained.kept, trained.forget.rows(range(3))])
    assert any("3 of 20 forget samples are also in kept" in warning for warning in quick(trained, kept=some).warnings)
    with pytest.raises(InputError, match="all 20 forget samples are in kept"):
        quick(trained, kept=join([trained.kept, trained.forget]))


def test_non_members_that_were_trained_on_are_told(trained):
    seen = join([trained.test, trained.kept.rows(range(4))])
    assert any("4 of 84 test samples are also in kept" in warning for warning in quick(trained, test=seen).warnings)
