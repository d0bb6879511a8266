"""What benchmarks/out_of_fold.py compares: rows, neighbours, requests in turn; and the tables that come of it."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import benchmark_scripts
import numpy as np
import pytest
import torch
from benchmark_scripts import ROOT

from forsaken import Forsaken
from forsaken.auditing.held_out import HeldOut
from forsaken.data.samples import Samples


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    with benchmark_scripts.script("out_of_fold_rows") as found:
        yield found


@pytest.fixture(scope="module")
def tables() -> Iterator[ModuleType]:
    with benchmark_scripts.script("out_of_fold_tables") as found:
        yield found


def test_the_guide_shows_the_tables_of_the_files(tables: ModuleType) -> None:
    guide = (ROOT / "docs/guide/references.md").read_text()
    assert tables.TASKS
    for task in tables.TASKS:
        assert tables.table_of(task) in guide
        if (tables.RESULTS / f"out-of-fold-{task}-curve-0.json").exists():
            assert tables.curve_of(task) in guide
        if (tables.RESULTS / f"out-of-fold-{task}-attacks-0.json").exists():
            assert tables.attacks_of(task) in guide
            assert tables.standard_of(task) in guide


def test_every_preset_has_rows_for_texts_and_pictures(script: ModuleType) -> None:
    for preset in script.PRESETS.values():
        for task in ("digits", "reuters-35-11", "c10-t", "news-id"):
            rows = preset(task)
            assert rows
            assert all(row.told()["settings"] for row in rows.values())


def test_reported_rows_have_every_bar_of_comparison(script: ModuleType) -> None:
    rows = script.confirm("reuters-35-11")
    assert {"class-mean", "paper", "salun", "neggrad-plus", "scrub", "all but D", "K = 4 by group"} <= set(rows)
    assert rows["all but D"].references == HeldOut(by="all")
    assert rows["K = 8 by row"].references == HeldOut(8, "row")
    assert rows["K = 4 by group"].method == Forsaken.out_of_fold()
    assert rows["salun, all kept"].retain == "all"


def test_near_ones_are_near(script: ModuleType) -> None:
    draw = torch.Generator().manual_seed(0)
    forget = Samples(torch.randn(5, 30, generator=draw))
    others = Samples(torch.cat([torch.randn(50, 30, generator=draw), forget.inputs + 0.01]))
    assert sorted(script.near(forget, others, 5).tolist()) == list(range(50, 55))


def test_groups_of_ten_requests(script: ModuleType) -> None:
    found = script.in_groups(3, 25)
    assert found[:3] == (0, 1, 2)
    assert len(found) == 28
    assert len(set(found)) == 13
    assert [found.count(-1 - at) for at in range(10)] == [3] * 5 + [2] * 5


@pytest.mark.parametrize("kind", ["words", "tokens", "pictures", "numbers"])
def test_neighbours_are_near_and_other(script: ModuleType, kind: str) -> None:
    draw = np.random.default_rng(0)
    made = {
        "words": torch.from_numpy((draw.random((20, 200)) < 0.05) * draw.random((20, 200))).float(),
        "tokens": torch.from_numpy(draw.integers(1, 500, size=(20, 40))),
        "pictures": torch.from_numpy(draw.random((20, 3, 8, 8))).float(),
        "numbers": torch.from_numpy(draw.random((20, 64))).float(),
    }[kind]
    samples = Samples(made, torch.arange(20) % 3)
    found = script.neighbours(samples, seed=1)
    assert torch.equal(found.inputs, script.neighbours(samples, seed=1).inputs)
    assert found.inputs.dtype == made.dtype
    assert torch.equal(found.labels, samples.labels)
    assert not torch.equal(found.inputs, made)
    if kind == "words":
        assert bool(((found.inputs == made) | (found.inputs == 0)).all())
        assert 0.6 < float((found.inputs != 0).sum() / (made != 0).sum()) < 0.95
    if kind == "tokens":
        assert 0.75 < float((found.inputs == made).double().mean()) < 0.95
        assert all(set(one.tolist()) <= set(other.tolist()) for one, other in zip(found.inputs, made, strict=True))


def test_requests_in_turn_forget_every_part(script: ModuleType) -> None:
    torch.manual_seed(0)
    model, x = torch.nn.Linear(8, 3, bias=False), torch.eye(8)  # no part moves another's answers
    targets = torch.zeros(8, 3)
    turns = script.InTurn(method=Forsaken(penalty=0.0, anchor=0.0, power=0.0), parts=4)
    found = turns(model, x, targets=targets)
    assert float(found.model(x).detach().softmax(1).amax(1).max()) < 0.35
    assert found.iterations > 4
