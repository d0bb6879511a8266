"""The table: it answers for rows it can prove were held out, forgets for good, and says what is somebody's word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from reference_case import CLASSES, KEY, apart, by_hand, drawn, hebb
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from forsaken import References
from forsaken.data.samples import Samples
from forsaken.errors import ForsakenError, InputError, ModelError, NotHeldOutError
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
