"""Fan-out in this process, what is refused before any engine starts, and errors that travel between processes."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import sys

import numpy as np
import pytest
import torch

from forsaken.engine import check_engine, fan_out
from forsaken.errors import DataNotFoundError, ForsakenError, OverlapError, SettingsError, UnknownNameError
from forsaken.types import Tick


def square(item: int) -> int:
    return item * item


def test_results_come_in_the_order_of_the_items() -> None:
    assert fan_out(square, [3, 1, 2]) == [9, 1, 4]
    assert fan_out(square, []) == []


def test_each_item_is_worked_on_once() -> None:
    seen: list[int] = []
    fan_out(seen.append, [1, 2, 3])
    assert seen == [1, 2, 3]


def test_every_finished_item_is_told() -> None:
    ticks: list[Tick] = []
    fan_out(square, [1, 2, 3], progress=ticks.append, stage="squares")
    assert ticks == [Tick("squares", done, 3) for done in (1, 2, 3)]


def test_an_error_is_raised_as_itself_and_ends_the_work() -> None:
    seen: list[int] = []

    def work(item: int) -> None:
        seen.append(item)
        if item == 2:
            raise UnknownNameError("colour", "bleu", ["blue"])

    with pytest.raises(UnknownNameError, match="unknown colour 'bleu'; did you mean 'blue'"):
        fan_out(work, [1, 2, 3])
    assert seen == [1, 2]


def test_a_progress_function_that_raises_cancels() -> None:
    seen: list[int] = []

    def stop(tick: Tick) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fan_out(seen.append, [1, 2, 3], progress=stop)
    assert seen == [1]


@pytest.mark.parametrize("engine", ["rai", "", "ray://", "http://there", None, 3])
def test_unknown_engines_are_refused(engine) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown engine .*known: local, processes, ray, ray://host:port"):
        fan_out(square, [1], engine=engine)


@pytest.mark.parametrize("engine", ["local", "processes", "ray", "ray://there:10001"])
def test_known_engines_are_known(engine) -> None:
    check_engine(engine)


def test_processes_return_in_order_and_tell_each_item() -> None:
    ticks: list[Tick] = []
    shift = 10  # a closure, which pickle alone cannot send
    found = fan_out(
        lambda item: (item + shift, os.getpid()), [3, 1, 2], engine="processes", workers=2, progress=ticks.append
    )
    assert [value for value, _ in found] == [13, 11, 12]
    assert os.getpid() not in {process for _, process in found}
    assert [tick.done for tick in ticks] == [1, 2, 3]


def test_arrays_of_a_process_can_be_written_to() -> None:
    def doubled(values: np.ndarray) -> float:
        values *= 2
        return float(values.sum())

    big = np.ones(500_000)
    assert fan_out(doubled, [big, big], engine="processes", workers=2) == [1e6, 1e6]
    assert big.sum() == 500_000


def test_an_error_of_a_process_is_raised_as_itself() -> None:
    def work(item: int) -> None:
        raise UnknownNameError("colour", "bleu", ["blue"])

    with pytest.raises(UnknownNameError, match="unknown colour 'bleu'; did you mean 'blue'"):
        fan_out(work, [1, 2], engine="processes", workers=2)


def test_no_process_waits_for_more_work() -> None:
    (process, *_) = fan_out(lambda item: os.getpid(), [1, 2], engine="processes", workers=2)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.parametrize(("items", "workers"), [([1], 4), ([1, 2], 1)])
def test_work_that_one_worker_does_leaves_the_threads_of_this_process(items: list[int], workers: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        fan_out(lambda _: torch.set_num_threads(1), items, engine="processes", workers=workers)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_process_that_dies_is_told() -> None:
    with pytest.raises(ForsakenError, match=r"a process died while it worked .*give fewer workers"):
        fan_out(lambda item: os.kill(os.getpid(), signal.SIGKILL), [1, 2], engine="processes", workers=2)


def test_without_ray_the_remedy_is_told(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingsError, match=r"pip install 'forsaken\[ray\]'"):
        fan_out(square, [1], engine="ray")


def test_no_workers_are_refused() -> None:
    with pytest.raises(SettingsError, match="workers is 0, expected a whole number >= 1"):
        fan_out(square, [1], workers=0)


@pytest.mark.parametrize(
    "error",
    [
        OverlapError("two rows", rows=[4, 7], field="retain", remedy="leave them out"),
        UnknownNameError("colour", "bleu", ["blue"]),
        DataNotFoundError("no file"),
        SettingsError.of("Recipe", [SettingsError(field="epochs", value=0, expected="a number > 0")]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_survives_a_copy_and_another_process(error: ForsakenError) -> None:
    error.add_note("a note")
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error)), error.with_remedy(error.remedy)):
        assert type(twin) is type(error)
        assert (str(twin), twin.args) == (str(error), error.args)
        assert {k: str(v) for k, v in vars(twin).items()} == {k: str(v) for k, v in vars(error).items()}
