"""SISA: exact forgetting, its bookkeeping, its files and its vote."""

from __future__ import annotations

import copy
import gc
import math
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from forsaken._random import torch_seed
from forsaken.bench.networks import mlp
from forsaken.data.nest import row_keys
from forsaken.data.samples import Samples
from forsaken.errors import EmptyError, InputError, ModelError, NonFiniteError, OutputError, SettingsError
from forsaken.models.logits import posteriors
from forsaken.models.train import Training, train
from forsaken.models.weights import fingerprint
from forsaken.recipe import Recipe
from forsaken.types import Tick
from forsaken.unlearning.sisa.method import Sisa, SisaEnsemble, vote
from forsaken.unlearning.sisa.shards import assign_shards, plan
from forsaken.unlearning.sisa.training import kept_stages

RECIPE = Recipe(epochs=6, batch_size=8, learning_rate=1e-2)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Dropout(0.2), nn.Linear(10, 3))


TRAINING = Training(network, RECIPE)
METHOD = Sisa(shards=3, slices=4)


def samples(count: int = 60, seed: int = 0) -> Samples:
    draw = torch.Generator().manual_seed(seed)
    return Samples(torch.randn(count, 6, generator=draw), torch.randint(3, (count,), generator=draw))


DATA = samples()


@pytest.fixture(scope="module")
def ensemble() -> SisaEnsemble:
    model = METHOD.prepare(TRAINING, DATA, seed=5).model
    assert isinstance(model, SisaEnsemble)
    return model


def states_equal(a: nn.Module, b: nn.Module) -> bool:
    return fingerprint(a) == fingerprint(b)


def rows_of(model: SisaEnsemble, shard: int, slice_: int) -> Samples:
    sharded = model.ensemble_state.sharded
    return sharded.data.rows(np.flatnonzero((sharded.shard == shard) & (sharded.slice == slice_)))


def from_scratch(model: SisaEnsemble, shard: int, gone: set[bytes]) -> nn.Module:
    """Train a shard of the assigned data from its first slice on, without `gone`, in a plain loop of its own."""
    sharded = model.ensemble_state.sharded
    with torch_seed(sharded.start_seed(shard)):
        net = network()
    epochs = 2 * RECIPE.epochs / (sharded.slices + 1)
    due = 0.0
    for slice_ in range(1, sharded.slices + 1):
        inside = (sharded.shard == shard) & (sharded.slice <= slice_)
        here = [at for at in np.flatnonzero(inside) if row_keys(sharded.data.inputs[at : at + 1])[0] not in gone]
        due += epochs * len(here)
        steps, passed = 0, 0
        size = 9 if len(here) % 8 == 1 else 8  # batch-norm takes no sample alone
        batches = [min(size, len(here) - start) for start in range(0, len(here), size)]
        # step after step until the passes are as near to what is due as whole steps come
        while abs(passed + batches[steps % len(batches)] - due) < abs(passed - due):
            passed += batches[steps % len(batches)]
            steps += 1
        due -= passed
        seed = sharded.stage_seeds(shard)[slice_ - 1]
        recipe = replace(RECIPE, batch_size=size)
        net = train(lambda net=net: net, sharded.data.rows(here), recipe, seed=seed, steps=steps)
    return net


def test_constituents_are_trained_slice_by_slice(ensemble: SisaEnsemble) -> None:
    for shard in range(3):
        assert states_equal(ensemble.constituents[shard], from_scratch(ensemble, shard, set()))


def test_retrained_constituents_equal_training_from_scratch_without_the_samples(ensemble: SisaEnsemble) -> None:
    forget = torch.cat([rows_of(ensemble, 0, 2).inputs[:2], rows_of(ensemble, 2, 4).inputs[:1]])
    result = METHOD(ensemble, forget)
    gone = set(row_keys(forget))
    for shard in (0, 2):
        fresh = from_scratch(ensemble, shard, gone)
        assert states_equal(result.model.constituents[shard], fresh)
        assert not states_equal(ensemble.constituents[shard], fresh)
    assert states_equal(result.model.constituents[1], ensemble.constituents[1]), "an untouched shard is left alone"
    facts = result.details.facts
    assert (facts["shards_retrained"], facts["stages_retrained"]) == (2, 3 + 1)
    sharded = result.model.ensemble_state.sharded
    last = {shard: plan(sharded.sizes(shard), 6, 8) for shard in (0, 2)}
    passes = sum(stage.passes for stage in last[0][1:]) + last[2][3].passes
    assert facts["samples_passed"] == passes
    assert result.iterations == len(result.history) == 2


def test_requests_one_after_the_other_equal_all_at_once(ensemble: SisaEnsemble) -> None:
    parts = [
        rows_of(ensemble, 0, 3).inputs[:1],
        rows_of(ensemble, 1, 1).inputs[:2],
        rows_of(ensemble, 0, 2).inputs[1:3],
    ]
    model = ensemble
    for part in parts:
        model = METHOD(model, part).model
    together = METHOD(ensemble, torch.cat(parts)).model
    assert states_equal(model, together)
    sharded, first = model.ensemble_state.sharded, ensemble.ensemble_state.sharded
    left = {key: (s, i) for key, s, i in zip(first.keys, first.shard, first.slice, strict=True)}
    for key in row_keys(torch.cat(parts)):
        del left[key]
    assert dict(zip(sharded.keys, zip(sharded.shard, sharded.slice, strict=True), strict=True)) == left
    assert len(sharded.data) == len(DATA) - 5, "what was forgotten is not kept with the model"
    assert model.ensemble_state.trainings == ((1, 3, 2), (1, 1), (1,))
    with pytest.raises(InputError, match=r"1 of 2 forget samples are not in the training data .* forgotten already"):
        METHOD(model, torch.cat([parts[0], rows_of(model, 2, 1).inputs[:1]]))


def test_rows_are_dealt_evenly_and_by_the_seed() -> None:
    sharded = assign_shards(samples(47), 4, 5, seed=1)
    assert sorted(np.bincount(sharded.shard)) == [11, 12, 12, 12]
    counts = np.array([[((sharded.shard == s) & (sharded.slice == i)).sum() for i in range(1, 6)] for s in range(4)])
    assert (counts == sharded.assigned).all()
    assert counts.min() == 2
    assert counts.max() == 3
    assert sorted(sharded.keys) == sorted(row_keys(samples(47).inputs)), "every row once"
    assert (
        assign_shards(samples(47), 4, 5, seed=1).keys == sharded.keys != assign_shards(samples(47), 4, 5, seed=2).keys
    )
    assert all(torch.equal(sharded.data.inputs[sharded.shard == s], sharded.of(s).inputs) for s in range(4))


@pytest.mark.parametrize(
    ("rows", "slices", "epochs", "batch"), [(200, 100, 40, 128), (54, 54, 200, 64), (397, 7, 5, 32)]
)
def test_samples_are_passed_as_often_as_in_plain_training(rows: int, slices: int, epochs: int, batch: int) -> None:
    sizes = np.cumsum([len(part) for part in np.array_split(np.arange(rows), slices)]).tolist()
    stages = plan(sizes, epochs, batch)
    passed = sum(stage.passes for stage in stages)
    # slices of equal size pass epochs·rows; array_split puts the larger slices first, which passes a little more
    exact = 2 * epochs / (slices + 1) * sum(sizes)
    assert abs(passed - exact) <= batch / 2
    assert abs(passed - epochs * rows) <= 0.03 * epochs * rows + batch / 2
    assert plan(sizes[:5], epochs, batch) != stages[:5], "the length of a stage follows the number of slices"


@pytest.mark.parametrize("batch", [2, 3, 8])
def test_batch_norm_never_gets_a_sample_alone(batch: int) -> None:
    stages = plan(range(1, 40), 60, batch, least=2)
    assert stages[0].steps == 0, "one row waits for the next slice"
    assert all(stage.rows % stage.batch != 1 and batch <= stage.batch <= batch + 3 for stage in stages[1:])
    assert abs(sum(stage.passes for stage in stages) - 3 * sum(range(1, 40))) <= 5
    assert all(stage.batch == batch for stage in plan(range(1, 40), 60, batch))


def test_few_data_have_fewer_slices_and_the_notes_say_so() -> None:
    method = Sisa(shards=2, slices=100)
    model = method.prepare(Training(lambda: mlp((6, 3)), RECIPE), samples(9), seed=0).model
    assert model.ensemble_state.sharded.slices == 4
    result = method(model, samples(9).inputs[:1])
    assert any("4 slices, not 100" in note for note in result.notes)
    with pytest.raises(InputError, match="9 training samples cannot fill 10 shards; lower shards to 9"):
        Sisa(slices=1).prepare(TRAINING, samples(9), seed=0)


def test_copies_of_a_row_are_forgotten_together() -> None:
    data = samples(20)
    doubled = Samples(torch.cat([data.inputs, data.inputs[:3]]), torch.cat([data.labels, data.labels[:3]]))
    method = Sisa(shards=2, slices=2)
    model = method.prepare(Training(lambda: mlp((6, 3)), RECIPE), doubled, seed=0).model
    result = method(model, data.inputs[:2].double())
    assert result.details.facts["rows_forgotten"] == 4
    assert any("4 rows of the training data equal the 2 samples" in note for note in result.notes)


def test_a_shard_without_rows_has_no_vote_and_remembers_nothing() -> None:
    method = Sisa(shards=3, slices=2)
    model = method.prepare(Training(lambda: mlp((6, 3)), RECIPE), samples(12), seed=0).model
    result = method(model, model.ensemble_state.sharded.of(1).inputs)
    with torch_seed(model.ensemble_state.sharded.start_seed(1)):
        assert states_equal(result.model.constituents[1], mlp((6, 3))), "initial weights"
    x = samples(30, seed=9).inputs
    others = torch.stack([result.model.constituents[at](x) for at in (0, 2)])
    assert torch.equal(result.model(x), vote(others))
    assert any("1 of 3 shards have no rows left and no vote" in note for note in result.notes)
    with pytest.raises(InputError, match="all training data"):
        method(result.model, result.model.ensemble_state.sharded.data.inputs)


@pytest.mark.parametrize("space", [2e9, 0], ids=["checkpoints", "no checkpoints"])
def test_rows_that_no_step_had_used_leave_the_books_and_no_weight_moves(tmp_path: Path, space: float) -> None:
    method = Sisa(shards=2, slices=30, space=space)
    training = Training(lambda: mlp((6, 3)), Recipe(epochs=1, batch_size=16, learning_rate=1e-2))
    model = method.prepare(training, DATA, seed=0, folder=tmp_path).model
    sharded = model.ensemble_state.sharded
    unused = 0
    for at in range(len(DATA)):
        shard, slice_ = int(sharded.shard[at]), int(sharded.slice[at])
        later = plan(sharded.sizes(shard), 1, 16)[slice_ - 1 :]
        result = method(model, sharded.data.inputs[at : at + 1])
        assert len(result.model.ensemble_state.sharded.data) == len(DATA) - 1
        assert sharded.keys[at] not in result.model.ensemble_state.sharded.keys
        # the answer by another way: a request whose every shard is trained from its beginning
        again = fresh(training, result.model, shard)
        assert states_equal(result.model.constituents[shard], again)
        if any(stage.steps for stage in later) or not states_equal(model, result.model):
            assert result.stopped == "iterations"
            continue
        unused += 1
        assert result.stopped == "not-memorised"
        assert any("no step had used the samples" in note for note in result.notes)
        assert not any("still remember" in note for note in result.notes), "no checkpoint remembers it"
        assert result.details.facts["shards_retrained"] == result.details.facts["longest_shard_seconds"] == 0
        assert result.model.ensemble_state.trainings == model.ensemble_state.trainings, (
            "and nothing was spent or written"
        )
        assert result.model.bytes == model.bytes
        # the next request goes on from its checkpoints, and is as exact as ever
        other = int(np.flatnonzero((sharded.shard == shard) & (sharded.slice < 9))[-1])
        following = method(result.model, sharded.data.inputs[other : other + 1]).model
        assert states_equal(following.constituents[shard], fresh(training, following, shard))
    assert unused == 6


def fresh(training: Training, model: SisaEnsemble, shard: int) -> nn.Module:
    """Train a shard on the rows that are left, from new weights, stage after stage."""
    sharded, recipe = model.ensemble_state.sharded, training.recipe
    with torch_seed(sharded.start_seed(shard)):
        net = training.build()
    stages = plan(sharded.sizes(shard), recipe.epochs, recipe.batch_size)
    for stage, seed in zip(stages, sharded.stage_seeds(shard), strict=True):
        if stage.steps:
            net = train(
                lambda net=net: net, sharded.of(shard).rows(range(stage.rows)), recipe, seed=seed, steps=stage.steps
            )
    return net


def test_the_only_row_of_a_shard_that_batch_norm_could_not_train_is_forgotten() -> None:
    method = Sisa(shards=3, slices=1)
    model = method.prepare(TRAINING, samples(5), seed=0).model
    (alone,) = (shard for shard in range(3) if len(model.ensemble_state.sharded.of(shard)) == 1)
    result = method(model, model.ensemble_state.sharded.of(alone).inputs)
    assert result.stopped == "not-memorised"
    assert result.model.ensemble_state.sharded.voters == {0, 1, 2} - {alone}
    assert any("1 of 3 shards have no rows left and no vote" in note for note in result.notes)


def test_the_seconds_of_the_longest_shard_are_told(ensemble: SisaEnsemble) -> None:
    result = METHOD(ensemble, torch.cat([rows_of(ensemble, shard, 1).inputs[:1] for shard in range(3)]))
    seconds = [step.seconds for step in result.history]
    assert len(seconds) == 3
    assert result.details.facts["longest_shard_seconds"] == max(seconds)
    assert 0 < max(seconds) < sum(seconds) <= result.seconds, "here they were trained one after the other"


def by_hand(logits: Tensor) -> list[list[float]]:
    """Count votes in plain Python."""
    found = []
    for sample in range(logits.shape[1]):
        members = [[math.exp(z) for z in logits[m, sample].tolist()] for m in range(logits.shape[0])]
        members = [[value / sum(row) for value in row] for row in members]
        classes = range(logits.shape[2])
        votes = [row.index(max(row)) for row in members]
        mean = [sum(row[c] for row in members) / len(members) for c in classes]
        winner = max(classes, key=lambda c: (votes.count(c), mean[c]))
        won = [row for row, cast in zip(members, votes, strict=True) if cast == winner]
        found.append([sum(row[c] for row in won) / len(won) for c in classes])
    return found


@pytest.mark.parametrize("members", [1, 2, 3, 4, 10])
def test_vote_and_winners_mean_by_hand(members: int) -> None:
    draw = torch.Generator().manual_seed(members)
    logits = 3 * torch.randn(members, 50, 4, generator=draw, dtype=torch.float64)
    assert np.allclose(vote(logits).softmax(1), by_hand(logits), atol=1e-12)
    assert np.allclose(vote(logits).exp(), by_hand(logits), atol=1e-12), "the output is the logarithm of the posterior"


def test_the_majority_wins_though_a_minority_is_surer() -> None:
    weak, sure = [0.1, 0.0, 0.0], [0.0, 0.0, 50.0]
    posterior = vote(torch.tensor([[weak], [weak], [sure]])).exp()[0]
    assert torch.allclose(posterior, torch.tensor(weak).softmax(0))


def test_ties_go_to_the_larger_mean_posterior() -> None:
    one, two = [1.0, 0.0, 0.0], [0.0, 0.0, 2.0]
    for order in ([one, two], [two, one]):
        posterior = vote(torch.tensor([[row] for row in order])).exp()[0]
        assert torch.allclose(posterior, torch.tensor(two).softmax(0))


def test_sure_constituents_have_finite_logarithms() -> None:
    logits = torch.tensor([[[0.0, 900.0]], [[0.0, 800.0]]])
    assert torch.isfinite(vote(logits)).all()


def test_posteriors_of_the_ensemble_are_those_of_the_vote(ensemble: SisaEnsemble) -> None:
    x = samples(40, seed=3).inputs
    logits = torch.stack([net(x) for net in ensemble.constituents])
    assert np.allclose(posteriors(ensemble, x), by_hand(logits.detach()), atol=1e-6)


def test_every_kth_checkpoint_is_kept_within_the_space(tmp_path: Path) -> None:
    size = METHOD.prepare(TRAINING, DATA, seed=5, folder=tmp_path / "all").cost.bytes // 12
    bounded = Sisa(shards=3, slices=4, space=3 * 2 * size + 10)
    prepared = bounded.prepare(TRAINING, DATA, seed=5, folder=tmp_path / "some")
    assert prepared.cost.unbounded_bytes == 12 * size
    on_disk = sum(path.stat().st_size for path in (tmp_path / "some").rglob("*.safetensors"))
    assert prepared.cost.bytes == on_disk == 3 * size <= bounded.space, "the second of four: the least k that fits"
    assert prepared.model.ensemble_state.keep == (2,)
    forget = torch.cat([rows_of(prepared.model, s, i).inputs[:1] for s, i in ((0, 2), (1, 4))])
    full = METHOD.prepare(TRAINING, DATA, seed=5).model
    assert states_equal(full, prepared.model)
    with_all, with_some = METHOD(full, forget), bounded(prepared.model, forget)
    assert states_equal(with_all.model, with_some.model), "the bound costs time, not exactness"
    assert with_all.details.facts["stages_retrained"] == 3 + 1
    assert with_some.details.facts["stages_retrained"] == 4 + 2
    assert with_some.details.facts["bytes"] == 3 * size
    assert with_some.details.facts["full_bytes"] == 12 * size
    none = Sisa(shards=3, slices=4, space=0)
    bare = none.prepare(TRAINING, DATA, seed=5, folder=tmp_path / "none")
    assert bare.cost.bytes == 0
    assert not (tmp_path / "none").exists()
    assert states_equal(none(bare.model, forget).model, with_all.model)


@pytest.mark.parametrize("slices", [1, 2, 7, 100])
@pytest.mark.parametrize("count", [0, 1, 3, 50, 99, 100])
def test_kept_stages_fit_and_no_smaller_step_does(slices: int, count: int) -> None:
    kept = kept_stages(slices, 10, 10 * count + 5)
    assert len(kept) <= count
    if count >= slices:
        assert kept == tuple(range(1, slices + 1))
    elif len(kept) > 1:
        k = kept[0]
        assert kept == tuple(range(k, slices, k))
        assert k == 1 or len(range(k - 1, slices, k - 1)) > count


def test_deterministic_and_the_program_s_randomness_left_alone(ensemble: SisaEnsemble) -> None:
    state = torch.random.get_rng_state()
    again = METHOD.prepare(TRAINING, DATA, seed=5).model
    assert states_equal(again, ensemble)
    assert states_equal(METHOD(again, DATA.inputs[:2]).model, METHOD(ensemble, DATA.inputs[:2], seed=9).model)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not states_equal(METHOD.prepare(TRAINING, DATA, seed=6).model, ensemble)


def test_the_caller_s_ensemble_and_files_are_untouched(tmp_path: Path) -> None:
    model = METHOD.prepare(TRAINING, DATA, seed=5, folder=tmp_path).model
    before, files = fingerprint(model), {p: p.read_bytes() for p in tmp_path.rglob("*.safetensors")}
    ensemble_state = model.ensemble_state
    one, two = METHOD(model, DATA.inputs[:1]), METHOD(model, DATA.inputs[1:2])
    assert fingerprint(model) == before
    assert model.ensemble_state is ensemble_state
    assert all(path.read_bytes() == content for path, content in files.items())
    ours = {each.path for shard in one.model.ensemble_state.checkpoints for each in shard.values()}
    theirs = {each.path for shard in two.model.ensemble_state.checkpoints for each in shard.values()}
    assert not (ours - set(files)) & (theirs - set(files)), "two requests from one model write to two generations"
    shared = {p.data_ptr() for p in model.parameters()} & {p.data_ptr() for p in one.model.parameters()}
    assert not shared


def test_copies_share_files_and_a_temporary_folder_lives_as_long_as_they_do() -> None:
    model = METHOD.prepare(TRAINING, DATA, seed=5).model
    folder = model.ensemble_state.store.folder
    twin = copy.deepcopy(model)
    assert twin.ensemble_state.sharded.data.inputs is model.ensemble_state.sharded.data.inputs
    del model
    gc.collect()
    result = METHOD(twin, DATA.inputs[:1])
    assert folder.is_dir()
    del twin, result
    gc.collect()
    assert not folder.exists()


def test_discard_deletes_what_the_successor_does_not_use(tmp_path: Path) -> None:
    model = METHOD.prepare(TRAINING, DATA, seed=5, folder=tmp_path).model
    result = METHOD(model, rows_of(model, 1, 3).inputs[:1])
    assert any("old.discard(new)" in note for note in result.notes)
    freed = model.discard(result.model)
    assert freed == result.details.facts["old_bytes"] > 0
    left = set(tmp_path.rglob("*.safetensors"))
    assert left == {each.path for shard in result.model.ensemble_state.checkpoints for each in shard.values()}
    again = METHOD(result.model, rows_of(result.model, 1, 2).inputs[:1])
    assert again.details.facts["shards_retrained"] == 1
    with pytest.raises(OutputError, match=r"checkpoint .*shard-001-slice-0003.* cannot be read .*prepare the model"):
        METHOD(model, rows_of(model, 1, 4).inputs[:1])
    again.model.discard()
    result.model.discard()
    assert not list(tmp_path.rglob("*.safetensors"))
    assert not list(tmp_path.iterdir()), "empty generations go too"


def test_a_damaged_checkpoint_is_told(tmp_path: Path) -> None:
    model = METHOD.prepare(TRAINING, DATA, seed=5, folder=tmp_path).model
    path = model.ensemble_state.checkpoints[0][1].path
    content = bytearray(path.read_bytes())
    content[-3] ^= 1  # one bit of a weight: still a valid safetensors file
    path.write_bytes(bytes(content))
    with pytest.raises(OutputError, match=r"slice-0001.safetensors is damaged: its SHA-256"):
        METHOD(model, rows_of(model, 0, 2).inputs[:1])
    assert [p.name for p in tmp_path.iterdir()] == ["generation-000"], "a failed request leaves nothing behind"


class StopError(Exception):
    pass


def test_cancelling_leaves_no_file_behind(tmp_path: Path) -> None:
    ticks: list[Tick] = []

    def stop(tick: Tick) -> None:
        ticks.append(tick)
        if len(ticks) == 7:
            assert len(list(tmp_path.rglob("*.safetensors"))) == 6, (
                "after four slices of one shard, and two of the next"
            )
            raise StopError

    with pytest.raises(StopError):
        METHOD.prepare(TRAINING, DATA, seed=5, folder=tmp_path, progress=stop)
    assert not list(tmp_path.rglob("*"))
    assert [(t.stage, t.done, t.total) for t in ticks[3:6]] == [("shard 1", 4, 4), ("shards", 1, 3), ("shard 2", 1, 4)]


KILLED = """
import os, signal, stat, sys
from pathlib import Path
import torch
import forsaken._files
from forsaken.data.samples import Samples
from forsaken.bench.networks import mlp
from forsaken.models.train import Training
from forsaken.recipe import Recipe
from forsaken.unlearning.sisa.method import Sisa

real, count = os.fsync, [0]

def fsync(handle):
    count[0] += stat.S_ISREG(os.fstat(handle).st_mode)  # folders are flushed too
    if count[0] == 6:  # the draft is written and has not got its name yet
        os.kill(os.getpid(), signal.SIGKILL)
    real(handle)

os.fsync = fsync
data = Samples(torch.randn(60, 6), torch.arange(60) % 3)
training = Training(lambda: mlp((6, 3)), Recipe(2, 8, 1e-2))
Sisa(shards=3, slices=4).prepare(training, data, seed=0, folder=Path(sys.argv[1]))
"""


def test_a_killed_preparation_leaves_whole_files_and_the_next_begins_anew(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    left = list(tmp_path.rglob("*.safetensors"))
    assert len(left) == 5
    for path in left:
        mlp((6, 3)).load_state_dict(load_file(path))
    model = METHOD.prepare(TRAINING, DATA, seed=5, folder=tmp_path).model
    assert sorted(path.name for path in tmp_path.iterdir()) == ["generation-000", "generation-001"]
    assert METHOD(model, DATA.inputs[:1]).details.facts["shards_retrained"] == 1


def test_models_and_settings_that_do_not_fit_are_refused(ensemble: SisaEnsemble) -> None:
    with pytest.raises(ModelError, match=r"cannot make a Sequential forget.*prepare\(training, data, seed"):
        METHOD(network(), DATA.inputs[:1])
    with pytest.raises(SettingsError, match="was prepared with shards=3; give Sisa the same"):
        Sisa(shards=4, slices=4)(ensemble, DATA.inputs[:1])
    with pytest.raises(SettingsError, match=r"2 problems(?s:.*)shards is 0(?s:.*)unknown engine 'rai'"):
        Sisa(shards=0, engine="rai")
    with pytest.raises(SettingsError, match="all machines share; give folder="):
        Sisa(engine="ray://there:10001").prepare(TRAINING, DATA, seed=0)
    with pytest.raises(InputError, match="need labels"):
        METHOD.prepare(TRAINING, Samples(DATA.inputs), seed=0)
    with pytest.raises(InputError, match="another shape"):
        METHOD(ensemble, torch.zeros(1, 7))
    with pytest.raises(EmptyError, match="forget is empty"):
        METHOD(ensemble, torch.zeros(0, 6))
    with pytest.raises(InputError, match="2 of 2 forget samples are not in the training data"):
        METHOD(ensemble, torch.zeros(2, 6) + torch.tensor([[1.0], [2.0]]))


def test_another_network_than_prepared_is_told(tmp_path: Path) -> None:
    widths = [10]
    model = METHOD.prepare(Training(lambda: mlp((6, widths[0], 3)), RECIPE), DATA, seed=5, folder=tmp_path).model
    widths[0] = 12
    with pytest.raises(ModelError, match="does not fit the network that the training builds"):
        METHOD(model, rows_of(model, 0, 2).inputs[:1])


def test_diverging_training_is_an_error(tmp_path: Path) -> None:
    wild = Training(lambda: mlp((6, 3)), Recipe(6, 8, 1e38, optimiser="sgd"))
    with pytest.raises(NonFiniteError, match="lower"):
        METHOD.prepare(wild, DATA, seed=0, folder=tmp_path)
    assert not list(tmp_path.iterdir())


class Sum(nn.Linear):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(left + right)


def test_networks_with_named_inputs() -> None:
    training = Training(lambda: Sum(6, 3), RECIPE)
    named = Samples({"left": DATA.inputs, "right": torch.zeros_like(DATA.inputs)}, DATA.labels)  # type: ignore[arg-type]
    plain = METHOD.prepare(Training(lambda: nn.Linear(6, 3), RECIPE), DATA, seed=5).model
    model = METHOD.prepare(training, named, seed=5).model
    assert posteriors(model, Samples(named.inputs)).shape == posteriors(plain, Samples(DATA.inputs)).shape
    result = METHOD(model, named.rows([3]))
    assert result.details.facts["rows_forgotten"] == 1


def test_a_build_that_returns_one_network_each_time() -> None:
    given = nn.Linear(6, 3)
    before = fingerprint(given)
    ensemble = METHOD.prepare(Training(lambda: given, RECIPE), DATA, seed=5).model
    assert isinstance(ensemble, SisaEnsemble)
    assert len({fingerprint(each) for each in ensemble.constituents}) == METHOD.shards
    assert fingerprint(given) == before
