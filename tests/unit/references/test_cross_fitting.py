"""Cross-fitting: each row, and each augmented copy of it, is judged by a model that never saw it."""

from __future__ import annotations

import functools
import math
import pickle
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from reference_case import CLASSES, KEY, WIDTH, apart, by_hand, drawn, hebb
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import forsaken
from forsaken import Recipe, References, Tick, Training
from forsaken.bench.networks import mlp
from forsaken.data.nest import Nest
from forsaken.data.samples import Samples
from forsaken.errors import DataError, InputError, ModelError, NotHeldOutError, SettingsError, UnknownNameError
from forsaken.models.augment import mirror_shift, word_dropout
from forsaken.models.ensemble import vectorises
from forsaken.models.logits import predict_logits
from forsaken.models.train import train as fit_network
from forsaken.references import fitting
from forsaken.references.fitting import CUSTOM, CrossFit, Views, asked_views

RECIPE = Recipe(3, 8, 1e-2)


def small() -> nn.Module:
    return mlp(sizes=(WIDTH, 8, CLASSES))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))


# --- known answers ---------------------------------------------------------------------------------------------------


def test_the_table_by_hand() -> None:
    x, y = drawn(30)
    table = References.fit(hebb(x, y), (x, y), folds=4)
    fold = table.entries.fold
    torch.testing.assert_close(table.logits(x), by_hand(x, y, apart(fold)))
    assert sorted(np.bincount(fold)) == [7, 7, 8, 8]
    assert (len(table), table.classes, table.claims, table.models) == (30, CLASSES, 0, ())
    assert table.logits(x).dtype == torch.float32


def test_the_table_is_that_of_scikit_learn() -> None:
    x, y = (part.numpy() for part in drawn(60))

    def train(rows: Any, steps: int | None, seed: int) -> LogisticRegression:
        return LogisticRegression().fit(x[rows], y[rows])

    table = References.fit(train, (x, y), folds=5, groups=np.arange(60) // 3, seed=2)
    theirs = cross_val_predict(
        LogisticRegression(), x, y, cv=PredefinedSplit(table.entries.fold), method="decision_function"
    )
    assert theirs.shape == (60, CLASSES)
    np.testing.assert_allclose(table.logits(x).numpy(), theirs, atol=1e-5)


def test_two_classes_from_one_column() -> None:
    x, y = (part.numpy() for part in drawn(40))
    y = y % 2

    def train(rows: Any, steps: int | None, seed: int) -> LogisticRegression:
        return LogisticRegression().fit(x[rows], y[rows])

    table = References.fit(train, (x, y), folds=4)
    theirs = cross_val_predict(
        LogisticRegression(), x, y, cv=PredefinedSplit(table.entries.fold), method="decision_function"
    )
    found = table.logits(x).numpy()
    assert found.shape == (40, 2)
    np.testing.assert_allclose(found[:, 1] - found[:, 0], theirs, atol=1e-5)


@pytest.mark.parametrize("build", [small, normed])
def test_networks_are_those_of_training_by_hand(build: Any) -> None:
    """One that is trained together with others, and one that cannot be (batch-norm counts)."""
    x, y = drawn(34)
    data = Samples(x, y)
    assert vectorises(build, data) == (build is small)
    table = References.fit(Training(build, RECIPE), (x, y), folds=4, seed=3)
    plan = CrossFit(Training(build, RECIPE), data, table.entries.fold, None, 3)
    assert table.origin.steps == plan.steps_each == 3 * -(-34 // 8), "as many as the target's own"
    assert len(set(plan.seeds)) == 4
    for at in range(4):
        learnt, unseen = np.flatnonzero(table.entries.fold != at), np.flatnonzero(table.entries.fold == at)
        model = fit_network(build, data.rows(learnt), RECIPE, seed=plan.seeds[at], steps=15)
        with torch.no_grad():
            expected = model(x[unseen])
        torch.testing.assert_close(table.logits(x[unseen]), expected, atol=1e-5, rtol=1e-4)


def test_a_training_and_the_same_as_a_function() -> None:
    x, y = drawn(32)

    def train(rows: Any, steps: int | None, seed: int) -> nn.Module:
        return fit_network(small, Samples(x, y).rows(rows), RECIPE, seed=seed, steps=steps)

    together = References.fit(Training(small, RECIPE), (x, y), seed=1)
    alone = References.fit(train, (x, y), steps=12, seed=1)
    torch.testing.assert_close(together.logits(x), alone.logits(x), atol=1e-5, rtol=1e-4)
    other = References.fit(train, (x, y), steps=9, seed=1)
    assert (other.logits(x) - alone.logits(x)).abs().max() > 1e-3


def test_no_training_ever_sees_a_row_that_it_is_asked_about() -> None:
    x, y = drawn(31)
    x[7] = x[3]
    x[20] = x[7]
    log: list[Any] = []
    table = References.fit(hebb(x, y, log), (x, y), folds=5, groups=[f"p{at // 2}" for at in range(31)], steps=70)
    assert len(log) == 5
    for at, (rows, steps, _) in enumerate(log):
        held = np.flatnonzero(table.entries.fold == at).tolist()
        assert sorted(rows + held) == list(range(31))
        assert steps == 70
        assert not {tuple(row) for row in x[rows].tolist()} & {tuple(row) for row in x[held].tolist()}
        assert not {row // 2 for row in rows} & {row // 2 for row in held}
    assert len({seed for *_, seed in log}) == 5
    assert table.about() | {"training_seconds": 0} == {
        "rows": 31,
        "classes": 3,
        "folds": 5,
        "by": "group",
        "steps": 70,
        "seed": 0,
        "claimed": 0,
        "forgotten": 0,
        "models_kept": 0,
        "models_owe": 0,
        "views": 0,
        "curvature_rows": None,
        "spread": None,
        "training_seconds": 0,
        "worth": None,
        "budget": None,
        "worth_now": None,
        "refit_due": False,
        "trainings": 5,
    }
    assert table.origin.costs.seconds > 0


def test_the_seed_decides_and_leaves_torch_alone() -> None:
    x, y = drawn(20)
    training, state = Training(small, RECIPE), torch.random.get_rng_state()
    tables = [References.fit(training, (x, y), seed=seed) for seed in (4, 4, 5)]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(tables[0].logits(x), tables[1].logits(x))
    assert tables[0].key != tables[1].key
    assert not torch.equal(tables[0].logits(x), tables[2].logits(x))


def test_inputs_of_several_tensors_and_a_way_to_call() -> None:
    x, y = drawn(24)
    flipped = {"b": x[:, :2], "a": x[:, 2:]}

    def forward(model: nn.Module, inputs: Any) -> torch.Tensor:
        return 2 * model(torch.cat([inputs["b"], inputs["a"]], dim=1))

    table = References.fit(hebb(x, y), (flipped, y), folds=3, forward=forward)
    torch.testing.assert_close(table.logits(flipped), 2 * by_hand(x, y, apart(table.entries.fold)))
    trained = References.fit(Training(small, RECIPE), (flipped, y), folds=3, forward=forward)
    plan = CrossFit(Training(small, RECIPE), Samples(x, y), trained.entries.fold, None, 0)
    learnt, unseen = plan.rows_of(1)
    model = fit_network(Doubled, Samples(x, y).rows(learnt), RECIPE, seed=plan.seeds[1], steps=9)
    with torch.no_grad():
        expected = model(x[unseen])
    part = {name: leaf[unseen] for name, leaf in flipped.items()}
    torch.testing.assert_close(trained.logits(part), expected, atol=1e-5, rtol=1e-4)


class Doubled(nn.Module):
    """The network of `small`, with logits twice as large."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return 2 * self.inner(inputs)


# --- progress --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [True, False])
def test_progress(own: bool) -> None:
    x, y = drawn(16)
    ticks: list[Tick] = []
    References.fit(hebb(x, y) if own else Training(small, RECIPE), (x, y), progress=ticks.append)
    assert {tick.stage for tick in ticks} == {"train models without a fold each"}
    assert ticks[-1].done == ticks[-1].total
    assert [tick.done for tick in ticks] == sorted(tick.done for tick in ticks)


# --- a fit that was killed -------------------------------------------------------------------------------------------


class KilledError(Exception):
    """What stops a fit in its tracks."""


def killed_after(count: int, train: Any) -> Any:
    """Return `train` under the same name, which fails after so many calls."""
    calls: list[int] = []

    @functools.wraps(train)
    def until(rows: Any, steps: int | None, seed: int) -> Any:
        calls.append(1)
        if len(calls) > count:
            raise KilledError
        return train(rows, steps, seed)

    return until


@pytest.mark.parametrize("key", [None, KEY])
def test_a_fit_that_was_killed_goes_on(tmp_path: Path, key: bytes | None) -> None:
    x, y = drawn(20)
    log: list[Any] = []
    folder = tmp_path / "deep" / "fit"
    with pytest.raises(KilledError):
        References.fit(killed_after(3, hebb(x, y, log)), (x, y), folds=5, key=key, folder=folder)
    left = sorted(folder.glob("fold-*"))
    assert len(left) == len(log) == 3
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    table = References.fit(hebb(x, y, log), (x, y), folds=5, key=key, folder=folder)
    assert len(log) == 5, "what was trained is not trained again"
    assert len(list(folder.glob("fold-*"))) == 5, "they stay until the table is on the disk, which the caller knows"
    torch.testing.assert_close(table.logits(x), by_hand(x, y, apart(table.entries.fold)))
    assert table.origin.costs.trainings == 5


def test_networks_that_are_trained_together_go_on_too(tmp_path: Path) -> None:
    x, y = drawn(22)  # folds of 6, 6, 5 and 5: two lots

    def stop(tick: Tick) -> None:
        if tick.done > tick.total * 0.6:
            raise KilledError

    training = Training(small, RECIPE)
    with pytest.raises(KilledError):
        References.fit(training, (x, y), folder=tmp_path, progress=stop)
    assert len(list(tmp_path.glob("fold-*"))) == 2
    ticks: list[Tick] = []
    table = References.fit(training, (x, y), folder=tmp_path, progress=ticks.append)
    assert ticks[-1].total == 2 * 3 * 3, "the steps of two networks"
    torch.testing.assert_close(table.logits(x), References.fit(training, (x, y)).logits(x), atol=1e-5, rtol=1e-4)


def half_done(folder: Path, x: torch.Tensor, y: torch.Tensor, **more: Any) -> list[Path]:
    with pytest.raises(KilledError):
        References.fit(killed_after(2, hebb(x, y)), (x, y), key=KEY, folder=folder, **more)
    return sorted(folder.glob("fold-*"))


def nothing(path: Path) -> bytes:
    return b""


def cut(path: Path) -> bytes:
    return path.read_bytes()[:-3]


def other(tensor: torch.Tensor) -> Any:
    return lambda path: safetensors.torch.save({"logits": tensor}, metadata={"seconds": "1.0"})


@pytest.mark.parametrize(
    "damage",
    [
        nothing,
        cut,
        other(torch.zeros(4, 3)),
        other(torch.zeros(5)),
        other(torch.full((5, 3), torch.nan)),
        other(torch.zeros(5, 3, dtype=torch.int64)),
        lambda path: safetensors.torch.save({"logits": torch.zeros(5, 3)}),
        lambda path: safetensors.torch.save({"logits": torch.zeros(5, 3)}, metadata={"seconds": "soon"}),
        lambda path: safetensors.torch.save({"other": torch.zeros(5, 3)}, metadata={"seconds": "1.0"}),
    ],
)
def test_a_damaged_leftover_is_made_anew(tmp_path: Path, damage: Any) -> None:
    x, y = drawn(20)
    first, _ = half_done(tmp_path, x, y)
    first.write_bytes(damage(first))
    log: list[Any] = []
    table = References.fit(hebb(x, y, log), (x, y), key=KEY, folder=tmp_path)
    assert len(log) == 3
    torch.testing.assert_close(table.logits(x), by_hand(x, y, apart(table.entries.fold)))


def test_the_leftovers_of_another_fit_are_not_taken(tmp_path: Path) -> None:
    x, y = drawn(20)
    left = half_done(tmp_path, x, y, steps=7)
    moved, labels = x.clone(), y.clone()
    moved[0, 0] += 1
    labels[0] = (labels[0] + 1) % CLASSES

    def another(rows: Any, steps: int | None, seed: int) -> nn.Module:
        return hebb(x, y)(rows, steps, seed)

    def forward(model: nn.Module, inputs: Any) -> torch.Tensor:
        return 2 * model(inputs)

    def trainings(data: Any, own: Any = None, **more: Any) -> int:
        log: list[Any] = []
        told = {"key": KEY, "steps": 7} | more
        inner = own or hebb(*data, log)
        References.fit(inner, data, folder=tmp_path, **told)
        return len(log)

    assert trainings((moved, y)) == trainings((x, labels)) == 4
    assert trainings((x, y), steps=8) == trainings((x, y), seed=1) == trainings((x, y), key=bytes(32)) == 4
    assert trainings((x, y), folds=5) == 5
    assert trainings((x, y), groups=[at // 2 for at in range(20)], folds=5) == 5
    assert trainings((x, y), forward=forward) == 4
    trainings((x, y), own=another)
    trainings((x, y), own=functools.partial(another))
    assert set(left) <= set(tmp_path.glob("fold-*")), "and they are left alone"
    assert trainings((x, y)) == 2


def test_the_leftovers_of_another_recipe_or_network_are_not_taken(tmp_path: Path) -> None:
    x, y = drawn(20)
    data = Samples(x, y)
    fold = np.arange(20) % 4

    def names(training: Any, **more: Any) -> list[str]:
        plan = CrossFit(training, data, fold, more.get("steps"), more.get("seed", 0), folder=tmp_path, key=KEY)
        return [plan._path(at).name for at in range(4)]  # type: ignore[union-attr]

    usual = names(Training(small, RECIPE))
    assert usual == names(Training(small, RECIPE))
    others = [
        names(Training(small, Recipe(3, 8, 2e-2))),
        names(Training(lambda: mlp(sizes=(WIDTH, 9, CLASSES)), RECIPE)),
        names(Training(lambda: nn.Sequential(nn.Dropout(0.5), *small()), RECIPE)),
        names(Training(small, RECIPE), steps=5),
        names(Training(small, RECIPE), seed=1),  # the folds are the same here, the models are not
    ]
    assert not set(usual) & {name for each in others for name in each}
    assert all(str(KEY.hex()) not in name for name in usual)


def test_kept_models_are_not_left_on_disk(tmp_path: Path) -> None:
    x, y = drawn(20)
    assert half_done(tmp_path / "here", x, y, keep_models=True) == []
    log: list[Any] = []
    assert len(References.fit(hebb(x, y, log), (x, y), folder=tmp_path, keep_models=True).models) == len(log) == 4
    assert list(tmp_path.iterdir()) == []


def test_workers_keep_what_is_done_and_never_get_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a Ray worker is handed, without a Ray: see tests/integration/test_references_on_ray.py for one."""
    x, y = drawn(20)
    log: list[Any] = []
    folder = tmp_path / "fit"
    seen: list[str] = []

    def workers(work: Any, jobs: Any, *, engine: str, workers: int, progress: Any, stage: str) -> list[Any]:
        assert (engine, workers) == ("ray", 2)
        plan = work.args[0]
        assert (plan.key, plan.folder) == (b"", None)
        assert KEY not in pickle.dumps((plan.data, plan.fold, plan.key, plan.folder, jobs))
        for job in jobs[:3]:
            assert job[1] is None or job[1].is_absolute()
            work(job)
        seen.extend(path.name for path in folder.glob("fold-*"))
        raise KilledError

    monkeypatch.setattr(fitting, "fan_out", workers)
    for relative in (False, True):
        monkeypatch.chdir(tmp_path)
        place = Path("fit") if relative else folder
        with pytest.raises(KilledError):
            References.fit(hebb(x, y), (x, y), key=KEY, folder=place, engine="ray", workers=2)
    assert len(set(seen)) == 4, "three of the first run, and the last one of the second"
    table = References.fit(hebb(x, y, log), (x, y), key=KEY, folder=folder)
    assert log == []
    torch.testing.assert_close(table.logits(x), by_hand(x, y, apart(table.entries.fold)))


def test_a_worker_elsewhere_leaves_nothing_behind(tmp_path: Path) -> None:
    x, y = drawn(8)
    plan = CrossFit(hebb(x, y), Samples(x, y), np.arange(8) % 2, None, 0)
    fold = fitting._on_ray(plan, (0, tmp_path / "not here" / "fold-0"))
    assert fold.logits.shape == (4, CLASSES)
    assert list(tmp_path.iterdir()) == []


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, -1, True, 2.5, "9"])
def test_steps_that_are_none(steps: Any) -> None:
    x, y = drawn(8)
    with pytest.raises(SettingsError, match=r"steps is .*, expected a whole number >= 1, or None"):
        References.fit(hebb(x, y), (x, y), steps=steps)


def test_what_cannot_train() -> None:
    x, y = drawn(8)
    with pytest.raises(SettingsError, match=r"train is of type Linear|train is of type int, expected a function"):
        References.fit(7, (x, y))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="training needs labels"):
        References.fit(Training(small, RECIPE), x)
    with pytest.raises(ModelError, match="the model is of type NoneType"):
        References.fit(lambda rows, steps, seed: None, (x, y))
    with pytest.raises(UnknownNameError, match="engine"):
        References.fit(hebb(x, y), (x, y), engine="rai")


def test_models_that_know_different_classes() -> None:
    x, y = drawn(12)

    def train(rows: Any, steps: int | None, seed: int) -> nn.Module:
        return nn.Linear(WIDTH, 3 if 0 in rows else 4)

    with pytest.raises(ModelError, match=r"tell 3 or 4 classes apart.* let train build models of all classes"):
        References.fit(train, (x, y))


@pytest.mark.parametrize("groups", [None, list(range(12))])
def test_a_loader_that_shuffles(groups: Any) -> None:
    """A function's rows count in the user's order, so another order would let models see what they are asked about."""
    x, y = drawn(12)
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True)
    with pytest.raises(InputError, match=r"data, but its loader shuffles.*shuffle=False"):
        References.fit(hebb(x, y), loader, groups=groups)
    training = Training(small, RECIPE)
    if groups is None:
        assert len(References.fit(training, loader)) == 12
    else:
        with pytest.raises(InputError, match="shuffles"):
            References.fit(training, loader, groups=groups)
    table = References.fit(hebb(x, y), DataLoader(TensorDataset(x, y), batch_size=4))
    torch.testing.assert_close(table.logits(x), by_hand(x, y, apart(table.entries.fold)))


# --- views -----------------------------------------------------------------------------------------------------------


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
    rows = {"input_ids": torch.arange(12).view(3, 4) + 1, "more": (torch.ones(3, 2),)}
    found = Views.of(2, "word-dropout", 0)(Samples(rows)).inputs
    assert found["input_ids"].shape == (6, 4)
    assert found["input_ids"].dtype == torch.int64
    assert found["more"][0].shape == (6, 2)


def test_the_views_of_many_rows_are_made_and_asked_in_parts() -> None:
    """As many as one pass takes, in the same batches as if all were made first."""
    made, held, rows = [], [], torch.randn(700, 3)

    def view(inputs: Nest, generator: torch.Generator) -> Nest:
        made.append(1)
        return inputs + torch.rand(inputs.shape, generator=generator)

    class Asked(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            held.append(len(made))
            return super().forward(inputs)

    model, views = Asked(3, 2), Views.of(2, view, 0)
    found = asked_views(model, Samples(rows), views, None)
    assert held == [512, 1024, 1400]
    expected = predict_logits(model, views(Samples(rows)))
    assert torch.equal(found, expected.view(2, 700, 2).transpose(0, 1))


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
