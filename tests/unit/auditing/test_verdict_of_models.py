"""The verdict on real models: rows under wrong labels, made to forget in four ways, with and without a yardstick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import forsaken
from forsaken.auditing.judgement import chance_of_auc, compare, moved_away
from forsaken.auditing.result import Audit
from forsaken.data.samples import Samples, join
from forsaken.metrics import separation
from forsaken.models.ensemble import train_many
from forsaken.unlearning.stops import STOPS

CLASSES, WIDTH = 4, 20


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def drawn(count: int, seed: int) -> Samples:
    draw = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(CLASSES, WIDTH))
    labels = draw.integers(CLASSES, size=count)
    inputs = draw.normal(size=(count, WIDTH)) + centres[labels]
    return Samples(torch.tensor(inputs, dtype=torch.float32), torch.from_numpy(labels))


@dataclass(frozen=True)
class Case:
    """The sets of a request to forget 40 mislabelled rows, and what became of the model in four ways."""

    sets: dict[str, Samples]
    forget: Samples
    before: nn.Module
    after: dict[str, Any]
    retrained: list[Any]

    def audit(self, name: str, yardstick: int) -> Audit:
        others = self.retrained[:yardstick] or None
        return forsaken.audit(self.before, self.after[name], self.forget, retrained=others, **self.sets)


@pytest.fixture(scope="module")
def case() -> Case:
    kept, retain, ordinary = drawn(600, 1), drawn(50, 3), drawn(40, 2)
    forget = Samples(ordinary.inputs, (ordinary.labels + 1) % CLASSES)
    sets = {"kept": kept, "retain": retain, "test": drawn(500, 4), "nonmembers": drawn(100, 6)}
    reference = Samples(drawn(200, 5).inputs)
    train = join([kept, retain, forget])
    recipe = forsaken.Recipe(epochs=30, batch_size=64, learning_rate=1e-2)
    rows = [np.arange(690), *[np.arange(650)] * 6]
    chunks = train_many(build, train, recipe, rows=rows, seeds=list(range(7)), at_once=7)
    before, again, *retrained = [model for chunk in chunks for model in chunk]
    # one contributor sent in all 40, so that no reference model learnt any of them
    groups = [*map(str, range(650)), *["contributor"] * 40]
    references = forsaken.References.fit(
        forsaken.Training(build, recipe), train, 4, groups, seed=50, model=before, unseen=sets["test"].inputs
    )
    default = forsaken.unlearn(before, forget, reference, retain, allow=STOPS)
    by_references = forsaken.unlearn(before, forget, references=references)
    after = {"nothing": before, "default": default.model, "references": by_references.model, "retrained": again}
    return Case(sets, forget, before, after, retrained)


@pytest.mark.parametrize("yardstick", [1, 5])
@pytest.mark.parametrize(
    ("name", "word"),
    [("nothing", "failed"), ("default", "failed"), ("references", "forgotten"), ("retrained", "forgotten")],
)
def test_beside_retrained_models(case: Case, name: str, word: str, yardstick: int) -> None:
    found = case.audit(name, yardstick)
    assert found.verdict.word == word, found.verdict
    alarms = {alarm.name: alarm.raised for alarm in found.alarms}
    assert alarms["under-forgetting"] is (word == "failed")
    assert alarms["no-op"] is (name == "nothing")
    assert ("Too little was forgotten" in found.claim.shown) is (name == "default")


@pytest.mark.parametrize("name", ["nothing", "default", "references", "retrained"])
def test_without_a_yardstick_nothing_is_shown(case: Case, name: str) -> None:
    found = case.audit(name, 0)
    assert found.verdict.word == "not shown", found.verdict
    assert found.verdict.yardstick is None
    assert {alarm.name: alarm.raised for alarm in found.alarms}["under-forgetting"] is None


def test_the_checks_are_the_numbers_computed_by_hand(case: Case) -> None:
    found = {check.name: check for check in case.audit("default", 1).verdict.checks}
    truth, inputs = case.forget.labels.numpy(), case.forget.inputs
    logits = {
        name: model.eval()(inputs).detach().double().numpy()
        for name, model in (("before", case.before), ("after", case.after["default"]), ("usual", case.retrained[0]))
    }
    others = {
        name: model(case.sets["nonmembers"].inputs).detach().double().softmax(1).max(1).values.numpy()
        for name, model in (("before", case.before), ("after", case.after["default"]), ("usual", case.retrained[0]))
    }
    for name, rows in logits.items():
        assert getattr(found["learnt_label"], name) == pytest.approx(np.mean(rows.argmax(1) == truth))
        own = rows[np.arange(40), truth]
        rest = np.log(np.exp(rows).sum(1) - np.exp(own))
        assert getattr(found["margin"], name) == pytest.approx(np.mean(own - rest), abs=1e-3)
        sure = np.exp(rows).max(1) / np.exp(rows).sum(1)
        area = np.mean((sure[:, None] > others[name]) + 0.5 * (sure[:, None] == others[name]))
        assert getattr(found["confidence_auc"], name) == pytest.approx(area, abs=1e-3)
    gap = abs(found["margin"].before - found["margin"].usual)
    assert found["margin"].high - found["margin"].usual >= max(1.0, 0.2 * gap) - 1e-6


def test_chance_of_an_auc_is_that_of_equal_distributions() -> None:
    draw = np.random.default_rng(0)
    areas = [separation(draw.normal(size=40), draw.normal(size=100)) for _ in range(2000)]
    assert chance_of_auc(40, 100) == pytest.approx(1.96 * np.std(areas), rel=0.05)


def test_the_aim_is_the_retrained_value_and_0_5_only_without_one() -> None:
    assert moved_away(0.56, 0.26, None, 100, 300)
    assert not moved_away(0.56, 0.26, 0.3, 100, 300), "that is where a retrained model is"
    assert moved_away(0.3, 0.5, 0.3, 100, 300), "0.5 is no aim where retrained models have 0.3"


def test_several_retrained_models_widen_the_range_by_how_far_they_differ() -> None:
    def answers(right: int) -> dict[str, Any]:
        return {"forget": np.where(np.arange(100)[:, None] < right, [[0.9, 0.1]], [[0.1, 0.9]])}

    labels = np.zeros(100, dtype=int)
    (one, _) = compare(answers(100), answers(60), [answers(30)], forget_labels=labels)
    (two, _) = compare(answers(100), answers(60), [answers(10), answers(50)], forget_labels=labels)
    assert one.outcome == "failed"
    assert two.usual == pytest.approx(one.usual)
    assert two.outcome == "passed"
