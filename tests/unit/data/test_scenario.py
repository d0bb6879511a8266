"""Scenarios are disjoint by construction and fixed by their seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from forsaken.data.digits import digits
from forsaken.data.folder import dataset_file
from forsaken.data.nest import row_keys
from forsaken.data.samples import Samples
from forsaken.data.scenario import OodSizes, ood_rows, ood_scenario
from forsaken.errors import DataNotFoundError, InputError

SIZES = OodSizes(forget=5, shadow_in=6, shadow_out=7, reference=10, train_share=0.8, retain_share=0.1)


def test_rows_are_disjoint_and_of_the_sizes_asked_for() -> None:
    in_task = np.arange(200) < 150
    split = ood_rows(in_task, SIZES, seed=0)
    rows = np.concatenate(list(split.values()))
    assert len(rows) == len(set(rows.tolist()))
    for name in ("forget", "shadow_in", "shadow_out", "reference"):
        assert not in_task[split[name]].any()
        assert len(split[name]) == getattr(SIZES, name)
    for name in ("train", "test", "shadow_train", "shadow_test"):
        assert in_task[split[name]].all()
    assert (len(split["train"]), len(split["test"])) == (60, 15)


def test_too_few_strangers_is_an_error() -> None:
    with pytest.raises(InputError, match="needs more than 18"):
        ood_rows(np.arange(30) < 20, SIZES, seed=0)


def test_repeated_rows_never_serve_as_reference_or_anchor() -> None:
    inputs = torch.arange(200.0)[:, None].repeat(1, 2)
    inputs[150:] = 7.0  # all strangers are one and the same row
    inputs[:20] = 7.0  # and so are some rows of the task
    samples = Samples(inputs, torch.zeros(200, dtype=torch.long))
    split = ood_rows(np.arange(200) < 150, SIZES, seed=0)
    found = ood_scenario("x", samples, split, 3, SIZES, seed=0)
    forgotten = set(row_keys(found.forget.inputs))
    assert len(found.reference) == 0
    assert not forgotten & set(row_keys(found.retain.inputs))


def test_digits_is_fixed_by_its_seed() -> None:
    a, b, c = digits(0), digits(0), digits(1)
    assert torch.equal(a.forget.inputs, b.forget.inputs)
    assert torch.equal(a.forget.labels, b.forget.labels)
    assert not torch.equal(a.forget.inputs, c.forget.inputs)


def test_digits_sizes() -> None:
    found = digits(0)
    assert len(found.forget) == 40
    assert len(found.train) == len(found.kept) + 40
    assert len(found.unseen_kept) == len(found.kept) - len(found.retain_rows)
    assert int(found.train.labels.max()) < found.classes
    sets = [found.kept, found.forget, found.reference, found.test, found.shadow_members, found.shadow_nonmembers]
    keys = [set(row_keys(part.inputs)) for part in sets]
    for at, one in enumerate(keys):
        assert all(not one & other for other in keys[at + 1 :])


def test_with_retain_changes_only_that() -> None:
    found = digits(0).with_retain(7)
    assert len(found.retain) == 7
    assert torch.equal(found.test.inputs, digits(0).test.inputs)


def test_a_missing_dataset_says_where_it_was_looked_for(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("FORSAKEN_DATA", raising=False)
    with pytest.raises(DataNotFoundError, match="FORSAKEN_DATA is not set"):
        dataset_file("reuters46.parquet")
    monkeypatch.setenv("FORSAKEN_DATA", str(tmp_path))
    with pytest.raises(DataNotFoundError, match=r"no file reuters46\.parquet"):
        dataset_file("reuters46.parquet")
