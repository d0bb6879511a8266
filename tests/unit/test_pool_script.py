"""benchmarks/pool.py: which process starts when, with processes that only pretend."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import benchmark_scripts
import pytest


@pytest.fixture(scope="module")
def pool() -> Iterator[ModuleType]:
    with benchmark_scripts.script("pool") as found:
        yield found


class Pretended:
    """A process that ends when it is told to."""

    def __init__(self, command: list[str], **_: Any) -> None:
        self.command, self.returncode = command, None

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self.returncode = -15

    def wait(self, timeout: float | None = None) -> int | None:
        return self.returncode


@pytest.fixture
def started(pool: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setattr(subprocess, "Popen", Pretended)

    def start(*studies: str, workers: int = 3, pictures: int = 1, shares: int = 2) -> Any:
        told = {"folder": tmp_path, "results": tmp_path, "device": "cpu", "seed": 0, "models": 4}
        options = argparse.Namespace(workers=workers, pictures=pictures, shares=shares, **told)
        return pool.Pool(options, pool.queue(list(studies), shares))

    return start


def names(found: Any) -> list[str]:
    return [job.name for job in found.running]


def finish(found: Any, returncode: int = 0) -> bool:
    for process in found.running.values():
        process.returncode = returncode
    return bool(found.step())


def test_shares_first_then_the_whole_and_no_more_than_the_workers(started: Any) -> None:
    found = started("digits:confirm", "reuters-id:confirm")
    assert found.step()
    assert names(found) == ["digits-confirm-0-of-2", "digits-confirm-1-of-2", "reuters-id-confirm-0-of-2"]
    assert finish(found)
    assert names(found) == ["digits-confirm", "reuters-id-confirm-1-of-2"]
    assert finish(found)
    assert names(found) == ["reuters-id-confirm"]
    assert not finish(found)
    assert not found.waiting
    assert not found.failed


def test_few_on_pictures_at_a_time_and_others_meanwhile(started: Any) -> None:
    found = started("c10-t:confirm:12", "digits:confirm")
    found.step()
    assert names(found) == ["c10-t-confirm-12-0-of-4", "digits-confirm-0-of-2", "digits-confirm-1-of-2"]
    words = found.running[next(iter(found.running))].command
    assert words[words.index("--epochs") + 1] == "12"
    assert words[words.index("--share") + 1] == "0/4"


def test_a_failed_share_keeps_its_study_from_being_written(started: Any) -> None:
    found = started("digits:confirm")
    found.step()
    assert not finish(found, returncode=3), "nothing is left to wait for"
    assert [job.name for job in found.waiting] == ["digits-confirm"]
    assert len(found.failed) == 2


def test_a_study_named_twice_is_done_once(started: Any) -> None:
    found = started("digits:confirm", "digits:confirm", workers=9)
    found.step()
    assert len(found.running) == 2


def test_what_it_started_it_stops(started: Any) -> None:
    found = started("digits:confirm")
    found.step()
    processes = list(found.running.values())
    found.stop()
    assert [process.returncode for process in processes] == [-15, -15]
