"""What the change between two models tells, on models whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from audit_case import Small
from sklearn.metrics import roc_auc_score

import forsaken
from forsaken.auditing.before_after import before_after, ensemble_before_after
from forsaken.auditing.inputs import AuditInputs
from forsaken.auditing.measurements import Matrices
from forsaken.data.samples import Samples
from forsaken.metrics import margins
from forsaken.models.logits import predict_logits
from forsaken.sets import Sets


class Answers(torch.nn.Module):
    """Answers row i of a table to the input i."""

    def __init__(self, table: np.ndarray) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.tensor(table, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table[x[:, 0].long()]


def rows(first: int, last: int, *, labels: bool = True) -> Samples:
    places = torch.arange(first, last)
    return Samples(places[:, None].double(), places % 3 if labels else None)


def inputs(*, labels: bool = True, seed: int = 0) -> tuple[AuditInputs, np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    old = draw.normal(size=(60, 3))
    new, other = old + 0.3 * draw.normal(size=(60, 3)), old + draw.normal(size=(60, 3))
    new[:20, 0] -= 1.5
    sets = Sets(rows(0, 20, labels=labels), kept=rows(20, 45, labels=labels), test=rows(45, 60, labels=labels))
    return AuditInputs(Answers(old), Answers(new), sets, retrained=(Answers(other),)), old, new, other


def area(values: np.ndarray, last: slice) -> float:
    truth = np.repeat([1, 0], [20, len(values[last])])
    return float(roc_auc_score(truth, np.concatenate([values[:20], values[last]])))


def test_each_number_is_the_area_of_the_change_of_margins():
    case, old, new, other = inputs()
    found = {number.name: number for number in before_after(case)}
    labels = np.arange(60) % 3
    change, usual = (margins(one, labels) - margins(old, labels) for one in (new, other))
    for name, last in (("kept", slice(20, 45)), ("test", slice(45, 60))):
        drop, moved = found[f"before_after_drop_{name}"], found[f"before_after_change_{name}"]
        assert drop.value == pytest.approx(area(-change, last))
        assert moved.value == pytest.approx(area(np.abs(change), last))
        assert drop.retrained == pytest.approx(area(-usual, last))
        assert moved.retrained == pytest.approx(area(np.abs(usual), last))
        assert moved.interval[0] <= moved.value <= moved.interval[1]
    assert found["before_after_drop_kept"].n == 45


def test_without_labels_it_is_the_length_of_the_change_of_the_logits_less_their_mean():
    case, old, new, _ = inputs(labels=False)
    found = {number.name: number for number in before_after(case)}
    assert set(found) == {"before_after_logits_kept", "before_after_logits_test"}
    moved = new - old
    length = np.sqrt(((moved - moved.mean(axis=1, keepdims=True)) ** 2).sum(axis=1))
    assert found["before_after_logits_kept"].value == pytest.approx(area(length, slice(20, 45)))


def test_with_nothing_to_compare_with_there_is_no_number():
    case, *_ = inputs()
    assert before_after(AuditInputs(case.before, case.after, Sets(case.sets.forget))) == []


def test_every_profile_says_it_beside_the_retrained_model(trained: Small):
    found = forsaken.audit(
        trained.before, trained.after, trained.forget, kept=trained.kept, test=trained.test, retrained=trained.retrained
    )
    number = found["before_after_change_kept"]
    labels = trained.forget.labels.numpy(), trained.kept.labels.numpy()
    parts = trained.forget, trained.kept
    old, new = (
        [margins(predict_logits(model, part).double(), y) for part, y in zip(parts, labels, strict=True)]
        for model in (trained.before, trained.after)
    )
    moved = np.concatenate([np.abs(two - one) for one, two in zip(old, new, strict=True)])
    truth = np.repeat([1, 0], [len(labels[0]), len(labels[1])])
    assert number.value == pytest.approx(roc_auc_score(truth, moved))
    assert number.retrained is not None


def test_of_an_ensemble_it_is_the_mean_over_the_models():
    draw = np.random.default_rng(1)

    def sets(count: int, shift: float) -> dict[str, np.ndarray]:
        return {
            part: draw.normal(size=(count, 12)) + (shift if part == "forget" else 0)
            for part in ("forget", "retain", "test")
        }

    groups = {"before": sets(5, 0.0), "unlearned": sets(5, -2.0), "retrained": sets(10, -1.0)}
    found = {one.name: one for one in ensemble_before_after(Matrices(groups, {}, {}, {}), "unlearned", 0)}

    def mean(group: str, part: str, score: object) -> float:
        truth, areas = np.repeat([1, 0], [12, 12]), []
        for model in range(5):
            change = [score(groups[group][one][model] - groups["before"][one][model]) for one in ("forget", part)]
            areas.append(roc_auc_score(truth, np.concatenate(change)))
        return float(np.mean(areas))

    drop, change = found["ensemble_before_after_drop_kept"], found["ensemble_before_after_change_test"]
    assert drop.value == pytest.approx(mean("unlearned", "retain", np.negative))
    assert drop.retrained == pytest.approx(mean("retrained", "retain", np.negative))
    assert change.value == pytest.approx(mean("unlearned", "test", np.abs))
    assert drop.value > 0.8
    assert (drop.n, drop.unit) == (5, "models")
