"""Ensembles: what is measured of each model, kept under a hash of all that decides it, and taken up after a kill."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from audit_case import METHOD, RECIPE, Small, build

from forsaken import METHODS, Curvature, Forsaken, Recipe, Training
from forsaken.auditing.ensembles import Ensembles
from forsaken.auditing.inputs import AuditInputs
from forsaken.bench.wrapped import InTurn
from forsaken.data.samples import Samples
from forsaken.errors import ForsakenError, InputError, NonFiniteError, SettingsError
from forsaken.metrics import margins
from forsaken.sets import Sets
from forsaken.types import Tick

FAST = replace(RECIPE, epochs=3)


def ensembles(trained: Small, folder: Path | None = None, **changes: object) -> Ensembles:
    sets = Sets(trained.forget, **trained.sets)
    case = AuditInputs(trained.before, trained.after, sets, training=changes.pop("training", Training(build, FAST)))
    given = {"methods": {"unlearned": METHOD}, "originals": 2, "retrained": 3, "folder": folder, "watched": 30}
    return Ensembles(case, **{**given, **changes})


def counted(trained: Small, calls: list[int]) -> Training:
    def made() -> torch.nn.Module:
        calls.append(1)
        return build()

    return Training(made, FAST)


def test_rows_are_models_and_columns_samples_of_each_set(trained):
    found = ensembles(trained).measure()
    assert {who: sets["forget"].shape for who, sets in found.margins.items()} == {
        "before": (2, 20),
        "unlearned": (2, 20),
        "retrained": (3, 20),
    }
    assert {part: matrix.shape[1] for part, matrix in found.margins["before"].items()} == {
        "forget": 20,
        "retain": 30,
        "test": 30,
    }
    assert {part: rate.shape for part, rate in found.accuracy["retrained"].items()} == {"retain": (3,), "test": (3,)}


def test_margins_are_those_of_models_trained_one_by_one(trained):
    ours = ensembles(trained)
    found = ours.measure()
    roles = ours.models
    for at, (role, seed) in enumerate(roles):
        data = ours.inputs.sets.train if role == "before" else ours.inputs.sets.remaining
        model = Training(build, FAST).run(data, seed=seed)
        logits = model(trained.forget.inputs).detach().double().numpy()
        row = at if role == "before" else at - 2
        expected = margins(logits, trained.forget.labels.numpy())
        assert np.allclose(found.margins[role]["forget"][row], expected, atol=1e-3)


def test_a_second_measurement_reads_and_trains_nothing(trained, tmp_path):
    first = ensembles(trained, tmp_path).measure()
    calls: list[int] = []
    again = ensembles(trained, tmp_path, training=counted(trained, calls))
    again.cache  # noqa: B018 (the hash builds the network once)
    calls.clear()
    second = again.measure()
    assert calls == []
    for who, sets in first.margins.items():
        for part, matrix in sets.items():
            assert np.array_equal(matrix, second.margins[who][part])


def test_more_models_train_only_the_new_ones(trained, tmp_path):
    few = ensembles(trained, tmp_path).measure()
    before = set(tmp_path.rglob("*.npz"))
    times = {path: path.stat().st_mtime_ns for path in before}
    many = ensembles(trained, tmp_path, originals=4, retrained=5).measure()
    assert {path: path.stat().st_mtime_ns for path in before} == times
    assert len(set(tmp_path.rglob("*.npz"))) == len(before) + 2 * 2 + 2
    assert np.array_equal(many.margins["retrained"]["forget"][:3], few.margins["retrained"]["forget"])


class KilledError(Exception):
    """What a kill looks like from inside."""


def test_after_a_kill_only_what_is_missing_is_trained(trained, tmp_path):
    whole = ensembles(trained, None, originals=4, retrained=4, at_once=2).measure()

    def kill(tick: Tick) -> None:
        if tick.done >= 0.5 * tick.total:
            raise KilledError

    with pytest.raises(KilledError):
        ensembles(trained, tmp_path, originals=4, retrained=4, at_once=2).measure(progress=kill)
    kept = set(tmp_path.rglob("*.npz"))
    assert 0 < len(kept) < 12
    times = {path: path.stat().st_mtime_ns for path in kept}
    found = ensembles(trained, tmp_path, originals=4, retrained=4, at_once=2).measure()
    assert {path: path.stat().st_mtime_ns for path in kept} == times
    for who, sets in whole.margins.items():
        assert np.allclose(sets["forget"], found.margins[who]["forget"], atol=1e-4)


def test_nothing_half_written_is_left_after_a_kill(trained, tmp_path):
    def kill(tick: Tick) -> None:
        raise KilledError

    with pytest.raises(KilledError):
        ensembles(trained, tmp_path).measure(progress=kill)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".npz"] == []


@pytest.mark.parametrize("what", ["recipe", "data", "method", "network", "watched", "reference"])
def test_everything_that_decides_a_model_decides_its_place(trained, what):
    ours = ensembles(trained, Path("x"))
    sets = ours.inputs.sets
    if what == "recipe":
        other = ensembles(trained, Path("x"), training=Training(build, replace(FAST, learning_rate=1e-4)))
    elif what == "network":
        wide = Training(lambda: torch.nn.Sequential(build()), FAST)
        other = ensembles(trained, Path("x"), training=wide)
    elif what == "method":
        other = ensembles(trained, Path("x"), methods={"unlearned": METHODS["fine-tune"]()})
    elif what == "watched":
        other = ensembles(trained, Path("x"), watched=29)
    else:
        changed = Samples(trained.kept.inputs + 1e-6, trained.kept.labels)
        part = {"kept": changed} if what == "data" else {"reference": Samples(trained.reference.inputs + 1e-6)}
        other = Ensembles(replace(ours.inputs, sets=replace(sets, **part)), ours.methods, 2, 3, 30, Path("x"))
    assert ours.cache.keys["before"]["unlearned"] != other.cache.keys["before"]["unlearned"]
    same_originals = ours.cache.keys["before"]["before"] == other.cache.keys["before"]["before"]
    assert same_originals is (what in ("method", "reference"))


def test_what_workers_without_the_folder_measured_is_kept_as_it_comes(trained, tmp_path, monkeypatch):
    ours = ensembles(trained, tmp_path, at_once=1)

    def killed(work, items, *, received, **_):
        received(0, replace(ours, folder=None)._measured(items[0]))
        raise KeyboardInterrupt

    monkeypatch.setattr("forsaken.auditing.ensembles.fan_out", killed)
    with pytest.raises(KeyboardInterrupt):
        ours.measure(engine="ray")
    assert len(ours.missing()) == len(ours.models) - 1


def test_a_function_trains_too_and_is_not_cached(trained, tmp_path):
    found = ensembles(
        trained, tmp_path, training=lambda data, seed: Training(build, FAST).run(data, seed=seed)
    ).measure()
    assert found.margins["retrained"]["forget"].shape == (3, 20)
    assert list(tmp_path.rglob("*.npz")) == []


def test_a_damaged_file_is_told_with_the_remedy(trained, tmp_path):
    ensembles(trained, tmp_path).measure()
    next(tmp_path.rglob("*.npz")).write_bytes(b"half a file")
    with pytest.raises(InputError, match="delete it, and it is made anew"):
        ensembles(trained, tmp_path).measure()


def test_a_method_that_trains_its_own_model_is_refused(trained):
    with pytest.raises(SettingsError, match="sisa trains its own model"):
        ensembles(trained, methods={"sisa": METHODS["sisa"]()})


def test_a_method_that_fails_says_on_which_original(trained):
    with pytest.raises(ForsakenError, match=r"msg failed on an original of the ensemble \(seed \d+\)"):
        ensembles(trained, methods={"msg": METHODS["msg"]()}).measure()


def test_a_training_that_diverges_is_an_error(trained):
    with pytest.raises(NonFiniteError):
        ensembles(trained, training=Training(build, Recipe(3, 32, 1e30, optimiser="sgd"))).measure()


def test_labels_and_remaining_data_are_asked_for_by_name(trained):
    sets = replace(Sets(trained.forget, **trained.sets), test=None)
    with pytest.raises(InputError, match="test is not given"):
        Ensembles(AuditInputs(trained.before, trained.after, sets, training=trained.training), {}, 2, 4)


def test_progress_runs_from_nothing_to_all_and_never_back(trained):
    ticks: list[Tick] = []
    ensembles(trained, at_once=2).measure(progress=ticks.append)
    done = [tick.done for tick in ticks]
    assert done == sorted(done)
    assert done[-1] == ticks[-1].total
    assert len({tick.stage for tick in ticks}) == 1


def test_what_a_network_answers_decides_its_place_too(trained):
    class Odd(torch.nn.Module):
        def __init__(self, function: object) -> None:
            super().__init__()
            self.layer, self.function = torch.nn.Linear(20, 3), function

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.function(self.layer(inputs))

    one, two = (
        ensembles(trained, Path("x"), training=Training(lambda f=f: Odd(f), FAST)) for f in (torch.sin, torch.tanh)
    )
    assert one.cache.keys["retrained"]["retrained"] != two.cache.keys["retrained"]["retrained"]


def test_a_method_of_somebody_else_is_not_cached(trained, tmp_path):
    class Own(METHODS["fine-tune"]):
        """Nobody can tell whether its code is the same as before."""

    ensembles(trained, tmp_path, methods={"own": Own()}).measure()
    kept = {path.parent for path in tmp_path.rglob("*.npz")}
    assert len(kept) == 2, "the originals and the retrained models, and nothing of the method"


def test_processes_side_by_side_train_the_same_models(trained, tmp_path):
    shared = ensembles(trained, tmp_path, at_once=1).measure(engine="processes", workers=2)
    calls: list[int] = []
    again = ensembles(trained, tmp_path, training=counted(trained, calls))
    again.cache  # noqa: B018 (the hash builds the network once)
    calls.clear()
    again.measure()
    assert calls == [], "everything is in the folder"
    alone = ensembles(trained, at_once=1).measure()
    for who, sets in alone.margins.items():
        assert np.allclose(sets["forget"], shared.margins[who]["forget"], atol=1e-3)


def test_the_settings_of_a_method_within_a_method_decide_its_place(trained, tmp_path):
    keys = [
        ensembles(trained, tmp_path, methods={"x": InTurn(method=Forsaken(penalty=penalty))}).cache.keys["before"]["x"]
        for penalty in (1e-3, 1e-2)
    ]
    assert None not in keys
    assert keys[0] != keys[1]


def test_each_original_gets_a_curvature_of_its_own_where_the_method_had_one(trained, tmp_path):
    plain, method = ensembles(trained, tmp_path), Forsaken()
    ours = Ensembles(replace(plain.inputs, curvature=True), {"unlearned": method}, 2, 3, 30, tmp_path)
    found = ours.measure()
    sets = ours.inputs.sets
    for at, (_, seed) in enumerate(ours.models[:2]):
        model = Training(build, FAST).run(sets.train, seed=seed)
        curvature = Curvature.fit(model, Samples(sets.train.inputs))
        result = method(model, sets.forget, sets.reference, sets.retain, curvature=curvature, seed=seed)
        assert result.details.facts["optimiser"] == "gauss-newton"
        expected = margins(result.model(trained.forget.inputs).detach().double().numpy(), trained.forget.labels.numpy())
        assert np.allclose(found.margins["unlearned"]["forget"][at], expected, atol=1e-2)
    # It decides where a measurement is kept: samples in place of the curvature would be another one.
    other = Ensembles(plain.inputs, {"unlearned": method}, 2, 3, 30, tmp_path)
    assert {model for model in other.missing() if model[0] == "before"} == set(other.models[:2])
    assert ours.missing() == []
