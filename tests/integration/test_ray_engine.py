"""Fan-out on a real Ray: same results, errors as themselves, and a worker that is killed while it works."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
import types
from pathlib import Path

import pytest
import torch

from forsaken.bench.networks import mlp
from forsaken.data.samples import Samples
from forsaken.engine import fan_out
from forsaken.errors import DataNotFoundError, ForsakenError, OverlapError, SettingsError, UnknownNameError
from forsaken.models.train import Training
from forsaken.models.weights import fingerprint
from forsaken.recipe import Recipe
from forsaken.types import Tick
from forsaken.unlearning.sisa.method import Sisa

cloudpickle = pytest.importorskip("ray.cloudpickle")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # Ray's workers cannot import a test
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ray():
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


def matrix_power(item: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(item)
    return torch.linalg.matrix_power(torch.randn(40, 40, generator=draw) / 7, 5)


def note_and_wait(folder: Path, item: int) -> int:
    """Leave a file named by item, attempt and process; the first attempt at item 0 waits to be killed."""
    attempt = len(list(folder.glob(f"{item}-*")))
    (folder / f"{item}-{attempt}-{os.getpid()}").touch()
    if item == 0 and attempt == 0:
        time.sleep(60)
    return 10 * item


def note_and_fail(folder: Path, item: int) -> None:
    (folder / f"{item}").touch()
    if item == 1:
        raise OverlapError("two rows", rows=[4, 7])
    time.sleep(60)


class LockedError(Exception):
    """An error of a user's own that pickle cannot build again."""

    def __init__(self, door: str, key: str) -> None:
        super().__init__(f"{door} is locked")


def fail_with(error: Exception, item: int) -> None:
    raise error


def fail_locked(item: int) -> None:
    raise LockedError("the door", "lost")


def die(item: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_same_results_as_in_process(ray) -> None:
    here = fan_out(matrix_power, [5, 3, 8])
    there = fan_out(matrix_power, [5, 3, 8], engine="ray")
    assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
    assert ray.is_initialized(), "a Ray that was there stays"


def test_a_killed_worker_s_item_is_done_again_and_counted_once(ray, tmp_path: Path) -> None:
    killed: list[int] = []

    def kill() -> None:
        while not (found := list(tmp_path.glob("0-0-*"))):
            time.sleep(0.02)
        pid = int(found[0].name.split("-")[2])
        assert pid != os.getpid()
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    ticks: list[Tick] = []
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    work = functools.partial(note_and_wait, tmp_path)
    started = time.perf_counter()
    results = fan_out(work, [0, 1, 2, 3], engine="ray", progress=ticks.append)
    killer.join(10)
    assert results == [0, 10, 20, 30]
    assert [tick.done for tick in ticks] == [1, 2, 3, 4], "every item is told once"
    attempts = sorted(path.name.rsplit("-", 1)[0] for path in tmp_path.iterdir())
    assert attempts == ["0-0", "0-1", "1-0", "2-0", "3-0"], "item 0 was begun twice, the others once"
    assert time.perf_counter() - started < 55, "nobody waited for the killed attempt"
    assert len(killed) == 1


def test_an_error_comes_as_itself_and_cancels_the_others(ray, tmp_path: Path) -> None:
    started = time.perf_counter()
    with pytest.raises(OverlapError, match="two rows") as caught:
        fan_out(functools.partial(note_and_fail, tmp_path), [0, 1, 2, 3], engine="ray", workers=2)
    assert type(caught.value) is OverlapError
    assert caught.value.rows == (4, 7)
    assert any("note_and_fail" in note for note in caught.value.__notes__), "where it happened is told"
    assert time.perf_counter() - started < 50
    begun = {path.name for path in tmp_path.iterdir()}
    assert "3" not in begun, "at most two at a time, so the last had not begun"
    time.sleep(1.0)
    assert {path.name for path in tmp_path.iterdir()} == begun, "and it never did"


@pytest.mark.parametrize(
    "error",
    [
        UnknownNameError("colour", "bleu", ["blue"]),
        DataNotFoundError("no file", field="data", remedy="look for it"),
        SettingsError.of("Recipe", [SettingsError(field="epochs", value=0, expected="a number > 0")]),
        KeyError("a plain one"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_every_kind_of_error_arrives_whole(ray, error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        fan_out(functools.partial(fail_with, error), [0], engine="ray")
    assert type(caught.value) is type(error)
    assert (str(caught.value), caught.value.args) == (str(error), error.args)
    theirs = {name: value for name, value in vars(caught.value).items() if name != "__notes__"}
    assert {name: str(value) for name, value in theirs.items()} == {k: str(v) for k, v in vars(error).items()}


def test_an_error_that_cannot_be_sent_is_told(ray) -> None:
    with pytest.raises(ForsakenError, match=r'item 0 failed on a Ray worker .*the door is locked.*engine="local"'):
        fan_out(fail_locked, [0], engine="ray")


def test_work_that_always_kills_its_process_is_an_error(ray) -> None:
    with pytest.raises(ForsakenError, match=r'worked on item 0 died, 4 times over .*engine="local"'):
        fan_out(die, [1], engine="ray")


def test_work_that_the_workers_cannot_import_is_told(ray, monkeypatch) -> None:
    lost = types.ModuleType("a_module_of_this_process_alone")
    exec("def work(item): return item", lost.__dict__)
    monkeypatch.setitem(sys.modules, lost.__name__, lost)
    with pytest.raises(ForsakenError, match=r"could not begin item 0 .*a_module_of_this_process_alone.*installed"):
        fan_out(lost.work, [1], engine="ray")


def test_a_gpu_that_is_not_there_is_refused(ray) -> None:
    with pytest.raises(SettingsError, match="needs 64 GPU"):
        fan_out(matrix_power, [1], engine="ray", gpus=64.0)


def test_another_address_than_that_of_the_connection_is_refused(ray) -> None:
    with pytest.raises(SettingsError, match='connected to a Ray already; use engine="ray"'):
        fan_out(matrix_power, [1], engine="ray://127.0.0.1:10001")


def test_sisa_on_ray_gives_the_same_bits(ray, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    data = Samples(torch.randn(40, 6, generator=draw), torch.randint(3, (40,), generator=draw))
    training = Training(lambda: mlp((6, 8, 3)), Recipe(6, 8, 1e-2))
    models = []
    for engine in ("local", "ray"):
        method = Sisa(shards=2, slices=4, engine=engine)
        prepared = method.prepare(training, data, seed=3, folder=tmp_path / engine)
        forgotten = method(prepared.model, data.inputs[:3])
        models.append((fingerprint(prepared.model), fingerprint(forgotten.model)))
    assert models[0] == models[1]
    names = [sorted(p.relative_to(tmp_path / e) for p in (tmp_path / e).rglob("*")) for e in ("local", "ray")]
    assert names[0] == names[1]


def test_a_ray_of_its_own_ends_with_the_call() -> None:
    import ray

    if ray.is_initialized():
        ray.shutdown()
    assert fan_out(matrix_power, [1], engine="ray")[0].shape == (40, 40)
    assert not ray.is_initialized()


def test_no_cluster_at_the_address_is_told(monkeypatch) -> None:
    import ray

    if ray.is_initialized():
        ray.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "1")
    monkeypatch.setattr(ray, "init", _refuse)
    with pytest.raises(SettingsError, match=r"no Ray at 127\.0\.0\.1:1 .*use engine=\"local\""):
        fan_out(matrix_power, [1], engine="ray")


def _refuse(*_: object, **__: object) -> None:
    raise ConnectionError("nobody answers")
