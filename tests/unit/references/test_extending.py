"""New rows: each is asked of a model that learnt neither it nor a row of its group, forgotten ones included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from reference_case import CLASSES, KEY, apart, by_hand, drawn, hebb
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from forsaken import Recipe, References, Tick, Training
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError, NotHeldOutError, SettingsError
from forsaken.models.train import train as fit_network

X, Y = drawn(40)
OLD, NEW = slice(0, 24), slice(24, 40)
PEOPLE = [f"p{at // 3}" for at in range(24)]


def fitted(*, keep_models: bool, groups: Any = None, folds: int = 4, **more: Any) -> References:
    data = X[OLD], Y[OLD]
    return References.fit(hebb(*data), data, folds, groups, key=KEY, keep_models=keep_models, **more)


def asked_of(table: References, rows: Any) -> list[int]:
    """Return which kept model's answers these are."""
    with torch.no_grad():
        said = [model(X[rows]) for model in table.models]
    found = table.logits(X[rows])
    answers = [
        [at for at, each in enumerate(said) if torch.allclose(each[row], found[row])] for row in range(len(rows))
    ]
    assert all(len(each) == 1 for each in answers)
    return [each[0] for each in answers]


# --- with kept models ------------------------------------------------------------------------------------------------


def test_kept_models_are_asked_about_new_rows() -> None:
    table = fitted(keep_models=True)
    fold, seconds = table.entries.fold, table.origin.costs
    assert table.extend((X[NEW], Y[NEW])) is table
    assert len(table) == 40
    assert np.array_equal(table.entries.fold[:24], fold)
    later = table.entries.fold[24:]
    knew = np.not_equal.outer(table.entries.fold, fold) @ np.eye(24, 40)
    torch.testing.assert_close(table.logits(X), by_hand(X, Y, knew))
    assert asked_of(table, list(range(24, 40))) == later.tolist()
    assert sorted(np.bincount(table.entries.fold)) == [10, 10, 10, 10], "the smallest fold takes the next one"
    assert table.origin.costs == seconds, "one pass, no training"


def test_a_new_row_of_a_known_group_gets_its_fold() -> None:
    table = fitted(keep_models=True, groups=PEOPLE)
    own = dict(zip(PEOPLE, table.entries.fold.tolist(), strict=True))
    people = ["p5", "new", "p0", "new", "p5", "newer"]
    table.extend(X[24:30], people)
    found = asked_of(table, list(range(24, 30)))
    assert [found[0], found[2], found[4]] == [own["p5"], own["p0"], own["p5"]]
    assert found[1] == found[3]
    table.extend(X[30:31], ["newer"])
    assert asked_of(table, [30]) == [found[5]]


def test_a_forgotten_row_that_comes_back_is_asked_of_the_model_that_never_learnt_it() -> None:
    for row in range(8):
        table = fitted(keep_models=True)
        own = table.entries.fold[row]
        table.extend(X[NEW])
        table.forget(X[[row, *range(24, 39)]])  # so that its own fold is not the smallest by itself
        table.extend(X[[row]])
        assert asked_of(table, [row]) == [own]


def test_the_group_of_forgotten_rows_is_remembered() -> None:
    """All rows of a person are forgotten, and then she brings new ones: three models still learnt the old ones."""
    for person in sorted(set(PEOPLE)):
        table = fitted(keep_models=True, groups=PEOPLE)
        rows = [at for at, name in enumerate(PEOPLE) if name == person]
        own = int(table.entries.fold[rows[0]])
        table.forget(X[rows])
        table.extend(X[24:25], [person])
        assert asked_of(table, [24]) == [own]


def test_a_new_row_that_was_forgotten_was_learnt_by_nobody() -> None:
    table = fitted(keep_models=True)
    table.extend(X[NEW])
    touched: list[Any] = []
    table.forget(X[24:26], lambda model, samples, logits: touched.append(model))
    assert touched == []
    table.forget(X[26:28])
    assert (table.forgotten, table.owed) == (4, 0)
    table.forget(X[[0, 30]])
    assert (table.forgotten, table.owed) == (6, 1)


def test_rows_that_tie_groups_of_several_folds() -> None:
    """Two people of different folds bring the same row: every kept model learnt a row of one of them."""
    table = fitted(keep_models=True, groups=PEOPLE)
    own = dict(zip(PEOPLE, table.entries.fold.tolist(), strict=True))
    one, two = "p0", next(person for person, fold in own.items() if fold != own["p0"])
    mate = next(person for person, fold in own.items() if fold == own["p0"] and person != "p0")
    twins = X[[30, 24, 24]]
    with pytest.raises(InputError, match=r"^2 new rows \(first: row 1 .* every kept model learnt some of these"):
        table.extend(twins, ["new", one, two])
    assert len(table) == 24
    table.extend(twins, ["new", one, mate])
    assert asked_of(table, [24]) == [own["p0"]]
    table.extend(X[[25, 25]], ["newest", two])
    assert asked_of(table, [25]) == [own[two]], "the copy of a stranger's row goes where its other owner's rows are"


def test_rows_that_are_there_stay_as_they_are() -> None:
    table = fitted(keep_models=True)
    before, hashes = table.logits(X[OLD]), table.entries.content.copy()
    table.extend(X[[3, 24, 5]])
    assert len(table) == 25
    assert torch.equal(table.logits(X[OLD]), before)
    assert np.array_equal(table.entries.content[:24], hashes)
    table.extend(X[OLD])
    assert len(table) == 25


# --- without them ----------------------------------------------------------------------------------------------------


def test_one_model_is_trained_on_the_old_rows() -> None:
    table = fitted(keep_models=False, steps=70)
    fold, before = table.entries.fold, table.origin.costs
    log: list[Any] = []
    ticks: list[Tick] = []
    old = X[OLD], Y[OLD]
    table.extend((X[NEW], Y[NEW]), train=hebb(*old, log), old=old, seed=9, progress=ticks.append)
    assert log == [(list(range(24)), 70, 9)], "for as many steps as the others"
    knew = np.zeros((40, 40))
    knew[:24, :24] = apart(fold)
    knew[24:, :24] = 1
    torch.testing.assert_close(table.logits(X), by_hand(X, Y, knew))
    assert table.origin.costs.trainings == before.trainings + 1
    assert table.origin.costs.seconds > before.seconds
    assert set(table.entries.fold[24:]) == {4}
    assert ticks[-1] == Tick("train a model without the new rows", 1, 1)
    again = fitted(keep_models=False, steps=70).extend(X[NEW], train=hebb(*old, log), old=old, steps=6)
    assert log[-1][1] == 6
    assert len(again) == 40


def test_old_rows_of_the_same_groups_are_not_trained_on() -> None:
    table = fitted(keep_models=False, groups=PEOPLE)
    log: list[Any] = []
    old = X[OLD], Y[OLD]
    table.extend(X[24:27], ["p5", "new", "p0"], train=hebb(*old, log), old=old)
    assert log[0][0] == [at for at in range(24) if PEOPLE[at] not in {"p0", "p5"}]
    with torch.no_grad():
        torch.testing.assert_close(table.logits(X[24:27]), hebb(*old)(log[0][0], None, 0)(X[24:27]))


def test_old_rows_that_copies_tie_to_the_groups_are_not_trained_on_either() -> None:
    """Row 4 is a copy of row 0, and so p0 and p1 were held out together; a new row of p1 bars both."""
    x = X[OLD].clone()
    x[4] = x[0]
    data = x, Y[OLD]
    log: list[Any] = []
    table = References.fit(hebb(*data), data, groups=PEOPLE)
    table.extend(X[24:25], ["p1"], train=hebb(*data, log), old=data)
    assert log[0][0] == [at for at in range(24) if PEOPLE[at] not in {"p0", "p1"}]


def test_the_rows_of_a_function_count_in_old() -> None:
    """What was forgotten is left out, and the rest may come in any order."""
    table = fitted(keep_models=False, groups=PEOPLE).forget(X[6:9])
    order = [20, 0, 1, 15, 3]
    old = X[order], Y[order]
    log: list[Any] = []
    table.extend(X[24:25], ["p0"], train=hebb(*old, log), old=old)
    assert log[0][0] == [0, 3, 4]


def test_a_training_makes_a_network() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, CLASSES))

    training, old = Training(build, Recipe(2, 8, 1e-2)), (X[OLD], Y[OLD])
    table = References.fit(training, old)
    table.extend(X[NEW], train=training, old=old, seed=4)
    model = fit_network(build, Samples(*old), training.recipe, seed=4, steps=table.origin.steps)
    with torch.no_grad():
        torch.testing.assert_close(table.logits(X[NEW]), model(X[NEW]))


def test_a_claimed_table_can_be_extended_and_the_new_rows_are_proved() -> None:
    old = X[OLD], Y[OLD]
    table = References.claimed(X[OLD], torch.randn(24, CLASSES))
    table.extend(X[NEW], train=hebb(*old), old=old)
    assert (table.claims, table.claimed_among(X[NEW]), table.claimed_among(X[20:30])) == (24, 0, 4)


# --- what is refused -------------------------------------------------------------------------------------------------


def refused(table: References, error: type[Exception], words: str, *args: Any, **more: Any) -> None:
    before, size = table.entries, len(table)
    with pytest.raises(error, match=words):
        table.extend(*args, **more)
    assert table.entries is before
    assert len(table) == size


def test_what_extend_refuses() -> None:
    plain, grouped = fitted(keep_models=False), fitted(keep_models=True, groups=PEOPLE)
    old = X[OLD], Y[OLD]
    refused(plain, SettingsError, r"keeps no models.*give train= and old=", X[NEW])
    refused(plain, SettingsError, r"give train= and old=", X[NEW], train=hebb(*old))
    refused(plain, InputError, "the table has no groups", X[NEW], ["a"] * 16)
    refused(grouped, InputError, "the table has groups", X[NEW])
    refused(grouped, InputError, "the group of 3 rows, but there are 16", X[NEW], ["a"] * 3)
    refused(
        plain,
        InputError,
        "4 of 28 rows of old are not in the table.*row 24.*leave out",
        X[30:],
        train=hebb(X, Y),
        old=X[:28],
    )
    refused(plain, SettingsError, "train is of type int", X[NEW], train=7, old=old)
    for steps in (0, -2, True, 1.5):
        refused(plain, SettingsError, "steps is", X[NEW], train=hebb(*old), old=old, steps=steps)
    refused(plain, SettingsError, "seed is -1", X[NEW], train=hebb(*old), old=old, seed=-1)

    def wider(rows: Any, steps: int | None, seed: int) -> nn.Module:
        return nn.Linear(5, CLASSES + 1)

    refused(plain, ModelError, "tells 4 classes apart, the table has 3", X[NEW], train=wider, old=old)
    grouped.drop_models()
    everyone = sorted(set(PEOPLE))
    refused(
        grouped, InputError, "none is left to train on", X[24 : 24 + len(everyone)], everyone, train=hebb(*old), old=old
    )


def test_loaders_that_shuffle() -> None:
    def loader(part: slice) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(TensorDataset(X[part], Y[part]), shuffle=True)

    plain, grouped = fitted(keep_models=False), fitted(keep_models=True, groups=PEOPLE)
    refused(plain, InputError, "old, but its loader shuffles", X[NEW], train=hebb(X, Y), old=loader(OLD))
    refused(grouped, InputError, "data, but its loader shuffles", loader(NEW), ["a"] * 16)


def test_a_new_row_is_refused_until_the_table_is_extended() -> None:
    table = fitted(keep_models=True)
    with pytest.raises(NotHeldOutError):
        table.logits(X[[24]])
    table.extend(X[[24]])
    table.logits(X[[24]])
