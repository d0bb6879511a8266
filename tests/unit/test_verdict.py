"""The verdict: what a careful person would say of more than twenty situations, and the rules one by one."""

from __future__ import annotations

from typing import Any

import pytest

from forsaken.auditing.alarms import told_if_moved, under_forgetting
from forsaken.cli.exits import MEANINGS, Exit, of_certificate, of_work
from forsaken.errors import SettingsError
from forsaken.result import NO_VERDICT, Check, Verdict
from forsaken.verdict import LEAST_RECORDS, RULES, Evidence, Requirement, decide, strictest

RETRAINED = "a retrained model"
REFERENCES = "reference models that never saw the samples"


def label(after: float, before: float = 1.0, usual: float = 0.01) -> Check:
    """Forgotten samples still answered with the label that was learnt: mislabelled ones, unless said otherwise."""
    known = {"name": "learnt_label", "label": "learnt label still given", "n": 100}
    return Check(**known, before=before, after=after, usual=usual, low=usual - 0.1, high=usual + 0.1)


def margin(after: float, before: float = 5.1, usual: float = -17.0) -> Check:
    slack = max(1.0, 0.2 * abs(before - usual))
    known = {"name": "margin", "label": "mean margin", "n": 100}
    return Check(**known, before=before, after=after, usual=usual, low=usual - slack, high=usual + slack)


def auc(after: float, before: float = 0.559, usual: float = 0.39) -> Check:
    known = {"name": "confidence_auc", "label": "told apart by confidence", "n": 200}
    return Check(**known, before=before, after=after, usual=usual, low=usual - 0.1, high=usual + 0.1)


def ulira(after: float, before: float = 1.0) -> Check:
    return Check(name="u_lira_auc", label="U-LiRA", before=before, after=after, usual=0.5, low=0.45, high=0.55, n=999)


def accuracy(after: float, before: float = 0.864, usual: float = 0.869) -> Check:
    low = min(before, usual) - 0.02
    return Check(
        name="accuracy", label="accuracy", before=before, after=after, usual=usual, low=low, n=900, damage=True
    )


def distance(after: float, before: float = 2.4) -> Check:
    return Check(name="distance", label="distance", before=before, after=after, usual=0.4, high=0.4, n=100)


NOTHING = "No weight was changed."
TOO_MUCH = "Too much was forgotten."
MOVED = told_if_moved(0.559, 0.256, None, 100, 300)
# name: the evidence, the word, whether the under-forgetting alarm is raised, and the exit codes of unlearn and verify
SITUATIONS: dict[str, tuple[dict[str, Any], str, bool | None, Exit, Exit]] = {
    "mislabelled, nothing done": (
        {"checks": (label(1.0), margin(5.1)), "yardstick": RETRAINED, "unchanged": NOTHING},
        "failed", True, Exit.FAILED, Exit.FAILED,
    ),
    "mislabelled, nothing done, no yardstick": (
        {"unchanged": NOTHING}, "not shown", None, Exit.DONE, Exit.NOT_SHOWN,
    ),
    "mislabelled, default": (
        {"checks": (label(1.0), margin(3.3), accuracy(0.833)), "yardstick": RETRAINED},
        "failed", True, Exit.FAILED, Exit.FAILED,
    ),
    "mislabelled, default, no yardstick": ({}, "not shown", None, Exit.DONE, Exit.NOT_SHOWN),
    "mislabelled, references": (
        {"checks": (label(0.01), margin(-13.9), accuracy(0.862)), "yardstick": RETRAINED},
        "forgotten", False, Exit.DONE, Exit.DONE,
    ),
    "mislabelled, references, beside themselves": (
        {"checks": (label(0.01), margin(-16.8), distance(0.02)), "yardstick": REFERENCES},
        "forgotten", False, Exit.DONE, Exit.DONE,
    ),
    "mislabelled, retrained": (
        {"checks": (label(0.01), margin(-17.2), accuracy(0.867)), "yardstick": RETRAINED},
        "forgotten", False, Exit.DONE, Exit.DONE,
    ),
    "mislabelled, retrained, no yardstick": ({}, "not shown", None, Exit.DONE, Exit.NOT_SHOWN),
    "ordinary rows, default beside a retrained model": (
        {"checks": (label(0.99, 1.0, 0.8), auc(0.256)), "yardstick": RETRAINED},
        "failed", True, Exit.FAILED, Exit.FAILED,
    ),
    "ordinary rows, default, the aim moved away": ({"moved_away": MOVED}, "failed", True, Exit.FAILED, Exit.FAILED),
    "ordinary rows, an AUC of 0.5 and nothing else": ({}, "not shown", None, Exit.DONE, Exit.NOT_SHOWN),
    "an AUC of 0.5 where retrained models have 0.39": (
        {"checks": (auc(0.5, 0.7),), "yardstick": RETRAINED}, "failed", True, Exit.FAILED, Exit.FAILED,
    ),
    "ordinary rows, references": (
        {"checks": (label(0.82, 1.0, 0.8), auc(0.41)), "yardstick": RETRAINED},
        "forgotten", False, Exit.DONE, Exit.DONE,
    ),
    "over-forgotten": (
        {"checks": (label(0.0, 1.0, 0.8), auc(0.05)), "yardstick": RETRAINED},
        "failed", False, Exit.FAILED, Exit.FAILED,
    ),
    "over-forgotten, by the band alone": (
        {"checks": (label(0.01),), "yardstick": "32 retrained models", "alarm": TOO_MUCH},
        "failed", False, Exit.FAILED, Exit.FAILED,
    ),
    "forgotten, but the accuracy fell by 32 points (too few references)": (
        {"checks": (label(0.05), accuracy(0.54)), "yardstick": RETRAINED},
        "failed", False, Exit.FAILED, Exit.FAILED,
    ),
    "inputs scaled by 255: 18 points lost": (
        {"checks": (label(0.0), accuracy(0.68)), "yardstick": RETRAINED},
        "failed", False, Exit.FAILED, Exit.FAILED,
    ),
    "the references were not reached": (
        {"checks": (label(0.6), distance(1.3)), "yardstick": REFERENCES}, "failed", True, Exit.FAILED, Exit.FAILED,
    ),
    "references that somebody handed in": (
        {"checks": (label(0.01), distance(0.1)), "yardstick": REFERENCES, "doubt": "It is somebody's word."},
        "not shown", False, Exit.DONE, Exit.NOT_SHOWN,
    ),
    "nothing to forget, no yardstick": (
        {"unchanged": NOTHING, "own": "They are not memorised."}, "not shown", None, Exit.DONE, Exit.NOT_SHOWN,
    ),
    "nothing to forget, as a retrained model": (
        {"checks": (label(0.8, 0.8, 0.8),), "yardstick": RETRAINED, "unchanged": NOTHING},
        "not shown", False, Exit.DONE, Exit.NOT_SHOWN,
    ),
    "one iteration with almost all of the penalty": (
        {"own": "The distance hardly fell."}, "not shown", None, Exit.DONE, Exit.NOT_SHOWN,
    ),
    "hardly moved, and no number can tell": (
        {"checks": (label(0.8, 0.81, 0.8),), "yardstick": RETRAINED, "own": "The distance hardly fell."},
        "not shown", False, Exit.DONE, Exit.NOT_SHOWN,
    ),
    "wrong labels: no number tells the model before": (
        {"checks": (label(0.1, 0.12, 0.1),), "yardstick": RETRAINED}, "not shown", False, Exit.DONE, Exit.NOT_SHOWN,
    ),
    "full audit at the floor": (
        {"checks": (ulira(0.51),), "yardstick": "32 retrained models"}, "forgotten", False, Exit.DONE, Exit.DONE,
    ),
    "full audit far from the floor": (
        {"checks": (ulira(0.99), label(0.0)), "yardstick": "32 retrained models"},
        "failed", True, Exit.FAILED, Exit.FAILED,
    ),
    "full audit that cannot tell the models before": (
        {"checks": (ulira(0.5, 0.52),), "yardstick": "32 retrained models"},
        "not shown", False, Exit.DONE, Exit.NOT_SHOWN,
    ),
    "full audit of too few originals": (
        {"checks": (ulira(0.51),), "yardstick": "8 retrained models", "doubt": "The attack is weak."},
        "not shown", False, Exit.DONE, Exit.NOT_SHOWN,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_a_careful_person_would_say(name: str) -> None:
    given, word, under, work, verify = SITUATIONS[name]
    found = decide(Evidence(**given))
    assert found.word == word, found.line
    assert under_forgetting(given.get("checks", ()), given.get("moved_away", ""), 20).raised is under
    assert of_work(found) == work
    assert of_certificate(found, passed=True) == verify
    assert of_certificate(found, passed=False) == Exit.CHECK_FAILED
    assert found.line
    assert "\n" not in found.line


def test_every_rule_is_needed_and_decides_some_situation() -> None:
    first = {
        name: next(rule for rule in RULES if rule.when(Evidence(**given[0]))) for name, given in SITUATIONS.items()
    }
    decided = {id(rule) for rule in first.values()}
    unused = [at for at, rule in enumerate(RULES) if id(rule) not in decided]
    assert unused == []


def test_the_line_tells_the_number_beside_the_yardstick_s_unless_it_could_tell_about_a_record() -> None:
    many = decide(Evidence((label(1.0),), RETRAINED, records=100))
    assert "1.00" in many.line
    assert "0.01" in many.line
    assert RETRAINED in many.line
    few = decide(Evidence((label(1.0),), RETRAINED, records=LEAST_RECORDS - 1))
    assert few.word == "failed"
    assert not any(letter.isdigit() for letter in few.line)
    assert "1, 1 before and 0.01 retrained" in under_forgetting((label(1.0),), "", LEAST_RECORDS).told
    assert not any(letter.isdigit() for letter in under_forgetting((label(1.0),), "", LEAST_RECORDS - 1).told)


def test_without_a_yardstick_the_line_says_what_to_run() -> None:
    assert "forsaken audit" in decide(Evidence()).line
    assert decide(Evidence(remedy="train another one")).line.endswith("train another one.")


def test_a_number_shows_forgetting_only_where_it_could_have_shown_the_opposite() -> None:
    assert [label(0.0).outcome, label(0.0, 0.05).outcome, label(0.0, 0.05, 0.5).outcome] == [
        "passed",
        "silent",
        "failed",
    ]
    assert accuracy(0.9, 0.5).outcome == "silent", "accuracy shows no forgetting"


def test_one_failure_or_one_proof_is_enough() -> None:
    shown, proven, failed = (Verdict(word=word, line=word) for word in ("not shown", "forgotten", "failed"))
    assert strictest([shown, proven]) is proven
    assert strictest([proven, shown]) is proven
    assert strictest([failed, proven]) is failed
    late = Verdict(word="not shown", line="of the strongest test")
    assert strictest([shown, late]) is late
    compared = Verdict(word="not shown", line="the model before answered like them", yardstick=REFERENCES)
    assert strictest([compared, late]) is compared, "it says more than that there was nothing to compare with"


@pytest.mark.parametrize(
    ("text", "verdict", "before", "after", "met"),
    [
        ("forgotten", "forgotten", None, None, True),
        ("forgotten", "not shown", 0.9, 0.9, False),
        ("forgotten", "failed", 0.9, 0.9, False),
        ("not-failed", "not shown", None, None, True),
        ("not-failed", "failed", None, None, False),
        ("accuracy-loss=1.0", "forgotten", 0.90, 0.89, True),
        ("accuracy-loss=1.0", "forgotten", 0.90, 0.889, False),
        ("accuracy-loss=1.0", "forgotten", None, None, False),
        ("accuracy-loss=0", "failed", 0.9, 0.95, True),
    ],
)
def test_requirements(text: str, verdict: str, before: float | None, after: float | None, met: bool) -> None:
    found = Requirement.parse(text).unmet(Verdict(word=verdict, line=""), before, after)  # type: ignore[arg-type]
    assert (found == "") is met


@pytest.mark.parametrize(
    "text", ["", "forgoten", "forgotten=1", "accuracy-loss", "accuracy-loss=x", "accuracy-loss=-1"]
)
def test_a_requirement_that_means_nothing_is_refused_with_what_would(text: str) -> None:
    with pytest.raises(SettingsError, match=r"accuracy-loss=1\.0"):
        Requirement.parse(text)


def test_exit_codes_are_one_table() -> None:
    assert set(MEANINGS) == set(Exit)
    assert [code.value for code in Exit] == [0, 2, 3, 4, 5, 6, 7, 130, 143]
    assert of_work(NO_VERDICT, unmet=True) == Exit.UNMET
    assert of_work(NO_VERDICT, alarmed=True) == Exit.FAILED
