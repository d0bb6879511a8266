"""The sentence of an audit says what was shown, and never more."""

from __future__ import annotations

import pytest

from forsaken.auditing.result import Alarm, Number
from forsaken.auditing.words import chance, conclusion

QUIET = (Alarm(name="no-op", raised=False, told="moved"), Alarm(name="over-forgetting", raised=False, told="inside"))


def test_a_retrained_model_far_from_a_coin_means_that_the_sets_differ_by_kind():
    numbers = [number(name, 0.5, retrained=0.04, interval=(0.4, 0.6)) for name in ("rmia_auc", "lira_auc")]
    assert "is not known; the notes" in conclusion("standard", numbers, QUIET).shown


def test_an_attack_that_cannot_tell_the_models_before_shows_nothing():
    idle = [number("u_lira_auc", 0.5, before=0.52, floor=(0.45, 0.55)), number("u_lira_worst", 0.6, floor=(0.5, 0.7))]
    assert "That shows nothing" in conclusion("full", idle, QUIET).shown


def test_quick_says_why_there_is_no_rate_and_when_the_labels_tell():
    sure = number("forget_confidence", 0.5)
    assert "without an oracle" in conclusion("quick", [sure], QUIET).shown
    weak = number("fr", None, note="the oracle is no better than chance")
    assert "since the oracle is no better than chance" in conclusion("quick", [weak, sure], QUIET).shown
    labels = number("forget_accuracy", 1.0, retrained=0.1)
    assert (
        "an attacker who knows the labels can use that"
        in conclusion("quick", [number("fr", 1.0), sure, labels], QUIET).shown
    )
    assert "-1.857" in conclusion("quick", [number("fr", -1.857), sure], QUIET).shown


def test_no_mean_over_few_samples_is_told():
    few = number("forget_confidence", 0.854).model_copy(update={"n": 9})
    assert conclusion("quick", [few], QUIET).shown == "Without an oracle, nothing is shown about membership."
    assert "0.854" in conclusion("quick", [number("forget_confidence", 0.854)], QUIET).shown


def number(name: str, value: float | None, **more: object) -> Number:
    return Number(
        name=name,
        label=name,
        value=value,
        direction="half",
        n=40,
        unit="samples",
        **{"before": 0.9, "retrained": 0.5, **more},
    )


def full(auc: float, *, worst: float = 0.6) -> list[Number]:
    return [
        number("u_lira_auc", auc, floor=(0.45, 0.55), interval=(auc - 0.02, auc + 0.02)),
        number("u_lira_worst", worst, floor=(0.55, 0.65)),
    ]


def standard(rmia: float, *, lira: float = 0.5, white: float = 0.5, half: float = 0.1) -> list[Number]:
    values = {"rmia_auc": rmia, "lira_auc": lira, "white_box_auc": white}
    return [number(name, value, interval=(value - half, value + half)) for name, value in values.items()]


@pytest.mark.parametrize(("auc", "said"), [(0.5, True), (0.54, True), (0.56, False), (0.44, False), (0.99, False)])
def test_full_is_chance_only_at_the_floor(auc, said):
    assert ("no better than chance" in conclusion("full", full(auc), QUIET).shown) is said


def test_full_tells_of_a_tenth_that_stands_out():
    told = conclusion("full", full(0.5, worst=0.9), QUIET).shown
    assert "the tenth of the samples" in told
    assert "That is no better than chance." not in told
    assert "the tenth of the samples" not in conclusion("full", full(0.5), QUIET).shown


def test_standard_is_chance_only_if_every_attack_is():
    assert "no better than chance" in conclusion("standard", standard(0.5), QUIET).shown
    for weak in ({"rmia": 0.8}, {"rmia": 0.5, "lira": 0.8}, {"rmia": 0.5, "white": 0.8}, {"rmia": 0.2, "white": 0.8}):
        assert "can still be recognised" in conclusion("standard", standard(**weak), QUIET).shown


def test_looking_less_like_training_data_is_not_being_recognised():
    told = conclusion("standard", standard(0.003, lira=0.01), QUIET).shown
    assert "the other way round" in told
    assert "no better than chance" not in told
    assert "can still be recognised" not in told


def test_few_samples_show_little():
    assert "too wide to show much" in conclusion("standard", standard(0.5, half=0.3), QUIET).shown


def test_without_an_interval_nothing_is_claimed():
    bare = [number(name, 0.5) for name in ("rmia_auc", "lira_auc", "white_box_auc")]
    assert "is not known; the notes" in conclusion("standard", bare, QUIET).shown
    assert chance(number("a", None)) is None


def test_an_alarm_comes_before_the_praise():
    nothing = (
        Alarm(name="no-op", raised=True, told="No weight has changed."),
        Alarm(name="over-forgetting", raised=None, told="?"),
    )
    told = conclusion("full", full(0.5), nothing).shown
    assert told.startswith("Nothing was forgotten")
    assert "U-LiRA" in told
    too_much = (
        Alarm(name="no-op", raised=False, told=""),
        Alarm(name="over-forgetting", raised=True, told="70 % below."),
    )
    assert (
        "Too much was forgotten, which makes the samples stand out. 70 % below."
        in conclusion("full", full(0.5), too_much).shown
    )


@pytest.mark.parametrize(("value", "words"), [(0.99, "But an attacker who knows the whole request"), (0.6, "either")])
def test_full_says_what_the_whole_request_gives_away_and_what_could_have_gone_unseen(value, words):
    whole = number("u_lira_request_auc", value).model_copy(update={"floor": (0.25, 0.75)})
    shifts = [number("u_lira_smallest_shift", 0.42), number("u_lira_request_smallest_shift", 0.3)]
    told = conclusion("full", [*full(0.5), whole, *shifts], QUIET).shown
    assert words in told
    assert f"AUC {value:.3f} (0.250 to 0.750 between retrained models)" in told
    assert "by less than 0.30 standard deviations could have gone unseen" in told


@pytest.mark.parametrize("profile", ["quick", "standard", "full"])
def test_what_was_not_shown_is_said_in_every_profile(profile):
    numbers = [*full(0.5), *standard(0.5), number("fr", 0.9), number("forget_confidence", 0.5)]
    assert conclusion(profile, numbers, QUIET).not_shown.startswith("That ")
