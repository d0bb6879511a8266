"""Who holds a model in place: retain samples, references beside them, and what stands in for either."""

from __future__ import annotations

import pytest
import torch

from forsaken.data.samples import Samples
from forsaken.unlearning.base import Request
from forsaken.unlearning.forsaken.objective import Anchors, Kept


def samples(count: int, value: float) -> Samples:
    return Samples(torch.full((count, 2), value), torch.zeros(count, dtype=torch.long))


def request(retain: int | None = 4, reference: int | None = 10, seed: int = 0) -> Request:
    return Request(
        forget=samples(3, 0.0),
        reference=None if reference is None else samples(reference, 2.0),
        retain=None if retain is None else samples(retain, 1.0),
        seed=seed,
    )


def held(asked: Request, *, weight: float = 1.0, references: int = 6) -> Kept:
    return Kept.of(asked, Anchors(weight=weight, references=references))


def values(part: Samples | None) -> list[float]:
    return [] if part is None else part.inputs[:, 0].tolist()


def test_retain_samples_come_first_and_at_most_so_many_references() -> None:
    found = held(request())
    assert values(found.anchors) == [1.0] * 4 + [2.0] * 6
    assert (values(found.guard), found.source) == ([1.0] * 4, "retain")
    assert found.notes(importance=True) == []


def test_without_references_or_with_none_of_them_retain_samples_are_held_alone() -> None:
    for found in (held(request(reference=None)), held(request(), references=0)):
        assert (values(found.anchors), values(found.guard), found.source) == ([1.0] * 4, [1.0] * 4, "retain")


@pytest.mark.parametrize(("retain", "guard"), [(4, [1.0] * 4), (None, [2.0] * 10)])
def test_without_anchors_the_importance_stays(retain: int | None, guard: list[float]) -> None:
    found = held(request(retain=retain), weight=0.0)
    assert found.anchors is None
    assert values(found.guard) == guard


def test_references_stand_in_for_retain_samples() -> None:
    found = held(request(retain=None))
    assert (values(found.anchors), values(found.guard), found.source) == ([2.0] * 6, [2.0] * 10, "reference")
    assert "importance and anchor come from the references" in found.notes(importance=True)[0]
    assert found.notes(importance=False) == ["no retain samples were given: anchor come from the references"]


def test_nobody_is_told() -> None:
    found = held(request(retain=None, reference=None))
    assert (found.anchors, found.guard, found.source) == (None, None, "none")
    assert "nothing holds the other samples in place" in found.notes(importance=False)[0]


@pytest.mark.parametrize("seed", [0, 1])
def test_references_are_drawn_by_the_seed(seed: int) -> None:
    asked = Request(
        forget=samples(1, -1.0), reference=Samples(torch.arange(50.0)[:, None].repeat(1, 2)), retain=None, seed=seed
    )
    one, two = held(asked), held(asked)
    assert torch.equal(one.anchors.inputs, two.anchors.inputs)
    other = held(Request(forget=asked.forget, reference=asked.reference, retain=None, seed=seed + 10))
    assert not torch.equal(one.anchors.inputs, other.anchors.inputs)
