"""Views: a row's augmented copies are its own, come back whenever they are asked for, and stay beside its logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_case import CLASSES, KEY, drawn, hebb
from torch import Tensor, nn

import forsaken
from forsaken import References, Training
from forsaken.data.nest import Nest
from forsaken.data.samples import Samples
from forsaken.errors import DataError, InputError, NotHeldOutError, SettingsError, UnknownNameError
from forsaken.models.augment import mirror_shift, word_dropout
from forsaken.recipe import Recipe
from forsaken.references.fitting import CUSTOM, Views

PICTURES = torch.randn(12, 2, 5, 4, generator=torch.Generator().manual_seed(0))


def noisy(inputs: Nest, generator: torch.Generator) -> Nest:
    return inputs + torch.randn(inputs.shape, generator=generator)


def doubled(inputs: Nest, generator: torch.Generator) -> Nest:
    """Each view can be computed by hand: the row times two, or times three."""
    return inputs * (2 + int(torch.randint(2, (), generator=generator)))


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    return drawn(24)


@pytest.fixture
def table(data: tuple[Tensor, Tensor]) -> References:
    return References.fit(hebb(*data), data, folds=3, key=KEY, views=2, view=noisy, seed=5)


def models_of(data: tuple[Tensor, Tensor], table: References) -> list[nn.Module]:
    """Return the folds' models, trained anew."""
    train, fold = hebb(*data), torch.from_numpy(table.entries.fold)
    return [train((fold != at).nonzero()[:, 0], None, 0) for at in range(int(fold.max()) + 1)]


# --- the same views each time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["mirror-shift", noisy])
def test_a_rows_views_depend_on_nothing_but_the_row(view: Any) -> None:
    views = Views.of(3, view, 7)
    state = torch.random.get_rng_state()
    whole = views(Samples(PICTURES)).inputs.view(3, 12, 2, 5, 4)
    assert torch.equal(torch.random.get_rng_state(), state)
    alone = views(Samples(PICTURES[4:5])).inputs
    assert torch.equal(alone, whole[:, 4])
    order = [9, 4, 4, 0]
    assert torch.equal(views(Samples(PICTURES[order])).inputs.view(3, 4, 2, 5, 4), whole[:, order])
    assert torch.equal(
        Views.of(3, view, 7)(Samples(PICTURES.double())).inputs.float().view_as(whole)[:, 0], whole[:, 0]
    )
    assert torch.equal(Views.of(2, view, 7)(Samples(PICTURES)).inputs.view(2, 12, 2, 5, 4), whole[:2])


def test_views_of_one_row_differ_from_each_other_and_from_those_of_another_seed() -> None:
    rows = Samples(PICTURES)
    three = Views.of(3, noisy, 7)(rows).inputs.view(3, 12, -1)
    added = (three - PICTURES.view(12, -1)).reshape(36, -1)
    assert float(torch.pdist(added).min()) > 1, "no noise comes twice"
    assert not torch.equal(Views.of(3, noisy, 8)(rows).inputs.view_as(three), three)


def test_what_a_view_does_to_its_row_stays_with_it() -> None:
    def in_place(inputs: Nest, generator: torch.Generator) -> Nest:
        return inputs.mul_(2)

    rows = PICTURES.clone()
    assert torch.equal(Views.of(1, in_place, 0)(Samples(rows)).inputs, 2 * PICTURES)
    assert torch.equal(rows, PICTURES)


def test_inputs_of_several_parts() -> None:
    rows = {"words": torch.arange(12).view(3, 4) + 1, "more": (torch.ones(3, 2),)}
    found = Views.of(2, "word-dropout", 0)(Samples(rows)).inputs
    assert found["words"].shape == (6, 4)
    assert found["words"].dtype == torch.int64
    assert found["more"][0].shape == (6, 2)


# --- what a user gives -----------------------------------------------------------------------------------------------


def test_a_function_is_known_by_its_name_where_it_has_one() -> None:
    assert Views.of(0, None, 0) is None
    assert Views.of(0, noisy, 0) is None
    assert Views.of(2, "mirror-shift", 0) == Views(2, 0, "mirror-shift", mirror_shift)
    assert Views.of(2, word_dropout, 0).name == "word-dropout"
    assert Views.of(2, noisy, 0).name == CUSTOM


@pytest.mark.parametrize("count", [-1, 1.0, True, "2", None])
def test_counts_that_are_none(data: tuple[Tensor, Tensor], count: object) -> None:
    with pytest.raises(SettingsError, match=r"views is .*expected how many"):
        References.fit(hebb(*data), data, views=count, view=noisy)


def test_views_of_what() -> None:
    with pytest.raises(SettingsError, match=r"give view= .*mirror-shift, word-dropout"):
        Views.of(2, None, 0)
    with pytest.raises(UnknownNameError, match="did you mean 'mirror-shift'"):
        Views.of(2, "mirror-shifts", 0)
    with pytest.raises(SettingsError, match="view is of type int"):
        Views.of(2, 3, 0)


@pytest.mark.parametrize(
    ("view", "told"),
    [
        (lambda x, _: x[:, :3], r"a row of shape \(5,\) into 1 of shape \(3,\)"),
        (lambda x, _: torch.cat([x, x]), r"into 2 of shape \(5,\)"),
        (lambda x, _: (x, x), "same shape"),
        (lambda x, _: x / 0 * 0, "NaN or infinite"),
        (lambda x, _: None, "view= "),
    ],
)
def test_views_that_are_no_inputs_of_the_model(
    data: tuple[Tensor, Tensor], view: Callable[..., Any], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        References.fit(hebb(*data), data, folds=2, views=1, view=view)


def test_mirror_shift_is_for_pictures(data: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(InputError, match="mirror-shift is for pictures"):
        References.fit(hebb(*data), data, folds=2, views=1, view="mirror-shift")


def test_unseen_samples_need_a_model(data: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(SettingsError, match="give model= too"):
        References.fit(hebb(*data), data, folds=2, unseen=data[0])


# --- in a table ------------------------------------------------------------------------------------------------------


def said_by_hand(data: tuple[Tensor, Tensor], table: References, rows: list[int]) -> Tensor:
    """What the model of each row's fold says of its views, one row and one view after the other."""
    models, views = models_of(data, table), table.views
    said = []
    for number in range(views.count):
        for row in rows:
            seen = views(Samples(data[0][row : row + 1])).inputs[number]
            said.append(models[int(table.entries.fold[row])](seen))
    return torch.stack(said).detach()


def test_the_model_that_never_saw_a_row_is_asked_about_its_views(
    table: References, data: tuple[Tensor, Tensor]
) -> None:
    for rows in (list(range(24)), [20, 3, 3, 11]):
        found, logits = table.views_of((data[0][rows], data[1][rows]))
        assert torch.equal(found.inputs, table.views(Samples(data[0][rows])).inputs)
        torch.testing.assert_close(logits, said_by_hand(data, table, rows))
    assert table.about()["views"] == 2
    with pytest.raises(NotHeldOutError):
        table.views_of(data[0] + 1)


def test_a_table_without_views(data: tuple[Tensor, Tensor]) -> None:
    plain = References.fit(hebb(*data), data, folds=2)
    assert plain.views_of(data[0]) is None
    assert plain.about()["views"] == 0


def test_views_play_no_part_in_the_rows_own_logits(table: References, data: tuple[Tensor, Tensor]) -> None:
    plain = References.fit(hebb(*data), data, folds=3, key=KEY, seed=5)
    assert torch.equal(plain.logits(data[0]), table.logits(data[0]))


def test_a_trainings_own_augmentation_is_the_view() -> None:
    labels = torch.arange(12) % 3
    training = Training(lambda: nn.Sequential(nn.Flatten(), nn.Linear(40, 3)), Recipe(1, 4, 1e-2))
    augmented = Training(training.build, Recipe(1, 4, 1e-2, augmentation="mirror-shift"))
    found = References.fit(augmented, (PICTURES, labels), folds=2, views=2)
    assert found.views.name == "mirror-shift"
    assert found.views_of(PICTURES)[1].shape == (24, 3)
    with pytest.raises(SettingsError, match="give view="):
        References.fit(training, (PICTURES, labels), folds=2, views=2)


def test_views_lie_where_their_rows_do_after_others_were_forgotten(
    table: References, data: tuple[Tensor, Tensor]
) -> None:
    rows = [0, 4, 11, 23]
    expected = said_by_hand(data, table, rows)
    table.forget(data[0][[1, 3, 10, 22]])
    assert table.entries.views.shape == (20, 2, CLASSES)
    torch.testing.assert_close(table.views_of(data[0][rows])[1], expected)
    with pytest.raises(NotHeldOutError):
        table.views_of(data[0][[3]])


def test_new_rows_get_views_from_kept_models() -> None:
    data, more = drawn(24), drawn(6, seed=9)
    table = References.fit(hebb(*data), data, folds=3, key=KEY, views=2, view=noisy, keep_models=True)
    old = table.views_of(data[0])[1]
    table.extend((torch.cat([more[0][:3], data[0][5:6], more[0][3:]]), torch.cat([more[1], more[1][:1]])))
    assert torch.equal(table.views_of(data[0])[1], old)
    seen, logits = table.views_of(more[0])
    fold = table.entries.fold[24:]
    expected = [table.models[fold[at % 6]](row) for at, row in enumerate(seen.inputs)]
    torch.testing.assert_close(logits, torch.stack(expected).detach())


def test_new_rows_get_views_from_a_new_model(table: References, data: tuple[Tensor, Tensor]) -> None:
    more = drawn(6, seed=9)
    old = table.views_of(data[0])[1]
    table.extend(more, train=hebb(*data), old=data)
    assert torch.equal(table.views_of(data[0])[1], old)
    seen, logits = table.views_of(more[0])
    torch.testing.assert_close(logits, hebb(*data)(range(24), None, 0)(seen.inputs).detach())


# --- in a file -------------------------------------------------------------------------------------------------------


def test_the_same_views_come_back_from_a_file(table: References, data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    path = table.save(tmp_path / "table")
    again = References.load(path, view=noisy)
    (rows, logits), (seen, said) = table.views_of(data[0]), again.views_of(data[0])
    assert torch.equal(rows.inputs, seen.inputs)
    assert torch.equal(logits, said)
    assert (again.views.count, again.views.seed, again.views.name) == (2, 5, CUSTOM)


def test_a_view_of_ones_own_is_asked_for(table: References, data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    path = table.save(tmp_path / "table")
    again = References.load(path)
    assert torch.equal(again.logits(data[0]), table.logits(data[0])), "its rows need no view"
    with pytest.raises(SettingsError, match="load it with view="):
        again.views_of(data[0])
    again.save(tmp_path / "copy")
    copied = References.load(tmp_path / "copy", view=noisy)
    assert torch.equal(copied.views_of(data[0])[1], table.views_of(data[0])[1])


def test_a_named_view_is_known(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    named = References.fit(hebb(*data), data, folds=2, views=2, view="word-dropout")
    again = References.load(named.save(tmp_path / "table"))
    assert again.views == named.views
    assert torch.equal(again.views_of(data[0])[0].inputs, named.views_of(data[0])[0].inputs)


@pytest.mark.parametrize("shape", [(24, 1, CLASSES), (23, 2, CLASSES), (24, 2, CLASSES + 1)])
def test_views_of_another_shape_are_damage(table: References, tmp_path: Path, shape: tuple[int, ...]) -> None:
    object.__setattr__(table.entries, "views", torch.zeros(shape))
    with pytest.raises(DataError, match="damaged"):
        References.load(table.save(tmp_path / "table"), view=noisy)
    object.__setattr__(table.entries, "views", torch.full((24, 2, CLASSES), math.nan))
    with pytest.raises(DataError, match="not finite"):
        References.load(table.save(tmp_path / "table"), view=noisy)


def test_curvature_and_spread_come_back_too(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    train = hebb(*data)
    target, unseen = train(range(24), None, 0), drawn(10, seed=3)[0]
    table = References.fit(train, data, folds=2, key=KEY, model=target, views=1, view=doubled, unseen=unseen)
    models = models_of(data, table)
    centred = [said - said.mean(1, keepdim=True) for said in (model(unseen).detach().double() for model in models)]
    own = target(unseen).detach().double()
    own = own - own.mean(1, keepdim=True)
    expected = math.sqrt(sum((own - each).square().sum() for each in centred) / sum(c.square().sum() for c in centred))
    assert table.spread == pytest.approx(expected, rel=1e-5)
    again = References.load(table.save(tmp_path / "table"), view=doubled)
    assert again.spread == table.spread
    assert again.curvature.to_tensors()[1] == table.curvature.to_tensors()[1]
    forget = data[0][:2]
    seen, said = again.views_of(forget)
    assert all(
        bool((row == 2 * forget[at]).all() or (row == 3 * forget[at]).all()) for at, row in enumerate(seen.inputs)
    )
    expected = [models[int(table.entries.fold[at])](row) for at, row in enumerate(seen.inputs)]
    torch.testing.assert_close(said, torch.stack(expected).detach())
    with pytest.raises(SettingsError, match="load it with view="):
        forsaken.unlearn(target, forget, references=References.load(tmp_path / "table"))


def test_a_request_without_views_needs_no_view(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    train = hebb(*data)
    target = train(range(24), None, 0)
    table = References.fit(train, data, folds=2, key=KEY, model=target, views=1, view=noisy)
    again = References.load(table.save(tmp_path / "table"))
    assert forsaken.unlearn(target, data[0][:2], references=again, views=0).details.facts["views"] == 0


def test_a_fit_that_was_killed_goes_on_with_its_views(data: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    log: list[Any] = []
    whole = hebb(*data)
    unseen = drawn(4, seed=3)[0]

    def killed(rows: Any, steps: int | None, seed: int) -> nn.Module:
        log.append(seed)
        if len(log) == 3:
            raise KeyboardInterrupt
        return whole(rows, steps, seed)

    how = {"folds": 3, "key": KEY, "views": 2, "view": noisy, "model": whole(range(24), None, 0), "unseen": unseen}
    with pytest.raises(KeyboardInterrupt):
        References.fit(killed, data, folder=tmp_path, **how)
    found = References.fit(killed, data, folder=tmp_path, **how)
    plain = References.fit(whole, data, **how)
    assert len(log) == 4, "two folds were there already"
    assert torch.equal(found.views_of(data[0])[1], plain.views_of(data[0])[1])
    assert found.spread == plain.spread
