"""Cross-fitting: each row is judged by a model that never saw it, trained for as long as the target was."""

from __future__ import annotations

import functools
import pickle
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from reference_case import CLASSES, KEY, WIDTH, apart, by_hand, drawn, hebb, network
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from forsaken import Recipe, References, Tick, Training
from forsaken.bench.networks import mlp
from forsaken.data.samples import Samples
from forsaken.errors import InputError, ModelError, SettingsError, UnknownNameError
from forsaken.models.ensemble import vectorises
from forsaken.models.train import train as fit_network
from forsaken.references import fitting
from forsaken.references.fitting import CrossFit

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
    assert list(folder.iterdir()) == [], "and nothing stays behind, the key included"
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
    assert trainings((x, y), groups=range(20), folds=5) == 5
    assert trainings((x, y), forward=forward) == 4
    trainings((x, y), own=another)
    trainings((x, y), own=functools.partial(another))
    assert sorted(tmp_path.glob("fold-*")) == left, "and they are left alone"
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


def test_the_network_of_the_tests_is_what_it_says() -> None:
    x, y = drawn(6)
    with torch.no_grad():
        said = hebb(x, y)([1, 4], None, 0)(x)
    knew = np.zeros((6, 6))
    knew[:, [1, 4]] = 1
    torch.testing.assert_close(said, by_hand(x, y, knew))
    assert isinstance(network(), nn.Linear)
