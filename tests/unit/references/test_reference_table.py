"""The table: it answers for rows it can prove were held out, forgets for good, and takes new rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from reference_case import CLASSES, KEY, apart, by_hand, drawn, hebb
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

from forsaken import Recipe, References, Tick, Training
from forsaken.data.samples import Samples
from forsaken.errors import ForsakenError, InputError, ModelError, NotHeldOutError, SettingsError
from forsaken.models.train import train as fit_network
from forsaken.references.fitting import Costs
from forsaken.references.rows import CLAIMED

SECRET = 31415.9265


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    x, y = drawn(24)
    x[9] = x[2]
    x[17] = x[2]
    return x, y


@pytest.fixture
def table(data: tuple[Tensor, Tensor]) -> References:
    return References.fit(hebb(*data), data, key=KEY)


@pytest.fixture
def keeping(data: tuple[Tensor, Tensor]) -> References:
    return References.fit(hebb(*data), data, key=KEY, keep_models=True)


def same(table: References, before: tuple[Any, ...]) -> bool:
    now = state(table)
    return all(np.array_equal(a, b) for a, b in zip(now, before, strict=True))


def state(table: References) -> tuple[Any, ...]:
    entries = table.entries
    return entries.content.copy(), entries.fold.copy(), entries.logits.numpy().copy(), table.forgotten, table.owed


# --- asking ----------------------------------------------------------------------------------------------------------


def test_rows_in_any_order_and_as_often_as_asked(table: References, data: tuple[Tensor, Tensor]) -> None:
    x, y = data
    expected = by_hand(x, y, apart(table.entries.fold))
    order = [20, 3, 3, 11]
    torch.testing.assert_close(table.logits(x[order]), expected[order])
    torch.testing.assert_close(table.logits((x[order].double(), y[order])), expected[order])
    torch.testing.assert_close(table.logits(Samples(x[order])), expected[order])
    torch.testing.assert_close(table.logits(TensorDataset(x[order], y[order])), expected[order])
    assert len(set(table.entries.fold[[2, 9, 17]])) == 1


def test_what_is_handed_out_is_a_copy(table: References, data: tuple[Tensor, Tensor]) -> None:
    x, _ = data
    before = state(table)
    table.logits(x[:4]).zero_()
    assert same(table, before)


def test_a_row_that_was_never_there_is_refused(table: References, data: tuple[Tensor, Tensor]) -> None:
    x, _ = data
    asked = torch.cat([x[:3], torch.full((2, 5), SECRET), x[4:5], x[5:6] + 1e-3])
    for ask in (table.logits, table.claimed_among, table.forget):
        before = state(table)
        with pytest.raises(
            NotHeldOutError, match=r"^3 of 7 samples are not in the table.*first: sample 3.*extend"
        ) as e:
            ask(asked)
        assert e.value.rows == (3, 4, 6)
        assert isinstance(e.value, ForsakenError)
        assert "31415" not in str(e.value)
        assert same(table, before), "a request that fails changes nothing"


def test_the_key_is_asked_about_where_no_row_is_known(table: References, data: tuple[Tensor, Tensor]) -> None:
    x, _ = data
    stranger = References(table.entries, bytes(32), table.origin)
    with pytest.raises(NotHeldOutError, match="is its key the right one"):
        stranger.logits(x)
    with pytest.raises(NotHeldOutError) as caught:
        table.logits(torch.cat([x, x + 1]))
    assert "key" not in str(caught.value)


def test_what_is_printed_holds_no_secret(keeping: References) -> None:
    shown = repr(keeping) + str(keeping.about())
    assert repr(keeping) == "References(24 rows, 3 classes, 4 folds by row, 4 models kept)"
    assert KEY.hex() not in shown
    assert repr(KEY) not in shown


# --- forgetting ------------------------------------------------------------------------------------------------------


def test_forgotten_rows_are_gone_and_copies_with_them(table: References, data: tuple[Tensor, Tensor]) -> None:
    x, y = data
    expected = by_hand(x, y, apart(table.entries.fold))
    hashes = table.entries.content.copy()
    assert table.forget(x[[9, 5]]) is table
    gone = [2, 5, 9, 17]
    left = [at for at in range(24) if at not in gone]
    assert (len(table), table.forgotten, table.owed) == (20, 4, 0)
    assert table.about()["forgotten"] == 4
    torch.testing.assert_close(table.logits(x[left]), expected[left])
    for row in gone:
        with pytest.raises(NotHeldOutError):
            table.logits(x[[row]])
    kept = table.entries.content.tobytes()
    assert not any(hashes[row].tobytes() in kept for row in gone), "not even their hashes stay"
    assert np.array_equal(table.entries.content, hashes[left])


def test_everything_can_be_forgotten(table: References, data: tuple[Tensor, Tensor]) -> None:
    x, _ = data
    table.forget(x)
    assert len(table) == 0
    assert table.classes == CLASSES
    with pytest.raises(NotHeldOutError):
        table.logits(x[:1])


def test_forgetting_leaves_the_logits_of_others_as_they_are(table: References, data: tuple[Tensor, Tensor]) -> None:
    x, _ = data
    before = table.logits(x[10:15])
    table.forget(x[:4])
    assert torch.equal(table.logits(x[10:15]), before)


# --- kept models -----------------------------------------------------------------------------------------------------


def test_each_kept_model_forgets_what_it_learnt_and_only_that(keeping: References, data: tuple[Tensor, Tensor]) -> None:
    x, _ = data
    fold, models, said = keeping.entries.fold, keeping.models, keeping.logits(x)
    asked = [0, 2, 7, 12]
    calls: list[tuple[int, list[int]]] = []

    def unlearn(model: nn.Module, samples: Samples, logits: Tensor) -> nn.Module:
        rows = [x.tolist().index(row) for row in samples.inputs.tolist()]  # type: ignore[union-attr]
        torch.testing.assert_close(logits, said[rows])
        calls.append((models.index(model), rows))
        return nn.Linear(5, 3, bias=False)

    keeping.forget(x[asked], unlearn)
    expected = [(at, [row for row in asked if fold[row] != at]) for at in range(4)]
    assert calls == [(at, rows) for at, rows in expected if rows]
    assert not set(keeping.models) & {models[at] for at, _ in calls}
    assert (keeping.owed, keeping.forgotten, keeping.about()["models_kept"]) == (0, 6, 4)


def test_a_model_that_learnt_none_of_them_is_not_touched(keeping: References, data: tuple[Tensor, Tensor]) -> None:
    x, _ = data
    fold, models = keeping.entries.fold, keeping.models
    rows = np.flatnonzero(fold == fold[0])
    touched: list[Any] = []

    def unlearn(model: nn.Module, samples: Samples, logits: Tensor) -> nn.Module:
        touched.append(models.index(model))
        return model

    keeping.forget(x[rows], unlearn)
    assert touched == [at for at in range(4) if at != fold[0]]


def test_what_kept_models_owe_is_counted(keeping: References, data: tuple[Tensor, Tensor]) -> None:
    x, _ = data
    keeping.forget(x[[0, 2]])
    assert (keeping.forgotten, keeping.owed, keeping.about()["models_owe"]) == (4, 4, 4)
    keeping.forget(x[[1]], lambda model, samples, logits: model)
    assert (keeping.forgotten, keeping.owed) == (5, 4)
    keeping.drop_models()
    assert (keeping.models, keeping.owed, keeping.fold_models, keeping.forgotten) == ((), 0, None, 5)
    keeping.forget(x[[3]])
    assert keeping.owed == 0


def test_a_model_that_comes_back_as_nothing(keeping: References, data: tuple[Tensor, Tensor]) -> None:
    x, _ = data
    before, models = state(keeping), keeping.models
    with pytest.raises(ModelError, match="NoneType"):
        keeping.forget(x[:2], lambda model, samples, logits: None)
    assert same(keeping, before)
    assert keeping.models is models


def test_models_are_dropped_unless_they_are_kept(table: References) -> None:
    assert table.models == ()
    assert table.fold_models is None


# --- what others hand in ---------------------------------------------------------------------------------------------


def test_logits_that_are_handed_in(data: tuple[Tensor, Tensor]) -> None:
    x, _ = drawn(6)
    logits = torch.randn(6, 4, dtype=torch.float64)
    table = References.claimed(x, logits.numpy(), key=KEY)
    torch.testing.assert_close(table.logits(x[[4, 1]]), logits[[4, 1]].float())
    assert (table.claims, table.claimed_among(x[:2]), table.classes) == (6, 2, 4)
    assert (table.entries.fold == CLAIMED).all()
    assert table.about()["claimed"] == 6
    assert table.about()["by"] == "claim"
    assert "claimed" in repr(table)
    table.forget(x[:2])
    assert table.claims == 4
    assert References.claimed((x, [0] * 6), [1.0, 2, 3, 4, 5, 6]).logits(x)[1].tolist() == [-1.0, 1.0]


def test_fitted_rows_are_nobodys_word(table: References, data: tuple[Tensor, Tensor]) -> None:
    assert table.claims == table.claimed_among(data[0]) == 0


@pytest.mark.parametrize(
    ("logits", "words"),
    [
        (torch.zeros(5, 3), r"shape \(5, 3\), expected \(6, classes\)"),
        (torch.zeros(6, 2, 2), r"shape \(6, 2, 2\)"),
        (torch.zeros(6, 0), r"shape \(6, 0\)"),
        (torch.full((6, 2), torch.inf), "NaN or infinite"),
        (torch.zeros(6, 2, dtype=torch.complex64), "complex64, expected real numbers"),
        ("abcdef", "of type str"),
        ([[1.0], [2.0, 3.0]], "of type list"),
        (None, "of type NoneType"),
    ],
)
def test_logits_that_cannot_be_taken(logits: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        References.claimed(drawn(6)[0], logits)


def test_models_that_are_handed_in() -> None:
    x, y = drawn(10)
    models = [hebb(x, y)(rows, None, 0) for rows in ([0, 1, 2, 3], [4, 5, 6, 7])]
    table = References.from_models(models, (x, y), [[5, 4, 8], np.array([0, 8])], key=KEY)
    knew = np.zeros((10, 10))
    knew[np.ix_([4, 5], range(4))] = 1
    knew[np.ix_([0, 8], range(4, 8))] = 1  # the last model that is said not to have seen row 8 answers for it
    torch.testing.assert_close(table.logits(x[[0, 4, 5, 8]]), by_hand(x, y, knew)[[0, 4, 5, 8]])
    assert (len(table), table.claims) == (4, 4)
    with pytest.raises(NotHeldOutError):
        table.logits(x[[1]])
    doubled = References.from_models(models[:1], x, [[9]], forward=lambda model, inputs: 2 * model(inputs))
    with torch.no_grad():
        torch.testing.assert_close(doubled.logits(x[[9]]), 2 * models[0](x[[9]]))


@pytest.mark.parametrize(
    ("held_out", "words"),
    [
        ([[0]], "2 models but 1 sets"),
        ([[], []], "no model is said to have held out any row"),
        ([[0], [10]], "reach from 10 to 10, expected 0 to 9"),
        ([[0], [-1]], "reach from -1 to -1"),
        ([[0], [True, False] * 5], r"array of bool .* np\.flatnonzero\(mask\)"),
        ([[0], [0.5]], "array of float64"),
        ([[0], [[1]]], "with 2 axes"),
    ],
)
def test_rows_that_nobody_can_have_held_out(held_out: Any, words: str) -> None:
    x, _ = drawn(10)
    with pytest.raises(InputError, match=words):
        References.from_models([nn.Linear(5, 3), nn.Linear(5, 3)], x, held_out)


def test_models_of_different_tasks() -> None:
    with pytest.raises(ModelError, match="different numbers of classes"):
        References.from_models([nn.Linear(5, 3), nn.Linear(5, 4)], drawn(4)[0], [[0], [1]])


def test_what_is_handed_in_follows_an_order() -> None:
    x, y = drawn(8)
    loader = DataLoader(TensorDataset(x, y), shuffle=True)
    with pytest.raises(InputError, match="logits follow the order of data, but its loader shuffles"):
        References.claimed(loader, torch.zeros(8, 3))
    with pytest.raises(InputError, match="held-out rows follow the order of data, but its loader shuffles"):
        References.from_models([nn.Linear(5, 3)], loader, [[0]])
    drawn_batches = BatchSampler(RandomSampler(x), 4, drop_last=False)
    with pytest.raises(InputError, match="logits follow the order of data, but its loader shuffles"):
        References.claimed(DataLoader(TensorDataset(x, y), batch_sampler=drawn_batches), torch.zeros(8, 3))
    in_order = BatchSampler(SequentialSampler(x), 4, drop_last=False)
    assert len(References.claimed(DataLoader(TensorDataset(x, y), batch_sampler=in_order), torch.zeros(8, 3))) == 8


# --- costs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "trainings", "unlearning"), [(160.0, 4, 0.0), (160.0, 4, 20.0), (90.0, 3, 29.0)])
def test_from_when_on_a_table_pays(seconds: float, trainings: int, unlearning: float) -> None:
    costs = Costs(seconds, trainings)
    first = next(n for n in range(1, 1000) if seconds + n * unlearning < n * seconds / trainings - 1e-9)
    assert costs.break_even(unlearning) == first
    assert costs.of_a_request(first, unlearning) < costs.each <= costs.of_a_request(first - 1, unlearning)


def test_a_table_that_never_pays() -> None:
    assert Costs(160.0, 4).break_even(40.0) is None
    assert Costs(0.0, 0).break_even() is None
    assert Costs(160.0, 4).plus(10.0) == Costs(170.0, 5)


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
